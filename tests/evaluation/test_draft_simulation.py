"""A simulation is the run: the same rounds, for every lookup, γ, limit and end, without the model."""

import json

import pytest
from toys import ToyVerifier

from quasar_lab.evaluation import draft_simulation
from quasar_lab.evaluation.draft_simulation import PlainAnswer, SimulatedRound
from quasar_lab.figures import tau_by_settings, tau_by_text
from quasar_lab.speculative.generation import generate
from quasar_lab.support.errors import InputError, NotInThisVersion

PROMPT = [1, 2, 3, 1, 2, 4, 1, 2]


def answered(verifier, limit, category="a"):
    text = generate(verifier, PROMPT, drafter="none", max_new_tokens=limit).token_ids
    return PlainAnswer(category, "1", PROMPT, text, limit, frozenset(verifier.eos_ids))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("drafter", ["none", "ngram:1", "ngram", "ngram:5"])
def test_rounds_are_those_of_the_run(seed, drafter):
    for eos in ((), (5,), (0, 7, 9)):
        verifier = ToyVerifier(eos, seed=seed)
        for limit in (1, 2, 9, 40):
            answer = answered(verifier, limit)
            for gamma in (1, 3, 8):
                real = generate(verifier, PROMPT, drafter=drafter, gamma=gamma, max_new_tokens=limit).rounds
                expected = [SimulatedRound(len(r.draft_ids), r.accepted, len(r.emitted_ids)) for r in real]
                assert draft_simulation.rounds(answer, drafter, gamma) == expected


def test_the_table_counts_by_kind_and_over_all():
    first, second = (
        PlainAnswer("b", "1", [1, 2, 3], [1, 2, 3, 1, 2, 3], 6, frozenset()),
        answered(ToyVerifier(seed=1), 1),
    )
    rows = draft_simulation.table([first, second], "ngram", 2)
    assert [row.category for row in rows] == ["a", "b", "all"]
    one, two, both = rows
    assert (one.new_tokens, one.rounds, one.mean_acceptance_length) == (1, 0, None)
    # 1 | then 2 3 copied and 1 beyond; then 2 copied, and 3: a draft of one, since one token more ends the text.
    assert (two.drafted, two.accepted, two.rounds) == (3, 3, 2)
    assert two.mean_acceptance_length == 2.5
    assert (both.prompts, both.new_tokens, both.draft_acceptance_rate) == (2, 7, 1.0)


def test_what_cannot_be_simulated_is_refused():
    answer = answered(ToyVerifier(), 4)
    with pytest.raises(InputError, match="γ is 17; accepted: 1…16"):
        draft_simulation.rounds(answer, gamma=17)
    with pytest.raises((InputError, NotInThisVersion)):
        draft_simulation.rounds(answer, "medusa")


def test_figures_show_the_table():
    answers = [answered(ToyVerifier(seed=seed), 30, category) for seed, category in enumerate(["a", "b", "b"])]
    identity = ToyVerifier.identity
    rows = {row.category: row for row in draft_simulation.table(answers, "ngram:2", 3)}
    figure = tau_by_text(answers, identity, longest=2, gamma=3)
    tau, kept = figure.data
    assert dict(zip(tau.y, tau.x, strict=True)) == {name: row.mean_acceptance_length for name, row in rows.items()}
    assert dict(zip(kept.y, kept.x, strict=True)) == {name: row.draft_acceptance_rate for name, row in rows.items()}
    assert kept.y[0] == "all"
    sweep = tau_by_settings(answers, identity, gammas=[1, 3], lookups=[1, 2], longest=2, gamma=3)
    by_gamma = {trace.name: trace.y[1] for trace in sweep.data if trace.xaxis == "x"}
    by_lookup = {trace.name: trace.y[1] for trace in sweep.data if trace.xaxis == "x2"}
    assert by_gamma == by_lookup == {name: row.mean_acceptance_length for name, row in rows.items()}


def test_a_sweep_has_the_table_of_every_setting():
    answers = [answered(ToyVerifier(seed=seed), 20, category) for seed, category in enumerate(["a", "b"])]
    found = draft_simulation.sweep(answers, gammas=[1, 4], lookups=[2, 5], longest=3, gamma=6)
    for gamma in (1, 4):
        assert found.by_gamma[gamma] == draft_simulation.table(answers, "ngram:3", gamma)
    for longest in (2, 5):
        assert found.by_lookup[longest] == draft_simulation.table(answers, f"ngram:{longest}", 6)
    assert draft_simulation.SettingsSweep.from_json(json.loads(json.dumps(found.to_json()))) == found
