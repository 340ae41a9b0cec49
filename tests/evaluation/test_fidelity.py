"""Distance from BF16: what is counted, that memory does not grow, where two greedy texts part."""

from dataclasses import asdict, replace

import pytest
import torch
from toys import VOCAB, ToyVerifier, toy_pair

import quasar_lab as ql
from quasar_lab.evaluation import fidelity
from quasar_lab.evaluation.fidelity import LogBins, Tally, compare, difference, first_difference, own_text
from quasar_lab.support.errors import CheckpointError, InputError

PROMPT = [3, 1, 4, 1, 5]
IDS = torch.randint(0, 90, (150,), generator=torch.Generator().manual_seed(5)).tolist()


def random_rows(count, seed):
    values = 2.0 * torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed))
    return torch.log_softmax(values, dim=-1)


def leaves(value):
    """How many numbers and texts a result holds."""
    if isinstance(value, dict):
        return sum(map(leaves, value.values()))
    return sum(map(leaves, value)) if isinstance(value, list) else 1


def planted(seed, place, eos=()):
    """A toy, its greedy text behind PROMPT, and a toy that says another token at `place` of it; None when the toy has
    been in that state before."""
    base, changed = ToyVerifier(eos, seed=seed), ToyVerifier(eos, seed=seed)
    text = ql.generate(base, PROMPT, drafter="none", max_new_tokens=30).token_ids
    if place >= len(text):
        return None
    states = list(zip([*PROMPT, *text], [*PROMPT, *text][1:], strict=False))[len(PROMPT) - 2 :]
    if states[place] in states[:place]:
        return None
    row = changed.table[states[place]]
    row[(text[place] + 1) % VOCAB] = row.max() + 0.5
    return base, changed, text


class TestCompare:
    def test_a_model_is_no_distance_from_itself(self, tiny):
        found = compare(tiny, tiny, IDS, window=40)
        assert (found["kl_mean"], found["kl_p99"], found["flips"], found["top1_agreement"]) == (0, 0, 0, 1)
        assert found["kl_histogram"]["below"] == found["tokens"] == len(IDS)
        assert found["flip_margin_p50"] is None

    def test_numbers_are_those_of_the_definition(self, tiny, other):
        window = 70
        found = compare(tiny, other, IDS, window)
        exact, rounded = (
            torch.cat(
                [model.forward(IDS[at : at + window], model.new_cache(window)).logits for at in range(0, 150, window)]
            )
            .double()
            .log_softmax(dim=-1)
            for model in (tiny, other)
        )
        kl = (exact.exp() * (exact - rounded)).sum(dim=-1)
        assert bool((kl > 0).all())
        assert found["kl_mean"] == pytest.approx(float(kl.mean()), rel=1e-4)
        assert found["kl_p99"] == pytest.approx(float(kl.sort().values[148]), rel=0.01)
        assert found["series"]["kl"] == pytest.approx(kl.tolist(), rel=1e-3, abs=1e-6)
        flips = (exact.argmax(dim=-1) != rounded.argmax(dim=-1)).nonzero()[:, 0].tolist()
        assert 0 < len(flips) < 150
        assert found["flips"] == len(flips)
        assert [flip["position"] for flip in found["flip_margins"]] == flips
        best = exact.topk(2, dim=-1).values
        margins = best[:, 0] - best[:, 1]
        assert [flip["margin"] for flip in found["flip_margins"]] == pytest.approx(margins[flips].tolist(), abs=1e-4)
        assert found["margin_p50"] == pytest.approx(float(margins.sort().values[75]), rel=0.01)
        assert all(layer["error"] == 0 for layer in found["per_layer"][:-1])

    def test_what_is_kept_does_not_grow_with_the_text(self):
        tallies = []
        for chunks in (3, 30):
            tally = Tally(ToyVerifier(), ToyVerifier())
            for chunk in range(chunks):
                tally.add(random_rows(256, chunk), random_rows(256, chunk + 1000))
            tallies.append(tally)
        short, long = (tally.table() for tally in tallies)
        assert long["tokens"] == 10 * short["tokens"]
        assert short["flips"] > fidelity.SERIES, "too few flips: this shows nothing"
        assert leaves(short) == leaves(long)
        state = [
            sum(bins._counts.numel() for bins in vars(tally).values() if isinstance(bins, LogBins)) for tally in tallies
        ]
        assert state[0] == state[1]

    def test_unusable_weights_are_named(self, tiny):
        rows = random_rows(3, 0)
        with pytest.raises(CheckpointError, match="toy or toy gives NaN"):
            Tally(ToyVerifier(), ToyVerifier()).add(rows, rows * torch.nan)


