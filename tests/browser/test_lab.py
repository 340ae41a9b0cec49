"""The notebooks as a person meets them: opened in JupyterLab, run from the menu, touched by mouse and keyboard."""

import re

import nbformat
import pytest
from axe import complaints
from nbconvert import HTMLExporter

pytestmark = pytest.mark.slow

MINUTES = 60_000
READY = """() => {
  const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
  return Boolean(panel && panel.content && panel.content.model && panel.sessionContext.session
    && panel.sessionContext.session.kernel && panel.sessionContext.session.kernel.status === "idle");
}"""
CELLS = """() => {
  const cells = window.jupyterapp.shell.currentWidget.content.widgets.filter((cell) => cell.model.type === "code");
  return cells.map(({ model }) => (
    { count: model.executionCount, source: model.sharedModel.source, outputs: model.outputs.toJSON() }
  ));
}"""
ENDED = f"""() => {{
  const cells = ({CELLS})();
  const failed = cells.some((cell) => cell.outputs.some((output) => output.output_type === "error"));
  return failed || cells.every((cell) => cell.count !== null);
}}"""
OURS = re.compile(r"quasar|strip\.js|Error rendering|Error displaying|is not defined|Cannot read", re.IGNORECASE)


class Lab:
    """One notebook in a browser."""

    def __init__(self, page, seen, address):
        self.page, self.seen = page, seen
        page.goto(address)
        page.wait_for_function(READY, timeout=2 * MINUTES)

    def run_all(self, minutes=6):
        """Run ▸ Run All Cells, until every cell has run; fails with the first error that a cell shows."""
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        self.page.wait_for_function(ENDED, timeout=minutes * MINUTES, polling=500)
        assert self.errors() == []
        return self.page.evaluate(CELLS)

    def errors(self):
        return [
            f"{output['ename']}: {output['evalue']}\n{cell['source'][:200]}"
            for cell in self.page.evaluate(CELLS)
            for output in cell["outputs"]
            if output["output_type"] == "error"
        ]

    def show(self, text):
        """Scrolls to the first cell whose source holds `text` (cells far away are not in the page) and returns it."""
        place = self.page.evaluate(
            """(text) => {
              const notebook = window.jupyterapp.shell.currentWidget.content;
              const place = notebook.widgets.findIndex((cell) => cell.model.sharedModel.source.includes(text));
              notebook.activeCellIndex = place;
              return notebook.scrollToItem(place, "start").then(() => place);
            }""",
            text,
        )
        assert place >= 0
        cell = self.page.locator(f'.jp-Cell[data-windowed-list-index="{place}"]')
        cell.wait_for(timeout=MINUTES)
        return cell

    def close(self):
        self.page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")


def slider(cell, label):
    """The handle of a slider: ipywidgets gives it a role but no name."""
    return cell.locator(".widget-slider", has=cell.page.get_by_text(label, exact=True)).get_by_role("slider").first


@pytest.fixture
def notebook(page, jupyter, w8a8):
    """Opens a notebook, its models prepared; at the end its kernel goes, and the console must hold no error of ours."""
    opened = []

    def visit(name):
        opened.append(Lab(*page, jupyter(name)))
        return opened[-1]

    yield visit
    for lab in opened:
        lab.close()
        assert [line for line in lab.seen.errors if OURS.search(line)] == []


def test_the_tour_runs_at_first_try_and_explains_a_wrong_model(notebook):
    lab = notebook("00_start_here")
    cells = lab.run_all()
    assert any(output.get("name") == "stderr" for cell in cells for output in cell["outputs"]) is False
    panel = lab.show("pick_model")
    name = panel.get_by_label("model", exact=True)
    name.fill("no model of that name")
    name.press("Tab")
    panel.get_by_role("button", name="Load").click()
    alert = panel.get_by_role("alert")
    alert.wait_for(timeout=MINUTES)
    assert "is no folder here; accepted" in alert.inner_text()
    assert panel.get_by_text("stays loaded").is_visible()
    assert panel.get_by_role("button", name="Load").is_enabled()


def test_stop_ends_a_run(notebook):
    lab = notebook("00_start_here")
    lab.run_all()
    panel = lab.show("generate_live")
    box = panel.get_by_label("prompt", exact=True)
    box.fill("Write a long story about a lighthouse, with many chapters.")
    box.press("Tab")
    slider(panel, "new tokens").press("End")
    panel.get_by_role("button", name=re.compile(r"Run$")).click()
    stop = panel.get_by_role("button", name=re.compile(r"Stop$"))
    stop.wait_for(timeout=MINUTES)
    stop.click()
    panel.get_by_text("ended by: cancelled").wait_for(timeout=MINUTES)


