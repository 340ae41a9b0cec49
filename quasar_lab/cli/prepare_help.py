"""The help page of `quasar-lab prepare` with a list of all recipes.

The list comes from the recipes themselves, which load torch. So it is made when the page is asked for, and not when the
command line starts.
"""

from typing import Any

from typer.core import TyperCommand


class PrepareCommand(TyperCommand):
    """A command whose help page ends with the recipes."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from quasar_lab.quantization.recipes import summaries

        with formatter.section("Recipes"):
            formatter.write_dl(list(summaries().items()))
