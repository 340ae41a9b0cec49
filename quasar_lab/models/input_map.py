"""What a recipe does to a linear's input before it is rounded, and to the cached values of a layer.

## Idea

A recipe may divide, shift and rotate the input x of a linear, and change its weight so that the product stays the same:
x Wᵀ + b = x' W'ᵀ + b'. `InputMap` is such a change, for one linear. x' has smaller outliers than x, and so rounds with
less error.

## Choice

All maps have one form, x' = ((x − z) / s) R with W' = (W · s) R and b' = b + W z. Each part may be missing: factors of
1, no shift, no rotation. R is orthonormal, given by a small dense factor (`quasar_kernels.rotate`).

The map of o_proj's input is folded into the rows of qkv_proj that give the values, so the KV cache of a quantized model
holds mapped values. `ValueMap` brings the values of the BF16 model into that basis, which an audit needs when it takes
over rows of another model's cache.

## What is lost

Maps of another form, such as a full matrix per linear, would cost as much as the linear itself.
"""

from dataclasses import dataclass

import torch
from quasar_kernels.reference import rotate
from torch import Tensor

from quasar_lab.models.model_config import ModelConfig


@dataclass(frozen=True)
class InputMap:
    """x → ((x − z) / s) R, for the input x f32 [M, K] of one linear."""

    factors: Tensor
    """s f32 [K]."""
    rotation: Tensor | None = None
    """The dense factor f32 [P, P] of R; None: nothing is rotated."""
    group: int | None = None
    """How many channels are rotated together; None: all K."""
    shift: Tensor | None = None
    """z f32 [K]; None: nothing is shifted."""

    def inputs(self, x: Tensor) -> Tensor:
        """Rows x f32 [M, K] in the mapped basis."""
        return self._turn((x if self.shift is None else x - self.shift) / self.factors)

    def weight(self, weight: Tensor) -> Tensor:
        """W f32 [N, K] for mapped inputs: W · s, rotated like them."""
        return self._turn(weight * self.factors)

    def bias(self, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """b + W z f32 [N], which undoes the shift; W f32 [N, K] as it was before the map."""
        if self.shift is None:
            return bias
        moved = weight @ self.shift
        return moved if bias is None else bias + moved

    def gram(self, gram: Tensor) -> Tensor:
        """XᵀX f32 [K, K] of unmapped inputs → that of mapped ones. Raises ValueError with a shift, which needs their
        mean as well."""
        if self.shift is not None:
            raise ValueError("the Gram matrix of shifted inputs does not follow from that of the inputs")
        return self.inputs(self.inputs(gram).T.contiguous()).T

    def _turn(self, rows: Tensor) -> Tensor:
        if self.rotation is None:
            return rows
        return rotate(rows.reshape(-1, self.group or rows.shape[1]), self.rotation).reshape(rows.shape)


@dataclass(frozen=True)
class ValueMap:
    """The basis in which a recipe keeps the values of a layer, or of all layers (`of_all_layers`). In terms of the BF16
    model's v: ((v − shift) · inv_scale) @ rotation."""

    inv_scale: Tensor
    """f32 [(layers,) kv_heads, head_dim]."""
    rotation: Tensor | None
    """f32 [head_dim, head_dim], or [layers, 1, head_dim, head_dim]; None: nothing is rotated."""
    shift: Tensor | None = None
    """f32 [(layers,) kv_heads, head_dim]; None: nothing is shifted."""

    def __call__(self, v: Tensor) -> Tensor:
        """Values f32 [(layers,) kv_heads, rows, head_dim] of the BF16 model → the same in this basis; the input is not
        changed."""
        v = (v if self.shift is None else v - self.shift[..., None, :]) * self.inv_scale[..., None, :]
        return v if self.rotation is None else v @ self.rotation


def value_map(input_map: InputMap, config: ModelConfig) -> ValueMap:
    """What folding the map of o_proj's input does to the values. The rotation becomes one dense matrix, because an
    audit turns every row with it."""
    rotation = None if input_map.rotation is None else rotate(torch.eye(config.head_dim), input_map.rotation)
    shift = None if input_map.shift is None else value_factors(input_map.shift, config)
    return ValueMap(1 / value_factors(input_map.factors, config), rotation, shift)


def of_all_layers(maps: dict[int, ValueMap], layers: int) -> ValueMap | None:
    """The maps of layers 0…layers − 1 as one, a few large operations instead of many small ones; None unless each layer
    has one, and all have the same parts."""
    if set(maps) != set(range(layers)):
        return None
    columns = [[getattr(maps[layer], part) for layer in range(layers)] for part in ("inv_scale", "rotation", "shift")]
    if any(len({x is None for x in column}) > 1 for column in columns):
        return None
    inv_scale, rotation, shift = (None if column[0] is None else torch.stack(column) for column in columns)
    assert inv_scale is not None
    return ValueMap(inv_scale, None if rotation is None else rotation[:, None], shift)


def value_factors(factors: Tensor, config: ModelConfig) -> Tensor:
    """Factors (or shifts) of o_proj's input, f32 [heads · D] → f32 [kv_heads, D]; those of query heads that share a
    value head are equal."""
    return factors.reshape(config.kv_heads, -1, config.head_dim)[:, 0]
