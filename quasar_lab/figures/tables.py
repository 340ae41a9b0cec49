"""The table that papers on speculative decoding print: tasks across, verifier × drafter down, speedup and τ in a cell.

## Idea

The rows are always the 2×2 of {BF16, W8A8} × {plain, n-gram}, since only so a reader can tell a faster step from longer
drafts. The best speedup of a column is set in bold. No speedup stands without its 95 % interval, which a tooltip would
hide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from quasar_lab.evaluation.decode_speed import DecodeResult
from quasar_lab.evaluation.speedup_table import MEAN, MEAN_NAME, SpeedupRow
from quasar_lab.figures.style import origin_line
from quasar_lab.support.result import Json

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


def paper_table(results: Sequence[DecodeResult | Json]) -> Table:
    """One block of rows per result, by temperature. results: what `decode_benchmark.run` returns, or the JSON of
    `quasar-lab bench decode`; of the same categories."""
    found = [DecodeResult.of(result) for result in results]
    categories = sorted({row.category for result in found for row in result.runs} - {MEAN})
    columns = [*categories, MEAN]
    names = [*categories, MEAN_NAME]
    heads = "".join(f'<th scope="col" style="{CELL}">{escape(name)}</th>' for name in names)
    corner = "".join(f'<th scope="col" style="{LEFT}">{words}</th>' for words in ("verifier", "drafter"))
    blocks = "".join(_block(result, columns) for result in found)
    return Table(
        '<div style="overflow-x: auto" tabindex="0" role="region" aria-label="results by task">'
        '<table class="quasar-paper" style="border-collapse: collapse">'
        f'<caption style="caption-side: bottom; text-align: left; padding: 6px 0; {SMALL}">{_caption(found[0])}'
        f"</caption><thead><tr>{corner}{heads}</tr></thead>{blocks}</table></div>"
    )


def _caption(result: DecodeResult) -> str:
    """Where the numbers come from, and what they are of."""
    config = result.config
    asked = {row.category: row.prompts for row in result.runs if not row.is_mean}
    return (
        f"{origin_line(result.origin, recipe='', timed=True)} · γ = {config.gamma}, at most "
        f"{config.max_new_tokens} new tokens · {sum(asked.values())} questions of {len(asked)} kinds · speedup "
        f"over {escape(result.baseline.verifier)} without drafter, with its 95 % interval over questions"
    )


def _block(result: DecodeResult, columns: Sequence[str]) -> str:
    """The rows of one result, below a heading with its temperature."""
    cells = {(row.arm, row.category): row for row in result.runs}
    temperature = f"temperature {result.config.temperature:g}"
    span = len(columns) + 2
    body = [f'<tr><th scope="rowgroup" colspan="{span}" style="{LEFT}; padding-top: 14px">{temperature}</th></tr>']
    for arm in result.arms:
        head = f'<th scope="row" style="{LEFT}">{escape(arm.verifier)}</th>'
        head += f'<td style="{LEFT}">{escape(arm.drafter)}</td>'
        base = arm == result.baseline
        line = "".join(_cell(cells.get((arm, column)), result.best_speedup(column), base) for column in columns)
        body.append(f"<tr>{head}{line}</tr>")
    return f"<tbody>{''.join(body)}</tbody>"


def _cell(row: SpeedupRow | None, best: float, base: bool) -> str:
    """Speedup, its interval and τ; base: of the baseline, whose speedup over itself has no interval."""
    if row is None or row.speedup is None:
        return f'<td style="{CELL}">–</td>'
    times = f"{row.speedup:.2f} ×"
    times = f"<b>{times}</b>" if row.speedup == best else times
    low, high = row.speedup_low, row.speedup_high
    # One question has no spread: an interval of no width would look like certainty.
    interval = "baseline" if base else "no interval" if low == high else f"{low:.2f}–{high:.2f}"
    tau = "–" if row.tau is None else f"{row.tau:.2f}"
    return (
        f'<td style="{CELL}">{times}<br><span style="{SMALL}">{interval}</span>'
        f'<br><span style="{SMALL}">τ {tau}</span></td>'
    )
