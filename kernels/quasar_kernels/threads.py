"""Whose threads compute: a backend with its own pool must not share its cores with torch's.

Any torch op on a few thousand numbers wakes torch's OpenMP team, which then spins for milliseconds on the cores that
the next pass needs (a width-6 step took 12 ms instead of 7), and with another busy process on the machine its barrier
waits a scheduler's slice. For the rows of a decode loop the team saves nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def single_torch_thread() -> Iterator[None]:
    """torch computes with the calling thread alone inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
