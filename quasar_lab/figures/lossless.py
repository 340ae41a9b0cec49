"""Lossless for whom? Greedy runs of one prompt, as rows of tokens, with the first difference marked.

All runs are held against the first. Up to a run's first difference its tokens stand in the same columns for the same
reason; behind it the two texts go their own ways, so nothing there is compared, and it is greyed. An audited run also
shows where an audit took tokens back (⟲): the places where it would have left BF16's text.

The page is plain HTML, no script. Token text is untrusted and escaped; whitespace is made visible.
"""

from collections.abc import Sequence
from html import escape

from quasar_lab.evaluation.fidelity import difference, emitted
from quasar_lab.figures.strip import StripHTML, asset
from quasar_lab.figures.style import stamp, visible
from quasar_lab.speculative.token_states import TokenState
from quasar_lab.speculative.trace import Trace
from quasar_lab.support.errors import InputError

BLOCK = 6
"""Tokens to a block; blocks stand side by side where there is room."""


def lossless(traces: Sequence[Trace]) -> StripHTML:
    """Rows of tokens of greedy runs on one prompt, held against the first run.

    Raises InputError on fewer than two runs, and on sampled ones or different prompts.
    """
    if len(traces) < 2:
        raise InputError(f"there are {len(traces)} runs; accepted: two or more, the first to hold the others against")
    first, *others = traces
    rows = [_Row(first, None), *(_Row(trace, first) for trace in others)]
    length = max(len(row.pieces) for row in rows)
    blocks = "".join(_block(rows, start, min(start + BLOCK, length)) for start in range(0, length, BLOCK))
    told = "".join(f"<li><b>{escape(row.name)}</b> {row.fact}</li>" for row in rows)
    title = f"Whose text is it? {len(traces)} greedy runs of one prompt"
    fragment = (
        f'<div class="quasar-lossless"><style>{asset("lossless.css")}</style><h4>{title}</h4><ul>{told}</ul>'
        f'<div class="ll-blocks">{blocks}</div>{_legend(rows)}'
        f'<p class="ll-stamp">{stamp({**first.header, "recipe": None})}</p></div>'
    )
    return StripHTML(fragment, title)


class _Row:
    """A run as its row: pieces, where it leaves the reference, where audits took something back, what is said of it."""

    def __init__(self, trace: Trace, reference: Trace | None):
        ids = trace.token_ids
        self.name = f"{trace.verifier} {'alone' if trace.drafter == 'none' else f'· {trace.drafter}'}"
        self.pieces = [piece for _, piece, _ in emitted(trace)]
        self.reference = reference is None
        found = None if reference is None else difference(reference, trace)
        self.leaves = None if found is None else found.position
        prompt = len(trace.prompt_ids)
        self.corrected = {
            audit.position + audit.accepted - prompt: audit.length - audit.accepted
            for audit in trace.audits
            if audit.refused
        }
        if reference is None:
            self.fact = f"{len(ids)} tokens, which the others are held against"
        elif found is not None:
            mine, theirs = (escape(visible(piece)) for piece in (found.got_piece, found.expected_piece))
            self.fact = (
                f"first difference at token {found.position}: <code>{mine}</code> for <code>{theirs}</code>, "
                f"which led by a margin of {found.margin:.2g}"
            )
        elif ids == reference.token_ids:
            self.fact = f"the same, all {len(ids)} tokens"
        else:
            self.fact = f"the same for {min(len(ids), len(reference.token_ids))} tokens, where one ends"
        if trace.audited:
            took_back = f"{len(self.corrected)} took tokens back {TokenState.RETRACTED.glyph}"
            self.fact += f"; {len(trace.audits)} audits, {took_back if self.corrected else 'all passed'}"

    def cell(self, place: int) -> str:
        if place >= len(self.pieces):
            return '<td class="ll-none"></td>'
        kind = "" if self.reference else "ll-same"
        if self.leaves is not None and place >= self.leaves:
            kind = "ll-first" if place == self.leaves else "ll-behind"
        taken = self.corrected.get(place)
        mark = "" if taken is None else f"{TokenState.RETRACTED.glyph} "
        note = "" if taken is None else f": an audit took back {taken} tokens here"
        piece = escape(visible(self.pieces[place]))
        return f'<td class="{kind}" title="{piece}, token {place}{note}">{mark}{piece}</td>'


def _block(rows: Sequence[_Row], start: int, stop: int) -> str:
    head = f"<thead><tr><th></th><td>{start}</td></tr></thead>"
    lines = "".join(f"<tr><th>{escape(row.name)}</th>{''.join(map(row.cell, range(start, stop)))}</tr>" for row in rows)
    return f"<table>{head}<tbody>{lines}</tbody></table>"


def _legend(rows: Sequence[_Row]) -> str:
    parts = [
        f'<span><i class="ll-same"></i> same as {escape(rows[0].name)}</span>',
        '<span><i class="ll-first"></i> first difference</span>',
        '<span><i class="ll-behind"></i> behind it: another text, nothing to compare</span>',
    ]
    parts = parts if any(row.leaves is not None for row in rows) else parts[:1]
    if any(row.corrected for row in rows):
        parts.append(f"<span>{TokenState.RETRACTED.glyph} an audit took tokens back and wrote this one</span>")
    return f'<div class="ll-legend">{"".join(parts)}</div>'
