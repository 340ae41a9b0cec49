"""Input maps folded into what comes before a linear, so that most of them cost nothing at run time.

## Idea

A map divides the input of a linear by s, shifts it by z and rotates it by R (`models.input_map`). Each of these can be
moved into whatever produced the input:

| input of | what comes before | division by s | shift by z | rotation R |
|---|---|---|---|---|
| qkv_proj, gate_up_proj | a norm | its gains | online | online |
| o_proj | attention over values | the value rows of qkv_proj | their bias | the value rows, head by head |
| down_proj | silu(gate) · up | the up rows of gate_up_proj | online | online |
| lm_head | the final norm | online | online | online |

Attention mixes tokens and never channels, and its weights add up to 1, so that x_o / s = attend(v / s) and
x_o − z = attend(v − z). silu(gate) · up is linear in up.

## Choice

With grouped heads, all query heads that share a value head share its factors and its shift. What is online is fused
with the rounding of the input. In front of the head even the division stays online, so that the model's final hidden
state keeps its meaning for drafters.

Folding is exact before rounding. The embedding table is never changed, also when it is tied to the head.
"""

import torch
from quasar_kernels.reference import rotate
from torch import Tensor

from quasar_lab.models.checkpoint import Checkpoint
from quasar_lab.models.input_map import InputMap, value_factors
from quasar_lab.models.model_config import PARTS, Key, ModelConfig, linear_name
from quasar_lab.quantization.linear_formats import W8A8, Rounded, Rounding, nearest
from quasar_lab.support.errors import CheckpointError

Product = tuple[Tensor, Tensor | None]
"""W f32 [N, K] and bias f32 [N] (None without) of one linear."""

NORM_BEFORE = {
    "attention_norm": ("input_layernorm", "qkv_proj"),
    "mlp_norm": ("post_attention_layernorm", "gate_up_proj"),
}
"""Norm of a saved layer → its name in the checkpoint, and the projection that follows it."""

FOLLOWER = {"qkv_proj": "o_proj", "gate_up_proj": "down_proj"}
"""Projection → the one whose input map is folded into its rows."""


def quantized_tensors(
    checkpoint: Checkpoint, maps: dict[Key, InputMap], rounding: Rounding | None = None
) -> dict[str, Tensor]:
    """Everything that a saved quantized model holds, by name. A linear without a map is rounded as it is; `rounding` is
    to nearest W8A8 by default, and sees the linears layer by layer."""
    rounding = nearest(W8A8) if rounding is None else rounding
    out: dict[str, Tensor] = {}
    for layer in range(checkpoint.config.layers):
        out.update(_folded_norms(checkpoint, maps, layer))
        for projection, product in _folded_layer(checkpoint, maps, layer).items():
            out.update(_saved_linear(checkpoint, (layer, projection), product, maps, rounding))
    head = (checkpoint.config.layers, "lm_head")
    product = _mapped((checkpoint.linear_weight(head).float(), None), maps.get(head))
    out.update(_saved_linear(checkpoint, head, product, maps, rounding))
    return out


def unfold_outputs(y: Tensor, key: Key, maps: dict[Key, InputMap], config: ModelConfig) -> Tensor:
    """Outputs [M, N] of a linear of `quantized_tensors`, without its bias, in the basis of the BF16 model; `y` is not
    changed."""
    layer, projection = key
    follower = maps.get((layer, FOLLOWER.get(projection, "")))
    if follower is None:
        return y
    y = y.clone()
    if projection == "gate_up_proj":
        y[:, config.up_rows] *= follower.factors
        return y
    values = y[:, config.value_rows]
    if follower.rotation is not None:
        heads = values.reshape(-1, config.head_dim)
        values = rotate(heads, follower.rotation.T.contiguous()).reshape(values.shape)
    y[:, config.value_rows] = values * value_factors(follower.factors, config).reshape(-1)
    return y


def _folded_norms(checkpoint: Checkpoint, maps: dict[Key, InputMap], layer: int) -> dict[str, Tensor]:
    """Gains of the two norms of a layer, which now give x / s."""
    norms = {}
    for name, (original, projection) in NORM_BEFORE.items():
        gain = checkpoint.norm(f"model.layers.{layer}.{original}")
        if (layer, projection) in maps:
            gain = gain / maps[layer, projection].factors
        norms[f"layers.{layer}.{name}"] = gain
    return norms


