"""Speculative text equals plain text, bit for bit at temperature 0, and ends where it should."""

import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny_models import write_checkpoint
from toys import VOCAB, FixedDrafter, ToyVerifier

import quasar_lab as ql
from quasar_lab.quantization import saved_model
from quasar_lab.speculative.drafters import Draft
from quasar_lab.support.errors import InputError, NotInThisVersion

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module", params=["bf16", "w8a8-plain"])
def verifier(request, tiny_folder, tmp_path_factory):
    model = ql.load(tiny_folder)
    return model if request.param == "bf16" else quantized(model, tmp_path_factory.mktemp("quantized"))


def quantized(model, folder):
    """W8A8 of a model without a tokenizer: calibrated on ids."""
    save_file(saved_model.quantized_tensors(model.checkpoint, {}), folder / "weights.safetensors")
    record = {"schema": saved_model.SCHEMA, "checksum": model.checkpoint.checksum, "model": "tiny"}
    (folder / "recipe.json").write_text(json.dumps(record))
    return saved_model.load_quantized(model, folder, "w8a8-plain")


def oracle_drafter(plain, errors):
    """Drafts the true continuation, wrong at the absolute places in `errors`."""

    def choose(ids, budget):
        place = len(ids) - len(PROMPT)
        draft = plain[place : place + budget]
        return [(token + 1) % 90 if place + offset in errors else token for offset, token in enumerate(draft)]

    return FixedDrafter(choose)


@pytest.mark.parametrize("gamma", range(1, 9))
def test_greedy_text_equals_plain_text(verifier, gamma):
    plain = ql.generate(verifier, PROMPT, drafter="none", max_new_tokens=40)
    assert plain.summary()["mean_acceptance_length"] == 1
    for errors in (set(), {0}, {3, 4}, set(range(0, 40, 3)), set(range(40))):
        run = ql.generate(
            verifier, PROMPT, drafter=oracle_drafter(plain.token_ids, errors), gamma=gamma, max_new_tokens=40
        )
        assert run.token_ids == plain.token_ids, f"errors at {sorted(errors)}"
        assert run.summary()["finish_reason"] == plain.summary()["finish_reason"]
    assert ql.generate(verifier, PROMPT, drafter="ngram", gamma=gamma, max_new_tokens=40).token_ids == plain.token_ids


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    gamma=st.integers(1, 16),
    limit=st.integers(1, 40),
    eos=st.sets(st.integers(0, VOCAB - 1), max_size=3),
    context=st.integers(6, 30),
    seed=st.integers(0, 1000),
)
def test_any_draft_any_end(prompt, gamma, limit, eos, context, seed):
    """Whatever is drafted, wherever the text ends: the same tokens, the same reason, never beyond a bound."""
    verifier = ToyVerifier(tuple(eos), context)
    generator = torch.Generator().manual_seed(seed)

    def choose(ids, budget):
        draft = list(ids)
        for _ in range(budget):
            good = int(torch.randint(4, (1,), generator=generator)) > 0
            draft.append(int(verifier.row(draft).argmax()) if good else 5)
        return draft[len(ids) :]

    plain = ql.generate(verifier, prompt, drafter="none", max_new_tokens=limit)
    run = ql.generate(verifier, prompt, drafter=FixedDrafter(choose), gamma=gamma, max_new_tokens=limit)
    assert run.token_ids == plain.token_ids
    summary = run.summary()
    assert summary["finish_reason"] == plain.summary()["finish_reason"]
    assert 1 <= len(run.token_ids) <= min(limit, context - len(prompt) + 1)
    assert summary["finish_reason"] == ("eos" if run.token_ids[-1] in eos else "length")
    assert not eos & set(run.token_ids[:-1])
    assert summary["new_tokens"] == len(run.token_ids) == 1 + sum(len(r.emitted_ids) for r in run.rounds)
    assert sum(summary["acceptance_histogram"]) == summary["rounds"] == len(run.rounds)


def test_bits_after_a_fully_kept_draft(verifier):
    plain = ql.generate(verifier, PROMPT, drafter="none", max_new_tokens=30).token_ids
    seen = []

    class Recorder:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def forward(self, ids, cache, **options):
            out = self.inner.forward(ids, cache, **options)
            seen.append((cache.length, out.logits[-1]))
            return out

    ql.generate(Recorder(verifier), PROMPT, drafter=oracle_drafter(plain, set()), gamma=5, max_new_tokens=30)
    everything = PROMPT + plain
    for length, logits in seen:
        fresh = verifier.forward(everything[:length], verifier.new_cache(), logits="last").logits[0]
        assert torch.equal(logits, fresh), f"after {length} tokens"


