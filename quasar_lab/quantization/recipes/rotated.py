"""The default, the best one measured: balanced factors, every input rotated, weights rounded by GPTQ.

Why factors and rotation belong together is in `quantization.rotation`; GPTQ is in `quantization.gptq`. The mean squares
of the input leave position 0 out: the attention sink has a scale of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import Key
from quasar_lab.quantization.calibration import Calibration, grams
from quasar_lab.quantization.gptq import compensated_rounding
from quasar_lab.quantization.linear_formats import Rounding
from quasar_lab.quantization.recipes.base import CalibratedLinear, Recipe
from quasar_lab.quantization.rotation import balanced_factors, rotation_matrix
from quasar_lab.quantization.smoothing import spread_repeats


def rotated_map(linear: CalibratedLinear) -> InputMap:
    """Balanced factors, then a rotation of all channels; in front of o_proj, inside each head."""
    squares = linear.channels.square, linear.weight.float().square().sum(dim=0)
    config = linear.repeated_heads
    if config is None:
        return InputMap(balanced_factors(*squares), rotation_matrix(linear.weight.shape[1]))
    shape = (config.kv_heads, -1, config.head_dim)  # query heads that share a value head share its factors
    pooled = balanced_factors(*(square.reshape(shape).mean(dim=1).reshape(-1) for square in squares))
    return InputMap(spread_repeats(pooled, config), rotation_matrix(config.head_dim), config.head_dim)


@dataclass(frozen=True)
class Rotated(Recipe):
    """Rotated where it helps, rounded by GPTQ where that helps."""

    name = "w8a8"
    saved_as = "rotated"
    place = 0
    summary = "The default, the best one measured: balanced factors, rotated inputs, weights rounded by GPTQ."

    def propose(self, linear: CalibratedLinear) -> Sequence[InputMap]:
        return [rotated_map(linear)]

    def rounding(self, calibration: Calibration, maps: dict[Key, InputMap]) -> Rounding:
        return compensated_rounding(grams(calibration.decoder, calibration.fitted, calibration.held_out), maps)
