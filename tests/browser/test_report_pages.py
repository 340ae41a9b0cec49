"""Report pages as a browser sees them, with the network blocked: every figure is drawn, nothing is asked for outside,
nothing goes wrong in the console, and people who cannot see find their way (axe-core)."""

import json
import re

import pages
import pytest
from axe import complaints

pytestmark = pytest.mark.slow

LARGEST = 4_000_000

DRAWN = """() => [...document.querySelectorAll(".figure")].map((place) => {
  const box = place.getBoundingClientRect();
  const marks = [...place.querySelectorAll(".trace, .heatmaplayer image, .gl-container canvas")];
  const seen = marks.filter((mark) => mark.getBoundingClientRect().width > 0);
  return { label: place.getAttribute("aria-label"), area: box.width * box.height, marks: seen.length };
})"""
"""Lines and bars are .trace, maps are images, landscapes are canvases."""


def opened(page, path):
    page.goto(path.as_uri())
    page.wait_for_function(
        "() => [...document.querySelectorAll('.figure')].every((place) => place.classList.contains('js-plotly-plot'))"
    )
    page.wait_for_timeout(500)


@pytest.mark.parametrize("name", pages.OTHER)
def test_a_page_is_whole_without_a_network(name, page):
    (sheet, seen), (_, path) = page, pages.run(name)
    opened(sheet, path)
    figures = sheet.evaluate(DRAWN)
    expected = len(re.findall(r'<div class="figure"', path.read_text()))
    assert len(figures) == expected
    assert [figure for figure in figures if not (figure["area"] > 1e5 and figure["marks"] and figure["label"])] == []
    assert seen.errors == []
    assert seen.outside == []
    assert path.stat().st_size <= LARGEST
    assert sheet.locator("details.data").count() >= min(1, expected)
    assert complaints(sheet) == []


def test_the_index_leads_to_every_page_and_back(page):
    sheet, seen = page
    _, path = pages.run("05_drafters")
    sheet.goto((path.parent / "index.html").as_uri())
    summary = json.loads((path.parent / "results.json").read_text())["notebooks"][0]
    assert complaints(sheet) == []
    for result in summary["results"]:
        assert sheet.get_by_text(result["name"], exact=True).count() == 1
    sheet.get_by_role("link", name=summary["title"]).click()
    assert sheet.get_by_role("heading", level=1).inner_text() == summary["title"]
    sheet.get_by_role("link", name="all notebooks").click()
    assert sheet.get_by_role("heading", level=1).inner_text() == "Report"
    assert (seen.errors, seen.outside) == ([], [])


def test_the_numbers_of_a_figure_unfold(page):
    sheet, _ = page
    opened(sheet, pages.run("05_drafters")[1])
    first = sheet.locator("details.data").first
    assert not first.locator("table").first.is_visible()
    first.locator("summary").click()
    assert first.locator("table").first.is_visible()
    assert first.locator("tbody tr").count() > 3


def test_the_strip_steps_by_keyboard_on_a_page(page):
    sheet, seen = page
    sheet.goto(pages.run("02_acceptance")[1].as_uri())
    strip = sheet.locator(".quasar-strip").first
    root = strip.locator(".qs-root")
    root.focus()
    root.press("Home")
    shown = strip.locator(".qs-round:visible").count()
    root.press("ArrowRight")
    assert strip.locator(".qs-round:visible").count() == shown + 1
    assert seen.errors == []
