"""A trace as lines of text: what `quasar-lab replay` prints."""

from quasar_lab.speculative.trace import Audit, Trace

GLYPHS = {
    "accepted": "✓",
    "rejected": "✗",
    "corrected": "↻",
    "bonus": "+",
    "plain": "·",
    "provisional": "◌",
    "retracted": "⟲",
}
AUDIT_STATES = ("provisional", "retracted")
"""Named only where a trace has audits."""


def print_rounds(trace: Trace) -> None:
    """One line a round: every draft with its state, then the token that the verifier added, and where a second verifier
    decides otherwise, as far as the drafts were judged: behind the first refusal nothing was decided. One line an
    audit: how much it kept, what it took back, and the token it added."""
    model, verifier, drafter = (visible(trace.header[key]) for key in ("model", "verifier", "drafter"))
    print(f"{model} · {verifier} · {drafter} γ={trace.header['gamma']}")
    legend = [f"{glyph} {state}" for state, glyph in GLYPHS.items() if trace.audited or state not in AUDIT_STATES]
    print("states: " + "  ".join(legend))
    differing, other = 0, None
    pending: list[str] = []
    for record in trace.steps():
        if isinstance(record, Audit):
            _print_audit(record, pending, visible(trace.header["auditor"]))
            pending = []
            continue
        cells = [
            f"{GLYPHS[state]}{visible(piece)}" for state, piece in zip(record.states, record.draft_pieces, strict=True)
        ]
        ends = zip(record.emitted_states, record.emitted_pieces, strict=True)
        cells += [f"{GLYPHS[state]}{visible(piece)}" for state, piece in ends if state != "accepted"]
        pending += record.emitted_pieces
        line = f"{record.index + 1:4d}  " + "  ".join(cells)
        if record.other is not None:
            other, judged = visible(record.other["verifier"]), record.other["flip"][: record.accepted + 1]
            flipped = [str(place) for place, flip in enumerate(judged, 1) if flip]
            if flipped:
                line += f"   ⇄ {other} decides otherwise at draft {', '.join(flipped)}"
                differing += 1
        print(line)
    if trace.audited and pending:
        print("      no audit yet of  " + "  ".join(f"{GLYPHS['provisional']}{visible(piece)}" for piece in pending))
    if trace.footer is not None:
        summary = trace.summary()
        reason = visible(summary["finish_reason"])
        print(f"{summary['new_tokens']} tokens in {summary['rounds']} rounds, ended by {reason}")
    if other is not None:
        print(f"{other} decides otherwise in {differing} of {len(trace.rounds)} rounds")


def _print_audit(record: Audit, pending: list[str], auditor: str) -> None:
    cells = [f"{GLYPHS['retracted']}{visible(piece)}" for piece in pending[record.accepted :]]
    own = zip(record.emitted_states[record.accepted :], record.emitted_pieces[record.accepted :], strict=True)
    cells += [f"{GLYPHS[state]}{visible(piece)}" for state, piece in own]
    told = f"audit by {auditor}: {record.accepted} of {record.length} kept"
    print("      " + "  ".join([told, *cells]))


def visible(piece: str) -> str:
    """A piece on one line: spaces as ␣, control characters as escapes, so that no token can steer the terminal."""
    shown = piece.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)
