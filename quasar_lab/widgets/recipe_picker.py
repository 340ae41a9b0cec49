"""Choose a recipe from a list that says what each one does; α beside it where a recipe takes one."""

import ipywidgets as w
from traitlets.utils.bunch import Bunch

from quasar_lab.quantization.recipes import DEFAULT_ALPHA, RECIPES, AlphaRecipe, parse_recipe
from quasar_lab.widgets.rows import wide

WHAT = "A recipe is a way to make the INT8 copy from the BF16 model."


class RecipePicker(w.VBox):
    """`value`: the recipe as a user writes it, "w8a8-smoothquant:0.85"."""

    def __init__(self, value: str):
        look = {"style": {"description_width": "110px"}}
        options = [(f"{name} — {recipe.summary}", name) for name, recipe in RECIPES.items()]
        self.name = w.Dropdown(options=options, description="recipe", layout=w.Layout(width="calc(100% - 6px)"), **look)
        self.alpha = w.BoundedFloatText(
            DEFAULT_ALPHA, min=0, max=1, step=0.05, description="α", layout=wide("200px"), **look
        )
        self.name.observe(self._follow, "value")
        self.value = value
        self._follow()
        super().__init__([self.name, self.alpha, w.HTML(f'<span style="margin-left: 114px">{WHAT}</span>')])

    @property
    def value(self) -> str:
        name = self.name.value
        return f"{name}:{self.alpha.value:g}" if self._takes_alpha() and self.alpha.value != DEFAULT_ALPHA else name

    @value.setter
    def value(self, text: str) -> None:
        """Raises RecipeError on a recipe that there is not."""
        recipe = parse_recipe(text)
        self.name.value = recipe.name
        if isinstance(recipe, AlphaRecipe):
            self.alpha.value = recipe.alpha

    def _takes_alpha(self) -> bool:
        return issubclass(RECIPES[self.name.value], AlphaRecipe)

    def _follow(self, change: Bunch | None = None) -> None:
        self.alpha.layout.display = None if self._takes_alpha() else "none"
