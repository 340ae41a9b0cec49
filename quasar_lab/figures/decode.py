"""Whole answers: what a faster verifier buys, and which part of the gain is the faster step.

## Idea

The figures show the 2×2 of {baseline verifier, INT8} × {plain, speculative}, per category of questions. A speedup alone
can mislead: INT8 text is not BF16 text, and text that happens to repeat itself more is drafted better. So the gain is
shown beside its factors, and beside what pass times measured on their own predict.
"""

from math import log2

import plotly.graph_objects as go

from quasar_lab.evaluation.decode_speed import DecodeResult
from quasar_lab.evaluation.speedup_table import SpeedupRow
from quasar_lab.evaluation.timed_answer import Arm
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LINE,
    ORANGE,
    SKY,
    escape,
    framed,
    interval_bars,
    label_room,
    origin_line,
)
from quasar_lab.support.result import Json

ARMS = (GREY, INK, SKY, BLUE)
"""Colours of the arms: plain ones light, speculative ones full."""

FACTORS = (
    ("step", "faster step", BLUE),
    ("acceptance", "more tokens a round", GREEN),
    ("other", "drafting, sampling, host", ORANGE),
)
"""Name of a factor in `SpeedupRow.factors`, its name in the legend, its colour."""

FACTOR_TICKS = (0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8)


def _label(arm: Arm) -> str:
    return escape(arm.verifier if arm.drafter == "none" else f"{arm.verifier} + {arm.drafter}")


def _origin(result: DecodeResult) -> str:
    """The stamp of a figure."""
    verifiers = dict.fromkeys(arm.verifier for arm in result.arms)
    return origin_line(result.origin, recipe=", ".join(verifiers), count=f"{result.prompts} prompts", timed=True)


def _conditions(result: DecodeResult) -> str:
    config = result.config
    return f"γ = {config.gamma}, T = {config.temperature:g}, at most {config.max_new_tokens} new tokens"


def _error_bars(rows: list[SpeedupRow]) -> Json:
    return interval_bars(rows, "speedup_low", "speedup", "speedup_high")


def speedup(result: DecodeResult | Json) -> Plot:
    """Time per token of the baseline over that of each arm, per category, with 95 % intervals; hollow: predicted.

    result: what `decode_benchmark.run` returns, or the JSON of `quasar-lab bench decode`.
    """
    result = DecodeResult.of(result)
    figure = go.Figure()
    arms = {arm: rows for arm, rows in result.compared().items() if arm != result.baseline}
    for place, (arm, rows) in enumerate(arms.items()):
        _speedups_of_arm(figure, _label(arm), rows, ARMS[(place + 1) % len(ARMS)])
    figure.add_hline(y=1, line={"color": LINE, "width": 2}, layer="below")
    figure.update_layout(scattermode="group", scattergap=0.4)
    figure.update_yaxes(title_text=f"speedup over {escape(result.baseline.verifier)}, plain", rangemode="tozero")
    return framed(
        figure,
        "What a faster verifier buys",
        f"95 % intervals over prompts · hollow: predicted · {_conditions(result)}",
        _origin(result),
        height=480,
    )


def _speedups_of_arm(figure: go.Figure, label: str, rows: list[SpeedupRow], colour: str) -> None:
    """Measured speedups with their intervals, and predicted ones beside them."""
    categories = [escape(row.label) for row in rows]
    figure.add_scatter(
        x=categories,
        y=[row.speedup for row in rows],
        error_y=_error_bars(rows),
        mode="markers",
        marker={"size": 10, "color": colour},
        name=label,
        offsetgroup=label,
        customdata=[[row.tau, row.tokens_per_second, row.prompts] for row in rows],
        hovertemplate=(
            f"{label}, %{{x}}<br>%{{y:.2f}} × · τ %{{customdata[0]:.2f}} · %{{customdata[1]:.0f}} tokens/s"
            "<br>%{customdata[2]} prompts<extra></extra>"
        ),
    )
    figure.add_scatter(
        x=categories,
        y=[row.predicted_speedup for row in rows],
        mode="markers",
        marker={"size": 13, "color": colour, "symbol": "diamond-open", "line": {"width": 1.5}},
        name=f"{label}, predicted",
        showlegend=False,
        offsetgroup=label,
        hovertemplate="predicted %{y:.2f} ×<extra></extra>",
    )


