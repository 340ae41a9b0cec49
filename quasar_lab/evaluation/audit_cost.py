"""What BF16's own text costs: the speed of an audited run, by how long tokens wait for an audit.

## Idea

An audit of L tokens is one wide BF16 pass. Short audits pay for that pass often. Long audits are wider, and throw more
tokens away when one is refused. Where the best L lies depends on the share f of tokens that BF16 refuses, and on what
passes cost on this machine. Both are measured in one run, and give the *predicted* speed:

    time of a token = (L′ · time of a pending token + T_BF16(L′ + 1)) / (1 + Σ_{i ≤ L′} (1 − f)^i)

L′ is L and what rounds add beyond it on average. An audited run adapts by the same rule (`audit.Seen`). Beside the
prediction stands the speed that timed runs have.

## Choice

Speeds are against BF16 with the same drafter on the same questions. That is what the audited run replaces, since its
text is the same.

## What is lost

The prediction leaves out drafting, sampling, and the last audit of a text, which is shorter than L.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quasar_lab.evaluation.bootstrap import interval, resampled_speedups, speedup
from quasar_lab.evaluation.origin import Origin
from quasar_lab.evaluation.pass_time import step
from quasar_lab.models.decoder import Decoder
from quasar_lab.speculative.audit import LONGEST, Audited, Auditor, audited
from quasar_lab.speculative.config import GREEDY, GenerationConfig
from quasar_lab.speculative.drafters.registry import DEFAULT
from quasar_lab.speculative.generation import Prompt, generate
from quasar_lab.speculative.trace import Round, Trace
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import InputError
from quasar_lab.support.progress import track
from quasar_lab.support.result import Result, flat

AUDIT_WIDTHS = (8, 12, 16, 24, 32, 48)
"""Widths that passes are timed at beside those of rounds."""

CONTEXT = 256
"""Tokens in the cache of the passes that are timed."""

RESAMPLES = 1000


@dataclass(frozen=True)
class PredictedLength(Result):
    """What pass times say of one audit length."""

    length: int
    speedup: float
    """Over the auditor alone, at the share of refusals that was seen."""
    speedup_without_flips: float
    """The same, if no token were ever refused."""


@dataclass(frozen=True)
class AuditForecast(Result):
    """The predicted speedup by audit length, and what it was predicted from."""

    judged: int
    """Tokens that audits have looked at."""
    refused: int
    """Those of them that were refused."""
    flip_rate: float | None
    """The share that was refused; None where none was looked at."""
    predicted: list[PredictedLength]
    chosen: int
    """The length that an audited run would choose after all that was seen."""


@dataclass(frozen=True)
class MeasuredLength(Result):
    """What timed runs say of one audit length."""

    length: int | None
    """None: the length adapts."""
    speedup: float
    """Over the auditor alone."""
    low: float
    """Lower end of the 95 % interval over questions."""
    high: float
    """Upper end of the 95 % interval over questions."""
    audit_length: float | None
    """Tokens per audit; None where there was none."""
    identical: int
    """Answers equal to those of the auditor alone."""


@dataclass(frozen=True)
class AuditCost(Result):
    """What audits cost, predicted and measured, and what it was measured with."""

    measured: list[MeasuredLength]
    prompts: int
    """Prompts that every arm answered."""
    drafter: str
    gamma: int
    max_new_tokens: int
    step_ms: dict[str, dict[int, float]]
    """Verifier → width → milliseconds of a pass, the median."""
    verifier: str
    """The audited pair."""
    base: str
    """The auditor, which speeds are against."""
    forecast: AuditForecast = flat()
    origin: Origin = flat()

    @property
    def adapting(self) -> MeasuredLength:
        """The runs whose audit length adapts."""
        return next(row for row in self.measured if row.length is None)

    @property
    def identical(self) -> int:
        """Audited answers equal to those of the auditor alone, over all lengths."""
        return sum(row.identical for row in self.measured)

    @property
    def answers(self) -> int:
        """Audited answers, over all lengths."""
        return self.prompts * len(self.measured)


def predict(pair: Audited, base: Sequence[Trace], runs: Sequence[Trace]) -> AuditForecast:
    """Speedup of `pair` over its exact verifier by audit length, from the shape of rounds in runs of both.

    base: runs of the exact verifier, with the drafter of `runs`, which are audited. Raises InputError on no runs.
    """
    rounds = [record for trace in base for record in trace.rounds]
    tokens = sum(len(record.emitted_ids) for record in rounds)
    if not tokens or not any(trace.audits for trace in runs):
        raise InputError("there is no audited run, or none of the auditor alone; accepted: runs of both with rounds")
    fast_costs, exact_costs = pair.costs(pair.fast), pair.costs(pair.exact)
    alone = sum(exact_costs[len(record.draft_ids) + 1] for record in rounds) / tokens
    auditor = Auditor(pair)
    for trace in runs:
        _replay(auditor, trace)
    seen = auditor.seen

    def speedup_at(length: int, refusal: float) -> float:
        return alone / seen.time_per_token(fast_costs, exact_costs, length, refusal)

    return AuditForecast(
        judged=seen.judged,
        refused=seen.refused,
        flip_rate=auditor.flip_rate,
        predicted=[
            PredictedLength(length, speedup_at(length, seen.refusal), speedup_at(length, 0.0))
            for length in range(1, LONGEST + 1)
        ],
        chosen=auditor.length,
    )


def _replay(auditor: Auditor, trace: Trace) -> None:
    """Shows a run to an auditor, step by step."""
    for record in trace.steps():
        if isinstance(record, Round):
            auditor.wait(record.emitted_ids, None, len(record.draft_ids) + 1)
        else:
            auditor.settle(record.accepted)


def measure_audit_cost(
    base: Decoder,
    fast: Decoder,
    prompts: Sequence[Prompt],
    lengths: Sequence[int] = (2, 8, 24),
    *,
    drafter: str = DEFAULT,
    gamma: int = GenerationConfig.gamma,
    max_new_tokens: int = 64,
    samples: int = 8,
) -> AuditCost:
    """Answers `prompts` greedily by `base`, and by `fast` audited by it at each of `lengths` and adapting, in turn.

    The prediction is from pass times taken here, `samples` of each width. Raises InputError on no prompts or lengths
    outside what `audited` accepts.
    """
    if not prompts:
        raise InputError("there are no prompts; accepted: one or more")
    step_ms, origin = _pass_times(base, fast, gamma, samples)
    pairs = {length: audited(fast, base, length, step_ms) for length in (*lengths, None)}
    arms: list[Verifier] = [base, *pairs.values()]
    alone, *runs = _answers_in_turn(arms, prompts, drafter=drafter, gamma=gamma, max_new_tokens=max_new_tokens)
    adapting = pairs[None]
    return AuditCost(
        forecast=predict(adapting, alone, [trace for traces in runs for trace in traces]),
        measured=[_measured(length, alone, traces) for length, traces in zip(pairs, runs, strict=True)],
        prompts=len(prompts),
        drafter=drafter,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        step_ms=step_ms,
        verifier=adapting.name,
        base=base.name,
        origin=origin,
    )


def _pass_times(base: Decoder, fast: Decoder, gamma: int, samples: int) -> tuple[dict[str, dict[int, float]], Origin]:
    """Medians of the pass times of both, at the widths of rounds and of audits, and where they come from."""
    rounds = range(1, gamma + 2)
    widths = sorted({*rounds, *(width for width in AUDIT_WIDTHS if width > gamma + 1)})
    room = min(base.context, fast.context) - max(widths)
    result = step([base, fast], widths, context=max(1, min(CONTEXT, room)), samples=samples)
    return result.curves(), result.origin


def _answers_in_turn(
    arms: Sequence[Verifier], prompts: Sequence[Prompt], drafter: str, gamma: int, max_new_tokens: int
) -> list[list[Trace]]:
    """The runs of every arm. Each prompt is answered by all arms before the next one, in an order that rotates."""
    runs: list[list[Trace]] = [[] for _ in arms]
    for place, prompt in enumerate(track(prompts, len(prompts), "Answering with audits")):
        for turn in range(len(arms)):
            chosen = (place + turn) % len(arms)
            options = {**GREEDY, "gamma": gamma, "max_new_tokens": max_new_tokens}
            trace = generate(arms[chosen], prompt, drafter=drafter, **options)
            runs[chosen].append(trace)
    return runs


def _measured(length: int | None, alone: Sequence[Trace], runs: Sequence[Trace]) -> MeasuredLength:
    """The speed of audited runs over that of the auditor's, prompt by prompt."""
    base, own = _decoding(alone), _decoding(runs)
    low, high = interval(resampled_speedups(base, own, np.random.default_rng(0), RESAMPLES))
    audits = [audit.length for trace in runs for audit in trace.audits]
    return MeasuredLength(
        length=length,
        speedup=float(speedup(base.sum(axis=0), own.sum(axis=0))),
        low=low,
        high=high,
        audit_length=sum(audits) / len(audits) if audits else None,
        identical=sum(mine.token_ids == theirs.token_ids for mine, theirs in zip(runs, alone, strict=True)),
    )


def _decoding(traces: Sequence[Trace]) -> np.ndarray:
    """Seconds behind the prefill and the tokens they gave, f64 [traces, 2]; an answer of one token counts as none in no
    time."""
    summaries = [trace.summary() for trace in traces]
    return np.array(
        [
            [summary["seconds"]["total"] - summary["seconds"]["prefill"], summary["new_tokens"] - 1.0]
            for summary in summaries
        ]
    )
