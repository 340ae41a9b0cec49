"""Above temperature 0 an audited text has the exact verifier's distribution: and the test sees it where it has not."""

from dataclasses import replace

import pytest
import torch
from toys import VOCAB, FixedDrafter, SamplingDrafter, exact_law, law_p_value, toy_pair

import quasar_lab as ql
from quasar_lab.speculative import audit, rejection, verification
from quasar_lab.speculative.audit import Auditor
from quasar_lab.speculative.drafters import Draft, NoDrafter

RUNS = 2000

CASES = {
    "bonus behind each token": ("none", {"length": 1, "limit": 5}, {"temperature": 1.0}),
    "rounds with sampled drafts": ("distribution", {"length": 3, "limit": 5}, {"temperature": 1.0}),
    "rounds with copied drafts": ("one-hot", {"length": 2, "limit": 4}, {"temperature": 1.3, "top_k": 6}),
    "one audit at the limit": ("distribution", {"length": 50, "limit": 3}, {"temperature": 0.7, "top_p": 0.8}),
    "adapting": ("distribution", {"length": None, "limit": 12}, {"temperature": 1.7}),
    "a penalty": ("distribution", {"length": 3, "limit": 5}, {"temperature": 1.3, "repetition_penalty": 2.5}),
    "ended by a token": ("distribution", {"length": 3, "limit": 5, "eos": (7, 2)}, {"temperature": 1.0}),
}
LONG = ("adapting", "ended by a token", "one audit at the limit", "a penalty", "rounds with sampled drafts")
"""Cases that take more than a few seconds; the others are of the same kind."""
DRAFTERS = {
    "none": lambda seed: NoDrafter(),
    "one-hot": lambda seed: FixedDrafter(lambda ids, budget: [(ids[-1] + 1 + n) % VOCAB for n in range(budget)]),
    "distribution": lambda seed: SamplingDrafter(seed + 100_000),
}


def p_value(case, runs=RUNS):
    """χ² of the joint law of the first three tokens, drafter → fast → exact, against plain decoding with the exact
    one."""
    drafter, shape, options = CASES[case]
    pair = toy_pair(1.5, shape["length"], shape.get("eos", ()))
    prompt = [4, 7]

    def text(seed):
        chosen = {"drafter": DRAFTERS[drafter](seed), "gamma": 3, "max_new_tokens": shape["limit"], "seed": seed}
        return ql.generate(pair, prompt, **chosen, **options).token_ids

    return law_p_value(exact_law(pair.exact, prompt, options), map(text, range(runs)))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in LONG else case for case in CASES]
)
def test_the_joint_law_is_the_exact_verifiers(case):
    assert p_value(case) > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rounds with sampled drafts", "ended by a token"])
def test_the_joint_law_is_the_exact_verifiers_in_many_runs(case):
    assert p_value(case, 8000) > 0.001


def test_the_fast_verifiers_law_is_another(monkeypatch):
    """The statistic sees a verifier that is not audited at all: every pending token kept."""
    genuine = verification.accept

    def lenient(rows, draft, *rest):
        found = genuine(rows, draft, *rest)
        if isinstance(draft, Waited):
            return replace(found, accepted=len(draft.ids), next_ids=[], next_states=[])
        return found

    class Waited(Draft):
        pass

    monkeypatch.setattr(audit, "Draft", Waited)
    monkeypatch.setattr(verification, "accept", lenient)
    assert p_value("rounds with sampled drafts") < 1e-6


def planted_q(change):
    """`Auditor.wait` that keeps other distributions than those the tokens were drawn from."""
    genuine = Auditor.wait

    def wait(self, ids, probs, width):
        genuine(self, ids, change(probs), width)

    return wait


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rounds with sampled drafts", "one audit at the limit"])
@pytest.mark.parametrize(
    "change",
    [
        lambda probs: torch.full_like(probs, 1 / VOCAB),
        lambda probs: probs.roll(1, dims=0),  # the rows of other tokens
        lambda probs: probs**2 / (probs**2).sum(dim=-1, keepdim=True),  # of another temperature
    ],
    ids=["uniform", "another row", "sharper"],
)
def test_a_planted_q_is_seen(monkeypatch, case, change):
    monkeypatch.setattr(Auditor, "wait", planted_q(change))
    assert p_value(case) < 0.001


def test_a_planted_residual_is_seen(monkeypatch):
    monkeypatch.setattr(rejection, "residual", lambda p, token, q: p)
    assert p_value("bonus behind each token") < 0.001


def test_used_draws_are_seen(monkeypatch):
    """An audit that draws what the round drew."""
    genuine = verification.accept

    def again(rows, draft, options, generator):
        if not draft.ids:
            again.before = generator.get_state()
            return genuine(rows, draft, options, generator)
        used = torch.Generator()
        used.set_state(again.before)
        return genuine(rows, draft, options, used)

    monkeypatch.setattr(verification, "accept", again)
    assert p_value("bonus behind each token") < 0.001


@pytest.mark.slow
def test_a_last_token_that_is_drawn_afresh_is_seen(monkeypatch):
    """It is why the text ended: dropping it makes ends rarer."""
    genuine = verification.accept

    def without_the_last(rows, draft, *rest):
        if draft.ids and len(rows.best_ids) == len(draft.ids):
            shorter = Draft(draft.ids[:-1], None, draft.probs[:-1])
            found = genuine(rows, shorter, *rest)
            return replace(found, p=[*found.p, 0.0], q=[*found.q, 0.0], u=[*found.u, None])
        return genuine(rows, draft, *rest)

    monkeypatch.setattr(verification, "accept", without_the_last)
    assert p_value("ended by a token", 3 * RUNS) < 0.001
