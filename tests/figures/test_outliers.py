"""Landscapes keep the camera and the scale, one channel is said in words, and the explorer shows what is picked."""

import json
import re

import numpy as np
import pytest
import torch
from outlier_inputs import LAYER, PROJECTION, Rotating, with_channel, with_token
from test_figures import HOSTILE, IDS, named, stamp_of

from quasar_lab import figures, widgets
from quasar_lab.evaluation.landscapes import COLUMNS, ROWS, block_max, block_starts
from quasar_lab.evaluation.linear_view import inspect_linear
from quasar_lab.figures.notation import mapped_formulas
from quasar_lab.figures.surfaces import SCENES
from quasar_lab.models.input_map import InputMap
from quasar_lab.quantization.product_error import GRIDS, channel_shares
from quasar_lab.support.errors import InputError

FEW = (0.5,)


@pytest.fixture
def captured(tiny):
    return figures.capture(tiny, IDS)


# Landscapes


def test_a_planted_spike_is_the_top_of_its_landscape(tiny):
    long = figures.capture(tiny, IDS * 12)
    long.inputs[LAYER, PROJECTION][53, 29] = 777.0
    figure = figures.surfaces(tiny, LAYER, PROJECTION, text=long, alphas=FEW)
    before = named(figure, "|x|")[0]
    assert np.max(before.z) == 777.0
    row, column = np.unravel_index(np.argmax(before.z), before.z.shape)
    assert before.y[row] <= 53
    assert row + 1 == len(before.y) or before.y[row + 1] > 53
    assert before.x[column] <= 29
    assert "largest 777" in next(note.text for note in figure.layout.annotations if note.name == "caption 0")


def test_no_frame_has_a_camera_and_the_scenes_keep_theirs(tiny, captured):
    figure = figures.surfaces(tiny, LAYER, PROJECTION, text=captured, alphas=(0.2, 0.5))
    assert len(figure.frames) == 3
    assert "camera" not in json.dumps([frame.to_plotly_json() for frame in figure.frames], default=str)
    for frame in figure.frames:
        assert set(frame.layout.to_plotly_json()) == {"annotations"}
    assert figure.layout.uirevision
    for scene in SCENES:
        assert figure.layout[scene].uirevision
        assert figure.layout[scene].camera.projection.type == "perspective"
    for step in figure.layout.sliders[0].steps:
        assert step.method == "animate"
        assert step.args[1]["frame"]["redraw"]


def test_every_step_shows_its_own_mapping(tiny, captured):
    figure = figures.surfaces(tiny, LAYER, PROJECTION, text=captured, alphas=(0.0, 0.5, 0.75))
    part = inspect_linear(tiny, LAYER, PROJECTION, captured)
    assert [frame.name for frame in figure.frames] == ["none", "0", "0.5", "0.75"]
    assert figure.layout.sliders[0].active == 2
    for frame, mapping in zip(figure.frames, (part.unmapped(), *map(part.smoothed, (0.0, 0.5, 0.75))), strict=True):
        x, weight = mapping.inputs(part.x).abs(), mapping.weight(part.weight).abs()
        columns = block_starts(x.shape[1], COLUMNS)
        cells = block_max(x, range(len(IDS)), columns), block_max(weight, block_starts(weight.shape[0], ROWS), columns)
        for data, expected, scene in zip(frame.data, cells, ("scene", "scene3"), strict=False):
            lowest = 10 ** figure.layout[scene].zaxis.range[0]  # what is below the log axis stays below it
            assert np.allclose(np.maximum(data.z, lowest), expected.clamp(min=lowest))
            assert np.min(data.z) > 0
    still = [data for data in figure.data if data.scene == SCENES[1]]
    assert np.array_equal(still[0].z, figure.frames[2].data[0].z)
    moving = [figure.data[index] for index in figure.frames[0].traces]
    assert {data.scene for data in moving} == {SCENES[1], SCENES[3]}
    assert len(moving) == len(figure.frames[0].data)


