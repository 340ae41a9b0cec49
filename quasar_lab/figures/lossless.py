"""Lossless with respect to which verifier? Greedy runs of one prompt, as rows of tokens, first difference marked.

## Idea

All runs are compared with the first. Up to the first difference of a run its tokens stand in the same columns as those
of the first run. Behind it the two texts are different texts, so nothing there is compared, and the tokens are grey. An
audited run also shows where an audit took tokens back (⟲). At those places it would have left BF16's text.

## Choice

The page is plain HTML without scripts. Token text is untrusted, so it is escaped. Whitespace is made visible.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from quasar_lab.evaluation.origin import Origin
from quasar_lab.evaluation.text_difference import Difference, difference, emitted, taken_back
from quasar_lab.figures.strip import StripHTML, asset
from quasar_lab.figures.style import origin_line, visible
from quasar_lab.speculative.token_states import TokenState
from quasar_lab.speculative.trace import Trace
from quasar_lab.support.errors import InputError

MARK = TokenState.RETRACTED.glyph
"""Where an audit took tokens back."""

BLOCK = 6
"""Tokens to a block. Blocks stand side by side where there is room."""


def lossless(traces: Sequence[Trace]) -> StripHTML:
    """Rows of tokens of greedy runs on one prompt, compared with the first run.

    Raises InputError on fewer than two runs, and on sampled ones or different prompts.
    """
    if len(traces) < 2:
        raise InputError(f"there are {len(traces)} runs; accepted: two or more, the first to compare the others with")
    first, *others = traces
    rows = [_first_row(first), *(_row(trace, first) for trace in others)]
    length = max(len(row.pieces) for row in rows)
    blocks = "".join(_block(rows, start, min(start + BLOCK, length)) for start in range(0, length, BLOCK))
    told = "".join(f"<li><b>{escape(row.name)}</b> {row.fact}</li>" for row in rows)
    title = f"Whose text is it? {len(traces)} greedy runs of one prompt"
    fragment = (
        f'<div class="quasar-lossless"><style>{asset("lossless.css")}</style><h4>{title}</h4><ul>{told}</ul>'
        f'<div class="ll-blocks">{blocks}</div>{_legend(rows)}'
        f'<p class="ll-stamp">{origin_line(Origin.from_json(first.header), recipe="")}</p></div>'
    )
    return StripHTML(fragment, title)


@dataclass(frozen=True)
class _Row:
    """One run."""

    name: str
    pieces: Sequence[str]
    fact: str
    """What is said of the run above the rows, as HTML."""
    taken: Mapping[int, int]
    """Position → tokens that an audit took back there."""
    is_first: bool = False
    """Whether the others are compared with it."""
    leaves: int | None = None
    """Position where it leaves the first run."""

    def cell(self, place: int) -> str:
        """The table cell of the token at this position."""
        if place >= len(self.pieces):
            return '<td class="ll-none"></td>'
        kind = "" if self.is_first else "ll-same"
        if self.leaves is not None and place >= self.leaves:
            kind = "ll-first" if place == self.leaves else "ll-behind"
        taken = self.taken.get(place)
        mark = "" if taken is None else f"{MARK} "
        note = "" if taken is None else f": an audit took back {taken} tokens here"
        piece = escape(visible(self.pieces[place]))
        return f'<td class="{kind}" title="{piece}, token {place}{note}">{mark}{piece}</td>'


def _first_row(trace: Trace) -> _Row:
    """The run that the others are compared with."""
    fact = f"{len(trace.token_ids)} tokens, which the others are compared with"
    return _Row(_name(trace), _pieces(trace), fact + _audits(trace), taken_back(trace), is_first=True)


def _row(trace: Trace, first: Trace) -> _Row:
    found = difference(first, trace)
    fact = _equality(trace, first) if found is None else _departure(found)
    leaves = None if found is None else found.position
    return _Row(_name(trace), _pieces(trace), fact + _audits(trace), taken_back(trace), leaves=leaves)


def _name(trace: Trace) -> str:
    return f"{trace.verifier} {'alone' if trace.drafter == 'none' else f'· {trace.drafter}'}"


def _pieces(trace: Trace) -> list[str]:
    return [piece for _, piece, _ in emitted(trace)]


def _departure(found: Difference) -> str:
    """What is said of a run that leaves the first one."""
    got, expected = (escape(visible(piece)) for piece in (found.got_piece, found.expected_piece))
    return (
        f"first difference at token {found.position}: <code>{got}</code> for <code>{expected}</code>, "
        f"which led by a margin of {found.margin:.2g}"
    )


def _equality(trace: Trace, first: Trace) -> str:
    """What is said of a run that is the first one, or its beginning, or goes on behind its end."""
    ours, theirs = trace.token_ids, first.token_ids
    if ours == theirs:
        return f"the same, all {len(ours)} tokens"
    return f"the same for {min(len(ours), len(theirs))} tokens, where one ends"


def _audits(trace: Trace) -> str:
    """What is said of a run's audits; nothing without any."""
    if not trace.audited:
        return ""
    refused = len(taken_back(trace))
    return f"; {len(trace.audits)} audits, {f'{refused} took tokens back {MARK}' if refused else 'all passed'}"


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
    if any(row.taken for row in rows):
        parts.append(f"<span>{MARK} an audit took tokens back and wrote this one</span>")
    return f'<div class="ll-legend">{"".join(parts)}</div>'
