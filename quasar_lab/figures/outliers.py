"""Where the large activations are, and what smoothing does to them.

Two different things are called outliers. A *persistent channel* is large for every token; smoothing moves it into the
weights. A *massive token* is one token, nearly always the first, with a few enormous values that every other token
lacks (an attention sink, arXiv 2402.17762). Per-token scales keep it from hurting its neighbours, but it decides the
calibration maximum of its channels. So every figure here shows the first token apart from the rest.
"""

from collections.abc import Sequence
from math import log10
from typing import Any

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor

from quasar_lab.evaluation.activations import Activations, capture
from quasar_lab.figures.linear import channel_shares, formulas, linear, product_errors, short
from quasar_lab.figures.style import BLUE, GREEN, INK, ORANGE, escape, finish, visible
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.model_config import PARTS
from quasar_lab.quantization.smoothing import column_max
from quasar_lab.speculative.generation import Prompt
from quasar_lab.support.errors import InputError

ORDERS = ("channel", "sorted")
ALPHAS = tuple(twentieth / 20 for twentieth in range(21))
TICKS = tuple(digit * 10.0**power for power in range(-3, 5) for digit in (1, 2, 5))
"""Where a log axis of percentages has its numbers, each written in full."""

FLOOR = 1e-4
"""Smallest |x| drawn: a channel that is zero has no place on a log axis."""


def outliers(
    model: Decoder,
    layer: int,
    projection: str,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
    order: str = "channel",
) -> go.Figure:
    """Largest |x| of every input channel of one linear, as it is and as a recipe rounds it, on one locked log scale.

    The first token is drawn apart from the others. quantized: take its factors and rotation; without it, SmoothQuant
    with α = 0.5 from this text alone. A rotated channel is a mixture of all channels.

    order: channels as they are, or "sorted" by their largest value.
    """
    if order not in ORDERS:
        raise InputError(f"order is {order!r}; accepted: {', '.join(ORDERS)}")
    part = linear(model, layer, projection, text)
    x, activations = part.x, part.activations
    mapping, origin = part.mapped(quantized)
    rotated = mapping.rotation is not None
    mapped = mapping.inputs(x)
    shares = [channel_shares(x, part.weight, how) for how in (part.unmapped(), mapping)]
    panels = [("before: |x|", x), (f"after: |{formulas(mapping, 'x', 'W')[0]}|", mapped)]
    place = torch.argsort(x.abs().amax(dim=0), descending=True) if order == "sorted" else torch.arange(x.shape[1])

    figure = make_subplots(
        rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=[escape(name) for name, _ in panels]
    )
    for column, (_, values) in enumerate(panels, 1):
        _panel(figure, column, values.abs()[:, place], place, activations.pieces, shares[column - 1][place])
    drawn = [value for data in figure.data for value in data.y]
    top, bottom = max(drawn), min(drawn)
    limits = [log10(edge) for edge in (bottom, top)]
    figure.update_yaxes(type="log", range=[limits[0] - 0.1, limits[1] + 0.8], dtick=1, exponentformat="power")
    figure.update_yaxes(title_text="largest |x| of the channel", row=1, col=1)
    axes = ("channel, largest first", "channel, same order as left") if order == "sorted" else ("input channel",) * 2
    axes = (axes[0], "rotated channel") if rotated else axes
    for column, axis in enumerate(axes, 1):
        figure.update_xaxes(title_text=axis, row=1, col=column)
    before, after = (_ratio(values.abs().amax(dim=0)) for _, values in panels)
    subtitle = f"max / median over channels: {before:.0f} before, {after:.0f} after ({escape(origin)})"
    subtitle += f" · {len(activations.pieces)} tokens"
    recipe = {} if quantized is None else {"recipe": f"bf16, inputs mapped as in {quantized.name}"}
    finish(figure, f"{part.title}: its input", subtitle, {**activations.identity, **recipe}, height=480)
    figure.update_layout(margin={"t": 128}, legend={"y": 1.09})
    return figure