class TestLogBins:
    def test_every_value_is_counted_once_and_percentiles_are_close(self):
        values = torch.rand(5000, generator=torch.Generator().manual_seed(0)) ** 8
        bins = LogBins(-9, 2, 8)
        for part in values.split(37):
            bins.add(part)
        table = bins.table()
        assert sum(table["counts"]) + table["below"] + table["above"] == 5000
        inside = [
            (values >= low) & (values < high) for low, high in zip(table["edges"], table["edges"][1:], strict=False)
        ]
        assert table["counts"] == [int(part.sum()) for part in inside]
        for share in (0.1, 0.5, 0.99):
            assert bins.quantile(share) == pytest.approx(float(values.sort().values[int(share * 5000)]), rel=0.01)

    def test_the_ends(self):
        bins = LogBins(-3, 2, 4)
        assert bins.quantile(0.5) is None
        bins.add(torch.tensor([0.0, 1e-20, 1e9]))
        assert (bins.table()["below"], bins.table()["above"]) == (2, 1)
        assert (bins.quantile(0.5), bins.quantile(1.0)) == (0.0, 100.0)


class TestFirstDifference:
    def test_none_between_the_same(self):
        assert first_difference(ToyVerifier(), ToyVerifier(), PROMPT) is None
        found = own_text(ToyVerifier(), ToyVerifier(), [PROMPT, [2]], 20)
        assert (found["flips"], found["kl_mean"], found["flip_rate"]) == (0, 0, 0)
        assert [answer["first"] for answer in found["answers"]] == [None, None]

    @pytest.mark.parametrize("place", [0, 1, 2, 5, 9])
    def test_found_where_it_was_planted(self, place):
        cases = [case for seed in range(20) if (case := planted(seed, place))]
        assert cases
        for base, changed, text in cases:
            found = first_difference(base, changed, PROMPT, 30)
            assert (found.position, found.expected_id) == (place, text[place])
            assert found.got_id == (text[place] + 1) % VOCAB
            logits = base.row([*PROMPT, *text[:place]]).sort(descending=True).values
            assert found.margin == pytest.approx(float(logits[0] - logits[1]), rel=1e-5)

    def test_the_first_flip_is_where_free_texts_part(self):
        parted = 0
        for seed in range(25):
            pair = toy_pair(0.5, eos=(4,), seed=seed)
            free = first_difference(pair.exact, pair.fast, PROMPT, 25)
            read = own_text(pair.exact, pair.fast, [PROMPT], 25)["answers"][0]["first"]
            assert (read is None) == (free is None)
            if free is not None:
                parted += 1
                assert read == pytest.approx(asdict(free))
        assert 5 < parted < 25, "always or never: this shows nothing"

    def test_an_end_of_sequence_token_is_a_token(self):
        """Where only one of the two ends its text, that is the difference."""
        base, changed, text = next(case for seed in range(40) if (case := planted(seed, 3)))
        base.eos_ids = changed.eos_ids = (text[3],)
        assert first_difference(base, changed, PROMPT, 30).position == 3

    def test_an_audited_text_is_the_auditors(self):
        parted = 0
        for seed in range(10):
            pair = toy_pair(0.7, seed=seed)
            parted += first_difference(pair.exact, pair.fast, PROMPT, 30) is not None
            assert first_difference(pair.exact, pair, PROMPT, 30) is None
            assert first_difference(pair, pair.exact, PROMPT, 30) is None
        assert parted

    def test_a_margin_in_an_audited_run_is_its_auditors(self):
        pair = toy_pair(0.7)
        base, changed, _ = next(case for seed in range(40) if (case := planted(seed, 4)))
        audited = replace(pair, exact=base, fast=changed)
        assert first_difference(audited, changed, PROMPT, 30) == first_difference(base, changed, PROMPT, 30)

    def test_runs_that_cannot_be_compared(self):
        greedy, sampled = (ql.generate(ToyVerifier(), PROMPT, temperature=t, max_new_tokens=4) for t in (0, 1))
        with pytest.raises(InputError, match="sampled"):
            difference(greedy, sampled)
        with pytest.raises(InputError, match="different prompts"):
            difference(greedy, ql.generate(ToyVerifier(), [1, 2], max_new_tokens=4))
        with pytest.raises(InputError, match="no prompts"):
            own_text(ToyVerifier(), ToyVerifier(), [])

    def test_decoders_and_answers_of_a_token(self, tiny, other):
        assert first_difference(tiny, tiny, IDS[:5], 20) is None
        found = own_text(tiny, other, [IDS[:5], IDS[5:6], IDS[:100]], 28)
        assert found["tokens"] == sum(answer["tokens"] for answer in found["answers"])
        for prompt, answer in zip((IDS[:5], IDS[5:6], IDS[:100]), found["answers"], strict=True):
            free = first_difference(tiny, other, prompt, 28)
            assert (answer["first"] or {}).get("position") == (None if free is None else free.position)
        assert own_text(tiny, tiny, [IDS[:5]], 1)["tokens"] == 1
