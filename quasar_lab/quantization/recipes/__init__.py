"""Recipes: ways to make a model W8A8, each a class in a file of this package.

## Idea

`parse_recipe` turns the text that a user writes into a `Recipe`. Every list and help text of recipes derives from
`RECIPES`, which is found by looking through the files of this package.

## Choice

A recipe is judged by KL against BF16. On 8192 tokens of wikitext-2, with the embedded model calibrated on our own text:
SmoothQuant 0.0167, searched 0.0146, shifted 0.0140, rotated with GPTQ 0.0019. Notebook 06 measures such distances.

Two more were tried and left out. Keeping the first token's path in BF16 takes 0.00015 off, but needs the BF16 weights
beside the INT8 ones. Where both are there anyway, with an audit, every prefill is BF16's. Keeping the MLP of the last
layer in BF16, where 2 % more bytes help most, takes off 8 % of the KL, and every step reads these bytes.

Every linear is quantized, the head too. It is a fifth of the embedded model's bytes and adds about 0.0004 to a KL of
0.0019: with a BF16 head a step would read 21 % more bytes for that.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from quasar_lab.quantization.recipes.base import DEFAULT_ALPHA, AlphaRecipe, CalibratedLinear, Recipe
from quasar_lab.support.errors import NotInThisVersion, RecipeError

__all__ = [
    "DEFAULT_ALPHA",
    "RECIPES",
    "AlphaRecipe",
    "CalibratedLinear",
    "Recipe",
    "accepted",
    "examples",
    "parse_recipe",
    "summaries",
]

LATER = ("w4a8", "w4a16", "w2a16")
"""Documented names that this version does not have yet."""


def _discovered() -> Iterator[type[Recipe]]:
    """The recipes that the files of this package define: classes with a name of their own."""
    for file in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{file.name}")
        for found in vars(module).values():
            here = isinstance(found, type) and found.__module__ == module.__name__
            if here and issubclass(found, Recipe) and "name" in vars(found):
                yield found


RECIPES: dict[str, type[Recipe]] = {
    recipe.name: recipe for recipe in sorted(_discovered(), key=lambda recipe: (recipe.place, recipe.name))
}
"""Every recipe by its name, in the order of lists; the first is the default."""


def accepted() -> str:
    """The recipes as error and help texts list them: "w8a8, w8a8-plain, w8a8-smoothquant[:alpha], …"."""
    return ", ".join(recipe.syntax() for recipe in RECIPES.values())


def summaries() -> dict[str, str]:
    """Every recipe as a user writes it, with one line about it."""
    return {recipe.syntax(): recipe.summary for recipe in RECIPES.values()}


def examples() -> tuple[str, ...]:
    """Recipes with their options, for lists to choose from."""
    return tuple(example for recipe in RECIPES.values() for example in recipe.examples())


def parse_recipe(text: str) -> Recipe:
    """Raises RecipeError on an unknown name or an option that its recipe does not accept."""
    name, colon, option = text.partition(":")
    if name in LATER:
        raise NotInThisVersion(f"recipe {name}")
    if name not in RECIPES:
        raise RecipeError(f"unknown recipe {text!r}; accepted: {accepted()}")
    recipe = RECIPES[name]
    if not colon:
        return recipe()
    if not recipe.option:
        raise RecipeError(f"recipe {name} has no option, got {option!r}; accepted: {accepted()}")
    return recipe.with_option(option)
