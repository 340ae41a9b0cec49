"""What the check finds, as objects; `Findings.to_json()` is the document that it writes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from quasar_lab.evaluation.pass_time import StepResult, StepRow
from quasar_lab.support.machine import Stamp
from quasar_lab.support.result import Json, Result


@dataclass(frozen=True)
class CheckedCase(Result):
    """One thing that was checked."""

    case: str
    fault: str | None
    """What is wrong with it; None where it is right."""


@dataclass(frozen=True)
class ProductTime(Result):
    """The time of one product of a step, as percentiles over samples."""

    op: str
    """linear_bf16 or linear_w8a8."""
    name: str
    """The projection in the model."""
    shape: tuple[int, int]
    """Outputs and inputs."""
    count: int
    """How often a step has it."""
    width: int
    bytes: int
    """Of the weight."""
    us_p20: float
    us_p50: float
    us_p80: float
    gb_s: float
    share_of_copy: float
    """gb_s over the bandwidth of a copy that was measured between the samples."""


@dataclass(frozen=True)
class OpTime(Result):
    """The time of one op that is no product, as percentiles over samples."""

    op: str
    count: dict[str, int]
    """Verifier → how often a step of it has the op."""
    width: int
    us_p20: float
    us_p50: float
    us_p80: float


@dataclass(frozen=True)
class PassTime(Result):
    """The time of one pass, as percentiles over samples."""

    verifier: str
    width: int
    ms_p20: float
    ms_p50: float
    ms_p80: float


@dataclass(frozen=True)
class Goal(Result):
    """A goal for the speed, and whether it is met."""

    goal: str
    value: float | None
    """What was measured; None where nothing was."""
    limit: float
    met: bool | None


@dataclass
class StepFindings:
    """The section "step"; each part stays empty where it could not run."""

    measured: StepResult | None = None
    """Passes replayed from CUDA graphs, by verifier and width."""
    eager: list[PassTime] = field(default_factory=list)
    """Passes that were launched op by op, without CUDA graphs."""
    in_turn: list[PassTime] = field(default_factory=list)
    """Passes in which no kernel overlaps with the one before."""

    @property
    def passes(self) -> dict[tuple[str, int], StepRow]:
        """(verifier, width) → its row in `measured`."""
        rows = [] if self.measured is None else self.measured.steps
        return {(row.verifier, row.width): row for row in rows}

    def to_json(self) -> Json:
        return {
            **({} if self.measured is None else self.measured.to_json()),
            "eager": [row.to_json() for row in self.eager],
            "in_turn": [row.to_json() for row in self.in_turn],
        }


@dataclass
class Findings:
    """Everything that the check has found so far. A section is None where it was not asked for."""

    gpu: str | None
    seed: int
    """Of the random inputs."""
    stamp: Stamp
    faults: dict[str, str] = field(default_factory=dict)
    """Section → the error that ended it; what it had found before that is kept."""
    ops: list[CheckedCase] | None = None
    text: list[CheckedCase] | None = None
    step: StepFindings | None = None
    products: list[ProductTime] | None = None
    other: list[OpTime] | None = None
    total_s: float = 0.0

    @property
    def checked(self) -> dict[str, Sequence[CheckedCase]]:
        """Section → its cases, of the sections about right and wrong that were asked for."""
        return {name: cases for name, cases in (("ops", self.ops), ("text", self.text)) if cases is not None}

    @property
    def wrong(self) -> list[str]:
        """What is not right, one line each."""
        cases = [row for rows in self.checked.values() for row in rows if row.fault]
        return [
            *(f"{row.case}: {row.fault}" for row in cases),
            *(f"{section}: {error}" for section, error in self.faults.items()),
        ]

    @property
    def complete_products(self) -> list[ProductTime]:
        """The times of all products; none where that section was ended by an error."""
        return [] if "products" in self.faults else self.products or []

    @property
    def complete_other(self) -> list[OpTime]:
        """The times of all other ops; none where that section was ended by an error."""
        return [] if "other" in self.faults else self.other or []

    def to_json(self) -> Json:
        document: Json = {"gpu": self.gpu, "seed": self.seed, "faults": self.faults, **self.stamp.to_json()}
        for name in ("ops", "text", "products", "other"):
            rows = getattr(self, name)
            if rows is not None:
                document[name] = [row.to_json() for row in rows]
        if self.step is not None:
            document["step"] = self.step.to_json()
        return {**document, "total_s": self.total_s}
