"""The embedded model: the text of transformers, the same text at every γ, and how close W8A8 comes."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import quasar_lab as ql
from quasar_lab.cli.common import set_threads
from quasar_lab.evaluation.fidelity import compare
from quasar_lab.evaluation.origin import threads
from quasar_lab.evaluation.questions import ours
from quasar_lab.quantization.smoothing import pool_repeats
from quasar_lab.support import storage

PROMPTS = [
    "Why is the sky blue?",
    "A shop sells pens at 3 coins each. Tom buys 4 pens and pays with 20 coins. How many coins does he get back?",
    "Repeat this sentence twice: the quick brown fox jumps over the lazy dog.",
    "Write a Python function that returns the sum of a list of numbers.",
]


@pytest.mark.slow
def test_greedy_text_equals_transformers(embedded):
    """64 tokens on 4 prompts, against LlamaForCausalLM in FP32 on the same folder."""
    folder = embedded.checkpoint.folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        expected = oracle.generate(ids, do_sample=False, max_new_tokens=64)[0, ids.shape[1] :].tolist()
        run = ql.generate(embedded, prompt, drafter="none", max_new_tokens=64)
        assert run.header["prompt_ids"] == ids[0].tolist()
        assert run.token_ids == expected, prompt


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["embedded", "w8a8"])
def test_speculative_equals_plain(verifier, request):
    """20 prompts × 64 tokens × γ 1…8 (on the reference backend, which is slow, 4 × 32 × {1, 4, 8})."""
    model = request.getfixturevalue(verifier)
    fast = model.backend != "reference"
    questions = [question.turns[0] for question in ours(4)][:20] if fast else PROMPTS
    drafted = 0
    for prompt in questions:
        plain = ql.generate(model, prompt, drafter="none", max_new_tokens=64 if fast else 32).token_ids
        for gamma in range(1, 9) if fast else (1, 4, 8):
            run = ql.generate(model, prompt, drafter="ngram", gamma=gamma, max_new_tokens=64 if fast else 32)
            assert run.token_ids == plain, f"γ = {gamma}, prompt {prompt!r}"
            drafted += sum(record.accepted for record in run.rounds)
    assert drafted > 100, "nothing was drafted, so nothing was tested"


@pytest.mark.parametrize("verifier", ["embedded", "w8a8"])
def test_bits_do_not_depend_on_width_chunking_or_threads(verifier, request):
    model = request.getfixturevalue(verifier)
    ids = model.tokenizer.encode(ours(1)[0].turns[0] * 3)[:100]

    def logits(widths):
        cache, rows, start = model.new_cache(100), [], 0
        for width in widths:
            rows.append(model.forward(ids[start : start + width], cache).logits)
            start += width
        return torch.cat(rows)

    whole = logits([100])
    before = threads(model)
    try:
        for count, widths in ((1, [64, 36]), (2, [1] * 8 + [92]), (3, [33, 2, 65]), (4, [7, 16, 17, 5, 3, 4, 48])):
            set_threads(count)
            assert torch.equal(logits(widths), whole), f"{count} threads, widths {widths}"
    finally:
        set_threads(before)


def test_w8a8_says_almost_the_same(embedded, w8a8):
    ids = embedded.tokenizer.encode((storage.packaged_folder("data") / "prompts" / "qa.jsonl").read_text())[:200]
    found = compare(embedded, w8a8, ids, window=100)
    assert found.tokens == 200
    assert 0 < found.kl_mean < 0.03
    assert found.top1_agreement > 0.8
    assert found.flips == len(found.flip_margins)
    assert len(found.per_layer) == 30
    assert all(0 < row.error < 0.2 for row in found.per_layer)


def test_a_model_compared_with_itself(embedded):
    found = compare(embedded, embedded, list(range(300, 340)), window=16)
    assert (found.kl_mean, found.flips, found.top1_agreement) == (0, 0, 1)
    assert found.perplexity == found.perplexity_bf16
    assert all(row.error == 0 for row in found.per_layer)


def test_the_sink_is_a_token_not_a_channel(embedded):
    """What design of the smoothing rests on: down_proj of layer 11 has one huge input row, at position 0."""
    seen = {}
    embedded.forward(
        embedded.tokenizer.encode("<|im_start|>user\nThe cat sat on the mat, and the dog looked on."),
        embedded.new_cache(64),
        taps=lambda layer, projection, x: seen.update({(layer, projection): x}),
    )
    rows = seen[11, "down_proj"].abs().amax(dim=1)
    assert rows[0] > 50 * rows[1:].max()


def test_value_heads_pool_over_their_repeats(embedded):
    values = torch.arange(9 * 64, dtype=torch.float32)
    pooled = pool_repeats(values, embedded.config).reshape(3, 64)
    assert torch.equal(pooled[0], values[2 * 64 : 3 * 64])
    assert pooled.shape == (3, 64)


def test_pieces_join_to_the_text(embedded):
    tokenizer = embedded.tokenizer
    text = "Naïve café — 東京 🙂\n\tx = 1"
    ids = tokenizer.encode(text)
    pieces = [tokenizer.piece(token) for token in ids]
    assert any(piece.startswith("⟨") and piece.endswith("⟩") for piece in pieces), (
        "no token here is part of a character"
    )
    whole = tokenizer.encode("plain words only")
    assert "".join(map(tokenizer.piece, whole)) == "plain words only"
    assert tokenizer.decode(ids) == text
    assert tokenizer.piece(2) == "<|im_end|>"


def test_stop_strings_across_token_and_block_borders(embedded):
    free = ql.generate(embedded, PROMPTS[2], drafter="none", max_new_tokens=24)
    words = free.text
    stop = words[len(words) // 2 - 4 : len(words) // 2 + 3]
    for drafter, gamma in (("none", 1), ("ngram", 4), ("ngram", 8)):
        run = ql.generate(embedded, PROMPTS[2], drafter=drafter, gamma=gamma, max_new_tokens=24, stop=[stop, "never"])
        assert run.text == words[: words.index(stop)], f"{drafter} γ={gamma}"
        assert run.summary()["finish_reason"] == "stop"
        assert run.token_ids == free.token_ids[: len(run.token_ids)]
