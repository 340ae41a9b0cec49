"""The token strip: every round of a trace, every draft, kept or refused, as HTML that needs nothing else.

`strip_model.js` turns the records of the trace into rows of tokens and knows what each is at any moment of the run.
`strip.js` draws them, with `strip.css`. The live widget feeds the same code the same records as they happen. The signs
and colours of the token states come from `speculative.token_states`: the script starts with that table as JSON, and the
stylesheet with its colours.

Token text is untrusted: a model may emit `</script>`, `<img onerror=…>` or half a character. The script puts text into
the page as text nodes only. The JSON here is plain ASCII and holds no `<`, so that no token can end the element that
carries it, and half characters become U+FFFD, which every encoder takes. Where scripts do not run (an untrusted
notebook, a code host's preview) the answer is shown as plain text.
"""

import html
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from quasar_lab.speculative.token_states import TokenState, state_table
from quasar_lab.speculative.trace import Trace

DARK = (
    "@media (prefers-color-scheme: dark) { :root { color-scheme: dark; background: #111; --jp-layout-color0: #111; "
    "--jp-content-font-color1: #e8e8e8; --jp-content-font-color2: #b0b4b8; --jp-border-color2: #444; } }"
)
"""For a page of its own: JupyterLab's names, which the strip takes its colours from."""


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
        """A whole HTML page, dark where the reader's system is."""
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(self.title)}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{DARK}</style></head>'
            f'<body style="margin:24px;max-width:1080px">{self.html}</body></html>\n'
        )


@cache
def asset(name: str) -> str:
    """`strip.js`, `strip_model.js` or `strip.css`."""
    return (files("quasar_lab.figures") / name).read_text(encoding="utf-8")


def script() -> str:
    """JavaScript that defines `quasarStrip(root)`."""
    return f"const QUASAR_STATES = {embedded_json(state_table())};\n{asset('strip_model.js')}{asset('strip.js')}"


def stylesheet() -> str:
    """CSS of the strip, with the colours of the token states."""
    colours = "".join(f" --qs-{state}: {state.colour};" for state in TokenState if state.colour)
    return f".quasar-strip {{{colours} }}\n{asset('strip.css')}"


def embedded_json(value: object) -> str:
    """JSON that is safe inside a <script> element, whatever texts it holds."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def whole_characters(value: Any) -> Any:
    """The same JSON value with U+FFFD for every half of a surrogate pair, which has no encoding."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [whole_characters(item) for item in value]
    return value


def token_strip(trace: Trace) -> StripHTML:
    """The strip of a trace, finished or not: step with ← and →, space plays, every token opens its numbers. A trace
    that `replay.rescore` has judged again shows both verifiers side by side and marks what they decide differently."""
    title = " · ".join(whole_characters([trace.model, trace.verifier, trace.drafter]))
    records = whole_characters(list(trace.records()))
    fragment = (
        '<div class="quasar-strip">'
        f"<style>{stylesheet()}</style>"
        f'<div class="qs-root"><p class="qs-plain">{html.escape(whole_characters(trace.text))}</p></div>'
        f'<script type="application/json">{embedded_json(records)}</script>'
        f"<script>(function () {{\n{script()}\n"
        "const box = document.currentScript.parentElement;\n"
        "const strip = quasarStrip(box.querySelector('.qs-root'));\n"
        "strip.add(JSON.parse(box.querySelector('script[type=\"application/json\"]').textContent));\n"
        "}());</script></div>"
    )
    return StripHTML(fragment, title)
