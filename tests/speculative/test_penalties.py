"""Repetition penalty and min-p: what `transformers` computes, the same for plain, speculative and audited text."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quasar_kernels.simulated_device import SimulatedDevice
from tiny_models import write_checkpoint
from tiny_quantized import same_but_for_time, smoothed
from toys import VOCAB, FixedDrafter
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
)

import quasar_lab as ql
from quasar_lab.evaluation.rescore import differences, rescore
from quasar_lab.speculative import sampling as rule
from quasar_lab.speculative.sampling import Sampling, penalised, target

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, VOCAB - 1), max_size=6),
    st.lists(st.integers(0, VOCAB - 1), max_size=4),
    st.sampled_from([0.5, 1.1, 3.0]),
    st.integers(0, 99),
)
def test_every_row_is_penalised_by_what_stands_before_it(text, drafts, penalty, seed):
    logits = torch.randn(len(drafts) + 1, VOCAB, generator=torch.Generator().manual_seed(seed))
    before = logits.clone()
    found = penalised(logits, penalty, text, drafts)
    assert torch.equal(logits, before), "the input was changed"
    theirs = RepetitionPenaltyLogitsProcessor(penalty)
    for row in range(len(logits)):
        seen = torch.tensor([[*text, *drafts[:row]]], dtype=torch.long)
        assert torch.equal(found[row], theirs(seen, logits[row : row + 1].clone())[0]), f"row {row}"


@settings(deadline=None)
@given(st.floats(0.01, 1), st.sampled_from([0.5, 1.0, 1.9]), st.integers(0, 99))
def test_min_p_keeps_what_transformers_keeps(min_p, temperature, seed):
    logits = 3 * torch.randn(3, 40, generator=torch.Generator().manual_seed(seed))
    warped = MinPLogitsWarper(min_p)(None, TemperatureLogitsWarper(temperature)(None, logits))
    found = target(logits, Sampling(temperature, min_p=min_p))
    assert torch.equal(found > 0, torch.isfinite(warped))
    assert torch.allclose(found, torch.softmax(warped, dim=-1), atol=1e-6)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    oracle = write_checkpoint(folder, "llama")
    bf16 = ql.load(folder)
    w8a8 = smoothed(bf16, folder)
    return {"bf16": bf16, "w8a8": w8a8, "w8a8+bf16": ql.audited(w8a8, bf16, 3), "oracle": oracle}


@pytest.mark.parametrize("penalty", [0.7, 1.3, 2.0])
def test_greedy_text_is_that_of_transformers(models, penalty):
    found = ql.generate(models["bf16"], PROMPT, max_new_tokens=40, repetition_penalty=penalty).token_ids
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        theirs = models["oracle"].generate(
            ids, max_new_tokens=40, do_sample=False, repetition_penalty=penalty, attention_mask=torch.ones_like(ids)
        )[0, len(PROMPT) :]
    assert found == theirs.tolist()


@pytest.mark.parametrize("gamma", [1, 4, 9])
@pytest.mark.parametrize("name", ["bf16", "w8a8", "w8a8+bf16"])
def test_greedy_speculative_text_is_plain_text(models, name, gamma):
    options = {"max_new_tokens": 50, "repetition_penalty": 1.3}
    own = models[name].auditor or models[name]
    plain = ql.generate(own, PROMPT, drafter="none", **options).token_ids
    assert plain != ql.generate(own, PROMPT, drafter="none", max_new_tokens=50).token_ids, "the penalty does nothing"

    def choose(ids, budget):
        place = len(ids) - len(PROMPT)
        return [token if (place + n) % 5 else (token + 1) % 90 for n, token in enumerate(plain[place:][:budget])]

    for drafter in ("ngram", FixedDrafter(choose)):
        found = ql.generate(models[name], PROMPT, drafter=drafter, gamma=gamma, **options)
        assert found.token_ids == plain
    assert sum(record.accepted for record in found.rounds) > 5


def test_a_row_that_forgets_the_drafts_before_it_is_seen(models, monkeypatch):
    """The equality above fails where rows are penalised for the text alone."""
    plain = ql.generate(models["bf16"], [5, 6], drafter="none", max_new_tokens=50, repetition_penalty=3.0).token_ids
    honest = rule.penalised
    monkeypatch.setattr(
        "quasar_lab.speculative.verification.penalised",
        lambda logits, penalty, text, drafts: honest(logits, penalty, text, []),
    )
    perfect = FixedDrafter(lambda ids, budget: plain[len(ids) - 2 :][:budget])
    found = ql.generate(models["bf16"], [5, 6], drafter=perfect, max_new_tokens=50, repetition_penalty=3.0)
    assert found.token_ids != plain


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "min_p": 0.02}], ids=str)
def test_a_device_decides_the_same(models, options):
    settings_ = {"max_new_tokens": 30, "repetition_penalty": 1.4, "seed": 5, **options}
    plain = ql.load(models["bf16"].checkpoint.folder, backend="reference")
    there = ql.generate(replace(plain, ops=SimulatedDevice()), PROMPT, **settings_)
    here = ql.generate(plain, PROMPT, **settings_)
    assert there.token_ids == here.token_ids


@pytest.mark.parametrize("name", ["bf16", "w8a8"])
@pytest.mark.parametrize("temperature", [0, 0.9])
def test_a_trace_judged_again_by_its_own_verifier_has_no_flips(models, name, temperature, tmp_path):
    options = {"temperature": temperature, "repetition_penalty": 1.6, "min_p": 0.03}
    drafter = FixedDrafter(lambda ids, budget: [(ids[-1] + 7 * n) % 90 for n in range(budget)])
    trace = ql.generate(models[name], PROMPT, drafter=drafter, max_new_tokens=40, **options)
    trace.save(tmp_path / "run.jsonl")
    loaded = ql.Trace.load(tmp_path / "run.jsonl")
    assert loaded.sampling == trace.sampling
    again = rescore(loaded, models[name])
    found = differences(again)
    assert (found.flips, found.differing) == (0, 0)
    assert any(record.other["flip"] for record in again.rounds)


def test_a_trace_without_the_new_options_has_the_keys_it_had(models):
    trace = ql.generate(models["bf16"], PROMPT, max_new_tokens=3)
    assert set(trace.header["sampling"]) == {"temperature", "top_k", "top_p", "seed"}
    assert same_but_for_time(trace)
