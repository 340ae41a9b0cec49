"""Help pages that end with the names which the options of a command accept: verifiers, recipes, drafters, backends.

The names come from where they are defined, and some of those modules load torch. So the lists are made when a page is
asked for, and not when the command line starts.
"""

from collections.abc import Callable
from typing import Any

from typer.core import TyperCommand


def recipes() -> dict[str, str]:
    """Every recipe with its line."""
    from quasar_lab.quantization.recipes import summaries

    return summaries()


def verifiers() -> dict[str, str]:
    """What `--verifier` takes besides recipes."""
    from quasar_lab.speculative.verifiers import AUDITED_BY_BF16, BF16

    return {
        BF16: "The model itself, with weights in 16 bits.",
        f"RECIPE{AUDITED_BY_BF16}": "A recipe writes and BF16 audits: the text is BF16's own.",
    }


def drafters() -> dict[str, str]:
    """Every drafter with its line."""
    from quasar_lab.speculative.drafters.registry import kinds

    return {kind.syntax: kind.summary for kind in kinds().values()}


def backends() -> dict[str, str]:
    """Every backend, and whether it runs here."""
    from quasar_kernels import availability

    return {name: f"not here: {reason}" if reason else "runs here" for name, reason in availability().items()}


SECTIONS: tuple[tuple[str, frozenset[str], Callable[[], dict[str, str]]], ...] = (
    ("Verifiers", frozenset({"verifier", "verifiers"}), verifiers),
    ("Recipes", frozenset({"recipe", "verifier", "verifiers"}), recipes),
    ("Drafters", frozenset({"drafter", "drafters"}), drafters),
    ("Backends", frozenset({"backend"}), backends),
)
"""Heading, the options under whose names the page has the section, and what it lists."""


class ListingCommand(TyperCommand):
    """A command whose help page ends with what its options accept."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        options = {parameter.name for parameter in self.params}
        for heading, names, listed in SECTIONS:
            if options & names:
                with formatter.section(heading):
                    formatter.write_dl(list(listed().items()))
