"""Verifiers by name, and what each is made of."""

import pytest
from toys import ToyVerifier, toy_pair

import quasar_lab as ql
from quasar_lab.speculative.verifiers import check_name, one_pass_verifier
from quasar_lab.support.errors import InputError, NotInThisVersion, RecipeError


def test_every_kind_of_name(embedded, w8a8):
    assert ql.verifier(embedded, "bf16") is embedded
    alone = ql.verifier(embedded, "w8a8")
    assert (alone.name, alone.auditor, alone.passes) == ("w8a8", None, (alone,))
    pair = ql.verifier(embedded, "w8a8+bf16")
    assert pair.name == "w8a8+bf16"
    assert pair.auditor is pair.exact is embedded
    assert [each.name for each in pair.passes] == ["bf16", "w8a8"]
    assert one_pass_verifier(embedded, "bf16") is embedded
    assert one_pass_verifier(embedded, "w8a8").name == "w8a8"


def test_what_a_verifier_is_made_of():
    toy, pair = ToyVerifier(), toy_pair()
    assert (toy.auditor, toy.passes) == (None, (toy,))
    assert pair.auditor is pair.exact
    assert pair.passes == (pair.exact, pair.fast)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("bf16+bf16", InputError, "no pair of a recipe and its auditor"),
        ("w8a8+w8a8", InputError, "no pair of a recipe and its auditor"),
        ("w8a8+bf16+bf16", InputError, "no pair of a recipe and its auditor"),
        ("w9", RecipeError, "accepted"),
        ("w9+bf16", RecipeError, "accepted"),
        ("pruned:0.5", NotInThisVersion, "verifier pruned:0.5: not in this version"),
    ],
)
def test_names_that_are_none(name, error, message):
    with pytest.raises(error, match=message):
        check_name(name)
    with pytest.raises(error, match=message):
        ql.verifier(None, name)


def test_two_that_take_turns_make_no_single_pass():
    check_name("w8a8+bf16")
    with pytest.raises(InputError, match="taking turns"):
        check_name("w8a8+bf16", one_pass=True)
    with pytest.raises(InputError, match="taking turns"):
        one_pass_verifier(None, "w8a8+bf16")


def test_a_trace_says_who_wrote_it():
    alone = ql.generate(ToyVerifier(), [1, 2], max_new_tokens=5)
    assert (alone.verifier, alone.writer, alone.auditor, alone.audited) == ("toy", "toy", None, False)
    both = ql.generate(toy_pair(), [1, 2], max_new_tokens=5)
    assert (both.verifier, both.writer, both.auditor, both.audited) == ("fast+toy", "fast", "toy", True)
    for trace in (alone, both):
        assert trace.tau == trace.summary()["mean_acceptance_length"]
        assert (trace.model, trace.drafter, trace.gamma, trace.prompt_ids) == ("toy", "ngram", 4, [1, 2])
        assert trace.sampling.greedy
