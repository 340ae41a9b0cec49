"""Whole answers: what a faster verifier buys, and which part of the gain is the faster step.

Always the 2×2, {baseline verifier, INT8} × {plain, speculative}, per category. A speedup alone can mislead: INT8 text
is not BF16 text, and text that happens to repeat itself more is drafted better. So the gain is shown beside its
factors, and beside what step times measured on their own predict.
"""

from math import log2
from typing import Any

import plotly.graph_objects as go

from quasar_lab.figures.style import BLUE, GREEN, GREY, INK, LINE, ORANGE, SKY, finish, interval

ARMS = (GREY, INK, SKY, BLUE)
"""Colours of the arms: plain ones light, speculative ones full."""

FACTORS = (
    ("step_factor", "faster step", BLUE),
    ("acceptance_factor", "more tokens a round", GREEN),
    ("other_factor", "drafting, sampling, host", ORANGE),
)


def _rows(result: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows with a speedup by arm, categories in a fixed order with the mean last."""
    arms: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(result["runs"], key=lambda row: (row["category"] == "mean", row["category"])):
        if row["speedup"] is not None:
            arms.setdefault((row["verifier"], row["drafter"]), []).append(row)
    return arms


def _identity(result: dict[str, Any]) -> dict[str, Any]:
    names = list(dict.fromkeys(row["verifier"] for row in result["runs"]))
    return {**result, "recipe": ", ".join(names)}


def _conditions(result: dict[str, Any]) -> str:
    settings = result["settings"]
    return f"γ = {settings['gamma']}, T = {settings['temperature']:g}, at most {settings['max_new_tokens']} new tokens"


def speedup(result: dict[str, Any]) -> go.Figure:
    """Time per token of the baseline over that of each arm, per category, with 95 % intervals; hollow: predicted.

    result: what `decode_benchmark.run` returns, or the JSON of `quasar-lab bench decode`.
    """
    figure, base = go.Figure(), (result["baseline"]["verifier"], result["baseline"]["drafter"])
    arms = {arm: rows for arm, rows in _rows(result).items() if arm != base}
    for place, ((verifier, drafter), rows) in enumerate(arms.items()):
        label = verifier if drafter == "none" else f"{verifier} + {drafter}"
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
    figure.update_yaxes(title_text=f"speedup over {base[0]}, plain", rangemode="tozero")
    title = "What a faster verifier buys"
    return finish(
        figure,
        title,
        f"95 % intervals over prompts, hollow: predicted · {_conditions(result)}",
        _identity(result),
        timed=True,
        height=460,
    )


def speedup_factors(result: dict[str, Any], verifier: str, drafter: str) -> go.Figure:
    """The speedup of one arm per category as a product: step × acceptance × other, on a logarithmic axis."""
    rows = _rows(result).get((verifier, drafter), [])
    figure = go.Figure()
    categories = [row["category"] for row in rows]
    for key, label, colour in FACTORS:
        figure.add_bar(
            x=categories,
            y=[log2(row[key]) for row in rows],
            name=label,
            marker={"color": colour},
            text=[f"{row[key]:.2f}" for row in rows],
            textposition="outside",
            cliponaxis=False,
            customdata=[row["speedup"] for row in rows],
            hovertemplate=f"{label}: %{{text}} × of %{{customdata:.2f}} ×<extra></extra>",
        )
    ticks = (0.5, 0.7, 1, 1.4, 2, 2.8, 4)
    figure.add_hline(y=0, line={"color": GREY, "width": 1})
    figure.update_layout(barmode="group", bargap=0.3)
    figure.update_yaxes(
        title_text="factor (logarithmic: bars add up)",
        tickvals=[log2(tick) for tick in ticks],
        ticktext=[f"{t:g} ×" for t in ticks],
    )
    mean = next((f" · mean {row['speedup']:.2f} ×" for row in rows if row["category"] == "mean"), "")
    subtitle = f"{verifier} + {drafter} over {result['baseline']['verifier']}, plain{mean} · {_conditions(result)}"
    return finish(figure, "Where the speedup comes from", subtitle, _identity(result), timed=True, height=460)
