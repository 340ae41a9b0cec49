"""The interface of a backend: the ops of a pass, and what the backend says about itself.

## Idea

A decoder is written once, against the ops of `Backend`. Whoever implements the interface can run it: the modules
`reference` (plain torch), `cpu` (C++) and `triton` (CUDA), and in tests `simulated` devices. The arguments and results
of every op are those of its namesake in `reference`, which is its definition.

## Choice

A backend *declares* what it can do beyond the ops, in `Capabilities`. A caller reads the declaration once, when it
chooses how to run a pass. Nobody looks for attributes to guess what a backend is.

## What is lost

A weight is packed by one backend and can be multiplied by that backend alone, so its type is opaque here (`Any`).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from quasar_kernels.reference import Transform


@dataclass(frozen=True)
class Capabilities:
    """What a backend offers beyond the ops."""

    plan: bool = False
    """All layers in one call (`PlanBackend`)."""
    graphs: bool = False
    """Ids, positions and lengths are read on the device, and results are written to buffers that are already there, so
    that a graph can replay a pass (`GraphBackend`)."""
    own_threads: bool = False
    """Ops run on a thread pool of the backend's own, which torch's threads would disturb."""
    asynchronous: bool = False
    """A call returns before its work on the device is done."""


class Backend(Protocol):
    """The ops of a pass. M rows, K inputs, N outputs; A is the dtype of activations."""

    @property
    def name(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def activations(self, device: torch.device) -> torch.dtype:
        """A: the dtype of what feeds a product, and of keys and values in the cache."""

    def get_threads(self) -> int:
        """Threads that share an op."""

    def isa(self) -> str | None:
        """The instruction set in use, where there is a choice."""

    def stream_read(self, data: Tensor) -> object:
        """Reads every byte of `data` as fast as the backend can: the yardstick of a step."""

    def pack_w8a8(self, wq: Tensor) -> Any:
        """int8 [N, K] in the layout that `linear_w8a8` reads."""

    def pack_bf16(self, w: Tensor) -> Any:
        """bf16 [N, K] in the layout that `linear_bf16` reads."""

    def embed_rows(self, table: Tensor, ids: Tensor) -> Tensor: ...
    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor: ...
    def quantize_rows(self, x: Tensor, transform: "Transform | None" = None) -> tuple[Tensor, Tensor]: ...
    def rmsnorm(self, x: Tensor, w: Tensor, eps: float) -> Tensor: ...
    def rmsnorm_quantize(
        self, x: Tensor, w: Tensor, eps: float, transform: "Transform | None" = None
    ) -> tuple[Tensor, Tensor]: ...
    def silu_mul(self, gate_up: Tensor) -> Tensor: ...
    def silu_mul_quantize(self, gate_up: Tensor, transform: "Transform | None" = None) -> tuple[Tensor, Tensor]: ...

    # The last four return what `reference` says. A GraphBackend also takes tensors on the device in place of numbers,
    # and `out=`: so their types are open here.
    @property
    def linear_w8a8(self) -> Callable[..., Tensor]: ...
    @property
    def linear_bf16(self) -> Callable[..., Tensor]: ...
    @property
    def rope_append(self) -> Callable[..., Tensor]: ...
    @property
    def attend(self) -> Callable[..., Tensor]: ...
    @property
    def top_rows(self) -> Callable[..., tuple[Tensor, Tensor, Tensor]]: ...


@dataclass(frozen=True)
class PlannedLinear:
    """A linear as a plan takes it."""

    weight: Any
    """[N, K], packed by the backend."""
    bias: Tensor | None
    """f32 [N]."""
    wscale: Tensor | None = None
    """f32 [N] of an INT8 weight; None says that the weight is BF16."""
    transform: "Transform | None" = None
    """What happens to a row before it is rounded to INT8."""


@dataclass(frozen=True)
class PlannedLayer:
    """One block as a plan takes it: gains of the norms f32, and the linears."""

    attention_norm: Tensor
    qkv_proj: PlannedLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    o_proj: PlannedLinear
    mlp_norm: Tensor
    gate_up_proj: PlannedLinear
    down_proj: PlannedLinear


class Plan(Protocol):
    """All layers of one decoder, in one call: the same ops in the same order, so the same bits."""

    def run(
        self,
        x: Tensor,
        order: Sequence[int],
        k_cache: Tensor,
        v_cache: Tensor,
        start: int,
        cos: Tensor,
        sin: Tensor,
        lengths: Sequence[int],
        parents: Sequence[int] | None = None,
    ) -> Tensor:
        """The stream x f32 [M, hidden] through the layers named in `order`; the caches are extended at `start`."""


class PlanBackend(Backend, Protocol):
    """A backend with the capability `plan`."""

    def Plan(self, layers: Sequence[PlannedLayer], *, groups: int, size: int, eps: float, window: int = 0) -> Plan: ...


class GraphBackend(Backend, Protocol):
    """A backend with the capability `graphs`."""

    def top_table(self, logits: Tensor, k: int, out: Tensor | None = None) -> Tensor:
        """What `top_rows` returns, as one tensor f64 [M, 2k + 1] that one transfer reads, ids first."""

    def runtime(self) -> Any:
        """What captures graphs, sends numbers and marks time on the device (`quasar_kernels.cuda_runtime.Runtime`)."""

    def in_turn(self) -> AbstractContextManager[None]:
        """Within it, kernels do not overlap."""