def test_a_recipe_is_the_last_step_and_turns_the_channels(tiny, captured):
    recipe = Rotating(captured.at(LAYER, PROJECTION).shape[1])
    figure = figures.surfaces(tiny, LAYER, PROJECTION, recipe, captured, alphas=FEW)
    assert [frame.name for frame in figure.frames] == ["none", "0.5", "w8a8"]
    assert figure.layout.sliders[0].active == 2
    x = recipe.mapping.inputs(captured.at(LAYER, PROJECTION)).abs()
    assert np.max(named(figure, "|x|")[1].z) == pytest.approx(float(x.max()))
    texts = [note.text for note in figure.layout.annotations]
    assert any("|(X / s) R|" in text for text in texts)
    assert any("|(W · s) R|" in text for text in texts)
    assert "mapped as in w8a8" in stamp_of(figure)
    one_scale = [note.text for note in figure.frames[1].layout.annotations]
    assert any("|X / s|" in text for text in one_scale)


def test_before_and_after_have_one_locked_scale_in_every_view(tiny, captured):
    figure = figures.surfaces(tiny, LAYER, PROJECTION, text=with_token(captured), alphas=FEW)
    tall = {scene: figure.layout[scene].zaxis for scene in SCENES}
    assert tall["scene"] == tall["scene2"]
    assert tall["scene3"] == tall["scene4"]
    views = {button.label: button.args[0] for button in figure.layout.updatemenus[0].buttons}
    assert list(views) == ["log", "log, no first token", "linear", "linear, no first token"]
    for label, changes in views.items():
        assert not any("camera" in key for key in changes)
        for one, other in (("scene", "scene2"), ("scene3", "scene4")):
            assert changes[f"{one}.zaxis.range"] == changes[f"{other}.zaxis.range"]
            assert changes[f"{one}.zaxis.type"] == label.partition(",")[0]
    heights = [value for data in figure.data if data.name == "|x|" for value in np.ravel(data.z)]
    assert views["linear"]["scene.zaxis.range"][1] >= max(heights)
    assert 10 ** views["log"]["scene.zaxis.range"][1] >= max(heights)


def test_leaving_the_first_token_out_hides_its_row_and_rescales(tiny, captured):
    figure = figures.surfaces(tiny, LAYER, PROJECTION, text=with_token(captured), alphas=FEW)
    views = {button.label: button.args[0] for button in figure.layout.updatemenus[0].buttons}
    first = named(figure, "|x|")[0]
    assert list(first.y[:2]) == [0, 1]  # a row of its own
    assert views["linear"]["scene.yaxis.range"][0] == 0
    without = views["linear, no first token"]
    assert without["scene.yaxis.range"] == without["scene2.yaxis.range"]
    assert without["scene.yaxis.range"][0] == 1
    rest = max(float(np.max(data.z[1:])) for data in named(figure, "|x|"))
    assert without["scene.zaxis.range"][1] == pytest.approx(1.05 * rest)
    assert "scene3.yaxis.range" not in without  # rows of weights are no tokens


def test_planes_stand_at_127_steps_and_at_half_a_step(tiny, captured):
    figure = figures.surfaces(tiny, LAYER, PROJECTION, text=with_channel(captured), alphas=FEW)
    x = captured.at(LAYER, PROJECTION).abs()
    token, tensor = (named(figure, f"127 steps, {grid}")[0] for grid in GRIDS)
    assert np.allclose(token.z[:, 0], x.amax(dim=1))
    assert np.allclose(tensor.z, float(x.max()))
    assert np.allclose(named(figure, "half a step, per tensor")[0].z, float(x.max()) / 254)
    label = named(figure, "label, per tensor")[0]
    assert label.text == (f"127 steps<br>of {float(x.max()) / 127:.2g}",)


@pytest.mark.parametrize("grid", GRIDS)
def test_the_lower_plane_is_inside_every_axis_that_a_button_chooses(tiny, grid):
    """A first token so large that half of its step is above every other token, as in a real down_proj."""
    text = figures.capture(tiny, IDS)
    text.inputs[LAYER, PROJECTION][0, 5] = 300 * text.inputs[LAYER, PROJECTION][1:].abs().max()
    figure = figures.surfaces(tiny, LAYER, PROJECTION, text=text, alphas=(0.0, 0.5), grid=grid)
    planes = named(figure, f"half a step, {grid}")
    assert len(planes) == 2
    assert all(plane.visible for plane in planes)
    for button in figure.layout.updatemenus[0].buttons:
        for plane in planes:
            low, high = button.args[0][f"{plane.scene}.zaxis.range"]
            if button.args[0][f"{plane.scene}.zaxis.type"] == "log":
                low, high = 10**low, 10**high
            others = np.array(plane.z)[1:]
            assert low <= others.min(), button.label
            assert others.max() <= high, button.label


