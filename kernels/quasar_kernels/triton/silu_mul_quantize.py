"""`silu_mul` and `quantize_rows` in one kernel: what down_proj of a W8A8 verifier reads is never written in between."""

import triton
import triton.language as tl
from torch import Tensor

from quasar_kernels.reference import Transform
from quasar_kernels.triton.launch import launch
from quasar_kernels.triton.quantize_rows import quantize_arguments, quantize_tile
from quasar_kernels.triton.silu_mul import check_gate_up, silu_mul_tile


@triton.jit
def _silu_mul_quantize(
    gate_up, inv_smooth, shift, rotation, scratch, q, scale, K: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr
):
    row = silu_mul_tile(gate_up, tl.program_id(0), tl.arange(0, BLOCK), K)
    quantize_tile(row, inv_smooth, shift, rotation, scratch, q, scale, K, SIDE, BLOCK)


def silu_mul_quantize(
    gate_up: Tensor, transform: Transform | None = None, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """See `reference.silu_mul_quantize`."""
    rows, size = check_gate_up(gate_up)
    arguments, warps = quantize_arguments(gate_up, rows, size, transform, out)
    launch(_silu_mul_quantize, rows, {"gate_up": gate_up, **arguments}, warps)
    return arguments["q"], arguments["scale"]
