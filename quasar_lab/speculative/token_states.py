"""What can become of a token: the seven states, with the sign, the colour and the meaning of each.

The terminal, the figures and the token strip (Python and JavaScript) all read this one table, and a trace file holds
its words. Colours are Okabe and Ito's, which colour-blind readers can tell apart.
"""

from enum import StrEnum
from typing import Self

from quasar_lab.support.result import Json


class TokenState(StrEnum):
    """A state of a token; as text, the word that traces hold."""

    glyph: str  # the sign before the token
    colour: str | None  # of its border; None: the colour of quiet lines
    meaning: str  # one sentence for legends and tables
    audits_only: bool  # whether only runs with an auditor know it

    def __new__(cls, word: str, glyph: str, colour: str | None, meaning: str, audits_only: bool = False) -> Self:
        state = str.__new__(cls, word)
        state._value_ = word
        state.glyph = glyph
        state.colour = colour
        state.meaning = meaning
        state.audits_only = audits_only
        return state

    ACCEPTED = "accepted", "✓", "#009E73", "a draft that was kept"
    REJECTED = "rejected", "✗", "#D55E00", "a draft that was refused"
    CORRECTED = "corrected", "↻", "#0072B2", "drawn in the place of the refused draft"
    BONUS = "bonus", "+", "#CC79A7", "one more token after all drafts were kept"
    PLAIN = "plain", "·", None, "nothing had been drafted"
    PROVISIONAL = "provisional", "◌", "#E69F00", "no audit has seen it yet", True
    RETRACTED = "retracted", "⟲", "#D55E00", "an audit took it back", True

    @classmethod
    def of(cls, word: str) -> "TokenState":
        """The state that a trace calls `word`."""
        return cls[word.upper()]

    def __repr__(self) -> str:
        return repr(self.value)  # in a trace that is printed, the word as a file has it


def state_table() -> Json:
    """The table as JSON, for the drawing in JavaScript: word → {glyph, colour, meaning, audits_only}."""
    return {state.value: _row(state) for state in TokenState}


def _row(state: TokenState) -> Json:
    return {
        "glyph": state.glyph,
        "colour": state.colour,
        "meaning": state.meaning,
        "audits_only": state.audits_only,
    }
