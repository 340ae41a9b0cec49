"""Why half the bytes can be half the time, in one picture: the roofline.

Left of the ridge memory is the bound: the rate of work grows with the intensity, along the slope of the stream
bandwidth. Right of it arithmetic is: the flat ceiling of the kernel. Wider passes reuse each weight more often and so
move right, and up while the slope lasts: that is the free room in which drafts are verified. INT8 halves the bytes, so
it moves right by itself, and its ceiling is higher. What the points are: `evaluation.roofline`.
"""

from math import log10

import plotly.graph_objects as go

from quasar_lab.evaluation.pass_time import StepResult
from quasar_lab.evaluation.roofline import Roof, roofs
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.speed import step_origin
from quasar_lab.figures.style import VERIFIERS, error_bars, escape, framed, full_ticks
from quasar_lab.support.result import Json


def roofline(result: StepResult | Json) -> Plot:
    """Billions of operations a second by operations per byte, on log axes: for each verifier its roof, the point that
    each width could reach under it (hollow), and what it reached (solid, bar from the 20th to the 80th percentile).

    result: what `benchmark.step` returns, or the JSON of `quasar-lab bench step`. Raises InputError on one that was
    made without operations and ceilings.
    """
    result = StepResult.of(result)
    drawn = roofs(result)
    bandwidth = result.bandwidth_gb_s
    intensities = [point.intensity for roof in drawn for point in roof.points]
    left = min(intensities) / 1.7
    right = max(*intensities, *(roof.ridge for roof in drawn)) * 2.2
    figure = go.Figure()
    for place, (roof, colour) in enumerate(zip(drawn, VERIFIERS, strict=False)):
        _roof(figure, roof, colour, left, right)
        _possible(figure, roof, colour)
        side = "bottom right" if place % 2 == 0 else "top left"  # neighbours' numbers apart
        _measured(figure, roof, colour, side)
    _axes(figure, left, right)
    _slope_label(figure, bandwidth)
    wide = drawn[0].ceiling.width
    subtitle = (
        "hollow: what the roof allows a pass of that width · solid: measured, 20–80 % · "
        f"numbers: width M · slope: {bandwidth:.1f} GB/s, flat: products of {wide} rows, both measured in the same run"
    )
    line = step_origin(result, ", ".join(roof.verifier for roof in drawn))
    return framed(figure, "Roofline: what bounds a verify pass", subtitle, line, height=560)


def _axes(figure: go.Figure, left: float, right: float) -> None:
    """Log axes around all that is drawn."""
    drawn = [value for data in figure.data for value in data.y]
    for axis, limits, title in (
        (figure.update_xaxes, (left, right), "intensity: operations per byte read"),
        (figure.update_yaxes, (min(drawn) / 1.8, max(drawn) * 2), "billion operations a second"),
    ):
        axis(type="log", range=[log10(edge) for edge in limits], title_text=title, **full_ticks(*limits))


def _roof(figure: go.Figure, roof: Roof, colour: str, left: float, right: float) -> None:
    name, flat = escape(roof.verifier), roof.ceiling.gop_s_p50
    figure.add_scatter(
        x=[left, max(roof.ridge, left), right],
        y=[roof.allowed(left), flat, flat],
        mode="lines",
        line={"color": colour, "width": 1.5, "dash": "dash"},
        name=f"{name}: roof, flat at {flat:.0f}",
        legendgroup=roof.verifier,
        hovertemplate=(
            f"{name}: ceiling {flat:.0f} billion operations/s "
            f"({roof.ceiling.gop_s_p20:.0f}–{roof.ceiling.gop_s_p80:.0f})"
            f"<br>ridge at {roof.ridge:.1f} operations per byte<extra></extra>"
        ),
    )


def _possible(figure: go.Figure, roof: Roof, colour: str) -> None:
    """Hollow points: what the roof allows."""
    name = escape(roof.verifier)
    figure.add_scatter(
        x=[point.intensity for point in roof.points],
        y=[point.possible for point in roof.points],
        mode="markers",
        marker={"size": 11, "color": colour, "symbol": "circle-open", "line": {"width": 1.5}},
        name=f"{name}: possible",
        legendgroup=roof.verifier,
        customdata=[point.row.width for point in roof.points],
        hovertemplate=f"{name}, width %{{customdata}}: the roof allows %{{y:.0f}} billion operations/s<extra></extra>",
    )


def _measured(figure: go.Figure, roof: Roof, colour: str, side: str) -> None:
    """Solid points: what was reached, numbered by width. side: of the points, where the numbers stand."""
    name, points = escape(roof.verifier), roof.points
    middle = [point.measured for point in points]
    figure.add_scatter(
        x=[point.intensity for point in points],
        y=middle,
        error_y=error_bars([point.slow for point in points], middle, [point.fast for point in points], width=4),
        mode="markers+text",
        text=[str(point.row.width) for point in points],
        textposition=side,
        textfont={"size": 11, "color": colour},
        marker={"size": 8, "color": colour},
        name=f"{name}: measured",
        legendgroup=roof.verifier,
        customdata=[[point.row.width, point.row.ms_p50, point.row.bytes / 1e6] for point in points],
        hovertemplate=(
            f"{name}, width %{{customdata[0]}}: %{{y:.0f}} billion operations/s"
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
