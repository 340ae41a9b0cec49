"""What audits cost: the prediction is the rule that audited runs choose by, and timed runs keep the auditor's text."""

import json

import pytest
import torch
from toys import toy_pair

import quasar_lab as ql
from quasar_lab.evaluation.audit_cost import AuditCost, measure_audit_cost, predict
from quasar_lab.speculative.audit import Auditor
from quasar_lab.support.errors import InputError

PROMPT = [3, 1, 4, 1, 5]
IDS = torch.randint(0, 90, (150,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.mark.parametrize("noise", [0.1, 0.4, 1.0])
def test_the_top_of_the_prediction_is_what_an_audited_run_chooses(noise):
    pair = toy_pair(noise)
    prompts = [[a, b] for a in range(4) for b in range(3)]
    alone = [ql.generate(pair.exact, prompt, max_new_tokens=40) for prompt in prompts]
    runs = [ql.generate(pair, prompt, max_new_tokens=40) for prompt in prompts]
    found = predict(pair, alone, runs)
    assert found.flip_rate == pytest.approx(
        sum(run.summary()["flips"] for run in runs)
        / sum(audit.accepted + (audit.accepted < audit.length) for run in runs for audit in run.audits)
    )
    best = max(found.predicted, key=lambda row: row.speedup)
    assert best.length == found.chosen
    assert all(row.speedup < row.speedup_without_flips for row in found.predicted)


def test_the_choice_after_one_run_is_that_runs_own():
    pair = toy_pair(0.5)
    run = ql.generate(pair, PROMPT, max_new_tokens=60)
    found = predict(pair, [ql.generate(pair.exact, PROMPT, max_new_tokens=60)], [run])
    assert found.chosen == run.summary()["audit_planned"] != Auditor(pair).length


def test_no_runs_are_refused():
    pair = toy_pair()
    with pytest.raises(InputError, match="no audited run"):
        predict(pair, [], [])


def test_measured_answers_equal_those_of_the_auditor(tiny, other):
    found = measure_audit_cost(tiny, other, [IDS[:5], IDS[5:9]], [1, 6], max_new_tokens=12, samples=2)
    assert [row.length for row in found.measured] == [1, 6, None]
    for row in found.measured:
        assert row.identical == 2
        assert 0 < row.low <= row.speedup <= row.high
    assert (found.identical, found.answers) == (6, 6)
    assert found.adapting is found.measured[2]
    assert found.verifier == "w8a8+bf16"
    assert found.forecast.refused > 0
    with pytest.raises(InputError, match="no prompts"):
        measure_audit_cost(tiny, other, [])
    document = json.loads(json.dumps(found.to_json()))
    keys = (
        "judged refused flip_rate predicted chosen measured prompts drafter gamma max_new_tokens step_ms verifier base"
    )
    keys += " model device backend threads date cpu versions"
    assert set(document) == set(keys.split())
    assert AuditCost.from_json(document) == found
