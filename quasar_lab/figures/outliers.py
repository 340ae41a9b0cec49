"""Where the large activations are, and what smoothing does to them.

Two different things are called outliers. A *persistent channel* is large for every token; smoothing moves it into the
weights. A *massive token* is one token, nearly always the first, with a few enormous values that every other token
lacks (an attention sink, arXiv 2402.17762). Per-token scales keep it from hurting its neighbours, but it decides the
calibration maximum of its channels. So every figure here shows the first token apart from the rest.
"""

from collections.abc import Sequence
from math import log10

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor

from quasar_lab.checkpoints import PARTS, projection_of
from quasar_lab.decoder import Decoder
from quasar_lab.errors import InputError
from quasar_lab.figures.activations import Activations, capture
from quasar_lab.figures.style import BLUE, INK, ORANGE, escape, finish, visible
from quasar_lab.quantization import DEFAULT_ALPHA, output_error
from quasar_lab.smoothing import Mapping, column_max, o_proj_factors, smoothquant_factors
from quasar_lab.speculative import Prompt

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
    projection = projection_of(projection)
    activations = capture(model, text)
    x = activations.at(layer, projection)
    mapping, origin = _mapping(model, layer, projection, x, quantized)
    rotated = mapping.rotation is not None
    panels = [("before: |x|", x), ("after: |(x / s) R|" if rotated else "after: |x / s|", mapping.inputs(x))]
    place = torch.argsort(x.abs().amax(dim=0), descending=True) if order == "sorted" else torch.arange(x.shape[1])

    figure = make_subplots(
        rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=[escape(name) for name, _ in panels]
    )
    for column, (_, values) in enumerate(panels, 1):
        _panel(figure, column, values.abs()[:, place], place, activations.pieces)
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
    finish(figure, f"Layer {layer}, {projection}: its input", subtitle, {**activations.identity, **recipe}, height=480)
    figure.update_layout(margin={"t": 128}, legend={"y": 1.09})
    return figure


def _panel(figure: go.Figure, column: int, size: Tensor, channels: Tensor, pieces: Sequence[str]) -> None:
    """One side of `outliers`: size f32 [M, K] is |x|, its columns already in drawing order."""
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
            customdata=[[int(c), escape(visible(t))] for c, t in zip(channels.tolist(), tokens, strict=True)],
            hovertemplate="channel %{customdata[0]}, token “%{customdata[1]}”<br>|x| = %{y:.3g}<extra></extra>",
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


def _mapping(model: Decoder, layer: int, projection: str, x: Tensor, quantized: Decoder | None) -> tuple[Mapping, str]:
    """What is done to the inputs before rounding, and where it comes from."""
    if quantized is not None:
        found = quantized.mappings.get((layer, projection))
        if found is None:
            return Mapping(torch.ones(x.shape[1])), f"{quantized.name} does not smooth"
        return found, f"factors{' and rotation' if found.rotation is not None else ''} of {quantized.name}"
    weight = model.checkpoint.projection(layer, projection)[0]
    factors = smoothing_factors(model, projection, x, weight, DEFAULT_ALPHA)
    return Mapping(factors), f"α = {DEFAULT_ALPHA:g} on this text"


def smoothing_factors(model: Decoder, projection: str, x: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """SmoothQuant's factors s f32 [K] of one linear from the inputs x f32 [M, K] alone, as the recipes choose them."""
    largest, columns = x.abs().amax(dim=0), column_max(weight)
    if projection == "o_proj":
        return o_proj_factors(largest, columns, alpha, model.config)
    return smoothquant_factors(largest, columns, alpha)


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
) -> go.Figure:
    """Output error of one linear in INT8 against the smoothing strength α, with and without the first token.

    The factors always come from all tokens, as in calibration; only what the error is measured over differs.
    """
    projection = projection_of(projection)
    activations = capture(model, text)
    x = activations.at(layer, projection)
    if x.shape[0] < 2:
        raise InputError("the text has one token; accepted: at least two, to show the first apart from the others")
    weight = model.checkpoint.projection(layer, projection)[0]
    factors = [smoothing_factors(model, projection, x, weight, alpha) for alpha in alphas]
    # The first curve is wider, so that it shows where both coincide.
    groups = [("all tokens", x, ORANGE, 5), ("without the first token", x[1:], BLUE, 2)]
    figure = go.Figure()
    best: list[str] = []
    drawn: list[float] = []
    for name, rows, colour, width in groups:
        errors = [100 * output_error(rows, weight, s) for s in factors]
        lowest = min(range(len(errors)), key=errors.__getitem__)
        best.append(f"{name}: {errors[lowest]:.2f} % at α = {alphas[lowest]:g}")
        figure.add_scatter(
            x=list(alphas),
            y=errors,
            mode="lines+markers",
            line={"color": colour, "width": width},
            marker={"size": 3 + width},
            name=name,
            hovertemplate="α = %{x:.2f}<br>error %{y:.2f} %<extra></extra>",
        )
        figure.add_scatter(
            x=[alphas[lowest]],
            y=[errors[lowest]],
            mode="markers",
            marker={"symbol": "circle-open", "size": 13, "color": colour, "line": {"width": 2}},
            showlegend=False,
            hoverinfo="skip",
        )
        plain = 100 * output_error(rows, weight)
        drawn += [*errors, plain]
        figure.add_scatter(
            x=[alphas[0], alphas[-1]],
            y=[plain, plain],
            mode="lines",
            line={"color": colour, "width": width / 2, "dash": "dot"},
            name=f"{name}, no smoothing: {plain:.2f} %",
            hoverinfo="skip",
        )
    figure.update_xaxes(title_text="α: 0 evens out the weights, 1 evens out the activations")
    wide = max(drawn) > 8 * min(drawn)
    figure.update_yaxes(
        title_text="output error, %",
        **(
            {"type": "log", "tickvals": TICKS, "ticktext": [f"{tick:g}" for tick in TICKS]}
            if wide
            else {"rangemode": "tozero"}
        ),
    )
    return finish(
        figure, f"Layer {layer}, {projection}: how much to smooth", " · ".join(best), activations.identity, height=460
    )
