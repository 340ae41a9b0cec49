"""Schemas: what each accepts, and how it tells where a fault is. Parsing of what other programs refuse."""

import pytest

from quasar_lab.support.json_schema import (
    BOOLEAN,
    OBJECT,
    TEXT,
    all_of,
    fields,
    integer,
    lengths,
    list_of,
    mapping_of,
    number,
    numbered_lines,
    one_of,
    optional,
    parse,
    row_of,
)

ACCEPTED = [
    (TEXT, ""),
    (BOOLEAN, False),
    (OBJECT, {}),
    (integer(0, 3), 3),
    (number(), -1e300),
    (number(0, 1), 1),
    (one_of("a", "b"), "b"),
    (optional(TEXT), None),
    (list_of(TEXT), []),
    (list_of(TEXT, least=1, most=2), ["a", "b"]),
    (row_of(integer(0, 9), TEXT), [1, "a"]),
    (mapping_of(TEXT), {"any": "text"}),
    (fields({"a": TEXT, "b?": TEXT}), {"a": "", "more": 1}),
    (fields({"a": TEXT, "b?": TEXT}, closed=True), {"a": "", "b": ""}),
    (lengths(a=0, b=1), {"a": [1], "b": [1, 2]}),
]

FAULTS = [
    (TEXT, 1, "x is 1; accepted: a text"),
    (BOOLEAN, 1, "x is 1; accepted: true, false"),
    (OBJECT, [], "x is []; accepted: a JSON object"),
    (integer(0, 3), 4, "x is 4; accepted: a whole number, 0…3"),
    (integer(0, 3), True, "x is True; accepted: a whole number, 0…3"),
    (integer(0, 3), 1.0, "x is 1.0; accepted: a whole number, 0…3"),
    (number(), "1", "x is '1'; accepted: a number"),
    (number(0, 1), 1.5, "x is 1.5; accepted: a number, 0…1"),
    (one_of("a", "b"), "c", "x is 'c'; accepted: a, b"),
    (optional(TEXT), 1, "x is 1; accepted: a text"),
    (all_of(list_of(TEXT), lambda value, name: f"{name} never"), ["a"], "x never"),
    (list_of(TEXT), ["a", 2], "x[1] is 2; accepted: a text"),
    (list_of(TEXT, least=1), [], "x is []; accepted: a list, at least 1 items"),
    (list_of(TEXT, least=1, most=2), ["a"] * 3, "x is ['a', 'a', 'a']; accepted: a list, 1…2 items"),
    (row_of(TEXT, TEXT), ["a"], "x is ['a']; accepted: a list, 2…2 items"),
    (row_of(TEXT, BOOLEAN), ["a", "b"], "x[1] is 'b'; accepted: true, false"),
    (mapping_of(TEXT), {"a": 1}, "x['a'] is 1; accepted: a text"),
    (fields({"a": TEXT}), {}, "x.a is missing"),
    (fields({"a": fields({"b": TEXT})}), {"a": {"b": 1}}, "x.a.b is 1; accepted: a text"),
    (fields({"a?": TEXT}, closed=True), {"c": 1}, "'c' is unknown; accepted: a"),
    (lengths(a=0, b=0), {"a": [1], "b": []}, "x: the lengths differ (a 1, b 0); accepted: one length"),
    (
        lengths(a=0, b=1),
        {"a": [1], "b": [1]},
        "x: the lengths differ (a 1, b 1); accepted: one length, and one more for b",
    ),
]


@pytest.mark.parametrize(("schema", "value"), ACCEPTED)
def test_accepted(schema, value):
    assert schema(value, "x") is None


@pytest.mark.parametrize(("schema", "value", "fault"), FAULTS)
def test_faults_say_what_was_given_and_what_is_accepted(schema, value, fault):
    assert schema(value, "x") == fault


def test_the_document_itself_has_no_name():
    assert fields({"a": TEXT})([], "") == "it is []; accepted: a JSON object"
    assert fields({"a": TEXT})({}, "") == "a is missing"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "Expecting"),
        ("NaN", "no finite number"),
        ("1e999", "no finite number"),
        ('"\\ud800"', "half of a surrogate pair"),
        ("[" * 65 + "]" * 65, "nested more than 64 levels"),
        ("[" * 99999 + "]" * 99999, "nested more than 64 levels"),
    ],
)
def test_what_other_programs_refuse_is_refused(text, fault):
    with pytest.raises(ValueError, match=fault):
        parse(text)


def test_what_is_read():
    assert parse('{"a": [1, 2.5, null, "\\ud83d\\ude00"]}') == {"a": [1, 2.5, None, "😀"]}
    assert parse("[" * 63 + "]" * 63)
    assert list(numbered_lines('{"a": "\u2028"}\n\n  \n1\n')) == [(1, '{"a": "\u2028"}'), (4, "1")]
