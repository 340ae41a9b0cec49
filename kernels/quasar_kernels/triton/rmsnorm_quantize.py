"""`rmsnorm` and `quantize_rows` in one kernel: the normalised row never leaves the registers, so it is not rounded to
BF16 on the way to INT8."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.reference import Transform
from quasar_kernels.triton.launch import check, launch
from quasar_kernels.triton.quantize_rows import quantize_arguments, quantize_tile
from quasar_kernels.triton.rmsnorm import rmsnorm_tile


@triton.jit
def _rmsnorm_quantize(
    x, w, eps, inv_smooth, shift, rotation, scratch, q, scale, K: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr
):
    row = rmsnorm_tile(x, w, eps, K, BLOCK)
    quantize_tile(row, inv_smooth, shift, rotation, scratch, q, scale, K, SIDE, BLOCK)


def rmsnorm_quantize(
    x: Tensor, w: Tensor, eps: float, transform: Transform | None = None, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """See `reference.rmsnorm_quantize`."""
    check("x", x, torch.float32, (None, None))
    check("w", w, torch.float32, (x.shape[1],))
    arguments, warps = quantize_arguments(x, *x.shape, transform, out)
    launch(_rmsnorm_quantize, x.shape[0], {"x": x, "w": w, "eps": eps, **arguments}, warps)
    return arguments["q"], arguments["scale"]
