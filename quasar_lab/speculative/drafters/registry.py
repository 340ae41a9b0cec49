"""Drafters by name: one table that the command line, the notebooks and the error messages read.

A drafter's class says its name, how its option is written and what it does, and builds itself from that option. The
decorator `register` enters it here. Every module of this package is imported when the table is first asked for, so a
new drafter is found without being listed anywhere.
"""

import importlib
import pkgutil
from functools import cache
from typing import Protocol, Self, TypeVar

from quasar_lab.speculative.drafters.base import Drafter
from quasar_lab.support.errors import InputError, NotInThisVersion

DEFAULT = "ngram"
"""The drafter of a run that names none."""

LATER = ("layer-skip", "model", "medusa", "eagle", "suffix", "self")
"""Names that are documented for a later version; one that is registered is of this version."""


class NamedDrafter(Drafter, Protocol):
    """A drafter that can be asked for by name."""

    syntax: str  # its name with its option, as `--drafter` takes it: `ngram[:longest]`
    summary: str  # what it does, in one line

    @classmethod
    def from_option(cls, option: str | None) -> Self:
        """The drafter for the text behind the colon; None where there is no colon.

        Raises ValueError on a text that is no such option, InputError on a value outside what is accepted.
        """


Registered = TypeVar("Registered", bound=type[NamedDrafter])

_KINDS: dict[str, type[NamedDrafter]] = {}


def register(kind: Registered) -> Registered:
    """Class decorator: makes the drafter known under its name."""
    _KINDS[kind.name] = kind
    return kind


@cache
def kinds() -> dict[str, type[NamedDrafter]]:
    """Name → class of every drafter; the one that drafts nothing comes first."""
    package = __package__ or "quasar_lab.speculative.drafters"
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
    return dict(sorted(_KINDS.items(), key=lambda item: (item[0] != "none", item[0])))


def accepted() -> str:
    """What `--drafter` takes: `none, ngram[:longest]`."""
    return ", ".join(kind.syntax for kind in kinds().values())


def make_drafter(spec: str | Drafter) -> Drafter:
    """A drafter from its name (a drafter is returned as it is). Raises InputError on an unknown name."""
    if not isinstance(spec, str):
        return spec
    name, colon, option = spec.partition(":")
    kind = kinds().get(name)
    if kind is None and name in LATER:
        raise NotInThisVersion(f"drafter {name}")
    unknown = InputError(f"unknown drafter {spec!r}; accepted: {accepted()}")
    if kind is None:
        raise unknown
    try:
        return kind.from_option(option if colon else None)
    except ValueError as error:
        raise unknown from error
