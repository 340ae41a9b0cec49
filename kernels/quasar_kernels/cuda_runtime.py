"""What a program needs of a CUDA device beside its kernels: copies to it, CUDA graphs, and time.

## Idea

`Runtime` is the interface and `CudaRuntime` is the device itself. `simulated_device.SimulatedDevice` has the same
interface without a GPU, so that what is built on a runtime (the decoder's executor, the benchmarks) can be tested
anywhere.

## Choice

Graphs are captured on a stream of their own and replayed on the caller's stream. All graphs of a runtime share one
memory pool: they run one after the other, and each writes what it reads. Time is read from CUDA events, which the
device passes in the order of its stream, so that what the host does in between is not measured.

## What is lost

Two graphs of one runtime must not run at the same time, since they share memory.

## Source

CUDA C++ Programming Guide, "CUDA Graphs"; torch.cuda.CUDAGraph.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor


class Runtime(Protocol):
    """A device whose work is done in the order of one stream."""

    def upload(self, numbers: Sequence[int], out: Tensor | None = None) -> Tensor:
        """The numbers as an i32 tensor on the device: `out`, or a new one. The copy takes its place in the order of the
        stream, and the host does not wait for it."""

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        """Runs `work` once, then records what it launches, and returns a call that replays the recording.

        Running `work` twice must leave what running it once leaves.
        """

    def mark(self) -> Any:
        """A point in the stream of the device; None on a device whose work is done when a call returns."""

    def seconds(self, first: Any, last: Any) -> float:
        """The time between two marks. The device must have passed both."""


class CudaRuntime:
    """The current CUDA device."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._first: Callable[[], None] | None = None

    def upload(self, numbers: Sequence[int], out: Tensor | None = None) -> Tensor:
        # From pinned memory the copy is asynchronous, and torch keeps the block until the copy has happened.
        pinned = torch.tensor(numbers, dtype=torch.int32, pin_memory=True)
        return pinned.to("cuda", non_blocking=True) if out is None else out.copy_(pinned, non_blocking=True)

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        if self._first is None:  # A memory pool whose graphs are all gone may refuse a new one, so this graph is kept.
            self._first = self._captured(partial(torch.zeros, 1, device="cuda"))
        return self._captured(work)

    def _captured(self, work: Callable[[], object]) -> Callable[[], None]:
        # Triton compiles and loads a kernel when it first runs, and a product may enlarge its scratch memory. A capture
        # allows neither, so everything runs once before, on the stream that will capture.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread of a notebook may allocate memory in the meantime.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        return 1e-3 * first.elapsed_time(last)
