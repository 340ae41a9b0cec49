"""|X| and |W| of one linear as landscapes, before and after smoothing, on one scale.

In three dimensions the two kinds of outliers look as different as they are: a persistent channel is a *ridge* along
all tokens, a massive token is a single *row* with spikes. Moving the slider lets the ridges of |X| sink and those of
|W| grow: the difficulty has not gone, it has moved. `figures.outliers` is the same comparison in two dimensions, for
those who cannot turn a landscape with a mouse.

A cell of the grid is the *largest* value it covers. Taking every n-th channel instead would lose exactly the single
channels this is about. The first token is a row of its own, so that it can be left out.

Planes: above, the largest representable value, ±127 steps; below, half a step, under which everything becomes 0. With
one scale for the whole tensor both planes are flat, and a massive token lifts them over all others.

Everything is precomputed: the slider's steps are frames, which hold heights, colours and captions and never a camera,
so that a landscape stays turned as the reader left it; it works in a saved page without Python. One figure takes four
WebGL contexts, of which browsers give a page about sixteen: at most three such figures on a page.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, floor, log10
from typing import Any

import plotly.graph_objects as go
import torch
from torch import Tensor

from quasar_lab.evaluation.activations import Activations
from quasar_lab.figures.linear import GRIDS, Linear, formulas, linear, product_errors, short, steps
from quasar_lab.figures.style import BLUE, INK, SOFT, VERMILION, escape, finish
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.speculative.generation import Prompt
from quasar_lab.support.errors import InputError

ROWS, COLUMNS = 40, 64
"""Largest number of cells: tokens or output channels × input channels."""

STRENGTHS = tuple(tenth / 10 for tenth in range(11))
NONE = "none"
SCENES = ("scene", "scene2", "scene3", "scene4")
"""|X| before and after, |W| before and after."""

WIDTHS, HEIGHTS = ((0.0, 0.49), (0.51, 1.0)), ((0.535, 0.965), (0.0, 0.43))
CAMERA = {"eye": {"x": -1.15, "y": -1.7, "z": 0.85}, "center": {"x": 0, "y": 0, "z": -0.18}}
SHADES = 255


def starts(count: int, cells: int, first_alone: bool = False) -> list[int]:
    """Where each of at most `cells` blocks of nearly equal length begins; first_alone: index 0 is a block of its own.

    Raises InputError where there is nothing to divide, or no cell to put it in.
    """
    if count < 1 or cells < 1 + (first_alone and count > 1):
        raise InputError(f"{count} values into {cells} cells; accepted: at least one value and one cell")
    if first_alone and count > 1:
        return [0, *(1 + start for start in starts(count - 1, cells - 1))]
    cells = min(count, cells)
    return [cell * count // cells for cell in range(cells)]


def block_max(values: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """The largest value of every block, f32 [len(rows), len(columns)] of values f32 [M, K]; blocks begin at `rows` and
    `columns`, both from 0. No value is skipped: the largest of all is the largest of the result."""
    for axis, begins in ((0, rows), (1, columns)):
        edges = [*begins, values.shape[axis]]
        blocks = [values.narrow(axis, a, b - a).amax(dim=axis) for a, b in pairwise(edges)]
        values = torch.stack(blocks, dim=axis)
    return values


def surfaces(
    model: Decoder,
    layer: int,
    projection: str,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
    alphas: Sequence[float] = STRENGTHS,
    grid: str = GRIDS[0],
) -> go.Figure:
    """|X| (token × channel) and |W| (output × input channel) of one linear, as they are and as they are rounded.

    The slider has no smoothing, SmoothQuant with each of `alphas` from this text, and, where `quantized` is given, what
    that recipe does, rotation included; it opens there, else at the α nearest to 0.5. Buttons: linear or logarithmic
    heights, with or without the first token, and planes for one scale per token or per tensor (`grid`: which of these
    the figure opens with).
    """
    if not alphas or not all(0 <= alpha <= 1 for alpha in alphas):
        raise InputError(f"alphas are {list(alphas)}; accepted: at least one number from 0 to 1")
    if grid not in GRIDS:
        raise InputError(f"grid is {grid!r}; accepted: {', '.join(GRIDS)}")
    part = linear(model, layer, projection, text)
    choices = [(NONE, part.unmapped()), *((f"{alpha:g}", part.smoothed(alpha)) for alpha in alphas)]
    opening = 1 + min(range(len(alphas)), key=lambda index: abs(alphas[index] - 0.5))
    if quantized is not None:
        opening = len(choices)
        choices.append((quantized.name, part.mapped(quantized)[0]))
    views = [_View(part, name, mapping) for name, mapping in choices]
    scale = _Scale(views, views[opening])

    figure = go.Figure()
    for group in (*_traces(views[0], scale, 0), *_traces(views[opening], scale, 1)):
        figure.add_trace(group)
    figure.for_each_trace(lambda data: data.update(visible=not data.name.endswith(GRIDS) or data.name.endswith(grid)))
    moving = [index for index, data in enumerate(figure.data) if data.scene in (SCENES[1], SCENES[3])]
    recipe = {} if quantized is None else {"recipe": f"bf16, inputs also mapped as in {quantized.name}"}
    subtitle = f"{part.x.shape[0]} tokens · each cell shows the largest value it covers · colour: height, logarithmic"
    identity = {**part.activations.identity, **recipe}
    finish(figure, f"{part.title}: |X| and |W| as landscapes", subtitle, identity, height=1020)
    figure.update_layout(
        margin={"l": 8, "r": 8, "t": 156, "b": 192},
        uirevision="landscape",
        showlegend=False,
        updatemenus=_menus(figure, scale, grid),
        sliders=[_slider([view.name for view in views], opening)],
        **{scene: _scene(index, scale) for index, scene in enumerate(SCENES)},
    )
    figure.update_annotations(selector={"name": "stamp"}, yshift=-160, x=0.005)
    for annotation in _captions(views[0], views[opening]):
        figure.add_annotation(annotation)
    (stamp,) = (note.to_plotly_json() for note in figure.layout.annotations if note.name == "stamp")
    figure.frames = [
        go.Frame(
            name=view.name,
            data=_traces(view, scale, 1, moved=True),
            traces=moving,
            layout={"annotations": [stamp, *_captions(views[0], view)]},
        )
        for view in views
    ]
    return figure


class _View:
    """One position of the slider: the cells of |X'| and |W'|, the steps of both grids, and the errors."""

    def __init__(self, part: Linear, name: str, mapping: InputMap):
        self.name, self.formulas = name, ("X", "W") if name == NONE else formulas(mapping, "X", "W")
        x, weight = mapping.inputs(part.x).abs(), mapping.weight(part.weight).abs()
        self.channels = starts(x.shape[1], COLUMNS)
        self.rows = starts(x.shape[0], ROWS, first_alone=True), starts(weight.shape[0], ROWS)
        self.cells = block_max(x, self.rows[0], self.channels), block_max(weight, self.rows[1], self.channels)
        self.steps = {grid: steps(x, grid) for grid in GRIDS}
        groups = (0, 1) if x.shape[0] > 1 else (0,)
        self.errors = {grid: product_errors(part.x, part.weight, mapping, grid, groups) for grid in GRIDS}
        self.tops = [float(values.max()) for values in (x, weight)]

    def ceilings(self, grid: str) -> list[float]:
        """The largest representable value of every row of cells of |X|."""
        return [127 * float(block.max()) for block in _blocks(self.steps[grid], self.rows[0])]


def _blocks(values: Tensor, begins: Sequence[int]) -> list[Tensor]:
    edges = [*begins, values.shape[0]]
    return [values[a:b] for a, b in pairwise(edges)]


class _Scale:
    """One scale for all steps, apart for |X| and |W|: heights and colours.

    The log axis holds every step. The linear one holds what the figure opens with: α = 1 makes some weights thousands
    of times larger, and an axis for them would show nothing but them; such peaks are cut off there. Colours end
    there, too.
    """

    def __init__(self, views: Sequence[_View], opened: _View):
        self.tops = [max(view.tops[kind] for view in views) or 1.0 for kind in (0, 1)]
        first = (views[0], opened)
        self.linear = [max(view.tops[kind] for view in first) or 1.0 for kind in (0, 1)]
        self.rest = max(float(view.cells[0][1:].max()) for view in first) if len(opened.rows[0]) > 1 else 0.0
        # Three in a thousand cells may lie below the log axis: a zero would otherwise stretch it without end.
        lows = [torch.cat([view.cells[kind].flatten() for view in views]).quantile(0.003) for kind in (0, 1)]
        halves = [min(float(view.steps["per token"].min()) / 2 for view in views), float("inf")]
        self.floors = [
            max(min(float(low), half) * 0.8, top * 1e-6) for low, half, top in zip(lows, halves, self.tops, strict=True)
        ]

    def colours(self, values: Tensor, kind: int) -> Any:
        bottom, top = log10(self.floors[kind]), log10(self.linear[kind])
        shade = (values.clamp(min=self.floors[kind]).log10() - bottom) / max(top - bottom, 1e-6) * SHADES
        return shade.round().clamp(0, SHADES).to(torch.uint8).numpy()

    def axis(self, kind: int, log: bool, first: bool) -> dict[str, Any]:
        top = self.linear[kind] if first or kind == 1 else self.rest or self.linear[kind]
        if log:
            limits = [log10(self.floors[kind]), log10(self.tops[kind] * 1.15)]
            ticks = [10.0**power for power in range(ceil(limits[0]), floor(limits[1]) + 1)]
            return {
                "type": "log",
                "range": limits,
                "tickvals": ticks,
                "ticktext": [f"{tick / 1000:g}k" if tick >= 1000 else f"{tick:g}" for tick in ticks],
            }
        return {"type": "linear", "range": [0, top * 1.05], "tickvals": None, "ticktext": None}


def _heights(values: Tensor, low: float) -> Any:
    """As a typed array, which a page holds in half the space; what is below the log axis stays below it, never 0."""
    return values.clamp(min=low / 2).numpy()


def _traces(view: _View, scale: _Scale, side: int, moved: bool = False) -> list[Any]:
    """Everything on one side (0 before, 1 after): |X|, its planes with their labels for both grids, |W|.

    moved: only what a step of the slider changes.
    """
    found: list[Any] = []
    for kind, what in ((0, "x"), (1, "W")):
        cells = view.cells[kind]
        heights = {"z": _heights(cells, scale.floors[kind]), "surfacecolor": scale.colours(cells, kind)}
        row = "from token" if kind == 0 else "from output channel"
        still = {
            "x": view.channels,
            "y": view.rows[kind],
            "scene": SCENES[2 * kind + side],
            "name": f"|{what}|",
            "colorscale": "Cividis",
            "cmin": 0,
            "cmax": SHADES,
            "showscale": False,
            "lighting": {"ambient": 0.75, "diffuse": 0.5, "specular": 0.05, "roughness": 0.9},
            "hovertemplate": f"from channel %{{x}}, {row} %{{y}}<br>largest |{what}| = %{{z:.3g}}<extra></extra>",
        }
        found.append(go.Surface(**heights, **({} if moved else still)))
    for grid in GRIDS:
        found += _planes(view, scale, side, grid, moved)
    return found


def _planes(view: _View, scale: _Scale, side: int, grid: str, moved: bool) -> list[Any]:
    """The largest representable value, half a step, and what these are, in words on the upper plane."""
    tops = view.ceilings(grid)
    rows, edge = view.rows[0], view.channels[-1]
    found: list[Any] = []
    shown = {} if moved else {"scene": SCENES[side], "hoverinfo": "skip"}
    for name, heights, colour, opacity in (
        ("127 steps", tops, VERMILION, 0.22),
        ("half a step", [top / 254 for top in tops], BLUE, 0.3),
    ):
        z = {"z": _heights(torch.tensor([heights, heights]).T, scale.floors[0])}
        still = {
            "x": [0, edge],
            "y": rows,
            "name": f"{name}, {grid}",
            "colorscale": [[0, colour], [1, colour]],
            "showscale": False,
            "opacity": opacity,
            **shown,
        }
        found.append(go.Surface(**z, **({} if moved else still)))
    step = view.steps[grid]
    low, high = f"{float(step.min()):.2g}", f"{float(step.max()):.2g}"
    text = f"127 steps<br>of {low if low == high else f'{low} … {high}'}"
    label = {"z": [max(tops[-1], scale.floors[0])], "text": [text]}
    still = {
        "x": [edge / 2],
        "y": rows[-1:],
        "mode": "text",
        "textposition": "top center",
        "textfont": {"size": 12, "color": INK},
        "name": f"label, {grid}",
        **shown,
    }
    return [*found, go.Scatter3d(**label, **({} if moved else still))]


def _captions(before: _View, after: _View) -> list[dict[str, Any]]:
    """What each landscape is, with its largest value, and the readout of the step in full."""
    names = [name for pair in zip(before.formulas, after.formulas, strict=True) for name in pair]
    tops = (before.tops[0], after.tops[0], before.tops[1], after.tops[1])
    found: list[dict[str, Any]] = []
    for index, (name, top) in enumerate(zip(names, tops, strict=True)):
        found.append(
            {
                "name": f"caption {index}",
                "text": f"<b>{'after' if index % 2 else 'before'}: |{name}|</b> · largest {short(top)}",
                "x": sum(WIDTHS[index % 2]) / 2,
                "y": HEIGHTS[index // 2][1],
                "yanchor": "bottom",
                "font": {"size": 13, "color": INK},
            }
        )
    lines = [f"‖XWᵀ − X′W′ᵀ‖ / ‖XWᵀ‖ before rounding: <b>{after.errors[GRIDS[0]][0].before:.0e}</b>"]
    for grid in GRIDS:
        percent = [f"{100 * error.after:.2f} %" for error in after.errors[grid]]
        rest = f", without the first token {percent[1]}" if len(percent) > 1 else ""
        lines.append(f"after, steps {grid}: <b>{percent[0]}</b>{rest}")
    found.append(
        {
            "name": "readout",
            "text": "<br>".join(lines),
            "align": "left",
            "x": 0.5,
            "y": 0,
            "yshift": -98,
            "yanchor": "top",
            "font": {"size": 13, "color": INK},
        }
    )
    shared = {"xref": "paper", "yref": "paper", "showarrow": False, "xanchor": "center"}
    return [{**shared, **caption} for caption in found]


def _scene(index: int, scale: _Scale) -> dict[str, Any]:
    kind = index // 2
    quiet = {"showbackground": False, "gridcolor": "#d9dde2", "title": {"font": {"size": 11}}, "tickfont": {"size": 10}}
    x, y = WIDTHS[index % 2], HEIGHTS[kind]
    return {
        "domain": {"x": x, "y": y},
        "aspectmode": "manual",
        "aspectratio": {"x": 1.28, "y": 1.05, "z": 0.8},
        "camera": {**CAMERA, "projection": {"type": "perspective"}},
        "uirevision": "landscape",
        "xaxis": {**quiet, "title": {"text": "channel", "font": {"size": 11}}, "nticks": 5},
        "yaxis": {**quiet, "title": {"text": ("token", "output")[kind], "font": {"size": 11}}, "nticks": 4},
        "zaxis": {**quiet, "title": {"text": ""}, **scale.axis(kind, log=True, first=True)},
    }


def _menus(figure: go.Figure, scale: _Scale, opening: str) -> list[dict[str, Any]]:
    tokens = figure.data[0].y
    last = max(tokens[-1], 1)
    views = []
    for log, first in ((True, True), (True, False), (False, True), (False, False)):
        changes: dict[str, Any] = {}
        for index, scene in enumerate(SCENES):
            axis = scale.axis(index // 2, log, first)
            changes |= {f"{scene}.zaxis.{key}": value for key, value in axis.items()}
            if index < 2:
                # The axis ends at the second token: what lies before is clipped, the slope down from it included.
                changes[f"{scene}.yaxis.range"] = [0 if first else 1, last]
        label = f"{'log' if log else 'linear'}{'' if first else ', no first token'}"
        views.append({"label": label, "method": "relayout", "args": [changes]})
    planes = [index for index, data in enumerate(figure.data) if data.name.endswith(GRIDS)]
    grids = []
    for grid in GRIDS:
        shown = [figure.data[index].name.endswith(grid) for index in planes]
        grids.append({"label": f"steps {grid}", "method": "restyle", "args": [{"visible": shown}, planes]})
    grids.append({"label": "no planes", "method": "restyle", "args": [{"visible": [False] * len(planes)}, planes]})
    shared = {
        "type": "buttons",
        "direction": "right",
        "showactive": True,
        "xanchor": "left",
        "yanchor": "bottom",
        "bgcolor": "white",
        "bordercolor": "#c9d0d6",
        "font": {"size": 12},
        "x": 0,
        "y": 1,
    }
    return [
        {**shared, "name": "view", "buttons": views, "pad": {"l": 6, "b": 40}},
        {**shared, "name": "planes", "buttons": grids, "active": GRIDS.index(opening), "pad": {"l": 6, "b": 4}},
    ]


def _slider(names: Sequence[str], opening: int) -> dict[str, Any]:
    at_once = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    return {
        "active": opening,
        "x": 0.04,
        "len": 0.92,
        "y": 0,
        "pad": {"t": 22},
        "currentvalue": {"prefix": "smoothing strength α, or recipe: ", "font": {"size": 13, "color": INK}},
        "font": {"size": 12, "color": SOFT},
        "steps": [{"label": escape(name), "method": "animate", "args": [[name], at_once]} for name in names],
    }