def test_the_slider_for_alpha_changes_the_landscape(notebook):
    lab = notebook("01_outliers")
    lab.run_all()
    plot = lab.show("figures.surfaces(").locator(".js-plotly-plot").first
    rail = plot.locator(".slider-rail-touch-rect")
    rail.wait_for(timeout=MINUTES)
    state = "(plot) => [plot.layout.sliders[0].active, JSON.stringify(plot.data.map((trace) => trace.z))]"
    before = plot.evaluate(state)
    box = rail.bounding_box()
    for share in (0.02, 0.98):
        rail.click(position={"x": share * box["width"], "y": box["height"] / 2})
        lab.page.wait_for_function(
            "([plot, before]) => plot.layout.sliders[0].active !== before",
            arg=[plot.element_handle(), before[0]],
            timeout=MINUTES,
        )
        lab.page.wait_for_timeout(1500)
        after = plot.evaluate(state)
        assert after[1] != before[1]
        before = after


def test_the_strip_steps_by_keyboard_in_jupyterlab(notebook):
    lab = notebook("02_acceptance")
    lab.run_all()
    cell = lab.show("generate_live")
    strip = cell.locator(".quasar-strip").first
    strip.wait_for(timeout=MINUTES)
    root, rows = strip.locator(".qs-root"), strip.locator(".qs-round:not([hidden])")
    root.focus()
    root.press("Home")
    first = rows.count()
    for step in (1, 2):
        root.press("ArrowRight")
        assert rows.count() == first + step
    root.press("ArrowLeft")
    assert rows.count() == first + 1
    # The keys belong to the strip: JupyterLab has not moved to another cell.
    assert lab.page.evaluate("() => document.activeElement.closest('.quasar-strip') !== null")
    assert complaints(lab.page, ".quasar-strip") == []


@pytest.mark.parametrize("name", ["03_verifier_speed", "04_lossless"])
def test_it_runs_from_the_menu(notebook, name):
    cells = notebook(name).run_all()
    shown = [kind for cell in cells for output in cell["outputs"] for kind in output.get("data", {})]
    assert "application/vnd.plotly.v1+json" in shown


def test_a_saved_notebook_holds_no_megabytes_of_script_and_can_be_converted(notebook, tmp_path):
    """FigureWidget would store plotly's script; widget state without its "state" stops nbconvert."""
    lab = notebook("05_drafters")
    lab.run_all()
    text = lab.page.evaluate("() => JSON.stringify(window.jupyterapp.shell.currentWidget.content.model.toJSON())")
    assert len(text) < 1_000_000
    document = nbformat.reads(text, as_version=4)
    assert document.metadata.kernelspec.name == "python3"
    page, _ = HTMLExporter().from_notebook_node(document)
    assert "Drafters: who guesses" in page
    assert "interactive = True" in re.sub("<[^>]+>", "", page)


def test_the_model_panel_offers_recipes_and_runs_the_cells_below(notebook):
    lab = notebook("short")
    before = lab.run_all()
    panel = lab.show("pick_model")
    recipe = panel.get_by_label("recipe", exact=True)
    lines = [line.replace("\xa0", " ") for line in recipe.locator("option").all_text_contents()]
    assert len(lines) > 3
    assert all(" — " in line for line in lines)
    below = panel.get_by_role("button", name="Run the cells below")
    panel.locator("button", has_text="Run the cells below").wait_for(state="attached", timeout=MINUTES)
    assert below.count() == 0
    recipe.select_option(index=[line.startswith("w8a8-plain") for line in lines].index(True))
    panel.get_by_role("button", name="Load").click()
    below.wait_for(timeout=3 * MINUTES)
    below.click()
    lab.page.get_by_text("below: w8a8-plain").wait_for(timeout=MINUTES)
    after = lab.page.evaluate(CELLS)
    assert [cell["count"] for cell in after][:2] == [cell["count"] for cell in before][:2]
    panel.get_by_role("button", name="Free memory").click()
    panel.get_by_text("freed").wait_for(timeout=MINUTES)
    assert below.count() == 0
    assert complaints(lab.page, ".jp-OutputArea") == []


CUT = """() => [...document.querySelectorAll(".jp-OutputArea-output :is(.widget-inline-hbox, .jupyter-button)")]
  .filter((control) => control.offsetParent !== null && !control.classList.contains("widget-html"))
  .map((control) => {
    const box = control.getBoundingClientRect();
    const area = control.closest(".jp-OutputArea-output").getBoundingClientRect();
    return { what: control.textContent.trim() || control.className, width: box.width, over: box.right - area.right };
  })
  .filter(({ width, over }) => over > 1 || width < 60)"""
"""Controls of panels that stand out of their cell, or are squeezed to nothing."""


def test_no_control_is_cut_in_a_narrow_window(notebook):
    lab = notebook("controls")
    lab.run_all()
    shown = lab.page.locator(".jp-OutputArea-output .widget-inline-hbox")
    assert shown.count() > 12
    lab.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    for width in (1440, 1024, 420):
        lab.page.set_viewport_size({"width": width, "height": 1000})
        lab.page.wait_for_timeout(500)
        assert lab.page.evaluate(CUT) == [], f"at {width} pixels"