def _panel(
    figure: go.Figure, column: int, size: Tensor, channels: Tensor, pieces: Sequence[str], shares: Tensor
) -> None:
    """One side of `outliers`: size f32 [M, K] is |x|, its columns (and `shares` of the error, [K]) in drawing order."""
    at, first = list(range(size.shape[1])), size[0]
    groups: list[tuple[str, Tensor, str, list[str]]] = []
    if size.shape[0] > 1:
        rest = size[1:].max(dim=0)
        tokens = [pieces[1 + place] for place in rest.indices.tolist()]
        groups.append(("largest over the other tokens", rest.values, BLUE, tokens))
    groups.append((f"first token “{escape(visible(pieces[0]))}”", first, ORANGE, [pieces[0]] * size.shape[1]))
    for name, values, colour, tokens in groups:
        figure.add_scatter(
            x=at,
            y=values.clamp(min=FLOOR).tolist(),
            mode="markers",
            marker={"color": colour, "size": 4, "opacity": 0.75},
            name=name,
            legendgroup=name,
            showlegend=column == 1,
            customdata=[
                [c, escape(visible(token)), round(100 * share, 2)]
                for c, token, share in zip(channels.tolist(), tokens, shares.tolist(), strict=True)
            ],
            hovertemplate="channel %{customdata[0]}, token “%{customdata[1]}”<br>|x| = %{y:.3g}<br>"
            "%{customdata[2]} % of the error<extra></extra>",
            row=1,
            col=column,
        )
    largest = size.amax(dim=0)
    middle, best = max(float(largest.median()), FLOOR), int(largest.argmax())
    figure.add_hline(y=middle, line={"color": INK, "width": 1.2, "dash": "dash"}, row=1, col=column)
    axis = "" if column == 1 else str(column)
    # Annotations on a log axis are placed by exponent, shapes by value.
    label = {"xref": f"x{axis}", "yref": f"y{axis}", "showarrow": False, "font": {"size": 12, "color": INK}}
    figure.add_annotation(
        **{**label, "xref": f"x{axis} domain"},
        x=1,
        y=log10(middle),
        text=f"median {middle:.3g}",
        xanchor="right",
        yanchor="bottom",
        bgcolor="rgba(255,255,255,0.85)",
    )
    token = int(size[:, best].argmax())
    left = best < largest.numel() / 2
    figure.add_annotation(
        **label,
        x=best,
        y=log10(max(float(largest[best]), FLOOR)),
        text=f"max {float(largest[best]):.4g} · channel {int(channels[best])} · token {token}",
        xanchor="left" if left else "right",
        xshift=6 if left else -6,
        yshift=14,  # above a flat band, where it would be unreadable, and above the label of its median
    )


def _ratio(largest: Tensor) -> float:
    return float(largest.max() / largest.median().clamp(min=1e-30))


def model_map(model: Decoder, text: Prompt | Activations | None = None) -> go.Figure:
    """Max / median of per-channel |x| for every layer and projection: above with all tokens, below without the first.

    What vanishes in the lower map was a massive token; what stays is a persistent channel.
    """
    activations = capture(model, text)
    layers, names = list(range(model.config.layers)), list(PARTS)
    titles = ("all tokens", "without the first token")
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.14, subplot_titles=titles)
    for row, start in ((1, 0), (2, 1)):
        ratios = [[_ratio(activations.at(n, name)[start:].abs().amax(dim=0)) for n in layers] for name in names]
        figure.add_heatmap(
            z=torch.tensor(ratios).log10().tolist(),
            x=layers,
            y=names,
            customdata=ratios,
            hovertemplate="layer %{x}, %{y}<br>max / median = %{customdata:.0f}<extra></extra>",
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            row=row,
            col=1,
        )
    figure.update_layout(
        coloraxis={
            "colorscale": "Cividis",
            "cmin": 0,
            "colorbar": {
                "title": {"text": "max / median"},
                "tickvals": [0, 1, 2, 3, 4],
                "ticktext": ["1", "10", "100", "1 000", "10 000"],
                "thickness": 14,
                "outlinewidth": 0,
            },
        }
    )
    figure.update_xaxes(title_text="layer", row=2, col=1)
    subtitle = f"max / median over channels of the largest |x| · {len(activations.pieces)} tokens"
    finish(figure, "Where the large values are", subtitle, activations.identity, height=500)
    figure.update_layout(margin={"t": 104})
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def error_by_alpha(
    model: Decoder,
    layer: int,
    projection: str,
    alphas: Sequence[float] = ALPHAS,
    text: Prompt | Activations | None = None,
    grid: str = "per token",
) -> go.Figure:
    """Output error of one linear in INT8 against the smoothing strength α, over all tokens and without the first.

    Beside the error with both sides rounded stand those with only one side rounded: the activations' falls as α grows,
    the weights' rises, and the best α lies near where they cross. The factors always come from all tokens, as in
    calibration; only what the error is measured over differs. grid: activations have one scale "per token" or "per
    tensor".
    """
    part = linear(model, layer, projection, text)
    if part.x.shape[0] < 2:
        raise InputError("the text has one token; accepted: at least two, to show the first apart from the others")
    groups = ("all tokens", "without the first token")
    found = [product_errors(part.x, part.weight, part.smoothed(alpha), grid, (0, 1)) for alpha in alphas]
    plain = product_errors(part.x, part.weight, part.unmapped(), grid, (0, 1))
    curves = (
        ("both rounded", "after", INK, 3.5),
        ("activations", "activations", ORANGE, 2),
        ("weights", "weights", BLUE, 2),
    )
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=groups)
    best: list[str] = []
    drawn: list[float] = []
    for column, group in enumerate(groups, 1):
        place = {"row": 1, "col": column}
        for name, key, colour, width in curves:
            errors = [100 * getattr(results[column - 1], key) for results in found]
            drawn += errors
            figure.add_scatter(
                x=list(alphas),
                y=errors,
                mode="lines+markers",
                line={"color": colour, "width": width},
                marker={"size": 3 + width},
                name=name if key == "after" else f"only {name} rounded",
                legendgroup=key,
                showlegend=column == 1,
                hovertemplate="α = %{x:.2f}<br>error %{y:.2f} %<extra></extra>",
                **place,
            )
            if key == "after":
                lowest = min(range(len(errors)), key=errors.__getitem__)
                best.append(f"{group}: {errors[lowest]:.2f} % at α = {alphas[lowest]:g}")
                figure.add_scatter(
                    x=[alphas[lowest]],
                    y=[errors[lowest]],
                    mode="markers",
                    marker={"symbol": "circle-open", "size": 14, "color": colour, "line": {"width": 2}},
                    showlegend=False,
                    hoverinfo="skip",
                    **place,
                )
        level = 100 * plain[column - 1].after
        drawn.append(level)
        figure.add_scatter(
            x=[alphas[0], alphas[-1]],
            y=[level, level],
            mode="lines",
            line={"color": INK, "width": 1.5, "dash": "dot"},
            name="both rounded, no smoothing",
            legendgroup="plain",
            showlegend=column == 1,
            hovertemplate=f"no smoothing: {level:.2f} %<extra></extra>",
            **place,
        )
    figure.update_xaxes(title_text="smoothing strength α")
    figure.update_yaxes(**_percentages(drawn))
    figure.update_yaxes(title_text="output error, %", row=1, col=1)
    identity = part.activations.identity
    finish(figure, f"{part.title}: how much to smooth", f"{' · '.join(best)} · steps {grid}", identity, height=480)
    figure.update_layout(margin={"t": 146}, legend={"y": 1.08})
    return figure


