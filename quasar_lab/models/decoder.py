"""One lean decoder for every supported family, in BF16 or W8A8, that gives a token the same bits at every width.

## Idea

A decoder is data: norms, four linears per layer, an embedding and a head. What a pass computes is in `network`, how a
linear multiplies in `linear`, and who drives the pass in `executors`. Here they are put together with what a verifier
offers: `forward`, `new_cache`, `rollback`, its name and its bytes.

## Choice

Why not the transformers model? Its step depends on the width of the pass in the last bits, because BLAS picks kernels
by shape. Greedy speculative output would drift from plain output. Here equality is exact, for any draft
(`quasar_kernels.reference` says how).

## What is lost

Batches (one sequence at a time), training, and every architecture outside the supported families.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from quasar_kernels import Backend, BackendUnavailable, Transform, select
from torch import Tensor

from quasar_lab.models.checkpoint import Checkpoint, open_checkpoint
from quasar_lab.models.executors import Executor, choose_executor
from quasar_lab.models.input_map import InputMap, ValueMap, of_all_layers, value_map
from quasar_lab.models.kv_cache import KVCache
from quasar_lab.models.linear import Bf16Linear, Layer, Linear, tensor_bytes
from quasar_lab.models.model_config import PARTS, ModelConfig
from quasar_lab.models.network import Network
from quasar_lab.models.passes import Output, Pass, Taps, depths
from quasar_lab.models.rope import rotary_tables
from quasar_lab.models.tokenizer import Tokenizer
from quasar_lab.support.errors import BackendError, InputError

Moved = TypeVar("Moved", Transform, ValueMap)


@dataclass(repr=False)
class Decoder:
    """A verifier: `forward`, `new_cache`, `rollback`, `name`, `weight_bytes`."""

    name: str
    """"bf16", or the recipe."""
    config: ModelConfig
    checkpoint: Checkpoint
    ops: Backend
    embedding: Tensor
    """bf16 [vocab, hidden]."""
    layers: list[Layer]
    norm: Tensor
    """f32 [hidden], the final norm."""
    head: Linear
    device: str = "cpu"
    mappings: dict[tuple[int, str], InputMap] = field(default_factory=dict, repr=False)
    """What a recipe does to the input of each linear before it is rounded, by (layer, projection); empty for BF16."""
    value_maps: dict[int, ValueMap] = field(init=False, repr=False)
    """Layer → the basis of its cached values, where it is not the BF16 model's."""
    _values: ValueMap | None = field(init=False, repr=False)
    _network: Network = field(init=False, repr=False)
    _executor: Executor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.value_maps = {
            layer: placed(value_map(mapping, self.config), self.device)
            for (layer, projection), mapping in self.mappings.items()
            if projection == "o_proj"
        }
        self._values = of_all_layers(self.value_maps, len(self.layers))
        cos, sin = rotary_tables(self.config)
        self._network = Network(
            ops=self.ops,
            config=self.config,
            embedding=self.embedding,
            layers=self.layers,
            norm=self.norm,
            head=self.head,
            cos=cos.to(self.device),
            sin=sin.to(self.device),
        )
        self._executor = choose_executor(self._network, self.device)

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
        norms = sum(layer.norm_bytes for layer in self.layers) + tensor_bytes(self.norm)
        return sum(linear.bytes for _, _, linear in self.linears()) + norms

    @property
    def resident_bytes(self) -> int:
        """Bytes held in memory: what a step reads, and the embedding table, which counts once where the head is the
        same tensor."""
        return self.weight_bytes + (0 if self.head.is_table(self.embedding) else tensor_bytes(self.embedding))

    def new_cache(self, capacity: int | None = None) -> KVCache:
        """An empty cache of `capacity` rows (default: the whole context)."""
        return self._executor.new_cache(min(capacity or self.context, self.context))

    def rollback(self, cache: KVCache, length: int) -> None:
        """Forgets every row of the cache from `length` on."""
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

        positions: of each row. By default they follow the cache (a chain), or the depth in the tree given by `parents`
        (parents[m]: the row of this pass that m continues, −1 for the cache's last). logits: "all" rows or the "last".
        layers: the blocks to run, in order (layer-skip); the others' cache rows stay unwritten. Raises InputError on no
        ids, ids outside the vocabulary, or a full cache.
        """
        count, start = len(ids), cache.length
        if count == 0:
            raise InputError("a pass needs at least one token")
        tokens = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        if min(tokens) < 0 or max(tokens) >= self.vocab:
            raise InputError(f"token ids {tokens[:8]} … are outside the vocabulary; accepted: 0…{self.vocab - 1}")
        cache.require(count)
        below = range(count) if parents is None else depths(parents)
        places = [start + depth for depth in below] if positions is None else list(positions)
        if positions is not None and not all(0 <= place < self.context for place in places):
            raise InputError(f"positions are {places}; accepted: 0…{self.context - 1}")
        asked = Pass(
            ids=tokens,
            start=start,
            positions=places,
            lengths=[start + depth + 1 for depth in below],
            parents=parents,
            layers=range(len(self.layers)) if layers is None else layers,
            last=logits == "last",
            hidden=hidden,
            taps=taps,
            plain=parents is None and layers is None and taps is None,
        )
        out = self._executor.run(asked, cache)
        cache.length = start + count
        return out

    def embed(self, ids: Sequence[int] | Tensor) -> Tensor:
        """The residual stream f32 [M, hidden] that enters block 0."""
        return self._network.embed(torch.as_tensor(ids, device=self.device))

    def block(self, x: Tensor, index: int, taps: Taps) -> Tensor:
        """Block `index` alone, over a whole sequence from position 0: stream f32 [M, hidden] → stream. For `index` =
        number of layers, the tap of the final norm, and x as it is."""
        if index == len(self.layers):
            taps(index, "lm_head", self._network.final_norm(x).float().cpu())
            return x
        return self._executor.block(x, index, self.new_cache(x.shape[0]), taps)


def placed(parts: Moved, device: str) -> Moved:
    """A transform or value map with its tensors on the device; on CPUs they are the same ones."""
    tensors: dict[str, Any] = {part.name: getattr(parts, part.name) for part in fields(parts)}
    tensors = {name: tensor if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
    return replace(parts, **tensors)


def select_ops(backend: str, device: str) -> Backend:
    """The backend for a decoder. Raises BackendError, with the reason, when it cannot run here."""
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