def test_words_under_the_landscapes_say_whose_factors_they_are_of(tiny, captured):
    recipe = Rotating(captured.at(LAYER, PROJECTION).shape[1])
    figure = figures.surfaces(tiny, LAYER, PROJECTION, recipe, captured, alphas=FEW)
    said = [next(note.text for note in frame.layout.annotations if note.name == "readout") for frame in figure.frames]
    assert ["no factors" in said[0], "factors of this text" in said[1]] == [True, True]
    assert f"factors of {recipe.name}" in said[2]
    exact = figures.exactness(tiny, LAYER, PROJECTION, recipe, captured)
    assert f"{100 * exact.after:.2f} %" in said[2]


def test_the_switch_of_planes_shows_one_grid_at_a_time(tiny, captured):
    for opening in GRIDS:
        figure = figures.surfaces(tiny, LAYER, PROJECTION, text=captured, alphas=FEW, grid=opening)
        assert {data.name.endswith(opening) for data in figure.data if data.visible and "|" not in data.name} == {True}
        menu = figure.layout.updatemenus[1]
        assert menu.buttons[menu.active].label == f"steps {opening}"
        for button in menu.buttons:
            visible, indices = button.args[0]["visible"], button.args[1]
            shown = [figure.data[index].name for index, on in zip(indices, visible, strict=True) if on]
            grid = button.label.removeprefix("steps ")
            assert all(name.endswith(grid) for name in shown)
            assert len(shown) == (6 if grid in GRIDS else 0)


def test_landscapes_of_one_token_and_of_zeros(tiny):
    activations = figures.capture(tiny, IDS[:1])
    activations.inputs[LAYER, PROJECTION] = torch.zeros_like(activations.at(LAYER, PROJECTION))
    figure = figures.surfaces(tiny, LAYER, PROJECTION, text=activations, alphas=FEW)
    assert np.isfinite(figure.layout.scene.zaxis.range).all()
    assert all(np.min(data.z) > 0 for data in figure.data)


def test_landscapes_stay_small(tiny):
    figure = figures.surfaces(tiny, LAYER, PROJECTION, text=(IDS * 16)[:120])
    cells = sum(np.size(data.z) for data in figure.data if data.name.startswith("|"))
    assert cells <= 4 * ROWS * COLUMNS
    assert len(figure.to_json()) < 1_000_000


# The error by smoothing strength


def test_too_little_smoothing_leaves_outliers_and_too_much_ruins_the_weights(tiny, captured):
    figure = figures.error_by_alpha(
        tiny, LAYER, PROJECTION, alphas=(0.0, 0.5, 1.0), text=with_channel(captured), grid="per tensor"
    )
    for panel in (0, 1):
        activations = named(figure, "only activations rounded")[panel].y
        weights = named(figure, "only weights rounded")[panel].y
        both = named(figure, "both rounded")[panel].y
        assert activations[0] > activations[1]
        assert weights[2] > weights[1]
        assert activations[0] > weights[0]
        assert weights[2] > activations[2]
        assert both[1] == min(both)
        assert both[0] == pytest.approx((activations[0] ** 2 + weights[0] ** 2) ** 0.5, rel=0.2)


# One channel


def test_a_channel_says_its_factor_its_maxima_and_its_share(tiny, captured):
    figure = figures.channel(tiny, LAYER, PROJECTION, 7, text=with_channel(captured))
    part = inspect_linear(tiny, LAYER, PROJECTION, captured)
    mapping = part.smoothed(0.5)
    before, after = figure.data
    assert set(before.y) == {100.0}
    assert list(after.y) == pytest.approx((part.x / mapping.factors)[:, 7].abs().tolist())
    said = figure.layout.title.subtitle.text
    factor = float(mapping.factors[7])
    columns = float(part.weight[:, 7].abs().max())
    shares = [100 * float(channel_shares(part.x, part.weight, how)[7]) for how in (part.unmapped(), mapping)]
    assert f"factor s = {factor:.3g}" in said
    assert f"max |x| 100 → {100 / factor:.3g}" in said
    assert f"max |w| {columns:.3g} → {columns * factor:.3g}" in said
    assert f"{shares[0]:.2g} % → {shares[1]:.2g} %" in said


