"""Moving the difficulty of quantization from activations to weights, exactly.

A few input channels of a linear are tens of times larger than the rest; one INT8 scale per token then leaves the
others a handful of levels. For any s > 0, x Wᵀ = (x / s)(W · s)ᵀ, so channel k of x can be shrunk by s_k and column k
of W grown by it at no error, before anything is rounded. SmoothQuant (arXiv 2211.10438) takes s_k = max|x_k|^α /
max|W_k|^(1−α): α = 1 gives all activation channels the same range, α = 0 all weight columns.

Dividing x costs nothing where the division can be *folded* into what produced x: the gains of a norm, the rows of
v_proj (attention mixes tokens, never channels, so x_o / s = attend(v / s)), the rows of up_proj (silu(gate) · up is
linear in up). With grouped heads, all query heads that share a value head share its factors: pooled by the maximum
over the repeats. In front of the head the division stays a transform fused with the rounding, so that the model's
final hidden state keeps its meaning for drafters.

A channel that is zero in calibration or in the weights has no difficulty to move: factor 1.

A channel whose values lie far to one side of zero wastes half of its levels. Shifting it by its centre z is exact too:
x Wᵀ + b = (x − z) Wᵀ + (b + W z) (Outlier Suppression+, arXiv 2304.09145). Then the centred range takes the place of
max|x|. z is the mean over tokens, position 0 apart: the attention sink is not what a channel is centred on. In front of
o_proj the shift folds into the bias of v_proj, as attention's weights add up to 1; elsewhere it runs online, fused with
the rounding.

Rotation goes further (QuaRot, arXiv 2404.00456): an orthonormal matrix R spreads a large channel over all, x Wᵀ = (x
R) (W R)ᵀ, again exact before rounding. A rotated row looks Gaussian, its largest value about 3 times its root mean
square, so the INT8 step follows ‖x / s‖ and the rounding noise of the product is proportional to ‖x / s‖² · ‖W · s‖².
The s that makes this product smallest balances root mean squares, not maxima: s_k² = rms(x_k) / ‖W_k‖
(Cauchy-Schwarz). So `balanced_factors`, then a rotation, is one method. Position 0 is left out of rms(x_k): the
attention sink has a scale of its own.

Why the rotation runs online, behind the norm, and not once on the residual stream, where it would be free: a rotated
stream cannot carry the gains of the norms or any s, and on the embedded model ‖x‖² · ‖W‖² is then 2 to 4 times what
gains, s and an online rotation leave (at nine layers' qkv_proj and gate_up_proj; 1.5 times at the head). What it
costs online is in the kernels' README. In front of o_proj the rotation acts inside each value head and is folded into
the rows of v_proj: nothing runs online.
"""

from dataclasses import dataclass

import torch
from quasar_kernels.reference import rotate, rotation_sides
from torch import Tensor

from quasar_lab.models.checkpoint import ModelConfig


def smoothquant_factors(activation_max: Tensor, weight_max: Tensor, alpha: float) -> Tensor:
    """s f32 [K] from max|x| and max|W| per input channel, both f32 [K]; geometric mean over the used channels 1.

    The mean is free (it moves between the token's scale and the weights'), and fixing it keeps folded norms in a sane
    range.
    """
    factors = activation_max.double() ** alpha / weight_max.double() ** (1 - alpha)
    used = (activation_max > 0) & (weight_max > 0)
    factors = torch.where(used, factors, torch.ones_like(factors))
    if bool(used.any()):
        factors = torch.where(used, factors / factors[used].log().mean().exp(), factors)
    return factors.clamp(1e-4, 1e4).float()


def balanced_factors(activation_square: Tensor, weight_square: Tensor) -> Tensor:
    """s f32 [K] = (E[x_k²] / ‖W_k‖²)^¼, for inputs that are rotated next; both arguments f32 [K]; geometric mean 1."""
    return smoothquant_factors(activation_square.sqrt(), weight_square.sqrt(), 0.5)


EVEN_LIMIT, DENSE_LIMIT = 16, 128
"""Largest dense factor worth its evenness; largest at all: beyond, a rotation would cost as much as a linear."""
LONGEST = 16384


