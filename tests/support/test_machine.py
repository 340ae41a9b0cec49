"""Facts about the machine, where the system tells them and where it does not."""

from pathlib import Path

import pytest

from quasar_lab.support import machine


@pytest.fixture
def cpu_info(monkeypatch):
    """Sets what /proc/cpuinfo holds; None: there is no such file."""

    def put(text):
        def read(path, *_arguments, **_options):
            if text is None:
                raise FileNotFoundError(path)
            return text

        monkeypatch.setattr(Path, "read_text", read)

    return put


def test_percentiles_lie_between_the_samples():
    assert machine.percentiles([3.0, 1.0, 2.0, 5.0, 4.0, 6.0]) == pytest.approx((2.0, 3.5, 5.0))
    assert machine.percentiles([7.0]) == (7.0, 7.0, 7.0)


def test_name_and_features_of_an_intel_processor(cpu_info):
    cpu_info("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 fma avx512f sse\n" * 2)
    assert machine.cpu_name() == "Some CPU @ 2 GHz"
    assert machine.cpu_features() == ["avx2", "fma", "avx512f"]


def test_features_of_an_arm_processor_which_has_no_name(cpu_info):
    cpu_info("processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nCPU part\t: 0xd0c\n")
    assert machine.cpu_features() == ["asimddp", "i8mm"]
    assert machine.cpu_name()


def test_a_system_that_tells_nothing(cpu_info):
    cpu_info(None)
    assert machine.cpu_features() == []
    assert machine.cpu_name()


def test_versions_leave_out_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(machine, "version", lambda name: None if name == "triton" else "1.2")
    found = machine._versions.__wrapped__()
    assert set(found) == {"python", "torch", "quasar-lab", "transformers"}
    assert machine.version("quasar-lab") == "1.2"


def test_the_version_of_nothing():
    assert machine.version("a-package-that-nobody-has") is None


def test_a_stamp_tells_when_and_where():
    found = machine.stamp()
    assert found.cpu == machine.cpu_name()
    assert found.date.endswith("+00:00")
    assert set(found.to_json()) == {"date", "cpu", "versions"}
