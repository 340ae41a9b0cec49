"""Rows of the head that stand for no token: never likely, never drawn, in every verifier."""

from dataclasses import replace

import pytest
import torch
from quasar_kernels.simulated_device import SimulatedDevice
from tiny_models import BYTE_TOKENS, write_chat_model
from tiny_quantized import plain

import quasar_lab as ql
from quasar_lab.evaluation.fidelity import compare

PADDED = 400
PROMPT = list(b"the cat sat on the mat")


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("padded")
    return ql.load(folder) if write_chat_model(folder, PADDED) else None


@pytest.fixture(scope="module")
def verifiers(padded, tmp_path_factory):
    w8a8 = plain(padded, tmp_path_factory.mktemp("w8a8"))
    return {"bf16": padded, "w8a8": w8a8, "w8a8+bf16": ql.audited(w8a8, padded)}


@pytest.mark.parametrize("name", ["bf16", "w8a8"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_rows_without_a_token_have_no_probability(verifiers, name, backend, tmp_path, padded):
    verifier = verifiers[name]
    if backend == "reference":
        base = ql.load(padded.checkpoint.folder, backend="reference")
        verifier = base if name == "bf16" else plain(base, tmp_path)
    logits = verifier.forward(PROMPT, verifier.new_cache()).logits
    assert logits.shape == (len(PROMPT), PADDED)
    probs = torch.softmax(logits, dim=-1)
    assert float(probs[:, BYTE_TOKENS:].sum()) == 0
    assert int(logits.argmax(dim=-1).max()) < BYTE_TOKENS


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5}], ids=str)
def test_a_device_masks_them_in_every_replay(padded, options):
    """Graphs of several widths, replayed: the text and the likeliest tokens are those of the plain decoder."""
    base = ql.load(padded.checkpoint.folder, backend="reference")
    device = replace(base, ops=SimulatedDevice())
    here, there = (ql.generate(model, PROMPT, max_new_tokens=25, seed=3, **options) for model in (base, device))
    assert there.token_ids == here.token_ids
    tops = [token for record in there.rounds for row in record.top for token, _, p in row if p > 0]
    assert max(tops) < BYTE_TOKENS


def test_the_others_are_those_of_the_model(tmp_path):
    """Setting the rows changes no other logit, and there are such rows among the likeliest of this model."""
    oracle = write_chat_model(tmp_path, PADDED)
    model = ql.load(tmp_path)
    found = model.forward(PROMPT, model.new_cache()).logits
    with torch.no_grad():
        wanted = oracle(torch.tensor([PROMPT])).logits[0]
    assert torch.allclose(found[:, :BYTE_TOKENS], wanted[:, :BYTE_TOKENS], atol=1e-3)
    assert int(wanted.argmax(dim=-1).max()) >= BYTE_TOKENS, "this model never prefers such a row: it shows nothing"


@pytest.mark.parametrize("name", ["bf16", "w8a8", "w8a8+bf16"])
@pytest.mark.parametrize("options", [{}, {"temperature": 2.0}, {"repetition_penalty": 1.5}], ids=str)
def test_no_text_holds_such_a_token(verifiers, name, options):
    trace = ql.generate(verifiers[name], PROMPT, max_new_tokens=60, **options)
    assert max(trace.token_ids) < BYTE_TOKENS
    shown = [token for row in trace.rounds for top in row.top for token, _, p in top if p > 0]
    assert max(shown) < BYTE_TOKENS


def test_fidelity_stays_finite(verifiers):
    found = compare(verifiers["bf16"], verifiers["w8a8"], PROMPT * 2, 16)
    assert 0 < found.kl_mean < 10
    assert found.perplexity_bf16 < 1e6


def test_a_full_vocabulary_is_left_alone(tmp_path):
    write_chat_model(tmp_path)
    model = ql.load(tmp_path)
    assert model.linears()[-1][2].bias is None
