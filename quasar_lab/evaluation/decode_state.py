"""The state file of a benchmark that may be cut short: every answer and every sample of pass times, one a line.

## Idea

A run over hundreds of questions takes long. Each answer is written as soon as it is there, so a killed run loses at
most the answer that it was working on, and the same command goes on from the rest.

## Choice

One JSON object a line, appended. A last line that a kill cut off is dropped when the file is read. The file's name
holds a hash of everything that the answers depend on, so a run never goes on from answers of another one.

## What is lost

A run that goes on mixes times of two moments. Samples of pass times come from both, as the answers do.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quasar_lab.evaluation.questions import Question
from quasar_lab.evaluation.timed_answer import TimedAnswer
from quasar_lab.support import storage
from quasar_lab.support.machine import versions
from quasar_lab.support.result import Json

STATE_FORMAT = 3

PassSample = dict[str, dict[Any, float]]
"""Verifier → width (a number, or a text as JSON has it) → milliseconds of one pass."""


class StateFile:
    """What an earlier run has done and this one adds to."""

    def __init__(self, path: Path):
        self.path = path
        self.samples: list[PassSample] = []
        self.answers: list[TimedAnswer] = []

    def read(self) -> None:
        """Takes what an earlier run has left; a last line that was cut off is dropped from the file."""
        if not self.path.exists():
            return
        whole = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                break
            whole.append(line)
            if "steps" in record:
                self.samples.append(record["steps"])
            else:
                self.answers.append(TimedAnswer.from_json(record["answer"]))
        storage.write_text(self.path, "".join(line + "\n" for line in whole))

    def add_sample(self, sample: PassSample) -> None:
        self.samples.append(sample)
        self._append({"steps": sample})

    def add_answer(self, answer: TimedAnswer) -> None:
        self.answers.append(answer)
        self._append({"answer": answer.to_json()})

    def _append(self, record: Json) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def remove(self) -> None:
        """The run is complete: nothing is left to go on from."""
        self.path.unlink(missing_ok=True)


def state_path(
    identity: dict[str, str],
    threads: int,
    verifiers: Sequence[str],
    drafters: Sequence[str],
    questions: Sequence[Question],
    settings: Json,
) -> Path:
    """Where the state of a run is kept, by all that its answers depend on. identity, threads: of the first verifier."""
    depends_on = [
        STATE_FORMAT,
        identity,
        threads,
        list(verifiers),
        list(drafters),
        [asdict(question) for question in questions],
        settings,
        versions(),
    ]
    digest = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
    folder = storage.cache_folder() / "bench"
    folder.mkdir(exist_ok=True)
    return folder / f"decode-{digest}.jsonl"
