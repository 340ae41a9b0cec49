"""Memory that the programs of a split product meet in: one area per device and stream, kept between launches.

It has two parts: partial sums, written before they are read, and arrival counters, zero between launches (`split_k.py`
leaves them so). Launches of one stream follow each other and share it; another stream has its own.

A CUDA graph keeps the addresses it was captured with, and memory set to zero during capture is not zero until the graph
runs. So the area never grows during capture: run every shape once on the capturing stream before. An area that has been
outgrown is kept, since an older graph may still use it.
"""

import torch
from torch import Tensor

from quasar_kernels.triton.launch import INTERPRETED

_areas: dict[tuple[str, int], list[tuple[Tensor, Tensor]]] = {}


def scratch(device: torch.device, partials: int, counters: int) -> tuple[Tensor, Tensor]:
    """At least that many 32-bit partial sums and zeroed counters, both i32. Raises RuntimeError where the area would
    have to grow while a graph is captured."""
    on_cuda = device.type == "cuda" and not INTERPRETED
    stream = torch.cuda.current_stream(device).stream_id if on_cuda else 0
    areas = _areas.setdefault((str(device), stream), [])
    if areas and areas[-1][0].numel() >= partials and areas[-1][1].numel() >= counters:
        return areas[-1]
    if on_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a graph is captured before its products ran once on this stream; accepted: run them first")
    if areas:
        partials, counters = max(partials, areas[-1][0].numel()), max(counters, areas[-1][1].numel())
    areas.append(
        (
            torch.empty(partials, dtype=torch.int32, device=device),
            torch.zeros(counters, dtype=torch.int32, device=device),
        )
    )
    return areas[-1]
