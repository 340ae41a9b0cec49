"""The token strip: every round of a trace, every draft, kept or refused, as HTML that needs nothing else.

The drawing is `strip.js` with `strip.css`, fed the records of the trace one by one; the live widget feeds the same code
the same records as they happen. Token text is untrusted: a model may emit `</script>` or `<img onerror=…>`. The script
puts text into the page as text nodes only, and the JSON here hides every `<`, so that no token can end the element that
carries it. Where scripts do not run (an untrusted notebook, a code host's preview) the answer is shown as plain text.
"""

import html
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from quasar_lab.trace import Trace


@dataclass(frozen=True)
class StripHTML:
    """A self-contained HTML fragment; notebooks show it, `str()` gives it, `page()` makes a page of it."""

    html: str
    title: str

    def _repr_html_(self) -> str:
        return self.html

    def __str__(self) -> str:
        return self.html

    def page(self) -> str:
        """A whole HTML page."""
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(self.title)}</title>'
            '<meta name="viewport" content="width=device-width"></head>'
            f'<body style="margin:24px;max-width:1080px">{self.html}</body></html>\n'
        )


@cache
def asset(name: str) -> str:
    """`strip.js` or `strip.css`."""
    return (files("quasar_lab.figures") / name).read_text(encoding="utf-8")


def embedded_json(value: object) -> str:
    """JSON that is safe inside a <script> element, whatever texts it holds."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def token_strip(trace: Trace) -> StripHTML:
    """The strip of a trace, finished or not: step with ← and →, space plays, every token opens its numbers."""
    title = f"{trace.header['model']} · {trace.header['verifier']} · {trace.header['drafter']}"
    fragment = (
        '<div class="quasar-strip">'
        f"<style>{asset('strip.css')}</style>"
        f'<div class="qs-root"><p class="qs-plain">{html.escape(trace.text)}</p></div>'
        f'<script type="application/json">{embedded_json(list(trace.records()))}</script>'
        f"<script>(function () {{\n{asset('strip.js')}\n"
        "const box = document.currentScript.parentElement;\n"
        "const strip = quasarStrip(box.querySelector('.qs-root'));\n"
        "strip.add(JSON.parse(box.querySelector('script[type=\"application/json\"]').textContent));\n"
        "}());</script></div>"
    )
    return StripHTML(fragment, title)
