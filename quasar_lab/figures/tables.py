"""The table that papers on speculative decoding print: tasks across, verifier × drafter down, speedup and τ in a cell.

The rows are always the 2×2, {BF16, W8A8} × {plain, n-gram}: only so can a reader tell a faster step from longer drafts.
The best speedup of a column is set in bold, and no speedup is quoted without its 95 % interval (a tooltip would hide
it).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from quasar_lab.figures.style import stamp

CELL = "padding: 5px 10px; text-align: right; white-space: nowrap; vertical-align: top"
LEFT = "padding: 5px 14px 5px 0; text-align: left; white-space: nowrap; vertical-align: top"
SMALL = "font-size: 85%; opacity: 0.8"
"""Cells bring their look with them: a notebook's own style sheet is not ours."""


@dataclass(frozen=True)
class Table:
    """A finished HTML table; notebooks show it, `str()` gives it."""

    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __str__(self) -> str:
        return self.html


def paper_table(results: Sequence[dict[str, Any]]) -> Table:
    """One block of rows per result, by temperature. results: what `decode_benchmark.run` returns, or the JSON of
    `quasar-lab bench decode`; of the same categories."""
    categories = sorted({row["category"] for result in results for row in result["runs"]} - {"mean"})
    columns = [*categories, "mean"]
    heads = "".join(f'<th scope="col" style="{CELL}">{escape(name)}</th>' for name in columns)
    corner = "".join(f'<th scope="col" style="{LEFT}">{words}</th>' for words in ("verifier", "drafter"))
    blocks = "".join(_block(result, columns) for result in results)
    first = results[0]
    settings = first["settings"]
    asked = {row["category"]: row["prompts"] for row in first["runs"] if row["category"] != "mean"}
    said = (
        f"{stamp({**first, 'recipe': ''}, timed=True)} · γ = {settings['gamma']}, at most "
        f"{settings['max_new_tokens']} new tokens · {sum(asked.values())} questions of {len(asked)} kinds · speedup "
        f"over {escape(first['baseline']['verifier'])} without drafter, with its 95 % interval over questions"
    )
    return Table(
        '<div style="overflow-x: auto" tabindex="0" role="region" aria-label="results by task">'
        '<table class="quasar-paper" style="border-collapse: collapse">'
        f'<caption style="caption-side: bottom; text-align: left; padding: 6px 0; {SMALL}">{said}</caption>'
        f"<thead><tr>{corner}{heads}</tr></thead>{blocks}</table></div>"
    )


def _block(result: dict[str, Any], columns: Sequence[str]) -> str:
    arms = list(dict.fromkeys((row["verifier"], row["drafter"]) for row in result["runs"]))
    cells = {(row["verifier"], row["drafter"], row["category"]): row for row in result["runs"]}
    best = {
        column: max((cells[(*arm, column)]["speedup"] or 0 for arm in arms if (*arm, column) in cells), default=0)
        for column in columns
    }
    temperature = f"temperature {result['settings']['temperature']:g}"
    span = len(columns) + 2
    body = [f'<tr><th scope="rowgroup" colspan="{span}" style="{LEFT}; padding-top: 14px">{temperature}</th></tr>']
    for verifier, drafter in arms:
        label = f'<th scope="row" style="{LEFT}">{escape(verifier)}</th><td style="{LEFT}">{escape(drafter)}</td>'
        base = (verifier, drafter) == (result["baseline"]["verifier"], result["baseline"]["drafter"])
        row = "".join(_cell(cells.get((verifier, drafter, column)), best[column], base) for column in columns)
        body.append(f"<tr>{label}{row}</tr>")
    return f"<tbody>{''.join(body)}</tbody>"


def _cell(row: dict[str, Any] | None, best: float, base: bool) -> str:
    if row is None or row["speedup"] is None:
        return f'<td style="{CELL}">–</td>'
    times = f"{row['speedup']:.2f} ×"
    times = f"<b>{times}</b>" if row["speedup"] == best else times
    tau = row["mean_acceptance_length"]
    low, high = row["speedup_low"], row["speedup_high"]
    # One question has no spread: an interval of no width would look like certainty.
    interval = "baseline" if base else "no interval" if low == high else f"{low:.2f}–{high:.2f}"
    return (
        f'<td style="{CELL}">{times}<br><span style="{SMALL}">{interval}</span>'
        f'<br><span style="{SMALL}">τ {"–" if tau is None else format(tau, ".2f")}</span></td>'
    )
