"""What does a faster verifier buy on real tasks? Always the 2×2: {BF16, W8A8} × {plain, speculative}, over whole
answers.

An *arm* is a verifier with a drafter. Every question is answered by every arm before the next question, in an order
that rotates, so that a machine that slows down slows all arms alike. Prefill is timed apart; tokens are counted as ids,
the same way in every arm. Between the questions verify passes are timed on their own, so that the prediction that
stands beside each speedup is of the same machine at the same time. What the columns mean: `decode_table`.

Every answer is one line of a state file: a killed run goes on where it stopped, and its table comes from the same
lines.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

from filelock import Timeout

from quasar_lab.evaluation.origin import threads
from quasar_lab.evaluation.pass_timer import StepTimer
from quasar_lab.evaluation.questions import Question
from quasar_lab.evaluation.speedup_table import Answer, Curves, summarise
from quasar_lab.models.decoder import Decoder
from quasar_lab.speculative.audit import Audited
from quasar_lab.speculative.generation import Prompt, encode_prompt, generate
from quasar_lab.support import storage
from quasar_lab.support.errors import InputError
from quasar_lab.support.machine import percentiles, stamp, versions
from quasar_lab.support.progress import announce

CURVE_CONTEXT = 256
CURVE_SAMPLES = 15
AUDIT_WIDTHS = (6, 7, 8, 10, 12, 16, 24, 32, 48)
"""Widths that the auditor is timed at beside those of rounds; audits between them are interpolated."""

PROGRESS_SECONDS = 15.0
STATE_FORMAT = 2

Arm = Decoder | Audited


@dataclass(frozen=True)
class Settings:
    """Options that every arm shares."""

    gamma: int = 4
    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


def answer(verifier: Arm, drafter: str, question: Question, settings: Settings) -> Answer:
    """Answers all turns of a question; with a chat template, each sees the conversation so far.

    Turns that no longer fit the context are left out.
    """
    spent = dict.fromkeys(("prefill", "verify", "draft", "sample", "host"), 0.0)
    widths: dict[int, int] = {}
    audit_widths: dict[int, int] = {}
    tokens = rounds = drafted = audited = judged = flips = 0
    audit = 0.0
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
        in_audits = summary["seconds"].get("audit", 0.0)
        for check in trace.audits:
            width, refused = len(check.top), check.accepted < check.length
            audit_widths[width] = audit_widths.get(width, 0) + 1
            audited, judged, flips = audited + check.length, judged + check.accepted + refused, flips + refused
            audit += 1e-3 * check.ms["verify"]
            in_audits -= 1e-3 * check.ms["verify"]
        spent["host"] += in_audits
        tokens += summary["new_tokens"] - 1
        rounds += summary["rounds"]
        ids.append(summary["token_ids"])
        messages.append({"role": "assistant", "content": summary["text"]})
    return Answer(
        verifier.name,
        drafter,
        question.id,
        question.category,
        tokens,
        rounds,
        drafted,
        **spent,
        widths=widths,
        ids=ids,
        audit=audit,
        audit_widths=audit_widths,
        audited=audited,
        judged=judged,
        flips=flips,
    )


def run(
    verifiers: Sequence[Arm],
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


def _check(verifiers: Sequence[Arm], questions: Sequence[Question]) -> None:
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


def _prompt(verifier: Arm, messages: list[dict[str, str]]) -> Prompt:
    """The conversation so far where the model has a chat template, else its last message."""
    templated = verifier.tokenizer is not None and verifier.tokenizer.has_chat_template
    return messages if templated else messages[-1]["content"]


def _run(
    verifiers: Sequence[Arm],
    arms: list[tuple[Arm, str]],
    questions: Sequence[Question],
    settings: Settings,
    state: Path,
) -> dict[str, Any]:
    samples, answers = _read_state(state)
    done = {(item.arm, item.category, item.question) for item in answers}
    if answers:
        announce(f"Going on after {len(answers)} answers of an earlier run")
    total, fresh = len(arms) * len(questions), 0
    begun = told = time.monotonic()
    complete = True
    try:
        timer = _timer(verifiers, settings.gamma)

        def sample_steps() -> None:
            for _ in range(ceil(CURVE_SAMPLES / (len(questions) + 1))):
                samples.append(timer.sample())
                _append(state, {"steps": samples[-1]})

        for verifier, drafter in arms:  # warm-up
            generate(verifier, [1], drafter=drafter, max_new_tokens=2)
        for place, question in enumerate(questions):
            turn = arms[place % len(arms) :] + arms[: place % len(arms)]
            missing = [
                (verifier, drafter)
                for verifier, drafter in turn
                if ((verifier.name, drafter), question.category, question.id) not in done
            ]
            if missing:
                sample_steps()
            for verifier, drafter in missing:
                item = answer(verifier, drafter, question, settings)
                _append(state, asdict(item))
                answers.append(item)
                fresh += 1
            now = time.monotonic()
            if now - told > PROGRESS_SECONDS:
                left = (now - begun) / max(fresh, 1) * (total - len(answers))
                announce(f"{len(answers)} of {total} answers, about {left:.0f} s left")
                told = now
        sample_steps()
    except KeyboardInterrupt:
        complete = False
        announce(
            f"Interrupted after {len(answers)} of {total} answers, which the table is of; the same command goes on"
        )
    if complete:
        state.unlink(missing_ok=True)
    first, curves = verifiers[0], _curves(samples)
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
        "threads": threads(_parts(verifiers)[0]),
        "model": first.identity["model"],
        **stamp().to_json(),
    }


def _parts(verifiers: Sequence[Arm]) -> list[Decoder]:
    """The decoders that passes are made by: those given, and both of an audited one; each once."""
    found: dict[str, Any] = {}
    for verifier in verifiers:
        parts = (verifier.exact, verifier.fast) if isinstance(verifier, Audited) else (verifier,)
        found.update((part.name, part) for part in parts if part.name not in found)
    return list(found.values())


def _timer(verifiers: Sequence[Arm], gamma: int) -> StepTimer:
    """Times the widths of rounds, and of an auditor those of audits too."""
    widths: dict[str, list[int]] = {part.name: list(range(1, gamma + 2)) for part in _parts(verifiers)}
    for verifier in verifiers:
        if isinstance(verifier, Audited):
            widths[verifier.exact.name] = sorted({*range(1, gamma + 2), *AUDIT_WIDTHS})
    room = min(verifier.context for verifier in verifiers) - max(map(max, widths.values()))
    return StepTimer(_parts(verifiers), widths, max(1, min(CURVE_CONTEXT, room)))


def _curves(samples: Sequence[Mapping[str, Mapping[Any, float]]]) -> Curves:
    """The median of every pass over the samples."""
    times: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for name, curve in sample.items():
            for width, spent in curve.items():
                times.setdefault(name, {}).setdefault(str(width), []).append(spent)
    return {
        name: {width: percentiles(spent)[1] for width, spent in sorted(curve.items(), key=lambda item: int(item[0]))}
        for name, curve in times.items()
    }


def _state_file(
    verifiers: Sequence[Arm], drafters: Sequence[str], questions: Sequence[Question], settings: Settings
) -> Path:
    first = verifiers[0]
    names = [verifier.name for verifier in verifiers]
    identity = [
        STATE_FORMAT,
        first.identity,
        threads(_parts(verifiers)[0]),
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


def _read_state(state: Path) -> tuple[list[dict[str, dict[Any, float]]], list[Answer]]:
    """Step times and answers of an earlier run; a last line that was cut off is dropped from the file."""
    samples: list[dict[str, dict[Any, float]]] = []
    answers: list[Answer] = []
    if not state.exists():
        return samples, answers
    whole = []
    for line in state.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        whole.append(line)
        if "steps" in record:
            samples.append(record["steps"])
        else:
            for key in ("widths", "audit_widths"):
                record[key] = {int(width): count for width, count in record[key].items()}
            answers.append(Answer(**record))
    storage.write_text(state, "".join(line + "\n" for line in whole))
    return samples, answers
