"""A saved trace, shown again or judged again by another verifier, on the same drafts.

The second verifier reads the prompt and then, round by round, exactly the tokens that were read in the run: the same
context, the same drafts. So a *flip*, a draft that one keeps and the other refuses, is a difference between two
verifiers and nothing else. Each draft is judged by its own row, also behind a refused one; at temperature above 0 the
saved draw u is used again, and drafts that were never drawn for have no judgement to compare with (null).

In an audited run what is judged again are the fast verifier's rounds; audits only say which tokens the next round
stands on.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from quasar_lab.speculative.generation import TOP
from quasar_lab.speculative.sampling import Sampling, target
from quasar_lab.speculative.trace import Audit, Round, Trace
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import TraceError


def rescore(trace: Trace, verifier: Verifier) -> Trace:
    """A copy of `trace` whose rounds carry `other`: {verifier, top, margin, decision, flip} as `verifier` sees the same
    drafts.

    Raises TraceError when the trace has no prefill record, is of another model or other weights, or holds trees.
    """
    if trace.prefill is None:
        raise TraceError("this trace has no prefill record; accepted: a trace of a run that got past its prompt")
    theirs, ours = ((made["model"], made["checksum"]) for made in (trace.header, verifier.identity))
    if theirs != ours:
        told = " and ".join(f"{model!r} (checksum {checksum[:12]!r})" for model, checksum in (theirs, ours))
        raise TraceError(f"trace and verifier are of {told}; accepted: the same model with the same weights")
    sampling = Sampling(**trace.header["sampling"])
    prompt = trace.header["prompt_ids"]
    drafted = max((len(record.draft_ids) for record in trace.rounds), default=0)
    waited = max((audit.length for audit in trace.audits), default=0)
    cache = verifier.new_cache(len(prompt) + len(trace.token_ids) + waited + drafted + 1)
    verifier.forward(prompt, cache, logits="last")
    last, rounds = trace.prefill.emitted_ids[-1], []
    for record in trace.steps():
        if isinstance(record, Audit):
            if len(record.emitted_ids) == record.accepted:
                break  # the text ended here
            if record.accepted == record.length:
                verifier.forward([last], cache, logits="last")
            verifier.rollback(cache, record.position + record.accepted)
            last = record.emitted_ids[-1]
            continue
        if record.parents is not None:
            raise TraceError("this trace holds tree drafts; accepted: chains")
        base = cache.length
        logits = verifier.forward([last, *record.draft_ids], cache).logits
        rounds.append(replace(record, other=_judgement(record, logits, verifier, sampling)))
        verifier.rollback(cache, base + 1 + min(record.accepted, len(record.emitted_ids) - 1))
        last = record.emitted_ids[-1]
    return replace(trace, rounds=rounds)


@dataclass(frozen=True)
class Differences:
    """What a second verifier would do otherwise. judged: drafts that were decided on, flips: those it decides
    otherwise; written: the verifier's own tokens behind them, differing: those in whose place it would write another.
    The last two are 0 at temperature above 0, where the second verifier draws no token, and a token in the place of a
    flipped draft is not counted again."""

    judged: int
    flips: int
    written: int
    differing: int


def differences(trace: Trace) -> Differences:
    """Counts what `rescore` found, as the token strip marks it. Raises TraceError on a trace that was not rescored."""
    if any(record.other is None for record in trace.rounds):
        raise TraceError("this trace was judged by one verifier only; accepted: what replay.rescore returns")
    greedy = trace.header["sampling"]["temperature"] == 0
    judged = flips = written = differing = 0
    for record in trace.rounds:
        assert record.other is not None
        decided = record.other["flip"][: record.accepted + 1]
        judged, flips = judged + len(decided), flips + sum(map(bool, decided))
        if greedy and len(record.emitted_ids) > record.accepted:
            written += 1
            flipped = len(decided) > record.accepted and decided[record.accepted]
            likeliest = record.other["top"][record.accepted][0][0]
            differing += not flipped and likeliest != record.emitted_ids[record.accepted]
    return Differences(judged, flips, written, differing)


def _judgement(record: Round, logits: torch.Tensor, verifier: Verifier, sampling: Sampling) -> dict[str, Any]:
    probs = target(logits, sampling)
    choices = logits.argmax(dim=-1).tolist()
    values, order = (part[:, :TOP] for part in logits.sort(dim=-1, descending=True, stable=True))
    tokenizer = verifier.tokenizer
    top = [
        [
            [token, f"<{token}>" if tokenizer is None else tokenizer.piece(token), float(probs[row, token])]
            for token in ids
        ]
        for row, ids in enumerate(order.tolist())
    ]
    decision: list[bool | None] = []
    flip: list[bool | None] = []
    for place, token in enumerate(record.draft_ids):
        u = record.u[place]
        if sampling.greedy:
            now, before = choices[place] == token, _kept(record, place)
        elif u is None:
            decision.append(None)
            flip.append(None)
            continue
        else:
            now = u * record.q[place] < float(probs[place, token])
            before = u * record.q[place] < record.p[place]
        decision.append(now)
        flip.append(now != before)
    margin = (values[:, 0] - values[:, min(1, values.shape[1] - 1)]).tolist()
    return {"verifier": verifier.name, "top": top, "margin": margin, "decision": decision, "flip": flip}


def _kept(record: Round, place: int) -> bool:
    """Whether the greedy run kept this draft, or, behind a refused one, would have: there its likeliest token tells."""
    if place <= record.accepted:
        return record.states[place] == "accepted"
    return record.top[place][0][0] == record.draft_ids[place]
