"""The verdict of a round whose logits lie on a device: one transfer reads it.

The host waits for the device whenever it reads a number, and every wait leaves the device idle for the time of a round
trip. Judging a round as `sampling.verify` does reads dozens. So here everything that may be asked of a round is put in
one small tensor, on the device and without waiting, and read at once: the likeliest tokens of every row, the target
probability of every draft, and above temperature 0 the verdict itself.

Greedy drafts are compared on the host after that: the likeliest ids are part of every trace, so the decision costs no
transfer. Sampled ones are judged on the device by the rule of `sampling`, with the numbers that its generator would
have drawn one by one; the generator is then moved on by as many as the verdict used.

What is lost: a few kernels more than a rule that stops at the first refused draft, and, on a GPU, the last bits of sums
over the vocabulary, so a text sampled there may differ from the CPU's at a draw that falls on the edge.
"""

from dataclasses import dataclass
from math import exp

import torch
from quasar_kernels import top_rows
from torch import Generator, Tensor

from quasar_lab.speculative.drafters.base import Draft
from quasar_lab.speculative.sampling import Sampling, draw, residual, target


@dataclass(frozen=True)
class Verdict:
    """accepted: drafts kept. next_ids, next_states: the token after them and its state (corrected, bonus, or plain when
    nothing was drafted); empty where all were kept and the pass had no row behind the last.

    p, q: target and draft probability per draft. u: the draw per draft, None where none was made.
    """

    accepted: int
    next_ids: list[int]
    next_states: list[str]
    p: list[float]
    q: list[float]
    u: list[float | None]


@dataclass(frozen=True)
class Rows:
    """What a verify pass says, row by row: row i follows i drafts.

    logits f32 [M, V]; best_ids and best_logits [M][k] of the k likeliest, descending; logsumexp [M]; probs f32 [M, V]
    is `target(logits)`, None at temperature 0, where nothing is drawn and no pass over the vocabulary is needed.

    Plain lists, since a round follows a pass that has swept the caches: every tensor operation here then costs tens of
    microseconds, and a handful of them would be a tenth of the step.
    """

    logits: Tensor
    best_ids: list[list[int]]
    best_logits: list[list[float]]
    logsumexp: list[float]
    probs: Tensor | None

    def probability(self, row: int, token: int) -> float:
        """Target probability of a token (at temperature 0 by the plain softmax)."""
        if self.probs is not None:
            return float(self.probs[row, token])
        known = self.best_ids[row]
        logit = self.best_logits[row][known.index(token)] if token in known else float(self.logits[row, token])
        return exp(logit - self.logsumexp[row])


def read_rows(logits: Tensor, sampling: Sampling, best: int) -> Rows:
    """Rows of logits f32 [M, V] with the `best` likeliest of each (equal ones by lowest id)."""
    values, ids, logsumexp = top_rows(logits, min(best, logits.shape[-1]))
    probs = None if sampling.greedy else target(logits, sampling)
    return Rows(logits, ids.tolist(), values.tolist(), logsumexp.tolist(), probs)


def verify(rows: Rows, draft: Draft, sampling: Sampling, generator: Generator) -> Verdict:
    """Judges a chain of drafts on the rows of its pass: one per draft, and one more unless the text ends behind the
    last draft."""
    count = len(draft.ids)
    p = [rows.probability(place, token) for place, token in enumerate(draft.ids)]
    q = [1.0] * count
    if draft.probs is not None:
        q = [float(draft.probs[place, token]) for place, token in enumerate(draft.ids)]
    u: list[float | None] = [None] * count
    accepted = 0
    probs = rows.probs
    if probs is None:
        while accepted < count and rows.best_ids[accepted][0] == draft.ids[accepted]:
            accepted += 1
    else:
        while accepted < count:
            drawn = float(torch.rand((), dtype=torch.float64, generator=generator))
            u[accepted] = drawn
            if not drawn * q[accepted] < p[accepted]:
                break
            accepted += 1
    if accepted == len(rows.best_ids):
        return Verdict(accepted, [], [], p, q, u)
    if probs is None:
        next_id = rows.best_ids[accepted][0]
    elif accepted < count:
        q_row = None if draft.probs is None else draft.probs[accepted]
        next_id = draw(residual(probs[accepted], draft.ids[accepted], q_row), generator)
    else:
        next_id = draw(probs[accepted], generator)
    state = "plain" if count == 0 else "bonus" if accepted == count else "corrected"
    return Verdict(accepted, [next_id], [state], p, q, u)


@dataclass(frozen=True)
class ReadRows(Rows):
    """known: (row, token) → what has been read of it, the logit at temperature 0, the target probability above."""

    known: dict[tuple[int, int], float]

    def probability(self, row: int, token: int) -> float:
        """As in `Rows`; for a token that was neither drafted nor likely a transfer of its own."""
        value = self.known.get((row, token))
        if value is None:
            return super().probability(row, token)
        return exp(value - self.logsumexp[row]) if self.probs is None else value


