"""The engine of a device, on CPU tensors: same bits as the plain decoder, whatever its graphs, buffers and arenas did
before."""

import gc
import inspect
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quasar_kernels import reference
from quasar_kernels.simulated_device import SimulatedDevice
from quasar_kernels.threads import single_torch_thread
from tiny_models import write_checkpoint
from tiny_quantized import same_but_for_time, smoothed
from toys import VOCAB, FixedDrafter, SamplingDrafter

import quasar_lab as ql
from quasar_lab.cli import app
from quasar_lab.models import cuda_graphs
from quasar_lab.quantization.calibration import collect, grams
from quasar_lab.speculative import clock, verified_rows
from quasar_lab.speculative.clock import Stopwatch
from quasar_lab.speculative.device_rejection import accept_on_device
from quasar_lab.speculative.drafters import Draft
from quasar_lab.speculative.rejection import accept
from quasar_lab.speculative.sampling import Sampling, target
from quasar_lab.speculative.verified_rows import read_rows
from quasar_lab.support.errors import InputError

IDS = torch.randint(0, 94, (120,), generator=torch.Generator().manual_seed(2)).tolist()
PROMPT = IDS[:8]
FAMILIES = ["qwen3", "mistral-window-8"]


@pytest.fixture(scope="module", autouse=True)
def one_backend():
    """The host's log Σ exp comes from the reference too (backends agree on it to a tolerance only), on one thread."""
    with pytest.MonkeyPatch.context() as patch, single_torch_thread():
        patch.setattr(verified_rows, "top_rows", reference.top_rows)
        yield


def on_device(plain):
    """The same weights behind the engine."""
    return replace(plain, ops=SimulatedDevice())


@pytest.fixture(scope="module", params=[*FAMILIES, "w8a8"])
def pair(request, tmp_path_factory):
    """(a decoder of the reference, the same behind the engine)."""
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder, "qwen3" if request.param == "w8a8" else request.param)
    plain = ql.load(folder, backend="reference")
    if request.param == "w8a8":
        plain = smoothed(plain, folder)
    return plain, on_device(plain)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory):
    """A plain decoder whose context takes arenas of several sizes."""
    folder = tmp_path_factory.mktemp("roomy")
    write_checkpoint(folder, "llama", max_position_embeddings=20000)
    return ql.load(folder, backend="reference")


@pytest.fixture(scope="module")
def verifiers(tmp_path_factory):
    """BF16 and W8A8 of the reference, and the same two behind engines."""
    folder = tmp_path_factory.mktemp("pair")
    write_checkpoint(folder, "llama")
    bf16 = ql.load(folder, backend="reference")
    w8a8 = smoothed(bf16, folder)
    return (bf16, w8a8), (on_device(bf16), on_device(w8a8))


def same(found, wanted, hidden):
    assert torch.equal(found.logits, wanted.logits)
    assert torch.equal(found.hidden, wanted.hidden) if hidden else found.hidden is None
    values, ids, log_sums = wanted_top = SimulatedDevice().top_rows(wanted.logits, 5)
    assert torch.equal(found.top, torch.cat([ids, values, log_sums[:, None]], dim=1).double()), wanted_top


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("pass"), st.integers(0, 1), st.integers(1, 75), st.booleans(), st.sampled_from(["all", "last"])
        ),
        st.tuples(st.just("tree"), st.integers(0, 1), st.lists(st.integers(-1, 4), min_size=1, max_size=5)),
        st.tuples(st.just("back"), st.integers(0, 1), st.integers(0, 50)),
        st.tuples(st.just("new"), st.integers(0, 1), st.integers(45, 128)),
    ),
    max_size=10,
)


@settings(max_examples=25, deadline=None)
@given(ACTIONS)
def test_any_history_of_two_caches_has_the_bits_of_the_plain_decoder(pair, actions):
    plain, device = pair
    device._executor._passes._chunk = (
        24  # so that what no graph takes, prompts above 16 rows and passes above 64, is cut
    )
    caches = [(plain.new_cache(), device.new_cache()) for _ in "ab"]
    for number, (what, which, *rest) in enumerate(actions):
        ours, theirs = caches[which]
        if what == "back":
            for decoder, cache in zip(pair, (ours, theirs), strict=True):
                decoder.rollback(cache, max(0, cache.length - rest[0]))
        elif what == "new":
            del ours, theirs
            caches[which] = (None, None)
            caches[which] = plain.new_cache(rest[0]), device.new_cache(rest[0])
        elif what == "tree":
            parents = [min(parent, row - 1) for row, parent in enumerate(rest[0])]
            ids = IDS[number : number + len(parents)]
            if ours.length + len(ids) <= ours.capacity:
                wanted, found = (d.forward(ids, c, parents=parents) for d, c in zip(pair, (ours, theirs), strict=True))
                same(found, wanted, False)
        else:
            width, hidden, logits = rest
            ids, options = IDS[number : number + width], {"hidden": hidden, "logits": logits}
            if ours.length + width > ours.capacity:
                for decoder, cache in zip(pair, (ours, theirs), strict=True):
                    with pytest.raises(InputError, match=str(cache.capacity)):
                        decoder.forward(ids, cache, **options)
            else:
                wanted, found = (d.forward(ids, c, **options) for d, c in zip(pair, (ours, theirs), strict=True))
                same(found, wanted, hidden)
        ours, theirs = caches[which]
        assert ours.length == theirs.length