def test_states_of_a_round():
    verifier = ToyVerifier()
    plain = ql.generate(verifier, [1, 2], drafter="none", max_new_tokens=10).token_ids

    def choose(ids, budget):
        place = len(ids) - 2
        wanted = plain[place : place + budget]
        if place == 6:
            return [wanted[0], (wanted[1] + 1) % VOCAB, wanted[2]]
        return wanted if place == 1 else []

    rounds = ql.generate(verifier, [1, 2], drafter=FixedDrafter(choose), gamma=4, max_new_tokens=10).rounds
    assert rounds[0].states == ["accepted"] * 4
    assert rounds[0].emitted_states == ["accepted"] * 4 + ["bonus"]
    assert rounds[0].position == 3
    assert rounds[1].states == ["accepted", "rejected", "rejected"]
    assert rounds[1].emitted_states == ["accepted", "corrected"]
    assert rounds[2].emitted_states == ["plain"]
    assert [len(rounds[0].top), len(rounds[0].top[0]), len(rounds[0].margin)] == [5, 5, 5]
    assert rounds[0].q == [1.0] * 4
    assert rounds[0].u == [None] * 4


def test_an_eos_inside_a_kept_block_ends_the_text():
    free = ql.generate(ToyVerifier(), [1, 2], drafter="none", max_new_tokens=12).token_ids
    eos = free[5]
    end = free.index(eos)
    verifier = ToyVerifier(eos_ids=(99, eos))
    run = ql.generate(
        verifier,
        [1, 2],
        drafter=FixedDrafter(lambda ids, budget: free[len(ids) - 2 :][:budget]),
        gamma=8,
        max_new_tokens=12,
    )
    assert run.token_ids == free[: end + 1]
    assert run.summary()["finish_reason"] == "eos"
    assert run.summary()["text"]


def test_cancel_ends_within_a_round(tiny):
    run = ql.stream(tiny, PROMPT, drafter="none", max_new_tokens=60)
    for record in run:
        if record.index == 3:
            run.cancel()
    assert len(run.trace.rounds) == 4
    assert run.trace.summary()["finish_reason"] == "cancelled"


@pytest.mark.parametrize("length", [300, 700])
def test_cancel_ends_a_prefill_within_a_chunk(length):
    verifier = Counting(context=1000)
    run = ql.stream(verifier, [5] * length, max_new_tokens=5)
    verifier.after = run.cancel
    assert list(run) == []
    assert verifier.read == [256]
    assert run.trace.summary()["finish_reason"] == "cancelled"
    assert (run.trace.token_ids, run.trace.summary()["tokens_per_second"]) == ([], None)


class Counting(ToyVerifier):
    """Notes the width of every pass, and then calls `after`."""

    def __init__(self, **options):
        super().__init__(**options)
        self.read = []
        self.after = lambda: None

    def forward(self, ids, cache, **options):
        self.read.append(len(ids))
        out = super().forward(ids, cache, **options)
        self.after()
        return out


@pytest.mark.parametrize("length", [255, 256, 257, 700])
def test_a_long_prompt_gives_the_same_text_in_chunks(tmp_path, length):
    write_checkpoint(tmp_path, "llama", max_position_embeddings=1024)
    model = ql.load(tmp_path)
    prompt = [(7 * place) % 90 for place in range(length)]
    whole = model.forward(prompt, model.new_cache(), logits="last").logits
    trace = ql.generate(model, prompt, max_new_tokens=3)
    assert trace.token_ids[0] == int(whole.argmax())
    assert trace.prefill.top[0][0][0] == trace.token_ids[0]


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ([1] * 5, "drafter fixed proposed 5 tokens; accepted: at most 4"),
        ([1, 96], "drafter fixed proposed the ids .*; accepted: 0…95"),
        ([1, -1], "accepted: 0…95"),
        ([1, 2.5], "a draft of fixed: number 2 is 2.5"),
        (Draft([1, 2], probs=torch.ones(2, 5)), "gave probabilities of shape"),
        (Draft([1, 2], probs=torch.ones(1, 96)), "gave probabilities of shape"),
    ],
    ids=str,
)
def test_a_draft_that_cannot_be_used_is_named_and_nothing_is_lost(tiny, draft, message):
    drafter = FixedDrafter(lambda ids, budget: draft if len(ids) > len(PROMPT) + 3 else [])
    run = ql.stream(tiny, PROMPT, drafter=drafter, max_new_tokens=30)
    with pytest.raises(InputError, match=message):
        list(run)
    plain = ql.generate(tiny, PROMPT, drafter="none", max_new_tokens=30).token_ids
    assert run.trace.token_ids == plain[:4]
    assert run.trace.summary()["finish_reason"] == "cancelled"


