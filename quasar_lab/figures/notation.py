"""How figures write a mapping as a formula, the source of a picture, and a magnitude."""

from collections.abc import Mapping

from quasar_lab.models.input_map import InputMap


def mapped_formulas(mapping: InputMap, x: str, weight: str) -> tuple[str, str]:
    """What is rounded instead of x and W, as people write it: ("(x / s) R", "(W · s) R")."""
    names = [f"{x if mapping.shift is None else f'({x} − z)'} / s", f"{weight} · s"]
    names = names if mapping.rotation is None else [f"({name}) R" for name in names]
    return names[0], names[1]


def mapped_identity(identity: Mapping[str, str], recipe: str | None, also: str = "") -> dict[str, str]:
    """The identity for the stamp of a figure of BF16 inputs that are mapped as in a quantized model, where there is
    one. also: a word before "mapped", where the figure shows other mappings as well."""
    if recipe is None:
        return {**identity}
    return {**identity, "recipe": f"bf16, inputs {also}mapped as in {recipe}"}


def short_number(value: float) -> str:
    """Three figures, and no exponent on a number that people can read without one."""
    return f"{value:,.0f}".replace(",", " ") if value >= 1000 else f"{value:.3g}"
