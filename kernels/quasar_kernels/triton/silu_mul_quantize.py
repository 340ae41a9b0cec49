"""`silu_mul` and `quantize_rows` in one kernel: what down_proj of a W8A8 verifier reads is not rounded to BF16
first."""

import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.reference import Transform
from quasar_kernels.triton.launch import launch
from quasar_kernels.triton.overlap import follow
from quasar_kernels.triton.quantize_rows import quantize_arguments, quantize_line, quantize_tile, transformed
from quasar_kernels.triton.rotate import magnitude
from quasar_kernels.triton.silu_mul import check_gate_up, silu_mul_tile


@triton.jit
def _silu_mul_quantize(
    gate_up, inv_smooth, shift, rotation, lines, q, scale,
    K: tl.constexpr, SIDE: tl.constexpr, SIDE_TILE: tl.constexpr, TILE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    row = tl.program_id(0)
    channel = tl.arange(0, TILE)
    if lines is None:
        part = silu_mul_tile(gate_up, row, channel, K)
        part = transformed(part, channel, inv_smooth, shift, rotation, K, SIDE, TILE)
        quantize_tile(part, q, scale, K, TILE)
    else:
        line = lines + row.to(tl.int64) * K
        largest = 0.0
        for begin in range(0, K, TILE):
            part = silu_mul_tile(gate_up, row, begin + channel, K)
            part = transformed(part, begin + channel, inv_smooth, shift, rotation, K, SIDE, TILE)
            tl.store(line + begin + channel, part, mask=begin + channel < K)
            largest = tl.maximum(largest, magnitude(part))
        quantize_line(line, largest, rotation, q, scale, K, SIDE, SIDE_TILE, TILE)


def silu_mul_quantize(
    gate_up: Tensor, transform: Transform | None = None, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """See `reference.silu_mul_quantize`."""
    rows, size = check_gate_up(gate_up)
    arguments, warps = quantize_arguments(gate_up, rows, size, transform, out)
    launch(_silu_mul_quantize, rows, {"gate_up": gate_up, **arguments}, warps)
    return arguments["q"], arguments["scale"]
