"""The accept rule: which drafts are kept, and which token follows them.

## Idea

A round drafts d₁ … dₙ, and one pass of the verifier gives the target distribution p in each place. The rule turns them
into text that plain decoding would have written:

1. Draft d, drawn from the drafter's distribution q, is *kept* with probability min(1, p(d) / q(d)). In code: with a
   uniform number u, keep it if u · q(d) < p(d). At temperature 0, keep it if it is the likeliest token.
2. Only a *prefix* counts: behind the first refused draft the context is wrong, so nothing there is looked at.
3. The first refused draft is replaced by a *corrected* token, drawn from the residual max(p − q, 0), normalised.
4. If all drafts are kept, one *bonus* token is drawn from the row behind them. Without a draft it is a *plain* token.

The text then has exactly the distribution p, whatever q is (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv
2302.01318). "Lossless" means: with respect to the verifier whose logits these are.

## Choice

A draft that was chosen without a draw (a copied n-gram, an arg-max) is the case q(d) = 1: it is kept with probability
p(d), and the residual is p without d.

Each step of the rule is one small function. `accept` puts them together for a pass on the CPU and stops at the first
refusal. `device_rejection` puts the same functions together for a pass on a GPU, where looking at a number is dear.
Audits judge their tokens by `accept`, too; replays and simulations use the single steps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

import torch
from torch import Generator, Tensor

from quasar_lab.speculative.drafters.base import Draft
from quasar_lab.speculative.sampling import Sampling, draw, uniform
from quasar_lab.speculative.token_states import TokenState
from quasar_lab.speculative.verified_rows import VerifiedRows

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class Acceptance:
    """What the rule decides about the drafts of a pass."""

    accepted: int  # drafts kept
    next_ids: list[int]  # the token behind them; empty where all were kept and the pass has no row behind the last
    next_states: list[TokenState]  # its state: corrected, bonus, or plain
    p: list[float]  # target probability of each draft
    q: list[float]  # probability with which each was drafted
    u: list[float | None]  # the number drawn for each; None where none was drawn


# --- the steps of the rule --------------------------------------------------------------------------------------------


def keeps(u: Number, q: Number, p: Number) -> "bool | Tensor":
    """Whether a draft is kept, one or many at once: u drawn in [0, 1), q and p its probabilities."""
    return u * q < p


def keeps_greedily(draft: int, likeliest: int) -> bool:
    """Whether a draft is kept at temperature 0."""
    return draft == likeliest


def kept_prefix(kept: "Iterable[bool | Tensor]") -> int:
    """How many drafts stand before the first refused one. Nothing behind that one is asked for."""
    return sum(1 for _ in takewhile(bool, kept))


def state_behind(accepted: int, drafted: int) -> TokenState:
    """What the verifier's own token is, behind so many kept drafts."""
    if drafted == 0:
        return TokenState.PLAIN
    return TokenState.BONUS if accepted == drafted else TokenState.CORRECTED


def remainder(p: Tensor, token: Tensor, q: Tensor | None) -> Tensor:
    """max(p − q, 0), not normalised, f32 [V]; q None: all of q is at `token`, i64 [1]."""
    return p.scatter(0, token, 0.0) if q is None else (p - q).clamp(min=0.0)


def residual(p: Tensor, token: int, q: Tensor | None) -> Tensor:
    """What a corrected token is drawn from: `remainder`, or p where rounding leaves nothing of it."""
    rest = remainder(p, torch.tensor([token]), q)
    return rest if float(rest.sum()) > 0 else p


# --- the rule on the CPU ----------------------------------------------------------------------------------------------


def accept(rows: VerifiedRows, draft: Draft, sampling: Sampling, generator: Generator) -> Acceptance:
    """Judges a chain of drafts on the rows of its pass: one row per draft, and one more unless the text ends behind the
    last draft."""
    count = len(draft.ids)
    p = [rows.probability(place, token) for place, token in enumerate(draft.ids)]
    q = [1.0] * count
    if draft.probs is not None:
        q = [float(draft.probs[place, token]) for place, token in enumerate(draft.ids)]
    u: list[float | None] = [None] * count

    def judged() -> Iterator[bool | Tensor]:
        for place, token in enumerate(draft.ids):
            if sampling.greedy:
                yield keeps_greedily(token, rows.best_ids[place][0])
            else:
                drawn = u[place] = float(uniform(1, generator))
                yield keeps(drawn, q[place], p[place])

    accepted = kept_prefix(judged())
    next_ids: list[int] = []
    next_states: list[TokenState] = []
    if accepted < len(rows.best_ids):
        next_ids = [_own_token(rows, draft, accepted, generator)]
        next_states = [state_behind(accepted, count)]
    return Acceptance(accepted=accepted, next_ids=next_ids, next_states=next_states, p=p, q=q, u=u)


def _own_token(rows: VerifiedRows, draft: Draft, accepted: int, generator: Generator) -> int:
    """The verifier's own token behind the drafts kept: the likeliest one, or one drawn from p or from the residual."""
    if rows.probs is None:
        return rows.best_ids[accepted][0]
    p = rows.probs[accepted]
    if accepted == len(draft.ids):
        return draw(p, generator)
    q = None if draft.probs is None else draft.probs[accepted]
    return draw(residual(p, draft.ids[accepted], q), generator)
