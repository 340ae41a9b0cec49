"""Fidelity: what is counted, that memory does not grow, what flips on BF16's own answers."""

import pytest
import torch
from toys import VOCAB, ToyVerifier, toy_pair

from quasar_lab.evaluation import fidelity
from quasar_lab.evaluation.fidelity import Tally, compare, first_difference, on_own_answers
from quasar_lab.evaluation.histogram import LogBins
from quasar_lab.evaluation.questions import Question
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


class TestCompare:
    def test_a_model_is_no_distance_from_itself(self, tiny):
        found = compare(tiny, tiny, IDS, window=40)
        assert (found.kl_mean, found.kl_p99, found.flips, found.top1_agreement) == (0, 0, 0, 1)
        assert found.kl_histogram.below == found.tokens == len(IDS)
        assert found.flip_margin_p50 is None

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
        assert found.kl_mean == pytest.approx(float(kl.mean()), rel=1e-4)
        assert found.kl_p99 == pytest.approx(float(kl.sort().values[148]), rel=0.01)
        assert found.series.kl == pytest.approx(kl.tolist(), rel=1e-3, abs=1e-6)
        flips = (exact.argmax(dim=-1) != rounded.argmax(dim=-1)).nonzero()[:, 0].tolist()
        assert 0 < len(flips) < 150
        assert found.flips == len(flips)
        assert [flip.position for flip in found.flip_margins] == flips
        best = exact.topk(2, dim=-1).values
        margins = best[:, 0] - best[:, 1]
        assert [flip.margin for flip in found.flip_margins] == pytest.approx(margins[flips].tolist(), abs=1e-4)
        assert found.margin_p50 == pytest.approx(float(margins.sort().values[75]), rel=0.01)
        assert all(layer.error == 0 for layer in found.per_layer[:-1])

    def test_what_is_kept_does_not_grow_with_the_text(self):
        tallies = []
        for chunks in (3, 30):
            tally = Tally(ToyVerifier(), ToyVerifier())
            for chunk in range(chunks):
                tally.add(random_rows(256, chunk), random_rows(256, chunk + 1000))
            tallies.append(tally)
        short, long = (tally.fidelity() for tally in tallies)
        assert long.tokens == 10 * short.tokens
        assert short.flips > fidelity.SERIES, "too few flips: this shows nothing"
        assert leaves(short.to_json()) == leaves(long.to_json())
        state = [
            sum(bins._counts.numel() for bins in vars(tally).values() if isinstance(bins, LogBins)) for tally in tallies
        ]
        assert state[0] == state[1]

    def test_unusable_weights_are_named(self, tiny):
        rows = random_rows(3, 0)
        with pytest.raises(CheckpointError, match="toy or toy gives NaN"):
            Tally(ToyVerifier(), ToyVerifier()).add(rows, rows * torch.nan)


class TestOnOwnAnswers:
    def test_a_model_does_not_flip_its_own_answers(self):
        found = on_own_answers(ToyVerifier(), ToyVerifier(), [PROMPT, [2]], 20)
        assert (found.flips, found.kl_mean, found.flip_rate) == (0, 0, 0)
        assert [answer.first for answer in found.answers] == [None, None]

    def test_the_first_flip_is_where_free_texts_part(self):
        parted = 0
        for seed in range(25):
            pair = toy_pair(0.5, eos=(4,), seed=seed)
            free = first_difference(pair.exact, pair.fast, PROMPT, 25)
            read = on_own_answers(pair.exact, pair.fast, [PROMPT], 25).answers[0].first
            assert (read is None) == (free is None)
            if free is not None:
                parted += 1
                assert read.to_json() == pytest.approx(free.to_json())
        assert 5 < parted < 25, "always or never: this shows nothing"

    def test_decoders_and_answers_of_a_token(self, tiny, other):
        assert first_difference(tiny, tiny, IDS[:5], 20) is None
        found = on_own_answers(tiny, other, [IDS[:5], IDS[5:6], IDS[:100]], 28)
        assert found.tokens == sum(answer.tokens for answer in found.answers)
        for prompt, answer in zip((IDS[:5], IDS[5:6], IDS[:100]), found.answers, strict=True):
            free = first_difference(tiny, other, prompt, 28)
            assert (None if answer.first is None else answer.first.position) == (
                None if free is None else free.position
            )
        assert on_own_answers(tiny, tiny, [IDS[:5]], 1).tokens == 1

    def test_answers_say_which_question_they_answer(self):
        questions = [Question("7", "chat", ("a",)), Question("9", "math", ("b",))]
        found = on_own_answers(ToyVerifier(), ToyVerifier(), [PROMPT, [2]], 5)
        assert "question_id" not in found.answers[0]
        labelled = found.labelled(questions)
        assert [(answer["question_id"], answer["category"]) for answer in labelled.answers] == [
            ("7", "chat"),
            ("9", "math"),
        ]
        assert labelled.kl_histogram == found.kl_histogram
        with pytest.raises(ValueError, match="shorter"):
            found.labelled(questions[:1])

    def test_no_prompts_are_refused(self):
        with pytest.raises(InputError, match="no prompts"):
            on_own_answers(ToyVerifier(), ToyVerifier(), [])
