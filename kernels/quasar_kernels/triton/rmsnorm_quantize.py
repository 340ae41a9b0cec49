"""`rmsnorm` and `quantize_rows` in one kernel: the normalised row is not rounded to BF16 on the way to INT8.

The row is in registers until it is normalised, since its mean square comes first; only the dense factor of a rotation
takes it to memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.reference import Transform
from quasar_kernels.triton.launch import check, launch, row_tile
from quasar_kernels.triton.overlap import follow
from quasar_kernels.triton.quantize_rows import quantize_arguments, quantize_line, quantize_tile, transformed
from quasar_kernels.triton.rmsnorm import rmsnorm_tile
from quasar_kernels.triton.rotate import magnitude


@triton.jit
def _rmsnorm_quantize(
    x, w, eps, inv_smooth, shift, rotation, lines, q, scale,
    K: tl.constexpr, SIDE: tl.constexpr, SIDE_TILE: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    channel = tl.arange(0, BLOCK)
    row = rmsnorm_tile(x, w, eps, K, BLOCK)
    row = transformed(row, channel, inv_smooth, shift, rotation, K, SIDE, BLOCK)
    if lines is None:
        quantize_tile(row, q, scale, K, BLOCK)
    else:
        line = lines + tl.program_id(0).to(tl.int64) * K
        tl.store(line + channel, row, mask=channel < K)
        quantize_line(line, magnitude(row), rotation, q, scale, K, SIDE, SIDE_TILE, TILE)


def rmsnorm_quantize(
    x: Tensor, w: Tensor, eps: float, transform: Transform | None = None, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """See `reference.rmsnorm_quantize`."""
    check("x", x, torch.float32, (None, None))
    rows, size = x.shape
    check("w", w, torch.float32, (size,))
    block, warps = row_tile(size)  # as in `rmsnorm`: the order of the sum depends on the warps
    arguments, _ = quantize_arguments(x, rows, size, transform, out)
    launch(_rmsnorm_quantize, rows, {"x": x, "w": w, "eps": eps, **arguments, "BLOCK": block}, warps)
    return arguments["q"], arguments["scale"]
