"""An INT8 verifier audited by BF16 writes the BF16 model's own text."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import write_checkpoint
from tiny_quantized import RECIPES, same_but_for_time, smoothed
from toys import VOCAB, FixedDrafter, toy_pair

import quasar_lab as ql
from quasar_lab.models.decoder import Output
from quasar_lab.models.input_map import ValueMap, of_all_layers
from quasar_lab.speculative import audit
from quasar_lab.speculative.audit import Audited, Auditor
from quasar_lab.speculative.drafters import NoDrafter
from quasar_lab.speculative.pass_times import interpolate
from quasar_lab.support.errors import InputError

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def error(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("family", ["llama", "llama-one-kv", "qwen2", "qwen3"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_adopted_rows_are_in_the_adopters_basis(tmp_path, family, recipe):
    """In the first layer the two verifiers differ by the rounding alone."""
    write_checkpoint(tmp_path, family)
    model = ql.load(tmp_path)
    w8a8 = smoothed(model, tmp_path, recipe)
    exact, own, adopted = model.new_cache(32), w8a8.new_cache(32), w8a8.new_cache(32)
    model.forward(PROMPT, exact)
    w8a8.forward(PROMPT, own)
    w8a8.adopt(adopted, exact, 0, len(PROMPT))
    rows = slice(0, len(PROMPT))
    assert adopted.length == len(PROMPT)
    assert error(adopted.k[0, :, rows], own.k[0, :, rows]) < 0.03
    assert error(adopted.v[0, :, rows], own.v[0, :, rows]) < 0.03
    assert error(exact.v[0, :, rows], own.v[0, :, rows]) > 0.06, "the factors are 1: this shows nothing"


def test_a_value_map_scales_and_turns():
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, 5, 4, generator=generator)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=generator)).Q
    inv_scale = torch.rand(2, 4, generator=generator) + 0.5
    before = v.clone()
    found = ValueMap(inv_scale, rotation)(v)
    for group in range(2):
        assert torch.allclose(found[group], (v[group] * inv_scale[group]) @ rotation, atol=1e-6)
    assert torch.equal(ValueMap(torch.ones(2, 4), None)(v), before)
    assert torch.equal(v, before), "the input was changed"


@pytest.mark.parametrize("parts", ["", "rotation", "shift", "rotation shift", "some", "one missing"])
def test_the_maps_of_all_layers_are_one_map(parts):
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(3, 2, 5, 8, generator=generator)
    maps = {}
    for layer in range(3):
        rotation = torch.linalg.qr(torch.randn(8, 8, generator=generator)).Q
        turned = "rotation" in parts or (parts == "some" and layer == 1)
        shift = torch.randn(2, 8, generator=generator) if "shift" in parts else None
        maps[layer] = ValueMap(torch.rand(2, 8, generator=generator) + 0.5, rotation if turned else None, shift)
    if parts == "one missing":
        del maps[1]
    whole = of_all_layers(maps, 3)
    if parts in ("some", "one missing"):
        assert whole is None
    else:
        assert torch.allclose(whole(v), torch.stack([maps[layer](v[layer]) for layer in range(3)]), atol=1e-6)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 6), (2, 9), (3, 2)])
def test_rows_that_are_not_there_are_not_adopted(tiny, start, stop):
    cache, other = tiny.new_cache(6), tiny.new_cache(12)
    tiny.forward([1, 2, 3], cache)
    tiny.forward(PROMPT, other)
    with pytest.raises(InputError, match="accepted"):
        tiny.adopt(cache, other, start, stop)
    assert cache.length == 3


# --- temperature 0: the BF16 model's text, bit for bit ----------------------------------------------------------------


class Wrapped:
    """A verifier whose logits pass through `change(logits, cache)`, under another name."""

    def __init__(self, inner, name, change=lambda logits, cache: logits):
        self.inner, self.name, self.change = inner, name, change

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def forward(self, ids, cache, **options):
        out = self.inner.forward(ids, cache, **options)
        return Output(self.change(out.logits, cache), out.hidden)


def flipped(logits, cache):
    return logits.roll(1, dims=-1)


def sometimes_flipped(logits, cache):
    """Every third place of the text is wrong."""
    first = cache.length - len(logits)
    wrong = torch.tensor([(first + row) % 3 == 0 for row in range(len(logits))])
    return torch.where(wrong[:, None], logits.roll(1, dims=-1), logits)


@pytest.fixture(scope="module")
def fasts(tiny, tmp_path_factory):
    """From nearly always right to never."""
    return {
        "same": Wrapped(tiny, "same"),
        "w8a8": smoothed(tiny, tmp_path_factory.mktemp("smoothed")),
        "sometimes": Wrapped(tiny, "sometimes", sometimes_flipped),
        "never": Wrapped(tiny, "never", flipped),
    }


FASTS = ("same", "w8a8", "sometimes", "never")


@pytest.mark.parametrize("length", [1, 2, 5, 100, None])
@pytest.mark.parametrize("fast", FASTS)
def test_greedy_text_is_the_exact_verifiers_own(tiny, fasts, fast, length):
    pair = ql.audited(fasts[fast], tiny, length)
    for limit in (1, 2, 7, 1000):
        plain = ql.generate(tiny, PROMPT, drafter="none", max_new_tokens=limit)
        for drafter, gamma in (("none", 1), ("ngram", 4), (oracle(plain.token_ids), 3)):
            run = ql.generate(pair, PROMPT, drafter=drafter, gamma=gamma, max_new_tokens=limit)
            assert run.token_ids == plain.token_ids
            summary = run.summary()
            assert summary["token_ids"] == plain.token_ids
            assert summary["finish_reason"] == plain.summary()["finish_reason"]
            assert summary["text"] == plain.summary()["text"]
            if limit == 1:
                assert run.rounds == run.audits == []


def oracle(text):
    return FixedDrafter(lambda ids, budget: text[len(ids) - len(PROMPT) :][:budget])


def test_the_fast_verifiers_are_what_the_tests_above_need(tiny, fasts):
    """At the end of the context, none flips, some do, or all: and no length that is fixed is overrun by a round."""
    rates = {}
    for name in FASTS:
        run = ql.generate(ql.audited(fasts[name], tiny, 5), PROMPT, drafter="none", max_new_tokens=1000)
        assert run.summary()["finish_reason"] in ("length", "eos")
        assert all(record.length <= 5 for record in run.audits)
        rates[name] = run.summary()["flip_rate"]
    assert rates["same"] == 0
    assert 0 < rates["w8a8"] < 0.5
    assert 0.2 < rates["sometimes"] < 0.5
    assert rates["never"] == 1


@settings(max_examples=300, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    gamma=st.integers(1, 16),
    limit=st.integers(1, 40),
    length=st.none() | st.integers(1, 30),
    noise=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    eos=st.sets(st.integers(0, VOCAB - 1), max_size=3),
    stop=st.lists(st.text("abcdefghijkl", min_size=1, max_size=3), max_size=2),
    context=st.integers(6, 30),
    seed=st.integers(0, 1000),
)
def test_any_fast_verifier_any_draft_any_end(prompt, gamma, limit, length, noise, eos, stop, context, seed):
    """Whatever the fast verifier writes, wherever the text ends: the same tokens, the same reason, nothing beyond."""
    pair = toy_pair(noise, length, eos, context)
    exact = pair.exact
    generator = torch.Generator().manual_seed(seed)
    drafter = FixedDrafter(None)

    def choose(ids, budget):
        assert ids == prompt + run.trace.token_ids + run._audits.auditor.pending, "the drafter was not rolled back"
        draft = list(ids)
        for _ in range(budget):
            good = int(torch.randint(4, (1,), generator=generator)) > 0
            draft.append(int(exact.row(draft).argmax()) if good else 5)
        return draft[len(ids) :]

    drafter.choose = choose
    plain = ql.generate(exact, prompt, drafter="none", max_new_tokens=limit, stop=stop)
    run = ql.stream(pair, prompt, drafter=drafter, gamma=gamma, max_new_tokens=limit, stop=stop)
    records = list(run)
    trace, summary = run.trace, run.trace.summary()
    assert trace.token_ids == summary["token_ids"] == plain.token_ids
    assert trace.text == plain.text
    assert summary["finish_reason"] == plain.summary()["finish_reason"]
    assert list(trace.steps()) == records
    assert drafter.ids == prompt + plain.token_ids
    check_records(trace)


def check_records(trace):
    """What records say about each other: every token of a round is audited once, in order."""
    summary, states = trace.summary(), trace.audit_states()
    tokens = [token for record in trace.rounds for token in record.emitted_ids]
    assert sum(record.length for record in trace.audits) == len(tokens)
    flat = [state for row in states for state in row]
    assert "provisional" not in flat
    kept = [token for token, state in zip(tokens, flat, strict=True) if state != "retracted"]
    own = [record.emitted_ids[record.accepted :] for record in trace.audits]
    assert len(kept) + sum(map(len, own)) == summary["new_tokens"] - 1
    assert summary["rounds"] == len(trace.rounds)
    assert summary["audits"] == len(trace.audits)
    assert summary["retracted"] == flat.count("retracted")
    assert summary["flips"] == sum(record.accepted < record.length for record in trace.audits)
    place = len(trace.header["prompt_ids"]) + 1
    for record in trace.audits:
        assert record.position == place
        assert len(record.p) == len(record.q) == len(record.u) == record.length
        assert record.length <= len(record.top) <= record.length + 1
        place += len(record.emitted_ids)
        ends = record is trace.audits[-1] and record.accepted == record.length and record.trigger != "due"
        assert len(record.emitted_ids) == record.accepted + (not ends or record.trigger == "cancelled")


def test_both_kinds_of_ends_are_confirmed_and_taken_back():
    """The ends that the test above must have met: provisional ones that stayed, and ones that did not."""
    seen = set()
    for seed in range(60):
        for options in ({"eos": (seed % VOCAB,)}, {"stop": [chr(ord("a") + seed % VOCAB)]}):
            stop = options.pop("stop", None)
            pair = toy_pair(1.0, 6, **options, seed=seed)
            run = ql.generate(pair, [1, 2], drafter="none", max_new_tokens=20, stop=stop)
            plain = ql.generate(pair.exact, [1, 2], drafter="none", max_new_tokens=20, stop=stop)
            assert run.token_ids == plain.token_ids
            seen |= {(record.trigger, record.accepted == record.length) for record in run.audits}
            seen |= {(run.summary()["finish_reason"], "corrected") for _ in run.audits[-1:] if corrected(run)}
    assert seen >= {(why, kept) for why in ("eos", "stop", "limit", "due") for kept in (True, False)}
    assert seen >= {(why, "corrected") for why in ("eos", "stop", "length")}


def corrected(run):
    return run.audits[-1].emitted_states[-1] == "corrected"


@pytest.mark.parametrize("fast", FASTS)
def test_the_exact_cache_is_a_fresh_prefills_bit_for_bit(tiny, fasts, fast):
    """After every audit, and its logits too: nothing that the fast verifier wrote is ever in it."""
    caches, passes = [], 0

    class Watched(Wrapped):
        def new_cache(self, capacity=None):
            caches.append(self.inner.new_cache(capacity))
            return caches[-1]

        def forward(self, ids, cache, **options):
            nonlocal passes
            assert cache is caches[-1], "BF16 read another verifier's cache"
            out = self.inner.forward(ids, cache, **options)
            if passes:
                written = PROMPT + run.trace.token_ids
                assert written[-1] == ids[0]
                text = written + ids[1:]
                assert cache.length == len(text)
                fresh = tiny.new_cache()
                logits = tiny.forward(text, fresh).logits
                assert torch.equal(out.logits, logits[-len(ids) :])
                assert torch.equal(cache.k[:, :, : len(text)], fresh.k[:, :, : len(text)])
                assert torch.equal(cache.v[:, :, : len(text)], fresh.v[:, :, : len(text)])
            passes += 1
            return out

    def poison(logits, cache):
        """Whoever reads these rows cannot give the right logits."""
        first = cache.length - len(logits)
        cache.k[:, :, first : cache.length] = 7.0
        cache.v[:, :, first : cache.length] = -7.0
        return logits

    inner = fasts[fast]
    for reader in (inner, Wrapped(inner, "poisonous", poison)):
        passes = 0
        pair = ql.audited(reader, Watched(tiny, "bf16"), 6)
        run = ql.stream(pair, PROMPT, gamma=3, max_new_tokens=60)
        assert len([record for record in run if record.kind == "audit"]) == passes - 1 > 3


def test_the_fast_cache_adopts_every_audited_row(tiny, fasts):
    """A round behind an audit reads what the exact verifier computed, for all tokens but its own."""
    w8a8, caches = fasts["w8a8"], []

    class Watched(Wrapped):
        def new_cache(self, capacity=None):
            caches.append(self.inner.new_cache(capacity))
            return caches[-1]

        def adopt(self, cache, other, start, stop):
            self.inner.adopt(cache, other, start, stop)
            assert cache.length == stop == other.length
            for layer, to_here in w8a8.value_maps.items():
                assert torch.equal(cache.k[layer, :, :stop], other.k[layer, :, :stop])
                assert torch.equal(cache.v[layer, :, :stop], to_here(other.v[layer, :, :stop]))
            adopted.append(stop)

    adopted = []
    run = ql.generate(ql.audited(Watched(w8a8, "w8a8"), tiny, 4), PROMPT, max_new_tokens=40)
    assert adopted[0] == len(PROMPT)
    assert len(adopted) == 1 + len(run.audits)
    ends = [record.position + len(record.emitted_ids) - 1 for record in run.audits]
    assert adopted[1:] == ends[:-1] + adopted[-1:]


@pytest.mark.parametrize("fast", ["same", "sometimes"])
def test_drafters_get_the_hidden_states_of_the_rows_that_count(tiny, fasts, fast):
    """Every hidden state handed to a drafter predicts the token that comes with it, but where the fast verifier's own
    logits are made to flip."""

    class Watching(NoDrafter):
        needs_hidden = True

        def reset(self, ids):
            self.length, self.corrected = len(ids), False

        def propose(self, budget, hidden):
            assert hidden.shape == (1, 32)
            assert torch.equal(hidden[0], self.latest)
            return super().propose(budget, hidden)

        def commit(self, ids, hidden):
            for token, row in zip(ids, [] if hidden is None else hidden, strict=True):
                logits = tiny.ops.linear_bf16(row[None], tiny.head.weight, tiny.head.bias)
                right.append((int(logits.argmax()) == token, self.corrected))
                self.latest, self.corrected = row, False
            self.length += len(ids)

        def rollback(self, length):
            self.length, self.corrected = length, True

    right, drafter = [], Watching()
    run = ql.generate(ql.audited(fasts[fast], tiny, 5), PROMPT, drafter=drafter, max_new_tokens=30)
    assert drafter.length == len(PROMPT) + 30
    assert all(hit for hit, corrected in right if corrected or fast == "same")
    assert sum(corrected for _, corrected in right) == run.summary()["flips"]


@pytest.mark.slow
def test_the_embedded_model_audited_writes_its_bf16_text(embedded, w8a8):
    pair, refused = ql.audited(w8a8, embedded), 0
    for question in ql.prompts.ours(1):
        for options in ({"max_new_tokens": 64}, {"max_new_tokens": 40, "stop": [".", "\n\n"]}):
            plain = ql.generate(embedded, question.turns[0], drafter="none", **options).summary()
            for drafter in ("none", "ngram"):
                run = ql.generate(pair, question.turns[0], drafter=drafter, **options).summary()
                for key in ("token_ids", "text", "finish_reason"):
                    assert run[key] == plain[key], (question.id, drafter, options)
                refused += run["flips"]
    assert refused, "nothing was refused: this shows little"


def test_a_seed_repeats_the_run(tiny, fasts):
    pair = ql.audited(fasts["w8a8"], tiny)
    one, again, other = (ql.generate(pair, PROMPT, temperature=1.0, seed=seed, max_new_tokens=60) for seed in (5, 5, 6))
    assert same_but_for_time(one) == same_but_for_time(again)
    assert one.token_ids != other.token_ids


# --- how long to wait -------------------------------------------------------------------------------------------------


def chosen(pair, refused, judged, tokens=(), flat=None):
    auditor = Auditor(pair if flat is None else replace(pair, curves=flat))
    for width, count in tokens:
        auditor.wait([0] * count, None, width)
    auditor.seen.judged, auditor.seen.refused = judged, refused
    return auditor.length


def test_the_length_follows_flips_costs_and_drafts(tiny, fasts):
    pair = ql.audited(fasts["w8a8"], tiny)
    assert 2 <= chosen(pair, 0, 0) <= 12, "the first guess"
    assert chosen(pair, 0, 1000) >= chosen(pair, 30, 1000) > chosen(pair, 300, 1000) >= 1
    assert chosen(pair, 1000, 1000) == 1
    flat = {"w8a8": {1: 1.0, 64: 1.1}, "bf16": {1: 2.0, 64: 2.2}}
    assert chosen(pair, 30, 1000, flat=flat) > chosen(pair, 30, 1000)
    assert chosen(pair, 0, 1000, flat=flat) > chosen(pair, 30, 1000, flat=flat) > chosen(pair, 300, 1000, flat=flat)
    dear = {"w8a8": {"1": 1.0}, "bf16": {"1": 20.0, "64": 20.0}}
    assert chosen(pair, 30, 1000, flat=dear) > chosen(pair, 30, 1000, flat=flat)
    assert chosen(pair, 0, 10**9, flat=dear) == audit.LONGEST
    assert chosen(pair, 30, 1000, [(5, 5)] * 20, dear) > chosen(pair, 30, 1000, [(1, 1)] * 20, dear)
    assert chosen(replace(pair, length=9), 30, 1000) == 9


def test_the_chosen_length_is_the_best_one(tiny, fasts):
    """By trying all, in a simulation: tokens per second where each token is refused with probability f."""
    curves = {"w8a8": {1: 6.0, 5: 7.0}, "bf16": {1: 11.0, 8: 16.0, 16: 26.0, 48: 80.0}}
    for rate in (0.01, 0.05, 0.2):
        pair = ql.audited(fasts["w8a8"], tiny, curves=curves)
        found = chosen(pair, int(rate * 10**6), 10**6, [(1, 1)] * 10**4)

        def speed(length, rate=rate):
            generator = torch.Generator().manual_seed(0)
            fine = (torch.rand(20_000, length, generator=generator) >= rate).long().cumprod(dim=1).sum(dim=1)
            return float(fine.float().mean() + 1) / (6.0 * length + interpolate(curves["bf16"], length + 1))

        assert speed(found) > 0.99 * max(map(speed, range(1, audit.LONGEST + 1)))


def test_times_between_measured_widths():
    curve = {"1": 10.0, "5": 12.0, "9": 20.0}
    assert [interpolate(curve, width) for width in (1, 3, 5, 6, 9, 11)] == [10, 11, 12, 14, 20, 24]
    assert interpolate({4: 3.0}, 9) == 3.0


# --- ends that are none -----------------------------------------------------------------------------------------------


def test_cancelling_audits_what_is_pending(tiny, fasts):
    plain = ql.generate(tiny, PROMPT, drafter="none", max_new_tokens=60).token_ids
    run = ql.stream(ql.audited(fasts["sometimes"], tiny, 40), PROMPT, drafter="none", max_new_tokens=60)
    for record in run:
        if record.kind == "round" and record.index == 3:
            run.cancel()
    assert [record.trigger for record in run.trace.audits] == ["cancelled"]
    assert run.trace.summary()["finish_reason"] == "cancelled"
    assert run.trace.token_ids == plain[: len(run.trace.token_ids)]
    assert len(run.trace.token_ids) > 1


@pytest.mark.parametrize("where", ["round", "audit", "left"])
def test_a_run_cut_short_keeps_audited_text_only(tiny, fasts, where):
    """Also where a provisional end of the text was waiting for its audit."""
    plain = ql.generate(tiny, PROMPT, drafter="none", max_new_tokens=60).token_ids
    calls = 0

    def interrupt(logits, cache):
        nonlocal calls
        calls += 1
        if calls == (9 if where == "round" else 3):
            raise KeyboardInterrupt
        return logits

    fast = Wrapped(fasts["same"], "fast", interrupt if where == "round" else lambda logits, cache: logits)
    exact = Wrapped(tiny, "bf16", interrupt if where == "audit" else lambda logits, cache: logits)
    run = ql.stream(ql.audited(fast, exact, 5), PROMPT, drafter="none", max_new_tokens=14)
    if where == "left":
        for record in run:
            if record.kind == "round" and run._run.text.finish is not None:
                break
        run = run.trace
        import gc

        gc.collect()
    else:
        with pytest.raises(KeyboardInterrupt):
            list(run)
        run = run.trace
    summary = run.summary()
    assert summary["finish_reason"] == "cancelled"
    assert summary["token_ids"] == run.token_ids == plain[: len(run.token_ids)]
    assert summary["new_tokens"] < 14
    assert "provisional" in [state for row in run.audit_states() for state in row]


# --- a verifier like any other ----------------------------------------------------------------------------------------


def test_usable_wherever_a_verifier_is(tiny, fasts):
    pair = ql.audited(fasts["w8a8"], tiny)
    assert isinstance(pair, Audited)
    assert (pair.name, pair.identity["recipe"]) == ("w8a8+bf16", "w8a8+bf16")
    assert (pair.context, pair.vocab, pair.eos_ids) == (tiny.context, tiny.vocab, tiny.eos_ids)
    assert (pair.device, pair.backend) == (tiny.device, tiny.backend)
    assert pair.weight_bytes < tiny.weight_bytes
    assert "w8a8+bf16" in repr(pair)
    cache, fresh = pair.new_cache(40), tiny.new_cache(40)
    for step in ([1, 2, 3], [4], [5, 6]):
        assert torch.equal(pair.forward(step, cache).logits, tiny.forward(step, fresh).logits)
        assert cache.length == cache.fast.length == fresh.length
    pair.rollback(cache, 2)
    assert cache.length == cache.fast.length == 2


@pytest.mark.parametrize("length", [0, -1, 257])
def test_lengths_outside_are_refused(tiny, fasts, length):
    with pytest.raises(InputError, match="1…256"):
        ql.audited(fasts["w8a8"], tiny, length)


def test_pairs_that_are_none_are_refused(tiny, fasts, tmp_path):
    write_checkpoint(tmp_path, "llama", seed=1)
    other = ql.load(tmp_path)
    w8a8 = fasts["w8a8"]
    for fast, exact, message in (
        (w8a8, other, "same weights"),
        (tiny, w8a8, "accepted: the BF16 model"),
        (w8a8, w8a8, "accepted: the BF16 model"),
        (tiny, tiny, "cannot be audited"),
        (ql.audited(w8a8, tiny), tiny, "cannot be audited"),
    ):
        with pytest.raises(InputError, match=message):
            ql.audited(fast, exact)
    with pytest.raises(InputError, match="curves are of bf16; accepted: of w8a8 and bf16"):
        ql.audited(w8a8, tiny, curves={"bf16": {1: 1.0}})