def _folded_layer(checkpoint: Checkpoint, maps: dict[Key, InputMap], layer: int) -> dict[str, Product]:
    """The four projections of a layer: each for mapped inputs, and with outputs that are mapped for the next."""
    products = {}
    for projection in PARTS:
        weight, bias = checkpoint.projection(layer, projection)
        products[projection] = _mapped((weight.float(), bias), maps.get((layer, projection)))
    if (layer, "o_proj") in maps:
        products["qkv_proj"] = fold_into_values(products["qkv_proj"], maps[layer, "o_proj"], checkpoint.config)
    if (layer, "down_proj") in maps:
        factors = maps[layer, "down_proj"].factors
        products["gate_up_proj"] = fold_into_rows(products["gate_up_proj"], checkpoint.config.up_rows, factors)
    return products


def _mapped(product: Product, input_map: InputMap | None) -> Product:
    """The linear for mapped inputs: W · s rotated, b + W z."""
    if input_map is None:
        return product
    weight, bias = product
    return input_map.weight(weight), input_map.bias(weight, bias)


def fold_into_values(product: Product, input_map: InputMap, config: ModelConfig) -> Product:
    """qkv_proj whose values come out shifted, divided and rotated, as o_proj's input map wants its input."""
    rows = config.value_rows
    if input_map.shift is not None:
        weight, bias = product
        centre = value_factors(input_map.shift, config).reshape(-1)
        product = weight, fold_into_bias(bias, rows, centre, len(weight))
    product = fold_into_rows(product, rows, value_factors(input_map.factors, config).reshape(-1))
    if input_map.rotation is None:
        return product
    return rotate_heads(product, rows, input_map.rotation, config.head_dim)


def fold_into_bias(bias: Tensor | None, rows: slice, shift: Tensor, size: int) -> Tensor:
    """Bias f32 [size] of a linear whose outputs `rows` are moved by −shift; the input is not changed."""
    bias = torch.zeros(size) if bias is None else bias.float().clone()
    bias[rows] -= shift
    return bias


def fold_into_rows(product: Product, rows: slice, factors: Tensor) -> Product:
    """A linear whose outputs `rows` are divided by `factors`; the inputs are not changed."""
    weight, bias = product
    weight = weight.clone()
    weight[rows] /= factors[:, None]
    if bias is not None:
        bias = bias.clone()
        bias[rows] /= factors
    return weight, bias


def rotate_heads(product: Product, rows: slice, rotation: Tensor, head_dim: int) -> Product:
    """A linear whose outputs `rows` are rotated, every `head_dim` of them together; the inputs are not changed."""
    weight, bias = product
    weight = weight.clone()
    heads = weight[rows].T.contiguous()
    weight[rows] = rotate(heads.reshape(-1, head_dim), rotation).reshape(heads.shape).T
    if bias is not None:
        bias = bias.clone()
        bias[rows] = rotate(bias[rows].reshape(-1, head_dim), rotation).reshape(-1)
    return weight, bias


def _saved_linear(
    checkpoint: Checkpoint, key: Key, product: Product, maps: dict[Key, InputMap], rounding: Rounding
) -> dict[str, Tensor]:
    """The tensors that a linear is saved as: its rounded weight, its bias, and its input map."""
    name = linear_name(key)
    weight, bias = product
    parts: Rounded = dict(rounding(key, weight))
    if not all(bool(torch.isfinite(part).all()) for part in parts.values() if part.is_floating_point()):
        raise CheckpointError(f"{name} of {checkpoint.name} holds NaN or infinite weights")
    if bias is not None:
        parts["bias"] = bias
    input_map = maps.get(key)
    if input_map is not None:
        parts["factors"] = input_map.factors
        if input_map.rotation is not None:
            parts["rotation"] = input_map.rotation
        if input_map.shift is not None:
            parts["shift"] = input_map.shift
    return {f"{name}.{ending}": part for ending, part in parts.items()}
