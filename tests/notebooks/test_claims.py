"""Prose of a notebook never states what a run decides.

What a run found is said by cells, computed (`ql.findings`, `ql.reports.result`). So each number that stands in prose is
of a kind that no run can change, and `ALLOWED` says of which kind: a definition, a setting, arithmetic that is done
again here, or the figure of a source. A paragraph "What you should see" says where to look and how to compare; words
such as "hardly" or "most of" are an outcome, unless the sentence holds for every run, which `LAWS` lists.
"""

import re
from math import isclose

import nbformat
import pytest

from quasar_lab import reports

NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in reports.find_notebooks([])}

PLAIN = re.compile(
    r"\$\$.*?\$\$|\$.*?\$|`[^`]*`"  # formulas and code
    r"|\[[^\]]*\]\([^)]*\)|arXiv [\d.]+"  # links and sources
    r"|^#+ \d+ ·|^\d+\. |\b[Ss]ections? \d+\b|\bnotebook \d+"  # numbers of sections, list items, notebooks
    r"|\(0\d\)|(?<![.\d])0\d\b"
    r"|W8A8|W4A16|W4A8|W2A16|BF16|FP32|INT8|top-1|2×2|135M|SmolLM2"  # names
    r"|\b\d+(?:-bit| bits)\b|\b[Tt]emperatures? (?:above )?\d|\bwidth \d+",  # formats and settings
    re.MULTILINE | re.DOTALL,
)
"""What holds a number that claims nothing."""

NUMBER = re.compile(r"\d+(?:[.,]\d+)*[⁰¹²³⁴⁵⁶⁷⁸⁹]*")

ALLOWED = {
    "00_start_here": {
        "*prompt 34–37* are token positions": "an example of a notation",
        "Compare τ with 1, its least value": "definition",
        "Set γ to 1, then to 8": "setting",
        "γ = 1 caps τ at 2": 1 + 1 == 2,
        "With γ = 8 the cap is 9": 8 + 1 == 9,
    },
    "01_outliers": {
        "has 255 levels": 2 * 127 + 1 == 255,
        "becomes 127": 2**7 - 1 == 127,
        "127 steps": 2**7 - 1 == 127,
        "becomes 0": "definition",
        "With 3000 in it, the step is about 24": round(3000 / 127) == 24,
        "all below 12 is rounded to zero": round(3000 / 127) / 2 == 12,
    },
    "02_acceptance": {"its $q$ is 1": "definition", "sections 6 and 7": "sections"},
    "03_verifier_speed": {
        "eq. 1": "an equation of the source",
        "Raise `context` to 1024": "setting",
        "moves towards 1": "the limit of (a + c) / (b + c) as c grows",
        "Set γ to 1, then to 12": "setting",
    },
    "04_lossless": {
        "It is 0 where both distributions are the same": "definition",
        "below 1, this run does not show that audits pay": "a speedup of 1 is none",
        "a flip rate of 2 % is measured": "supposed in an exercise",
        "answers of 100 tokens": "supposed in an exercise",
        "after 1/0.02 = 50 tokens": isclose(1 / 0.02, 50),
        "0.98¹⁰⁰ ≈ 13 % of": round(100 * 0.98**100) == 13,
    },
    "05_drafters": {
        "Set γ = 1 with the slider. τ can then be at most 2": 1 + 1 == 2,
        "γ = 1 is as good": "setting",
        "60 % of the first drafts": "supposed in an exercise",
        "using with γ = 1": "setting",
        "emits 1.6 tokens and takes the time of 1.2 passes": isclose(1 + 0.6, 1.6) and isclose(1 + 1 / 5, 1.2),
        "This is 1.33 × as fast": round(1.6 / 1.2, 2) == 1.33,
        "takes 1 + 0.4 of the shorter passes": isclose(2 / 5, 0.4),
        "which is 1.14 × as fast": round(1.6 / 1.4, 2) == 1.14,
    },
    "06_low_bit_frontier": {
        "α = 0.5": "setting",
        "the 99th percentile": "definition",
        "groups of 32 weights with 16 levels": 2**4 == 16,
        "take only 16 values per group": 2**4 == 16,
        "A group of 32 weights": "definition",
        "have a 255th": 2**8 - 1 == 255,
        "scale for 32 weights adds half a bit": isclose(16 / 32, 0.5),
        "a KL of 0.016 and 0.018 over 768 tokens": "supposed in an exercise",
    },
    "07_paper_table": {
        "95 % interval": "definition",
        "plain decoding has τ = 1": "definition",
        "Compare it with 1": "a factor of 1 changes nothing",
        "It approaches 2 only": "half the bytes",
    },
}
"""Notebook → words around a number of its prose → why no run can change it; True where arithmetic says so."""

