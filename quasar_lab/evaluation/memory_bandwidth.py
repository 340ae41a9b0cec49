"""How fast is memory read here? The bandwidth that every floor is computed from.

## Idea

A pass at batch 1 cannot be faster than the reading of its weights. So the bandwidth is measured on this machine, in the
same run as the passes and with the same threads.

## Choice

On a CPU the threads of the backend read 256 MB, far more than a cache holds. On a GPU the bandwidth is that of a copy
within its memory, bytes read and bytes written together. Both are medians.
"""

import time

import torch
from quasar_kernels import Backend

from quasar_lab.support.machine import percentiles

STREAM_BYTES = 256 * 2**20
COPY_BYTES = 2**31
"""Of each of the two buffers of a copy on a GPU, whose last-level cache holds tens of megabytes."""


def copy_bandwidth(repeats: int = 9) -> float:
    """GB/s of a copy within the memory of the GPU, bytes read and written together: the median over copies of 2 GiB."""
    source = torch.randint(-128, 127, (COPY_BYTES,), dtype=torch.int8, device="cuda")
    copy = torch.empty_like(source)
    seconds = []
    for repeat in range(repeats + 1):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        begun.record()
        copy.copy_(source)
        ended.record()
        torch.cuda.synchronize()
        if repeat:  # the first warms up
            seconds.append(1e-3 * begun.elapsed_time(ended))
    return 2 * COPY_BYTES / percentiles(seconds)[1] / 1e9


def stream_bandwidth(ops: Backend, repeats: int = 9) -> float:
    """GB/s at which the threads of a backend read memory: the median over passes of 256 MB. On a GPU,
    `copy_bandwidth`."""
    if ops.capabilities.asynchronous:
        return copy_bandwidth(repeats)
    data = torch.ones(STREAM_BYTES // 8, dtype=torch.int64)
    ops.stream_read(data)
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        ops.stream_read(data)
        seconds.append(time.perf_counter() - begun)
    return STREAM_BYTES / percentiles(seconds)[1] / 1e9