def speedup_factors(result: DecodeResult | Json, verifier: str, drafter: str) -> Plot:
    """The speedup of one arm per category as a product: step × acceptance × other, on a logarithmic axis.

    result: as in `speedup`.
    """
    result = DecodeResult.of(result)
    arm = Arm(verifier, drafter)
    rows = result.compared().get(arm, [])
    categories = [escape(row.label) for row in rows]
    figure = go.Figure()
    _factor_bars(figure, rows, categories)
    drawn = [value for bar in figure.data for value in bar.x]
    figure.add_vline(x=0, line={"color": GREY, "width": 1})
    figure.update_layout(barmode="group", bargap=0.3, legend_traceorder="normal")
    figure.update_xaxes(
        title_text="factor (logarithmic: bars add up)",
        range=[min(drawn, default=0.0) - 0.25, max(drawn, default=0.0) + 0.25],
        tickvals=[log2(tick) for tick in FACTOR_TICKS],
        ticktext=[f"{tick:g} ×" for tick in FACTOR_TICKS],
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    mean = "".join(f" · {row.label} {row.speedup:.2f} ×" for row in rows if row.is_mean)
    base = escape(result.baseline.verifier)
    return framed(
        figure,
        "Where the speedup comes from",
        f"{_label(arm)} over {base}, plain{mean} · {_conditions(result)}",
        _origin(result),
        height=220 + 48 * len(rows),
        left=label_room(categories),
    )


def _factor_bars(figure: go.Figure, rows: list[SpeedupRow], categories: list[str]) -> None:
    """A bar per factor and category."""
    for name, label, colour in FACTORS:
        figure.add_bar(
            y=categories,
            x=[log2(row.factors[name]) for row in rows],
            orientation="h",
            name=label,
            marker={"color": colour},
            text=[f"{row.factors[name]:.2f}" for row in rows],
            textposition="outside",
            textfont={"size": 11},
            constraintext="none",
            cliponaxis=False,
            customdata=[row.speedup for row in rows],
            hovertemplate=f"{label}: %{{text}} × of %{{customdata:.2f}} ×<extra></extra>",
        )


def predicted_speedup(result: DecodeResult | Json) -> Plot:
    """Measured speedup over the predicted one, a point per arm and category, with 95 % intervals, beside the diagonal.

    The prediction puts together pass times that were measured on their own with the widths that the rounds had: a point
    on the diagonal is understood, one off it is not. Raises InputError where nothing was predicted. result: as in
    `speedup`.
    """
    result = DecodeResult.of(result)
    furthest = result.furthest_from_prediction()
    figure = go.Figure()
    low, high = _diagonal(figure, [row for rows in result.predicted().values() for row in rows])
    for place, (arm, rows) in enumerate(result.predicted().items()):
        _predictions_of_arm(figure, _label(arm), rows, ARMS[(place + 1) % len(ARMS)])
    figure.update_xaxes(title_text="predicted speedup", range=[low, high], ticksuffix=" ×")
    figure.update_yaxes(title_text="measured speedup", range=[low, high], ticksuffix=" ×")
    away = (furthest.measured_over_predicted or 1.0) - 1
    subtitle = (
        "circles: categories, with 95 % intervals · diamonds: their geometric mean · furthest from the diagonal: "
        f"{_label(furthest.arm)}, {escape(furthest.label)}, {away:+.0%} · {_conditions(result)}"
    )
    return framed(figure, "Predicted against measured", subtitle, _origin(result), height=540)


def _diagonal(figure: go.Figure, rows: list[SpeedupRow]) -> tuple[float, float]:
    """Draws where measured and predicted are equal; returns the range of both axes, which holds all intervals."""
    edges = [
        edge for row in rows for edge in (row.predicted_speedup, row.speedup_low, row.speedup_high) if edge is not None
    ]
    low, high = min(*edges, 1.0) * 0.93, max(edges) * 1.05
    figure.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"color": GREY, "width": 1.5, "dash": "dash"},
        name="measured = predicted",
        hoverinfo="skip",
    )
    return low, high


def _predictions_of_arm(figure: go.Figure, label: str, rows: list[SpeedupRow], colour: str) -> None:
    """A point per row: a circle, or a larger diamond for the mean."""
    figure.add_scatter(
        x=[row.predicted_speedup for row in rows],
        y=[row.speedup for row in rows],
        error_y=_error_bars(rows),
        mode="markers",
        marker={
            "size": [13 if row.is_mean else 8 for row in rows],
            "symbol": ["diamond" if row.is_mean else "circle" for row in rows],
            "color": colour,
            "line": {"width": 1, "color": "white"},
        },
        name=label,
        customdata=[[escape(row.label), row.prompts, row.measured_over_predicted] for row in rows],
        hovertemplate=(
            f"{label}, %{{customdata[0]}}<br>measured %{{y:.2f}} ×, predicted %{{x:.2f}} ×"
            "<br>%{customdata[1]} prompts<extra></extra>"
        ),
    )
