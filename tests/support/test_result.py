"""Results as objects and as JSON documents."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quasar_lab.support.errors import InputError
from quasar_lab.support.result import Result, flat, left_out, named


@dataclass(frozen=True)
class Place(Result):
    model: str
    threads: int


@dataclass(frozen=True)
class Row(Result):
    width: int
    ms: float
    note: str | None = left_out()


@dataclass(frozen=True)
class Table(Result):
    place: Place = flat()
    rows: list[Row] = named("steps")
    by_width: dict[int, Row]
    span: tuple[float, float]
    names: list[str]
    speedup: float | None
    extra: dict[str, float] | None = left_out()


rows = st.builds(Row, st.integers(), st.floats(allow_nan=False), st.none() | st.text())
tables = st.builds(
    Table,
    place=st.builds(Place, st.text(), st.integers()),
    rows=st.lists(rows),
    by_width=st.dictionaries(st.integers(), rows),
    span=st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)),
    names=st.lists(st.text()),
    speedup=st.none() | st.floats(allow_nan=False),
    extra=st.none() | st.dictionaries(st.text(), st.floats(allow_nan=False)),
)


@given(tables)
def test_a_result_comes_back_from_its_document(table):
    assert Table.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_the_document_has_the_declared_keys():
    table = Table(Place("m", 2), [Row(1, 2.0)], {4: Row(4, 1.0, "slow")}, (1.0, 2.0), ["a"], None)
    assert table.to_json() == {
        "model": "m",
        "threads": 2,
        "steps": [{"width": 1, "ms": 2.0}],
        "by_width": {4: {"width": 4, "ms": 1.0, "note": "slow"}},
        "span": [1.0, 2.0],
        "names": ["a"],
        "speedup": None,
    }
    assert table["steps"] == [{"width": 1, "ms": 2.0}]
    assert "extra" not in table
    with pytest.raises(KeyError):
        table["place"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "model is None; accepted: str"),
        ({"steps": {}}, "steps is {}; accepted: list"),
        ({"steps": [5]}, "steps is 5; accepted: dict"),
        ({"threads": True}, "threads is True; accepted: int"),
        ({"span": ["a", 1]}, "span is 'a'; accepted: int, float"),
    ],
)
def test_another_kind_of_value_is_named(change, message):
    document = {**Table(Place("m", 2), [], {}, (1.0, 2.0), [], None).to_json(), **change}
    with pytest.raises(InputError, match=message):
        Table.from_json(document)


def test_a_missing_field_is_named_and_an_unknown_one_ignored():
    assert Row.from_json({"width": 1, "ms": 2, "later": 3}) == Row(1, 2.0)
    with pytest.raises(InputError, match="lacks 'ms'"):
        Row.from_json({"width": 1})


def test_a_result_and_its_document_are_the_same_to_who_asks_for_either():
    row = Row(1, 2.0)
    assert Row.of(row) is row
    assert Row.of({"width": 1, "ms": 2.0}) == row
    with pytest.raises(InputError, match="'width'"):
        Row.of(Place("m", 3))
