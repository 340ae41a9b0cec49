"""What does a faster verifier buy on real tasks? The 2×2 of {BF16, W8A8} × {plain, speculative}, over whole answers.

## Idea

An *arm* is a verifier with a drafter. Every question is answered by every arm before the next question begins, in an
order that rotates, so a machine that slows down slows all arms alike. Between the questions, verify passes are timed on
their own. So the prediction that stands beside each speedup is of the same machine at the same time.

## Choice

The prefill is timed apart, and tokens are counted as ids, the same way in every arm. `SpeedupRow` says what the columns
of the table mean. Every answer is one line of a state file (`decode_state`), so a killed run goes on where it stopped.

## What is lost

The last questions of a run that goes on were answered on another day than the first ones.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, log2
from pathlib import Path
from typing import cast

from filelock import Timeout

from quasar_lab.evaluation.decode_state import PassSample, StateFile, state_path
from quasar_lab.evaluation.origin import Origin, threads, timed_origin
from quasar_lab.evaluation.pass_timer import StepTimer
from quasar_lab.evaluation.questions import Question
from quasar_lab.evaluation.speedup_table import MEAN, SpeedupRow, WidthTimes, speedup_rows
from quasar_lab.evaluation.timed_answer import Arm, answer_question, conversation
from quasar_lab.models.decoder import Decoder
from quasar_lab.speculative.config import GenerationConfig
from quasar_lab.speculative.generation import encode_prompt, generate
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support import storage
from quasar_lab.support.errors import InputError
from quasar_lab.support.machine import percentiles
from quasar_lab.support.progress import announce
from quasar_lab.support.result import Result, flat, left_out

TIMED_CONTEXT = 256
"""Tokens in the cache of the passes that are timed on their own."""

TIMED_SAMPLES = 15
"""Samples of those passes over a whole run."""

AUDIT_WIDTHS = (6, 7, 8, 10, 12, 16, 24, 32, 48)
"""Widths that the auditor is timed at beside those of rounds; audits between them are interpolated."""

PROGRESS_SECONDS = 15.0

SETTINGS = ("gamma", "max_new_tokens", "temperature", "top_k", "top_p", "seed")
"""Options of a run that a result tells."""

Settings = GenerationConfig
"""The public name of the options in `decode_benchmark`."""


@dataclass(frozen=True)
class DecodeResult(Result):
    """The table of `quasar-lab bench decode`, and what it was measured with."""

    runs: list[SpeedupRow]
    """Per arm and category, and per arm the mean over categories."""
    baseline: Arm
    """The arm that speedups are against."""
    complete: bool
    """False where the run was interrupted: the table is then of the answers so far."""
    settings: dict[str, int | float]
    """The options of `GenerationConfig` that every arm shared, by name."""
    step_ms: WidthTimes
    """Pass times measured between the questions: the median of each."""
    origin: Origin = flat()
    command: str | None = left_out()
    """The command line that asked for it."""

    def row(self, verifier: str, drafter: str = "none", category: str = MEAN) -> SpeedupRow:
        """The row of an arm on a category, or its mean over categories. Raises InputError where there is none."""
        wanted = verifier, drafter, category
        for row in self.runs:
            if (row.verifier, row.drafter, row.category) == wanted:
                return row
        known = ", ".join(f"{row.verifier}/{row.drafter}/{row.category}" for row in self.runs)
        raise InputError(f"there is no row {'/'.join(wanted)}; accepted: {known}")

    @property
    def config(self) -> GenerationConfig:
        """The options that every arm shared."""
        return GenerationConfig(**self.settings)  # type: ignore[arg-type]

    @property
    def arms(self) -> list[Arm]:
        """All arms, in the order of their rows."""
        return list(dict.fromkeys(row.arm for row in self.runs))

    @property
    def prompts(self) -> int:
        """Questions that the baseline has answered."""
        return sum(row.prompts for row in self.runs if row.arm == self.baseline and not row.is_mean)

    def compared(self) -> dict[Arm, list[SpeedupRow]]:
        """The rows with a speedup, by arm: categories in alphabetical order, the mean last."""
        arms: dict[Arm, list[SpeedupRow]] = {}
        for row in sorted(self.runs, key=lambda row: (row.is_mean, row.category)):
            if row.speedup is not None:
                arms.setdefault(row.arm, []).append(row)
        return arms

    def predicted(self) -> dict[Arm, list[SpeedupRow]]:
        """The rows of `compared` that have a prediction, without the baseline's."""
        arms = {
            arm: [row for row in rows if row.predicted_speedup is not None]
            for arm, rows in self.compared().items()
            if arm != self.baseline
        }
        return {arm: rows for arm, rows in arms.items() if rows}

    def furthest_from_prediction(self) -> SpeedupRow:
        """The row whose speedup is furthest from its prediction, by factor. Raises InputError where nothing is
        predicted."""
        rows = [row for found in self.predicted().values() for row in found]
        if not rows:
            raise InputError("nothing is predicted in this result; accepted: a `bench decode` of two arms or more")
        return max(rows, key=lambda row: abs(log2(row.measured_over_predicted or 1.0)))

    def best_speedup(self, category: str) -> float:
        """The largest speedup in a category; 0 where there is none."""
        return max((row.speedup or 0.0 for row in self.runs if row.category == category), default=0.0)


