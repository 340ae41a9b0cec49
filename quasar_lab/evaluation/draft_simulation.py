"""What would another drafter have kept of this text? Answered without the model.

## Idea

At temperature 0 the text does not depend on the drafter. A token has the same bits at every pass width, so speculation
changes when tokens arrive and never which. One plain answer is therefore enough to know every round that any lookup
length and any γ would have had: draft as the drafter would, compare with the text that is already there by the accept
rule, and go on behind the first difference. A hundred settings cost less than one pass of the model.

## What is lost

Times, because a simulation has none. Temperatures above 0, where another draft means other draws and another text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quasar_lab.evaluation.questions import Question
from quasar_lab.speculative.config import GREEDY, MAX_GAMMA, GenerationConfig, check_gamma
from quasar_lab.speculative.drafters import Drafter, make_drafter
from quasar_lab.speculative.drafters.ngram import LONGEST_ACCEPTED
from quasar_lab.speculative.drafters.registry import DEFAULT, kinds
from quasar_lab.speculative.generation import generate
from quasar_lab.speculative.rejection import keeps_greedily, kept_prefix
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.errors import InputError
from quasar_lab.support.progress import track
from quasar_lab.support.result import Result

ALL = "all"
"""The category of the row that counts every answer."""


@dataclass(frozen=True)
class PlainAnswer:
    """A plain greedy answer."""

    category: str  # the kind of its question
    question: str  # the question's id
    prompt_ids: list[int]
    token_ids: list[int]
    limit: int  # the most tokens that it might have had
    eos_ids: frozenset[int]  # tokens that end a text


@dataclass(frozen=True)
class SimulatedRound:
    """One round as it would have been, in tokens."""

    drafted: int
    accepted: int
    emitted: int


@dataclass(frozen=True)
class CategoryAcceptance(Result):
    """How a drafter fares on the answers of one category."""

    category: str  # "all": all answers together
    prompts: int
    new_tokens: int
    rounds: int
    drafted: int
    accepted: int
    mean_acceptance_length: float | None  # None without a round
    draft_acceptance_rate: float | None  # None where nothing was drafted


def answers(verifier: Verifier, questions: Sequence[Question], max_new_tokens: int = 48) -> list[PlainAnswer]:
    """Plain greedy answers to the first turn of each question, from one verifier."""
    found = []
    for question in track(questions, len(questions), "Answering"):
        trace = generate(verifier, question.turns[0], drafter="none", max_new_tokens=max_new_tokens, **GREEDY)
        answer = PlainAnswer(
            category=question.category,
            question=question.id,
            prompt_ids=list(trace.prompt_ids),
            token_ids=trace.token_ids,
            limit=max_new_tokens,
            eos_ids=frozenset(verifier.eos_ids),
        )
        found.append(answer)
    return found


def rounds(answer: PlainAnswer, drafter: str = DEFAULT, gamma: int = GenerationConfig.gamma) -> list[SimulatedRound]:
    """The rounds that speculative decoding of this answer has. drafter: one that needs no hidden states ("none",
    "ngram", "ngram:2").

    Raises InputError on another drafter, or γ outside 1…16.
    """
    check_gamma(gamma)
    guesses = make_drafter(drafter)
    if guesses.needs_hidden:
        usable = ", ".join(name for name, kind in kinds().items() if not kind.needs_hidden)
        raise InputError(f"drafter {drafter!r} reads hidden states, which a saved text has not; accepted: {usable}")
    text = answer.token_ids
    found = []
    guesses.reset(answer.prompt_ids)
    guesses.commit(text[:1], None)
    done = 1  # the prefill's token belongs to no round
    while done < len(text):
        draft = _draft(guesses, answer, min(gamma, answer.limit - done - 1))
        kept = kept_prefix(map(keeps_greedily, draft, text[done:]))
        emitted = text[done : done + kept + 1]
        guesses.commit(emitted, None)
        found.append(SimulatedRound(drafted=len(draft), accepted=kept, emitted=len(emitted)))
        done += len(emitted)
    return found


def _draft(drafter: Drafter, answer: PlainAnswer, budget: int) -> list[int]:
    """What the drafter proposes, up to an end-of-sequence token."""
    draft = drafter.propose(budget, None).ids if budget > 0 else []
    ends = next((place for place, token in enumerate(draft, 1) if token in answer.eos_ids), len(draft))
    return draft[:ends]


def table(
    answered: Sequence[PlainAnswer], drafter: str = DEFAULT, gamma: int = GenerationConfig.gamma
) -> list[CategoryAcceptance]:
    """A row per category, in alphabetical order, and one for "all" together."""
    by_category: dict[str, list[PlainAnswer]] = {}
    for item in sorted(answered, key=lambda item: item.category):
        by_category.setdefault(item.category, []).append(item)
    groups = [*by_category.items(), (ALL, list(answered))]
    return [_row(category, items, drafter, gamma) for category, items in groups]


def _row(category: str, items: Sequence[PlainAnswer], drafter: str, gamma: int) -> CategoryAcceptance:
    every = [record for item in items for record in rounds(item, drafter, gamma)]
    drafted = sum(record.drafted for record in every)
    accepted = sum(record.accepted for record in every)
    emitted = sum(record.emitted for record in every)
    return CategoryAcceptance(
        category=category,
        prompts=len(items),
        new_tokens=emitted + len(items),
        rounds=len(every),
        drafted=drafted,
        accepted=accepted,
        mean_acceptance_length=emitted / len(every) if every else None,
        draft_acceptance_rate=accepted / drafted if drafted else None,
    )


def longest_tau(answered: Sequence[PlainAnswer]) -> float:
    """The largest τ of a category at the longest γ, whatever the lookup: what an axis must hold for every setting."""
    every = (
        row for longest in range(1, LONGEST_ACCEPTED + 1) for row in table(answered, f"ngram:{longest}", MAX_GAMMA)
    )
    return max((row.mean_acceptance_length or 1.0 for row in every), default=1.0)


@dataclass(frozen=True)
class SettingsSweep(Result):
    """The rows of `table` for many settings of the n-gram drafter."""

    by_gamma: dict[int, list[CategoryAcceptance]]
    """γ → rows, with one longest lookup."""
    by_lookup: dict[int, list[CategoryAcceptance]]
    """Longest lookup → rows, with one γ."""


def sweep(
    answered: Sequence[PlainAnswer],
    gammas: Sequence[int],
    lookups: Sequence[int],
    longest: int = 3,
    gamma: int = GenerationConfig.gamma,
) -> SettingsSweep:
    """Every γ of `gammas` with lookups of at most `longest`, and every lookup length of `lookups` with `gamma`."""
    return SettingsSweep(
        by_gamma={value: table(answered, f"ngram:{longest}", value) for value in gammas},
        by_lookup={value: table(answered, f"ngram:{value}", gamma) for value in lookups},
    )
