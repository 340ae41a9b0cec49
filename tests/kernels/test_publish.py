"""RESULTS.md is what the saved results say, and the script that writes it needs nothing of the package."""

import json
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
    assert page.count("| ngram | ") + page.count("| none | ") == len(shown) + hot.count("| mean |")
    assert hot.count("| mean |") == 3
    for row in shown:
        assert f"| {row['speedup']:.2f} ({row['speedup_low']:.2f}–{row['speedup_high']:.2f}) |" in page


def test_it_imports_nothing_of_the_package():
    code = "import sys, publish; assert not [name for name in sys.modules if name.startswith('quasar')]"
    subprocess.run([sys.executable, "-c", code], cwd=FOLDER, check=True)
