"""|X| and |W| of one linear in few cells, at every smoothing strength, on one scale.

## Idea

Seen as landscapes, the two kinds of outliers look as different as they are. A persistent channel is a *ridge* along all
tokens. A massive token is a single *row* with spikes. As α grows, the ridges of |X| sink and those of |W| rise, so the
difficulty moves from one to the other. A landscape is drawn from a small grid of cells, and this module computes these
cells, the INT8 steps and the errors for every position of the slider.

## Choice

A cell holds the *largest* value that it covers. Taking every n-th channel instead would lose exactly the single
channels that this is about. The first token is a row of cells of its own, so that a figure can leave it out.

All positions of the slider share one scale, and |X| and |W| have one each. The logarithmic axis holds every position.
The linear axis holds what the figure opens with, because α = 1 makes some weights thousands of times larger, and an
axis for them would show nothing else.

## What is lost

A cell says how large its largest value is, and not how many values are large. Three in a thousand cells may lie below
the logarithmic axis, because a single zero would otherwise stretch it without end. Peaks above the linear axis are cut
off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from quasar_lab.evaluation.activations import Activations
from quasar_lab.evaluation.linear_view import InspectedLinear, inspect_linear
from quasar_lab.models.decoder import Decoder
from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.product_error import GRIDS, ProductError, product_errors, step_sizes
from quasar_lab.speculative.generation import Prompt
from quasar_lab.support.errors import InputError

ROWS, COLUMNS = 40, 64
"""Largest number of cells: tokens or output channels × input channels."""

STRENGTHS = tuple(tenth / 10 for tenth in range(11))
"""The smoothing strengths α of the slider."""

NONE = "none"
"""The slider's position without any mapping."""


# Cells


