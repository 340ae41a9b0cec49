"""What an answer of an arm holds, from runs of toys: counts, widths, and whose passes they were."""

import pytest
from toys import Letters, ToyVerifier, toy_pair

import quasar_lab as ql
from quasar_lab.evaluation.decode_speed import Settings
from quasar_lab.evaluation.questions import Question
from quasar_lab.evaluation.timed_answer import answer_question, timed_answer
from quasar_lab.support.errors import InputError

QUESTION = Question("7", "letters", ("abc", "de", "f" * 5))


class Written(Letters):
    """Letters that can be read back."""

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]


def lettered(verifier):
    """The verifier, and the two of a pair, with a tokenizer."""
    for each in (verifier, *verifier.passes):
        if isinstance(each, ToyVerifier):
            each.tokenizer = Written()
    return verifier


def test_all_turns_are_counted_without_the_tokens_of_prefills():
    verifier = lettered(ToyVerifier())
    answer = answer_question(verifier, "ngram", QUESTION, Settings(max_new_tokens=20))
    alone = [ql.generate(verifier, turn, max_new_tokens=20) for turn in QUESTION.turns]
    assert answer.ids == [trace.token_ids for trace in alone]
    assert answer.tokens == sum(len(trace.token_ids) - 1 for trace in alone)
    assert answer.rounds == sum(answer.widths.values()) == sum(len(trace.rounds) for trace in alone)
    assert answer.drafted == sum((width - 1) * count for width, count in answer.widths.items())
    assert (answer.rounds_by, answer.audits_by, answer.audit_widths, answer.audit) == ("toy", None, {}, 0)
    assert answer.seconds == pytest.approx(answer.verify + answer.draft + answer.sample + answer.host)


def test_an_audited_answer_says_who_made_rounds_and_who_audited():
    pair = lettered(toy_pair(0.5))
    runs = [ql.generate(pair, turn, max_new_tokens=20) for turn in QUESTION.turns]
    answer = timed_answer(pair, "ngram", QUESTION, runs)
    assert (answer.verifier, answer.rounds_by, answer.audits_by) == (pair.name, pair.fast.name, pair.exact.name)
    audits = [audit for run in runs for audit in run.audits]
    assert sum(answer.audit_widths.values()) == len(audits)
    assert answer.audited == sum(audit.length for audit in audits) >= answer.judged
    assert answer.flips == sum(run.summary()["flips"] for run in runs) > 0
    total = sum(run.summary()["seconds"]["total"] - run.summary()["seconds"]["prefill"] for run in runs)
    assert answer.seconds == pytest.approx(total), "audits are decoding, once"


def test_turns_beyond_the_context_are_left_out_but_not_the_first():
    verifier = lettered(ToyVerifier(context=4))
    answer = answer_question(verifier, "none", QUESTION, Settings(max_new_tokens=2))
    assert len(answer.ids) == 2, "the third turn has five tokens"
    with pytest.raises(InputError, match="the prompt has 5 tokens"):
        answer_question(verifier, "none", Question("8", "letters", ("f" * 5,)), Settings(max_new_tokens=2))
