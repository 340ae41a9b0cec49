"""|X| and |W| of one linear as landscapes, before and after smoothing, on one scale.

## Idea

In three dimensions the two kinds of outliers look as different as they are. A persistent channel is a *ridge* along all
tokens, and a massive token is a single *row* with spikes. When the slider moves, the ridges of |X| sink and those of
|W| grow: the difficulty has not gone, it has moved. `figures.outliers` is the same comparison in two dimensions, for
those who cannot turn a landscape with a mouse. `evaluation.landscapes` computes everything that is drawn here.

Two planes stand over |X|. The upper one is the largest value that INT8 can hold, 127 steps. The lower one is half a
step, and everything below it becomes 0. With one scale for the whole tensor both planes are flat, and a massive token
lifts them over all other tokens.

## Choice

On every axis both planes, or the lower one where the first token is left out, are in sight as the figure opens and
without a mapping. Half a step is also said in words, for positions of the slider that lift it out of the linear axes.

Everything is precomputed. The positions of the slider are frames, and a frame holds heights, colours and captions, but
never a camera. So a landscape stays turned as the reader left it, and the figure works in a saved page without Python.

## What is lost

One figure takes four WebGL contexts, and browsers give a page about sixteen. So a page holds at most three such
figures.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor

from quasar_lab.evaluation.activations import Activations
from quasar_lab.evaluation.landscapes import NONE, STRENGTHS, HeightLimits, Landscape, Landscapes, landscapes
from quasar_lab.figures.notation import mapped_formulas, mapped_origin, short_number
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.style import BLUE, INK, SOFT, VERMILION, escape, framed
from quasar_lab.models.decoder import Decoder
from quasar_lab.quantization.product_error import GRIDS
from quasar_lab.speculative.generation import Prompt
from quasar_lab.support.readable import readable

SCENES = ("scene", "scene2", "scene3", "scene4")
"""|X| before and after, |W| before and after."""

WIDTHS = ((0.0, 0.49), (0.51, 1.0))
"""Where the scenes before and after stand, as shares of the figure's width."""

HEIGHTS = ((0.54, 0.95), (0.0, 0.41))
"""Where the scenes of |X| and of |W| stand, as shares of the figure's height."""

IN_GL = "#767676"
"""Text and lines that WebGL draws: as legible on white as on black, since a dark page cannot change them."""

CAMERA = {"eye": {"x": -1.15, "y": -1.7, "z": 0.85}, "center": {"x": 0, "y": 0, "z": -0.18}}
"""Where every scene is seen from at first."""

SHADES = 255
"""The largest colour, one byte a cell."""

SMALL = {"size": 11, "color": IN_GL}
"""Titles of a landscape's axes."""

BUTTONS = 146
"""Pixels that the buttons take above the landscapes."""

MOVED_BY_SLIDER = ("z", "surfacecolor", "text")
"""What of a trace differs between two positions of the slider."""


