"""What a run found, as sentences: `ql.findings`.

## Idea

The prose of a notebook is written once, and its figures are drawn anew with every run, model and machine. So prose says
what to look at, and what must be so whatever runs. What *this* run found is said by these functions, which read the
result that the figure beside them draws.

## Choice

A sentence gives the numbers and names what they are of. It does not judge them: "37 % were refused" is true of every
run in which it is printed, "few were refused" is not.

## What is lost

Nuance. A sentence is the same for every run but for its numbers and names.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from quasar_lab.evaluation.audit_cost import AuditCost
from quasar_lab.evaluation.decode_speed import DecodeResult
from quasar_lab.evaluation.draft_simulation import CategoryAcceptance
from quasar_lab.evaluation.fidelity import Fidelity
from quasar_lab.evaluation.outliers import outlier_map
from quasar_lab.evaluation.pass_time import StepResult
from quasar_lab.evaluation.recipe_frontier import FrontierRow
from quasar_lab.evaluation.round_times import round_times
from quasar_lab.models.decoder import Decoder
from quasar_lab.speculative.trace import Trace
from quasar_lab.support.readable import readable


class Finding(str):
    """Sentences that a cell shows as text; a list of them, one a line, begins with "- "."""

    def _repr_markdown_(self) -> str:
        return f"**This run:** {self}" if not self.startswith("- ") else f"**This run:**\n\n{self}"


def _lines(sentences: Sequence[str]) -> Finding:
    return Finding("\n".join(f"- {sentence}" for sentence in sentences) if len(sentences) > 1 else sentences[0])


def drafting(**runs: Trace) -> Finding:
    """What became of the drafts of each run; the name of a run is its text, with _ for spaces."""
    return _lines([f"{name.replace('_', ' ')}: {_drafts(trace)}" for name, trace in runs.items()])


def _drafts(trace: Trace) -> str:
    drafted = [record for record in trace.rounds if record.draft_ids]
    tokens, kept = sum(len(record.draft_ids) for record in drafted), sum(record.accepted for record in drafted)
    whole = sum(record.accepted == len(record.draft_ids) for record in drafted)
    rounds = f"{len(trace.rounds)} rounds, of which {len(drafted)} drafted something and {whole} kept the whole draft"
    tau = "" if trace.tau is None else f"; τ = {trace.tau:.2f}"
    return f"{rounds}; {kept} of {tokens} drafted tokens kept{_share(kept, tokens)}{tau}."


def _share(part: int, whole: int) -> str:
    return f" ({100 * part / whole:.0f} %)" if whole else ""


def audits(trace: Trace) -> Finding:
    """How many tokens the audits of a run looked at, and what they took back."""
    looked_at = sum(audit.length for audit in trace.audits)
    refused = [audit for audit in trace.audits if audit.refused]
    back = sum(audit.length - audit.accepted for audit in refused)
    own = ", ".join(f"“{audit.emitted_pieces[-1]}”" for audit in refused)
    wrote = f" In their place the auditor wrote {own}." if own else ""
    many = "audit" if len(trace.audits) == 1 else "audits"
    return Finding(
        f"{len(trace.audits)} {many} looked at {looked_at} tokens; {len(refused)} refused one, and {back} tokens were "
        f"taken back.{wrote}"
    )


def first_difference(expected: Trace, got: Trace) -> Finding:
    """Where the text of one run leaves that of another."""
    pairs = zip(expected.token_ids, got.token_ids, strict=False)
    same = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
    if same is None:
        return Finding(f"{got.verifier} wrote the same tokens as {expected.verifier}.")
    return Finding(f"{got.verifier} wrote {same} tokens as {expected.verifier} did, and then another one.")


def time_of_rounds(**runs: Trace) -> Finding:
    """What a round and a token took in each run, and the share of the passes."""
    times = {name.replace("_", " "): round_times(trace) for name, trace in runs.items()}
    return _lines(
        [
            f"{name}: {readable(found.ms_per_round)} ms a round, {readable(found.ms_per_token)} ms a token; verify "
            f"passes take {100 * found.verify_share:.0f} % of it."
            for name, found in times.items()
        ]
    )


def steps(result: StepResult) -> Finding:
    """How much faster each verifier is than the first, and how much longer its widest pass takes than its narrowest."""
    first, widths = result.steps[0].verifier, result.common_widths()
    low, high = min(widths), max(widths)
    sentences = []
    for name in result.by_verifier():
        ratios = [result.row(first, width).ms_p50 / result.row(name, width).ms_p50 for width in widths]
        wider = result.row(name, high).ms_p50 / result.row(name, low).ms_p50
        faster = "" if name == first else f" It is {min(ratios):.2f} to {max(ratios):.2f} × as fast as {first}."
        sentences.append(f"{name}: a pass of width {high} takes {wider:.2f} × as long as one of width {low}.{faster}")
    return _lines(sentences)


def gains(result: DecodeResult) -> Finding:
    """The categories in which each arm gains most and least over the baseline."""
    return _lines(
        [
            f"{arm.verifier} {'plain' if arm.drafter == 'none' else f'with {arm.drafter} drafts'}: "
            + _most_and_least([row for row in rows if not row.is_mean], attrgetter("speedup"), " ×")
            for arm, rows in result.compared().items()
            if arm != result.baseline
        ]
    )


def kinds(rows: Sequence[CategoryAcceptance]) -> Finding:
    """Which category drafts best and which worst, by τ."""
    drafted = [row for row in rows if row.mean_acceptance_length is not None]
    return Finding("τ is " + _most_and_least(drafted, attrgetter("mean_acceptance_length"), ""))


def _most_and_least(rows: Sequence[Any], value: Callable[[Any], float], unit: str) -> str:
    most, least = max(rows, key=value), min(rows, key=value)
    return (
        f"highest for {most.category} ({value(most):.2f}{unit}) and lowest for {least.category} "
        f"({value(least):.2f}{unit})."
    )


def flips(found: Fidelity) -> Finding:
    """How many positions flip, and how close they were."""
    told = f"{found.flips} of {found.tokens} positions flip ({100 * found.flips / found.tokens:.1f} %)."
    if found.flip_margin_p50 is None:
        return Finding(told)
    margins = f"{readable(found.flip_margin_p50)} at flips and {readable(found.margin_p50)} at all positions"
    return Finding(f"{told} The median margin is {margins}.")


def best_length(cost: AuditCost) -> Finding:
    """The audit length at which the timed runs were fastest, and what an adapting run got."""
    fixed = [row for row in cost.measured if row.length is not None]
    best = max(fixed, key=attrgetter("speedup"))
    return _lines(
        [
            f"Of the fixed lengths, {best.length} was fastest: {best.speedup:.2f} × {cost.base} "
            f"({best.low:.2f}–{best.high:.2f}).",
            f"An adapting length got {cost.adapting.speedup:.2f} × ({cost.adapting.low:.2f}–{cost.adapting.high:.2f}).",
        ]
    )


def recipes(rows: Sequence[FrontierRow]) -> Finding:
    """The recipes by their distance from BF16, nearest first."""
    ordered = sorted(rows, key=lambda row: row.fidelity.kl_mean)
    shown = ", ".join(f"{row.recipe} {readable(row.fidelity.kl_mean)}" for row in ordered)
    return Finding(f"KL in nats per token, nearest to BF16 first: {shown}.")


def brightest(model: Decoder, text: Any = None, count: int = 3) -> Finding:
    """The linears with the largest max / median, with all tokens and without the first."""
    found = outlier_map(model, text)
    maps = {"all tokens": found.all_tokens, "without the first token": found.without_first}
    return _lines([f"{name}: {_largest(found.projections, ratios, count)}." for name, ratios in maps.items()])


def _largest(projections: Sequence[str], ratios: Sequence[Sequence[float]], count: int) -> str:
    cells = [
        (value, f"layer {layer} {name}")
        for name, row in zip(projections, ratios, strict=True)
        for layer, value in enumerate(row)
    ]
    return ", ".join(f"{where} ({readable(value)})" for value, where in sorted(cells, reverse=True)[:count])