def test_a_drafter_that_proposes_no_draft_is_named(tiny, monkeypatch):
    monkeypatch.setattr(FixedDrafter, "propose", lambda self, budget, hidden: None)
    with pytest.raises(InputError, match="drafter fixed proposed None; accepted: a Draft"):
        ql.generate(tiny, PROMPT, drafter=FixedDrafter(None))


@pytest.mark.parametrize("kind", [np.array, torch.tensor, tuple, lambda ids: [np.int32(n) for n in ids]], ids=str)
def test_ids_of_any_library_are_a_prompt(tiny, kind):
    wanted = ql.generate(tiny, PROMPT, max_new_tokens=6)
    found = ql.generate(tiny, kind(PROMPT), max_new_tokens=np.int64(6), gamma=torch.tensor(4))
    assert found.token_ids == wanted.token_ids
    assert found.prompt_ids == PROMPT
    assert json.dumps(found.header)


@pytest.mark.parametrize(
    "prompt", [None, 5, 2.5, [1.5], [None], torch.ones(2, 2), ["a", "b"], [{"role": "user"}, 3], object()], ids=str
)
def test_what_is_no_prompt_is_refused(tiny, prompt):
    with pytest.raises(InputError, match="accepted"):
        ql.generate(tiny, prompt)


@pytest.mark.parametrize(
    "options",
    [
        *({name: value} for name in ("gamma", "max_new_tokens", "top_k", "seed") for value in (2.5, None, "2", [2])),
        *({name: value} for name in ("temperature", "top_p", "min_p") for value in (None, "0.5", [0.5], float("nan"))),
        *({"repetition_penalty": value} for value in (None, "1", 0, -1, float("nan"), float("inf"))),
        *({"stop": value} for value in (5, [5], [None], {"a": 1}.keys())),
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"template_args": ["a=b"]},
    ],
    ids=str,
)
def test_options_of_another_kind_are_refused_before_anything_runs(tiny, options, monkeypatch):
    monkeypatch.setattr(type(tiny), "forward", None)
    with pytest.raises(InputError, match="accepted"):
        ql.generate(tiny, PROMPT, **options)


def test_a_prompt_of_one_token_and_one_that_fills_the_context(tiny):
    assert len(ql.generate(tiny, [5], max_new_tokens=9).token_ids) <= 9
    full = ql.generate(tiny, [(7 * place) % 90 for place in range(128)], max_new_tokens=9).summary()
    assert (full["new_tokens"], full["finish_reason"]) == (1, "length")
    assert full["tokens_per_second"] is None


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "empty"),
        ([1] * 129, {}, "at most 128"),
        ([96], {}, "0…95"),
        ("text", {}, "no tokenizer"),
        ([1], {"gamma": 0}, "1…16"),
        ([1], {"gamma": 17}, "1…16"),
        ([1], {"max_new_tokens": 0}, "1 or more"),
        ([1], {"stop": ["x"]}, "no tokenizer"),
        ([1], {"drafter": "telepathy"}, "accepted"),
    ],
)
def test_bad_input_is_refused(tiny, prompt, options, message):
    with pytest.raises(InputError, match=message):
        ql.generate(tiny, prompt, **options)


def test_trees_are_refused_by_name(tiny):
    tree = FixedDrafter(lambda ids, budget: ql.speculative.Draft([1, 2], parents=[-1, -1]))
    with pytest.raises(NotInThisVersion, match="tree"):
        ql.generate(tiny, PROMPT, drafter=tree)


def test_a_run_is_iterated_once(tiny):
    run = ql.stream(tiny, PROMPT, max_new_tokens=5)
    list(run)
    with pytest.raises(InputError, match="iterated already"):
        list(run)
    assert len(run.trace.token_ids) == run.trace.summary()["new_tokens"]


def test_an_interrupt_leaves_a_cancelled_trace(tiny):
    class Interrupted:
        calls = 0

        def __getattr__(self, name):
            return getattr(tiny, name)

        def forward(self, *args, **options):
            self.calls += 1
            if self.calls == 4:
                raise KeyboardInterrupt
            return tiny.forward(*args, **options)

    run = ql.stream(Interrupted(), PROMPT, drafter="none", max_new_tokens=50)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    assert run.trace.summary()["finish_reason"] == "cancelled"
    assert run.trace.summary()["new_tokens"] == 3


def test_what_the_consumer_does_is_not_the_runs_time(tiny, monkeypatch):
    """On a clock that only the consumer moves, a run takes no time."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    run = ql.stream(tiny, PROMPT, drafter="none", max_new_tokens=9)
    for _ in run:
        now[0] += 100.0
    assert run.trace.summary()["seconds"]["total"] == 0
