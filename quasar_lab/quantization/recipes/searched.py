"""SmoothQuant with an α of its own for each linear: the one with the least output error.

The search runs on the text that the factors are fitted to. Its result is then kept where it also beats plain rounding
on held-out text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import Key
from quasar_lab.quantization.calibration import Calibration
from quasar_lab.quantization.recipes.base import CalibratedLinear, Recipe
from quasar_lab.quantization.recipes.smoothquant import smoothquant_map
from quasar_lab.quantization.selection import least_error

ALPHAS = tuple(step / 20 for step in range(4, 19))
"""What is tried: 0.2 … 0.9. Below, activations stay as they are; above, the weights are ruined."""


@dataclass(frozen=True)
class Searched(Recipe):
    """Many values of α, the best one for each linear."""

    name = "w8a8-searched"
    saved_as = "searched"
    place = 3
    summary = "SmoothQuant with the α of least output error for each linear."

    def propose(self, linear: CalibratedLinear) -> Sequence[InputMap]:
        return [smoothquant_map(linear, alpha) for alpha in ALPHAS]

    def choose(self, proposed: Mapping[Key, Sequence[InputMap]], calibration: Calibration) -> dict[Key, InputMap]:
        best = least_error(calibration.decoder, proposed, calibration.fitted, self.linear_format)
        return super().choose({key: [input_map] for key, input_map in best.items()}, calibration)