def test_positions_and_layers_are_the_callers(pair):
    _, device = pair
    for options in (
        {"positions": [3, 9, 4]},
        {"layers": [1]},
        {"layers": []},
        {"positions": [7, 8, 9], "hidden": True},
    ):
        wanted, found = (decoder.forward(IDS[:3], decoder.new_cache(), **options) for decoder in pair)
        same(found, wanted, "hidden" in options)
    with pytest.raises(InputError, match=r"0…127"):
        device.forward(IDS[:2], device.new_cache(), positions=[0, 128])


def test_taps_and_calibration_see_the_same_numbers(pair):
    plain, device = pair
    seen = {}
    for name, decoder in (("plain", plain), ("device", device)):
        rows = seen[name] = []
        decoder.forward(
            IDS[:40], decoder.new_cache(), taps=lambda layer, part, x, rows=rows: rows.append((layer, part, x))
        )
    assert [row[:2] for row in seen["plain"]] == [row[:2] for row in seen["device"]]
    assert all(torch.equal(a[2], b[2]) for a, b in zip(*seen.values(), strict=True))
    statistics = [collect(decoder, [IDS[:30]]).channels for decoder in pair]
    assert all(torch.equal(statistics[0][key].square, statistics[1][key].square) for key in statistics[0])
    sums = [list(grams(decoder, [IDS[:20]], [IDS[20:30]])) for decoder in pair]
    for (_, ours), (_, theirs) in zip(*sums, strict=True):
        assert all(torch.equal(ours[part][0], theirs[part][0]) for part in ours)


def test_a_width_is_captured_once_and_runs_share_an_arena(roomy):
    device = on_device(roomy)
    ops = device.ops
    for _ in range(3):
        cache = device.new_cache(60)
        device.forward(IDS[:40], cache, logits="last")
        for width in (1, 5, 1, 5, 16):
            device.forward(IDS[:width], cache)
            device.rollback(cache, 40)
        del cache
    assert (ops.captured, ops.replayed) == (3, 15)
    cache = device.new_cache(60)
    device.forward(IDS[:20], cache, logits="last")
    assert (ops.captured, ops.replayed) == (3, 15), "a prompt comes once"
    device.forward(IDS[:20], cache)
    assert (ops.captured, ops.replayed) == (4, 16), "a verify pass or an audit of 20 rows comes again"
    device.forward(IDS[:4], cache, hidden=True)
    assert ops.captured == 5, "hidden states are another graph"


def test_living_caches_never_share_memory(roomy):
    device = on_device(roomy)
    first, second = device.new_cache(50), device.new_cache(50)
    assert first.k.data_ptr() != second.k.data_ptr()
    held = second.k.data_ptr()
    del second
    assert device.new_cache(1000).k.data_ptr() == held, "a free arena that fits is used again"


def test_arenas_that_are_too_small_go_with_their_graphs(roomy):
    device = on_device(roomy)
    cache = device.new_cache(100)
    assert (cache.capacity, cache.k.shape[2]) == (100, cuda_graphs.SMALLEST_ARENA)
    device.forward(IDS[:3], cache)
    del cache
    cache = device.new_cache(5000)
    assert cache.k.shape[2] == 8192
    device.forward(IDS[:3], cache)
    gc.collect()
    passes = device._executor._passes
    assert len(passes._arenas) == len(passes._graphs) == 1
    small = device.new_cache(100)
    assert small.k.shape[2] == 1024, "the large one is held"
    del cache, small
    assert device.new_cache(20).k.shape[2] == 1024, "of two that fit, the smaller"
    assert device.new_cache().k.shape[2] == 20000, "never beyond the context"


