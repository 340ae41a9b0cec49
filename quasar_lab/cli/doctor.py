"""What this machine is, which backend runs on it, and why: the first thing to read when something is slow or
missing."""

import platform
from typing import Any

import torch
from quasar_kernels import availability, select

from quasar_lab.evaluation.pass_time import stream_bandwidth
from quasar_lab.models import embedded
from quasar_lab.support import storage
from quasar_lab.support.machine import _cpu_features, _version, cpu_name, gpu_name


def examine() -> dict[str, Any]:
    """The JSON of `quasar-lab doctor`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reasons = availability()
    ops = select("auto", device if device == "cpu" or reasons["triton"] is None else "cpu")
    others = [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None]
    source, folder = embedded.source_file(), storage.cache_folder()
    return {
        "python": platform.python_version(),
        "quasar_lab": _version("quasar-lab"),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "triton": _version("triton"),
        "device": device,
        "gpu": gpu_name(),
        "cpu": cpu_name(),
        "cpu_features": _cpu_features(),
        "backend": ops.name,
        "backend_reason": "the fastest that runs here" + (f" ({'; '.join(others)})" if others else ""),
        "instruction_set": ops.isa(),
        "threads": ops.get_threads(),
        "stream_bandwidth_gb_s": stream_bandwidth(ops),
        "embedded_model": "found" if source else f"not installed; run: {embedded.INSTALL}",
        "cache_folder": str(folder),
        "cache_bytes": storage.folder_bytes(folder),
    }
