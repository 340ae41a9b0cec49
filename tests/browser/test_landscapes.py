"""Landscapes in a browser: they are drawn, and moving the slider changes their heights and leaves them turned."""

import json

import pytest
from plotly.offline import get_plotlyjs

from quasar_lab import figures

pytestmark = pytest.mark.slow
PATIENCE = 120_000
"""Milliseconds: WebGL in software, on a busy machine."""

STATE = """() => {
  const plot = document.querySelector(".js-plotly-plot");
  const full = plot._fullLayout;
  const scenes = ["scene", "scene2", "scene3", "scene4"];
  const highest = (rows) => Math.max(...rows.map((row) => Math.max(...row)));
  const tops = plot._fullData.filter((data) => data.name.startsWith("|")).map((data) => highest([...data.z]));
  return {
    eyes: scenes.map((name) => { const {x, y, z} = full[name]._scene.getCamera().eye; return [x, y, z]; }),
    types: scenes.map((name) => full[name].zaxis.type),
    firsts: scenes.map((name) => full[name].yaxis.range[0]),
    shown: plot._fullData.filter((data) => data.visible === true).map((data) => data.name),
    readout: full.annotations.find((note) => note.name === "readout").text,
    tops,
  };
}"""
COLOURED = """() => Promise.all(["scene", "scene2", "scene3", "scene4"].map(async (name) => {
  const picture = new Image();
  picture.src = document.querySelector(".js-plotly-plot")._fullLayout[name]._scene.toImage("png");
  await picture.decode();
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [picture.width, picture.height];
  const context = copy.getContext("2d");
  context.drawImage(picture, 0, 0);
  const pixels = context.getImageData(0, 0, copy.width, copy.height).data;
  let coloured = 0;
  for (let at = 0; at < pixels.length; at += 4) {
    const [r, g, b, a] = pixels.slice(at, at + 4);
    if (a > 128 && Math.max(r, g, b) - Math.min(r, g, b) > 40) coloured += 1;
  }
  return coloured / (copy.width * copy.height);
}))"""
"""For each scene the share of pixels in colour: of an empty one none are."""

LAST_STEP = """() => {
  const plot = document.querySelector(".js-plotly-plot");
  const step = plot._fullLayout.sliders[0].steps.at(-1);
  Plotly[step.method](plot, ...step.args);
}"""


def until(view, expression):
    """Waits by the clock: frames, which playwright counts else, are rare where WebGL is drawn in software."""
    view.wait_for_function(f"() => {expression}", polling=300)


@pytest.fixture
def landscape(tiny, page, tmp_path):
    """(page, what was seen on it) with the landscapes of a toy model."""
    (tmp_path / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    text = [3, 17, 5, 80, 41, 5, 80, 2] * 3
    figure = figures.surfaces(tiny, 1, "down_proj", text=text, alphas=(0.0, 0.5, 1.0))
    figure.write_html(tmp_path / "page.html", include_plotlyjs="plotly.min.js", auto_play=False)
    view, seen = page
    view.set_default_timeout(PATIENCE)
    view.goto((tmp_path / "page.html").as_uri(), wait_until="commit")
    view.wait_for_selector(".slider-group")
    until(view, "document.querySelector('.js-plotly-plot')._fullLayout.scene4._scene?.glplot")
    return view, seen


def test_the_slider_moves_heights_and_leaves_the_camera(landscape):
    view, seen = landscape
    opened = view.evaluate(STATE)
    box = view.locator(".gl-container").first.bounding_box()
    turned = {"scene2.camera": {"eye": {"x": 1.1, "y": -1.6, "z": 1.3}}}
    view.evaluate("(changes) => Plotly.relayout(document.querySelector('.js-plotly-plot'), changes)", turned)
    # A hand on the first scene: what plotly keeps of it must survive as well.
    view.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + box["height"] * 0.35)
    view.mouse.down()
    view.mouse.move(box["x"] + box["width"] * 0.23, box["y"] + box["height"] * 0.35, steps=3)
    view.mouse.up()
    view.wait_for_timeout(1500)
    before = view.evaluate(STATE)
    assert before["eyes"][1] == pytest.approx([1.1, -1.6, 1.3])
    assert before["eyes"][1] != pytest.approx(opened["eyes"][1])
    view.evaluate(LAST_STEP)
    until(view, f"({STATE})().readout !== {json.dumps(before['readout'])}")
    view.wait_for_timeout(1500)
    after = view.evaluate(STATE)
    for one, other in zip(before["eyes"], after["eyes"], strict=True):
        assert other == pytest.approx(one)
    left, right = (0, 1), slice(2, None)
    assert [after["tops"][index] for index in left] == [before["tops"][index] for index in left]
    assert after["tops"][right] != before["tops"][right]
    assert seen.errors == []
    assert seen.outside == []


def test_buttons_change_the_view_and_every_scene_is_drawn(landscape):
    view, seen = landscape
    assert all(share > 0.02 for share in view.evaluate(COLOURED))
    view.get_by_text("linear, no first token", exact=True).click()
    until(view, f"({STATE})().types.every((type) => type === 'linear')")
    assert view.evaluate(STATE)["firsts"][:2] == [1, 1]
    view.get_by_text("steps per tensor", exact=True).click()
    until(view, f"({STATE})().shown.includes('127 steps, per tensor')")
    assert not [name for name in view.evaluate(STATE)["shown"] if name.endswith("per token")]
    assert seen.errors == []
