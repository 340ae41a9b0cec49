"""What an audit costs: speed by how long tokens wait for one, predicted and measured.

Too short, and a wide BF16 pass comes too often; too long, and one refused token throws many away. The gap between the
two curves is what refusals cost; where a measured point lies off the curve, passes do not tell everything (drafting,
sampling, the short last audit of a text).
"""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from quasar_lab.figures.style import BLUE, GREEN, GREY, INK, escape, framed, interval

ADAPTS = "adapts"


def audit_cost(result: Mapping[str, Any]) -> go.Figure:
    """Speedup over BF16 with the same drafts, by audit length L. result: what `audit_cost.measure` returns."""
    predicted, base = result["predicted"], escape(result["base"])
    lengths = [row["length"] for row in predicted]
    rate = f"{result['flip_rate']:.1%}"
    figure = go.Figure()
    for key, name, colour, dash in (
        ("speedup_without_flips", "predicted, if none were refused", GREY, "dot"),
        ("speedup", f"predicted, {rate} refused", BLUE, "solid"),
    ):
        figure.add_scatter(
            x=lengths,
            y=[row[key] for row in predicted],
            mode="lines",
            line={"color": colour, "width": 2, "dash": dash},
            name=name,
            hovertemplate=f"L = %{{x}}: %{{y:.2f}} × {name}<extra></extra>",
        )
    for name, adapts, colour, symbol in (
        ("measured", False, INK, "circle"),
        (f"measured, L {ADAPTS}", True, GREEN, "diamond"),
    ):
        rows = [row for row in result["measured"] if (row["length"] is None) == adapts and row["audit_length"]]
        figure.add_scatter(
            x=[row["length"] or row["audit_length"] for row in rows],
            y=[row["speedup"] for row in rows],
            error_y=interval(rows, "low", "speedup", "high"),
            mode="markers",
            marker={"color": colour, "size": 10, "symbol": symbol},
            name=name,
            customdata=[[row["audit_length"], row["identical"], result["prompts"]] for row in rows],
            hovertemplate=(
                f"{name}: %{{y:.2f}} ×<br>%{{customdata[0]:.1f}} tokens an audit"
                f"<br>%{{customdata[1]}} of %{{customdata[2]}} answers equal those of {base}<extra></extra>"
            ),
        )
    figure.add_hline(y=1, line={"color": GREY, "width": 1}, layer="below")
    figure.add_vline(x=result["chosen"], line={"color": GREEN, "width": 1.5, "dash": "dash"}, layer="below")
    figure.add_annotation(
        x=result["chosen"], y=1, yref="paper", yanchor="bottom", text=f"chosen: L = {result['chosen']}", showarrow=False
    )
    figure.update_xaxes(
        title_text="audit length L: tokens that wait for an audit", title_standoff=8, range=[0, lengths[-1] + 1]
    )
    figure.update_yaxes(title_text=f"speedup over {base}, same drafts", rangemode="tozero")
    same, all_ = sum(row["identical"] for row in result["measured"]), result["prompts"] * len(result["measured"])
    facts = [
        f"{result['refused']} of {result['judged']:,} tokens refused",
        f"{same} of {all_} answers equal those of {base}",
        f"bars: 95 % over {result['prompts']} questions",
        f"drafter {escape(result['drafter'])}, γ = {result['gamma']}",
    ]
    identity = {**result, "recipe": f"{result['verifier']} against {result['base']}"}
    title = "What an audit costs"
    return framed(figure, title, " · ".join(facts), identity, timed=True, height=520, head=18, foot=24)
