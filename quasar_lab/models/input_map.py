"""What a recipe does to a linear's input before it is rounded, and to the cached values of a layer."""

from dataclasses import dataclass

import torch
from quasar_kernels.reference import rotate
from torch import Tensor

from quasar_lab.models.checkpoint import ModelConfig


@dataclass(frozen=True)
class InputMap:
    """x → ((x − z) / s) R of a linear's input: factors s f32 [K]; rotation f32 [P, P], the dense factor of R, or None;
    `group` channels are rotated together, all K where None; shift z f32 [K] or None."""

    factors: Tensor
    rotation: Tensor | None = None
    group: int | None = None
    shift: Tensor | None = None

    def inputs(self, x: Tensor) -> Tensor:
        """Rows x f32 [M, K] in the mapped basis."""
        return self._turn((x if self.shift is None else x - self.shift) / self.factors)

    def weight(self, weight: Tensor) -> Tensor:
        """W f32 [N, K] that undoes the mapping of its inputs: W · s, turned alike."""
        return self._turn(weight * self.factors)

    def bias(self, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """b + W z f32 [N], which undoes the shift; W f32 [N, K] as it was before the mapping."""
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
    """The basis in which a recipe keeps the values of a layer, or of all layers (`of_all_layers`), in terms of the BF16
    model's v: ((v − shift) · inv_scale) @ rotation.

    shift (or None) and inv_scale f32 [(layers,) kv_heads, head_dim]; rotation f32 [head_dim, head_dim], [layers, 1,
    head_dim, head_dim] or None.
    """

    inv_scale: Tensor
    rotation: Tensor | None
    shift: Tensor | None = None

    def __call__(self, v: Tensor) -> Tensor:
        """Values f32 [(layers,) kv_heads, rows, head_dim] of the BF16 model → the same in this basis; the input is not
        changed."""
        v = (v if self.shift is None else v - self.shift[..., None, :]) * self.inv_scale[..., None, :]
        return v if self.rotation is None else v @ self.rotation


def value_map(mapping: InputMap, config: ModelConfig) -> ValueMap:
    """What folding o_proj's mapping does to the values. One dense matrix, since it turns every row of an audit."""
    rotation = None if mapping.rotation is None else rotate(torch.eye(config.head_dim), mapping.rotation)
    shift = None if mapping.shift is None else value_factors(mapping.shift, config)
    return ValueMap(1 / value_factors(mapping.factors, config), rotation, shift)


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
