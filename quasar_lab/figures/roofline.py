"""Why half the bytes can be half the time, in one picture: the roofline.

A pass does some operations and reads some bytes; their quotient is its *arithmetic intensity*. Left of the ridge memory
is the bound: the rate of work grows with the intensity, along the slope of the stream bandwidth. Right of it arithmetic
is: the flat ceiling of the kernel. Wider passes reuse each weight more often and so move right, and up while the slope
lasts: that is the free room in which drafts are verified. INT8 halves the bytes, so it moves right by itself, and its
ceiling is higher. Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.

Slope and ceilings are measured in the same run as the points, never taken from a data sheet. So a point may lie a
little above its roof: machines are noisy, and a cache may hold part of what memory was asked for.
"""

from math import log10
from typing import Any

import plotly.graph_objects as go

from quasar_lab.figures.style import VERIFIERS, escape, framed, full_ticks, rows_of, samples_of
from quasar_lab.support.errors import InputError


def roofline(result: dict[str, Any]) -> go.Figure:
    """Billions of operations a second by operations per byte, on log axes: for each verifier its roof, the point that
    each width could reach under it (hollow), and what it reached (solid, bar from the 20th to the 80th percentile).

    result: what `benchmark.step` returns, or the JSON of `quasar-lab bench step`. Raises InputError on one that was
    made without operations and ceilings.
    """
    if "ceilings" not in result or any("operations" not in step for step in result["steps"]):
        raise InputError("the result has no operations and ceilings; accepted: of `bench step` in this version")
    ceilings = {row["verifier"]: row for row in result["ceilings"]}
    bandwidth, verifiers = result["bandwidth_gb_s"], rows_of(result["steps"])
    measured = [step["operations"] / step["bytes"] for step in result["steps"]]
    ridges = [ceilings[name]["gop_s_p50"] / bandwidth for name in verifiers]
    left, right = min(measured) / 1.7, max(*measured, *ridges) * 2.2
    figure = go.Figure()
    for place, ((name, rows), colour) in enumerate(zip(verifiers.items(), VERIFIERS, strict=False)):
        _roof(figure, name, colour, left, right, bandwidth, ceilings[name])
        side = "bottom right" if place % 2 == 0 else "top left"  # neighbours' numbers apart
        _points(figure, name, colour, rows, bandwidth, ceilings[name]["gop_s_p50"], side)
    drawn = [value for data in figure.data for value in data.y]
    low, high = min(drawn) / 1.8, max(drawn) * 2
    for axis, limits, title in (
        (figure.update_xaxes, (left, right), "intensity: operations per byte read"),
        (figure.update_yaxes, (low, high), "billion operations a second"),
    ):
        axis(type="log", range=[log10(edge) for edge in limits], title_text=title, **full_ticks(*limits))
    _slope_label(figure, bandwidth)
    wide = result["ceilings"][0]["width"]
    subtitle = (
        "hollow: what the roof allows a pass of that width · solid: measured, 20–80 % · "
        f"numbers: width M · slope: {bandwidth:.1f} GB/s, flat: products of {wide} rows, both measured in the same run"
    )
    identity = {**result, "recipe": ", ".join(verifiers), "samples": samples_of(result["steps"])}
    return framed(figure, "Roofline: what bounds a verify pass", subtitle, identity, timed=True, height=560)


def _roof(
    figure: go.Figure, name: str, colour: str, left: float, right: float, bandwidth: float, ceiling: dict[str, Any]
) -> None:
    flat = ceiling["gop_s_p50"]
    ridge = flat / bandwidth
    figure.add_scatter(
        x=[left, max(ridge, left), right],
        y=[min(bandwidth * left, flat), flat, flat],
        mode="lines",
        line={"color": colour, "width": 1.5, "dash": "dash"},
        name=f"{escape(name)}: roof",
        legendgroup=name,
        hovertemplate=(
            f"{escape(name)}: ceiling {flat:.0f} billion operations/s "
            f"({ceiling['gop_s_p20']:.0f}–{ceiling['gop_s_p80']:.0f})"
            f"<br>ridge at {ridge:.1f} operations per byte<extra></extra>"
        ),
    )
    # Annotations on log axes are placed by exponent.
    figure.add_annotation(
        x=log10(right),
        y=log10(flat),
        text=f"arithmetic, {escape(name)}: {flat:.0f}",
        showarrow=False,
        xanchor="right",
        yanchor="bottom",
        font={"size": 12, "color": colour},
    )


def _points(
    figure: go.Figure, name: str, colour: str, rows: list[dict[str, Any]], bandwidth: float, ceiling: float, side: str
) -> None:
    intensity = [row["operations"] / row["bytes"] for row in rows]
    widths = [row["width"] for row in rows]
    figure.add_scatter(
        x=intensity,
        y=[min(bandwidth * place, ceiling) for place in intensity],
        mode="markers",
        marker={"size": 11, "color": colour, "symbol": "circle-open", "line": {"width": 1.5}},
        name=f"{escape(name)}: possible",
        legendgroup=name,
        customdata=widths,
        hovertemplate=(
            f"{escape(name)}, width %{{customdata}}: the roof allows %{{y:.0f}} billion operations/s<extra></extra>"
        ),
    )
    # Time on top of a rate: the slow end of the time is the low end of the rate.
    rates = [[row["operations"] / row[key] / 1e6 for row in rows] for key in ("ms_p80", "ms_p50", "ms_p20")]
    slow, middle, fast = rates
    figure.add_scatter(
        x=intensity,
        y=middle,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [high - at for high, at in zip(fast, middle, strict=True)],
            "arrayminus": [at - low for at, low in zip(middle, slow, strict=True)],
            "thickness": 1.5,
            "width": 4,
        },
        mode="markers+text",
        text=[str(width) for width in widths],
        textposition=side,
        textfont={"size": 11, "color": colour},
        marker={"size": 8, "color": colour},
        name=f"{escape(name)}: measured",
        legendgroup=name,
        customdata=[[row["width"], row["ms_p50"], row["bytes"] / 1e6] for row in rows],
        hovertemplate=(
            f"{escape(name)}, width %{{customdata[0]}}: %{{y:.0f}} billion operations/s"
            "<br>%{customdata[1]:.2f} ms · %{customdata[2]:.0f} MB · %{x:.1f} operations per byte<extra></extra>"
        ),
    )


def _slope_label(figure: go.Figure, bandwidth: float) -> None:
    """Names the slope in the corner above it, where no point can be."""
    figure.add_annotation(
        x=0,
        y=1,
        xref="paper",
        yref="paper",
        text=f" ↗ memory: {bandwidth:.1f} GB/s",
        showarrow=False,
        xanchor="left",
        yanchor="top",
        font={"size": 12},
    )
