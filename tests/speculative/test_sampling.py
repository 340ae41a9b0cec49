"""Is the text distributed as the target says? And would the test see it if it were not?"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import VOCAB, FixedDrafter, SamplingDrafter, ToyVerifier, exact_law, law_p_value

import quasar_lab as ql
from quasar_lab.speculative import rejection, verification
from quasar_lab.speculative.drafters import Draft, NoDrafter
from quasar_lab.speculative.rejection import accept, residual
from quasar_lab.speculative.sampling import Sampling, draw, target
from quasar_lab.speculative.verified_rows import read_rows
from quasar_lab.support.errors import InputError

PROMPT = [4, 7]
RUNS = 3000
SETTINGS = [
    {"temperature": 0.3},
    {"temperature": 1.0},
    {"temperature": 1.7},
    {"temperature": 1.0, "top_k": 4},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.7, "top_k": 6, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.3, "repetition_penalty": 2.5},
    {"temperature": 1.3, "min_p": 0.05, "top_p": 0.9, "repetition_penalty": 0.6},
]


def copying(ids, budget):
    """A deterministic drafter (one-hot q): the likeliest token, then a poor one."""
    return [(ids[-1] + 1 + place) % VOCAB for place in range(budget)]


def p_value(options, make_drafter, runs=RUNS):
    """χ² of the observed joint law of three tokens."""
    verifier = ToyVerifier()

    def text(seed):
        drafter = make_drafter(seed)
        return ql.generate(verifier, PROMPT, drafter=drafter, gamma=3, max_new_tokens=3, seed=seed, **options).token_ids

    return law_p_value(exact_law(verifier, PROMPT, options), map(text, range(runs)))


DRAFTERS = {
    "none": lambda seed: NoDrafter(),
    "one-hot": lambda seed: FixedDrafter(copying),
    "distribution": lambda seed: SamplingDrafter(seed + 100_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_joint_law_is_the_target(options, drafter):
    p = p_value(options, DRAFTERS[drafter])
    assert p > 0.001, f"{drafter} at {options}: p = {p:.2g}"


def test_joint_law_is_the_target_in_one_case():
    """The quick one: what the slow test does for all settings."""
    assert p_value({"temperature": 1.0}, DRAFTERS["distribution"], runs=1500) > 0.001


def test_a_planted_residual_is_seen(monkeypatch):
    monkeypatch.setattr(rejection, "residual", lambda p, token, q: p)
    assert p_value({"temperature": 1.0}, DRAFTERS["one-hot"]) < 0.001


def test_a_planted_q_is_seen():
    def uniform(q):
        return torch.full_like(q, 1 / VOCAB)

    assert p_value({"temperature": 1.0}, lambda seed: SamplingDrafter(seed + 100_000, report=uniform)) < 0.001


def test_a_planted_bonus_row_is_seen(monkeypatch):
    genuine = verification.accept

    def from_the_row_before(rows, draft, *rest):
        wrong = rows.probs.clone()
        if draft.ids:
            wrong[-1] = rows.probs[-2]
        return genuine(replace(rows, probs=wrong), draft, *rest)

    monkeypatch.setattr(verification, "accept", from_the_row_before)
    # γ = 1 and drafts that are mostly kept, so that the third token often is a bonus.
    verifier = ToyVerifier()

    def likely(ids, budget):
        return [int(verifier.row(ids).argmax())][:budget]

    assert p_value({"temperature": 0.8}, lambda seed: FixedDrafter(likely)) < 0.001


def test_a_seed_repeats_the_text():
    texts = {
        tuple(ql.generate(ToyVerifier(), PROMPT, temperature=1.0, seed=5, max_new_tokens=40).token_ids) for _ in "ab"
    }
    assert len(texts) == 1
    assert tuple(ql.generate(ToyVerifier(), PROMPT, temperature=1.0, seed=6, max_new_tokens=40).token_ids) not in texts


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 12), st.floats(0.05, 1.0), st.floats(0.1, 3.0))
def test_target_keeps_what_it_should(seed, top_k, top_p, temperature):
    logits = 3 * torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(seed))
    probs = target(logits, Sampling(temperature, top_k, top_p))
    plain = torch.softmax(logits / temperature, dim=-1)
    assert torch.allclose(probs.sum(dim=-1), torch.ones(2), atol=1e-5)
    for row, before in zip(probs, plain, strict=True):
        kept = (row > 0).nonzero()[:, 0]
        assert len(kept) <= (top_k or VOCAB)
        assert before[kept].min() >= before[row == 0].max() if (row == 0).any() else True
        if top_k == 0 and len(kept) > 1:  # the smallest set: without its least likely member it does not reach p
            assert before[kept].sum() - before[kept].min() < top_p + 1e-6
        assert torch.allclose(row[kept] / row[kept].sum(), before[kept] / before[kept].sum(), atol=1e-5)


def test_residual():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    assert torch.allclose(residual(p, 1, q), torch.tensor([0.3, 0.0, 0.0]))
    assert torch.allclose(residual(p, 1, None), torch.tensor([0.5, 0.0, 0.2]))
    assert torch.equal(residual(p, 1, p), p)
    assert torch.equal(p, torch.tensor([0.5, 0.3, 0.2])), "the input was changed"


def test_draw_never_gives_probability_zero():
    generator = torch.Generator().manual_seed(0)
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert {draw(probs, generator) for _ in range(300)} == {1, 3}


def test_a_draft_outside_the_top_k_is_refused():
    verifier = ToyVerifier()
    worst = [int(verifier.row(PROMPT).argmin())]
    draft = Draft(worst)
    logits = torch.stack([verifier.row(PROMPT)] * 2)
    rows = read_rows(logits, Sampling(1.0, top_k=3), 5)
    for seed in range(50):
        found = accept(rows, draft, Sampling(1.0, top_k=3), torch.Generator().manual_seed(seed))
        assert found.accepted == 0
        assert found.next_ids != worst


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}],
    ids=str,
)
def test_settings_outside_are_refused(options):
    with pytest.raises(InputError, match="accepted"):
        Sampling(**options)
