"""The numbers behind a figure, as a folded HTML table: for readers who cannot see it, and for those who want to copy.

Made from the figure's own JSON, so that no figure can be without. Traces over the same places share one table, a column
each. Long tables are cut, and maps and landscapes too large to read are told by their extent, their median and where
their largest value stands; what was left out is said.
"""

import base64
import html
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

ROWS, COLUMNS = 40, 12
"""The most that a table shows."""

MAPS = {"heatmap", "surface", "contour"}


def data_table(figure: dict[str, Any]) -> str:
    """The folded tables of a figure; empty when it draws nothing that has numbers."""
    layout = figure.get("layout", {})
    drawn = [trace for trace in figure.get("data", []) if trace.get("visible", True) is not False]
    groups: list[list[dict[str, Any]]] = []
    for trace in drawn:
        known = next((group for group in groups if _together(group[0], trace)), None)
        if known is None:
            groups.append([trace])
        else:
            known.append(trace)
    tables = [_map(group[0], layout) if _is_map(group[0]) else _columns(group, layout) for group in groups]
    shown = "".join(filter(None, tables))
    frames = len(figure.get("frames") or [])
    more = f"<p>{frames} more views of this figure, by its slider, are not listed.</p>" if frames > 1 else ""
    return f'<details class="data"><summary>data of this figure</summary>{shown}{more}</details>' if shown else ""


def describe(figure: dict[str, Any]) -> str:
    """One sentence for those who cannot see the figure: title, subtitle, and what is drawn."""
    layout = figure.get("layout", {})
    title = layout.get("title", {})
    said = [plain(title.get("text")), plain((title.get("subtitle") or {}).get("text"))]
    names = [plain(trace.get("name")) for trace in figure.get("data", []) if trace.get("visible", True) is not False]
    names = list(dict.fromkeys(filter(None, names)))
    if len(names) > 1:
        rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
        said.append(f"Shown: {', '.join(names[:8])}{rest}.")
    return " — ".join(filter(None, said)) or "figure"


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


def _is_map(trace: dict[str, Any]) -> bool:
    return trace.get("type") in MAPS


def _axes(trace: dict[str, Any]) -> tuple[str, str]:
    return trace.get("xaxis", "x"), trace.get("yaxis", "y")


def _places(trace: dict[str, Any]) -> tuple[str, list[Any]]:
    """Name of the trace's own direction ("x", or "y" of lying bars), and the places along it."""
    along = "y" if trace.get("orientation") == "h" else "x"
    across = "x" if along == "y" else "y"
    places = numbers(trace.get(along)).ravel().tolist()
    return along, places or list(range(numbers(trace.get(across)).size))


def _together(first: dict[str, Any], second: dict[str, Any]) -> bool:
    if _is_map(first) or _is_map(second) or _axes(first) != _axes(second):
        return False
    return _places(first) == _places(second)


def _axis_title(layout: dict[str, Any], reference: str) -> str:
    """Title of the axis "x", "y2" …; of a panel without one, its heading is not known here."""
    axis = layout.get(f"{reference[0]}axis{reference[1:]}", {})
    return plain((axis.get("title") or {}).get("text"))


def _columns(group: list[dict[str, Any]], layout: dict[str, Any]) -> str:
    along, places = _places(group[0])
    across = "x" if along == "y" else "y"
    x, y = _axes(group[0])
    reference = {"x": x, "y": y}
    first = _axis_title(layout, reference[along]) or along
    unit = _axis_title(layout, reference[across])
    heads, columns = [first], [places]
    for place, trace in enumerate(group):
        values = numbers(trace.get(across)).ravel().tolist()
        if not values:
            continue
        name = plain(trace.get("name")) or (f"series {place + 1}" if len(group) > 1 else unit or across)
        heads.append(name)
        columns.append(values)
        for key, sign in (("arrayminus", "−"), ("array", "+")):
            spread = numbers((trace.get(f"error_{across}") or {}).get(key)).ravel().tolist()
            if spread:
                heads.append(f"{name} {sign}")
                columns.append(spread)
    count = len(places)
    if len(columns) < 2 or not count:
        return ""
    dropped = len(columns) - 1 - COLUMNS
    heads, columns = heads[: COLUMNS + 1], columns[: COLUMNS + 1]
    rows = [[_cell(column[row]) if row < len(column) else "" for column in columns] for row in range(min(count, ROWS))]
    caption = f"{unit or 'values'} by {first}"
    if count > ROWS:
        caption += f": the first {ROWS} of {count} places"
        ends = " · ".join(
            f"{head} {_cell(low)} to {_cell(high)}"
            for head, (low, high) in zip(heads[1:], map(_range, columns[1:]), strict=True)
            if low is not None
        )
        caption += f"; over all of them {ends}" if ends else ""
    if dropped > 0:
        caption += f"; {dropped} more columns left out"
    return _html(caption, heads, rows)


def _map(trace: dict[str, Any], layout: dict[str, Any]) -> str:
    heights = numbers(trace.get("z"))
    if heights.dtype == object:
        heights = np.array(
            [[np.nan if cell is None else cell for cell in row] for row in heights.tolist()], dtype=float
        )
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
        ("rows × columns", f"{heights.shape[0]} × {heights.shape[1]}"),
        ("smallest", _cell(float(np.nanmin(heights)))),
        ("median", _cell(float(np.nanmedian(heights)))),
        ("largest", _cell(float(np.nanmax(heights)))),
        ("largest at", f"{_cell(_at(down, top[0]))}, {_cell(_at(across, top[1]))}"),
    ]
    return _html(f"{name}, in short: too large to list", ["what", "value"], [list(fact) for fact in facts])


def _at(labels: Sequence[Any], place: Any) -> Any:
    return labels[int(place)] if int(place) < len(labels) else int(place)


def _range(column: Sequence[Any]) -> tuple[Any, Any]:
    found = [value for value in column if isinstance(value, int | float) and value == value]
    return (min(found), max(found)) if found else (None, None)


def _cell(value: Any) -> str:
    """Four figures of a fraction; markup of labels dropped."""
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
