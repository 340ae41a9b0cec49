"""The look that all figures share: colours that colour-blind readers can tell apart, quiet axes, and the stamp.

Colours are Okabe and Ito's (Color Universal Design, 2008). One meaning each, in every figure and in the token strip.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

GREEN, VERMILION, BLUE, PURPLE = "#009E73", "#D55E00", "#0072B2", "#CC79A7"
ORANGE, SKY, GREY, INK, SOFT, LINE = "#E69F00", "#56B4E9", "#999999", "#1b1f24", "#57606a", "#e3e6ea"

VERIFIERS = (INK, BLUE, GREEN, PURPLE, VERMILION)
"""Colours of verifiers, in the order they are compared; the baseline comes first."""

FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def finish(
    figure: go.Figure, title: str, subtitle: str, identity: Mapping[str, Any], *, timed: bool = False, height: int = 420
) -> go.Figure:
    """Gives a figure its title, its quiet axes and its stamp; returns it.

    timed: the figure shows times or speeds, which mean nothing on the reference backend.
    """
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
        margin={"l": 66, "r": 24, "t": 96, "b": 92},
        paper_bgcolor="white",
        plot_bgcolor="white",
        hoverlabel={"font": {"family": FONT, "size": 13}},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom", "font": {"size": 12}},
    )
    figure.for_each_annotation(lambda title: title.update(font={"size": 13}), selector=_is_panel_title)
    figure.update_xaxes(showgrid=False, zeroline=False, showline=True, linecolor=GREY, ticks="outside", ticklen=4)
    figure.update_yaxes(gridcolor=LINE, zeroline=False, ticks="", automargin=True)
    figure.add_annotation(
        text=stamp(identity, timed=timed),
        xref="paper",
        yref="paper",
        x=0,
        y=0,
        yshift=-66,
        xanchor="left",
        yanchor="top",
        showarrow=False,
        font={"size": 11, "color": SOFT},
        name="stamp",
    )
    return figure


def _is_panel_title(annotation: Any) -> bool:
    """make_subplots' titles: small, so that two fit side by side on a narrow page."""
    return annotation.xref == annotation.yref == "paper" and annotation.yanchor == "bottom"


def interval(rows: Sequence[Mapping[str, Any]], low: str, middle: str, high: str) -> dict[str, Any]:
    """Error bars from the keys `low` to `high` of rows drawn at `middle`."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [row[high] - row[middle] for row in rows],
        "arrayminus": [row[middle] - row[low] for row in rows],
        "thickness": 1.5,
        "width": 5,
    }


def stamp(identity: Mapping[str, Any], *, timed: bool = False) -> str:
    """One line that says where numbers come from: model · recipe · device/backend, and a warning where it is due."""
    origin = [identity["model"], identity.get("recipe"), f"{identity['device']} / {identity['backend']} backend"]
    parts = [escape(part) for part in origin if part]
    if "threads" in identity:
        parts.append(f"{identity['threads']} threads")
    if timed and identity["backend"] == "reference":
        parts.append("<b>not a speed measurement</b>")
    return " · ".join(parts)


def escape(text: str) -> str:
    """Text for plotly's labels, which read a subset of HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


MARKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def visible(piece: str) -> str:
    """A token's text with its whitespace made visible."""
    return piece.translate(MARKS) or "∅"
