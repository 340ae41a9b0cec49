"""Pass times: what is recorded, what is refused, and results that were saved."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from speed_results import profile_of, step_row, steps_of
from tiny_quantized import plain

import quasar_lab as ql
from quasar_lab import figures
from quasar_lab.evaluation import pass_time
from quasar_lab.evaluation.decode_speed import DecodeResult
from quasar_lab.evaluation.kernel_speed import KernelResult, KernelRow
from quasar_lab.evaluation.pass_time import StepResult
from quasar_lab.support.errors import InputError
from quasar_lab.support.machine import stamp

SAVED = Path(__file__).parents[2] / "kernels" / "benchmarks" / "results"


@pytest.fixture(scope="module")
def tiny_w8a8(tiny, tmp_path_factory):
    return plain(tiny, tmp_path_factory.mktemp("quantized"))


def test_step_records_operations_and_ceilings_of_every_verifier(tiny, tiny_w8a8):
    result = pass_time.step([tiny, tiny_w8a8], [1, 3], context=4, samples=2)
    config = tiny.config
    attention = 4 * config.layers * config.heads * config.head_dim
    for row in result.steps:
        seen = sum(4 + place + 1 for place in range(row.width))
        assert row.operations == 2 * row.width * config.step_weights + attention * seen
    assert [row.verifier for row in result.ceilings] == ["bf16", tiny_w8a8.name]
    for row in result.ceilings:
        assert 0 < row.gop_s_p20 <= row.gop_s_p50 <= row.gop_s_p80
        assert row.samples == 2
    assert figures.roofline(result)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as a result"),
        ("[]", "is no result of a measurement"),
        ('{"steps": 3}', "is no result of a measurement"),
        ('{"steps": [], "model": "m"}', "lacks device, backend"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path, text, said):
    file = tmp_path / "result.json"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        pass_time.read(file)
    with pytest.raises(InputError, match="cannot be read"):
        pass_time.read(tmp_path / "none.json")


def test_the_document_of_pass_times_has_the_keys_of_every_version(tiny):
    document = pass_time.step([tiny], [1], context=4, samples=1).to_json()
    keys = {"bandwidth_gb_s", "device", "backend", "threads", "model", "context", "steps", "ceilings"}
    assert set(document) == keys | {"date", "cpu", "versions"} | ({"note"} if tiny.backend == "reference" else set())
    times = {"ms_p20", "ms_p50", "ms_p80", "samples", "floor_ms", "fraction_of_floor"}
    assert set(document["steps"][0]) == times | {"verifier", "width", "bytes", "operations"}
    assert set(document["ceilings"][0]) == {"verifier", "width", "gop_s_p20", "gop_s_p50", "gop_s_p80", "samples"}


def test_a_pass_of_the_reference_backend_says_that_it_is_no_speed(tiny_folder):
    result = pass_time.step([ql.load(tiny_folder, backend="reference")], [1], context=4, samples=1)
    assert result.note == "reference backend: not a speed measurement"


def test_rows_by_verifier_are_in_the_order_of_verifiers_and_of_widths():
    rows = [step_row("w8a8", 1, 4), step_row("bf16", 0, 4), step_row("bf16", 0, 1), step_row("w8a8", 1, 2)]
    result = replace(steps_of(), steps=[*rows[:3], replace(rows[3], samples=3)])
    assert {name: [row.width for row in found] for name, found in result.by_verifier().items()} == {
        "w8a8": [2, 4],
        "bf16": [1, 4],
    }
    assert list(result.by_verifier()) == ["w8a8", "bf16"]
    assert result.curves() == {"w8a8": {2: 12.0, 4: 14.0}, "bf16": {1: 21.0, 4: 24.0}}
    assert result.common_widths() == [4]
    assert result.fewest_samples() == 3
    assert result.row("bf16", 4).ms_p50 == 24.0
    with pytest.raises(InputError, match="bf16/2 was not timed; accepted: w8a8/4, bf16/4"):
        result.row("bf16", 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"widths": []}, "widths are"),
        ({"widths": [65]}, "accepted: one or more in 1…64"),
        ({"widths": [1], "samples": 0}, "samples is 0"),
        ({"widths": [1], "context": 0}, "context is 0"),
    ],
)
def test_what_cannot_be_timed_is_refused(tiny, options, said):
    with pytest.raises(InputError, match=said):
        pass_time.step([tiny], **options)


def kernels():
    rows = [KernelRow("linear_w8a8", "cpu", [8, 4], 1, 1.0, 2.0, 3.0, 5.0, 0.5)]
    return KernelResult(
        bandwidth_gb_s=10.0,
        device="cpu",
        backend="cpu",
        instruction_set="avx2",
        threads=2,
        samples=3,
        kernels=rows,
        stamp=stamp(),
    )


@pytest.mark.parametrize("result", [steps_of(), profile_of(), kernels()], ids=["steps", "parts", "kernels"])
def test_a_saved_result_comes_back_as_the_result_it_was(tmp_path, result):
    file = tmp_path / "result.json"
    file.write_text(json.dumps(replace(result, command="quasar-lab bench").to_json()))
    found = ql.benchmark.read(file)
    assert type(found) is type(result)
    assert found["saved"] is True
    assert found.to_json() == {**result.to_json(), "command": "quasar-lab bench", "saved": True}


def test_a_result_of_another_form_is_refused_by_the_key_that_is_missing(tmp_path):
    document = steps_of().to_json()
    del document["steps"][0]["ms_p50"]
    (tmp_path / "result.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="lacks 'ms_p50'"):
        pass_time.read(tmp_path / "result.json")


@pytest.mark.parametrize("path", sorted(SAVED.glob("*.json")), ids=lambda path: path.stem)
def test_results_that_an_older_version_saved_are_read(path):
    found = pass_time.read(path)
    assert isinstance(found, StepResult if path.stem.startswith("step") else DecodeResult)
    document = json.loads(path.read_text())
    assert found.to_json() == {**document, "saved": True}
    assert found.origin.saved


def test_a_saved_result_without_operations_and_ceilings_is_read(tmp_path):
    """As an early version wrote it."""
    document = steps_of().to_json()
    del document["ceilings"]
    for row in document["steps"]:
        del row["operations"]
    (tmp_path / "result.json").write_text(json.dumps(document))
    found = pass_time.read(tmp_path / "result.json")
    assert found.ceilings is None
    assert {row.operations for row in found.steps} == {None}
