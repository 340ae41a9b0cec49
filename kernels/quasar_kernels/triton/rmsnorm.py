"""x / sqrt(mean(x²) + eps) · w of every row, one program each, the row in registers.

The sum of squares is a tree over threads whose shape depends on K alone. The input is the FP32 residual stream, the
result what the next product reads (BF16).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.triton.launch import check, floats, launch, result, row_tile
from quasar_kernels.triton.overlap import follow


@triton.jit
def rmsnorm_tile(x, w, eps, K: tl.constexpr, BLOCK: tl.constexpr):
    """The row of this program, normalised: f32 [BLOCK], zeros from K on."""
    channel = tl.arange(0, BLOCK)
    inside = channel < K
    row = tl.load(x + tl.program_id(0).to(tl.int64) * K + channel, mask=inside, other=0.0)
    gain = tl.load(w + channel, mask=inside, other=0.0)
    mean = tl.div_rn(tl.sum(row * row, axis=0), K * 1.0)
    return row * tl.div_rn(1.0, tl.sqrt_rn(mean + eps)) * gain


@triton.jit
def _rmsnorm(x, w, eps, out, K: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    follow(OVERLAP)
    channel = tl.arange(0, BLOCK)
    row = rmsnorm_tile(x, w, eps, K, BLOCK)
    tl.store(out + tl.program_id(0).to(tl.int64) * K + channel, row, mask=channel < K)


def rmsnorm(x: Tensor, w: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """See `reference.rmsnorm`."""
    check("x", x, torch.float32, (None, None))
    rows, size = x.shape
    check("w", w, torch.float32, (size,))
    y = result(out, floats(x), (rows, size), x)
    block, warps = row_tile(size)
    launch(_rmsnorm, rows, {"x": x, "w": w, "eps": eps, "out": y, "K": size, "BLOCK": block}, warps)
    return y
