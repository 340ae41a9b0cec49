"""The numbers behind a figure, as a folded HTML table: for readers who cannot see it, and for those who want to copy.

## Idea

The table is made from the figure's own JSON, so every figure has one. Traces over the same places share one table, with
a column each.

## What is lost

Long tables are cut. Of maps and landscapes that are too large to read, the table gives their size, their smallest,
median and largest value, and where the largest one is. The table says what was left out.
"""

import base64
import html
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from quasar_lab.support.result import Json

ROWS = 40
"""The most rows that a table shows."""

COLUMNS = 12
"""The most columns of values that a table shows."""

MAPS = {"heatmap", "surface", "contour"}
"""Types of traces that give a value for each pair of places."""


def data_table(figure: Json) -> str:
    """The folded tables of a figure. Empty when it draws nothing that has numbers."""
    layout = figure.get("layout", {})
    groups: list[list[Json]] = []
    for trace in _drawn(figure):
        known = next((group for group in groups if _together(group[0], trace)), None)
        if known is None:
            groups.append([trace])
        else:
            known.append(trace)
    tables = [_map(group[0]) if _is_map(group[0]) else _columns(group, layout) for group in groups]
    shown = "".join(filter(None, tables))
    frames = len(figure.get("frames") or [])
    more = f"<p>{frames} more views of this figure, by its slider, are not listed.</p>" if frames > 1 else ""
    return f'<details class="data"><summary>data of this figure</summary>{shown}{more}</details>' if shown else ""


def describe(figure: Json) -> str:
    """A sentence for readers who cannot see the figure: title, subtitle, and the names of what is drawn."""
    layout = figure.get("layout", {})
    title = layout.get("title", {})
    said = [plain(title.get("text")), plain((title.get("subtitle") or {}).get("text"))]
    names = list(dict.fromkeys(filter(None, (plain(trace.get("name")) for trace in _drawn(figure)))))
    if len(names) > 1:
        rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
        said.append(f"Shown: {', '.join(names[:8])}{rest}.")
    return " — ".join(filter(None, said)) or "figure"


def _drawn(figure: Json) -> list[Json]:
    """The traces that are drawn from the start."""
    return [trace for trace in figure.get("data", []) if trace.get("visible", True) is not False]


def plain(text: str | None) -> str:
    """Plotly's markup as plain text."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text or "")).split())


def numbers(value: Any) -> np.ndarray:
    """A plotly array, plain or packed ({"dtype", "bdata", "shape"}), as numpy's."""
    if isinstance(value, dict) and "bdata" in value:
        # plotly's names of types ("f8", "u1") are numpy's, little endian.
        array = np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]).newbyteorder("<"))
        shape = value.get("shape")
        return array.reshape([int(part) for part in str(shape).split(",")]) if shape else array
    return np.array(value if value is not None else [], dtype=object)


def _is_map(trace: Json) -> bool:
    return trace.get("type") in MAPS


def _axes(trace: Json) -> tuple[str, str]:
    return trace.get("xaxis", "x"), trace.get("yaxis", "y")


def _places(trace: Json) -> tuple[str, list[Any]]:
    """Name of the trace's own direction ("x", or "y" of lying bars), and the places along it."""
    along = "y" if trace.get("orientation") == "h" else "x"
    across = "x" if along == "y" else "y"
    places = numbers(trace.get(along)).ravel().tolist()
    return along, places or list(range(numbers(trace.get(across)).size))


def _together(first: Json, second: Json) -> bool:
    """Whether two traces share a table."""
    if _is_map(first) or _is_map(second) or _axes(first) != _axes(second):
        return False
    return _places(first) == _places(second)


def _axis_title(layout: Json, reference: str) -> str:
    """Title of the axis "x", "y2" …; empty where the axis of a panel has none."""
    axis = layout.get(f"{reference[0]}axis{reference[1:]}", {})
    return plain((axis.get("title") or {}).get("text"))


