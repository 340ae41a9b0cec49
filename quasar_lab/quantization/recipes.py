"""Which mapping each linear gets: a recipe by name, its method, and the choice by measured error.

A *recipe* says how a model is made W8A8. ``w8a8-plain`` rounds as it is; ``w8a8-smoothquant[:α]`` moves difficulty into
the weights by one α; ``w8a8-searched`` takes, for each linear, the α with the least output error; ``w8a8-shifted[:α]``
centres channels first; ``w8a8``, the default, is the best measured one: balanced factors, every input rotated
(`smoothing`), weights rounded so that errors cancel (`rounding`).

A method only proposes. Apart from the textbook's fixed α, a mapping is kept where it beats plain rounding on text that
nothing was fitted to: calibration text is short, and what helps on it may hurt elsewhere. What is lost: the error of
one linear is not the model's, and each linear is judged alone.

On the embedded model (KL against BF16 on 8192 tokens of wikitext-2, calibrated on our own text): SmoothQuant 0.0167,
searched 0.0146, shifted 0.0140, rotated with compensated rounding 0.0019. Notebook 06 measures such distances.

Two more were tried and left out. Keeping the first token's path in BF16 takes 0.00015 off, but needs the BF16 weights
beside the INT8 ones; where both are there anyway, with an audit, every prefill is BF16's. Keeping the MLP of the
last layer in BF16, where 2 % more bytes help most, takes off 8 % of the KL, and every step reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from quasar_lab.models.checkpoint import Checkpoint, Key, ModelConfig, linears, weight_of
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.calibration import Channels, Statistics
from quasar_lab.quantization.layer_error import _rounded_linear, output_error, relative_error
from quasar_lab.quantization.rotation import rotation_matrix
from quasar_lab.quantization.smoothing import (
    balanced_factors,
    centred_max,
    column_max,
    o_proj_factors,
    shared_shift,
    smoothquant_factors,
    spread_repeats,
)
from quasar_lab.support.errors import NotInThisVersion, RecipeError

DEFAULT_ALPHA = 0.5
ALPHAS = tuple(step / 20 for step in range(4, 19))
"""What `w8a8-searched` tries: 0.2 … 0.9. Below, activations stay as they are; above, the weights are ruined."""
WITH_ALPHA, WITHOUT = ("smoothquant", "shifted"), ("plain", "searched", "rotated")
LATER = ("w4a8", "w4a16", "w2a16")
ACCEPTED = "w8a8, w8a8-plain, w8a8-smoothquant[:alpha], w8a8-searched, w8a8-shifted[:alpha]"


@dataclass(frozen=True)
class Recipe:
    """name as the user wrote it; method: plain, smoothquant, searched, shifted or rotated; alpha of SmoothQuant's
    formula, where the method has one."""

    name: str
    method: str = "plain"
    alpha: float = DEFAULT_ALPHA

    @property
    def identity(self) -> str:
        """Recipes that do the same share one saved model."""
        return f"{self.method}-{self.alpha:g}" if self.method in WITH_ALPHA else self.method


def parse_recipe(text: str) -> Recipe:
    """Raises RecipeError on an unknown name or an α outside 0…1."""
    name, colon, option = text.partition(":")
    if name in LATER:
        raise NotInThisVersion(f"recipe {name}")
    method = "rotated" if name == "w8a8" else name.removeprefix("w8a8-")
    if name not in ("w8a8", *(f"w8a8-{known}" for known in (*WITH_ALPHA, "plain", "searched"))):
        raise RecipeError(f"unknown recipe {text!r}; accepted: {ACCEPTED}")
    if not colon:
        return Recipe(text, method)
    if method not in WITH_ALPHA:
        raise RecipeError(f"recipe {name} has no option, got {option!r}; accepted: {ACCEPTED}")
    try:
        alpha = float(option)
    except ValueError:
        alpha = -1.0
    if not 0 <= alpha <= 1:
        raise RecipeError(f"α is {option!r} in recipe {text!r}; accepted: a number in 0…1")
    return Recipe(text, method, abs(alpha))


def smoothquant(channels: Channels, weight: Tensor, heads: ModelConfig | None, alpha: float) -> InputMap:
    """SmoothQuant with one α. `heads`: the config where the input is that of o_proj, whose channels repeat; else
    None."""
    return _by_alpha(channels.largest, column_max(weight), heads, alpha)


def shifted(channels: Channels, weight: Tensor, heads: ModelConfig | None, alpha: float) -> InputMap:
    """Shift and scale: centres go into the bias, SmoothQuant's formula sees the centred range."""
    shift = channels.mean if heads is None else shared_shift(channels.mean, heads)
    scaled = _by_alpha(centred_max(channels.low, channels.high, shift), column_max(weight), heads, alpha)
    return InputMap(scaled.factors, shift=shift)


