"""Where the large activations are, and what smoothing does to them, as figures.

## Idea

Two different things are called outliers. A *persistent channel* is large for every token. A *massive token* is one
token, nearly always the first, with a few enormous values. They need different remedies, so every figure here shows
the first token apart from the rest. `evaluation.outliers` computes the numbers, and says more about both.

## Choice

Sizes stand on a logarithmic axis that both panels share, so that the same height means the same size before and after
the mapping.

## What is lost

A value below FLOOR is drawn at FLOOR, because a logarithmic axis has no place for zero.
"""

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor

from quasar_lab.evaluation.activations import Activations
from quasar_lab.evaluation.outliers import (
    ALPHAS,
    AlphaSweep,
    ChannelSide,
    ChannelSizes,
    ChannelValues,
    InputOutliers,
    OutlierMap,
    SweepErrors,
    alpha_sweep,
    channel_values,
    input_outliers,
    outlier_map,
)
from quasar_lab.figures.notation import mapped_formulas, mapped_origin, short_number
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.style import BLUE, GREEN, INK, ORANGE, escape, framed, full_ticks, label_room, visible
from quasar_lab.models.decoder import Decoder
from quasar_lab.speculative.generation import Prompt
from quasar_lab.support.readable import readable

FLOOR = 1e-4
"""Smallest |x| drawn: a channel that is zero has no place on a log axis."""

TICKS = tuple(digit * 10.0**power for power in range(-3, 5) for digit in (1, 2, 5))
"""Where a log axis of percentages has its numbers, each written in full."""

CURVES = (
    ("after", "both rounded", INK, 3.5),
    ("activations", "only activations rounded", ORANGE, 2),
    ("weights", "only weights rounded", BLUE, 2),
)
"""Curves of `error_by_alpha`: the field of ProductError, its name, its colour, the width of its line."""


# The channels of one linear


def outliers(
    model: Decoder,
    layer: int,
    projection: str,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
    order: str = "channel",
) -> Plot:
    """Largest |x| of every input channel of one linear, as it is and as a recipe rounds it, on one locked log scale.

    The first token is drawn apart from the others. quantized: its factors and rotation are used. Without it the mapping
    is SmoothQuant with α = 0.5 from this text alone. A rotated channel is a mixture of all channels.

    order: channels by their number ("channel"), or by their largest value ("sorted").
    """
    found = input_outliers(model, layer, projection, quantized, text, order)
    mapping, pieces = found.choice.mapping, found.linear.activations.pieces
    names = ("before: |x|", f"after: |{mapped_formulas(mapping, 'x', 'W')[0]}|")
    titles = [
        f"{escape(name)}<br>{_largest_in_words(sizes, found.channels)}"
        for name, sizes in zip(names, (found.before, found.after), strict=True)
    ]
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=titles)
    for column, sizes in enumerate((found.before, found.after), 1):
        _draw_channels(figure, column, sizes, found.channels.tolist(), pieces)
        _label_median(figure, column, sizes)
    drawn = [value for data in figure.data for value in data.y]
    bottom, top = log10(min(drawn)), log10(max(drawn))
    figure.update_yaxes(type="log", range=[bottom - 0.1, top + 0.3], dtick=1, exponentformat="power")
    figure.update_yaxes(title_text="largest |x| of the channel", row=1, col=1)
    for column, axis in enumerate(_channel_axes(found), 1):
        figure.update_xaxes(title_text=axis, row=1, col=column)
    subtitle = f"max / median over channels: {readable(found.before.ratio)} before, {readable(found.after.ratio)} after"
    subtitle += f" ({escape(found.choice.origin)}) · {len(pieces)} tokens"
    line = mapped_origin(found.linear.activations.identity, found.choice.recipe)
    return framed(figure, f"{found.linear.title}: its input", subtitle, line, height=540, head=58)


def _channel_axes(found: InputOutliers) -> tuple[str, str]:
    """What the horizontal axes of both panels count."""
    if found.choice.mapping.rotation is not None:
        return "largest first" if found.order == "sorted" else "input channel", "rotated channel"
    if found.order == "sorted":
        return "largest first", "same order"
    return "input channel", "input channel"