def _columns(group: list[Json], layout: Json) -> str:
    """The table of traces over the same places."""
    along, places = _places(group[0])
    across = "x" if along == "y" else "y"
    x, y = _axes(group[0])
    reference = {"x": x, "y": y}
    first = _axis_title(layout, reference[along]) or along
    unit = _axis_title(layout, reference[across])
    columns = [
        column
        for place, trace in enumerate(group)
        for column in _columns_of(trace, across, f"series {place + 1}" if len(group) > 1 else unit or across)
    ]
    if not columns or not places:
        return ""
    caption = f"{unit or 'values'} by {first}" + _left_out(columns, len(places))
    columns = columns[:COLUMNS]
    rows = [
        [_cell(places[row]), *(_cell(values[row]) if row < len(values) else "" for _, values in columns)]
        for row in range(min(len(places), ROWS))
    ]
    return _html(caption, [first, *(head for head, _ in columns)], rows)


def _columns_of(trace: Json, across: str, otherwise: str) -> list[tuple[str, list[Any]]]:
    """(heading, values) of a trace and of its error bars. otherwise: heading of a trace without a name."""
    values = numbers(trace.get(across)).ravel().tolist()
    if not values:
        return []
    name = plain(trace.get("name")) or otherwise
    found = [(name, values)]
    for key, sign in (("arrayminus", "−"), ("array", "+")):
        spread = numbers((trace.get(f"error_{across}") or {}).get(key)).ravel().tolist()
        if spread:
            found.append((f"{name} {sign}", spread))
    return found


def _left_out(columns: Sequence[tuple[str, list[Any]]], count: int) -> str:
    """What a caption says of the rows and columns that the table leaves out; nothing when it has all."""
    said = ""
    if count > ROWS:
        said = f": the first {ROWS} of {count} places"
        ends = " · ".join(
            f"{head} {_cell(low)} to {_cell(high)}"
            for head, (low, high) in ((head, _range(values)) for head, values in columns[:COLUMNS])
            if low is not None
        )
        said += f"; over all of them {ends}" if ends else ""
    dropped = len(columns) - COLUMNS
    return f"{said}; {dropped} more columns left out" if dropped > 0 else said


def _map(trace: Json) -> str:
    """The table of a map: all of it when it is small, else its extent and extremes."""
    heights = _heights(trace)
    if heights.ndim != 2 or not heights.size or not np.isfinite(heights).any():
        return ""
    across = numbers(trace.get("x")).ravel().tolist() or list(range(heights.shape[1]))
    down = numbers(trace.get("y")).ravel().tolist() or list(range(heights.shape[0]))
    name = plain(trace.get("name")) or plain(((trace.get("colorbar") or {}).get("title") or {}).get("text")) or "values"
    if heights.shape[0] <= ROWS and heights.shape[1] <= COLUMNS:
        rows = [[_cell(label), *map(_cell, row)] for label, row in zip(down, heights.tolist(), strict=False)]
        return _html(name, ["", *map(_cell, across)], rows)
    top = np.unravel_index(np.nanargmax(heights), heights.shape)
    facts = [
        ["rows × columns", f"{heights.shape[0]} × {heights.shape[1]}"],
        ["smallest", _cell(float(np.nanmin(heights)))],
        ["median", _cell(float(np.nanmedian(heights)))],
        ["largest", _cell(float(np.nanmax(heights)))],
        ["largest at", f"{_cell(_at(down, top[0]))}, {_cell(_at(across, top[1]))}"],
    ]
    return _html(f"{name}, in short: too large to list", ["what", "value"], facts)


def _heights(trace: Json) -> np.ndarray:
    """The values of a map, NaN where there is none."""
    heights = numbers(trace.get("z"))
    if heights.dtype != object:
        return heights
    return np.array([[np.nan if cell is None else cell for cell in row] for row in heights.tolist()], dtype=float)


def _at(labels: Sequence[Any], place: Any) -> Any:
    return labels[int(place)] if int(place) < len(labels) else int(place)


def _range(column: Sequence[Any]) -> tuple[Any, Any]:
    found = [value for value in column if isinstance(value, int | float) and value == value]
    return (min(found), max(found)) if found else (None, None)


def _cell(value: Any) -> str:
    """A value as the table shows it: four figures of a fraction, labels without their markup."""
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else plain(str(value))


def _html(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(words)}</th>' for words in heads)
    body = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table>'
        f"<caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