OUTCOME = re.compile(
    r"\b(hardly|mostly|most of|few|nearly|almost|rarely|seldom|usually|often|always|never|little|far|"
    r"higher|lower|highest|lowest|steep|flat|close to|rises|falls)\b"
)
"""Words that say how something came out."""

LOOK = re.compile(
    r"\b(compare|look|find|where|which|whether|if|how|need|may|because|since|so)\b",
    re.I,
)
"""Words of a sentence that asks, supposes or explains."""


def prose(name):
    return [cell.source for cell in NOTEBOOKS[name].cells if cell.cell_type == "markdown"]


def claims_of_numbers(text, allowed):
    """The numbers of a text that are of no allowed kind, with the words around them."""
    for words in allowed:
        text = text.replace(words, "")
    bare = PLAIN.sub("", text)
    return [bare[max(0, found.start() - 40) : found.end() + 20] for found in NUMBER.finditer(bare)]


def claims_of_words(text):
    """Sentences of "What you should see" that state an outcome and neither ask nor explain."""
    paragraphs = [part for part in text.split("\n\n") if part.startswith("**What you should see:**")]
    sentences = [sentence for part in paragraphs for sentence in re.split(r"(?<=[.?])\s", part)]
    return [sentence for sentence in sentences if OUTCOME.search(sentence) and not LOOK.search(sentence)]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_number_in_prose_is_one_that_no_run_can_change(name):
    found = [claim for text in prose(name) for claim in claims_of_numbers(text, ALLOWED[name])]
    assert not found, "compute it in a cell (ql.findings), or say in ALLOWED why no run can change it"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_is_allowed_stands_there_and_is_right(name):
    text = "\n".join(prose(name))
    assert all(words in text for words in ALLOWED[name])
    assert all(kind is not False for kind in ALLOWED[name].values())


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_you_should_see_says_where_to_look_and_not_what_came_out(name):
    found = [claim for text in prose(name) for claim in claims_of_words(text)]
    assert [claim for claim in found if not any(law in claim for law in LAWS)] == []


LAWS = (
    "yes, always: it is not a matter of luck or rounding",  # the bits of a token: tests/models/test_decoder.py
    "As $\\alpha$ grows, high channels of $|x / s|$ sink",  # the formula of the factors
    "With too little smoothing, outliers make the steps",
    "an acceptance rate without its prompts says little",
    "an *audit* row after every few rounds",
    "Wider passes use each weight more often",
    "A small margin means that BF16 itself had hardly a preference",
    "The more a text repeats, the longer its curve rises",
    "are too few to quote, as the intervals say",
    "half the bytes change little",  # of a step that is not bound by reading them
)
"""Sentences that hold for every run: they follow from a definition, or other tests prove them."""


@pytest.mark.parametrize(
    "old",
    [
        "**What you should see:** few drafts are rejected here.",
        "**What you should see:** free chat hardly drafts, and summaries always do.",
        "**What you should see:** the error is nearly 100 %.",
    ],
)
def test_an_outcome_in_prose_is_found(old):
    assert claims_of_words(old)


def test_a_number_of_a_run_in_prose_is_found():
    assert claims_of_numbers("Without the first token the error is 98 %.", ALLOWED["01_outliers"])
    assert claims_of_numbers("The brightest is layer 11.", {})
    assert not claims_of_numbers("INT8 in section 2: `x = 3`, $2^7$ at temperature 0.", {})


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_notebook_computes_what_it_found(name):
    code = "\n".join(cell.source for cell in NOTEBOOKS[name].cells if cell.cell_type == "code")
    assert "ql.findings." in code
    assert "ql.reports.result(" in code