def test_capacity_is_what_was_asked_for_though_the_arena_is_larger(roomy):
    device = on_device(roomy)
    cache = device.new_cache(10)
    device.forward(IDS[:8], cache)
    with pytest.raises(InputError, match="10"):
        device.forward(IDS[:3], cache)
    assert cache.length == 8
    device.forward(IDS[:2], cache)
    assert cache.length == cache.capacity == 10


def test_what_an_earlier_lease_left_is_never_read(pair):
    plain, device = pair
    cache = device.new_cache()
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.nan)
    for width in (3, 1, 40, 2):
        device.forward(IDS[:width], cache)
    device.rollback(cache, 0)
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.nan)
    fresh = plain.new_cache()
    for width in (40, 2, 17):
        assert torch.equal(device.forward(IDS[:width], cache).logits, plain.forward(IDS[:width], fresh).logits)


def test_results_are_the_callers_to_keep(pair):
    _, device = pair
    cache = device.new_cache()
    kept = device.forward(IDS[:4], cache, hidden=True)
    copies = [part.clone() for part in (kept.logits, kept.hidden, kept.top)]
    device.forward(IDS[5:9], cache, hidden=True)
    assert all(torch.equal(a, b) for a, b in zip((kept.logits, kept.hidden, kept.top), copies, strict=True))


def test_a_cache_of_another_decoder_is_captured_apart(verifiers):
    (bf16, w8a8), (device, rounded) = verifiers
    cache, fresh = device.new_cache(), bf16.new_cache()
    device.forward(PROMPT, cache)
    bf16.forward(PROMPT, fresh)
    assert torch.equal(rounded.forward([5], cache).logits, w8a8.forward([5], fresh).logits)


def test_a_number_read_on_the_way_in_is_baked_into_the_tape():
    """What the tests above rely on: a simulated device's graph replays what it was captured with, as CUDA's would."""
    ops, start, kept = SimulatedDevice(), torch.tensor([2.0]), torch.zeros(1, 4)
    replay = ops.capture(lambda: ops.rmsnorm(torch.full((1, 4), float(start)), torch.ones(4), 1.0, out=kept))
    replay()
    before = kept.clone()
    start.fill_(9.0)
    replay()
    assert torch.equal(kept, before)
    poisoned = []
    ops.capture(lambda: poisoned.append(ops.rmsnorm(torch.ones(1, 4), torch.ones(4), 1.0)))
    assert not poisoned[0].isnan().any(), "the first call runs"
    assert poisoned[1].isnan().all(), "the captured one does not"


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}, {"temperature": 1.3, "top_k": 9, "top_p": 0.7}], ids=str)
@pytest.mark.parametrize("which", [0, 1], ids=["bf16", "w8a8"])
def test_a_run_is_the_plain_decoders_record_for_record(verifiers, which, options):
    """The verdicts of the device too: same draws, same probabilities, same text."""
    plain, device = (found[which] for found in verifiers)
    for drafter in ("ngram", "none"):
        runs = [
            ql.generate(decoder, PROMPT * 3, drafter=drafter, max_new_tokens=16, seed=4, **options)
            for decoder in (plain, device)
        ]
        assert same_but_for_time(runs[0]) == same_but_for_time(runs[1])
    if not options:
        assert runs[0].token_ids == ql.generate(device, PROMPT * 3, gamma=7, max_new_tokens=16).token_ids


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_audited_run_is_the_plain_ones(verifiers, temperature):
    runs = [
        ql.generate(ql.audited(w8a8, bf16, 5), PROMPT, max_new_tokens=40, temperature=temperature)
        for bf16, w8a8 in verifiers
    ]
    assert same_but_for_time(runs[0]) == same_but_for_time(runs[1])
    assert runs[0].audits
    if temperature == 0:
        assert runs[1].token_ids == ql.generate(verifiers[1][0], PROMPT, drafter="none", max_new_tokens=40).token_ids


SAMPLINGS = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.5, 1.0, 2.0]),
            "top_k": st.sampled_from([0, 4]),
            "top_p": st.sampled_from([0.6, 1.0]),
        }
    ),
)