def run(
    verifiers: Sequence[Verifier],
    drafters: Sequence[str],
    questions: Sequence[Question],
    config: GenerationConfig,
    state: Path | None = None,
) -> DecodeResult:
    """The table of `quasar-lab bench decode`. Goes on from `state` (default: a file in the cache) when an earlier run
    of the same was cut short.

    Ctrl-C ends it with the table of what is there: `complete` is then False. Raises InputError on questions that cannot
    be told apart or asked, and while the same benchmark is running already.
    """
    _check(verifiers[0], questions)
    if state is None:
        state = _state_path(verifiers, drafters, questions, config)
    try:
        with storage.lock(str(state.absolute()), timeout=0):
            return DecodeBenchmark(verifiers, drafters, questions, config, StateFile(state)).run()
    except Timeout as error:
        raise InputError("the same benchmark is running already; accepted: one at a time") from error


def _check(verifier: Verifier, questions: Sequence[Question]) -> None:
    """Raises InputError on questions that cannot be told apart or asked: before anything is timed, not midway."""
    seen: set[tuple[str, str]] = set()
    for question in questions:
        name = f"question {question.id} of category {question.category}"
        if (question.category, question.id) in seen:
            raise InputError(f"{name} stands there twice; accepted: different ids within a category")
        seen.add((question.category, question.id))
        try:
            encode_prompt(verifier, conversation(verifier, [{"role": "user", "content": question.turns[0]}]))
        except InputError as error:
            raise InputError(f"{name}: {error}") from error


def _state_path(
    verifiers: Sequence[Verifier], drafters: Sequence[str], questions: Sequence[Question], config: GenerationConfig
) -> Path:
    return state_path(
        identity=verifiers[0].identity,
        threads=threads(_decoders(verifiers)[0]),
        verifiers=[verifier.name for verifier in verifiers],
        drafters=drafters,
        questions=questions,
        settings=asdict(config),
    )


