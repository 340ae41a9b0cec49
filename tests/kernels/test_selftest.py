"""The kernels without Python or torch: the stand-alone self-test, for this machine and, under emulation, for Arm."""

import shutil
import subprocess
from pathlib import Path

import pytest
from quasar_kernels import cpu

HERE = Path(cpu.__file__).parent
PARTS = ("selftest", "dispatch", "attend", "ops", "pack", "pool")
SOURCES = [*(HERE / f"{part}.cpp" for part in PARTS), *sorted(HERE.glob("isa_*.cpp"))]
OPTIONS = ["-std=c++17", "-O2", "-ffp-contract=off", "-pthread"]


def build_and_run(compiler: str, program: Path, *options: str, runner: tuple[str, ...] = ()) -> str:
    command = [compiler, *OPTIONS, *options, *map(str, SOURCES), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([*runner, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_on_this_machine(tmp_path):
    """Compiles every instruction set, AVX-512 too, whether or not this CPU can run it."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip(reason="no C++ compiler here; install g++ or clang++")
    said = build_and_run(compiler, tmp_path / "selftest")
    for isa in cpu.supported_isas():
        assert isa in said, said


@pytest.mark.slow
def test_on_emulated_arm(tmp_path):
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip(reason="wants Debian's g++-aarch64-linux-gnu and qemu-user")
    assert "neon" in build_and_run(compiler, tmp_path / "arm", "-static", runner=(emulator, "-cpu", "max"))
