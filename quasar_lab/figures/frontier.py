"""Distance from BF16 against bytes per step: which recipe is worth its bytes.

## Idea

KL is drawn on a logarithmic axis, since recipes differ by factors. BF16 itself has KL 0, which has no place on such an
axis. So BF16 is the vertical line at its bytes. Dotted lines show how many bytes weights of 4 and 2 bits would have.
They are a price, and no measurement.
"""

from collections.abc import Sequence
from math import log10

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from quasar_lab.evaluation.recipe_frontier import FrontierRow
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.style import BLUE, GREEN, GREY, INK, SOFT, escape, framed, label_room, origin_line
from quasar_lab.models.embedded import ID

FOUR_BIT = "the checkpoint was already 4-bit"
"""Said by every figure of low bits on the embedded model: its weights were rounded before we got them."""

LABEL_GAP = 0.07
"""The least distance of two labels, as a share of the axis."""


def frontier(rows: Sequence[FrontierRow]) -> Plot:
    """Above: KL(BF16‖V), mean and 99th percentile, by megabytes read per step. Below: top-1 agreement of each recipe.

    rows: what `frontier.measure_recipes` returns.
    """
    figure = make_subplots(
        rows=2,
        cols=1,
        row_heights=[0.62, 0.38],
        vertical_spacing=0.24,
        subplot_titles=("KL from BF16, nats a token", "same likeliest token as BF16"),
    )
    ordered = sorted(rows, key=lambda row: row.fidelity.kl_mean, reverse=True)
    names = [escape(row.recipe) for row in ordered]
    _distances(figure, ordered)
    _bytes_of_other_widths(figure, rows[0].step_bytes_bf16 / 1e6)
    _agreement(figure, ordered, names)
    _recipe_labels(figure, ordered, names)
    first = rows[0].fidelity
    facts = [f"{first.tokens} tokens in windows of {first.window}"]
    facts += [FOUR_BIT] if first.origin.model == ID else []
    return framed(
        figure,
        "Nearness to BF16, and its price in bytes",
        " · ".join(facts),
        origin_line(first.origin, recipe=""),
        height=640,
        left=label_room(names),
        head=24,
    )


def _distances(figure: go.Figure, ordered: Sequence[FrontierRow]) -> None:
    """Mean and 99th percentile of KL by megabytes, above."""
    for values, label, colour, symbol in (
        ([row.fidelity.kl_p99 for row in ordered], "99th percentile", GREY, "line-ew-open"),
        ([row.fidelity.kl_mean for row in ordered], "mean", BLUE, "circle"),
    ):
        figure.add_scatter(
            x=[row.step_bytes / 1e6 for row in ordered],
            y=values,
            mode="markers",
            marker={"size": 11, "color": colour, "symbol": symbol, "line": {"width": 2, "color": colour}},
            name=label,
            customdata=[[row.recipe, row.fidelity.tokens] for row in ordered],
            hovertemplate=f"%{{customdata[0]}}: {label} %{{y:.4f}} nats<br>"
            "%{x:.0f} MB a step, %{customdata[1]} tokens<extra></extra>",
            row=1,
            col=1,
        )
    figure.update_yaxes(type="log", range=_span(ordered), dtick=1, exponentformat="power", row=1, col=1)


def _drawn(rows: Sequence[FrontierRow]) -> list[float]:
    """All values of KL that a logarithmic axis can show."""
    return [value for row in rows for value in (row.fidelity.kl_mean, row.fidelity.kl_p99) if value > 0] or [1.0]


def _span(rows: Sequence[FrontierRow]) -> list[float]:
    """Powers of ten that the axis of KL spans."""
    values = _drawn(rows)
    return [log10(min(values)) - 0.3, log10(max(values)) + 0.5]


def _bytes_of_other_widths(figure: go.Figure, megabytes: float) -> None:
    """Lines where BF16 is, at `megabytes` a step, and where weights of 4 and 2 bits would be."""
    for words, share, dash in (("bf16: KL 0", 1.0, "solid"), ("4-bit weights", 0.25, "dot"), ("2-bit", 0.125, "dot")):
        figure.add_vline(x=share * megabytes, line={"color": GREY, "width": 1.5, "dash": dash}, row=1, col=1)
        figure.add_annotation(
            x=share * megabytes,
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
    title = {"title_text": "MB read per step", "title_font": {"size": 13}}
    figure.update_xaxes(**title, range=[0, 1.06 * megabytes], row=1, col=1)


def _agreement(figure: go.Figure, ordered: Sequence[FrontierRow], names: Sequence[str]) -> None:
    """Top-1 agreement of each recipe, below."""
    shares = [row.fidelity.top1_agreement for row in ordered]
    figure.add_bar(
        y=names,
        x=shares,
        orientation="h",
        marker={"color": GREEN},
        text=[f"{share:.1%}" for share in shares],
        textposition="outside",
        cliponaxis=False,
        customdata=[row.fidelity.flips for row in ordered],
        hovertemplate="%{y}: %{customdata} flips<extra></extra>",
        showlegend=False,
        row=2,
        col=1,
    )
    figure.update_xaxes(range=[0, 1.25], tickvals=[0, 0.25, 0.5, 0.75, 1], tickformat=".0%", row=2, col=1)
    figure.update_yaxes(autorange="reversed", row=2, col=1)


def _recipe_labels(figure: go.Figure, ordered: Sequence[FrontierRow], names: Sequence[str]) -> None:
    """The name of each recipe beside its point, above."""
    low, high = _span(ordered)
    least = min(_drawn(ordered))
    heights = [log10(max(row.fidelity.kl_mean, least)) for row in ordered]
    for row, name, height in zip(ordered, names, spread(heights, LABEL_GAP * (high - low)), strict=True):
        figure.add_annotation(
            x=row.step_bytes / 1e6,
            y=height,
            text=name,
            xshift=12,
            xanchor="left",
            showarrow=False,
            font={"size": 12, "color": INK},
            row=1,
            col=1,
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Places for the labels of points at `heights`, which fall. Labels are at least `gap` apart, and labels that would
    overlap stand around their common middle."""
    runs: list[list[float]] = []
    for height in heights:
        runs.append([height])
        while len(runs) > 1 and _middle(runs[-2]) - _middle(runs[-1]) < gap * (len(runs[-2]) + len(runs[-1])) / 2:
            last = runs.pop()
            runs[-1] += last
    return [_middle(run) + gap * ((len(run) - 1) / 2 - place) for run in runs for place in range(len(run))]


def _middle(run: Sequence[float]) -> float:
    return sum(run) / len(run)
