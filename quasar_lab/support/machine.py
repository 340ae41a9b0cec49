"""Facts about the machine that a measurement depends on."""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import torch

from quasar_lab.support.result import Result


def percentiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """20th, 50th and 80th percentile."""
    low, middle, high = (
        torch.tensor(samples, dtype=torch.float64).quantile(torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)).tolist()
    )
    return low, middle, high


def wait_for_device(device: str) -> None:
    """Waits until the device has done what it was given; on a CPU a call returns when its work is done."""
    if device == "cuda":
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Stamp(Result):
    """When a measurement was made, on which processor and with which versions: every saved result carries it."""

    date: str
    """ISO 8601, in UTC, to the second."""
    cpu: str
    versions: dict[str, str]


def stamp() -> Stamp:
    """The stamp of a measurement that is made now."""
    return Stamp(datetime.now(UTC).isoformat(timespec="seconds"), cpu_name(), versions())


def cpu_name() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpu_name() -> str | None:
    """The GPU, its compute capability and memory, and the CUDA version that torch was built with; None without one."""
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return (
        f"{found.name}, sm_{found.major}{found.minor}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    )


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("quasar-lab", "transformers", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def versions() -> dict[str, str]:
    """Versions that a measurement depends on."""
    return dict(_versions())


def memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if sys.platform != "win32" else 0


def last_level_cache() -> int:
    """Bytes of the largest cache of core 0; 32 MiB where the system does not tell."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes), default=32 << 20)


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
