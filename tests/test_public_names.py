"""Names that notebooks, README and users' scripts have used since version 0.1 still work."""

import re
from pathlib import Path

import pytest

import quasar_lab as ql

ROOT = Path(__file__).parents[1]
OF_BEFORE = [
    "ql.Audit",
    "ql.Audited",
    "ql.Decoder",
    "ql.Generation",
    "ql.QuasarError",
    "ql.Round",
    "ql.Trace",
    "ql.audited",
    "ql.generate",
    "ql.load",
    "ql.quantize",
    "ql.stream",
    "ql.audit_cost.measure",
    "ql.audit_cost.predict",
    "ql.benchmark.StepTimer",
    "ql.benchmark.cpu_name",
    "ql.benchmark.finish",
    "ql.benchmark.gpu_name",
    "ql.benchmark.percentiles",
    "ql.benchmark.read",
    "ql.benchmark.stamp",
    "ql.benchmark.step",
    "ql.benchmark.stream_bandwidth",
    "ql.decode_benchmark.Settings",
    "ql.decode_benchmark.answer",
    "ql.decode_benchmark.run",
    "ql.fidelity.compare",
    "ql.fidelity.difference",
    "ql.fidelity.first_difference",
    "ql.fidelity.own_text",
    "ql.fidelity.read_tokens",
    "ql.figures.Activations",
    "ql.figures.acceptance",
    "ql.figures.audit_cost",
    "ql.figures.capture",
    "ql.figures.channel",
    "ql.figures.divergence",
    "ql.figures.error_by_alpha",
    "ql.figures.exactness",
    "ql.figures.flip_margins",
    "ql.figures.frontier",
    "ql.figures.lossless",
    "ql.figures.mean_round",
    "ql.figures.model_map",
    "ql.figures.outliers",
    "ql.figures.paper_table",
    "ql.figures.predicted_speedup",
    "ql.figures.roofline",
    "ql.figures.round_breakdown",
    "ql.figures.speedup",
    "ql.figures.speedup_factors",
    "ql.figures.speedup_map",
    "ql.figures.step_time",
    "ql.figures.surfaces",
    "ql.figures.tau_by_settings",
    "ql.figures.tau_by_text",
    "ql.figures.token_strip",
    "ql.frontier.measure",
    "ql.frontier.own_text",
    "ql.pass_parts.measure",
    "ql.prompts.ours",
    "ql.prompts.read_questions",
    "ql.quantization.largest_error",
    "ql.quantization.load_quantized",
    "ql.quantization.prepare",
    "ql.quantization.quantize",
    "ql.quantization.read_record",
    "ql.rehearsal.Answer",
    "ql.rehearsal.Rehearsed",
    "ql.rehearsal.answers",
    "ql.rehearsal.rounds",
    "ql.rehearsal.table",
    "ql.replay.differences",
    "ql.replay.rescore",
    "ql.reports.result",
    "ql.speculative.encode_prompt",
    "ql.speculative.versions",
    "ql.widgets.drafter_explorer",
    "ql.widgets.generate_live",
    "ql.widgets.outlier_explorer",
    "ql.widgets.pick_model",
]


def found(name):
    value = ql
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", OF_BEFORE)
def test_a_name_of_before_works(name):
    assert found(name) is not None


def test_every_name_of_the_notebooks_and_of_readme_is_there():
    texts = [path.read_text(encoding="utf-8") for path in (*(ROOT / "notebooks").glob("*.ipynb"), ROOT / "README.md")]
    names = {name for text in texts for name in re.findall(r"\bql(?:\.[A-Za-z_]+)+", text)}
    assert len(names) > 40
    for name in sorted(names):
        found(name.rstrip("."))
