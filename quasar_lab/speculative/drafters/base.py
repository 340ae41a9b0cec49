"""What every drafter offers: cheap guesses of the next tokens, and a memory that can be rolled back.

A drafter never decides anything: the verifier keeps the guesses that are right by its own measure, so a bad drafter
costs time, never quality. It must be honest about one thing, `Draft.probs`: the distribution each token was *sampled*
from. A token chosen without a draw (a copied n-gram, an arg-max) has probability one and `probs` None; claiming a
softmax for it would bias the text. A drafter may stop after a drawn token, but never drop one it has drawn, since that
choice would depend on the draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Draft:
    """ids: drafted tokens, possibly none. parents: for a tree, the draft each continues (−1 the last token); None for a
    chain.

    probs: f32 [len(ids), vocab], the distribution each was sampled from; None: chosen deterministically (one-hot).
    source: where it came from, for display (trace key `source`).
    """

    ids: list[int]
    parents: list[int] | None = None
    probs: Tensor | None = None
    source: dict[str, Any] | None = None


class Drafter(Protocol):
    """`needs_hidden`: whether propose and commit want the verifier's final hidden states."""

    name: str
    needs_hidden: bool

    def reset(self, ids: Sequence[int]) -> None:
        """Starts a sequence with the prompt."""

    def propose(self, budget: int, hidden: Tensor | None) -> Draft:
        """At most `budget` tokens to follow what was committed; hidden f32 [1, hidden] of the last verified row."""

    def commit(self, ids: Sequence[int], hidden: Tensor | None) -> None:
        """Appends verified tokens; hidden f32 [len(ids), hidden] of the rows that predicted them."""

    def rollback(self, length: int) -> None:
        """Forgets every committed token from `length` on (prompt included in the count)."""


class NoDrafter:
    """Plain decoding: never drafts."""

    name = "none"
    needs_hidden = False

    def reset(self, ids: Sequence[int]) -> None:
        pass

    def propose(self, budget: int, hidden: Tensor | None) -> Draft:
        return Draft([])

    def commit(self, ids: Sequence[int], hidden: Tensor | None) -> None:
        pass

    def rollback(self, length: int) -> None:
        pass
