"""Kernels that begin before their predecessor has ended, so that memory is read while small kernels run.

A pass is a chain of some 400 kernels, each of which needs the result of the one before. Between two of them a GPU is
idle, and a norm of five rows keeps 5 of 132 multiprocessors busy: at 4 TB/s every microsecond of that is 4 MB not read.
From sm_90 on a kernel may be launched while its predecessor runs (programmatic dependent launch). Every kernel here
first waits until all before it have ended and what they wrote is visible, then says that its successor may be launched.
A product does one thing before that wait: it has a part of its weights, which nothing ever writes, brought into the L2
cache.

Why it is safe. Before its wait a kernel writes nothing and reads nothing but weights. It lets a successor in only
behind its wait, so no more than two are under way, and whoever has waited for one has waited for all. A kernel that
does not take part (torch's) begins when all before it have ended, as always. Launches may be captured in CUDA graphs.

What is lost: the time in which a large kernel drains, which a signal before the wait would use too, at the price of
many kernels' requests in the cache at once. Where `launch` does not ask for it (sm_80 has none of this), and in the
interpreter, OVERLAP is False.
Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA, `griddepcontrol`,
`cp.async.bulk.prefetch.L2`.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

AHEAD = 2048
ROWS_AHEAD: tl.constexpr = tl.constexpr(16)
PROGRAMS_AHEAD: tl.constexpr = tl.constexpr(512)
"""Bytes at most of how many rows of a tile of weights, in how many programs: 4 to 17 MB a product, which an L2 cache of
50 MB holds, and few requests, since a warp issues them one after the other. Set by hand, not measured."""
ALIGNMENT = 16


def ahead(weight: Tensor) -> int:
    """AHEAD for weights whose rows all start at a multiple of 16 bytes, as requests must, else 0."""
    aligned = weight.shape[1] * weight.element_size() % ALIGNMENT == 0 and weight.data_ptr() % ALIGNMENT == 0
    return AHEAD if aligned else 0


@triton.jit
def follow(OVERLAP: tl.constexpr):
    """Waits for the kernels before, and lets the next one in. The first thing that a kernel does."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def follow_reading(w, first_row, first_column, N, K, first, end, OVERLAP: tl.constexpr, AHEAD: tl.constexpr):
    """`follow`; before, asks for weights w [N, K] that this program will read: of its first columns, from input `first`
    on, AHEAD bytes each.

    Only in the first PROGRAMS_AHEAD programs, once per tile of weights (not for further rows of a pass), and not where
    a split has no inputs (first ≥ end). The first warp does it; a predicate keeps the others from asking again.
    """
    if OVERLAP and AHEAD > 0:  # noqa: SIM102 – decided when compiled; what follows is not
        if (first_row == 0) & (first < end) & (tl.program_id(0) < PROGRAMS_AHEAD):
            item: tl.constexpr = w.dtype.element_ty.primitive_bitwidth // 8
            column = tl.minimum(first_column + tl.arange(0, ROWS_AHEAD), N - 1)
            line = (w + column.to(tl.int64) * K + first).to(tl.int64)
            size = tl.minimum(AHEAD, (end - first) * item) + tl.zeros_like(column)
            tl.inline_asm_elementwise(
                "{.reg .u32 thread; .reg .pred asks; mov.u32 thread, %tid.x; setp.lt.u32 asks, thread, 32;"
                " @asks cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;}",
                "=r,l,r",
                [line, size],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
    follow(OVERLAP)
