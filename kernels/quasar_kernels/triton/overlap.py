"""Kernels that begin before their predecessor has ended, so that memory is read while small kernels run.

A pass is a chain of some 400 kernels, each of which needs the result of the one before. Between two of them a GPU is
idle for a microsecond or so, and a norm of five rows keeps 5 of 132 multiprocessors busy for three: at 4 TB/s that is
some 10 MB not read, time and again. From sm_90 on a kernel may be launched while its predecessor runs (programmatic
dependent launch). Every kernel here first waits until all before it have ended and what they wrote is visible, then
says that its successor may be launched. A product does one thing before that wait: it has the first AHEAD bytes of each
of its rows of weights, which nothing ever writes, brought into the L2 cache.

Why it is safe. Before its wait a kernel writes nothing and reads nothing but weights. It lets a successor in only
behind its wait, so no more than two are under way, and whoever has waited for one has waited for all. A kernel that
does not take part (torch's) begins when all before it have ended, as always. Launches may be captured in CUDA graphs.

What is lost: the time in which a large kernel drains, which a signal before the wait would use too, at the price of
many kernels' requests in the cache at once. sm_80 has none of this; there, and in the interpreter, OVERLAP is False.
Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA, `griddepcontrol`,
`cp.async.bulk.prefetch.L2`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

AHEAD = 512
"""Bytes of every row of weights, per split of K: 8 to 17 MB for the products of an 8 B model. Set by hand, not
measured."""
PREFETCH_ALIGNMENT = 16


@triton.jit
def follow(OVERLAP: tl.constexpr):
    """Waits for the kernels before, and lets the next one in. The first thing that a kernel does."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def follow_reading(w, row, column, N, K, first, end, OVERLAP: tl.constexpr, AHEAD: tl.constexpr, PIECES: tl.constexpr):
    """`follow`; before, asks for the first AHEAD bytes from input `first` on, of each row `column` of the weights
    w [N, K], in PIECES, one a thread. Rows and `first` start at a multiple of 16 bytes.

    Once per tile of weights: not for further `row`s of a pass, and not where a split has no inputs (first ≥ end).
    """
    if OVERLAP:
        if AHEAD > 0:  # noqa: SIM102 – decided when compiled; what follows is not
            if (tl.min(row) == 0) & (first < end):
                item: tl.constexpr = w.dtype.element_ty.primitive_bitwidth // 8
                skipped = tl.arange(0, PIECES)[None, :] * (AHEAD // PIECES)
                line = (w + tl.minimum(column, N - 1).to(tl.int64) * K + first).to(tl.int64)
                size = tl.minimum(AHEAD // PIECES, (end - first) * item - skipped)
                tl.inline_asm_elementwise(
                    "{.reg .pred some; setp.gt.s32 some, $2, 0;"
                    " @some cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;}",
                    "=r,l,r",
                    [line[:, None] + skipped, size + tl.zeros_like(line).to(tl.int32)[:, None]],
                    dtype=tl.int32,
                    is_pure=False,
                    pack=1,
                )
        gdc_wait()
        gdc_launch_dependents()