def block_starts(count: int, cells: int, first_alone: bool = False) -> list[int]:
    """Where each of at most `cells` blocks of nearly equal length begins.

    first_alone: index 0 is a block of its own. Raises InputError where there is nothing to divide, or no cell to put it
    in.
    """
    if count < 1 or cells < 1 + (first_alone and count > 1):
        raise InputError(f"{count} values into {cells} cells; accepted: at least one value and one cell")
    if first_alone and count > 1:
        return [0, *(1 + start for start in block_starts(count - 1, cells - 1))]
    cells = min(count, cells)
    return [cell * count // cells for cell in range(cells)]


def block_max(values: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """The largest value of every block: f32 [len(rows), len(columns)] for values f32 [M, K].

    Blocks begin at `rows` and `columns`, both from 0. No value is skipped, so the largest value of all is the largest
    of the result.
    """
    for axis, begins in ((0, rows), (1, columns)):
        edges = [*begins, values.shape[axis]]
        blocks = [values.narrow(axis, a, b - a).amax(dim=axis) for a, b in pairwise(edges)]
        values = torch.stack(blocks, dim=axis)
    return values


@dataclass(frozen=True)
class Cells:
    """A matrix of magnitudes in few cells."""

    values: Tensor
    """The largest value of every cell, f32 [rows, columns]."""

    rows: list[int]
    """The row of the matrix that each row of cells begins at."""

    columns: list[int]
    """The column of the matrix that each column of cells begins at."""

    largest: float
    """The largest value of the matrix."""


def cells_of(values: Tensor, first_alone: bool) -> Cells:
    """At most ROWS × COLUMNS cells of values f32 [M, K]; first_alone: row 0 is a row of cells of its own."""
    rows = block_starts(values.shape[0], ROWS, first_alone)
    columns = block_starts(values.shape[1], COLUMNS)
    return Cells(block_max(values, rows, columns), rows, columns, float(values.max()))


# One position of the slider


@dataclass(frozen=True)
class Landscape:
    """|X'| and |W'| of one linear at one position of the slider."""

    name: str
    """The position: NONE, a smoothing strength, or the name of a quantized model."""

    mapping: InputMap
    """What is done to X and W."""

    inputs: Cells
    """|X'|, tokens by channels."""

    weights: Cells
    """|W'|, output channels by input channels."""

    steps: dict[str, Tensor]
    """For each of GRIDS, the distance between two INT8 values in every row of X', f32 [M]."""

    errors: dict[str, list[ProductError]]
    """For each of GRIDS, the errors over all tokens, then without the first where there are others."""

    @property
    def cells(self) -> tuple[Cells, Cells]:
        """|X'| and |W'|."""
        return self.inputs, self.weights

    def ceilings(self, grid: str) -> list[float]:
        """The largest value that INT8 can hold in every row of cells of |X'|."""
        edges = [*self.inputs.rows, len(self.steps[grid])]
        return [127 * float(self.steps[grid][a:b].max()) for a, b in pairwise(edges)]


def landscape(linear: InspectedLinear, name: str, mapping: InputMap) -> Landscape:
    """One position of the slider."""
    x, weight = mapping.inputs(linear.x).abs(), mapping.weight(linear.weight).abs()
    first_rows = (0, 1) if x.shape[0] > 1 else (0,)
    return Landscape(
        name=name,
        mapping=mapping,
        inputs=cells_of(x, first_alone=True),
        weights=cells_of(weight, first_alone=False),
        steps={grid: step_sizes(x, grid) for grid in GRIDS},
        errors={grid: product_errors(linear.x, linear.weight, mapping, grid, first_rows) for grid in GRIDS},
    )


# All positions


@dataclass(frozen=True)
class HeightLimits:
    """The heights that the axes of |X|, or those of |W|, have to show."""

    floor: float
    """The lowest height of the logarithmic axis, above 0."""

    top: float
    """The largest value at any position of the slider."""

    opening_top: float
    """The largest value of the two landscapes that the figure opens with."""

    opening_top_without_first: float
    """The same without the first token, half a step for the whole tensor included. Rows of weights are no tokens, so
    for |W| it is `opening_top`."""


@dataclass(frozen=True)
class Landscapes:
    """|X| and |W| of one linear at every position of the slider."""

    linear: InspectedLinear
    """The linear and its input."""

    recipe: str | None
    """The name of the quantized model that the last position shows, or None."""

    grid: str
    """The scales of the activations that the figure opens with, one of GRIDS."""

    positions: list[Landscape]
    """No mapping, each smoothing strength, and the recipe where there is one."""

    opening: int
    """The position that the figure opens with."""

    limits: tuple[HeightLimits, HeightLimits]
    """The heights of |X| and of |W|."""

    @property
    def before(self) -> Landscape:
        """X and W as they are."""
        return self.positions[0]

    @property
    def opened(self) -> Landscape:
        """The position that the figure opens with."""
        return self.positions[self.opening]


def landscapes(
    model: Decoder,
    layer: int,
    projection: str,
    quantized: Decoder | None = None,
    text: Prompt | Activations | None = None,
    alphas: Sequence[float] = STRENGTHS,
    grid: str = GRIDS[0],
) -> Landscapes:
    """|X| and |W| of one linear without a mapping, with each of `alphas`, and with the recipe of `quantized`.

    The opening position is that recipe, or, without one, the α nearest to 0.5. Raises InputError on a layer or a grid
    that is not there, and on an α outside 0…1.
    """
    if not alphas or not all(0 <= alpha <= 1 for alpha in alphas):
        raise InputError(f"alphas are {list(alphas)}; accepted: at least one number from 0 to 1")
    if grid not in GRIDS:
        raise InputError(f"grid is {grid!r}; accepted: {', '.join(GRIDS)}")
    linear = inspect_linear(model, layer, projection, text)
    mappings = [(NONE, linear.unmapped()), *((f"{alpha:g}", linear.smoothed(alpha)) for alpha in alphas)]
    opening = 1 + min(range(len(alphas)), key=lambda index: abs(alphas[index] - 0.5))
    if quantized is not None:
        opening = len(mappings)
        mappings.append((quantized.name, linear.mapped(quantized).mapping))
    positions = [landscape(linear, name, mapping) for name, mapping in mappings]
    return Landscapes(
        linear=linear,
        recipe=None if quantized is None else quantized.name,
        grid=grid,
        positions=positions,
        opening=opening,
        limits=height_limits(positions, opening),
    )


def height_limits(positions: Sequence[Landscape], opening: int) -> tuple[HeightLimits, HeightLimits]:
    """One scale for all positions of the slider, for |X| and for |W|."""
    shown = (positions[0], positions[opening])
    # Half a step is drawn as a plane, so the floor of |X| has to lie below half of the smallest step.
    half_step = min(float(position.steps["per token"].min()) / 2 for position in positions)
    several = len(shown[0].inputs.rows) > 1
    rest = 0.0
    if several:  # half of one step for all tokens is drawn as a plane, and may be larger than any token but the first
        heights = [(float(view.inputs.values[1:].max()), max(view.ceilings("per tensor")) / 254) for view in shown]
        rest = max(max(pair) for pair in heights)
    inputs = _limits([position.inputs for position in positions], [view.inputs for view in shown], half_step, rest)
    return inputs, _limits([position.weights for position in positions], [view.weights for view in shown])


def _limits(
    every: Sequence[Cells], shown: Sequence[Cells], lowest: float = float("inf"), rest: float = 0.0
) -> HeightLimits:
    """Limits for the cells at every position, of which `shown` are those that the figure opens with.

    lowest: a height that the floor has to lie below. rest: the largest height without the first token, where it
    is known and not 0.
    """
    top = max(cells.largest for cells in every) or 1.0
    opening_top = max(cells.largest for cells in shown) or 1.0
    low = float(torch.cat([cells.values.flatten() for cells in every]).quantile(0.003))
    return HeightLimits(
        floor=max(min(low, lowest) * 0.8, top * 1e-6),
        top=top,
        opening_top=opening_top,
        opening_top_without_first=rest or opening_top,
    )
