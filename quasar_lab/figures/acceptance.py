"""How many drafts are kept: per round, and by position in the draft.

## Idea

Words mean what they mean in the trace (`trace.acceptance`). Survival at position i is a share of the rounds that
drafted at least i tokens: those that kept the i-th. Rounds with short drafts leave the sample as i grows, so the curve
may rise. In an audited run both panels show what the fast verifier kept, and τ counts the tokens that audits have left.
"""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from quasar_lab.evaluation.origin import Origin
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.style import BLUE, GREEN, GREY, escape, framed, origin_line
from quasar_lab.speculative import trace as traces
from quasar_lab.speculative.trace import Trace


def acceptance(trace: Trace) -> Plot:
    """Left: rounds by number of accepted drafts, empty drafts apart. Right, where something was drafted: survival by
    draft position."""
    rates = traces.acceptance(trace.rounds, trace.gamma)
    rate = rates.draft_acceptance_rate
    titles = ("rounds by drafts kept", "survival by position") if rate is not None else ("rounds by drafts kept",)
    figure = make_subplots(rows=1, cols=len(titles), horizontal_spacing=0.14, subplot_titles=titles)
    _rounds_by_accepted(figure, trace, rates.acceptance_histogram)
    if rate is not None:
        _survival(figure, trace, rates.survival)
    facts = " · ".join(_facts(trace, rate))
    line = origin_line(Origin.from_json(trace.header))
    return framed(figure, "How many drafts are kept", facts, line, height=460, head=26)


def _rounds_by_accepted(figure: go.Figure, trace: Trace, histogram: Sequence[int]) -> None:
    empty = sum(not record.draft_ids for record in trace.rounds)
    nothing = [empty] + [0] * (len(histogram) - 1)
    something = [histogram[0] - empty, *histogram[1:]]
    for name, heights, colour in (
        ("something was drafted", something, GREEN),
        ("nothing was drafted", nothing, GREY),
    ):
        figure.add_bar(
            x=list(range(len(histogram))),
            y=heights,
            name=name,
            marker={"color": colour},
            hovertemplate="%{y} rounds with %{x} accepted<extra></extra>",
            row=1,
            col=1,
        )
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(title_text="drafts kept", dtick=1, row=1, col=1)
    figure.update_yaxes(title_text="rounds", rangemode="tozero", row=1, col=1)


def _survival(figure: go.Figure, trace: Trace, survival: Sequence[float | None]) -> None:
    places = list(range(1, len(survival) + 1))
    reached = [sum(len(record.draft_ids) >= place for record in trace.rounds) for place in places]
    figure.add_scatter(
        x=places,
        y=survival,
        mode="lines+markers+text",
        text=["" if share is None else f"{share:.0%}" for share in survival],
        textposition="top center",
        line={"color": BLUE, "width": 2},
        marker={"size": 8},
        customdata=reached,
        hovertemplate="draft position %{x}: %{y:.0%} of %{customdata} rounds<extra></extra>",
        showlegend=False,
        row=1,
        col=2,
    )
    figure.update_xaxes(title_text="draft position", dtick=1, range=[0.5, len(survival) + 0.5], row=1, col=2)
    figure.update_yaxes(range=[0, 1.15], tickformat=".0%", dtick=0.25, row=1, col=2)


def _facts(trace: Trace, rate: float | None) -> list[str]:
    """What the subtitle says. rate: draft acceptance rate."""
    facts = [
        "no rounds" if trace.tau is None else f"τ = {trace.tau:.2f} tokens per round",
        "nothing was drafted" if rate is None else f"{rate:.0%} of drafts accepted",
        f"{len(trace.rounds)} rounds",
        f"drafter {escape(trace.drafter)}, γ = {trace.gamma}",
    ]
    if trace.audited:
        refusing = sum(audit.refused for audit in trace.audits)
        facts.insert(3, f"{refusing} of {len(trace.audits)} audits took tokens back")
    return facts
