"""Drafters: one file each, found by name (`registry`)."""

from quasar_lab.speculative.drafters.base import Draft, Drafter, checked
from quasar_lab.speculative.drafters.ngram import NgramDrafter
from quasar_lab.speculative.drafters.none import NoDrafter
from quasar_lab.speculative.drafters.registry import make_drafter

__all__ = ["Draft", "Drafter", "NgramDrafter", "NoDrafter", "checked", "make_drafter"]
