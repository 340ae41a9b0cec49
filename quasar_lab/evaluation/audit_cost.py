"""What BF16's own text costs: the speed of an audited run by how long tokens wait for an audit.

An audit of L tokens is one wide BF16 pass. Short ones pay for that pass often; long ones throw more away when a token
is refused, and are wider. Where the best L lies depends on the share f of tokens that BF16 refuses and on what passes
cost here, so both are measured, in one run, and the speed they *predict* stands beside the speed that runs *have*:

    time of a token = (L′ · time of a pending token + T_BF16(L′ + 1)) / (1 + Σ_{i ≤ L′} (1 − f)^i)

with L′ = L and what rounds add beyond it on average; it is the rule by which an audited run adapts (`audit.Seen`).
Speeds are against BF16 with the same drafter on the same questions: what the audited run replaces, as its text is the
same. What the prediction leaves out: drafting, sampling, and the last audit of a text, which is shorter than L.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from quasar_lab.evaluation import pass_time
from quasar_lab.models.decoder import Decoder
from quasar_lab.speculative.audit import LONGEST, Audited, Auditor, audited
from quasar_lab.speculative.generation import Prompt, generate
from quasar_lab.speculative.trace import Trace
from quasar_lab.support.errors import InputError
from quasar_lab.support.progress import track

AUDIT_WIDTHS = (8, 12, 16, 24, 32, 48)
CONTEXT = 256
RESAMPLES = 1000


def predict(pair: Audited, base: Sequence[Trace], runs: Sequence[Trace]) -> dict[str, Any]:
    """Speedup of `pair` over its exact verifier by audit length, from the shape of rounds in runs of both.

    base: runs of the exact verifier, with the drafter of `runs`, which are audited. Gives flip_rate, judged, refused;
    predicted: [{length, speedup, speedup_without_flips}]; chosen: the length that an audited run would choose after all
    of this. Raises InputError on no runs.
    """
    tokens = sum(len(record.emitted_ids) for trace in base for record in trace.rounds)
    if not tokens or not any(trace.audits for trace in runs):
        raise InputError("there is no audited run, or none of the auditor alone; accepted: runs of both with rounds")
    costs = pair.costs(pair.exact)
    alone = sum(costs[len(record.draft_ids) + 1] for trace in base for record in trace.rounds) / tokens
    auditor = Auditor(pair)
    for trace in runs:
        _replay(auditor, trace)
    seen, both = auditor.seen, (pair.costs(pair.fast), costs)
    return {
        "judged": seen.judged,
        "refused": seen.refused,
        "flip_rate": auditor.flip_rate,
        "predicted": [
            {
                "length": length,
                "speedup": alone / seen.time_per_token(*both, length, seen.refusal),
                "speedup_without_flips": alone / seen.time_per_token(*both, length, 0.0),
            }
            for length in range(1, LONGEST + 1)
        ],
        "chosen": auditor.length,
    }


def _replay(auditor: Auditor, trace: Trace) -> None:
    """Shows a run to an auditor, step by step."""
    for record in trace.steps():
        if record.kind == "round":
            auditor.wait(record.emitted_ids, None, len(record.draft_ids) + 1)  # type: ignore[union-attr]
        else:
            auditor.settle(record.accepted)


def measure(
    base: Decoder,
    fast: Decoder,
    prompts: Sequence[Prompt],
    lengths: Sequence[int] = (2, 8, 24),
    *,
    drafter: str = "ngram",
    gamma: int = 4,
    max_new_tokens: int = 64,
    samples: int = 8,
) -> dict[str, Any]:
    """Answers `prompts` greedily by `base`, and by `fast` audited by it at each of `lengths` and adapting, in turn.

    What `predict` gives, from pass times taken here (`samples` of each width), and measured: per length (None: adapts)
    {length, speedup, low, high (95 % bootstrap over prompts), audit_length, identical: answers equal to those of
    `base`}. Raises InputError on no prompts or lengths outside what `audited` accepts.
    """
    if not prompts:
        raise InputError("there are no prompts; accepted: one or more")
    rounds = range(1, gamma + 2)
    widths = sorted({*rounds, *(width for width in AUDIT_WIDTHS if width > gamma + 1)})
    room = min(base.context, fast.context) - max(widths)
    steps = pass_time.step([base, fast], widths, context=max(1, min(CONTEXT, room)), samples=samples)
    curves = _curves(steps["steps"])
    arms: dict[int | None, Decoder | Audited] = {0: base}
    arms.update((length, audited(fast, base, length, curves)) for length in (*lengths, None))
    runs: dict[int | None, list[Trace]] = {length: [] for length in arms}
    options: dict[str, Any] = {"drafter": drafter, "gamma": gamma, "max_new_tokens": max_new_tokens}
    for place, prompt in enumerate(track(prompts, len(prompts), "Answering with audits")):
        turn = [*arms][place % len(arms) :] + [*arms][: place % len(arms)]
        for length in turn:
            runs[length].append(generate(arms[length], prompt, **options))
    alone = runs.pop(0)
    pair = audited(fast, base, None, curves)
    return {
        **predict(pair, alone, [trace for traces in runs.values() for trace in traces]),
        "measured": [_measured(length, alone, traces) for length, traces in runs.items()],
        "prompts": len(prompts),
        **options,
        "step_ms": curves,
        "verifier": pair.name,
        "base": base.name,
        **{key: steps[key] for key in ("model", "device", "backend", "threads", "date", "cpu", "versions")},
    }


def _curves(steps: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = {}
    for step in steps:
        curves.setdefault(step["verifier"], {})[step["width"]] = step["ms_p50"]
    return curves


def _measured(length: int | None, alone: Sequence[Trace], runs: Sequence[Trace]) -> dict[str, Any]:
    times = np.array([[_decoding(trace) for trace in group] for group in (alone, runs)])  # [2, prompts, (s, tokens)]
    chosen = np.random.default_rng(0).integers(len(runs), size=(RESAMPLES, len(runs)))
    seconds, tokens = np.moveaxis(times[:, chosen].sum(axis=2), -1, 0)
    low, high = np.quantile(_ratio(seconds, tokens), [0.025, 0.975])
    audits = [audit.length for trace in runs for audit in trace.audits]
    return {
        "length": length,
        "speedup": float(_ratio(*np.moveaxis(times.sum(axis=1), -1, 0))),
        "low": float(low),
        "high": float(high),
        "audit_length": sum(audits) / len(audits) if audits else None,
        "identical": sum(mine.token_ids == theirs.token_ids for mine, theirs in zip(runs, alone, strict=True)),
    }


def _decoding(trace: Trace) -> tuple[float, int]:
    """Seconds behind the prefill, and the tokens they gave; an answer of one token counts as none in no time."""
    summary = trace.summary()
    return summary["seconds"]["total"] - summary["seconds"]["prefill"], summary["new_tokens"] - 1


def _ratio(seconds: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Time per token of the first over that of the second; where a side has no tokens, 1."""
    usable = (tokens > 0).all(axis=0)
    (alone, mine), (alone_tokens, my_tokens) = seconds, np.where(tokens > 0, tokens, 1)
    return np.where(usable, (alone / alone_tokens) / np.maximum(mine / my_tokens, 1e-12), 1.0)
