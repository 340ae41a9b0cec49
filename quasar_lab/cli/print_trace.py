"""A trace as lines of text: what `quasar-lab replay` prints."""

from quasar_lab.speculative.token_states import TokenState
from quasar_lab.speculative.trace import Audit, Round, Trace


def print_rounds(trace: Trace) -> None:
    """One line a round: every draft with its state, then the token that the verifier added, and where a second verifier
    decides otherwise, as far as the drafts were judged: behind the first refusal nothing was decided. One line an
    audit: how much it kept, what it took back, and the token it added."""
    model, verifier, drafter = map(visible, (trace.model, trace.verifier, trace.drafter))
    print(f"{model} · {verifier} · {drafter} γ={trace.gamma}")
    states = [state for state in TokenState if trace.audited or not state.audits_only]
    print("states: " + "  ".join(f"{state.glyph} {state}" for state in states))
    differing = 0
    other = None
    pending: list[str] = []
    for record in trace.steps():
        if isinstance(record, Audit):
            print(_audit_line(record, pending, visible(trace.auditor or "")))
            pending = []
            continue
        pending += record.emitted_pieces
        line = _round_line(record)
        if record.other is not None:
            other = visible(record.other["verifier"])
            flipped = [str(place) for place, flip in enumerate(record.other["flip"][: record.accepted + 1], 1) if flip]
            if flipped:
                line += f"   ⇄ {other} decides otherwise at draft {', '.join(flipped)}"
                differing += 1
        print(line)
    if trace.audited and pending:
        print("      no audit yet of  " + "  ".join(_cell(TokenState.PROVISIONAL, piece) for piece in pending))
    if trace.footer is not None:
        summary = trace.summary()
        reason = visible(summary["finish_reason"])
        print(f"{summary['new_tokens']} tokens in {summary['rounds']} rounds, ended by {reason}")
    if other is not None:
        print(f"{other} decides otherwise in {differing} of {len(trace.rounds)} rounds")


def _round_line(record: Round) -> str:
    """Every draft with its state, then the verifier's own token."""
    cells = [_cell(state, piece) for state, piece in zip(record.states, record.draft_pieces, strict=True)]
    emitted = zip(record.emitted_states, record.emitted_pieces, strict=True)
    cells += [_cell(state, piece) for state, piece in emitted if state != TokenState.ACCEPTED]
    return f"{record.index + 1:4d}  " + "  ".join(cells)


def _audit_line(record: Audit, pending: list[str], auditor: str) -> str:
    """How many tokens an audit kept, those it took back, and the auditor's own token."""
    cells = [_cell(TokenState.RETRACTED, piece) for piece in pending[record.accepted :]]
    own = zip(record.emitted_states[record.accepted :], record.emitted_pieces[record.accepted :], strict=True)
    cells += [_cell(state, piece) for state, piece in own]
    told = f"audit by {auditor}: {record.accepted} of {record.length} kept"
    return "      " + "  ".join([told, *cells])


def _cell(state: str, piece: str) -> str:
    return f"{TokenState.of(state).glyph}{visible(piece)}"


def visible(piece: str) -> str:
    """A piece on one line: spaces as ␣, control characters as escapes, so that no token can steer the terminal."""
    shown = piece.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)
