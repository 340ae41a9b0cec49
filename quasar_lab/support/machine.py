"""Facts about the machine that a measurement depends on.

## Idea

A time means something only beside the processor, the versions and the memory that it was taken with. Everything that
asks the system for such a fact stands here, once.

## What is lost

Linux tells most: elsewhere the list of CPU features is empty, and the size of the last-level cache is assumed.
"""

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
    shares = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    low, middle, high = torch.tensor(samples, dtype=torch.float64).quantile(shares).tolist()
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
    """The name of the processor."""
    versions: dict[str, str]
    """Package → its version; "python" too."""


def stamp() -> Stamp:
    """The stamp of a measurement that is made now."""
    return Stamp(datetime.now(UTC).isoformat(timespec="seconds"), cpu_name(), versions())


def _cpu_info(*keys: str) -> list[str]:
    """Values of the lines of /proc/cpuinfo that begin with one of the keys; none where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(keys)]


def cpu_name() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    names = _cpu_info("model name")
    return names[0] if names else platform.processor() or platform.machine()


CPU_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimddp",
    "i8mm",
)
"""Features that matter to the kernels, by the names that Linux gives them."""


def cpu_features() -> list[str]:
    """Those of CPU_FEATURES that the processor has; none where the system does not tell."""
    found = {feature for line in _cpu_info("flags", "Features") for feature in line.split()}
    return [name for name in CPU_FEATURES if name in found]


def gpu_name() -> str | None:
    """The GPU, its compute capability and memory, and the CUDA version that torch was built with; None without one."""
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return (
        f"{found.name}, sm_{found.major}{found.minor}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    )


def version(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("quasar-lab", "transformers", "triton")}
    installed = {name: found for name, found in packages.items() if found is not None}
    return {"python": platform.python_version(), "torch": torch.__version__, **installed}


def versions() -> dict[str, str]:
    """Versions that a measurement depends on; packages that are not installed are left out."""
    return dict(_versions())


def memory_bytes() -> int:
    """Physical memory of this machine; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def last_level_cache() -> int:
    """Bytes of the largest cache of core 0; 32 MiB where the system does not tell."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes), default=32 << 20)
