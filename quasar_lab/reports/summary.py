"""`results.json`: what a report found, for programs and for the next report in the same folder."""

from dataclasses import dataclass
from typing import Literal

from quasar_lab.reports.results import KeyNumber
from quasar_lab.support.result import Json, Result, flat


@dataclass(frozen=True)
class About(Result):
    """When and where a report was made: what its numbers need to be compared with those of another."""

    created: str
    """ISO 8601, in UTC, to the second."""
    machine: str
    """The processor."""
    backend: str
    """The backend that "auto" chooses on the CPU."""
    models: list[str]
    """What the notebooks' `model_id` says, each once."""
    versions: dict[str, str]


@dataclass(frozen=True)
class NotebookSummary(Result):
    """One notebook of a report."""

    name: str
    title: str
    page: str
    """Name of its page, in the folder of the report."""
    status: Literal["ok", "failed"]
    error: str | None
    """Why it stopped. None when every cell ran."""
    seconds: float
    """How long it ran."""
    ran: str
    """When it ran: ISO 8601, in UTC, to the second."""
    fingerprint: str
    """Of everything that its page depends on (`resume.fingerprint`)."""
    parameters: Json
    """Given to this run, beside the notebook's own defaults."""
    results: list[KeyNumber]
    """The key numbers that it displayed, in order."""


@dataclass(frozen=True, kw_only=True)
class Summary(Result):
    """A whole report."""

    about: About = flat()
    notebooks: list[NotebookSummary]
    """In the order in which they were named."""
