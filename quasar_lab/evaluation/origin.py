"""Where a result comes from: the model, the machine and the moment.

## Idea

A number without its origin cannot be compared with another one. So every result carries an `Origin`, whose keys stand
in its JSON document beside its own, and every figure prints it as one line under the title.

## Choice

One class serves all results, and what a result does not know is absent. A result that does not depend on time (how far
two models are apart) knows the model, the device and the backend: `origin_of`. A result that was timed knows the
threads, the processor, the versions and the date too: `timed_origin`.
"""

from dataclasses import dataclass

from quasar_lab.models.decoder import Decoder
from quasar_lab.speculative.verifier import Verifier
from quasar_lab.support.machine import gpu_name, stamp
from quasar_lab.support.result import Result, left_out


@dataclass(frozen=True)
class Origin(Result):
    """The model, the machine and the moment that a result comes from. What is not known is None, and absent from the
    document."""

    model: str
    device: str
    """cpu or cuda."""
    backend: str
    """reference, cpu or triton."""
    recipe: str | None = left_out()
    threads: int | None = left_out()
    """Threads that the backend computed with."""
    gpu: str | None = left_out()
    date: str | None = left_out()
    """ISO 8601, in UTC, to the second."""
    cpu: str | None = left_out()
    """The name of the processor."""
    versions: dict[str, str] | None = left_out()
    saved: bool | None = left_out()
    """True where the result was read from a file: figures then say so."""


def origin_of(verifier: Verifier) -> Origin:
    """The origin of a result that does not depend on time."""
    identity = verifier.identity
    return Origin(model=identity["model"], device=identity["device"], backend=identity["backend"])


def timed_origin(decoder: Decoder) -> Origin:
    """The origin of a result that is timed now, by passes of `decoder`."""
    now = stamp()
    return Origin(
        model=decoder.identity["model"],
        device=decoder.device,
        backend=decoder.backend,
        threads=threads(decoder),
        gpu=gpu_name() if decoder.device == "cuda" else None,
        date=now.date,
        cpu=now.cpu,
        versions=now.versions,
    )


def threads(decoder: Decoder) -> int:
    """Threads that the decoder's backend computes with."""
    return decoder.ops.get_threads()
