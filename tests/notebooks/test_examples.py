"""Examples of README and of the notebooks: the embedded model answers them rightly, and they show what they are for."""

import re
from pathlib import Path

import nbformat
import pytest

import quasar_lab as ql
from quasar_lab import reports
from quasar_lab.evaluation import questions
from quasar_lab.reports import parameters
from quasar_lab.support.errors import InputError

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
LIST = ["1. Boil the water.", "2. Put the tea into the pot.", "3. Pour the water over the tea."]
SENTENCE = ["I believe that the weather tomorrow will be beautiful", "swim in the lake."]


def chosen(name):
    (path,) = reports.find_notebooks([name])
    return parameters.defaults(nbformat.read(path, as_version=4), name)


def examples():
    (prompt,) = set(re.findall(r'(?:--prompt |prompt = )"([^"]+)"', README))
    return {
        "README": (prompt, LIST),
        "00": (chosen("00_start_here")["prompt"], SENTENCE),
        "02": (chosen("02_acceptance")["repeating_prompt"], LIST),
        "03": (chosen("03_verifier_speed")["prompt"], SENTENCE),
    }


@pytest.mark.parametrize("name", examples())
def test_an_example_is_answered_rightly_and_drafts_well(name, embedded, w8a8):
    prompt, right = examples()[name]
    for verifier in (w8a8, embedded):
        trace = ql.generate(verifier, prompt, max_new_tokens=40)
        assert all(part in trace.text for part in right)
        assert trace.tau > 2


def test_the_audit_that_is_shown_takes_tokens_back(embedded, w8a8):
    values = chosen("04_lossless")
    prompt = questions.find(values["question_id"]).turns[0]
    pair = ql.audited(w8a8, embedded, length=values["audit_length"])
    trace = ql.generate(pair, prompt, max_new_tokens=values["answer_tokens"])
    assert trace.summary()["retracted"] > 0
    plain = ql.generate(w8a8, prompt, drafter="none", max_new_tokens=values["answer_tokens"])
    assert plain.token_ids != trace.token_ids


def test_a_question_that_is_not_there_is_named():
    assert questions.find(60).category == "summarization"
    with pytest.raises(InputError, match="no question 'x'"):
        questions.find("x")
