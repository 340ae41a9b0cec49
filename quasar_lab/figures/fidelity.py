"""How far a verifier is from BF16, token by token, and why its flips are close calls.

## Idea

KL spreads over many powers of ten, so its axis is logarithmic. Most positions hardly differ, and a few of them make up
most of the mean. A flip needs two tokens that BF16 itself finds about equally likely. So the second figure shows the
margins of BF16 (top-1 − top-2 logit) at flips beside its margins at all positions.
"""

from itertools import pairwise
from math import log10

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from quasar_lab.evaluation.fidelity import Fidelity, Series
from quasar_lab.evaluation.histogram import Histogram
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.style import BLUE, GREY, INK, SKY, VERMILION, escape, framed, origin_line, visible

LOWEST_KL = 1e-9
"""Where an axis of KL ends. What is below, zero among it, is drawn there."""


def divergence(result: Fidelity) -> Plot:
    """Left: KL at each of the first positions, flips marked. Right: how KL is spread over all positions.

    result: what `fidelity.compare` or `fidelity.on_own_answers` returns.
    """
    figure = make_subplots(rows=1, cols=2, column_widths=[0.76, 0.24], shared_yaxes=True, horizontal_spacing=0.03)
    _positions(figure, result)
    _shares_by_kl(figure, result)
    _axes_of_kl(figure, result.kl_histogram)
    for value, dash in ((result.kl_mean, "dash"), (result.kl_p99, "dot")):
        if value > LOWEST_KL:
            figure.add_hline(y=log10(value), line={"color": INK, "width": 1, "dash": dash})
    facts = [
        f"mean {result.kl_mean:.2g} nats (dashed), 99 % below {result.kl_p99:.2g} (dotted)",
        f"{result.flips} flips in {result.tokens:,} tokens",
    ]
    figure.update_layout(bargap=0.05)
    return framed(figure, "How far apart, token by token", " · ".join(facts), _origin(result), height=500, foot=24)


def _origin(result: Fidelity) -> str:
    return origin_line(result.origin, recipe=f"{result.verifier} against {result.base}")


def _positions(figure: go.Figure, result: Fidelity) -> None:
    """A point for each of the first positions, on the left. Flips are points of their own kind."""
    series = result.series
    verifier, base = escape(result.verifier), escape(result.base)
    places = range(len(series.kl))
    flips = [place for place in places if series.expected[place] != series.got[place]]
    same = sorted(set(places) - set(flips))
    for name, chosen, marker in (
        ("same likeliest token", same, {"size": 5, "color": SKY, "line": {"width": 0.7, "color": BLUE}}),
        ("flip", flips, {"size": 9, "color": VERMILION, "symbol": "x"}),
    ):
        figure.add_scatter(
            x=chosen,
            y=[log10(max(series.kl[place], LOWEST_KL)) for place in chosen],
            mode="markers",
            marker=marker,
            name=name,
            customdata=[[series.kl[place], *_choices(series, place), series.margin[place]] for place in chosen],
            hovertemplate=(
                f"position %{{x}}: KL %{{customdata[0]:.2g}} nats"
                f"<br>{base}: %{{customdata[1]}}, by %{{customdata[3]:.2f}}<br>{verifier}: %{{customdata[2]}}"
                "<extra></extra>"
            ),
            row=1,
            col=1,
        )


def _choices(series: Series, place: int) -> list[str]:
    """Both models' likeliest token, as text for a label."""
    return [escape(visible(pieces[place])) for pieces in (series.expected, series.got)]


def _shares_by_kl(figure: go.Figure, result: Fidelity) -> None:
    """Shares of all positions by KL, on the right."""
    edges = result.kl_histogram.edges
    counts = result.kl_histogram.counts_with_ends()
    figure.add_bar(
        orientation="h",
        x=[count / result.tokens for count in counts],
        y=_middles(edges),
        marker={"color": SKY, "line": {"width": 0}},
        name="share of all positions",
        showlegend=False,
        customdata=[[low, high, count] for (low, high), count in zip(pairwise(edges), counts, strict=True)],
        hovertemplate="KL %{customdata[0]:.1e} to %{customdata[1]:.1e}: %{customdata[2]} positions<extra></extra>",
        row=1,
        col=2,
    )


