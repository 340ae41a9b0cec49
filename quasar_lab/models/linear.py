"""A linear prepares its input and multiplies; what it holds is its own business.

## Idea

A pass has linears at three places. An input comes from a norm (qkv_proj, gate_up_proj, the head), from attention
(o_proj) or from the gate of the MLP (down_proj). A BF16 linear wants that input as it is. An INT8 linear wants it
rounded, and rounding is fastest when it is fused with the op before it. So a linear is asked to *prepare* its input in
one of three ways, and then to *multiply*. The decoder never asks what kind of linear it has.

## Choice

The three ways to prepare are three methods, because each is one fused op of the backend. What they return is opaque
for everyone else: a tuple of tensors that the same linear multiplies. A linear of another precision or another
rounding is one more class here, and the ops that it calls.

## What is lost

The C++ plan, which runs all layers in one call, knows BF16 and INT8 weights only. A linear that it cannot run returns
None from `planned()`, and its decoder runs op by op.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

from quasar_kernels import Backend, Transform
from quasar_kernels.backend import PlannedLayer, PlannedLinear
from torch import Tensor

Prepared = tuple[Tensor, ...]
"""An input as one kind of linear takes it: x A [M, K], or q int8 [M, K] with its scale f32 [M]."""


def tensor_bytes(x: Tensor | None) -> int:
    """Bytes of a tensor; 0 where there is none."""
    return 0 if x is None else x.numel() * x.element_size()


class Linear(Protocol):
    """y f32 [M, N] = x Wᵀ + bias, by whatever precision. `out` and `residual` are f32 [M, N]."""

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]."""

    @property
    def bias(self) -> Tensor | None:
        """f32 [N]."""

    @property
    def bytes(self) -> int:
        """Bytes that one pass reads."""

    def prepare(self, ops: Backend, x: Tensor) -> Prepared:
        """Rows x A [M, K] as they are."""

    def prepare_normed(self, ops: Backend, x: Tensor, gain: Tensor, eps: float) -> Prepared:
        """The stream x f32 [M, K], normed with the gains f32 [K]."""

    def prepare_gated(self, ops: Backend, gate_up: Tensor) -> Prepared:
        """silu(gate) · up of gate_up f32 [M, 2K]."""

    def multiply(self, ops: Backend, x: Prepared, residual: Tensor | None = None, **out: Tensor) -> Tensor:
        """The product of a prepared input, added to `residual` where there is one. A device's ops write to `out`."""

    def planned(self) -> PlannedLinear | None:
        """The linear for a plan of its backend; None where a plan cannot run it."""

    def plus(self, bias: Tensor) -> "Linear":
        """The same linear with `bias` f32 [N] added to its outputs."""

    def is_table(self, table: Tensor) -> bool:
        """Whether the weight is this tensor itself, as a tied head may be the embedding table."""


@dataclass(frozen=True)
class Bf16Linear:
    """BF16 weights and FP32 sums."""

    weight: Any
    """In whatever layout the backend packed it."""
    bias: Tensor | None
    shape: tuple[int, int]

    @property
    def bytes(self) -> int:
        n, k = self.shape
        return 2 * n * k + tensor_bytes(self.bias)

    def prepare(self, ops: Backend, x: Tensor) -> Prepared:
        return (x,)

    def prepare_normed(self, ops: Backend, x: Tensor, gain: Tensor, eps: float) -> Prepared:
        return (ops.rmsnorm(x, gain, eps),)

    def prepare_gated(self, ops: Backend, gate_up: Tensor) -> Prepared:
        return (ops.silu_mul(gate_up),)

    def multiply(self, ops: Backend, x: Prepared, residual: Tensor | None = None, **out: Tensor) -> Tensor:
        return ops.linear_bf16(x[0], self.weight, self.bias, residual, **out)

    def planned(self) -> PlannedLinear | None:
        return PlannedLinear(self.weight, self.bias)

    def plus(self, bias: Tensor) -> Linear:
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def is_table(self, table: Tensor) -> bool:
        return self.weight is table


@dataclass(frozen=True)
class Int8Linear:
    """INT8 weights and inputs: y = (q · wqᵀ) · scale · wscale + bias, where q is the row after `transform`, rounded."""

    weight: Any
    """In whatever layout the backend packed it."""
    wscale: Tensor
    """f32 [N]."""
    bias: Tensor | None
    transform: Transform | None
    shape: tuple[int, int]

    @property
    def bytes(self) -> int:
        n, k = self.shape
        parts = (self.transform.inv_smooth, self.transform.shift, self.transform.rotation) if self.transform else ()
        return n * k + tensor_bytes(self.wscale) + tensor_bytes(self.bias) + sum(map(tensor_bytes, parts))

    def prepare(self, ops: Backend, x: Tensor) -> Prepared:
        return ops.quantize_rows(x, self.transform)

    def prepare_normed(self, ops: Backend, x: Tensor, gain: Tensor, eps: float) -> Prepared:
        return ops.rmsnorm_quantize(x, gain, eps, self.transform)

    def prepare_gated(self, ops: Backend, gate_up: Tensor) -> Prepared:
        return ops.silu_mul_quantize(gate_up, self.transform)

    def multiply(self, ops: Backend, x: Prepared, residual: Tensor | None = None, **out: Tensor) -> Tensor:
        q, scale = x
        return ops.linear_w8a8(q, scale, self.weight, self.wscale, self.bias, residual, **out)

    def planned(self) -> PlannedLinear | None:
        return PlannedLinear(self.weight, self.bias, self.wscale, self.transform)

    def plus(self, bias: Tensor) -> Linear:
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def is_table(self, table: Tensor) -> bool:
        return False


@dataclass(frozen=True)
class Layer:
    """One block of a decoder."""

    attention_norm: Tensor
    """f32 [hidden], as the gains of every norm here."""
    qkv_proj: Linear
    q_norm: Tensor | None
    """f32 [head_dim], of families that norm each head of queries and keys; else None."""
    k_norm: Tensor | None
    o_proj: Linear
    mlp_norm: Tensor
    gate_up_proj: Linear
    down_proj: Linear

    @property
    def norm_bytes(self) -> int:
        """Bytes of the gains."""
        return sum(map(tensor_bytes, (self.attention_norm, self.q_norm, self.k_norm, self.mlp_norm)))

    def planned(self) -> PlannedLayer | None:
        """The block for a plan of its backend; None where a plan cannot run one of its linears."""
        qkv, o, gate_up, down = (
            linear.planned() for linear in (self.qkv_proj, self.o_proj, self.gate_up_proj, self.down_proj)
        )
        if qkv is None or o is None or gate_up is None or down is None:
            return None
        return PlannedLayer(
            attention_norm=self.attention_norm,
            qkv_proj=qkv,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            o_proj=o,
            mlp_norm=self.mlp_norm,
            gate_up_proj=gate_up,
            down_proj=down,
        )