def _draw_channels(
    figure: go.Figure, column: int, sizes: ChannelSizes, channels: Sequence[int], pieces: Sequence[str]
) -> None:
    """A dot for every channel: its largest |x| over the other tokens, and that of the first token."""
    groups: list[tuple[str, Tensor, str, list[str]]] = []
    if sizes.others is not None:
        tokens = [pieces[token] for token in sizes.others_at]
        groups.append(("largest over the other tokens", sizes.others, BLUE, tokens))
    firsts = [pieces[0]] * len(channels)
    groups.append((f"first token “{escape(visible(pieces[0]))}”", sizes.first, ORANGE, firsts))
    for name, values, colour, tokens in groups:
        figure.add_scatter(
            x=list(range(len(channels))),
            y=values.clamp(min=FLOOR).tolist(),
            mode="markers",
            marker={"color": colour, "size": 4, "opacity": 0.75},
            name=name,
            legendgroup=name,
            showlegend=column == 1,
            customdata=[
                [channel, escape(visible(token)), round(100 * share, 2)]
                for channel, token, share in zip(channels, tokens, sizes.shares.tolist(), strict=True)
            ],
            hovertemplate="channel %{customdata[0]}, token “%{customdata[1]}”<br>|x| = %{y:.3g}<br>"
            "%{customdata[2]} % of the error<extra></extra>",
            row=1,
            col=column,
        )


def _label_median(figure: go.Figure, column: int, sizes: ChannelSizes) -> None:
    """The line of the median, with its number at the right."""
    median, axis = max(sizes.median, FLOOR), "" if column == 1 else str(column)
    figure.add_hline(y=median, line={"color": INK, "width": 1.2, "dash": "dash"}, row=1, col=column)
    figure.add_annotation(
        xref=f"x{axis} domain",
        yref=f"y{axis}",
        showarrow=False,
        font={"size": 12, "color": INK},
        x=1,
        y=log10(median),  # annotations on a log axis are placed by exponent, shapes by value
        text=f"median {median:.3g}",
        xanchor="right",
        yanchor="bottom",
        bgcolor="rgba(255,255,255,0.85)",
    )


def _largest_in_words(sizes: ChannelSizes, channels: Tensor) -> str:
    """What the highest dot is, in words that stand above its panel."""
    at = f"channel {int(channels[sizes.largest_at])}, token {sizes.largest_token}"
    return f"max {sizes.largest:.4g}<br>{at}"


# Every linear of the model


def model_map(model: Decoder, text: Prompt | Activations | None = None) -> Plot:
    """Max / median of per-channel |x| for every layer and projection: above with all tokens, below without the first.

    What vanishes in the lower map was a massive token. What stays is a persistent channel.
    """
    found = outlier_map(model, text)
    titles = ("all tokens", "without the first token")
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.14, subplot_titles=titles)
    for row, ratios in enumerate((found.all_tokens, found.without_first), 1):
        figure.add_trace(_heatmap(found, ratios), row=row, col=1)
    figure.update_layout(
        coloraxis={
            "colorscale": "Cividis",
            "cmin": 0,
            "colorbar": {
                "title": {"text": "max / median"},
                "tickvals": [0, 1, 2, 3, 4],
                "ticktext": ["1", "10", "100", "1 000", "10 000"],
                "thickness": 12,
                "outlinewidth": 0,
            },
        }
    )
    figure.update_xaxes(title_text="layer", row=2, col=1)
    subtitle = f"max / median over channels of the largest |x| · {found.tokens} tokens"
    figure.update_yaxes(autorange="reversed", showgrid=False)
    line = mapped_origin(found.identity)
    return framed(
        figure, "Where the large values are", subtitle, line, height=520, left=label_room(found.projections), head=24
    )


def _heatmap(found: OutlierMap, ratios: list[list[float]]) -> go.Heatmap:
    return go.Heatmap(
        z=torch.tensor(ratios).log10().tolist(),
        x=found.layers,
        y=found.projections,
        customdata=ratios,
        hovertemplate="layer %{x}, %{y}<br>max / median = %{customdata:.0f}<extra></extra>",
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
    )


# The error of one linear by smoothing strength


def error_by_alpha(
    model: Decoder,
    layer: int,
    projection: str,
    alphas: Sequence[float] = ALPHAS,
    text: Prompt | Activations | None = None,
    grid: str = "per token",
) -> Plot:
    """Output error of one linear in INT8 against the smoothing strength α, over all tokens and without the first.

    Beside the error with both sides rounded stand those with only one side rounded. The activations' error falls as α
    grows, the weights' error rises, and the best α lies near where they cross. The factors always come from all tokens,
    as in calibration. Only the tokens that the error is measured over differ. grid: activations have one scale "per
    token" or "per tensor".
    """
    sweep = alpha_sweep(model, layer, projection, alphas, text, grid)
    titles = [errors.group for errors in sweep.groups]
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=titles)
    for column, errors in enumerate(sweep.groups, 1):
        for trace in _curves(sweep, errors, legend=column == 1):
            figure.add_trace(trace, row=1, col=column)
    figure.update_xaxes(title_text="strength α")
    figure.update_yaxes(**_percentages([value for data in figure.data for value in data.y]))
    figure.update_yaxes(title_text="output error, %", row=1, col=1)
    best = [
        f"{errors.group}: {100 * errors.by_alpha[errors.best].after:.2f} % at α = {sweep.alphas[errors.best]:g}"
        for errors in sweep.groups
    ]
    subtitle = f"{' · '.join(best)} · steps {sweep.grid}"
    line = mapped_origin(sweep.linear.activations.identity)
    return framed(figure, f"{sweep.linear.title}: how much to smooth", subtitle, line, height=540, head=24)