def _middles(edges: list[float]) -> list[float]:
    """Middles of bins on a logarithmic scale, as powers of ten: the axis has powers of ten as its numbers, so that bars
    are as wide as their bins."""
    return [log10(low * high) / 2 for low, high in pairwise(edges)]


def _axes_of_kl(figure: go.Figure, histogram: Histogram) -> None:
    figure.update_xaxes(title_text="position", title_standoff=8, row=1, col=1)
    figure.update_xaxes(title_text="of all", title_standoff=8, tickformat=".0%", nticks=3, row=1, col=2)
    figure.update_yaxes(title_text="KL in nats", row=1, col=1)
    powers = range(-9, 3)
    figure.update_yaxes(
        tickvals=list(powers),
        ticktext=[f"{'≤ ' * (power == powers[0])}10<sup>{power}</sup>" for power in powers],
        range=_range_of_kl(histogram),
        row=1,
    )


def _range_of_kl(histogram: Histogram) -> list[float]:
    """Powers of ten that the axis of KL spans: those where something was counted."""
    edges = [log10(edge) for edge in histogram.edges]
    filled = [place for place, count in enumerate(histogram.counts) if count]
    if not filled:
        return [log10(LOWEST_KL) - 0.2, 0.0]
    low = log10(LOWEST_KL) if histogram.below else edges[filled[0]]
    return [low - 0.2, edges[filled[-1] + 1] + 0.3]


def flip_margins(result: Fidelity) -> Plot:
    """BF16's margins at flips against its margins at all positions, as shares of each.

    result: what `fidelity.compare` or `fidelity.on_own_answers` returns.
    """
    edges = result.margin_histogram.all.edges
    everywhere = result.margin_histogram.all.counts_with_ends()
    flipped = result.margin_histogram.flips.counts_with_ends()
    bins = [
        [low, high, flips, positions]
        for (low, high), flips, positions in zip(pairwise(edges), flipped, everywhere, strict=True)
    ]
    figure = go.Figure()
    for name, counts, total, colour in (
        ("all positions", everywhere, result.tokens, GREY),
        ("flips", flipped, result.flips, VERMILION),
    ):
        figure.add_bar(
            x=_middles(edges),
            y=[count / max(total, 1) for count in counts],
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            opacity=0.7,
            customdata=bins,
            hovertemplate=(
                f"margin %{{customdata[0]:.2g}} to %{{customdata[1]:.2g}}: %{{y:.1%}} of {name}"
                "<br>%{customdata[2]} of %{customdata[3]} positions here flip<extra></extra>"
            ),
        )
    figure.update_layout(barmode="overlay", bargap=0.05)
    _axes_of_margins(figure, result)
    return framed(figure, "Flips are close calls", _margin_facts(result), _origin(result), height=440, foot=24)


def _axes_of_margins(figure: go.Figure, result: Fidelity) -> None:
    histogram = result.margin_histogram.all
    edges = histogram.edges
    filled = [place for place, count in enumerate(histogram.counts_with_ends()) if count] or [0]
    figure.update_xaxes(
        title_text=f"margin of {escape(result.base)}: top-1 − top-2 logit",
        title_standoff=8,
        range=[log10(edges[filled[0]]) - 0.05, log10(edges[filled[-1] + 1]) + 0.05],
        tickvals=list(range(-3, 3)),
        ticktext=["0.001", "0.01", "0.1", "1", "10", "100"],
    )
    figure.update_yaxes(title_text="share", tickformat=".0%", rangemode="tozero")


def _margin_facts(result: Fidelity) -> str:
    usual = result.margin_p50
    if result.flip_margin_p50 is None:
        return f"no flips in {result.tokens:,} tokens · half of all positions have a margin below {usual:.2g}"
    return (
        f"half of the {result.flips} flips have a margin below {result.flip_margin_p50:.2g} · "
        f"of all {result.tokens:,} positions, half are below {usual:.2g}"
    )
