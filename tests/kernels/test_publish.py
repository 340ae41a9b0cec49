"""RESULTS.md is what the saved results say, and the script that writes it needs nothing of the package."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "kernels" / "benchmarks"


@pytest.fixture
def publish(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import publish

    return publish


def test_the_page_is_of_the_saved_results(publish):
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == publish.page(FOLDER / "results")


def test_a_page_has_a_section_per_result_by_temperature_and_the_paragraphs_last(publish, tmp_path):
    for name in ("decode-cpu-t1.json", "decode-cpu-t0.json", "step-cpu.json"):
        (tmp_path / f"{name.removesuffix('.json')}-here.json").write_text((FOLDER / "results" / name).read_text())
    (tmp_path / "1-words.md").write_text("## Words\n\nSaid.\n")
    page = publish.page(tmp_path)
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == [
        "# Results",
        "## One verify pass of SmolLM2-135M-Instruct",
        "## Whole answers at temperature 0",
        "## Whole answers at temperature 1",
        "## Words",
    ]
    found = json.loads((FOLDER / "results" / "decode-cpu-t0.json").read_text())
    shown = [row for row in found["runs"] if row["verifier"] != "bf16" or row["drafter"] != "none"]
    hot = page[page.index("temperature 1") :]
    assert page.count("| ngram | ") + page.count("| none | ") == len(shown) + hot.count("| geometric mean |")
    assert hot.count("| geometric mean |") == 3
    for row in shown:
        assert f"| {row['speedup']:.2f} ({row['speedup_low']:.2f}–{row['speedup_high']:.2f}) |" in page


RATES = ("mean_acceptance_length", "tokens_per_second", "speedup", "step_factor", "acceptance_factor", "other_factor")


@pytest.mark.parametrize("path", sorted((FOLDER / "results").glob("decode*.json")), ids=lambda path: path.name)
def test_a_mean_is_the_geometric_one_and_says_so(path, publish):
    runs = json.loads(path.read_text())["runs"]
    means = [row for row in runs if row["category"] == "mean"]
    assert len(means) == 4
    for mean in means:
        rows = [row for row in runs if all(row[key] == mean[key] for key in ("verifier", "drafter")) and row != mean]
        for rate in RATES:
            assert mean[rate] == pytest.approx(math.prod(row[rate] for row in rows) ** (1 / len(rows)))
        assert mean["speedup"] == pytest.approx(math.prod(mean[f"{part}_factor"] for part in PARTS))
        assert mean["speedup_low"] <= mean["speedup"] <= mean["speedup_high"]
        assert publish.decode_cells(mean)[2] == "geometric mean"


PARTS = ("step", "acceptance", "other")


def test_the_readme_quotes_the_means_of_the_page():
    runs = json.loads((FOLDER / "results" / "decode-cpu-t0.json").read_text())["runs"]
    (mean,) = (row for row in runs if (row["verifier"], row["drafter"], row["category"]) == ("w8a8", "ngram", "mean"))
    steps = json.loads((FOLDER / "results" / "step-cpu.json").read_text())["steps"]
    times = {(row["verifier"], row["width"]): row["ms_p50"] for row in steps}
    ratios = [times["bf16", width] / times["w8a8", width] for name, width in times if name == "bf16"]
    said = " ".join((ROOT / "README.md").read_text().split())
    assert f"is {min(ratios):.1f} to {max(ratios):.1f} times as fast in W8A8" in said
    assert f"{mean['speedup']:.2f} times as many tokens a second as plain BF16 (geometric mean of six" in said
    assert f"τ = {mean['mean_acceptance_length']:.2f}" in said


def test_it_imports_nothing_of_the_package():
    code = "import sys, publish; assert not [name for name in sys.modules if name.startswith('quasar')]"
    subprocess.run([sys.executable, "-c", code], cwd=FOLDER, check=True)
