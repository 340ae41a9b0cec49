"""How far W8A8 is from BF16, token by token, and why flips are close calls.

KL spreads over many powers of ten, so its axis is logarithmic: most positions hardly differ, and a few carry the mean.
A flip needs more than a large KL, it needs a close call: two tokens that BF16 itself finds about equally likely. So its
margins (top-1 − top-2 logit) at flips stand beside its margins everywhere.
"""

from collections.abc import Mapping
from itertools import pairwise
from math import log10
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from quasar_lab.figures.style import BLUE, GREY, INK, SKY, VERMILION, escape, framed, visible

LOWEST_KL = 1e-9
"""Where an axis of KL ends; what is below, zero among it, is drawn there."""


def _identity(result: Mapping[str, Any]) -> dict[str, Any]:
    return {**result, "recipe": f"{result['verifier']} against {result['base']}"}


def divergence(result: Mapping[str, Any]) -> go.Figure:
    """Left: KL at each of the first positions, flips marked. Right: how KL is spread over all positions.

    result: what `fidelity.compare` or `fidelity.own_text` returns.
    """
    series, verifier, base = result["series"], escape(result["verifier"]), escape(result["base"])
    places = range(len(series["kl"]))
    heights = [log10(max(value, LOWEST_KL)) for value in series["kl"]]
    figure = make_subplots(rows=1, cols=2, column_widths=[0.76, 0.24], shared_yaxes=True, horizontal_spacing=0.03)
    flips = [place for place in places if series["expected"][place] != series["got"][place]]
    same = sorted(set(places) - set(flips))
    for name, chosen, marker in (
        ("same likeliest token", same, {"size": 5, "color": SKY, "line": {"width": 0.7, "color": BLUE}}),
        ("flip", flips, {"size": 9, "color": VERMILION, "symbol": "x"}),
    ):
        figure.add_scatter(
            x=list(chosen),
            y=[heights[place] for place in chosen],
            mode="markers",
            marker=marker,
            name=name,
            customdata=[[series["kl"][place], *_choices(series, place), series["margin"][place]] for place in chosen],
            hovertemplate=(
                f"position %{{x}}: KL %{{customdata[0]:.2g}} nats"
                f"<br>{base}: %{{customdata[1]}}, by %{{customdata[3]:.2f}}<br>{verifier}: %{{customdata[2]}}"
                "<extra></extra>"
            ),
            row=1,
            col=1,
        )
    _spread(figure, result)
    figure.update_xaxes(title_text="position", title_standoff=8, row=1, col=1)
    figure.update_xaxes(title_text="of all", title_standoff=8, tickformat=".0%", nticks=3, row=1, col=2)
    figure.update_yaxes(title_text="KL in nats", row=1, col=1)
    powers = range(-9, 3)
    figure.update_yaxes(
        tickvals=list(powers),
        ticktext=[f"{'≤ ' * (power == powers[0])}10<sup>{power}</sup>" for power in powers],
        range=_reach(result),
        row=1,
    )
    for value, dash in ((result["kl_mean"], "dash"), (result["kl_p99"], "dot")):
        if value > LOWEST_KL:
            figure.add_hline(y=log10(value), line={"color": INK, "width": 1, "dash": dash})
    facts = [
        f"mean {result['kl_mean']:.2g} nats (dashed), 99 % below {result['kl_p99']:.2g} (dotted)",
        f"{result['flips']} flips in {result['tokens']:,} tokens",
    ]
    figure.update_layout(bargap=0.05)
    return framed(figure, "How far apart, token by token", " · ".join(facts), _identity(result), height=500, foot=24)


def _choices(series: Mapping[str, Any], place: int) -> list[str]:
    """Both models' likeliest token, as text for a label."""
    return [escape(visible(series[name][place])) for name in ("expected", "got")]


def _middles(edges: list[float]) -> list[float]:
    """Of bins on a logarithmic scale, as powers of ten: bars as wide as their bins need an axis of these."""
    return [log10(low * high) / 2 for low, high in pairwise(edges)]


