"""The lab's notebooks run headless with other parameters than their own, each once in a test session: what the tests of
notebooks and those of the browser look at."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from quasar_lab import reports

OTHER = {
    "00_start_here": {"prompt": "Copy: one two three one two three", "gamma": 2, "max_new_tokens": 8},
    "01_outliers": {"layer": 28, "channel_layer": 3, "channel_projection": "o_proj"},
    "02_acceptance": {"gamma": 2, "temperature": 0.5, "max_new_tokens": 8},
    "03_verifier_speed": {"widths": [1, 3], "context": 16, "samples": 2, "recipe": "w8a8-plain"},
    "04_lossless": {"recipe": "w8a8-plain", "answer_tokens": 12, "text_tokens": 128, "audit_lengths": [3]},
    "05_drafters": {"gamma": 2, "gammas": [1, 5], "lookups": [1, 3], "questions_per_category": 1, "answer_tokens": 12},
    "06_low_bit_frontier": {"tokens": 128, "window": 64, "others": ["w8a8-plain"]},
    "07_paper_table": {"gamma": 2, "temperatures": [0.7], "answer_tokens": 6, "recipe": "w8a8-plain"},
}
"""Notebook → parameters that none of its cells was written for."""

SECONDS = 300


@cache
def run(name: str) -> tuple[bool, Path]:
    """(whether it ran to its end, its page)."""
    folder = Path(tempfile.mkdtemp(prefix="quasar-pages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return reports.build([name], folder, OTHER[name], timeout=SECONDS), folder / f"{name}.html"
