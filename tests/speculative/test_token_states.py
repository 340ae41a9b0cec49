"""One table of token states: traces hold its words, every drawing its signs and colours."""

import json
import re
from pathlib import Path

import pytest

from quasar_lab.figures.strip import script, stylesheet
from quasar_lab.speculative.token_states import TokenState, state_table
from quasar_lab.speculative.trace_schema import STATES

SIGNS = Path(__file__).parents[2] / "notebooks" / "README.md"


def test_a_state_is_its_word():
    assert json.dumps([*TokenState]) == json.dumps([state.value for state in TokenState])
    assert f"{TokenState.BONUS}" == TokenState.BONUS == "bonus"
    assert repr(TokenState.BONUS) == "'bonus'", "a printed trace shows the words of its file"
    assert all(TokenState.of(state.value) is state for state in TokenState)
    assert tuple(TokenState) == STATES
    assert len({state.glyph for state in TokenState}) == len(TokenState)


def test_the_drawing_in_a_browser_reads_the_table():
    table, _, code = script().removeprefix("const QUASAR_STATES = ").partition(";\n")
    assert json.loads(table) == state_table()
    css = stylesheet()
    for state in TokenState:
        assert f".qs-is-{state} " in css
        assert f'{state}: "{state.glyph}"' not in code, "a table of its own"
        if state.colour:
            assert css.count(f"--qs-{state}: {state.colour};") == 1
            assert f"var(--qs-{state})" in css
    assert not re.findall(r"--qs-(?:accepted|rejected|corrected|bonus|provisional): #", css.partition("\n")[2])


@pytest.mark.parametrize("state", TokenState, ids=str)
def test_the_words_of_the_lab_explain_every_state(state):
    assert f"| {state.glyph} | {state}: {state.meaning} |" in SIGNS.read_text(encoding="utf-8")
