"""Prompt lookup: copy what followed the last time these words were written.

Answers repeat their questions: names, numbers, code, phrases. So the longest suffix (at most `longest` tokens) of what
has been written is looked up among its earlier occurrences, and the tokens that followed the *latest* one are the
draft. It costs no model at all.

Earlier occurrences are not searched for: an index maps every n-gram to the place behind its latest occurrence, and each
new token adds `longest` entries, so a draft costs the same at 1 000 and at 16 000 tokens of context. A journal of
overwritten entries makes rollback exact.

What is lost: nothing is drafted where nothing repeats. Idea: prompt lookup decoding (A. Saxena, 2023); LLMA (arXiv
2304.04487).
"""

from collections.abc import Sequence

from torch import Tensor

from quasar_lab.speculative.drafters.base import Draft
from quasar_lab.support.errors import InputError


class NgramDrafter:
    """Looks up suffixes of `longest`, then fewer tokens down to 1."""

    needs_hidden = False

    def __init__(self, longest: int = 3):
        if not 1 <= longest <= 16:
            raise InputError(f"n-gram length {longest} is not usable; accepted: 1…16")
        self.longest = longest
        self.name = "ngram" if longest == 3 else f"ngram:{longest}"
        self.reset([])

    def reset(self, ids: Sequence[int]) -> None:
        self._ids: list[int] = []
        self._prompt = len(ids)
        self._follows: dict[tuple[int, ...], int] = {}
        self._journal: list[list[tuple[tuple[int, ...], int | None]]] = []
        self.commit(ids, None)

    def commit(self, ids: Sequence[int], hidden: Tensor | None) -> None:
        for token in ids:
            place, overwritten = len(self._ids), []
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

    def propose(self, budget: int, hidden: Tensor | None) -> Draft:
        if budget < 1:
            return Draft([])
        for n in range(min(self.longest, len(self._ids)), 0, -1):
            start = self._follows.get(tuple(self._ids[-n:]))
            if start is not None:
                ids = self._ids[start : start + budget]
                region = "prompt" if start < self._prompt else "output"
                return Draft(
                    ids, source={"type": "ngram", "start": start, "length": len(ids), "region": region, "matched": n}
                )
        return Draft([])
