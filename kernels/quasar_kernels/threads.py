"""Whose threads compute: a backend with its own pool must not share its cores with torch's.

## Idea

Any torch op on a few thousand numbers wakes torch's OpenMP team, which then spins for milliseconds on the cores that
the next pass needs (a width-6 step took 12 ms instead of 7), and with another busy process on the machine its barrier
waits a scheduler's slice. For the rows of a decode loop the team saves nothing.

## Choice

`torch.set_num_threads` changes two things: the setting of the calling thread, and the number with which every later
thread begins. A thread that began while another one decoded would keep a single thread for life. So the first is set
alone, by the two functions that torch itself calls for it: OpenMP's, and that of MKL where torch was built with MKL.

## What is lost

A build of torch without OpenMP has no setting of a thread's own. There the block sets the number for all.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch


@contextmanager
def single_torch_thread() -> Iterator[None]:
    """torch computes with the calling thread alone inside the block. Other threads keep their settings, those that
    begin meanwhile too."""
    before = torch.get_num_threads()
    set_threads, set_mkl_threads = _setters()
    set_threads(1)
    mkl_before = set_mkl_threads(1)
    try:
        yield
    finally:
        set_mkl_threads(mkl_before)
        set_threads(before)


@lru_cache(maxsize=1)
def _setters() -> tuple[Callable[[int], object], Callable[[int], int]]:
    """What sets the number of threads of OpenMP, and of MKL (which returns the former one), for the calling thread."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{suffix}"))
        set_threads = library.omp_set_num_threads
    except (OSError, AttributeError):
        return torch.set_num_threads, lambda _: 0
    return set_threads, getattr(library, "MKL_Set_Num_Threads_Local", lambda _: 0)
