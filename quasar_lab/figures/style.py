"""The look that all figures share: colours that colour-blind readers can tell apart, quiet axes, and the stamp.

## Choice

Colours are Okabe and Ito's (Color Universal Design, 2008). Each has one meaning, in every figure and in the token
strip. The stamp is one line that says where the numbers come from.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import unescape
from math import ceil, floor, log10
from typing import Any

import plotly.graph_objects as go

from quasar_lab.evaluation.origin import Origin
from quasar_lab.figures.plot import Plot
from quasar_lab.support.machine import cpu_name
from quasar_lab.support.result import Json, Result

GREEN = "#009E73"
VERMILION = "#D55E00"
BLUE = "#0072B2"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREY = "#999999"
INK = "#1b1f24"
"""Text and marks."""
SOFT = "#57606a"
"""Text that stands back."""
LINE = "#e3e6ea"
"""Grid lines."""

VERIFIERS = (INK, BLUE, GREEN, PURPLE, VERMILION)
"""Colours of verifiers, in the order they are compared; the baseline comes first."""

FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def framed(
    figure: go.Figure,
    title: str,
    subtitle: str,
    origin: str,
    *,
    height: int = 460,
    left: int = 62,
    head: int = 0,
    foot: int = 0,
) -> Plot:
    """The figure with its title, its quiet axes and its stamp, readable on a phone: nothing runs into anything else.

    origin: what `origin_line` says. Title, subtitle and stamp stand above the plot in lines short enough for a phone,
    so the space they take is known; the legend stands at the bottom of the figure, where plotly makes room for as many
    lines as it needs. left: pixels for the labels of the y axis, as `label_room` counts them. head, foot: pixels kept
    free above and below the plot for what the caller puts there.
    """
    lines = wrapped(subtitle, SUBTITLE_WIDTH)
    stamp = wrapped(origin, STAMP_WIDTH)
    _quiet(figure, title, "<br>".join(lines), height)
    figure.update_layout(
        title={"xref": "container", "pad": {"t": 14, "l": 14}},
        margin={"l": left, "r": 22, "t": 58 + 17 * len(lines) + 15 * len(stamp) + head, "b": 60 + foot},
        legend={
            "orientation": "h",
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "font": {"size": 12},
        },
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=False)  # the stamp is placed from the left margin, which must not move
    _stamp(figure, "<br>".join(stamp), y=1, yshift=8 + head, yanchor="bottom", xshift=14 - left, align="left")
    return Plot(figure)


def label_room(labels: Iterable[str]) -> int:
    """Pixels that words beside the y axis need. labels: lines of them are divided by <br>."""
    lines = [_shown(line) for label in labels for line in label.split("<br>")]
    return 20 + 8 * max(lines, default=0)


SUBTITLE_WIDTH = 51
"""Characters of a line of the subtitle that fit 380 pixels."""
STAMP_WIDTH = 58
"""Characters of a line of the stamp that fit 380 pixels."""


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters as a reader sees them, broken at " · " where that is enough, else between
    words. What is one entity or tag in plotly's HTML counts as what it shows, and is never cut."""
    lines: list[str] = []
    for part in text.split(" · "):
        together = f"{lines[-1]} · {part}" if lines else part
        if lines and _shown(together) <= width:
            lines[-1] = together
            continue
        lines.append("")
        for word in part.split(" "):
            together = f"{lines[-1]} {word}" if lines[-1] else word
            if lines[-1] and _shown(together) > width:
                lines.append(word)
            else:
                lines[-1] = together
    return lines


def _shown(text: str) -> int:
    return len(unescape(TAG.sub("", text)))


TAG = re.compile(r"</?[bi]>")


