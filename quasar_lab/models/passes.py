"""One pass: what is asked of it, where its rows stand, and what it gives.

## Idea

A pass reads M tokens behind the rows of a cache. It is described once, as a `Pass`, and every executor gets the same
description. A pass is *plain* when it is a chain of tokens through all layers that nobody looks into: then it launches
the same work every time, and a graph can replay it.

Where the rows stand in the sequence decides how they are turned (rotary positions) and what they may attend to. On a
CPU these places are numbers that the ops take as they are (`HostRows`). On a device they are tensors, so that a
replayed graph reads those of the present pass (`DeviceRows`). Both offer the same two steps of attention to a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quasar_kernels import Backend
from torch import Tensor

from quasar_lab.models.linear import Layer
from quasar_lab.models.model_config import ModelConfig
from quasar_lab.support.errors import InputError

Taps = Callable[[int, str, Tensor], None]
"""Called with (layer, projection, input f32 [M, K] on the CPU) before every product. The head is ("lm_head", layer =
number of layers)."""

Seconds = Callable[[], float]
"""What a pass took on the device. Ask when one of its results has been read."""


@dataclass(frozen=True)
class Pass:
    """What is asked of a pass of M rows."""

    ids: Sequence[int]
    start: int
    """The first row of the cache to write: the rows before it are read."""
    positions: Sequence[int]
    """Place of each row in the sequence, which turns queries and keys."""
    lengths: Sequence[int]
    """How many rows each row may attend to, itself included."""
    parents: Sequence[int] | None
    """Of a tree: the row of this pass that each row continues, −1 for the cache's last. None for a chain."""
    layers: Sequence[int]
    """The blocks to run, in order."""
    last: bool
    """Whether logits are wanted of the last row only."""
    hidden: bool
    """Whether the hidden states behind the final norm are wanted."""
    taps: Taps | None
    plain: bool
    """A chain through all layers, without taps."""


@dataclass(frozen=True)
class Output:
    """What a pass gives. On a device the results are still pending when a call returns."""

    logits: Tensor
    """f32 [M, vocab], or [1, vocab] of the last row."""
    hidden: Tensor | None
    """f32 [M, hidden] behind the final norm, where it was asked for."""
    top: Tensor | None = None
    """From a device: the likeliest tokens of every row, as `cuda_graphs.Results` packs them for one transfer."""
    seconds: Seconds | None = None
    """From a device: what the pass took."""


def depths(parents: Sequence[int]) -> list[int]:
    """Depth of every row of a tree below the cache's last row.

    Raises InputError unless each parent is an earlier row or −1.
    """
    found: list[int] = []
    for row, parent in enumerate(parents):
        if not -1 <= parent < row:
            raise InputError(f"row {row} has parent {parent}; accepted: an earlier row, or −1")
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def ask(
    ids: Sequence[int],
    config: ModelConfig,
    *,
    start: int,
    positions: Sequence[int] | None,
    parents: Sequence[int] | None,
    layers: Sequence[int] | None,
    last: bool,
    hidden: bool,
    taps: Taps | None,
) -> Pass:
    """The pass that `Decoder.forward` is asked for, behind `start` rows. None stands for the usual: positions that
    follow the cache (in a tree, the depths), a chain, all layers.

    Raises InputError on no ids, ids outside the vocabulary, or positions outside the context.
    """
    if len(ids) == 0:
        raise InputError("a pass needs at least one token")
    tokens = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    if min(tokens) < 0 or max(tokens) >= config.vocab:
        raise InputError(f"token ids {tokens[:8]} … are outside the vocabulary; accepted: 0…{config.vocab - 1}")
    below = range(len(tokens)) if parents is None else depths(parents)
    places = [start + depth for depth in below] if positions is None else list(positions)
    if positions is not None and not all(0 <= place < config.context for place in places):
        raise InputError(f"positions are {places}; accepted: 0…{config.context - 1}")
    return Pass(
        ids=tokens,
        start=start,
        positions=places,
        lengths=[start + depth + 1 for depth in below],
        parents=parents,
        layers=range(config.layers) if layers is None else layers,
        last=last,
        hidden=hidden,
        taps=taps,
        plain=parents is None and layers is None and taps is None,
    )


class Rows(Protocol):
    """Where the rows of a pass stand, as one kind of backend takes it."""

    def append(self, ops: Backend, qkv: Tensor, k: Tensor, v: Tensor, layer: Layer, eps: float) -> Tensor:
        """Turns queries and keys, appends keys and values to the cache k, v [kv_heads, rows, head_dim] of a layer, and
        returns the queries [M, heads, head_dim]."""

    def attend(self, ops: Backend, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """Attention of the rows over the cache: A [M, heads · head_dim]."""


@dataclass(frozen=True)
class HostRows:
    """Places as numbers."""

    start: int
    lengths: Sequence[int]
    parents: Sequence[int] | None
    cos: Tensor
    """f32 [M, head_dim / 2] of every row, as sin."""
    sin: Tensor

    def append(self, ops: Backend, qkv: Tensor, k: Tensor, v: Tensor, layer: Layer, eps: float) -> Tensor:
        return ops.rope_append(qkv, k, v, self.start, self.cos, self.sin, layer.q_norm, layer.k_norm, eps)

    def attend(self, ops: Backend, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        return ops.attend(q, k, v, self.lengths, self.parents, window)


@dataclass(frozen=True)
class DeviceRows:
    """Places as tensors i32 on the device."""

    start: Tensor
    """[1]."""
    positions: Tensor
    """[M]: the rows of the tables cos and sin."""
    lengths: Tensor
    """[M]."""
    parents: Tensor | None
    """[M]."""
    cos: Tensor
    """f32 [positions, head_dim / 2], as sin."""
    sin: Tensor
    reach: int | None
    """The largest length, where it is known. In a graph it is not."""

    def append(self, ops: Backend, qkv: Tensor, k: Tensor, v: Tensor, layer: Layer, eps: float) -> Tensor:
        tables = self.cos, self.sin
        norms = layer.q_norm, layer.k_norm
        return ops.rope_append(qkv, k, v, self.start, *tables, *norms, eps, positions=self.positions)

    def attend(self, ops: Backend, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        reach = {} if self.reach is None else {"reach": self.reach}
        return ops.attend(q, k, v, self.lengths, self.parents, window, **reach)
