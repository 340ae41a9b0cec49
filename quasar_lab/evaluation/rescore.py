"""A saved trace, judged again by another verifier on the same drafts.

## Idea

The second verifier reads the prompt and then, round by round, exactly the tokens that were read in the run. Context and
drafts are the same, so a *flip*, a draft that one verifier keeps and the other refuses, is a difference between two
verifiers and nothing else.

## Choice

Each draft is judged by its own row, also behind a refused one. At temperature above 0 the saved draw u is used again.
Drafts for which nothing was drawn have no decision to compare with (null).

In an audited run the fast verifier's rounds are judged again. Audits only say which tokens the next round stands on.
"""

from dataclasses import dataclass, replace

import torch

from quasar_lab.models.cuda_graphs import TOP
from quasar_lab.speculative.rejection import keeps, keeps_greedily
from quasar_lab.speculative.sampling import Sampling, penalised, target
from quasar_lab.speculative.token_states import TokenState
from quasar_lab.speculative.trace import Audit, Likeliest, Round, Trace
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.speculative.written_text import pieces_of
from quasar_lab.support.errors import TraceError
from quasar_lab.support.result import Result


@dataclass(frozen=True)
class Rescored(Result):
    """What another verifier says of a round's drafts: the trace key `other`."""

    verifier: str
    top: list[Likeliest]  # per row its likeliest tokens
    margin: list[float]  # per row its first logit less the second
    decision: list[bool | None]  # per draft: would it keep it; None where nothing was drawn
    flip: list[bool | None]  # per draft: does that differ from what the run's verifier says


def rescore(trace: Trace, verifier: Verifier) -> Trace:
    """A copy of `trace` whose rounds carry `other`: {verifier, top, margin, decision, flip} as `verifier` sees the same
    drafts.

    Raises TraceError when the trace has no prefill record, is of another model or other weights, or holds trees.
    """
    if trace.prefill is None:
        raise TraceError("this trace has no prefill record; accepted: a trace of a run that got past its prompt")
    _check_weights(trace, verifier)
    drafted = max((len(record.draft_ids) for record in trace.rounds), default=0)
    waited = max((audit.length for audit in trace.audits), default=0)
    cache = verifier.new_cache(len(trace.prompt_ids) + len(trace.token_ids) + waited + drafted + 1)
    verifier.forward(trace.prompt_ids, cache, logits="last")
    last = trace.prefill.emitted_ids[-1]
    text = [*trace.prompt_ids, last]
    rounds = []
    for record in trace.steps():
        if isinstance(record, Audit):
            if len(record.emitted_ids) == record.accepted:
                break  # the text ended here
            if not record.refused:
                verifier.forward([last], cache, logits="last")
            verifier.rollback(cache, record.position + record.accepted)
            text[record.position :] = record.emitted_ids
            last = record.emitted_ids[-1]
            continue
        if record.parents is not None:
            raise TraceError("this trace holds tree drafts; accepted: chains")
        base = cache.length
        logits = verifier.forward([last, *record.draft_ids], cache).logits
        if trace.sampling.repetition_penalty != 1:
            logits = penalised(logits, trace.sampling.repetition_penalty, text, record.draft_ids)
        other = _judge_again(record, logits, verifier, trace.sampling)
        rounds.append(replace(record, other=other.to_json()))
        verifier.rollback(cache, base + 1 + min(record.accepted, len(record.emitted_ids) - 1))
        text[record.position :] = record.emitted_ids
        last = record.emitted_ids[-1]
    return replace(trace, rounds=rounds)


def _check_weights(trace: Trace, verifier: Verifier) -> None:
    theirs, ours = ((made["model"], made["checksum"]) for made in (trace.header, verifier.identity))
    if theirs != ours:
        told = " and ".join(f"{model!r} (checksum {checksum[:12]!r})" for model, checksum in (theirs, ours))
        raise TraceError(f"trace and verifier are of {told}; accepted: the same model with the same weights")


@dataclass(frozen=True)
class Differences:
    """What a second verifier would do otherwise."""

    judged: int  # drafts that were decided on
    flips: int  # of these, the ones that it decides otherwise
    written: int  # the verifier's own tokens behind the drafts; 0 above temperature 0, where the second draws none
    differing: int  # of these, the ones in whose place it would write another; the place of a flip does not count again


def differences(trace: Trace) -> Differences:
    """Counts what `rescore` found, as the token strip marks it. Raises TraceError on a trace that was not rescored."""
    judged = flips = written = differing = 0
    for record in trace.rounds:
        if record.other is None:
            raise TraceError("this trace was judged by one verifier only; accepted: what replay.rescore returns")
        decided = record.other["flip"][: record.accepted + 1]
        judged += len(decided)
        flips += sum(map(bool, decided))
        if trace.sampling.greedy and len(record.emitted_ids) > record.accepted:
            written += 1
            flipped = len(decided) > record.accepted and decided[record.accepted]
            likeliest = record.other["top"][record.accepted][0][0]
            differing += not flipped and likeliest != record.emitted_ids[record.accepted]
    return Differences(judged=judged, flips=flips, written=written, differing=differing)


def _judge_again(record: Round, logits: torch.Tensor, verifier: Verifier, sampling: Sampling) -> Rescored:
    """What the rows of the second verifier's pass say of the drafts."""
    probs = target(logits, sampling)
    values, order = (part[:, :TOP] for part in logits.sort(dim=-1, descending=True, stable=True))
    likeliest = order.tolist()
    piece = pieces_of(verifier.tokenizer)
    top: list[Likeliest] = [
        [[token, piece(token), float(probs[row, token])] for token in ids] for row, ids in enumerate(likeliest)
    ]
    choices = logits.argmax(dim=-1).tolist()
    decision: list[bool | None] = []
    before: list[bool | None] = []
    for place, token in enumerate(record.draft_ids):
        u, q = record.u[place], record.q[place]
        if sampling.greedy:
            decision.append(keeps_greedily(token, choices[place]))
            before.append(_kept_greedily(record, place))
        elif u is None:
            decision.append(None)
            before.append(None)
        else:
            decision.append(bool(keeps(u, q, float(probs[place, token]))))
            before.append(bool(keeps(u, q, record.p[place])))
    return Rescored(
        verifier=verifier.name,
        top=top,
        margin=(values[:, 0] - values[:, min(1, values.shape[1] - 1)]).tolist(),
        decision=decision,
        flip=[None if now is None else now != then for now, then in zip(decision, before, strict=True)],
    )


def _kept_greedily(record: Round, place: int) -> bool:
    """Whether the greedy run kept this draft, or, behind a refused one, would have: there its likeliest token tells."""
    if place <= record.accepted:
        return record.states[place] == TokenState.ACCEPTED
    return keeps_greedily(record.draft_ids[place], int(record.top[place][0][0]))
