"""Saved measurements → RESULTS.md, the page of this project's own numbers.

    python kernels/benchmarks/publish.py

## Idea

The page is written whole from what is in `results/` beside this file: `step*.json` and `decode*.json`, which the
commands of `make bench` write, and the paragraphs `*.md`, which say what no table says. No number of a table is typed
by hand. Each table names the processor, the versions, the date and the command that its numbers come from.

## Choice

This script imports nothing of `quasar_lab`. So it publishes results of any version, on any machine.
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "RESULTS.md"

Found = dict[str, Any]
"""The JSON document of a measurement."""

TITLE = """# Results

How fast this project's INT8 verifier is beside the BF16 model it was made from, and how far its text is from that
model's. `make bench` measures the speeds on your machine and writes this page again.

- **A verify pass** reads all weights once and scores the drafted tokens of a round. Its *width* is the number of tokens
  that it scores. The *floor* is the time that this machine's memory needs to read the weights and the cache. Its
  bandwidth is measured in the same run. No pass can be faster than its floor.
- **Whole answers** are compared as a 2×2 of {BF16, W8A8} × {without drafts, with n-gram drafts}. `none` in the column
  "drafter" is plain decoding. τ is the mean number of tokens per round. A speedup is the product of three factors: a
  faster step, more tokens per round (acceptance), and other time (drafting, sampling, the host). "Predicted" is the
  speedup that pass times alone lead to expect. Intervals are 95 % bootstrap intervals over questions. Every number of a
  row "geometric mean" is the geometric mean over the categories, so there too the factors multiply to the speedup.
- All rows of a table were measured in one run, in turn. So a machine that slows down slows all of them alike.

[notebooks/README.md](notebooks/README.md) explains every term."""


def stamp(found: Found) -> str:
    """Where and when a result was measured, as one line."""
    torch = found["versions"]["torch"]
    return (
        f"{found['cpu']}, {found['threads']} threads, backend `{found['backend']}`, torch {torch}, "
        f"{found['date'][:10]}: `{found['command']}`"
    )


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def step_section(found: Found) -> str:
    """Milliseconds per verify pass by width, beside the floor."""
    names = list(dict.fromkeys(row["verifier"] for row in found["steps"]))
    headings = ["width", *(f"{name} ms (p20–p80)" for name in names), *(f"{name} / floor" for name in names)]
    if len(names) == 2:
        headings.append(f"{names[0]} / {names[1]}")
    by = {(row["verifier"], row["width"]): row for row in found["steps"]}
    widths = sorted({row["width"] for row in found["steps"]})
    rows = [[str(width), *step_cells([by[name, width] for name in names])] for width in widths]
    return (
        f"## One verify pass of {found['model']}\n\n"
        f"Logits of every row, {found['context']} tokens of context, stream bandwidth "
        f"{found['bandwidth_gb_s']:.1f} GB/s in the same run.\n\n"
        f"{table(headings, rows)}\n\n{stamp(found)}"
    )


def step_cells(steps: list[Found]) -> list[str]:
    """One width: time of each verifier, its time over its floor, and of two verifiers their ratio."""
    times = [f"{step['ms_p50']:.2f} ({step['ms_p20']:.2f}–{step['ms_p80']:.2f})" for step in steps]
    over_floor = [f"{step['ms_p50'] / step['floor_ms']:.2f}" for step in steps]
    ratio = [f"{steps[0]['ms_p50'] / steps[1]['ms_p50']:.2f}"] if len(steps) == 2 else []
    return [*times, *over_floor, *ratio]


MEAN = "geometric mean"
"""What a mean over categories is called on the page: which mean it is."""

DECODE_HEADINGS = [
    "verifier",
    "drafter",
    "category",
    "τ",
    "tokens/s",
    "speedup (95 %)",
    "= step",
    "× acceptance",
    "× other",
    "predicted",
]


def decode_section(found: Found) -> str:
    """The 2×2 over whole answers: every category at temperature 0, the means above."""
    settings = found["settings"]
    rows = [decode_cells(row) for row in found["runs"] if is_shown(row, found)]
    return (
        f"## Whole answers at temperature {settings['temperature']:g}\n\n"
        f"γ = {settings['gamma']}, at most {settings['max_new_tokens']} tokens, against "
        f"{found['baseline']['verifier']} without drafter.\n\n"
        f"{table(DECODE_HEADINGS, rows)}\n\n{stamp(found)}"
    )


def is_shown(row: Found, found: Found) -> bool:
    """Not the baseline itself, nothing without a speedup, and above temperature 0 the means only."""
    base = found["baseline"]
    if row["speedup"] is None or (row["verifier"], row["drafter"]) == (base["verifier"], base["drafter"]):
        return False
    return found["settings"]["temperature"] == 0 or row["category"] == "mean"


def decode_cells(row: Found) -> list[str]:
    """One arm on one category."""
    factors = [row[key] for key in ("step_factor", "acceptance_factor", "other_factor", "predicted_speedup")]
    return [
        row["verifier"],
        row["drafter"],
        MEAN if row["category"] == "mean" else row["category"],
        f"{row['mean_acceptance_length']:.2f}",
        f"{row['tokens_per_second']:.0f}",
        f"{row['speedup']:.2f} ({row['speedup_low']:.2f}–{row['speedup_high']:.2f})",
        *(f"{factor:.2f}" for factor in factors),
    ]


def page(folder: Path) -> str:
    """The whole page, from the results in a folder."""
    results = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    steps = [found for name, found in results.items() if name.startswith("step")]
    decodes = [found for name, found in results.items() if name.startswith("decode")]
    decodes.sort(key=lambda found: found["settings"]["temperature"])
    paragraphs = [path.read_text(encoding="utf-8").strip() for path in sorted(folder.glob("*.md"))]
    sections = [TITLE, *map(step_section, steps), *map(decode_section, decodes), *paragraphs]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(HERE / "results"), encoding="utf-8")
