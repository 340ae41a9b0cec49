"""Where two greedy texts part: a planted first difference is found, and where audits took tokens back."""

from dataclasses import replace

import pytest
from toys import VOCAB, ToyVerifier, toy_pair

import quasar_lab as ql
from quasar_lab.evaluation.text_difference import difference, emitted, first_difference, taken_back
from quasar_lab.support.errors import InputError

PROMPT = [3, 1, 4, 1, 5]


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


class TestFirstDifference:
    def test_none_between_the_same(self):
        assert first_difference(ToyVerifier(), ToyVerifier(), PROMPT) is None

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


def test_what_an_audit_takes_back_is_found_where_the_auditors_own_token_stands():
    """Without the audit, the fast verifier's token would stand there: one that the exact verifier did not want."""
    corrected = 0
    for seed in range(10):
        pair = toy_pair(0.7, seed=seed)
        trace = ql.generate(pair, PROMPT, max_new_tokens=30)
        taken = taken_back(trace)
        assert sum(taken.values()) == sum(state == "retracted" for row in trace.audit_states() for state in row)
        text = [*PROMPT, *trace.token_ids]
        for place in taken:
            before = text[: len(PROMPT) + place]
            assert text[len(before)] == int(pair.exact.row(before).argmax())
        corrected += len(taken)
    assert corrected
    assert taken_back(ql.generate(ToyVerifier(), PROMPT, max_new_tokens=10)) == {}


def test_every_emitted_token_has_its_piece_and_margin():
    trace = ql.generate(ToyVerifier(), PROMPT, max_new_tokens=12)
    assert [token for token, _, _ in emitted(trace)] == trace.token_ids
    for place, (_, _, margin) in enumerate(emitted(trace)):
        best = ToyVerifier().row([*PROMPT, *trace.token_ids[:place]]).sort(descending=True).values
        assert margin == pytest.approx(float(best[0] - best[1]), rel=1e-5)
