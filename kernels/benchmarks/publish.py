"""Saved measurements → the results section of README.md: no number there is typed by hand.

    python kernels/benchmarks/publish.py

reads every `results/step*.json` and `results/decode*.json` beside this file and rewrites what stands between the two
marks in README.md. Each table names the device, versions, date and command that its numbers come from.
"""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
BEGIN, END = "<!-- results: made by kernels/benchmarks/publish.py -->", "<!-- end of results -->"


def stamp(found: dict[str, Any]) -> str:
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


def step_section(found: dict[str, Any]) -> str:
    """ms per verify pass by width, beside the floor."""
    names = list(dict.fromkeys(row["verifier"] for row in found["steps"]))
    by = {(row["verifier"], row["width"]): row for row in found["steps"]}
    headings = ["width", *(f"{name} ms (p20–p80)" for name in names), *(f"{name} / floor" for name in names)]
    if len(names) == 2:
        headings.append(f"{names[0]} / {names[1]}")
    rows = []
    for width in sorted({row["width"] for row in found["steps"]}):
        cells = [by[name, width] for name in names]
        line = [str(width)]
        line += [f"{cell['ms_p50']:.2f} ({cell['ms_p20']:.2f}–{cell['ms_p80']:.2f})" for cell in cells]
        line += [f"{cell['ms_p50'] / cell['floor_ms']:.2f}" for cell in cells]
        if len(names) == 2:
            line.append(f"{cells[0]['ms_p50'] / cells[1]['ms_p50']:.2f}")
        rows.append(line)
    return (
        f"**One verify pass of {found['model']}**, logits of every row, {found['context']} tokens of context, "
        f"stream bandwidth {found['bandwidth_gb_s']:.1f} GB/s in the same run.\n\n"
        f"{table(headings, rows)}\n\n{stamp(found)}"
    )


def decode_section(found: dict[str, Any]) -> str:
    """The 2×2 over whole answers: every category at temperature 0, the means above."""
    base, settings = found["baseline"], found["settings"]
    headings = [
        "verifier",
        "drafter",
        "category",
        "τ",
        "tokens/s",
        "speedup (95 %)",
        "= step",
        "× acceptance",
        "× other",
    ]
    headings.append("predicted")
    rows = []
    for row in found["runs"]:
        if row["speedup"] is None or (row["verifier"], row["drafter"]) == (base["verifier"], base["drafter"]):
            continue
        if settings["temperature"] > 0 and row["category"] != "mean":
            continue
        line = [row["verifier"], row["drafter"], row["category"]]
        line += [f"{row['mean_acceptance_length']:.2f}", f"{row['tokens_per_second']:.0f}"]
        line.append(f"{row['speedup']:.2f} ({row['speedup_low']:.2f}–{row['speedup_high']:.2f})")
        line += [f"{row[key]:.2f}" for key in ("step_factor", "acceptance_factor", "other_factor", "predicted_speedup")]
        rows.append(line)
    return (
        f"**Whole answers at temperature {settings['temperature']:g}**, γ = {settings['gamma']}, at most "
        f"{settings['max_new_tokens']} tokens, against {base['verifier']} without drafter.\n\n"
        f"{table(headings, rows)}\n\n{stamp(found)}"
    )


def publish() -> None:
    """Rewrites the section in place."""
    results = {path.name: json.loads(path.read_text()) for path in sorted((HERE / "results").glob("*.json"))}
    parts = [step_section(found) for name, found in results.items() if name.startswith("step")]
    decodes = [found for name, found in results.items() if name.startswith("decode")]
    parts += [decode_section(found) for found in sorted(decodes, key=lambda found: found["settings"]["temperature"])]
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    README.write_text(before + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    publish()