def surfaces(
    model: Decoder,
    layer: int,
    projection: str,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
    alphas: Sequence[float] = STRENGTHS,
    grid: str = GRIDS[0],
) -> Plot:
    """|X| (token × channel) and |W| (output × input channel) of one linear, as they are and as they are rounded.

    The slider has no smoothing, SmoothQuant with each of `alphas` from this text, and, where `quantized` is given, what
    that recipe does, rotation included. It opens at that recipe, or, without one, at the α nearest to 0.5. Buttons
    choose linear or logarithmic heights, with or without the first token, and planes for one scale per token or per
    tensor (`grid`: which of these the figure opens with).
    """
    found = landscapes(model, layer, projection, quantized, text, alphas, grid)
    figure = go.Figure([*_side(found, found.before, 0), *_side(found, found.opened, 1)])
    figure.for_each_trace(lambda data: data.update(visible=not data.name.endswith(GRIDS) or data.name.endswith(grid)))
    tokens = found.linear.x.shape[0]
    subtitle = f"{tokens} tokens · each cell shows the largest value it covers · colour: height, logarithmic"
    line = mapped_origin(found.linear.activations.identity, found.recipe, "also ")
    figure = framed(
        figure, f"{found.linear.title}: landscapes", subtitle, line, height=1130, left=8, head=BUTTONS, foot=210
    )
    figure.update_layout(
        margin_r=8,
        uirevision="landscape",
        showlegend=False,
        updatemenus=[_view_buttons(found), _plane_buttons(figure, grid)],
        sliders=[_slider([position.name for position in found.positions], found.opening)],
        **{scene: _scene(index, found.limits[index // 2]) for index, scene in enumerate(SCENES)},
    )
    (stamp,) = (note for note in figure.layout.annotations if note.name == "stamp")
    for annotation in _annotations(found.before, found.opened):
        figure.add_annotation(annotation)
    moving = [index for index, data in enumerate(figure.data) if data.scene in (SCENES[1], SCENES[3])]
    figure.frames = [_frame(found, position, moving, stamp) for position in found.positions]
    return figure


def _frame(found: Landscapes, position: Landscape, moving: Sequence[int], stamp: go.layout.Annotation) -> go.Frame:
    """What a position of the slider changes: heights, colours and words, and nothing else."""
    changes = [
        type(trace)(**{key: value for key in MOVED_BY_SLIDER if (value := trace.to_plotly_json().get(key)) is not None})
        for trace in _side(found, position, 1)
    ]
    annotations = [stamp, *_annotations(found.before, position)]
    return go.Frame(name=position.name, data=changes, traces=moving, layout={"annotations": annotations})


# Landscapes and planes


def _side(found: Landscapes, view: Landscape, side: int) -> list[go.Surface | go.Scatter3d]:
    """Everything on one side (0 before, 1 after): |X|, its planes with their labels for both grids, and |W|."""
    inputs, weights = (_landscape(found, view, kind, side) for kind in (0, 1))
    planes = [trace for grid in GRIDS for trace in _planes(view, found.limits[0].floor, side, grid)]
    return [inputs, weights, *planes]


def _landscape(found: Landscapes, view: Landscape, kind: int, side: int) -> go.Surface:
    """|X| (kind 0) or |W| (kind 1)."""
    cells, limits = view.cells[kind], found.limits[kind]
    what, row = (("x", "from token"), ("W", "from output channel"))[kind]
    return go.Surface(
        z=_heights(cells.values, limits.floor),
        surfacecolor=_shades(cells.values, limits),
        x=cells.columns,
        y=cells.rows,
        scene=SCENES[2 * kind + side],
        name=f"|{what}|",
        colorscale="Cividis",
        cmin=0,
        cmax=SHADES,
        showscale=False,
        lighting={"ambient": 0.75, "diffuse": 0.5, "specular": 0.05, "roughness": 0.9},
        hovertemplate=f"from channel %{{x}}, {row} %{{y}}<br>largest |{what}| = %{{z:.3g}}<extra></extra>",
    )


def _planes(view: Landscape, lowest: float, side: int, grid: str) -> list[go.Surface | go.Scatter3d]:
    """The largest representable value, half a step, and what these are, in words on the upper plane."""
    ceilings, edge = view.ceilings(grid), view.inputs.columns[-1]
    halves = [ceiling / 254 for ceiling in ceilings]
    planes = [
        go.Surface(
            z=_heights(torch.tensor([heights, heights]).T, lowest),
            x=[0, edge],
            y=view.inputs.rows,
            name=f"{name}, {grid}",
            colorscale=[[0, colour], [1, colour]],
            showscale=False,
            opacity=opacity,
            scene=SCENES[side],
            hoverinfo="skip",
        )
        for name, heights, colour, opacity in (
            ("127 steps", ceilings, VERMILION, 0.22),
            ("half a step", halves, BLUE, 0.3),
        )
    ]
    smallest, largest = (f"{float(step):.2g}" for step in view.steps[grid].aminmax())
    label = go.Scatter3d(
        z=[max(ceilings[-1], lowest)],
        text=[f"127 steps<br>of {smallest if smallest == largest else f'{smallest} … {largest}'}"],
        x=[edge / 2],
        y=view.inputs.rows[-1:],
        mode="text",
        textposition="top center",
        textfont={"size": 12, "color": IN_GL},
        name=f"label, {grid}",
        scene=SCENES[side],
        hoverinfo="skip",
    )
    return [*planes, label]


def _heights(values: Tensor, lowest: float) -> np.ndarray:
    """As a typed array, which a page holds in half the space. What is below the log axis stays below it, never 0."""
    return values.clamp(min=lowest / 2).numpy()


def _shades(values: Tensor, limits: HeightLimits) -> np.ndarray:
    """Colours by height, logarithmic. They end where the linear axis of the opening view ends."""
    bottom, top = log10(limits.floor), log10(limits.opening_top)
    shade = (values.clamp(min=limits.floor).log10() - bottom) / max(top - bottom, 1e-6) * SHADES
    return shade.round().clamp(0, SHADES).to(torch.uint8).numpy()


# Words


def _annotations(before: Landscape, after: Landscape) -> list[go.layout.Annotation]:
    """What each landscape is, with its largest value, and the errors at this position of the slider."""
    titles = [
        go.layout.Annotation(
            name=f"caption {2 * kind + side}",
            text=f"<b>{'after' if side else 'before'}: |{_formula(view, kind)}|</b>"
            f"<br>largest {short_number(view.cells[kind].largest)}",
            x=sum(WIDTHS[side]) / 2,
            y=HEIGHTS[kind][1],
            yanchor="bottom",
            font={"size": 13, "color": INK},
        )
        for kind in (0, 1)
        for side, view in enumerate((before, after))
    ]
    readout = go.layout.Annotation(
        name="readout",
        text="<br>".join(_errors_in_words(after)),
        align="left",
        x=0.5,
        y=0,
        yshift=-100,
        yanchor="top",
        font={"size": 12, "color": INK},
    )
    notes = [*titles, readout]
    for note in notes:
        note.update(xref="paper", yref="paper", showarrow=False, xanchor="center")
    return notes


def _formula(view: Landscape, kind: int) -> str:
    return ("X", "W")[kind] if view.name == NONE else mapped_formulas(view.mapping, "X", "W")[kind]


def _errors_in_words(view: Landscape) -> list[str]:
    """The error before rounding, and for both grids the error after it, with and without the first token."""
    lines = [
        f"error ‖XWᵀ − X′W′ᵀ‖ / ‖XWᵀ‖, {_whose(view)}:",
        f"before rounding <b>{readable(view.errors[GRIDS[0]][0].before)}</b>",
    ]
    for grid in GRIDS:
        percent = [f"{100 * error.after:.2f} %" for error in view.errors[grid]]
        rest = f"; no first token {percent[1]}" if len(percent) > 1 else ""
        lines.append(f"steps {grid} <b>{percent[0]}</b>{rest}")
    half = max(view.ceilings("per tensor")) / 254
    return [*lines, f"half a step per tensor: {short_number(half)}"]


def _whose(view: Landscape) -> str:
    """Where the factors of a position of the slider come from: without that two errors of one α seem to contradict."""
    if view.name == NONE:
        return "no factors"
    return f"factors {'of this text' if view.name[0].isdigit() else f'of {escape(view.name)}'}"


# Axes, buttons and the slider


def _scene(index: int, limits: HeightLimits) -> go.layout.Scene:
    kind = index // 2
    quiet = {"showbackground": False, "gridcolor": "#bfc4ca", "tickfont": {"size": 10, "color": IN_GL}}
    x, y = WIDTHS[index % 2], HEIGHTS[kind]
    return go.layout.Scene(
        domain={"x": x, "y": y},
        aspectmode="manual",
        aspectratio={"x": 1.28, "y": 1.05, "z": 0.8},
        camera={**CAMERA, "projection": {"type": "perspective"}},
        uirevision="landscape",
        xaxis={**quiet, "title": {"text": "channel", "font": SMALL}, "nticks": 5},
        yaxis={**quiet, "title": {"text": ("token", "output")[kind], "font": SMALL}, "nticks": 4},
        zaxis={**quiet, "title": {"text": ""}, **_log_axis(limits)},
    )


def _log_axis(limits: HeightLimits) -> Mapping[str, object]:
    """The height axis that holds every position of the slider, its numbers written in full."""
    ends = [log10(limits.floor), log10(limits.top * 1.15)]
    ticks = [10.0**power for power in range(ceil(ends[0]), floor(ends[1]) + 1)]
    labels = [f"{tick / 1000:g}k" if tick >= 1000 else f"{tick:g}" for tick in ticks]
    return {"type": "log", "range": ends, "tickvals": ticks, "ticktext": labels}


def _linear_axis(limits: HeightLimits, first: bool) -> Mapping[str, object]:
    """The height axis that holds what the figure opens with, with the first token or without it."""
    top = limits.opening_top if first else limits.opening_top_without_first
    return {"type": "linear", "range": [0, top * 1.05], "tickvals": None, "ticktext": None}


def _buttons(
    name: str, buttons: Sequence[Mapping[str, object]], right: int, active: int | None = None
) -> go.layout.Updatemenu:
    """A column of buttons over the landscapes. right: pixels between it and the left edge."""
    return go.layout.Updatemenu(
        name=name,
        buttons=buttons,
        active=active,
        pad={"l": right, "b": 6},
        type="buttons",
        direction="down",
        showactive=True,
        xanchor="left",
        yanchor="bottom",
        bgcolor="white",
        bordercolor="#c9d0d6",
        font={"size": 12},
        x=0,
        y=1,
    )


def _view_buttons(found: Landscapes) -> go.layout.Updatemenu:
    """Linear or logarithmic heights, with the first token or without it."""
    last = max(found.before.inputs.rows[-1], 1)
    buttons = []
    for log, first in ((True, True), (True, False), (False, True), (False, False)):
        changes: dict[str, object] = {}
        for index, scene in enumerate(SCENES):
            limits = found.limits[index // 2]
            axis = _log_axis(limits) if log else _linear_axis(limits, first)
            changes |= {f"{scene}.zaxis.{key}": value for key, value in axis.items()}
            if index < 2:
                # The axis ends at the second token: what lies before is clipped, the slope down from it included.
                changes[f"{scene}.yaxis.range"] = [0 if first else 1, last]
        label = f"{'log' if log else 'linear'}{'' if first else ', no first token'}"
        buttons.append({"label": label, "method": "relayout", "args": [changes]})
    return _buttons("view", buttons, right=6)


def _plane_buttons(figure: go.Figure, grid: str) -> go.layout.Updatemenu:
    """The planes of one grid at a time, or none. grid: which of them the figure opens with."""
    planes = [index for index, data in enumerate(figure.data) if data.name.endswith(GRIDS)]
    buttons = []
    for choice in GRIDS:
        shown = [figure.data[index].name.endswith(choice) for index in planes]
        buttons.append({"label": f"steps {choice}", "method": "restyle", "args": [{"visible": shown}, planes]})
    hidden = [{"visible": [False] * len(planes)}, planes]
    buttons.append({"label": "no planes", "method": "restyle", "args": hidden})
    return _buttons("planes", buttons, right=186, active=GRIDS.index(grid))


def _slider(names: Sequence[str], opening: int) -> go.layout.Slider:
    at_once = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    return go.layout.Slider(
        active=opening,
        x=0.04,
        len=0.86,  # the last label, the name of a recipe, stands out to the right
        y=0,
        pad={"t": 22},
        currentvalue={"prefix": "smoothing strength α, or recipe: ", "font": {"size": 13, "color": INK}},
        font={"size": 12, "color": SOFT},
        steps=[{"label": escape(name), "method": "animate", "args": [[name], at_once]} for name in names],
    )
