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

import torch
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
