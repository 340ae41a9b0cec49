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
from dataclasses import dataclass, field
from pathlib import Path

import torch
from quasar_kernels import Backend, BackendUnavailable, select
from torch import Tensor

from quasar_lab.models.checkpoint import Checkpoint, open_checkpoint
from quasar_lab.models.executors import Executor, choose_executor
from quasar_lab.models.generation_defaults import GenerationDefaults
from quasar_lab.models.input_map import InputMap, ValueMap
from quasar_lab.models.kv_cache import KVCache
from quasar_lab.models.linear import Bf16Linear, Layer, Linear
from quasar_lab.models.model_config import PARTS, ModelConfig
from quasar_lab.models.network import Network
from quasar_lab.models.passes import Output, Taps, ask
from quasar_lab.models.rope import RotaryTables
from quasar_lab.models.tokenizer import Tokenizer
from quasar_lab.models.value_basis import ValueBasis
from quasar_lab.support.errors import BackendError

NO_TOKEN = -1e30
"""The logit of an id that the tokenizer has no token for."""


@dataclass(repr=False)
class Decoder:
    """A verifier: `forward`, `new_cache`, `rollback`, `name`, `weight_bytes`."""

    name: str  # "bf16", or the recipe
    config: ModelConfig
    checkpoint: Checkpoint
    ops: Backend
    embedding: Tensor  # bf16 [vocab, hidden]
    layers: list[Layer]
    norm: Tensor  # f32 [hidden], the final norm
    head: Linear
    device: str = "cpu"
    mappings: dict[tuple[int, str], InputMap] = field(default_factory=dict, repr=False)
    """What a recipe does to the input of each linear before it is rounded, by (layer, projection); empty for BF16."""
    _basis: ValueBasis = field(init=False, repr=False)
    _network: Network = field(init=False, repr=False)
    _executor: Executor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._basis = ValueBasis(self.mappings, self.config, self.device)
        self._network = _network(self)
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
    def generation_defaults(self) -> GenerationDefaults:
        """The options that the model's own generation_config.json asks for."""
        return self.checkpoint.generation_defaults

    @property
    def auditor(self) -> None:
        """A decoder's text is its own: no other verifier audits it."""
        return None

    @property
    def passes(self) -> "tuple[Decoder]":
        """The verifiers that make this verifier's passes: itself."""
        return (self,)

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
        return self._network.linears()

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one step reads: every linear, the head, the norms."""
        return self._network.weight_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes held in memory: what a step reads, and the embedding table."""
        return self._network.resident_bytes

    @property
    def value_maps(self) -> dict[int, ValueMap]:
        """Layer → the basis of its cached values, where it is not the BF16 model's."""
        return self._basis.maps

    def new_cache(self, capacity: int | None = None) -> KVCache:
        """An empty cache of `capacity` rows (default: the whole context)."""
        return self._executor.new_cache(min(capacity or self.context, self.context))

    def rollback(self, cache: KVCache, length: int) -> None:
        """Forgets every row of the cache from `length` on."""
        cache.rollback(length)

    def adopt(self, cache: KVCache, other: KVCache, start: int, stop: int) -> None:
        """Rows start…stop − 1 of `other`, a cache of the BF16 model, become rows of `cache` (`ValueBasis.adopt`)."""
        self._basis.adopt(cache, other, start, stop)

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
        last = logits == "last"
        options = {"positions": positions, "parents": parents, "layers": layers}
        asked = ask(ids, self.config, start=cache.length, last=last, hidden=hidden, taps=taps, **options)
        cache.require(len(asked.ids))
        out = self._executor.run(asked, cache)
        cache.length += len(asked.ids)
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


def _network(decoder: Decoder) -> Network:
    """The arithmetic over a decoder's weights, with the tables that belong to its configuration and tokenizer."""
    return Network(
        ops=decoder.ops,
        config=decoder.config,
        embedding=decoder.embedding,
        layers=decoder.layers,
        norm=decoder.norm,
        head=_without_absent(decoder),
        rotary=RotaryTables(decoder.config, decoder.device),
    )


def _without_absent(decoder: Decoder) -> Linear:
    """The head, with the logits of ids that the tokenizer has no token for set so low that their probability is 0.

    Many models have more rows than tokens, because round sizes multiply faster. Such a row is random, and a text must
    never hold a token that nobody can read. The number is finite: in KL, 0 · (a − b) is then 0 and not NaN.
    """
    tokenizer = decoder.checkpoint.tokenizer
    absent = [] if tokenizer is None else tokenizer.ids_without_token(decoder.config.vocab)
    if not absent:
        return decoder.head
    bias = torch.zeros(decoder.config.vocab)
    bias[absent] = NO_TOKEN
    return decoder.head.plus(bias.to(decoder.device))


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