class DecodeBenchmark:
    """A benchmark that runs: its arms, and what is answered and timed so far."""

    def __init__(
        self,
        verifiers: Sequence[Verifier],
        drafters: Sequence[str],
        questions: Sequence[Question],
        config: GenerationConfig,
        state: StateFile,
    ):
        self._verifiers = verifiers
        self._arms = [(verifier, drafter) for verifier in verifiers for drafter in drafters]
        self._questions = questions
        self._config = config
        self._state = state
        self._total = len(self._arms) * len(questions)

    def run(self) -> DecodeResult:
        """Answers what no earlier run has answered; returns the table of everything."""
        self._state.read()
        if self._state.answers:
            announce(f"Going on after {len(self._state.answers)} answers of an earlier run")
        complete = True
        try:
            self._measure()
        except KeyboardInterrupt:
            complete = False
            announce(
                f"Interrupted after {len(self._state.answers)} of {self._total} answers, which the table is of; "
                "the same command goes on"
            )
        if complete:
            self._state.remove()
        return self._result(complete)

    def _measure(self) -> None:
        progress = Progress(self._total, done=len(self._state.answers))
        timer = step_timer(self._verifiers, self._config.gamma)
        self._warm_up()
        for place, question in enumerate(self._questions):
            missing = self._missing(place, question)
            if missing:
                self._time_passes(timer)
            for verifier, drafter in missing:
                self._state.add_answer(answer_question(verifier, drafter, question, self._config))
            progress.tell(len(self._state.answers))
        self._time_passes(timer)

    def _warm_up(self) -> None:
        for verifier, drafter in self._arms:
            generate(verifier, [1], drafter=drafter, max_new_tokens=2)

    def _missing(self, place: int, question: Question) -> list[tuple[Verifier, str]]:
        """The arms that have not answered the question at `place`, in this question's order: it rotates."""
        done = {
            answer.arm
            for answer in self._state.answers
            if (answer.category, answer.question) == (question.category, question.id)
        }
        first = place % len(self._arms)
        rotated = self._arms[first:] + self._arms[:first]
        return [(verifier, drafter) for verifier, drafter in rotated if Arm(verifier.name, drafter) not in done]

    def _time_passes(self, timer: StepTimer) -> None:
        """The share of TIMED_SAMPLES that is due at one of the places between, before and behind the questions."""
        for _ in range(ceil(TIMED_SAMPLES / (len(self._questions) + 1))):
            self._state.add_sample(timer.sample())

    def _result(self, complete: bool) -> DecodeResult:
        baseline = Arm(self._verifiers[0].name, "none")
        pass_ms = median_pass_ms(self._state.samples)
        sampled = self._config.temperature > 0
        return DecodeResult(
            runs=speedup_rows(self._state.answers, pass_ms, baseline, sampled=sampled),
            baseline=baseline,
            complete=complete,
            settings={name: getattr(self._config, name) for name in SETTINGS},
            step_ms=pass_ms,
            origin=timed_origin(_decoders(self._verifiers)[0]),
        )


class Progress:
    """Tells every PROGRESS_SECONDS how many answers there are, and about how long the rest takes; then how it ended."""

    def __init__(self, total: int, done: int):
        self._total = total
        self._done_before = done
        self._begun = time.monotonic()
        self._told = self._begun

    def tell(self, done: int) -> None:
        now = time.monotonic()
        if done == self._total and self._told > self._begun:
            announce(f"{done} of {self._total} answers")
            return
        if now - self._told <= PROGRESS_SECONDS:
            return
        per_answer = (now - self._begun) / max(done - self._done_before, 1)
        announce(f"{done} of {self._total} answers, about {per_answer * (self._total - done):.0f} s left", passing=True)
        self._told = now


def _decoders(verifiers: Iterable[Verifier]) -> list[Decoder]:
    """The decoders that passes are made by: those given, and both of an audited one; each once."""
    found: dict[str, Verifier] = {}
    for verifier in verifiers:
        for part in verifier.passes:
            found.setdefault(part.name, part)
    return cast(list[Decoder], list(found.values()))


def step_timer(verifiers: Sequence[Verifier], gamma: int) -> StepTimer:
    """Times the widths that rounds may have, and of an auditor those of audits too."""
    decoders = _decoders(verifiers)
    rounds = range(1, gamma + 2)
    widths: dict[str, list[int]] = {decoder.name: list(rounds) for decoder in decoders}
    for verifier in verifiers:
        if verifier.auditor is not None:
            widths[verifier.auditor.name] = sorted({*rounds, *AUDIT_WIDTHS})
    room = min(verifier.context for verifier in verifiers) - max(map(max, widths.values()))
    return StepTimer(decoders, widths, max(1, min(TIMED_CONTEXT, room)))


def median_pass_ms(samples: Iterable[PassSample]) -> WidthTimes:
    """The median over samples of every pass, widths in ascending order."""
    times: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for name, curve in sample.items():
            for width, spent in curve.items():
                times.setdefault(name, {}).setdefault(str(width), []).append(spent)
    return {
        name: {width: percentiles(spent)[1] for width, spent in sorted(curve.items(), key=lambda item: int(item[0]))}
        for name, curve in times.items()
    }