def _by_alpha(largest: Tensor, columns: Tensor, heads: ModelConfig | None, alpha: float) -> InputMap:
    if heads is None:
        return InputMap(smoothquant_factors(largest, columns, alpha))
    return InputMap(o_proj_factors(largest, columns, alpha, heads))


def rotated(channels: Channels, weight: Tensor, heads: ModelConfig | None) -> InputMap:
    """Balanced factors, then a rotation of all channels; in front of o_proj, inside each head."""
    squares = channels.square, weight.float().square().sum(dim=0)
    if heads is None:
        return InputMap(balanced_factors(*squares), rotation_matrix(weight.shape[1]))
    shape = (heads.kv_heads, -1, heads.head_dim)  # query heads that share a value head share its factors
    pooled = balanced_factors(*(square.reshape(shape).mean(dim=1).reshape(-1) for square in squares))
    return InputMap(spread_repeats(pooled, heads), rotation_matrix(heads.head_dim), heads.head_dim)


def candidates(checkpoint: Checkpoint, statistics: Statistics, recipe: Recipe) -> dict[Key, list[InputMap]]:
    """What a recipe would do to the input of every linear: one proposal each, several where it is to be searched, none
    for plain rounding."""
    proposed: dict[Key, list[InputMap]] = {}
    for key in () if recipe.method == "plain" else linears(checkpoint.config):
        weight, channels = weight_of(checkpoint, key), statistics.channels[key]
        heads = checkpoint.config if key[1] == "o_proj" else None
        if recipe.method == "rotated":
            proposed[key] = [rotated(channels, weight, heads)]
        elif recipe.method == "shifted":
            proposed[key] = [shifted(channels, weight, heads, recipe.alpha)]
        else:
            alphas = ALPHAS if recipe.method == "searched" else (recipe.alpha,)
            proposed[key] = [smoothquant(channels, weight, heads, alpha) for alpha in alphas]
    return proposed


def mappings(
    decoder: Decoder,
    statistics: Statistics,
    recipe: Recipe,
    fitted: list[list[int]],
    held_out: list[list[int]],
) -> dict[Key, InputMap]:
    """What `recipe` does to the input of every linear: searched on `fitted`, kept where it helps on `held_out`; a
    linear that is rounded as it is has none. Both are token sequences from position 0."""
    proposed = candidates(decoder.checkpoint, statistics, recipe)
    if recipe.method in ("plain", "smoothquant"):
        return {key: found[0] for key, found in proposed.items()}
    if recipe.method == "searched":
        best = least_error(decoder, proposed, fitted)
        proposed = {key: [mapping] for key, mapping in best.items()}
    return least_error(decoder, proposed, held_out)


def least_error(
    decoder: Decoder, proposed: Mapping[Key, list[InputMap]], sequences: list[list[int]]
) -> dict[Key, InputMap]:
    """Per linear, the proposal with the least output error on the longest of `sequences`; none where plain rounding is
    better.

    Position 0 has no say: at an attention sink its row is hundreds of times larger than all others together.
    """
    kept: dict[Key, InputMap] = {}

    def tap(layer: int, projection: str, x: Tensor) -> None:
        key = (layer, projection)
        weight, x = weight_of(decoder.checkpoint, key).float(), x[1:] if len(x) > 1 else x
        exact, least = x @ weight.T, output_error(x, weight)
        for mapping in proposed.get(key, []):
            error = relative_error(_rounded_linear(x, weight, mapping), exact)
            if error < least:
                least, kept[key] = error, mapping

    sequence = max(sequences, key=len)
    decoder.forward(sequence, decoder.new_cache(len(sequence)), taps=tap)
    return kept
