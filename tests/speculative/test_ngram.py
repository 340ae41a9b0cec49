"""The n-gram index against a plain scan, and what it costs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quasar_lab.speculative.drafters import NgramDrafter, make_drafter
from quasar_lab.support.errors import InputError, NotInThisVersion

TOKENS = st.lists(st.integers(0, 3), max_size=30)


def scan(ids, longest, budget):
    """The definition: the longest suffix with an earlier occurrence, the latest of those, what followed it."""
    for n in range(min(longest, len(ids)), 0, -1):
        for start in range(len(ids) - 1, n - 1, -1):
            if ids[start - n : start] == ids[len(ids) - n :]:
                return ids[start : start + budget]
    return []


@settings(max_examples=300, deadline=None)
@given(TOKENS, TOKENS, st.integers(1, 5), st.integers(1, 6))
def test_index_equals_scan(prompt, more, longest, budget):
    drafter = NgramDrafter(longest)
    drafter.reset(prompt)
    for place, token in enumerate(more):
        assert drafter.propose(budget, None).ids == scan(prompt + more[:place], longest, budget)
        drafter.commit([token], None)
    assert drafter.propose(budget, None).ids == scan(prompt + more, longest, budget)


@settings(max_examples=300, deadline=None)
@given(TOKENS, TOKENS, TOKENS, st.integers(0, 30))
def test_rollback_is_as_if_it_had_never_been(prompt, more, other, length):
    drafter, fresh = NgramDrafter(), NgramDrafter()
    drafter.reset(prompt)
    drafter.commit(more, None)
    kept = (prompt + more)[:length]
    drafter.rollback(min(length, len(prompt) + len(more)))
    drafter.commit(other, None)
    fresh.reset(kept)
    fresh.commit(other, None)
    assert drafter.propose(8, None).ids == fresh.propose(8, None).ids


def test_source_names_the_copied_span():
    drafter = NgramDrafter()
    drafter.reset([1, 2, 3, 4, 1, 2])
    assert drafter.propose(2, None).source == {
        "type": "ngram",
        "start": 2,
        "length": 2,
        "region": "prompt",
        "matched": 2,
    }
    drafter.commit([9, 8, 9], None)
    draft = drafter.propose(4, None)
    assert (draft.ids, draft.source["region"], draft.source["start"]) == ([8, 9], "output", 7)


@pytest.mark.parametrize(
    ("prompt", "drafted"), [([7, 7, 7, 7], [7]), ([1, 2, 3], []), ([5], []), ([], []), ([1, 2, 3, 1], [2, 3, 1])]
)
def test_edge_prompts(prompt, drafted):
    drafter = NgramDrafter()
    drafter.reset(prompt)
    assert drafter.propose(4, None).ids == drafted


def test_nothing_is_drafted_without_a_budget():
    drafter = NgramDrafter()
    drafter.reset([1, 1, 1])
    assert drafter.propose(0, None).ids == []


class CountingDict(dict):
    touched = 0

    def get(self, *args):
        CountingDict.touched += 1
        return super().get(*args)

    def __setitem__(self, *args):
        CountingDict.touched += 1
        super().__setitem__(*args)

    def __iter__(self):
        raise AssertionError("the index was scanned")


def work_at(context: int) -> int:
    """Index accesses of one draft and one commit behind `context` tokens."""
    drafter = NgramDrafter()
    drafter.reset([(place * place) % 1009 for place in range(context)])
    drafter._follows = CountingDict(drafter._follows)
    CountingDict.touched = 0
    drafter.propose(8, None)
    drafter.commit([1], None)
    return CountingDict.touched


def test_cost_does_not_grow_with_the_context():
    assert [work_at(context) <= 3 + 2 * 3 for context in (1_000, 16_000)] == [True, True]


def test_names():
    assert make_drafter("ngram").longest == 3
    assert make_drafter("ngram:5").name == "ngram:5"
    for bad in ("ngram:0", "ngram:x", "ngram:99", "none:1", "nothing"):
        with pytest.raises(InputError, match="accepted"):
            make_drafter(bad)
    for later in ("medusa", "eagle:x", "layer-skip:0.5", "model:y"):
        with pytest.raises(NotInThisVersion, match="not in this version"):
            make_drafter(later)
