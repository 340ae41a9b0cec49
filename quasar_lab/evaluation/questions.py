"""Questions to measure on: JSON lines in the format of Spec-Bench, read strictly.

Each line is an object with ``question_id``, ``category``, ``turns`` (one or more user messages, which are answered in
order) and, where there is a right answer, ``reference``. A file with one bad line is refused before any model loads,
and the error names the line. A benchmark that left out bad lines would measure something else than it says.
"""

from dataclasses import dataclass
from pathlib import Path

from quasar_lab.support.errors import InputError
from quasar_lab.support.json_schema import numbered_lines, parse
from quasar_lab.support.storage import packaged_folder


@dataclass(frozen=True)
class Question:
    """One question, which may have more than one turn."""

    id: str
    category: str
    """The kind of text it asks for: math, code, chat …"""
    turns: tuple[str, ...]
    """The messages of the user, in order."""
    reference: tuple[str, ...] = ()
    """Right answers. Empty where there is none."""


def read_questions(path: Path) -> list[Question]:
    """All questions of a file. Raises InputError, naming the line, on anything that is not in the format."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from error
    questions = [_question(line, f"line {number} of {path}") for number, line in numbered_lines(text)]
    if not questions:
        raise InputError(f"{path} holds no questions")
    return questions


def _question(line: str, where: str) -> Question:
    try:
        raw = parse(line)
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise InputError(f'{where} is no object; accepted: {{"question_id", "category", "turns", "reference"}}')
    turns = raw.get("turns")
    reference = raw.get("reference", [])
    if not _texts(turns) or not turns:
        raise InputError(f'{where} has no usable "turns"; accepted: a list of one or more non-empty texts')
    if not isinstance(raw.get("category"), str) or not isinstance(raw.get("question_id"), int | str):
        raise InputError(f'{where} lacks "category" or "question_id"; accepted: a text, and a number or text')
    if not isinstance(reference, list) or not all(isinstance(text, str) for text in reference):
        raise InputError(f'{where} has an unusable "reference"; accepted: a list of texts, or none')
    return Question(str(raw["question_id"]), raw["category"], tuple(turns), tuple(reference))


def _texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(text, str) and text.strip() for text in values)


def ours(per_category: int | None = None) -> list[Question]:
    """The questions that come with the project: all, or at most `per_category` of each category."""
    files = sorted(packaged_folder("data/prompts").glob("*.jsonl"))
    return select([question for path in files for question in read_questions(path)], per_category)


def find(number: int | str) -> Question:
    """The question of ours with that `question_id`. Raises InputError where there is none."""
    for question in ours():
        if question.id == str(number):
            return question
    raise InputError(f"there is no question {number!r}; accepted: a question_id of data/prompts")


def select(questions: list[Question], limit: int | None) -> list[Question]:
    """At most `limit` questions of each category, in file order."""
    if limit is None:
        return questions
    taken: dict[str, int] = {}
    chosen = []
    for question in questions:
        taken[question.category] = taken.get(question.category, 0) + 1
        if taken[question.category] <= limit:
            chosen.append(question)
    return chosen
