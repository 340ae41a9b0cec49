"""What this machine is, which backend runs on it, and why: the first thing to read when something is slow or
missing."""

import platform
from dataclasses import dataclass

import torch
from quasar_kernels import availability, select

from quasar_lab.evaluation.memory_bandwidth import stream_bandwidth
from quasar_lab.models import embedded
from quasar_lab.support import storage
from quasar_lab.support.machine import cpu_features, cpu_name, gpu_name, version
from quasar_lab.support.result import Result


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Result):
    """What `quasar-lab doctor` tells. A version or a name is None where there is no such thing."""

    python: str
    quasar_lab: str | None
    torch: str
    transformers: str | None
    triton: str | None
    device: str
    """cuda where torch sees a GPU, else cpu."""
    gpu: str | None
    cpu: str
    cpu_features: list[str]
    """Features of the processor that matter to the kernels."""
    backend: str
    """What `--backend auto` takes here."""
    backend_reason: str
    instruction_set: str | None
    """What the C++ backend runs on this processor; None for another backend."""
    threads: int
    stream_bandwidth_gb_s: float
    """How fast memory is read, measured now."""
    embedded_model: str
    """found, or how to install it."""
    cache_folder: str
    cache_bytes: int


def diagnose() -> Diagnosis:
    """Looks at this machine, and measures how fast its memory is read."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reasons = availability()
    ops = select("auto", device if device == "cpu" or reasons["triton"] is None else "cpu")
    others = [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None]
    folder = storage.cache_folder()
    return Diagnosis(
        python=platform.python_version(),
        quasar_lab=version("quasar-lab"),
        torch=torch.__version__,
        transformers=version("transformers"),
        triton=version("triton"),
        device=device,
        gpu=gpu_name(),
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        backend=ops.name,
        backend_reason="the fastest that runs here" + (f" ({'; '.join(others)})" if others else ""),
        instruction_set=ops.isa(),
        threads=ops.get_threads(),
        stream_bandwidth_gb_s=stream_bandwidth(ops),
        embedded_model="found" if embedded.source_file() else f"not installed; run: {embedded.INSTALL}",
        cache_folder=str(folder),
        cache_bytes=storage.folder_bytes(folder),
    )
