"""Moving the difficulty of quantization from activations to weights, exactly.

A few input channels of a linear are tens of times larger than the rest; one INT8 scale per token then leaves the others
a handful of levels. For any s > 0,  x Wᵀ = (x / s)(W · s)ᵀ,  so channel k of x can be shrunk by s_k and column k of W
grown by it at no error, before anything is rounded. SmoothQuant (arXiv 2211.10438) takes  s_k = max|x_k|^α /
max|W_k|^(1−α):  α = 1 gives all activation channels the same range, α = 0 all weight columns.

Dividing x costs nothing where the division can be *folded* into what produced x: the gains of a norm, the rows of
v_proj (attention mixes tokens, never channels, so x_o / s = attend(v / s)), the rows of up_proj (silu(gate) · up is
linear in up). With grouped heads, all query heads that share a value head share its factors: pooled by the maximum over
the repeats. In front of the head the division stays a transform fused with the rounding, so that the model's final
hidden state keeps its meaning for drafters.

A channel that is zero in calibration or in the weights has no difficulty to move: factor 1.
"""

import torch
from torch import Tensor

from quasar_lab.checkpoints import ModelConfig


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


def column_max(weight: Tensor) -> Tensor:
    """max|W| per input channel: [N, K] → f32 [K]."""
    return weight.abs().amax(dim=0).float()


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


def fold_into_rows(weight: Tensor, bias: Tensor | None, rows: slice, factors: Tensor) -> tuple[Tensor, Tensor | None]:
    """A linear whose outputs `rows` are divided by `factors`: W [N, K] f32 and bias f32 [N]; neither input is
    changed."""
    weight = weight.clone()
    weight[rows] /= factors[:, None]
    if bias is not None:
        bias = bias.clone()
        bias[rows] /= factors
    return weight, bias
