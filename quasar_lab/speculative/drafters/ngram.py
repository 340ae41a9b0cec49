"""Prompt lookup: copy what followed the last time these words were written.

## Idea

Answers repeat their questions: names, numbers, code, phrases. The longest suffix (at most `longest` tokens) of what has
been written is looked up among its earlier occurrences, and the tokens that followed the *latest* one are the draft. It
costs no model at all.

## Choice

Earlier occurrences are not searched for. An index maps every n-gram to the place behind its latest occurrence, and each
new token adds `longest` entries. A draft therefore costs the same at 1 000 and at 16 000 tokens of context. A journal
of overwritten entries makes rollback exact.

## What is lost

Nothing is drafted where nothing repeats.

## Source

Prompt lookup decoding (A. Saxena, 2023); LLMA (arXiv 2304.04487).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from quasar_lab.speculative.drafters.base import Draft
from quasar_lab.speculative.drafters.registry import register
from quasar_lab.support.errors import InputError
from quasar_lab.support.numbers import whole

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 3
"""The longest suffix that is looked up, where none is given."""

LONGEST_ACCEPTED = 16


@register
class NgramDrafter:
    """Looks up suffixes of `longest`, then fewer tokens down to 1."""

    name = "ngram"
    syntax = "ngram[:longest]"
    summary = "Copies what followed the same words earlier, in the prompt or the answer."
    needs_hidden = False

    def __init__(self, longest: int = LONGEST):
        self.longest = whole(longest, "the n-gram length", f"1…{LONGEST_ACCEPTED}", 1, LONGEST_ACCEPTED)
        self.name = type(self).name if self.longest == LONGEST else f"{type(self).name}:{self.longest}"
        self.reset([])

    @classmethod
    def from_option(cls, option: str | None) -> Self:
        if option is None:
            return cls()
        if not (option.isascii() and option.isdecimal()):
            raise ValueError(f"{option!r} is no whole number")
        return cls(int(option))

    def reset(self, ids: Sequence[int]) -> None:
        self._ids: list[int] = []  # prompt and text
        self._prompt = len(ids)  # how many of them are the prompt's
        self._follows: dict[tuple[int, ...], int] = {}  # n-gram → the place behind its latest occurrence
        self._journal: list[list[tuple[tuple[int, ...], int | None]]] = []  # per token the entries that it overwrote
        self.commit(ids, None)

    def commit(self, ids: Sequence[int], hidden: "Tensor | None") -> None:
        for token in ids:
            place = len(self._ids)
            overwritten = []
            for n in range(1, min(self.longest, place) + 1):
                gram = tuple(self._ids[place - n :])
                overwritten.append((gram, self._follows.get(gram)))
                self._follows[gram] = place
            self._journal.append(overwritten)
            self._ids.append(token)

    def rollback(self, length: int) -> None:
        if not 0 <= length <= len(self._ids):
            raise InputError(f"cannot roll back to {length}; accepted: 0…{len(self._ids)}")
        while len(self._ids) > length:
            self._ids.pop()
            for gram, before in reversed(self._journal.pop()):
                if before is None:
                    del self._follows[gram]
                else:
                    self._follows[gram] = before

    def propose(self, budget: int, hidden: "Tensor | None") -> Draft:
        if budget < 1:
            return Draft([])
        for n in range(min(self.longest, len(self._ids)), 0, -1):
            start = self._follows.get(tuple(self._ids[-n:]))
            if start is not None:
                ids = self._ids[start : start + budget]
                region = "prompt" if start < self._prompt else "output"
                source = {"type": "ngram", "start": start, "length": len(ids), "region": region, "matched": n}
                return Draft(ids, source=source)
        return Draft([])
