"""Drafters by name: ``none``, ``ngram[:longest]``."""

from quasar_lab.speculative.drafters.base import Draft, Drafter, NoDrafter
from quasar_lab.speculative.drafters.ngram import NgramDrafter
from quasar_lab.support.errors import InputError, NotInThisVersion

__all__ = ["Draft", "Drafter", "NgramDrafter", "NoDrafter", "make_drafter"]

LATER = ("layer-skip", "model", "medusa", "eagle")


def make_drafter(spec: str | Drafter) -> Drafter:
    """A drafter from its name (a drafter is returned as it is). Raises InputError on an unknown name."""
    if not isinstance(spec, str):
        return spec
    name, colon, option = spec.partition(":")
    if name in LATER:
        raise NotInThisVersion(f"drafter {name}")
    if name == "none" and not colon:
        return NoDrafter()
    if name == "ngram" and (not colon or (option.isascii() and option.isdecimal())):
        return NgramDrafter(int(option)) if option else NgramDrafter()
    raise InputError(f"unknown drafter {spec!r}; accepted: none, ngram[:longest]")
