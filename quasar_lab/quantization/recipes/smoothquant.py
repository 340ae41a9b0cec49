"""SmoothQuant with one α for all linears, as the textbook has it.

The formula and its source are in `quantization.smoothing`. Its maps are taken as they are, also where they hurt, so
that this recipe is the SmoothQuant that other work compares with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import Key
from quasar_lab.quantization.calibration import Calibration
from quasar_lab.quantization.recipes.base import AlphaRecipe, CalibratedLinear, first_of_each
from quasar_lab.quantization.smoothing import column_max, o_proj_factors, smoothquant_factors


def smoothquant_map(linear: CalibratedLinear, alpha: float) -> InputMap:
    """The map of one linear for one α."""
    return InputMap(linear_factors(linear, linear.channels.largest, alpha))


def linear_factors(linear: CalibratedLinear, largest: Tensor, alpha: float) -> Tensor:
    """SmoothQuant's factors s f32 [K] of one linear, from max|x| f32 [K] of its input."""
    columns = column_max(linear.weight)
    if linear.repeated_heads is None:
        return smoothquant_factors(largest, columns, alpha)
    return o_proj_factors(largest, columns, alpha, linear.repeated_heads)


@dataclass(frozen=True)
class SmoothQuant(AlphaRecipe):
    """One α, every map kept."""

    name = "w8a8-smoothquant"
    saved_as = "smoothquant"
    place = 2
    summary = "SmoothQuant with one α for all linears, 0.5 by default."

    @classmethod
    def examples(cls) -> tuple[str, ...]:
        return f"{cls.name}:0.5", f"{cls.name}:0.85"

    def propose(self, linear: CalibratedLinear) -> Sequence[InputMap]:
        return [smoothquant_map(linear, self.alpha)]

    def choose(self, proposed: Mapping[Key, Sequence[InputMap]], calibration: Calibration) -> dict[Key, InputMap]:
        return first_of_each(proposed)
