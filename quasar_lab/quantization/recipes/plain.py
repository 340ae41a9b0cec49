"""No smoothing: weights and inputs are rounded as they are. What all other recipes are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.recipes.base import CalibratedLinear, Recipe


@dataclass(frozen=True)
class Plain(Recipe):
    """Proposes nothing, so every linear is rounded as it is."""

    name = "w8a8-plain"
    saved_as = "plain"
    place = 1
    summary = "No smoothing: weights and inputs are rounded as they are."

    def propose(self, linear: CalibratedLinear) -> Sequence[InputMap]:
        return ()
