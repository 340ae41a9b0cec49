"""Input maps folded into what comes before a linear."""

from collections.abc import Callable, Iterator

import torch
from quasar_kernels.reference import rotate
from torch import Tensor

from quasar_lab.models.checkpoint import PARTS, Checkpoint, Key, ModelConfig, weight_of
from quasar_lab.models.input_map import InputMap, value_factors
from quasar_lab.quantization.gptq import quantize_weight, round_weight
from quasar_lab.support.errors import CheckpointError


def rotate_value_rows(
    weight: Tensor, bias: Tensor | None, rows: slice, rotation: Tensor, head_dim: int
) -> tuple[Tensor, Tensor | None]:
    """qkv_proj whose value heads come out rotated: W [N, K] f32 and bias f32 [N]; neither input is changed."""
    weight = weight.clone()
    heads = weight[rows].T.contiguous()
    weight[rows] = rotate(heads.reshape(-1, head_dim), rotation).reshape(heads.shape).T
    if bias is not None:
        bias = bias.clone()
        bias[rows] = rotate(bias[rows].reshape(-1, head_dim), rotation).reshape(-1)
    return weight, bias


def fold_into_norm(gain: Tensor, factors: Tensor) -> Tensor:
    """Gains of the norm that now gives x / s."""
    return gain / factors


def fold_into_bias(bias: Tensor | None, rows: slice, shift: Tensor, size: int) -> Tensor:
    """Bias f32 [size] of a linear whose outputs `rows` are moved by −shift; the input is not changed."""
    bias = torch.zeros(size) if bias is None else bias.float().clone()
    bias[rows] -= shift
    return bias


def fold_into_rows(weight: Tensor, bias: Tensor | None, rows: slice, factors: Tensor) -> tuple[Tensor, Tensor | None]:
    """A linear whose outputs `rows` are divided by `factors`: W [N, K] f32 and bias f32 [N]; neither input is
    changed."""
    weight = weight.clone()
    weight[rows] /= factors[:, None]
    if bias is not None:
        bias = bias.clone()
        bias[rows] /= factors
    return weight, bias


Rounding = Callable[[Key, Tensor], tuple[Tensor, Tensor]]
"""(key, W f32 [N, K] in the mapped basis) → wq int8 [N, K], wscale f32 [N]."""


def compensated_rounding(
    grams: Iterator[tuple[int, dict[str, tuple[Tensor, Tensor]]]], found: dict[Key, InputMap]
) -> Rounding:
    """Rounding by `rounding.round_weight`, for keys that come layer by layer, as `calibration.grams` does."""
    current = next(grams)

    def rounding(key: Key, weight: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal current
        while current[0] != key[0]:
            current = next(grams)
        fitted, held_out = current[1][key[1]]
        if key in found:
            fitted, held_out = found[key].gram(fitted), found[key].gram(held_out)
        return round_weight(weight, fitted, held_out)

    return rounding


def quantized_tensors(
    checkpoint: Checkpoint, found: dict[Key, InputMap], rounding: Rounding | None = None
) -> dict[str, Tensor]:
    """Everything a saved W8A8 model holds, by name; a linear without a mapping in `found` is rounded as it is. Folding
    is exact before rounding, which is to nearest by default."""
    config, out = checkpoint.config, {}

    def put(name: str, weight: Tensor, bias: Tensor | None, key: Key) -> None:
        out[f"{name}.wq"], out[f"{name}.wscale"] = (
            quantize_weight(weight) if rounding is None else rounding(key, weight)
        )
        if not bool(torch.isfinite(out[f"{name}.wscale"]).all()):
            raise CheckpointError(f"{name} of {checkpoint.name} holds NaN or infinite weights")
        if bias is not None:
            out[f"{name}.bias"] = bias
        if key in found:
            out[f"{name}.factors"] = found[key].factors
            for part in ("rotation", "shift"):
                value = getattr(found[key], part)
                if value is not None:
                    out[f"{name}.{part}"] = value

    for layer in range(config.layers):
        base = f"layers.{layer}"
        parts = {}
        for name in PARTS:
            weight, bias = checkpoint.projection(layer, name)
            mapping = found.get((layer, name))
            weight = weight.float()
            parts[name] = (weight, bias) if mapping is None else (mapping.weight(weight), mapping.bias(weight, bias))
        attention_norm = checkpoint.norm(f"model.{base}.input_layernorm")
        mlp_norm = checkpoint.norm(f"model.{base}.post_attention_layernorm")
        if (layer, "qkv_proj") in found:
            attention_norm = fold_into_norm(attention_norm, found[layer, "qkv_proj"].factors)
        if (layer, "gate_up_proj") in found:
            mlp_norm = fold_into_norm(mlp_norm, found[layer, "gate_up_proj"].factors)
        if (layer, "o_proj") in found:
            mapping = found[layer, "o_proj"]
            value = value_factors(mapping.factors, config).reshape(-1)
            rows = _value_rows(config)
            if mapping.shift is not None:
                weight, bias = parts["qkv_proj"]
                centre = value_factors(mapping.shift, config).reshape(-1)
                parts["qkv_proj"] = weight, fold_into_bias(bias, rows, centre, len(weight))
            parts["qkv_proj"] = fold_into_rows(*parts["qkv_proj"], rows, value)
            if mapping.rotation is not None:
                parts["qkv_proj"] = rotate_value_rows(*parts["qkv_proj"], rows, mapping.rotation, config.head_dim)
        if (layer, "down_proj") in found:
            parts["gate_up_proj"] = fold_into_rows(
                *parts["gate_up_proj"], slice(config.mlp, None), found[layer, "down_proj"].factors
            )
        out[f"{base}.attention_norm"], out[f"{base}.mlp_norm"] = attention_norm, mlp_norm
        for name, (weight, bias) in parts.items():
            put(f"{base}.{name}", weight, bias, (layer, name))

    key = (config.layers, "lm_head")
    weight = weight_of(checkpoint, key).float()
    if key in found:
        put("lm_head", found[key].weight(weight), found[key].bias(weight, None), key)
    else:
        put("lm_head", weight, None, key)
    return out


def _value_rows(config: ModelConfig) -> slice:
    """The rows of qkv_proj that give the values."""
    return slice((config.heads + config.kv_heads) * config.head_dim, None)


def _unfold_outputs(y: Tensor, key: Key, found: dict[Key, InputMap], config: ModelConfig) -> Tensor:
    """Outputs [M, N] of a linear of `quantized_tensors` in the basis of the BF16 model; `y` is not changed."""
    layer, projection = key
    follower = found.get((layer, {"qkv_proj": "o_proj", "gate_up_proj": "down_proj"}.get(projection, "")))
    if follower is None:
        return y
    y = y.clone()
    if projection == "gate_up_proj":
        y[:, config.mlp :] *= follower.factors
        return y
    rows = _value_rows(config)
    value = y[:, rows]
    if follower.rotation is not None:
        turned = value.reshape(-1, config.head_dim)
        value = rotate(turned, follower.rotation.T.contiguous()).reshape(value.shape)
    y[:, rows] = value * value_factors(follower.factors, config).reshape(-1)
    return y