def _reach(result: Mapping[str, Any]) -> list[float]:
    """Powers of ten that the axis of KL spans: those where something was counted."""
    table = result["kl_histogram"]
    edges = [log10(edge) for edge in table["edges"]]
    filled = [place for place, count in enumerate(table["counts"]) if count]
    if not filled:
        return [log10(LOWEST_KL) - 0.2, 0.0]
    low = log10(LOWEST_KL) if table["below"] else edges[filled[0]]
    return [low - 0.2, edges[filled[-1] + 1] + 0.3]


def _spread(figure: go.Figure, result: Mapping[str, Any]) -> None:
    """Shares of all positions by KL, beside the axis that shows the first of them."""
    table = result["kl_histogram"]
    edges, counts = table["edges"], _counts(table)
    figure.add_bar(
        orientation="h",
        x=[count / result["tokens"] for count in counts],
        y=_middles(edges),
        marker={"color": SKY, "line": {"width": 0}},
        name="share of all positions",
        showlegend=False,
        customdata=[[low, high, count] for low, high, count in zip(edges, edges[1:], counts, strict=False)],
        hovertemplate="KL %{customdata[0]:.1e} to %{customdata[1]:.1e}: %{customdata[2]} positions<extra></extra>",
        row=1,
        col=2,
    )


def flip_margins(result: Mapping[str, Any]) -> go.Figure:
    """BF16's margin at flips against its margin at all positions, as shares of each.

    result: what `fidelity.compare` or `fidelity.own_text` returns.
    """
    base, tables = escape(result["base"]), result["margin_histogram"]
    edges, everywhere = tables["all"]["edges"], _counts(tables["all"])
    flipped = _counts(tables["flips"])
    figure = go.Figure()
    for name, counts, total, colour in (
        ("all positions", everywhere, result["tokens"], GREY),
        ("flips", flipped, result["flips"], VERMILION),
    ):
        figure.add_bar(
            x=_middles(edges),
            y=[count / max(total, 1) for count in counts],
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            opacity=0.7,
            customdata=[
                [low, high, some, every]
                for low, high, some, every in zip(edges, edges[1:], flipped, everywhere, strict=False)
            ],
            hovertemplate=(
                f"margin %{{customdata[0]:.2g}} to %{{customdata[1]:.2g}}: %{{y:.1%}} of {name}"
                "<br>%{customdata[2]} of %{customdata[3]} positions here flip<extra></extra>"
            ),
        )
    filled = [place for place, count in enumerate(everywhere) if count] or [0]
    figure.update_layout(barmode="overlay", bargap=0.05)
    figure.update_xaxes(
        title_text=f"margin of {base}: top-1 − top-2 logit",
        title_standoff=8,
        range=[log10(edges[filled[0]]) - 0.05, log10(edges[filled[-1] + 1]) + 0.05],
        tickvals=list(range(-3, 3)),
        ticktext=["0.001", "0.01", "0.1", "1", "10", "100"],
    )
    figure.update_yaxes(title_text="share", tickformat=".0%", rangemode="tozero")
    return framed(figure, "Flips are close calls", _margin_facts(result), _identity(result), height=440, foot=24)


def _counts(table: Mapping[str, Any]) -> list[int]:
    """Counts with what lies beyond the ends put into the last bins."""
    counts = [*table["counts"]]
    counts[0] += table["below"]
    counts[-1] += table["above"]
    return counts


def _margin_facts(result: Mapping[str, Any]) -> str:
    usual = result["margin_p50"]
    if not result["flips"]:
        return f"no flips in {result['tokens']:,} tokens · half of all positions have a margin below {usual:.2g}"
    return (
        f"half of the {result['flips']} flips have a margin below {result['flip_margin_p50']:.2g} · "
        f"of all {result['tokens']:,} positions, half are below {usual:.2g}"
    )
