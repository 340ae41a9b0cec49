"""A model of random weights in the shapes of Qwen3-8B, in BF16 and in W8A8.

## Idea

Speed depends on shapes and not on values, and a check of right bits needs no model that makes sense. So nothing has to
be downloaded.

## Choice

The W8A8 model is a true rounding of the BF16 weights, with the rotations that the recipe `w8a8` gives these shapes.
Therefore its step does all the work that a step of a real model does.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from quasar_kernels import Transform
from quasar_kernels.op_timing import Bench
from quasar_kernels.reference import rotate
from torch import Tensor

from quasar_lab.models.decoder import Decoder
from quasar_lab.models.generation_defaults import GenerationDefaults
from quasar_lab.models.linear import Bf16Linear, Int8Linear, Layer
from quasar_lab.models.model_config import ModelConfig
from quasar_lab.quantization.gptq import quantize_weight
from quasar_lab.quantization.rotation import rotation_matrix

QWEN3_8B = ModelConfig(
    family="qwen3", hidden=4096, layers=36, heads=32, kv_heads=8, head_dim=128, mlp=12288, vocab=151936, context=8192,
    eps=1e-6, rope_theta=1e6, rope_scaling=None, window=0, tied=False, qk_norm=True, eos_ids=(),
)  # fmt: skip
TINY = replace(QWEN3_8B, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=96, vocab=211, context=512)
SLICE = 2**25
"""Weights that are rotated at a time, in FP32."""


def rotation(bench: Bench, size: int) -> Transform:
    """The rotation of inputs of `size` channels, on the device of `bench`."""
    matrix = rotation_matrix(size)
    return Transform(rotation=None if matrix is None else matrix.to(bench.device))


def random_models(bench: Bench, config: ModelConfig) -> tuple[Decoder, Decoder]:
    """(BF16, W8A8): random weights, and their rounding."""
    bf16 = _random_bf16(bench, config)
    projections = config.projection_shapes()

    def rounded(layer: Layer) -> Layer:
        linears: dict[str, Any] = {
            name: _rounded(bench, getattr(layer, name), turned=name != "o_proj") for name in projections
        }
        return replace(layer, **linears)

    layers = [rounded(layer) for layer in bf16.layers]
    return bf16, replace(
        bf16, name="w8a8", layers=layers, head=_rounded(bench, cast(Bf16Linear, bf16.head), turned=True)
    )


def _random_bf16(bench: Bench, config: ModelConfig) -> Decoder:
    def linear(outputs: int, inputs: int) -> Bf16Linear:
        weight = bench.normal(outputs, inputs, scale=inputs**-0.5, dtype=torch.bfloat16)
        return Bf16Linear(bench.ops.pack_bf16(weight), None, (outputs, inputs))

    def gain(size: int) -> Tensor:
        return 1 + bench.normal(size, scale=0.1)

    def layer() -> Layer:
        linears: dict[str, Any] = {name: linear(*shape) for name, shape in config.projection_shapes().items()}
        norms: dict[str, Any] = {"attention_norm": gain(config.hidden), "mlp_norm": gain(config.hidden)}
        return Layer(**norms, q_norm=gain(config.head_dim), k_norm=gain(config.head_dim), **linears)

    name = "random weights in the shapes of Qwen3-8B"
    checkpoint: Any = SimpleNamespace(
        name=name, checksum="random", tokenizer=None, config=config, generation_defaults=GenerationDefaults()
    )
    return Decoder(
        name="bf16",
        config=config,
        checkpoint=checkpoint,
        ops=bench.ops,
        embedding=bench.normal(config.vocab, config.hidden, dtype=torch.bfloat16),
        layers=[layer() for _ in range(config.layers)],
        norm=gain(config.hidden),
        head=linear(config.vocab, config.hidden),
        device=bench.device,
    )


def _rounded(bench: Bench, linear: Bf16Linear, turned: bool) -> Int8Linear:
    """The linear in INT8. turned: with its input rotated."""
    _, inputs = linear.shape
    transform = rotation(bench, inputs) if turned else None
    matrix = None if transform is None else transform.rotation
    parts = []
    for rows in linear.weight.split(max(1, SLICE // inputs)):
        wide = rows.float()
        parts.append(quantize_weight(wide if matrix is None else rotate(wide, matrix)))
    wq, wscale = (torch.cat(column) for column in zip(*parts, strict=True))
    return Int8Linear(bench.ops.pack_w8a8(wq), wscale, None, transform, linear.shape)