def _percentages(drawn: Sequence[float]) -> dict[str, Any]:
    """A log axis where the values span much, its numbers written in full; else one from zero."""
    if max(drawn) > 8 * min(drawn):
        return {"type": "log", "tickvals": TICKS, "ticktext": [f"{tick:g}" for tick in TICKS]}
    return {"rangemode": "tozero"}


def channel(
    model: Decoder,
    layer: int,
    projection: str,
    number: int | None = None,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
) -> go.Figure:
    """One input channel along the tokens, as it is and as it is rounded; in words its factor, its maxima before and
    after, and its share of the rounding error. number None: the channel with the largest |x|.

    A persistent channel is high everywhere, a massive token is one spike. quantized: as in `outliers`.
    """
    part = linear(model, layer, projection, text)
    number = int(part.x.abs().amax(dim=0).argmax()) if number is None else part.channel(number)
    mapping, origin = part.mapped(quantized)
    sides = ((part.unmapped(), "before: |x|", ORANGE), (mapping, f"after: |{formulas(mapping, 'x', 'W')[0]}|", GREEN))
    pieces = [escape(visible(piece)) for piece in part.activations.pieces]
    figure = go.Figure()
    tops, columns, shares = [], [], []
    for how, name, colour in sides:
        values = how.inputs(part.x)[:, number].abs()
        tops.append(float(values.max()))
        columns.append(float(column_max(how.weight(part.weight))[number]))
        shares.append(100 * float(channel_shares(part.x, part.weight, how)[number]))
        figure.add_scatter(
            x=list(range(len(pieces))),
            y=values.clamp(min=FLOOR).tolist(),
            mode="lines+markers",
            line={"color": colour, "width": 1.5},
            marker={"size": 5},
            name=name,
            customdata=pieces,
            hovertemplate="token %{x} “%{customdata}”<br>%{y:.3g}<extra></extra>",
        )
    figure.update_xaxes(title_text="token (position)")
    figure.update_yaxes(title_text=f"channel {number}", type="log", exponentformat="power")
    even = 100 / part.x.shape[1]
    said = [
        f"factor s = {float(mapping.factors[number]):.3g}",
        f"max |x| {short(tops[0])} → {short(tops[1])}",
        f"max |w| {short(columns[0])} → {short(columns[1])}",
        f"share of the error {shares[0]:.2g} % → {shares[1]:.2g} % (an even share: {even:.2g} %)",
    ]
    mixed = "; after the rotation a channel is a mixture of all" if mapping.rotation is not None else ""
    subtitle = f"{' · '.join(said[:3])}<br>{said[3]} · {escape(origin)}{mixed}"
    recipe = {} if quantized is None else {"recipe": f"bf16, inputs mapped as in {quantized.name}"}
    identity = {**part.activations.identity, **recipe}
    finish(figure, f"{part.title}: channel {number} along the text", subtitle, identity, height=400)
    figure.update_layout(margin={"t": 132})
    return figure