def _curves(sweep: AlphaSweep, errors: SweepErrors, legend: bool) -> list[go.Scatter]:
    """The curves of one group of tokens, a ring around the best α, and the error without smoothing as a line."""
    alphas = sweep.alphas
    curves = [
        go.Scatter(
            x=alphas,
            y=[100 * getattr(error, key) for error in errors.by_alpha],
            mode="lines+markers",
            line={"color": colour, "width": width},
            marker={"size": 3 + width},
            name=name,
            legendgroup=key,
            showlegend=legend,
            hovertemplate="α = %{x:.2f}<br>error %{y:.2f} %<extra></extra>",
        )
        for key, name, colour, width in CURVES
    ]
    ring = go.Scatter(
        x=[alphas[errors.best]],
        y=[100 * errors.by_alpha[errors.best].after],
        mode="markers",
        marker={"symbol": "circle-open", "size": 14, "color": INK, "line": {"width": 2}},
        showlegend=False,
        hoverinfo="skip",
    )
    level = 100 * errors.unsmoothed.after
    unsmoothed = go.Scatter(
        x=[alphas[0], alphas[-1]],
        y=[level, level],
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dot"},
        name="both rounded, no smoothing",
        legendgroup="plain",
        showlegend=legend,
        hovertemplate=f"no smoothing: {level:.2f} %<extra></extra>",
    )
    return [curves[0], ring, *curves[1:], unsmoothed]


def _percentages(drawn: Sequence[float]) -> Mapping[str, object]:
    """A log axis with its numbers written in full where the values span much, else an axis from zero."""
    if max(drawn) > 8 * min(drawn):
        return {"type": "log", "tickvals": TICKS, "ticktext": [f"{tick:g}" for tick in TICKS]}
    return {"rangemode": "tozero"}


# One channel along the text


def channel(
    model: Decoder,
    layer: int,
    projection: str,
    number: int | None = None,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
) -> Plot:
    """One input channel along the tokens, as it is and as it is rounded.

    The subtitle says its factor, its largest values before and after, and its share of the rounding error. number None:
    the channel with the largest |x|. A persistent channel is high everywhere, a massive token is one spike. quantized:
    as in `outliers`.
    """
    found = channel_values(model, layer, projection, number, quantized, text)
    activations = found.linear.activations
    pieces = [escape(visible(piece)) for piece in activations.pieces]
    after = f"after: |{mapped_formulas(found.choice.mapping, 'x', 'W')[0]}|"
    figure = go.Figure()
    for side, name, colour in ((found.before, "before: |x|", ORANGE), (found.after, after, GREEN)):
        figure.add_trace(_along_text(side, name, colour, pieces))
    figure.update_xaxes(title_text="token (position)")
    drawn = [value for data in figure.data for value in data.y]
    ticks = full_ticks(min(drawn) / 1.5, max(drawn) * 1.5)
    figure.update_yaxes(title_text=f"channel {found.number}", type="log", **ticks)
    title = f"{found.linear.title}: channel {found.number}"
    line = mapped_origin(activations.identity, found.choice.recipe)
    return framed(figure, title, _channel_in_words(found), line, height=480)


def _along_text(side: ChannelSide, name: str, colour: str, pieces: Sequence[str]) -> go.Scatter:
    return go.Scatter(
        x=list(range(len(pieces))),
        y=side.values.clamp(min=FLOOR).tolist(),
        mode="lines+markers",
        line={"color": colour, "width": 1.5},
        marker={"size": 5},
        name=name,
        customdata=pieces,
        hovertemplate="token %{x} “%{customdata}”<br>%{y:.3g}<extra></extra>",
    )


def _channel_in_words(found: ChannelValues) -> str:
    """Factor and largest values, the share of the error, and where the mapping comes from."""
    before, after = found.before, found.after
    even = 100 / found.linear.x.shape[1]
    sizes = [
        f"factor s = {found.factor:.3g}",
        f"max |x| {short_number(before.largest)} → {short_number(after.largest)}",
        f"max |w| {short_number(before.largest_weight)} → {short_number(after.largest_weight)}",
    ]
    share = f"share of the error {100 * before.share:.2g} % → {100 * after.share:.2g} % (an even share: {even:.2g} %)"
    rotated = found.choice.mapping.rotation is not None
    mixed = "; after the rotation a channel is a mixture of all" if rotated else ""
    return f"{' · '.join(sizes)} · {share} · {escape(found.choice.origin)}{mixed}"
