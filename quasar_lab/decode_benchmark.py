"""What does a faster verifier buy on real tasks? Always the 2×2: {BF16, W8A8} × {plain, speculative}, over whole
answers.

An *arm* is a verifier with a drafter. Every question is answered by every arm before the next question, in an order
that rotates, so that a machine that slows down slows all arms alike. Prefill is timed apart; tokens are counted as ids,
the same way in every arm. The speedup of an arm is its time per token against the baseline's (the first verifier
without drafter), over the questions of a category, with a 95 % bootstrap interval over questions, and it is split into

    speedup = step factor × acceptance factor × other factor
              (verify time per round)  (tokens per round)  (draft, sampling, host)

so that a gain from longer drafts on different text cannot pass for a faster step. Beside it stands the *predicted*
speedup: step times measured on their own (`benchmark.step`), put together with the widths of the rounds. If the two
differ, something is not understood.

Every answer is one line of a state file: a killed run goes on where it stopped, and its table comes from the same
lines.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import Timeout

from quasar_lab import storage
from quasar_lab.benchmark import stamp, step, threads
from quasar_lab.decoder import Decoder
from quasar_lab.errors import InputError
from quasar_lab.progress import announce
from quasar_lab.prompts import Question
from quasar_lab.speculative import Prompt, encode_prompt, generate, versions

RESAMPLES = 2000
CURVE_CONTEXT = 256
CURVE_SAMPLES = 15
PROGRESS_SECONDS = 15.0


@dataclass(frozen=True)
class Settings:
    """Options that every arm shares."""

    gamma: int = 4
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """One question answered by one arm, all turns. tokens: without those of the prefills. seconds: of decoding, by
    part.

    widths: width of a verify pass → rounds of that width. ids: emitted tokens per turn.
    """

    verifier: str
    drafter: str
    question: str
    category: str
    tokens: int
    rounds: int
    drafted: int
    prefill: float
    verify: float
    draft: float
    sample: float
    host: float
    widths: dict[int, int]
    ids: list[list[int]]

    @property
    def arm(self) -> tuple[str, str]:
        return self.verifier, self.drafter

    @property
    def overhead(self) -> float:
        """Seconds of decoding outside the verifier."""
        return self.draft + self.sample + self.host

    @property
    def seconds(self) -> float:
        return self.verify + self.overhead


def answer(verifier: Decoder, drafter: str, question: Question, settings: Settings) -> Answer:
    """Answers all turns of a question; with a chat template, each sees the conversation so far.

    Turns that no longer fit the context are left out.
    """
    spent = dict.fromkeys(("prefill", "verify", "draft", "sample", "host"), 0.0)
    widths: dict[int, int] = {}
    tokens = rounds = drafted = 0
    messages: list[dict[str, str]] = []
    ids: list[list[int]] = []
    for turn in question.turns:
        messages.append({"role": "user", "content": turn})
        try:
            trace = generate(verifier, _prompt(verifier, messages), drafter=drafter, **asdict(settings))
        except InputError:
            if not ids:
                raise
            break  # the conversation has outgrown the context
        summary = trace.summary()
        for part in spent:
            spent[part] += summary["seconds"][part]
        for record in trace.rounds:
            width = len(record.draft_ids) + 1
            widths[width] = widths.get(width, 0) + 1
            drafted += width - 1
        tokens += summary["new_tokens"] - 1
        rounds += summary["rounds"]
        ids.append(summary["token_ids"])
        messages.append({"role": "assistant", "content": summary["text"]})
    return Answer(
        verifier.name, drafter, question.id, question.category, tokens, rounds, drafted, **spent, widths=widths, ids=ids
    )


def run(
    verifiers: Sequence[Decoder],
    drafters: Sequence[str],
    questions: Sequence[Question],
    settings: Settings,
    state: Path | None = None,
) -> dict[str, Any]:
    """The table of `quasar-lab bench decode`. Goes on from `state` (default: the cache) when an earlier run of the same
    was cut short.

    Ctrl-C ends it with what is there: "complete" is then False.
    """
    arms = [(verifier, drafter) for verifier in verifiers for drafter in drafters]
    _check(verifiers, questions)
    state = state or _state_file(verifiers, drafters, questions, settings)
    try:
        with storage.lock(str(state.absolute()), timeout=0):
            return _run(verifiers, arms, questions, settings, state)
    except Timeout as error:
        raise InputError("the same benchmark is running already; accepted: one at a time") from error


def _check(verifiers: Sequence[Decoder], questions: Sequence[Question]) -> None:
    """Raises InputError on questions that cannot be told apart or asked: before anything is timed, not midway."""
    seen: set[tuple[str, str]] = set()
    for question in questions:
        name = f"question {question.id} of category {question.category}"
        if (question.category, question.id) in seen:
            raise InputError(f"{name} stands there twice; accepted: different ids within a category")
        seen.add((question.category, question.id))
        try:
            encode_prompt(verifiers[0], _prompt(verifiers[0], [{"role": "user", "content": question.turns[0]}]))
        except InputError as error:
            raise InputError(f"{name}: {error}") from error


def _prompt(verifier: Decoder, messages: list[dict[str, str]]) -> Prompt:
    """The conversation so far where the model has a chat template, else its last message."""
    templated = verifier.tokenizer is not None and verifier.tokenizer.has_chat_template
    return messages if templated else messages[-1]["content"]


def _run(
    verifiers: Sequence[Decoder],
    arms: list[tuple[Decoder, str]],
    questions: Sequence[Question],
    settings: Settings,
    state: Path,
) -> dict[str, Any]:
    curves, answers = _read_state(state)
    done = {(item.arm, item.category, item.question) for item in answers}
    if answers:
        announce(f"Going on after {len(answers)} answers of an earlier run")
    total, fresh = len(arms) * len(questions), 0
    begun = told = time.monotonic()
    complete = True
    try:
        if not curves:
            curves = _curves(verifiers, settings.gamma)
            _append(state, {"curves": curves})
        for verifier, drafter in arms:  # warm-up
            generate(verifier, [1], drafter=drafter, max_new_tokens=2)
        for place, question in enumerate(questions):
            for verifier, drafter in arms[place % len(arms) :] + arms[: place % len(arms)]:
                if ((verifier.name, drafter), question.category, question.id) in done:
                    continue
                item = answer(verifier, drafter, question, settings)
                _append(state, asdict(item))
                answers.append(item)
                fresh += 1
            now = time.monotonic()
            if now - told > PROGRESS_SECONDS:
                left = (now - begun) / max(fresh, 1) * (total - len(answers))
                announce(f"{len(answers)} of {total} answers, about {left:.0f} s left")
                told = now
    except KeyboardInterrupt:
        complete = False
        announce(
            f"Interrupted after {len(answers)} of {total} answers, which the table is of; the same command goes on"
        )
    if complete:
        state.unlink(missing_ok=True)
    first = verifiers[0]
    table = summarise(answers, curves, (first.name, "none"))
    if settings.temperature > 0:
        for row in table:
            row["identical_to_plain"] = row["different_from_plain"] = (
                None  # other draws, other text: only the distribution is the same
            )
    return {
        "runs": table,
        "baseline": {"verifier": first.name, "drafter": "none"},
        "complete": complete,
        "settings": asdict(settings),
        "step_ms": curves,
        "device": first.device,
        "backend": first.backend,
        "threads": threads(first),
        "model": first.identity["model"],
        **stamp(),
    }


def _curves(verifiers: Sequence[Decoder], gamma: int) -> dict[str, dict[str, float]]:
    """Verifier → width → p50 of a step in ms."""
    room = min(verifier.context for verifier in verifiers) - gamma - 1
    found = step(verifiers, range(1, gamma + 2), min(CURVE_CONTEXT, room), CURVE_SAMPLES)
    curves: dict[str, dict[str, float]] = {}
    for row in found["steps"]:
        curves.setdefault(row["verifier"], {})[str(row["width"])] = row["ms_p50"]
    return curves


def _state_file(
    verifiers: Sequence[Decoder], drafters: Sequence[str], questions: Sequence[Question], settings: Settings
) -> Path:
    first = verifiers[0]
    names = [verifier.name for verifier in verifiers]
    identity = [
        first.identity,
        threads(first),
        names,
        list(drafters),
        [asdict(q) for q in questions],
        asdict(settings),
        versions(),
    ]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = storage.cache_folder() / "bench"
    folder.mkdir(exist_ok=True)
    return folder / f"decode-{digest}.jsonl"


def _append(state: Path, record: dict[str, Any]) -> None:
    with state.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def _read_state(state: Path) -> tuple[dict[str, dict[str, float]], list[Answer]]:
    """Step curves and answers of an earlier run; a last line that was cut off is dropped from the file."""
    curves: dict[str, dict[str, float]] = {}
    answers: list[Answer] = []
    if not state.exists():
        return curves, answers
    whole = []
    for line in state.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        whole.append(line)
        if "curves" in record:
            curves = record["curves"]
        else:
            record["widths"] = {int(width): count for width, count in record["widths"].items()}
            answers.append(Answer(**record))
    storage.write_text(state, "".join(line + "\n" for line in whole))
    return curves, answers


def summarise(
    answers: Iterable[Answer], curves: dict[str, dict[str, float]], baseline: tuple[str, str]
) -> list[dict[str, Any]]:
    """Rows of the table: per arm and category, and per arm the category "mean" (the mean of the categories'
    speedups).

    identical_to_plain: questions whose ids equal those of the same verifier without drafter; different_from_plain: the
    others, by id.
    """
    by_arm: dict[tuple[str, str], dict[str, list[Answer]]] = {}
    for item in answers:
        by_arm.setdefault(item.arm, {}).setdefault(item.category, []).append(item)
    rows = []
    generator = np.random.default_rng(0)
    for arm, categories in by_arm.items():
        draws, points = [], []
        for category, items in categories.items():
            pairs = _paired(items, by_arm.get(baseline, {}).get(category, []))
            plain = _paired(items, by_arm.get((arm[0], "none"), {}).get(category, []))
            row = _row(arm, category, items, pairs, curves, baseline)
            row["identical_to_plain"] = sum(mine.ids == other.ids for mine, other in plain) if plain else None
            row["different_from_plain"] = [mine.question for mine, other in plain if mine.ids != other.ids]
            rows.append(row)
            if row["speedup"] is not None:
                resampled = _bootstrap(pairs, generator)
                row["speedup_low"], row["speedup_high"] = _interval(resampled)
                draws.append(resampled)
                points.append(row["speedup"])
        if len(points) > 1:
            low, high = _interval(np.mean(draws, axis=0))
            everything = [item for items in categories.values() for item in items]
            mean = _row(arm, "mean", everything, [], curves, baseline)
            mean.update(speedup=float(np.mean(points)), speedup_low=low, speedup_high=high)
            members = [row for row in rows if (row["verifier"], row["drafter"]) == arm and row["speedup"] is not None]
            same = [row["identical_to_plain"] for row in members]
            mean["identical_to_plain"] = None if None in same else sum(same)
            mean["different_from_plain"] = [question for row in members for question in row["different_from_plain"]]
            for key in ("predicted_speedup", "step_factor", "acceptance_factor", "other_factor"):
                values = [row[key] for row in members if row[key] is not None]
                mean[key] = float(np.mean(values)) if values else None
            rows.append(mean)
    return rows


def _paired(items: list[Answer], others: list[Answer]) -> list[tuple[Answer, Answer]]:
    known = {other.question: other for other in others}
    return [(item, known[item.question]) for item in items if item.question in known]


def _per_token(items: Iterable[Answer]) -> float | None:
    items = list(items)
    tokens = sum(item.tokens for item in items)
    return sum(item.seconds for item in items) / tokens if tokens else None


def _row(
    arm: tuple[str, str],
    category: str,
    items: list[Answer],
    pairs: list[tuple[Answer, Answer]],
    curves: dict[str, dict[str, float]],
    baseline: tuple[str, str],
) -> dict[str, Any]:
    tokens, rounds = sum(item.tokens for item in items), sum(item.rounds for item in items)
    seconds = sum(item.seconds for item in items)
    row: dict[str, Any] = {
        "verifier": arm[0],
        "drafter": arm[1],
        "category": category,
        "prompts": len(items),
        "new_tokens": tokens,
        "rounds": rounds,
        "drafted": sum(item.drafted for item in items),
        "mean_acceptance_length": tokens / rounds if rounds else None,
        "tokens_per_second": tokens / seconds if seconds else None,
        "ms_per_round": 1e3 * seconds / rounds if rounds else None,
    }
    keys = (
        "speedup",
        "speedup_low",
        "speedup_high",
        "predicted_speedup",
        "step_factor",
        "acceptance_factor",
        "other_factor",
    )
    row.update(dict.fromkeys(keys))
    mine, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    own, base = _per_token(mine), _per_token(theirs)
    if own is None or base is None:
        return row
    row["speedup"] = base / own
    own_rounds, base_rounds = sum(item.rounds for item in mine), sum(item.rounds for item in theirs)
    own_tau = sum(item.tokens for item in mine) / own_rounds
    base_tau = sum(item.tokens for item in theirs) / base_rounds
    row["acceptance_factor"] = own_tau / base_tau
    own_step, base_step = (sum(item.verify for item in group) for group in (mine, theirs))
    row["step_factor"] = (base_step / base_rounds) / (own_step / own_rounds)
    row["other_factor"] = row["speedup"] / row["acceptance_factor"] / row["step_factor"]
    if arm[0] in curves and baseline[0] in curves:
        host = sum(item.overhead for item in theirs) / base_rounds
        curve = curves[arm[0]]
        passes = sum(1e-3 * curve[str(width)] * count for item in mine for width, count in item.widths.items())
        expected = sum(item.tokens for item in mine) * (1e-3 * curves[baseline[0]]["1"] + host)
        row["predicted_speedup"] = expected / (passes + sum(item.overhead for item in mine))
    return row


def _bootstrap(pairs: list[tuple[Answer, Answer]], generator: np.random.Generator) -> np.ndarray:
    """Speedups of RESAMPLES resamples of the questions, f64 [RESAMPLES]; resamples without tokens are left at the point
    estimate."""
    own, base = (
        np.array([[pair[side].seconds, pair[side].tokens] for pair in pairs]).astype(np.float64) for side in (0, 1)
    )
    chosen = generator.integers(len(pairs), size=(RESAMPLES, len(pairs)))
    (own_seconds, own_tokens), (base_seconds, base_tokens) = (
        np.moveaxis(group[chosen].sum(axis=1), -1, 0) for group in (own, base)
    )
    usable = (own_tokens > 0) & (base_tokens > 0)
    point = (base[:, 0].sum() / base[:, 1].sum()) / (own[:, 0].sum() / own[:, 1].sum())
    speedups = np.full(RESAMPLES, point)
    speedups[usable] = (base_seconds[usable] / base_tokens[usable]) / (own_seconds[usable] / own_tokens[usable])
    return speedups


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)
