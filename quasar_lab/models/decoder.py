"""One lean decoder for every supported family, in BF16 or W8A8, that gives a token the same bits at every width.

A decoder is data: norms, four linears per layer, an embedding and a head. Each linear is `Bf16Linear` or `Int8Linear`;
`forward` asks the linear what input it wants and is otherwise the same code, so the two verifiers differ in nothing but
the products. All arithmetic is in the ops of `quasar_kernels`. The residual stream and the norms are FP32; activations
and the KV cache are FP32 on CPUs and BF16 on GPUs, where passes are replayed as CUDA graphs (`graphs`).

Why not the transformers model: its step depends on the width of the pass in the last bits (BLAS picks kernels by
shape), so greedy speculative output would drift from plain output; here equality is exact, for any draft (design of the
ops: `quasar_kernels.reference`). What is lost: batches (one sequence at a time), training, and every architecture
outside the five families.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from quasar_kernels import BackendUnavailable, Transform, select
from quasar_kernels.threads import single_torch_thread
from torch import Tensor

from quasar_lab.models.checkpoint import Checkpoint, open_checkpoint
from quasar_lab.models.cuda_graphs import TOP, CudaRuntime, Engine, Numbers, Results, Seconds
from quasar_lab.models.input_map import InputMap, ValueMap, of_all_layers, value_map
from quasar_lab.models.kv_cache import KVCache
from quasar_lab.models.model_config import PARTS, ModelConfig
from quasar_lab.models.rope import rotary_tables
from quasar_lab.models.tokenizer import Tokenizer
from quasar_lab.support.errors import BackendError, InputError

Moved = TypeVar("Moved", Transform, ValueMap)

Taps = Callable[[int, str, Tensor], None]
"""Called with (layer, projection, input f32 [M, K] on the CPU) before every product; the head is ("lm_head", layer =
number of layers)."""


@dataclass(frozen=True)
class Bf16Linear:
    """y = x Wᵀ + bias with BF16 weights and FP32 sums. `weight` is whatever layout the backend packed."""

    weight: Any
    bias: Tensor | None
    shape: tuple[int, int]

    @property
    def bytes(self) -> int:
        """Bytes that one pass reads."""
        n, k = self.shape
        return 2 * n * k + _bytes(self.bias)


@dataclass(frozen=True)
class Int8Linear:
    """y = (q · wq ᵀ) · scale · wscale + bias, q the row after `transform` in INT8. wscale f32 [N]."""

    weight: Any
    wscale: Tensor
    bias: Tensor | None
    transform: Transform | None
    shape: tuple[int, int]

    @property
    def bytes(self) -> int:
        """Bytes that one pass reads."""
        n, k = self.shape
        parts = (self.transform.inv_smooth, self.transform.shift, self.transform.rotation) if self.transform else ()
        return n * k + _bytes(self.wscale) + _bytes(self.bias) + sum(_bytes(part) for part in parts)


Linear = Bf16Linear | Int8Linear


def _bytes(x: Tensor | None) -> int:
    return 0 if x is None else x.numel() * x.element_size()


@dataclass(frozen=True)
class Layer:
    """One block: norms f32 [hidden], linears, and the per-head norms of qwen3 (else None)."""

    attention_norm: Tensor
    qkv_proj: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    o_proj: Linear
    mlp_norm: Tensor
    gate_up_proj: Linear
    down_proj: Linear


@dataclass(frozen=True)
class Output:
    """logits f32 [M, vocab] ("all") or [1, vocab] ("last"); hidden f32 [M, hidden] after the final norm, when asked
    for.

    From a device, where results are pending when a call returns: top, the likeliest tokens as `graphs.Results` packs
    them, so that one transfer reads them; seconds, what the pass took, to be asked after that.
    """

    logits: Tensor
    hidden: Tensor | None
    top: Tensor | None = None
    seconds: Seconds | None = None


@dataclass(frozen=True)
class _Places:
    """Where the rows of a pass are, as the ops take it. On CPUs numbers, and cos, sin f32 [M, D/2] of every row; on a
    device i32 tensors, cos and sin tables [context, D/2], the rows' positions in them, and the largest length where it
    is known."""

    start: Any
    lengths: Any
    parents: Any
    cos: Tensor
    sin: Tensor
    positions: Tensor | None = None
    reach: int | None = None


@dataclass(repr=False)
class Decoder:
    """A verifier: `forward`, `new_cache`, `rollback`, `name`, `weight_bytes`.

    mappings: what a recipe does to each linear's input before it is rounded, under (layer, projection); empty for BF16.
    value_maps: layer → the basis of its cached values, where it is not the BF16 model's.
    """

    name: str
    config: ModelConfig
    checkpoint: Checkpoint
    ops: ModuleType
    embedding: Tensor
    layers: list[Layer]
    norm: Tensor
    head: Linear
    device: str = "cpu"
    mappings: dict[tuple[int, str], InputMap] = field(default_factory=dict, repr=False)
    value_maps: dict[int, ValueMap] = field(init=False, repr=False)
    _values: ValueMap | None = field(init=False, repr=False)
    _angles: tuple[Tensor, Tensor] = field(init=False, repr=False)
    _plan: Any = field(init=False, repr=False)
    """All layers in one call, where the backend offers it: the same ops, the same bits, no Python between them."""
    _engine: Engine | None = field(init=False, repr=False)
    """The passes of a backend whose ops read positions and lengths on the device, None for others."""

    def __post_init__(self) -> None:
        cos, sin = rotary_tables(self.config)
        self._angles = cos.to(self.device), sin.to(self.device)
        self.value_maps = {
            layer: placed(value_map(mapping, self.config), self.device)
            for (layer, projection), mapping in self.mappings.items()
            if projection == "o_proj"
        }
        self._values = of_all_layers(self.value_maps, len(self.layers))
        config, plan = self.config, getattr(self.ops, "Plan", None)
        if plan is not None:
            plan = plan(self.layers, groups=config.kv_heads, size=config.head_dim, eps=config.eps, window=config.window)
        self._plan = plan
        self._engine = None
        if hasattr(self.ops, "embed_rows"):
            runtime = CudaRuntime() if self.device == "cuda" else self.ops.runtime()
            self._engine = Engine(config, runtime, self.ops.activations(torch.device(self.device)), self.device)

    def __repr__(self) -> str:
        return f"<Decoder {self.checkpoint.name} {self.name} on {self.device}, backend {self.backend}>"

    @property
    def backend(self) -> str:
        return self.ops.name

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.checkpoint.tokenizer

    @property
    def context(self) -> int:
        return self.config.context

    @property
    def vocab(self) -> int:
        return self.config.vocab

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.config.eos_ids

    @property
    def identity(self) -> dict[str, str]:
        """What a trace says about the model that ran."""
        return {
            "model": self.checkpoint.name,
            "checksum": self.checkpoint.checksum,
            "recipe": self.name,
            "device": self.device,
            "backend": self.backend,
        }

    def linears(self) -> list[tuple[int, str, Linear]]:
        """(layer, projection, linear) in the order a pass uses them, the head last."""
        found: list[tuple[int, str, Linear]] = [
            (index, name, getattr(layer, name)) for index, layer in enumerate(self.layers) for name in PARTS
        ]
        return [*found, (len(self.layers), "lm_head", self.head)]

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one step reads: every linear, the head, the norms."""
        norms = sum(
            _bytes(x)
            for layer in self.layers
            for x in (layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
        )
        return sum(linear.bytes for _, _, linear in self.linears()) + norms + _bytes(self.norm)

    @property
    def resident_bytes(self) -> int:
        """Bytes held in memory: what a step reads, and the embedding table, counted once where the head shares its
        storage."""
        shared = isinstance(self.head, Bf16Linear) and self.head.weight is self.embedding
        return self.weight_bytes + (0 if shared else _bytes(self.embedding))

    def new_cache(self, capacity: int | None = None) -> KVCache:
        """An empty cache of `capacity` rows (default: the whole context)."""
        config = self.config
        rows = min(capacity or config.context, config.context)
        if self._engine is not None:
            return self._engine.new_cache(rows)
        k, v = (torch.empty(config.layers, config.kv_heads, rows, config.head_dim) for _ in range(2))
        return KVCache(k, v, rows)

    def rollback(self, cache: KVCache, length: int) -> None:
        cache.rollback(length)

    def adopt(self, cache: KVCache, other: KVCache, start: int, stop: int) -> None:
        """Rows start…stop − 1 of `other`, a cache of the BF16 model, become rows of `cache`, which then ends at `stop`.

        Keys are the same in every recipe; values are brought into this one's basis. Raises InputError unless `cache`
        has rows up to `start`, `other` up to `stop`, and the rows fit.
        """
        if not 0 <= start <= min(stop, cache.length) or stop > min(other.length, cache.capacity):
            raise InputError(
                f"cannot adopt rows {start}…{stop}; accepted: from at most {cache.length}, "
                f"up to {min(other.length, cache.capacity)}"
            )
        cache.k[:, :, start:stop] = other.k[:, :, start:stop]
        if self._values is not None:
            cache.v[:, :, start:stop] = self._values(other.v[:, :, start:stop])
        else:
            cache.v[:, :, start:stop] = other.v[:, :, start:stop]
            for layer, to_here in self.value_maps.items():
                cache.v[layer, :, start:stop] = to_here(other.v[layer, :, start:stop])
        cache.length = stop

    def forward(
        self,
        ids: Sequence[int],
        cache: KVCache,
        *,
        positions: Sequence[int] | None = None,
        parents: Sequence[int] | None = None,
        logits: str = "all",
        hidden: bool = False,
        taps: Taps | None = None,
        layers: Sequence[int] | None = None,
    ) -> Output:
        """One pass of width M = len(ids) behind `cache.length` rows, which it extends by M.

        positions: of each row; by default they follow the cache (a chain), or the depth in the tree given by `parents`
        (parents[m]: the row of this pass that m continues, −1 for the cache's last). logits: "all" rows or the "last".
        layers: the blocks to run, in order (layer-skip); the others' cache rows stay unwritten. Raises InputError on no
        ids, ids outside the vocabulary, or a full cache.
        """
        rows, start = len(ids), cache.length
        if rows == 0:
            raise InputError("a pass needs at least one token")
        tokens = torch.as_tensor(ids, dtype=torch.int64)
        if int(tokens.min()) < 0 or int(tokens.max()) >= self.vocab:
            raise InputError(f"token ids {list(ids)[:8]} … are outside the vocabulary; accepted: 0…{self.vocab - 1}")
        cache.require(rows)
        depths = list(range(rows)) if parents is None else _depths(parents)
        lengths = [start + depth + 1 for depth in depths]
        places = [length - 1 for length in lengths] if positions is None else list(positions)
        if positions is not None and not all(0 <= place < self.context for place in places):
            raise InputError(f"positions are {places}; accepted: 0…{self.context - 1}")
        order = range(len(self.layers)) if layers is None else layers
        if self._engine is not None:
            launch, last = partial(self._launch, order=order, taps=taps and _on_host(taps)), logits == "last"
            whole = not (parents is None and layers is None and taps is None)
            numbers = tokens.tolist(), places, lengths, parents
            out = Output(*self._engine.run(launch, cache, *numbers, last=last, hidden=hidden, whole=whole))
            cache.length = start + rows
            return out
        with nullcontext() if self._plan is None else single_torch_thread():
            cos, sin = (table[torch.as_tensor(places)] for table in self._angles)
            at = _Places(start, lengths, parents, cos, sin)
            x = self.embed(tokens)
            if self._plan is not None and taps is None:
                x = self._plan.run(x, order, cache.k, cache.v, start, at.cos, at.sin, lengths, parents)
            else:
                for index in order:
                    x = self._block(x, index, cache, at, taps)
            cache.length = start + rows
            normed = self.ops.rmsnorm(x, self.norm, self.config.eps) if hidden else None
            if logits == "last":
                x = x[-1:]
            return Output(self._after_norm(x, self.norm, self.head, len(self.layers), "lm_head", taps), normed)

    def _launch(
        self, numbers: Numbers, cache: KVCache, results: Results, *, order: Sequence[int], taps: Taps | None
    ) -> None:
        """Every op of a pass on the device: what a graph captures."""
        at = _Places(numbers.start, numbers.lengths, numbers.parents, *self._angles, numbers.positions, numbers.reach)
        x = self.ops.embed_rows(self.embedding, numbers.ids)
        for index in order:
            x = self._block(x, index, cache, at, taps)
        if results.hidden is not None:
            self.ops.rmsnorm(x, self.norm, self.config.eps, out=results.hidden)
        x = x[-results.logits.shape[0] :]
        self._after_norm(x, self.norm, self.head, len(self.layers), "lm_head", taps, out=results.logits)
        self.ops.top_table(results.logits, min(TOP, self.vocab), out=results.top)

    def embed(self, ids: Sequence[int] | Tensor) -> Tensor:
        """The residual stream f32 [M, hidden] that enters block 0."""
        return self.embedding[torch.as_tensor(ids)].float()

    def block(self, x: Tensor, index: int, taps: Taps) -> Tensor:
        """Block `index` alone, over a whole sequence from position 0: stream f32 [M, hidden] → stream; for `index` =
        number of layers, the final norm's tap, and x as it is."""
        rows = x.shape[0]
        if self._engine is not None:
            taps = _on_host(taps)
        if index == len(self.layers):
            taps(index, "lm_head", self.ops.rmsnorm(x, self.norm, self.config.eps))
            return x
        lengths, (cos, sin) = list(range(1, rows + 1)), self._angles
        at = _Places(0, lengths, None, cos[:rows], sin[:rows])
        return self._block(x, index, self.new_cache(rows), at, taps)

    def _block(self, x: Tensor, index: int, cache: KVCache, at: _Places, taps: Taps | None) -> Tensor:
        ops, layer, config = self.ops, self.layers[index], self.config
        k, v = cache.layer(index)
        qkv = self._after_norm(x, layer.attention_norm, layer.qkv_proj, index, "qkv_proj", taps)
        tables = {} if at.positions is None else {"positions": at.positions}
        q = ops.rope_append(qkv, k, v, at.start, at.cos, at.sin, layer.q_norm, layer.k_norm, config.eps, **tables)
        reach = {} if at.reach is None else {"reach": at.reach}
        mixed = ops.attend(q, k, v, at.lengths, at.parents, config.window, **reach)
        if taps is not None:
            taps(index, "o_proj", mixed)
        o = layer.o_proj
        if isinstance(o, Int8Linear):
            x = self._int8(o, ops.quantize_rows(mixed, o.transform), x)
        else:
            x = ops.linear_bf16(mixed, o.weight, o.bias, x)

        gate_up = self._after_norm(x, layer.mlp_norm, layer.gate_up_proj, index, "gate_up_proj", taps)
        if taps is not None:
            taps(index, "down_proj", ops.silu_mul(gate_up))
        down = layer.down_proj
        if isinstance(down, Int8Linear):
            return self._int8(down, ops.silu_mul_quantize(gate_up, down.transform), x)
        return ops.linear_bf16(ops.silu_mul(gate_up), down.weight, down.bias, x)

    def _after_norm(
        self, x: Tensor, gain: Tensor, linear: Linear, layer: int, projection: str, taps: Taps | None, **out: Tensor
    ) -> Tensor:
        """A linear that follows a norm: the norm is fused with the rounding where the linear is INT8. A device's ops
        write to `out`."""
        if taps is not None:
            taps(layer, projection, self.ops.rmsnorm(x, gain, self.config.eps))
        if isinstance(linear, Int8Linear):
            return self._int8(linear, self.ops.rmsnorm_quantize(x, gain, self.config.eps, linear.transform), **out)
        return self.ops.linear_bf16(self.ops.rmsnorm(x, gain, self.config.eps), linear.weight, linear.bias, **out)

    def _int8(
        self, linear: Int8Linear, row: tuple[Tensor, Tensor], residual: Tensor | None = None, **out: Tensor
    ) -> Tensor:
        q, scale = row
        return self.ops.linear_w8a8(q, scale, linear.weight, linear.wscale, linear.bias, residual, **out)


def placed(parts: Moved, device: str) -> Moved:
    """A transform or value map with its tensors on the device; on CPUs they are the same ones."""
    tensors: dict[str, Any] = {part.name: getattr(parts, part.name) for part in fields(parts)}
    tensors = {name: tensor if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
    return replace(parts, **tensors)


def _on_host(taps: Taps) -> Taps:
    """Taps see FP32 on the CPU, whatever the device computes with."""
    return lambda layer, projection, x: taps(layer, projection, x.float().cpu())


def _depths(parents: Sequence[int]) -> list[int]:
    """Depth of every row of a tree pass below the cache's last row. Raises InputError unless each parent is an earlier
    row or −1."""
    depths: list[int] = []
    for row, parent in enumerate(parents):
        if not -1 <= parent < row:
            raise InputError(f"row {row} has parent {parent}; accepted: an earlier row, or −1")
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def select_ops(backend: str, device: str) -> ModuleType:
    """The ops module for a decoder. Raises BackendError, with the reason, when it cannot run here."""
    try:
        return select(backend, device)
    except BackendUnavailable as error:
        raise BackendError(str(error)) from error


def bf16_decoder(checkpoint: Checkpoint, device: str = "cpu", backend: str = "auto") -> Decoder:
    """The BF16 model: the baseline, and the source that quantization starts from."""
    ops, config = select_ops(backend, device), checkpoint.config

    def linear(weight: Tensor, bias: Tensor | None = None) -> Bf16Linear:
        bias = None if bias is None else bias.to(device)
        return Bf16Linear(ops.pack_bf16(weight.to(device)), bias, (weight.shape[0], weight.shape[1]))

    def norm(name: str) -> Tensor:
        return checkpoint.norm(name).to(device)

    def layer(index: int) -> Layer:
        base = f"model.layers.{index}"
        return Layer(
            attention_norm=norm(f"{base}.input_layernorm"),
            mlp_norm=norm(f"{base}.post_attention_layernorm"),
            q_norm=norm(f"{base}.self_attn.q_norm") if config.qk_norm else None,
            k_norm=norm(f"{base}.self_attn.k_norm") if config.qk_norm else None,
            **{name: linear(*checkpoint.projection(index, name)) for name in PARTS},
        )

    embedding, head = checkpoint.embedding().to(device), checkpoint.head()
    return Decoder(
        name="bf16",
        config=config,
        checkpoint=checkpoint,
        ops=ops,
        embedding=embedding,
        layers=[layer(index) for index in range(config.layers)],
        norm=norm("model.norm"),
        head=linear(embedding if head is None else head),
        device=device,
    )


def load(model: str | Path = "embedded", device: str = "cpu", backend: str = "auto") -> Decoder:
    """The BF16 model: "embedded", a folder, or a hub id. Raises CheckpointError or BackendError with the reason."""
    return bf16_decoder(open_checkpoint(model), device, backend)
