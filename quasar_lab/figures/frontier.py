"""Distance from BF16 against bytes per step: which recipe is worth its bytes.

KL is drawn on a logarithmic axis, since recipes differ by factors. BF16 itself, at KL 0, has no place there: it is the
vertical line at its bytes. Dotted lines show where weights of 4 and 2 bits would stand: a price, no measurement.
"""

from collections.abc import Sequence
from math import log10
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from quasar_lab.figures.style import BLUE, GREEN, GREY, INK, SOFT, escape, framed
from quasar_lab.models.embedded import ID

FOUR_BIT = "the checkpoint was already 4-bit"
"""Said by every figure of low bits on the embedded model: its weights were rounded before we saw them."""


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Places for labels of points at `heights` (falling): at least `gap` apart, each crowd of them about its middle."""
    runs: list[list[float]] = []
    for height in heights:
        runs.append([height])
        while len(runs) > 1 and _middle(runs[-2]) - _middle(runs[-1]) < gap * (len(runs[-2]) + len(runs[-1])) / 2:
            last = runs.pop()
            runs[-1] += last
    return [_middle(run) + gap * ((len(run) - 1) / 2 - place) for run in runs for place in range(len(run))]


def _middle(run: Sequence[float]) -> float:
    return sum(run) / len(run)


def frontier(rows: Sequence[dict[str, Any]]) -> go.Figure:
    """Above: KL(BF16‖V), mean and 99th percentile, by megabytes read per step. Below: top-1 agreement of each recipe.

    rows: what `frontier.measure` returns.
    """
    figure = make_subplots(
        rows=2,
        cols=1,
        row_heights=[0.62, 0.38],
        vertical_spacing=0.24,
        subplot_titles=("KL from BF16, nats a token", "same likeliest token as BF16"),
    )
    ordered = sorted(rows, key=lambda row: row["kl_mean"], reverse=True)
    names = [escape(row["recipe"]) for row in ordered]
    for key, label, colour, symbol in (
        ("kl_p99", "99th percentile", GREY, "line-ew-open"),
        ("kl_mean", "mean", BLUE, "circle"),
    ):
        figure.add_scatter(
            x=[row["step_bytes"] / 1e6 for row in ordered],
            y=[row[key] for row in ordered],
            mode="markers",
            marker={"size": 11, "color": colour, "symbol": symbol, "line": {"width": 2, "color": colour}},
            name=label,
            customdata=[[row["recipe"], row["tokens"]] for row in ordered],
            hovertemplate=f"%{{customdata[0]}}: {label} %{{y:.4f}} nats<br>"
            "%{x:.0f} MB a step, %{customdata[1]} tokens<extra></extra>",
            row=1,
            col=1,
        )
    whole = rows[0]["step_bytes_bf16"] / 1e6
    lines = (("bf16: KL 0", 1.0, "solid"), ("4-bit weights", 0.25, "dot"), ("2-bit", 0.125, "dot"))
    for words, share, dash in lines:
        figure.add_vline(x=share * whole, line={"color": GREY, "width": 1.5, "dash": dash}, row=1, col=1)
        figure.add_annotation(
            x=share * whole,
            y=1,
            yref="y domain",
            text=words,
            textangle=-90,
            xshift=-9,
            yanchor="top",
            showarrow=False,
            font={"size": 11, "color": SOFT},
            row=1,
            col=1,
        )
    figure.add_bar(
        y=names,
        x=[row["top1_agreement"] for row in ordered],
        orientation="h",
        marker={"color": GREEN},
        text=[f"{row['top1_agreement']:.1%}" for row in ordered],
        textposition="inside",
        insidetextanchor="end",
        textfont={"color": "white"},
        customdata=[row["flips"] for row in ordered],
        hovertemplate="%{y}: %{customdata} flips<extra></extra>",
        showlegend=False,
        row=2,
        col=1,
    )
    values = [row[key] for row in rows for key in ("kl_mean", "kl_p99") if row[key] > 0] or [1.0]
    figure.update_xaxes(title_text="MB read per step", title_font={"size": 13}, range=[0, 1.06 * whole], row=1, col=1)
    span = [log10(min(values)) - 0.3, log10(max(values)) + 0.5]
    heights = [log10(max(row["kl_mean"], min(values))) for row in ordered]
    for row, name, height in zip(ordered, names, spread(heights, 0.07 * (span[1] - span[0])), strict=True):
        figure.add_annotation(
            x=row["step_bytes"] / 1e6,
            y=height,
            text=name,
            xshift=12,
            xanchor="left",
            showarrow=False,
            font={"size": 12, "color": INK},
            row=1,
            col=1,
        )
    figure.update_yaxes(type="log", range=span, dtick=1, exponentformat="power", row=1, col=1)
    least = min(row["top1_agreement"] for row in rows)
    figure.update_xaxes(range=[max(0.0, least - 0.1), 1.0], tickformat=".0%", row=2, col=1)
    figure.update_yaxes(autorange="reversed", row=2, col=1)
    identity = {key: rows[0][key] for key in ("model", "device", "backend")}
    facts = [f"{rows[0]['tokens']} tokens in windows of {rows[0]['window']}"]
    facts += [FOUR_BIT] if rows[0]["model"] == ID else []
    return framed(
        figure,
        "Nearness to BF16, and its price in bytes",
        " · ".join(facts),
        identity,
        height=640,
        left=12 + 7 * max(map(len, names)),
        head=24,
    )
