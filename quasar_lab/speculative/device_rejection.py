"""The accept rule for a pass whose logits lie on a device: one transfer reads everything.

## Idea

The host waits for the device whenever it reads a number, and each wait leaves the device idle for a round trip. The
rule on the CPU (`rejection.accept`) reads dozens of numbers. So everything that may be asked of a round is computed on
the device, put into one small tensor and read at once: the likeliest tokens of every row, the target probability of
every draft and, above temperature 0, the decision itself.

## Choice

At temperature 0 the likeliest tokens are read anyway, because every trace holds them. The drafts are then compared on
the host, and the decision costs no transfer. Above temperature 0 the device decides by the same steps of the rule, with
the numbers that the CPU would have drawn one by one. The generator is then moved on by as many as the decision used.

## What is lost

A few kernels more than a rule that stops at the first refused draft. On a GPU also the last bits of sums over the
vocabulary, so a text sampled there may differ from the CPU's where a draw falls on the edge.
"""

from dataclasses import dataclass
from math import exp
from typing import cast

import torch
from torch import Generator, Tensor

from quasar_lab.speculative.drafters.base import Draft
from quasar_lab.speculative.rejection import Acceptance, accept, keeps, remainder, state_behind
from quasar_lab.speculative.sampling import Sampling, inverse, target, uniform
from quasar_lab.speculative.verified_rows import VerifiedRows, softmax_of


@dataclass(frozen=True)
class FetchedRows(VerifiedRows):
    """Rows of a pass on a device, of which some numbers are on the host already."""

    drafted: dict[tuple[int, int], float]  # (row, draft) → its target probability

    def probability(self, row: int, token: int) -> float:
        """As in `VerifiedRows`; a token that was neither drafted nor likely costs a transfer of its own."""
        known = self.drafted.get((row, token))
        return super().probability(row, token) if known is None else known


@dataclass(frozen=True)
class DeviceDecision:
    """What the rule decides above temperature 0, still on the device. n drafts."""

    p: Tensor  # f32 [n]: target probability of each draft
    q: Tensor  # f32 [n]: probability with which each was drafted
    accepted: Tensor  # i64 [1]: drafts kept
    next_id: Tensor  # i64 [1]: the token behind them (of the last row, where the pass has none behind)

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """In the order in which `_fetch` reads them."""
        return self.p, self.q, self.accepted, self.next_id


def accept_on_device(
    logits: Tensor, top: Tensor, draft: Draft, sampling: Sampling, generator: Generator
) -> tuple[FetchedRows, Acceptance]:
    """`read_rows` and `accept` for logits f32 [M, V] on a device; top f64 [M, 2k + 1] as `cuda_graphs.Results.top`."""
    if sampling.greedy:
        ids, _ = _drafts_on(logits, draft, [])
        rows, _ = _fetch(logits, top, draft, None, ids)
        return rows, accept(rows, draft, sampling, generator)
    drafts = len(draft.ids)
    state = generator.get_state()
    drawn = uniform(drafts + 1, generator).tolist()
    ids, u = _drafts_on(logits, draft, drawn)
    probs = target(logits, sampling)
    q = None if draft.probs is None else draft.probs[:drafts].to(logits.device)
    rows, decided = _fetch(logits, top, draft, probs, ids, decide(probs, ids, q, u))
    return rows, _acceptance(decided, drawn, len(rows.best_ids), state, generator)