def _quiet(figure: go.Figure, title: str, subtitle: str, height: int) -> None:
    """Title, colours and axes."""
    figure.update_layout(
        template="none",
        title={
            "text": title,
            "subtitle": {"text": subtitle, "font": {"size": 13, "color": SOFT}},
            "font": {"size": 17},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 14},
        },
        font={"family": FONT, "size": 13, "color": INK},
        height=height,
        paper_bgcolor="white",
        plot_bgcolor="white",
        hoverlabel={"font": {"family": FONT, "size": 13}},
    )
    figure.for_each_annotation(lambda title: title.update(font={"size": 13}), selector=_is_panel_title)
    figure.update_xaxes(showgrid=False, zeroline=False, showline=True, linecolor=GREY, ticks="outside", ticklen=4)
    figure.update_yaxes(gridcolor=LINE, zeroline=False, ticks="", automargin=True)


def _stamp(figure: go.Figure, text: str, **place: Any) -> None:
    figure.add_annotation(
        text=text,
        xref="paper",
        yref="paper",
        x=0,
        xanchor="left",
        showarrow=False,
        font={"size": 11, "color": SOFT},
        name="stamp",
        **place,
    )


def _is_panel_title(annotation: Any) -> bool:
    """make_subplots' titles: small, so that two fit side by side on a narrow page."""
    return annotation.xref == annotation.yref == "paper" and annotation.yanchor == "bottom"


def error_bars(lows: Sequence[float], middles: Sequence[float], highs: Sequence[float], width: int = 5) -> Json:
    """Bars from `lows` to `highs` on points that are drawn at `middles`. width: pixels of their ends."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - middle for high, middle in zip(highs, middles, strict=True)],
        "arrayminus": [middle - low for low, middle in zip(lows, middles, strict=True)],
        "thickness": 1.5,
        "width": width,
    }


def interval_bars(rows: Sequence[Result | Mapping[str, Any]], low: str, middle: str, high: str) -> Json:
    """Error bars from the values that `rows` hold under `low` to those under `high`, drawn at `middle`."""
    lows, middles, highs = ([row[key] for row in rows] for key in (low, middle, high))
    return error_bars(lows, middles, highs)


def full_ticks(low: float, high: float) -> Json:
    """Ticks of a log axis from `low` to `high`, at 1, 2 and 5 of every power of ten (over a wide range: at 1), each
    written in full."""
    digits = (1, 2, 5) if high / low < 1e3 else (1,)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    values = [value for power in powers for digit in digits if low <= (value := digit * 10.0**power) <= high]
    return {"tickvals": values, "ticktext": [f"{value:,.10g}" for value in values]}


def origin_line(origin: Origin, *, recipe: str | None = None, count: str | None = None, timed: bool = False) -> str:
    """One line that says where numbers come from: model · recipe · device/backend · threads · samples, and a warning
    where it is due.

    recipe: in place of the origin's own; "" for none. count: of what the numbers are, as in "7 samples". timed: the
    figure shows times or speeds, which mean nothing on the reference backend. What was measured on another machine than
    this one (its origin names another processor), or was read from a file by `benchmark.read`, is said to be saved
    results of that machine.
    """
    shown = origin.recipe if recipe is None else recipe
    named = [origin.model, shown, f"{origin.device} / {origin.backend} backend"]
    parts = [escape(part) for part in named if part]
    if origin.threads is not None:
        parts.append(f"{origin.threads} threads")
    if count is not None:
        parts.append(count)
    if origin.saved or origin.cpu not in (None, cpu_name()):
        where = origin.device if origin.cpu is None else f"{origin.cpu}, {origin.device}"
        date = "" if origin.date is None else f", {origin.date[:10]}"
        parts.append(f"<b>saved results of {escape(where)}</b>{escape(date)}")
    elif origin.cpu is not None:
        parts.append(escape(origin.cpu))
    if timed and origin.backend == "reference":
        parts.append("<b>not a speed measurement</b>")
    return " · ".join(parts)


def escape(text: str) -> str:
    """Text for plotly's labels, which read a subset of HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


MARKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def visible(piece: str) -> str:
    """A token's text with its whitespace made visible."""
    return piece.translate(MARKS) or "∅"
