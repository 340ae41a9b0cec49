"""Whole answers: what a faster verifier buys, and which part of the gain is the faster step.

Always the 2×2, {baseline verifier, INT8} × {plain, speculative}, per category. A speedup alone can mislead: INT8 text
is not BF16 text, and text that happens to repeat itself more is drafted better. So the gain is shown beside its
factors, and beside what step times measured on their own predict.
"""

from math import log2
from typing import Any

import plotly.graph_objects as go

from quasar_lab.figures.style import BLUE, GREEN, GREY, INK, LINE, ORANGE, SKY, escape, framed, interval
from quasar_lab.support.errors import InputError

ARMS = (GREY, INK, SKY, BLUE)
"""Colours of the arms: plain ones light, speculative ones full."""

FACTORS = (
    ("step_factor", "faster step", BLUE),
    ("acceptance_factor", "more tokens a round", GREEN),
    ("other_factor", "drafting, sampling, host", ORANGE),
)


def _arm(row: dict[str, Any]) -> tuple[str, str]:
    return row["verifier"], row["drafter"]


def _label(verifier: str, drafter: str) -> str:
    return escape(verifier if drafter == "none" else f"{verifier} + {drafter}")


def _rows(result: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows with a speedup by arm, categories in a fixed order with the mean last."""
    arms: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(result["runs"], key=lambda row: (row["category"] == "mean", row["category"])):
        if row["speedup"] is not None:
            arms.setdefault(_arm(row), []).append({**row, "category": escape(row["category"])})
    return arms


def _identity(result: dict[str, Any]) -> dict[str, Any]:
    names = list(dict.fromkeys(row["verifier"] for row in result["runs"]))
    prompts = sum(
        row["prompts"] for row in result["runs"] if _arm(row) == _arm(result["baseline"]) and row["category"] != "mean"
    )
    return {**result, "recipe": ", ".join(names), "prompts": prompts}


def _conditions(result: dict[str, Any]) -> str:
    settings = result["settings"]
    return f"γ = {settings['gamma']}, T = {settings['temperature']:g}, at most {settings['max_new_tokens']} new tokens"


def speedup(result: dict[str, Any]) -> go.Figure:
    """Time per token of the baseline over that of each arm, per category, with 95 % intervals; hollow: predicted.

    result: what `decode_benchmark.run` returns, or the JSON of `quasar-lab bench decode`.
    """
    figure, base = go.Figure(), _arm(result["baseline"])
    arms = {arm: rows for arm, rows in _rows(result).items() if arm != base}
    for place, ((verifier, drafter), rows) in enumerate(arms.items()):
        label = _label(verifier, drafter)
        colour = ARMS[(place + 1) % len(ARMS)]
        categories, values = [row["category"] for row in rows], [row["speedup"] for row in rows]
        figure.add_scatter(
            x=categories,
            y=values,
            error_y=interval(rows, "speedup_low", "speedup", "speedup_high"),
            mode="markers",
            marker={"size": 10, "color": colour},
            name=label,
            offsetgroup=label,
            customdata=[[row["mean_acceptance_length"], row["tokens_per_second"], row["prompts"]] for row in rows],
            hovertemplate=(
                f"{label}, %{{x}}<br>%{{y:.2f}} × · τ %{{customdata[0]:.2f}} · %{{customdata[1]:.0f}} tokens/s"
                "<br>%{customdata[2]} prompts<extra></extra>"
            ),
        )
        figure.add_scatter(
            x=categories,
            y=[row["predicted_speedup"] for row in rows],
            mode="markers",
            marker={"size": 13, "color": colour, "symbol": "diamond-open", "line": {"width": 1.5}},
            name=f"{label}, predicted",
            showlegend=False,
            offsetgroup=label,
            hovertemplate="predicted %{y:.2f} ×<extra></extra>",
        )
    figure.add_hline(y=1, line={"color": LINE, "width": 2}, layer="below")
    figure.update_layout(scattermode="group", scattergap=0.4)
    figure.update_yaxes(title_text=f"speedup over {escape(base[0])}, plain", rangemode="tozero")
    title = "What a faster verifier buys"
    return framed(
        figure,
        title,
        f"95 % intervals over prompts · hollow: predicted · {_conditions(result)}",
        _identity(result),
        timed=True,
        height=480,
    )


def speedup_factors(result: dict[str, Any], verifier: str, drafter: str) -> go.Figure:
    """The speedup of one arm per category as a product: step × acceptance × other, on a logarithmic axis."""
    rows = _rows(result).get((verifier, drafter), [])
    figure = go.Figure()
    categories = [row["category"] for row in rows]
    for key, label, colour in FACTORS:
        figure.add_bar(
            y=categories,
            x=[log2(row[key]) for row in rows],
            orientation="h",
            name=label,
            marker={"color": colour},
            text=[f"{row[key]:.2f}" for row in rows],
            textposition="outside",
            textfont={"size": 11},
            constraintext="none",
            cliponaxis=False,
            customdata=[row["speedup"] for row in rows],
            hovertemplate=f"{label}: %{{text}} × of %{{customdata:.2f}} ×<extra></extra>",
        )
    ticks = (0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8)
    drawn = [value for bar in figure.data for value in bar.x]
    figure.add_vline(x=0, line={"color": GREY, "width": 1})
    figure.update_layout(barmode="group", bargap=0.3, legend_traceorder="normal")
    figure.update_xaxes(
        title_text="factor (logarithmic: bars add up)",
        range=[min(drawn, default=0.0) - 0.25, max(drawn, default=0.0) + 0.25],
        tickvals=[log2(tick) for tick in ticks],
        ticktext=[f"{t:g} ×" for t in ticks],
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    mean = next((f" · mean {row['speedup']:.2f} ×" for row in rows if row["category"] == "mean"), "")
    base = escape(result["baseline"]["verifier"])
    left, height = min(24 + 7 * max(map(len, categories), default=0), 150), 220 + 48 * len(rows)
    subtitle = f"{_label(verifier, drafter)} over {base}, plain{mean} · {_conditions(result)}"
    return framed(
        figure, "Where the speedup comes from", subtitle, _identity(result), timed=True, height=height, left=left
    )


def predicted_speedup(result: dict[str, Any]) -> go.Figure:
    """Measured speedup over the predicted one, a point per arm and category, with 95 % intervals, beside the diagonal.

    The prediction puts together step times that were measured on their own with the widths that the rounds had: a point
    on the diagonal is understood, one off it is not. Raises InputError where nothing was predicted.
    """
    base = _arm(result["baseline"])
    arms = {arm: [row for row in rows if row["predicted_speedup"] is not None] for arm, rows in _rows(result).items()}
    arms = {arm: rows for arm, rows in arms.items() if rows and arm != base}
    if not arms:
        raise InputError("nothing is predicted in this result; accepted: a `bench decode` of two arms or more")
    figure = go.Figure()
    for place, ((verifier, drafter), rows) in enumerate(arms.items()):
        label = _label(verifier, drafter)
        figure.add_scatter(
            x=[row["predicted_speedup"] for row in rows],
            y=[row["speedup"] for row in rows],
            error_y=interval(rows, "speedup_low", "speedup", "speedup_high"),
            mode="markers",
            marker={
                "size": [13 if row["category"] == "mean" else 8 for row in rows],
                "symbol": ["diamond" if row["category"] == "mean" else "circle" for row in rows],
                "color": ARMS[(place + 1) % len(ARMS)],
                "line": {"width": 1, "color": "white"},
            },
            name=label,
            customdata=[[row["category"], row["prompts"], row["speedup"] / row["predicted_speedup"]] for row in rows],
            hovertemplate=(
                f"{label}, %{{customdata[0]}}<br>measured %{{y:.2f}} ×, predicted %{{x:.2f}} ×"
                "<br>%{customdata[1]} prompts<extra></extra>"
            ),
        )
    rows = [row for found in arms.values() for row in found]
    edges = [row[key] for row in rows for key in ("predicted_speedup", "speedup_low", "speedup_high")]
    low, high = min(*edges, 1.0) * 0.93, max(edges) * 1.05
    figure.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"color": GREY, "width": 1.5, "dash": "dash"},
        name="measured = predicted",
        hoverinfo="skip",
    )
    figure.data = (figure.data[-1], *figure.data[:-1])  # below the points
    largest = max(rows, key=lambda row: abs(log2(row["speedup"] / row["predicted_speedup"])))
    figure.update_xaxes(title_text="predicted speedup", range=[low, high], ticksuffix=" ×")
    figure.update_yaxes(title_text="measured speedup", range=[low, high], ticksuffix=" ×")
    away = largest["speedup"] / largest["predicted_speedup"] - 1
    subtitle = (
        f"circles: categories, with 95 % intervals · diamonds: their mean · furthest from the diagonal: "
        f"{_label(*_arm(largest))}, {largest['category']}, {away:+.0%} · {_conditions(result)}"
    )
    return framed(figure, "Predicted against measured", subtitle, _identity(result), timed=True, height=540)