def decide(probs: Tensor, ids: Tensor, q: Tensor | None, u: Tensor) -> DeviceDecision:
    """The rule of `rejection.accept` above temperature 0, without looking at a number: target probabilities f32 [M, V],
    drafts i64 [n], their distributions q f32 [n, V] or None (one-hot), numbers drawn u f64 [n + 1]."""
    drafts = ids.shape[0]
    p = probs[:drafts].gather(1, ids[:, None])[:, 0]
    q_of_drafts = torch.ones_like(p) if q is None else q.gather(1, ids[:, None])[:, 0]
    kept = cast(Tensor, keeps(u[:drafts], q_of_drafts.double(), p.double())).long()
    accepted = kept.cumprod(0).sum(0, keepdim=True)  # the length of the prefix without a refusal
    row = probs.index_select(0, accepted.clamp(max=probs.shape[0] - 1))[0]
    if drafts:
        place = accepted.clamp(max=drafts - 1)
        q_row = None if q is None else q.index_select(0, place)[0]
        rest = remainder(row, ids.index_select(0, place), q_row)
        row = torch.where((accepted < drafts) & (rest.sum() > 0), rest, row)
    # The number behind those that judged drafts: one for each kept draft, and one for the refused one.
    drawn = u.index_select(0, accepted + (accepted < drafts))
    return DeviceDecision(p=p, q=q_of_drafts, accepted=accepted, next_id=inverse(row, drawn))


def _drafts_on(logits: Tensor, draft: Draft, u: list[float]) -> tuple[Tensor, Tensor]:
    """The drafts i64 [n] and the numbers drawn f64, sent to the device of `logits` in one transfer."""
    sent = _send([*draft.ids, *u], logits.device)
    return sent[: len(draft.ids)].long(), sent[len(draft.ids) :]


def _send(numbers: list[float], device: torch.device) -> Tensor:
    """f64 on the device; from pinned memory, so that the host does not wait."""
    if not numbers:
        return torch.empty(0, dtype=torch.float64, device=device)
    return torch.tensor(numbers, dtype=torch.float64, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _fetch(
    logits: Tensor,
    top: Tensor,
    draft: Draft,
    probs: Tensor | None,
    ids: Tensor,
    decision: DeviceDecision | None = None,
) -> tuple[FetchedRows, list[float]]:
    """Reads everything in one transfer → the rows, and what the device decided: p and q per draft, accepted, next."""
    rows = logits.shape[0]
    width = top.shape[1]
    best = width // 2
    drafts = len(draft.ids)
    if probs is None or decision is None:
        parts = [logits[:drafts].gather(1, ids[:, None])]
    else:
        parts = [probs.gather(1, top[:, :best].long()), *decision.parts()]
    read = torch.cat([top.flatten(), *(part.double().flatten() for part in parts)]).tolist()
    lines = [read[row * width : (row + 1) * width] for row in range(rows)]
    rest = read[rows * width :]
    best_logits = [line[best:-1] for line in lines]
    logsumexp = [line[-1] for line in lines]
    if probs is None:
        best_probs = softmax_of(best_logits, logsumexp)
        of_drafts = [exp(logit - total) for logit, total in zip(rest, logsumexp, strict=False)]
    else:
        best_probs = [rest[row * best : (row + 1) * best] for row in range(rows)]
        rest = rest[rows * best :]
        of_drafts = rest[:drafts]
    fetched = FetchedRows(
        logits=logits,
        best_ids=[[int(token) for token in line[:best]] for line in lines],
        best_logits=best_logits,
        best_probs=best_probs,
        logsumexp=logsumexp,
        probs=probs,
        drafted={(row, token): p for row, (token, p) in enumerate(zip(draft.ids, of_drafts, strict=True))},
    )
    return fetched, rest


def _acceptance(decided: list[float], u: list[float], rows: int, state: Tensor, generator: Generator) -> Acceptance:
    """What the device decided, as `rejection.accept` would say it, with `generator` where that would have left it.

    decided: p and q of each draft, drafts kept, the token behind them. u: the numbers drawn in advance, one more than
    drafts. state: the generator's before they were drawn.
    """
    drafts = len(u) - 1
    p = decided[:drafts]
    q = decided[drafts : 2 * drafts]
    accepted = int(decided[2 * drafts])
    refused = accepted < drafts
    ended = accepted == rows  # all were kept, and the pass has no row behind the last
    judged = accepted + refused
    generator.set_state(state)
    uniform(judged + (not ended), generator)
    return Acceptance(
        accepted=accepted,
        next_ids=[] if ended else [int(decided[2 * drafts + 1])],
        next_states=[] if ended else [state_behind(accepted, drafts)],
        p=p,
        q=q,
        u=[*u[:judged], *[None] * (drafts - judged)],
    )
