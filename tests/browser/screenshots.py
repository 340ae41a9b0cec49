"""Makes README's pictures from real pages.

    .venv/bin/python tests/browser/screenshots.py [NAME…]

It runs notebooks headless, opens their report in chromium and takes a picture of one part of the page. A picture shows
what `quasar-lab report` shows in a window of 1040 pixels, with two pixels of the picture for each of the window.
"""

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import sync_playwright

from quasar_lab import reports
from quasar_lab.support.errors import InputError

PICTURES = Path(__file__).parents[2] / ".github"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Shot:
    """What a picture shows."""

    notebook: str
    """The notebook whose page it is taken from."""
    selector: str
    """CSS selector of the part; the first match is taken."""
    height: int = 1200
    """The most that is shown of the part, in pixels of the window."""


SHOTS = {
    "token_strip": Shot("02_acceptance", ".quasar-strip", 900),
    "outliers": Shot("01_outliers", '.figure[aria-label^="Layer 11"]'),
    "step_time": Shot("03_verifier_speed", '.figure[aria-label^="Time of one verify pass"]'),
    "drafters": Shot("05_drafters", '.figure[aria-label^="The text decides"]'),
    "frontier": Shot("06_low_bit_frontier", '.figure[aria-label^="Nearness"]'),
}
"""Picture → where it is taken from."""


def take(names: list[str], reported: Path) -> None:
    """Writes the pictures `names` from the pages in `reported`."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        raise InputError("no chromium is here; install it with: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--enable-unsafe-swiftshader"])
        page = browser.new_page(viewport={"width": 1040, "height": 1000}, device_scale_factor=2)
        for name in names:
            shot = SHOTS[name]
            page.goto((reported / f"{shot.notebook}.html").as_uri())
            page.add_style_tag(content=".modebar-container { display: none }")
            part = page.locator(shot.selector).first
            part.scroll_into_view_if_needed()
            page.wait_for_timeout(1500)  # figures are drawn when they are seen
            box = part.bounding_box()
            if box is None:
                raise InputError(f"{shot.notebook} shows no {shot.selector}")
            place = page.evaluate("() => [window.scrollX, window.scrollY]")
            clip = {
                "x": box["x"] + place[0],
                "y": box["y"] + place[1],
                "width": box["width"],
                "height": min(box["height"], shot.height),
            }
            page.screenshot(path=PICTURES / f"{name}.png", clip=clip, full_page=True)
            print(f"{name}.png: {clip['width']:.0f} × {clip['height']:.0f}")
        browser.close()


def main(names: list[str]) -> None:
    unknown = sorted(set(names) - set(SHOTS))
    if unknown:
        raise InputError(f"no picture {unknown[0]!r}; accepted: {', '.join(SHOTS)}")
    names = names or list(SHOTS)
    with tempfile.TemporaryDirectory(prefix="quasar-pictures-") as folder:
        if not reports.build(sorted({SHOTS[name].notebook for name in names}), Path(folder), {}, timeout=600):
            raise InputError("a notebook failed, so there is no picture of it")
        take(names, Path(folder))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        sys.exit(f"screenshots: {error}")
