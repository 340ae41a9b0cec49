"""The arithmetic of a decoder: embed, blocks, head.

## Idea

All five families share one block: norm, attention, norm, gated MLP, with a residual stream between. The block is
written once, over the ops of a backend and over linears that prepare their own inputs. So BF16 and W8A8 differ in
nothing but the linears, and every executor runs the same arithmetic.

## Choice

The residual stream and the norms are FP32. What feeds a product, and the KV cache, has the dtype that the backend
names (FP32 on CPUs, BF16 on GPUs). `taps` see every input of a linear, also where the fused op never stores it.

## What is lost

Batches: one sequence at a time.
"""

from dataclasses import dataclass

from quasar_kernels import Backend
from torch import Tensor

from quasar_lab.models.kv_cache import KVCache
from quasar_lab.models.linear import Layer, Linear, Prepared, tensor_bytes
from quasar_lab.models.model_config import PARTS, ModelConfig
from quasar_lab.models.passes import Rows, Taps
from quasar_lab.models.rope import RotaryTables


@dataclass(frozen=True)
class Network:
    """The weights of a decoder with the backend that computes them."""

    ops: Backend
    config: ModelConfig
    embedding: Tensor
    """bf16 [vocab, hidden]."""
    layers: list[Layer]
    norm: Tensor
    """f32 [hidden], the final norm."""
    head: Linear
    rotary: RotaryTables

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

    def embed(self, ids: Tensor) -> Tensor:
        """The stream f32 [M, hidden] that enters block 0."""
        return self.ops.embed_rows(self.embedding, ids)

    def block(self, x: Tensor, index: int, cache: KVCache, rows: Rows, taps: Taps | None) -> Tensor:
        """Block `index` over the stream x f32 [M, hidden], whose keys and values it appends to the cache."""
        ops, layer, config = self.ops, self.layers[index], self.config
        k, v = cache.layer(index)
        qkv = layer.qkv_proj.multiply(
            ops, self._normed(x, layer.attention_norm, layer.qkv_proj, index, "qkv_proj", taps)
        )
        q = rows.append(ops, qkv, k, v, layer, config.eps)
        mixed = rows.attend(ops, q, k, v, config.window)
        if taps is not None:
            taps(index, "o_proj", mixed)
        x = layer.o_proj.multiply(ops, layer.o_proj.prepare(ops, mixed), x)

        gate_up = layer.gate_up_proj.multiply(
            ops, self._normed(x, layer.mlp_norm, layer.gate_up_proj, index, "gate_up_proj", taps)
        )
        if taps is not None:
            taps(index, "down_proj", ops.silu_mul(gate_up))
        return layer.down_proj.multiply(ops, layer.down_proj.prepare_gated(ops, gate_up), x)

    def final_norm(self, x: Tensor) -> Tensor:
        """The hidden states [M, hidden] that the head reads."""
        return self.ops.rmsnorm(x, self.norm, self.config.eps)

    def logits(self, x: Tensor, taps: Taps | None = None, **out: Tensor) -> Tensor:
        """f32 [M, vocab] from the stream behind the last block. A device's ops write to `out`."""
        return self.head.multiply(
            self.ops, self._normed(x, self.norm, self.head, len(self.layers), "lm_head", taps), **out
        )

    def _normed(
        self, x: Tensor, gain: Tensor, linear: Linear, layer: int, projection: str, taps: Taps | None
    ) -> Prepared:
        """The normed stream as `linear` takes it."""
        if taps is not None:
            taps(layer, projection, self.ops.rmsnorm(x, gain, self.config.eps))
        return linear.prepare_normed(self.ops, x, gain, self.config.eps)