@settings(max_examples=250, deadline=None)
@given(SAMPLINGS, st.integers(0, 6), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_the_device_verdict_is_the_hosts(options, drafts, drawn, behind, seed):
    """With and without a distribution of the draft, and with no row behind the last draft (an audit at the end)."""
    generator = torch.Generator().manual_seed(seed)
    rows = drafts + behind or 1
    logits = 3 * torch.randn(rows, VOCAB, generator=generator)
    logits[:, 7] = logits[:, 2]  # ties
    sampling = Sampling(**options)
    near = torch.softmax(logits[:drafts] + torch.randn(min(drafts, rows), VOCAB, generator=generator), dim=-1)
    ids = [int(torch.multinomial(row, 1, generator=generator)) for row in near]
    if seed % 3 == 0:
        ids = target(logits, sampling)[:drafts].argmax(dim=-1).tolist()  # kept more often
    draft = Draft(ids, None, near if drawn and options else None)
    ours, theirs = (torch.Generator().manual_seed(seed + 1) for _ in "ab")
    wanted_rows = read_rows(logits, sampling, 5)
    wanted = accept(wanted_rows, draft, sampling, ours)
    found_rows, found = accept_on_device(logits, SimulatedDevice().top_table(logits, 5), draft, sampling, theirs)
    assert found == wanted
    assert torch.equal(ours.get_state(), theirs.get_state())
    assert (found_rows.best_ids, found_rows.best_logits) == (wanted_rows.best_ids, wanted_rows.best_logits)
    for row in range(rows):
        for token in range(VOCAB):
            assert found_rows.probability(row, token) == wanted_rows.probability(row, token)


def test_unusable_logits_are_judged_without_touching_memory_that_is_not_there():
    """On a GPU an index out of range would end the process; the loop then says what is wrong."""
    logits = torch.full((3, VOCAB), torch.nan)
    top = SimulatedDevice().top_table(logits, 5)
    for options in ({}, {"temperature": 1.0}):
        draft, generator = Draft([1, 2]), torch.Generator().manual_seed(0)
        _, found = accept_on_device(logits, top, draft, Sampling(**options), generator)
        assert all(0 <= token < VOCAB for token in found.next_ids)


def test_drafts_with_distributions_run_on_the_device(verifiers):
    """A drafter that hands over the distribution it drew from."""

    class Drawing(SamplingDrafter):
        def sample(self, ids, budget):
            draft = super().sample([token % VOCAB for token in ids], budget)
            return Draft(draft.ids, None, torch.nn.functional.pad(draft.probs, (0, 96 - VOCAB)))

    runs = [
        ql.generate(found[0], PROMPT, drafter=Drawing(3), gamma=3, max_new_tokens=25, temperature=1.0)
        for found in verifiers
    ]
    assert same_but_for_time(runs[0]) == same_but_for_time(runs[1])


def test_what_reading_the_results_waited_for_is_the_passs_time(monkeypatch):
    for seconds, end in ((None, 1.1), (3.0, 4.0), (0.01, 1.1), (9.0, 5.0)):
        marks = iter((0.0, 1.0, 1.1, 5.0))
        monkeypatch.setattr(clock.time, "perf_counter", lambda marks=marks: next(marks))
        watch = Stopwatch()
        for name in ("draft", "verify", "sample"):
            watch.lap(name)
        watch.settle(None if seconds is None else lambda seconds=seconds: seconds)
        assert watch.seconds == pytest.approx({"draft": 1.0, "verify": end - 1.0, "sample": 5.0 - end})
        assert watch.total == 5.0


def test_the_runtimes_calls_fit_this_torch():
    """What can be known of them without a GPU."""
    signature = inspect.signature(torch.cuda.graph.__init__)
    signature.bind(None, None, pool=None, stream=None, capture_error_mode="thread_local")
    assert inspect.signature(torch.cuda.Event.__new__).bind(None, enable_timing=True)
    assert all(hasattr(torch.cuda.Stream, name) for name in ("wait_stream", "record_event"))
    assert all(hasattr(torch.cuda.CUDAGraph, name) for name in ("replay", "reset"))
    assert callable(torch.cuda.graph_pool_handle)


def test_a_full_draft_of_sixteen_is_a_pass_of_seventeen_rows(verifiers):
    (plain, _), (device, _) = verifiers
    text = ql.generate(plain, PROMPT, drafter="none", max_new_tokens=40).token_ids

    def choose(ids, budget):
        return text[len(ids) - len(PROMPT) :][:budget]

    run = ql.generate(device, PROMPT, drafter=FixedDrafter(choose), gamma=16, max_new_tokens=40)
    assert run.token_ids == text
    assert max(len(record.draft_ids) for record in run.rounds) == 16


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "options", [["--device", "cuda"], ["--device", "cuda", "--backend", "triton"], ["--backend", "triton"]]
)
def test_without_a_gpu_one_sentence_says_why(capsys, tiny_folder, options):
    status = app.run(["generate", "--prompt", "a", "--model", str(tiny_folder), *options])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert ("CUDA" in err or "Triton" in err) if "--device" in options else "accepted: cpu, reference" in err
