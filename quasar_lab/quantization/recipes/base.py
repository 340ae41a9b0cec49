"""What a recipe is: one class that says how a model is made W8A8.

## Idea

A recipe proposes input maps for every linear, chooses among them, and says how weights are rounded. Its class also
carries what people see of it: its name, the option behind the name, and one line of help.

## Choice

The command line, the error texts, the lists in notebooks and the README read this class. A new recipe is one class in
one file of this package, and `recipes/__init__.py` finds it there.

`propose` only proposes. By default a map is kept where it beats plain rounding on held-out text: calibration text is
short, and what helps on it may hurt elsewhere. A recipe that wants another choice overrides `choose`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from torch import Tensor

from quasar_lab.models.checkpoint import Checkpoint
from quasar_lab.models.input_map import InputMap
from quasar_lab.models.model_config import Key, ModelConfig
from quasar_lab.quantization.calibration import Calibration, Channels, Statistics
from quasar_lab.quantization.linear_formats import W8A8, LinearFormat, Rounding, nearest
from quasar_lab.quantization.selection import least_error
from quasar_lab.support.errors import RecipeError

DEFAULT_ALPHA = 0.5
"""α of SmoothQuant's formula where a recipe takes one and none is given."""


@dataclass(frozen=True)
class CalibratedLinear:
    """One linear of the BF16 model with what calibration says of its input."""

    checkpoint: Checkpoint
    """The BF16 model's files."""
    key: Key
    """Which linear it is."""
    channels: Channels
    """Statistics of its input channels."""

    @cached_property
    def weight(self) -> Tensor:
        """W bf16 [N, K], read when it is asked for."""
        return self.checkpoint.linear_weight(self.key)

    @property
    def repeated_heads(self) -> ModelConfig | None:
        """The config for o_proj, whose input channels repeat for the query heads of a value head; None elsewhere."""
        return self.checkpoint.config if self.key[1] == "o_proj" else None


@dataclass(frozen=True)
class Recipe(ABC):
    """How a model is quantized. A subclass names itself and proposes input maps."""

    name: ClassVar[str]
    """What a user writes: "w8a8-searched"."""
    saved_as: ClassVar[str]
    """The word in the folder names of saved models. It never changes, or models would be prepared again."""
    place: ClassVar[int]
    """Where lists show it: the smallest comes first."""
    summary: ClassVar[str]
    """One sentence for help texts and tables."""
    option: ClassVar[str] = ""
    """What may stand behind the name and a colon, in one word; empty: nothing."""
    linear_format: ClassVar[LinearFormat] = W8A8
    """How the linears are saved and computed."""

    @classmethod
    def syntax(cls) -> str:
        """The name with its option, as help texts show it."""
        return f"{cls.name}[:{cls.option}]" if cls.option else cls.name

    @classmethod
    def examples(cls) -> tuple[str, ...]:
        """What a list to choose from offers."""
        return (cls.name,)

    @classmethod
    def with_option(cls, option: str) -> Self:
        """The recipe for "name:option"; asked only of a recipe that names an option. Raises RecipeError on a value that
        is not accepted."""
        raise NotImplementedError

    @property
    def identity(self) -> str:
        """Recipes that do the same share one saved model."""
        return self.saved_as

    @abstractmethod
    def propose(self, linear: CalibratedLinear) -> Sequence[InputMap]:
        """What could be done to the input of one linear: any number of maps."""

    def choose(self, proposed: Mapping[Key, Sequence[InputMap]], calibration: Calibration) -> dict[Key, InputMap]:
        """One map, or none, for every linear. By default a map is kept where it helps on held-out text."""
        return least_error(calibration.decoder, proposed, calibration.held_out, self.linear_format)

    def rounding(self, calibration: Calibration, maps: dict[Key, InputMap]) -> Rounding:
        """How weights are rounded, once the maps are chosen. By default to nearest."""
        return nearest(self.linear_format)

    def proposals(self, checkpoint: Checkpoint, statistics: Statistics) -> dict[Key, Sequence[InputMap]]:
        """What is proposed for every linear; a linear without a proposal is left out."""
        proposed = {
            key: self.propose(CalibratedLinear(checkpoint, key, statistics.channels[key]))
            for key in checkpoint.config.linear_keys()
        }
        return {key: maps for key, maps in proposed.items() if maps}

    def input_maps(self, calibration: Calibration) -> dict[Key, InputMap]:
        """What this recipe does to the input of every linear; one that is rounded as it is has no map."""
        proposed = self.proposals(calibration.decoder.checkpoint, calibration.statistics)
        return self.choose(proposed, calibration)


def first_of_each(proposed: Mapping[Key, Sequence[InputMap]]) -> dict[Key, InputMap]:
    """The first proposal for every linear, whatever it does on real text."""
    return {key: maps[0] for key, maps in proposed.items()}


@dataclass(frozen=True)
class AlphaRecipe(Recipe):
    """A recipe with the α of SmoothQuant's formula as its option: "w8a8-smoothquant:0.7"."""

    option = "alpha"
    alpha: float = DEFAULT_ALPHA
    """0: activations keep their difficulty; 1: the weights get all of it."""

    @classmethod
    def with_option(cls, option: str) -> Self:
        try:
            alpha = float(option)
        except ValueError:
            alpha = -1.0
        if not 0 <= alpha <= 1:
            raise RecipeError(f"α is {option!r} in recipe {f'{cls.name}:{option}'!r}; accepted: a number in 0…1")
        return cls(abs(alpha))

    @property
    def identity(self) -> str:
        return f"{self.saved_as}-{self.alpha:g}"
