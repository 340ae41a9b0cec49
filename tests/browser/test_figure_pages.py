"""Figures as a reader meets them: nothing sends them anywhere, nothing in them overlaps or is cut at any width of the
page, and every word is legible in the light and in the dark."""

import base64
import re

import gallery
import pytest
from conftest import watched_page

pytestmark = pytest.mark.slow

WIDTHS = (420, 1024, 1440)

DRAWN = "() => [...document.querySelectorAll('.figure')].every((place) => place.querySelector('.main-svg'))"
BUTTONS = """() => [...document.querySelectorAll(".modebar-btn")].map((button) =>
  ({ title: button.dataset.title || "", link: button.getAttribute("href"), logo: button.matches(".plotlyjsicon") }))"""
OUTSIDE = """() => [...document.querySelectorAll("a[href], form, [onclick], button[formaction]")].map((part) =>
  part.getAttribute("href") || part.getAttribute("action") || part.outerHTML.slice(0, 80))
  .filter((address) => !address.startsWith("index.html"))"""

TEXTS = """
  const texts = (place) => [...place.querySelectorAll("text, .annotation-text-g text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return text.textContent.trim() && box.width > 0 && getComputedStyle(text).visibility !== "hidden";
  });
  const turned = (text) => /rotate\\((?!0[,)]|-?90[,)])/.test(text.getAttribute("transform") || "");
"""
BOXES = f"""() => {{
  {TEXTS}
  const found = [], page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) found.push(`the page is ${{page.scrollWidth}} wide`);
  for (const place of document.querySelectorAll(".figure")) {{
    const frame = place.getBoundingClientRect(), name = place.getAttribute("aria-label").slice(0, 30);
    const boxes = texts(place).map((text) => [text, text.getBoundingClientRect()]);
    boxes.forEach(([text, box], index) => {{
      const words = text.textContent.slice(0, 40);
      const beside = box.left < frame.left - 1 || box.right > frame.right + 1;
      if (beside || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        found.push(`${{name}}: “${{words}}” is cut`);
      for (const [other, its] of boxes.slice(index + 1)) {{
        if (turned(text) && turned(other)) continue; // beside each other, though their upright boxes touch
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 2 && down > 4) found.push(`${{name}}: “${{words}}” overlaps “${{other.textContent}}”`);
      }}
    }});
  }}
  return found;
}}"""

INKS = f"""() => {{
  {TEXTS}
  const found = [];
  for (const place of document.querySelectorAll(".figure")) for (const text of texts(place)) {{
    const box = text.getBoundingClientRect();
    found.push({{ words: text.textContent, ink: getComputedStyle(text).fill,
      box: [box.left + scrollX, box.top + scrollY, box.width, box.height] }});
  }}
  const words = document.querySelectorAll(".figure text");
  for (const text of words) text.style.setProperty("visibility", "hidden", "important");
  return found;
}}"""
CONTRASTS = """async ([picture, texts]) => {
  const image = new Image();
  image.src = picture;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => rgb.map((part) => linear(part / 255))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  return texts.map(({ words, ink, box }) => {
    const pixels = context.getImageData(...box.map(Math.round)).data, counts = {};
    for (let at = 0; at < pixels.length; at += 4) {
      const colour = pixels.slice(at, at + 3).join();
      counts[colour] = (counts[colour] || 0) + 1;
    }
    const most = Object.keys(counts).reduce((one, other) => counts[other] > counts[one] ? other : one);
    const paper = most.split(",").map(Number);
    const parts = ink.match(/[\\d.]+/g).map(Number), alpha = parts[3] ?? 1;
    const seen = parts.slice(0, 3).map((part, index) => alpha * part + (1 - alpha) * paper[index]);
    const [low, high] = [light(seen), light(paper)].sort((one, other) => one - other);
    return { words, ink, paper: paper.join(), contrast: (high + 0.05) / (low + 0.05) };
  });
}"""
"""Of each text the contrast of its ink with the commonest colour where it stands, as WCAG counts it."""


@pytest.fixture(scope="module")
def path(tiny, tmp_path_factory):
    return gallery.write_page(tmp_path_factory.mktemp("gallery"), gallery.flat_figures(tiny).values())


def opened(page, path):
    page.goto(path.as_uri())
    page.wait_for_function(DRAWN)
    page.wait_for_timeout(500)


def faint(page):
    """Texts whose contrast is too low to read."""
    texts = page.evaluate(INKS)
    picture = "data:image/png;base64," + base64.b64encode(page.screenshot(full_page=True)).decode()
    assert len(texts) > 100
    return [found for found in page.evaluate(CONTRASTS, [picture, texts]) if found["contrast"] < 4.5]


def test_no_control_sends_a_figure_anywhere(page, path):
    sheet, seen = page
    opened(sheet, path)
    buttons = sheet.evaluate(BUTTONS)
    titles = {button["title"] for button in buttons}
    assert any("Download" in title for title in titles)
    assert [button for button in buttons if button["logo"] or button["link"]] == []
    assert not [title for title in titles if re.search("share|cloud|upload|studio|plotly", title, re.IGNORECASE)]
    assert sheet.evaluate(OUTSIDE) == []
    assert seen.outside == []


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overlaps_and_nothing_is_cut(browser, path, width):
    with watched_page(browser) as (sheet, _):
        sheet.set_viewport_size({"width": width, "height": 900})
        opened(sheet, path)
        assert sheet.evaluate(BOXES) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_is_legible(browser, path, scheme):
    with watched_page(browser, color_scheme=scheme) as (sheet, _):
        opened(sheet, path)
        assert faint(sheet) == []


def test_figures_follow_a_theme_that_changes_under_them(page, path):
    sheet, _ = page
    opened(sheet, path)
    paper = "[...document.querySelectorAll('.main-svg')].map((one) => getComputedStyle(one).backgroundColor)"
    papers = f"() => [...new Set({paper})]"
    before = sheet.evaluate(papers)
    sheet.emulate_media(color_scheme="dark")
    assert "rgb(255, 255, 255)" in before
    assert sheet.evaluate(papers) == ["rgba(0, 0, 0, 0)"]
    assert sheet.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(17, 17, 17)"
    assert faint(sheet) == []


def test_figures_follow_jupyterlab(browser, tiny, tmp_path):
    """JupyterLab says its theme on <body>; the sheet that a figure brings along is all that follows it."""
    drawn = gallery.flat_figures(tiny)["acceptance"]
    (tmp_path / "page.html").write_text(
        "<body data-jp-theme-light='true' style='background: var(--jp-layout-color0)'><style>"
        "[data-jp-theme-light=false] { --jp-layout-color0: #111; --jp-content-font-color1: #fff; }</style>"
        + drawn.to_html(full_html=False)
        + drawn.outputs()[1]["text/html"],
        encoding="utf-8",
    )
    with watched_page(browser) as (sheet, _):
        sheet.goto((tmp_path / "page.html").as_uri())
        ink = "() => getComputedStyle(document.querySelector('.gtitle')).fill"
        assert sheet.evaluate(ink) == "rgb(27, 31, 36)"
        sheet.evaluate("() => { document.body.dataset.jpThemeLight = 'false'; }")
        assert sheet.evaluate(ink) == "rgb(255, 255, 255)"
        assert (
            sheet.evaluate("() => getComputedStyle(document.querySelector('.main-svg')).backgroundColor")
            == "rgba(0, 0, 0, 0)"
        )
