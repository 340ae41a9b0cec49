"""What an audit costs: speed by how long tokens wait for one, predicted and measured.

## Idea

Where audits are too short, a wide BF16 pass comes too often. Where they are too long, one refused token throws many
away. The gap between the two curves is what refusals cost. Where a measured point lies off the curve, passes do not
tell everything: drafting, sampling and the short last audit of a text take time too.
"""

import plotly.graph_objects as go

from quasar_lab.evaluation.audit_cost import AuditCost, MeasuredLength
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.style import BLUE, GREEN, GREY, INK, error_bars, escape, framed, origin_line

ADAPTS = "adapts"


def audit_cost(result: AuditCost) -> Plot:
    """Speedup over BF16 with the same drafts, by audit length L. result: what `audit_cost.measure_audit_cost`
    returns."""
    figure = go.Figure()
    _predicted_curves(figure, result)
    set_lengths = [row for row in result.measured if row.length is not None]
    adapting = [row for row in result.measured if row.length is None]
    _measured_points(figure, result, set_lengths, "measured", INK, "circle")
    _measured_points(figure, result, adapting, f"measured, L {ADAPTS}", GREEN, "diamond")
    _choice(figure, result.forecast.chosen)
    base, longest = escape(result.base), result.forecast.predicted[-1].length
    figure.update_xaxes(title_text="tokens that wait for an audit (L)", title_standoff=8, range=[0, longest + 1])
    figure.update_yaxes(title_text=f"speedup over {base}, same drafts", rangemode="tozero")
    facts = [
        f"{result.forecast.refused} of {result.forecast.judged:,} tokens refused",
        f"{result.identical} of {result.answers} answers equal those of {base}",
        f"bars: 95 % over {result.prompts} questions",
        f"drafter {escape(result.drafter)}, γ = {result.gamma}",
    ]
    recipe = f"{result.verifier} against {result.base}"
    line = origin_line(result.origin, recipe=recipe, count=f"{result.prompts} prompts", timed=True)
    return framed(figure, "What an audit costs", " · ".join(facts), line, height=520, head=18, foot=24)


def _predicted_curves(figure: go.Figure, result: AuditCost) -> None:
    """Predicted speedup by length, as it is and as it would be without refusals."""
    rows = result.forecast.predicted
    curves = (
        ("predicted, if none were refused", [row.speedup_without_flips for row in rows], GREY, "dot"),
        (f"predicted, {result.forecast.flip_rate:.1%} refused", [row.speedup for row in rows], BLUE, "solid"),
    )
    for name, speedups, colour, dash in curves:
        figure.add_scatter(
            x=[row.length for row in rows],
            y=speedups,
            mode="lines",
            line={"color": colour, "width": 2, "dash": dash},
            name=name,
            hovertemplate=f"L = %{{x}}: %{{y:.2f}} × {name}<extra></extra>",
        )


def _measured_points(
    figure: go.Figure, result: AuditCost, rows: list[MeasuredLength], name: str, colour: str, symbol: str
) -> None:
    """Speedups of timed runs that had audits, with their intervals."""
    rows = [row for row in rows if row.audit_length]
    figure.add_scatter(
        x=[row.length or row.audit_length for row in rows],
        y=[row.speedup for row in rows],
        error_y=error_bars([row.low for row in rows], [row.speedup for row in rows], [row.high for row in rows]),
        mode="markers",
        marker={"color": colour, "size": 10, "symbol": symbol},
        name=name,
        customdata=[[row.audit_length, row.identical, result.prompts] for row in rows],
        hovertemplate=(
            f"{name}: %{{y:.2f}} ×<br>%{{customdata[0]:.1f}} tokens an audit"
            f"<br>%{{customdata[1]}} of %{{customdata[2]}} answers equal those of {escape(result.base)}<extra></extra>"
        ),
    )


def _choice(figure: go.Figure, chosen: int) -> None:
    """Break-even, and the length that an audited run would choose."""
    figure.add_hline(y=1, line={"color": GREY, "width": 1}, layer="below")
    figure.add_vline(x=chosen, line={"color": GREEN, "width": 1.5, "dash": "dash"}, layer="below")
    figure.add_annotation(x=chosen, y=1, yref="paper", yanchor="bottom", text=f"chosen: L = {chosen}", showarrow=False)
