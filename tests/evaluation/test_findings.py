"""Sentences about a run say what its result holds."""

import json
import re
from pathlib import Path

import pytest
from toys import ToyVerifier, toy_pair

from quasar_lab.evaluation import findings
from quasar_lab.evaluation.decode_speed import DecodeResult
from quasar_lab.evaluation.draft_simulation import CategoryAcceptance
from quasar_lab.evaluation.pass_time import StepResult
from quasar_lab.speculative.generation import generate

SAVED = Path(__file__).parents[2] / "kernels" / "benchmarks" / "results"


@pytest.fixture(scope="module")
def trace():
    return generate(ToyVerifier(), [1, 2, 1, 2], max_new_tokens=20)


def test_drafts_are_counted(trace):
    said = findings.drafting(repeating_text=trace)
    drafted = [record for record in trace.rounds if record.draft_ids]
    tokens = sum(len(record.draft_ids) for record in drafted)
    kept = sum(record.accepted for record in drafted)
    assert said.startswith(f"repeating text: {len(trace.rounds)} rounds, of which {len(drafted)} drafted")
    assert f"{kept} of {tokens} drafted tokens kept ({100 * kept / tokens:.0f} %); τ = {trace.tau:.2f}." in said
    assert findings.drafting(a=trace, b=trace).count("\n- ") == 1
    nothing = findings.drafting(plain=generate(ToyVerifier(), [1, 2], drafter="none", max_new_tokens=3))
    assert "0 of 0 drafted tokens kept; τ = 1.00" in nothing


def test_a_finding_is_text_that_a_page_shows_as_prose(trace):
    said = findings.drafting(a=trace)
    assert said._repr_markdown_() == f"**This run:** {said}"
    assert findings.drafting(a=trace, b=trace)._repr_markdown_().startswith("**This run:**\n\n- a: ")


def test_what_audits_took_back_is_counted():
    trace = generate(toy_pair(length=3), [1, 2, 1, 2], max_new_tokens=20)
    back = trace.summary()["retracted"]
    assert back > 0
    said = findings.audits(trace)
    assert f"and {back} tokens were taken back. In their place the auditor wrote “" in said
    assert said.startswith(f"{len(trace.audits)} audits looked at {sum(audit.length for audit in trace.audits)} tokens")


def test_where_texts_part_is_told(trace):
    assert findings.first_difference(trace, trace) == "toy wrote the same tokens as toy."
    other = generate(ToyVerifier(seed=4), [1, 2, 1, 2], max_new_tokens=20)
    place = next(n for n, (a, b) in enumerate(zip(trace.token_ids, other.token_ids, strict=True)) if a != b)
    assert findings.first_difference(trace, other).startswith(f"toy wrote {place} tokens as toy did")


def test_gains_name_the_categories_of_the_table():
    result = DecodeResult.from_json(json.loads((SAVED / "decode-cpu-t0.json").read_text()))
    said = findings.gains(result)
    rows = [row for row in result.compared()[result.row("w8a8", "ngram").arm] if not row.is_mean]
    most, least = (pick(rows, key=lambda row: row.speedup) for pick in (max, min))
    expected = f"highest for {most.category} ({most.speedup:.2f} ×) and lowest for {least.category}"
    assert f"w8a8 with ngram drafts: {expected}" in said
    assert "bf16 plain" not in said


def test_steps_say_how_much_faster_and_how_flat():
    result = StepResult.from_json(json.loads((SAVED / "step-cpu.json").read_text()))
    said = findings.steps(result)
    ratio = result.row("bf16", 16).ms_p50 / result.row("w8a8", 16).ms_p50
    assert re.search(rf"It is [\d.]+ to {ratio:.2f} × as fast as bf16\.", said)
    wider = result.row("bf16", 16).ms_p50 / result.row("bf16", 1).ms_p50
    assert f"bf16: a pass of width 16 takes {wider:.2f} × as long as one of width 1." in said


def test_kinds_are_told_by_their_acceptance():
    rows = [CategoryAcceptance(name, 1, 10, 5, 9, 4, tau, 0.4) for name, tau in (("chat", 1.1), ("code", 2.5))]
    assert findings.kinds(rows) == "τ is highest for code (2.50) and lowest for chat (1.10)."
    assert findings.kinds([*rows, CategoryAcceptance("silent", 1, 0, 0, 0, 0, None, None)]) == findings.kinds(rows)