def judge(
    logits: Tensor, top: Tensor, draft: Draft, sampling: Sampling, generator: Generator
) -> tuple[ReadRows, Verdict]:
    """`sampling.read_rows` and `sampling.verify` for logits f32 [M, V] on a device; top f64 [M, 2k + 1] as
    `graphs.Results.top`."""
    count, drafts = top.shape[1] // 2, len(draft.ids)
    state = generator.get_state()
    draws = 0 if sampling.greedy else drafts + 1
    u = torch.rand(draws, dtype=torch.float64, generator=generator).tolist()
    sent = _send([*draft.ids, *u], logits.device)
    ids = sent[:drafts].long()
    if sampling.greedy:
        probs, parts = None, [logits[:drafts].gather(1, ids[:, None])]
    else:
        probs = target(logits, sampling)
        q = None if draft.probs is None else draft.probs[:drafts].to(logits.device)
        parts = [probs.gather(1, top[:, :count].long()), *decide(probs, ids, q, sent[drafts:])]
    read = torch.cat([top.flatten(), *(part.double().flatten() for part in parts)]).tolist()

    rows, width = logits.shape[0], top.shape[1]
    lines, rest = [read[row * width : (row + 1) * width] for row in range(rows)], read[rows * width :]
    best_ids = [[int(token) for token in line[:count]] for line in lines]
    best_logits, logsumexp = [line[count:-1] for line in lines], [line[-1] for line in lines]
    if probs is None:
        of_best, of_drafts = best_logits, rest
    else:
        of_best = [rest[row * count : (row + 1) * count] for row in range(rows)]
        rest = rest[rows * count :]
        of_drafts = rest[:drafts]
    known = {(row, t): value for row in range(rows) for t, value in zip(best_ids[row], of_best[row], strict=True)}
    known |= {(row, token): value for row, (token, value) in enumerate(zip(draft.ids, of_drafts, strict=True))}
    found = ReadRows(logits, best_ids, best_logits, logsumexp, probs, known)
    if probs is None:
        return found, verify(found, draft, sampling, generator)

    accepted, next_id, q_read = int(rest[2 * drafts]), int(rest[2 * drafts + 1]), rest[drafts : 2 * drafts]
    refused, ended = accepted < drafts, accepted == rows
    generator.set_state(state)
    torch.rand(accepted + refused + (not ended), dtype=torch.float64, generator=generator)
    judged = accepted + refused
    state_word = "plain" if drafts == 0 else "corrected" if refused else "bonus"
    draws_used: list[float | None] = [*u[:judged], *[None] * (drafts - judged)]
    next_ids, states = ([], []) if ended else ([next_id], [state_word])
    return found, Verdict(accepted, next_ids, states, of_drafts, q_read, draws_used)


def decide(probs: Tensor, ids: Tensor, q: Tensor | None, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rule of `sampling.verify` above temperature 0, without looking: target probabilities f32 [M, V], drafts i64
    [n], their distributions q f32 [n, V] or None (one-hot), draws u f64 [n + 1] → p f32 [n], q f32 [n] of the drafts,
    how many are kept i64 [1], the token behind them i64 [1] (of the last row where the pass has none behind)."""
    drafts = ids.shape[0]
    p = probs[:drafts].gather(1, ids[:, None])[:, 0]
    of_drafts = torch.ones_like(p) if q is None else q.gather(1, ids[:, None])[:, 0]
    kept = (u[:drafts] * of_drafts.double() < p.double()).long()
    accepted = kept.cumprod(0).sum(0, keepdim=True)
    row = probs.index_select(0, accepted.clamp(max=probs.shape[0] - 1))[0]
    if drafts:
        place = accepted.clamp(max=drafts - 1)
        if q is None:
            rest = row.scatter(0, ids.index_select(0, place), 0.0)
        else:
            rest = (row - q.index_select(0, place)[0]).clamp(min=0.0)
        row = torch.where((accepted < drafts) & (rest.sum() > 0), rest, row)
    cumulative = row.double().cumsum(0)
    last = torch.searchsorted(cumulative, cumulative[-1:])
    drawn = u.index_select(0, accepted + (accepted < drafts))
    token = torch.searchsorted(cumulative, drawn * cumulative[-1:], right=True)
    # NaN would be searched for in vain; the caller sees it in the logits, and the token stays one.
    return p, of_drafts, accepted, torch.minimum(token, last).clamp(max=row.shape[0] - 1)


def _send(numbers: list[float], device: torch.device) -> Tensor:
    """f64 on the device; from pinned memory, so that the host does not wait."""
    if not numbers:
        return torch.empty(0, dtype=torch.float64, device=device)
    return torch.tensor(numbers, dtype=torch.float64, pin_memory=device.type == "cuda").to(device, non_blocking=True)
