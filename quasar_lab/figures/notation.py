"""How figures write a mapping as a formula, the source of a picture, and a magnitude."""

from collections.abc import Mapping

from quasar_lab.evaluation.origin import Origin
from quasar_lab.figures.style import origin_line
from quasar_lab.models.input_map import InputMap


def mapped_formulas(mapping: InputMap, x: str, weight: str) -> tuple[str, str]:
    """What is rounded instead of x and W, as people write it: ("(x / s) R", "(W · s) R")."""
    names = [f"{x if mapping.shift is None else f'({x} − z)'} / s", f"{weight} · s"]
    names = names if mapping.rotation is None else [f"({name}) R" for name in names]
    return names[0], names[1]


def mapped_origin(identity: Mapping[str, str], recipe: str | None = None, also: str = "") -> str:
    """The stamp of a figure of BF16 inputs, which are mapped as in a quantized model where there is one.

    identity: of the BF16 model. recipe: of the quantized one. also: a word before "mapped", where the figure shows
    other mappings as well.
    """
    shown = None if recipe is None else f"bf16, inputs {also}mapped as in {recipe}"
    return origin_line(Origin.from_json(identity), recipe=shown)


def short_number(value: float) -> str:
    """Three figures, and no exponent on a number that people can read without one."""
    return f"{value:,.0f}".replace(",", " ") if value >= 1000 else f"{value:.3g}"