def hadamard(size: int) -> Tensor | None:
    """A Hadamard matrix f32 [n, n] of ±1 by Paley's first construction, None where it gives none; n = 1 and 2 too."""
    if size <= 2:
        return torch.tensor([[1.0, 1.0], [1.0, -1.0]])[:size, :size]
    q = size - 1
    if size % 4 or any(q % divisor == 0 for divisor in range(2, int(q**0.5) + 1)):
        return None  # it needs a prime q ≡ 3 mod 4
    squares = {i * i % q for i in range(1, q)}
    residue = torch.tensor([0.0] + [1.0 if i in squares else -1.0 for i in range(1, q)])
    index = torch.arange(q)
    matrix = torch.eye(size)
    matrix[0, 1:] += 1
    matrix[1:, 0] -= 1
    matrix[1:, 1:] += residue[(index[:, None] - index) % q]
    return matrix


def rotation_matrix(size: int) -> Tensor | None:
    """The dense factor f32 [P, P] of an orthonormal rotation of `size` channels (`quasar_kernels.rotate`).

    A Hadamard matrix, whose entries are all equally large, where one of at most 16 fits: 12 for 1536 and for 12288.
    Else the Hartley matrix cas(2πij/P)/√P of the odd part of `size`: a little less even, but small, and the cost grows
    with P. At 576 the Hartley 9 has the KL of the Hadamard 36 (0.0019) at less than half its time. None where the
    odd part is above 128. K/P is at most 16384, what a block of a GPU holds in registers.
    """
    sides = [side for side in rotation_sides(size) if size // side <= LONGEST]
    for side in sides:
        matrix = hadamard(side) if side <= EVEN_LIMIT else None
        if matrix is not None:
            return matrix / side**0.5
    odd = sides[0]
    if odd > DENSE_LIMIT:
        return None
    index = torch.arange(odd, dtype=torch.float64)
    angle = 2 * torch.pi * index[:, None] * index / odd
    return ((angle.cos() + angle.sin()) / odd**0.5).float()


@dataclass(frozen=True)
class Mapping:
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


def value_map(mapping: Mapping, config: ModelConfig) -> ValueMap:
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


def column_max(weight: Tensor) -> Tensor:
    """max|W| per input channel: [N, K] → f32 [K]."""
    return weight.abs().amax(dim=0).float()


def centred_max(low: Tensor, high: Tensor, shift: Tensor) -> Tensor:
    """max|x − z| per channel from the lowest and highest x and z, all f32 [K]."""
    return torch.maximum(high - shift, shift - low)


def shared_shift(mean: Tensor, config: ModelConfig) -> Tensor:
    """Centres of o_proj's input, f32 [heads · D], from the means: one for all query heads that share a value head, as
    it folds into that head's bias."""
    repeats = config.heads // config.kv_heads
    means = mean.reshape(config.kv_heads, repeats, config.head_dim).mean(dim=1)
    return spread_repeats(means.reshape(-1), config)


def pool_repeats(values: Tensor, config: ModelConfig) -> Tensor:
    """Per-channel values of o_proj's input, f32 [heads · D] → f32 [kv_heads · D]: the maximum over the query heads that
    share a value head."""
    repeats = config.heads // config.kv_heads
    return values.reshape(config.kv_heads, repeats, config.head_dim).amax(dim=1).reshape(-1)


def spread_repeats(factors: Tensor, config: ModelConfig) -> Tensor:
    """The inverse layout of `pool_repeats`: f32 [kv_heads · D] → f32 [heads · D]."""
    repeats = config.heads // config.kv_heads
    return factors.reshape(config.kv_heads, 1, config.head_dim).expand(-1, repeats, -1).reshape(-1)


def o_proj_factors(activation_max: Tensor, weight_max: Tensor, alpha: float, config: ModelConfig) -> Tensor:
    """`smoothquant_factors` for o_proj, equal for query heads that share a value head: f32 [heads · D]."""
    pooled = smoothquant_factors(pool_repeats(activation_max, config), pool_repeats(weight_max, config), alpha)
    return spread_repeats(pooled, config)


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