def test_pointing_at_a_channel_says_its_share_of_the_error(tiny, captured):
    figure = figures.outliers(tiny, LAYER, PROJECTION, text=captured, order="sorted")
    part = inspect_linear(tiny, LAYER, PROJECTION, captured)
    shares = [100 * channel_shares(part.x, part.weight, how) for how in (part.unmapped(), part.smoothed(0.5))]
    for data, expected in zip(figure.data[::2], shares, strict=True):
        for number, _, share in data.customdata:
            assert share == pytest.approx(float(expected[number]), abs=0.006)


def test_token_text_in_figures_is_escaped(tiny, captured):
    captured.pieces[:4] = HOSTILE
    for figure in (
        figures.channel(tiny, LAYER, PROJECTION, 0, text=captured),
        figures.surfaces(tiny, LAYER, PROJECTION, text=captured, alphas=FEW),
        figures.outliers(tiny, LAYER, PROJECTION, text=captured),
    ):
        text = figure.to_json()
        assert "<img" not in text
        assert "<script" not in text


def test_formulas_name_what_is_rounded():
    ones, turn = torch.ones(4), torch.eye(1)
    assert mapped_formulas(InputMap(ones), "x", "W") == ("x / s", "W · s")
    assert mapped_formulas(InputMap(ones, turn), "X", "W") == ("(X / s) R", "(W · s) R")
    assert mapped_formulas(InputMap(ones, shift=ones), "x", "W") == ("(x − z) / s", "W · s")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda tiny: figures.surfaces(tiny, 2, PROJECTION, text=IDS), "accepted: layers 0…1"),
        (lambda tiny: figures.surfaces(tiny, 0, PROJECTION, text=IDS, alphas=()), "at least one number from 0 to 1"),
        (lambda tiny: figures.surfaces(tiny, 0, PROJECTION, text=IDS, alphas=(1.5,)), "from 0 to 1"),
        (lambda tiny: figures.surfaces(tiny, 0, PROJECTION, text=IDS, grid="per row"), "accepted: per token, per ten"),
        (lambda tiny: figures.error_by_alpha(tiny, 0, PROJECTION, text=IDS, grid="x"), "accepted: per token, per ten"),
        (lambda tiny: figures.channel(tiny, 0, PROJECTION, 48, text=IDS), "accepted: 0…47"),
        (lambda tiny: figures.channel(tiny, 0, PROJECTION, -1, text=IDS), "accepted: 0…47"),
    ],
)
def test_what_cannot_be_drawn_is_said(tiny, call, said):
    with pytest.raises(InputError, match=re.escape(said)):
        call(tiny)


# The explorer


def test_explorer_shows_what_is_asked_for_and_takes_it_away_again(tiny, captured, monkeypatch):
    monkeypatch.delenv("QUASAR_HEADLESS", raising=False)
    panel = widgets.outlier_explorer(tiny, layer=1, projection="down_proj", text=captured)

    def shown():
        return [area.outputs[0]["data"]["text/plain"].partition(": ")[2] for area in panel.areas if area.outputs]

    assert shown() == ["its input"]
    panel.landscapes.value = True
    panel.channel.value = " 7 "
    panel.errors.value = True
    panel.grid.value = "per tensor"
    panel.wait()
    assert shown() == ["its input", "how much to smooth", "landscapes", "channel 7"]
    landscape = panel.areas[2].outputs[0]["data"]["application/vnd.plotly.v1+json"]
    assert landscape["layout"]["updatemenus"][1]["active"] == 1
    assert len(landscape["frames"]) == 12
    panel.landscapes.value, panel.channel.value = False, ""
    panel.wait()
    assert shown() == ["its input", "how much to smooth"]


@pytest.mark.parametrize(
    ("typed", "said"), [("seven", "its number, from 0"), ("48", "accepted: 0…47"), ("-1", "from 0")]
)
def test_explorer_says_what_is_wrong_with_a_channel(tiny, captured, monkeypatch, typed, said):
    monkeypatch.delenv("QUASAR_HEADLESS", raising=False)
    panel = widgets.outlier_explorer(tiny, layer=1, projection="down_proj", text=captured)
    before = panel.areas[0].outputs
    panel.channel.value = typed
    panel.wait()
    assert said in panel.message.value
    assert "those of the pick before" in panel.message.value
    assert panel.areas[0].outputs == before
