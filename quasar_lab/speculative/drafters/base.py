"""What every drafter offers: cheap guesses of the next tokens, and a memory that can be rolled back.

## Idea

A drafter never decides anything. The verifier keeps the guesses that are right by its own measure, so a bad drafter
costs time and never quality.

## Choice

A drafter must be honest about one thing, `Draft.probs`: the distribution that each token was *sampled* from. A token
that was chosen without a draw (a copied n-gram, an arg-max) has probability one, and `probs` is None. To claim a
softmax for it would bias the text. A drafter may stop after a drawn token, but it may never drop one that it has drawn,
because that choice would depend on the draw.

A new drafter is one file in this package with one class that `registry.register` decorates, and a test. Nothing else
has to be changed: error messages, `--help` and the notebooks read the registry. This module imports no torch, so that
`--help` can.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from quasar_lab.support.errors import InputError
from quasar_lab.support.numbers import whole_numbers
from quasar_lab.support.result import Json

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Draft:
    """Guesses of the next tokens."""

    ids: list[int]  # drafted tokens, possibly none
    parents: list[int] | None = None  # of a tree: the draft that each continues (−1: the last token); None: a chain
    probs: "Tensor | None" = None  # f32 [len(ids), vocab]: what each was sampled from; None: chosen without a draw
    source: Json | None = None  # where it came from, for display (trace key `source`)


def checked(draft: Draft, budget: int, vocab: int, drafter: str) -> Draft:
    """The draft, its ids as Python numbers. Raises InputError, naming the drafter, on one that cannot be used: more
    tokens than the `budget`, ids outside the vocabulary, or probabilities of another shape."""
    if not isinstance(draft, Draft):
        raise InputError(f"drafter {drafter} proposed {draft!r}; accepted: a Draft")
    ids = whole_numbers(draft.ids, f"a draft of {drafter}")
    if len(ids) > budget:
        raise InputError(f"drafter {drafter} proposed {len(ids)} tokens; accepted: at most {budget} here")
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        raise InputError(f"drafter {drafter} proposed the ids {ids}; accepted: 0…{vocab - 1}")
    if draft.probs is not None and tuple(draft.probs.shape) != (len(ids), vocab):
        shape = tuple(draft.probs.shape)
        raise InputError(f"drafter {drafter} gave probabilities of shape {shape}; accepted: {(len(ids), vocab)}")
    return replace(draft, ids=ids)


class Drafter(Protocol):
    """What the loop needs of a drafter."""

    name: str  # as commands and traces call it, with its option
    needs_hidden: bool  # whether propose and commit want the verifier's final hidden states

    def reset(self, ids: Sequence[int]) -> None:
        """Starts a sequence with the prompt."""

    def propose(self, budget: int, hidden: "Tensor | None") -> Draft:
        """At most `budget` tokens to follow what was committed; hidden f32 [1, hidden] of the last verified row."""

    def commit(self, ids: Sequence[int], hidden: "Tensor | None") -> None:
        """Appends verified tokens; hidden f32 [len(ids), hidden] of the rows that predicted them."""

    def rollback(self, length: int) -> None:
        """Forgets every committed token from `length` on (prompt included in the count)."""
