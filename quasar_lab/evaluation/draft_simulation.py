"""What would another drafter have kept of this text? Answered without the model.

At temperature 0 the text does not depend on the drafter: a token has the same bits at every pass width, so speculation
changes when tokens arrive and never which. One plain answer is therefore enough to know every round that any lookup
length and any γ would have had: draft as the drafter would, compare with the text that is already there, go on behind
the first difference. A hundred settings cost less than one pass of the model.

What is lost: times (a rehearsal has none), and temperatures above 0, where another draft means other draws and another
text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quasar_lab.evaluation.questions import Question
from quasar_lab.speculative.drafters import make_drafter
from quasar_lab.speculative.generation import MAX_GAMMA, Verifier, generate
from quasar_lab.support.errors import InputError
from quasar_lab.support.progress import track
from quasar_lab.support.result import Result

ALL = "all"
"""The category of the row that counts every answer."""


@dataclass(frozen=True)
class Answer:
    """A plain greedy answer. limit: the most tokens it might have had; eos_ids: tokens that end a text."""

    category: str
    question: str
    prompt_ids: list[int]
    token_ids: list[int]
    limit: int
    eos_ids: frozenset[int]


@dataclass(frozen=True)
class Rehearsed:
    """One round as it would have been, in tokens."""

    drafted: int
    accepted: int
    emitted: int


def answers(verifier: Verifier, questions: Sequence[Question], max_new_tokens: int = 48) -> list[Answer]:
    """Plain greedy answers to the first turn of each question, from one verifier."""
    found = []
    for question in track(questions, len(questions), "Answering"):
        trace = generate(verifier, question.turns[0], drafter="none", max_new_tokens=max_new_tokens)
        eos = frozenset(verifier.eos_ids)
        prompt = list(trace.header["prompt_ids"])
        found.append(Answer(question.category, question.id, prompt, trace.token_ids, max_new_tokens, eos))
    return found


def rounds(answer: Answer, drafter: str = "ngram", gamma: int = 4) -> list[Rehearsed]:
    """The rounds that speculative decoding of this answer has. drafter: one that needs no hidden states ("none",
    "ngram", "ngram:2").

    Raises InputError on another drafter, or γ outside 1…16.
    """
    if not 1 <= gamma <= MAX_GAMMA:
        raise InputError(f"γ is {gamma}; accepted: 1…{MAX_GAMMA}")
    guesses = make_drafter(drafter)
    if guesses.needs_hidden:
        raise InputError(f"drafter {drafter!r} reads hidden states, which a saved text has not; accepted: none, ngram")
    text, found = answer.token_ids, []
    guesses.reset(answer.prompt_ids)
    guesses.commit(text[:1], None)
    done = 1  # the prefill's token belongs to no round
    while done < len(text):
        budget = min(gamma, answer.limit - done - 1)
        draft = guesses.propose(budget, None).ids if budget > 0 else []
        ends = next((place for place, token in enumerate(draft, 1) if token in answer.eos_ids), len(draft))
        draft, kept = draft[:ends], 0
        while kept < len(draft) and done + kept < len(text) and draft[kept] == text[done + kept]:
            kept += 1
        emitted = text[done : done + kept + 1]
        guesses.commit(emitted, None)
        found.append(Rehearsed(len(draft), kept, len(emitted)))
        done += len(emitted)
    return found


@dataclass(frozen=True)
class CategoryAcceptance(Result):
    """How far the drafts of one drafter would have been kept, on the answers of one category."""

    category: str
    """ "all": the answers of every category together."""
    prompts: int
    new_tokens: int
    rounds: int
    drafted: int
    """Tokens drafted in all rounds."""
    accepted: int
    """Of these, tokens kept."""
    mean_acceptance_length: float | None
    """τ, tokens per round. None without rounds."""
    draft_acceptance_rate: float | None
    """accepted / drafted. None where nothing was drafted."""


def table(answered: Sequence[Answer], drafter: str = "ngram", gamma: int = 4) -> list[CategoryAcceptance]:
    """A row per category in alphabetical order, and behind them one for "all" together."""
    by_category: dict[str, list[Answer]] = {}
    for item in sorted(answered, key=lambda item: item.category):
        by_category.setdefault(item.category, []).append(item)
    rows = []
    for category, items in [*by_category.items(), (ALL, list(answered))]:
        every = [record for item in items for record in rounds(item, drafter, gamma)]
        drafted = sum(record.drafted for record in every)
        accepted = sum(record.accepted for record in every)
        emitted = sum(record.emitted for record in every)
        rows.append(
            CategoryAcceptance(
                category=category,
                prompts=len(items),
                new_tokens=emitted + len(items),
                rounds=len(every),
                drafted=drafted,
                accepted=accepted,
                mean_acceptance_length=emitted / len(every) if every else None,
                draft_acceptance_rate=accepted / drafted if drafted else None,
            )
        )
    return rows


@dataclass(frozen=True)
class SettingsSweep(Result):
    """The rows of `table` for many settings of the n-gram drafter."""

    by_gamma: dict[int, list[CategoryAcceptance]]
    """γ → rows, with one longest lookup."""
    by_lookup: dict[int, list[CategoryAcceptance]]
    """Longest lookup → rows, with one γ."""


def sweep(
    answered: Sequence[Answer], gammas: Sequence[int], lookups: Sequence[int], longest: int = 3, gamma: int = 4
) -> SettingsSweep:
    """Every γ of `gammas` with lookups of at most `longest`, and every lookup length of `lookups` with `gamma`."""
    return SettingsSweep(
        by_gamma={value: table(answered, f"ngram:{longest}", value) for value in gammas},
        by_lookup={value: table(answered, f"ngram:{value}", gamma) for value in lookups},
    )
