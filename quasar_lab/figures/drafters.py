"""Which text can be drafted, and how far: acceptance by kind of text, by γ and by lookup length.

Drawn from simulations (`draft_simulation`), so a slider can move through every setting at once. τ caps at γ + 1, and
what a draft holds beyond its first wrong token is thrown away: the share of drafts kept shows that price.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from quasar_lab.evaluation.draft_simulation import PlainAnswer, table
from quasar_lab.figures.style import BLUE, GREEN, GREY, INK, LINE, ORANGE, PURPLE, SKY, VERMILION, escape, framed

CATEGORY_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
ALL = "all"


def tau_by_text(
    answered: Sequence[PlainAnswer], identity: Mapping[str, Any], *, longest: int = 3, gamma: int = 4
) -> go.Figure:
    """Left: τ of each kind of text with n-gram drafts, beside 1 without. Right: which share of the drafts was kept.

    identity: of the verifier that wrote the answers.
    """
    rows = table(answered, f"ngram:{longest}", gamma)
    rows.sort(key=lambda row: (row.category != ALL, row.mean_acceptance_length or 0))
    names = [row.category for row in rows]
    figure = make_subplots(
        rows=1,
        cols=2,
        shared_yaxes=True,
        horizontal_spacing=0.06,
        subplot_titles=("τ, tokens per round", "share of drafts kept"),
    )
    panels = (
        ("mean_acceptance_length", BLUE, ".2f", "τ = %{x:.2f}: %{customdata[0]} tokens in %{customdata[1]} rounds"),
        ("draft_acceptance_rate", GREEN, ".0%", "%{customdata[2]} of %{customdata[3]} drafted tokens kept"),
    )
    for column, (key, colour, form, words) in enumerate(panels, 1):
        values = [row[key] for row in rows]
        figure.add_bar(
            y=names,
            x=values,
            orientation="h",
            marker={"color": [INK if name == ALL else colour for name in names]},
            text=["–" if value is None else format(value, form) for value in values],
            textposition="outside",
            cliponaxis=False,
            customdata=[[row.new_tokens, row.rounds, row.accepted, row.drafted] for row in rows],
            hovertemplate=f"%{{y}}: {words}<extra></extra>",
            name=panels[column - 1][0].replace("_", " "),
            showlegend=False,
            row=1,
            col=column,
        )
    figure.add_vline(x=1, line={"color": GREY, "width": 1.5, "dash": "dash"}, row=1, col=1)
    most = max(2.0, *(row.mean_acceptance_length or 0 for row in rows))
    figure.update_xaxes(range=[0, 1.3 * most], row=1, col=1)
    figure.update_xaxes(range=[0, 1.3], tickformat=".0%", dtick=0.5, row=1, col=2)
    figure.update_layout(bargap=0.35)
    facts = f"n-gram lookup of at most {longest}, γ = {gamma} · {len(answered)} answers, temperature 0"
    said = f"{facts} · dashed: without a drafter"
    return framed(figure, "The text decides", said, identity, height=430, left=112, head=24)


def tau_by_settings(
    answered: Sequence[PlainAnswer],
    identity: Mapping[str, Any],
    *,
    gammas: Sequence[int],
    lookups: Sequence[int],
    longest: int = 3,
    gamma: int = 4,
) -> go.Figure:
    """τ per kind of text: left by γ (lookups of at most `longest`), right by the longest lookup (with γ = `gamma`)."""
    figure = make_subplots(
        rows=1,
        cols=2,
        horizontal_spacing=0.1,
        shared_yaxes=True,
        subplot_titles=("by γ", "by longest lookup"),
    )
    sweeps = (
        ([table(answered, f"ngram:{longest}", value) for value in gammas], gammas, 1),
        ([table(answered, f"ngram:{value}", gamma) for value in lookups], lookups, 2),
    )
    names = [row.category for row in sweeps[0][0][0]]
    colours = {**dict(zip(names, CATEGORY_COLOURS, strict=False)), ALL: INK}
    for tables, values, column in sweeps:
        for place, name in enumerate(names):
            rows = [rows[place] for rows in tables]
            figure.add_scatter(
                x=list(values),
                y=[row.mean_acceptance_length for row in rows],
                mode="lines+markers",
                line={"color": colours.get(name, GREY), "width": 3 if name == ALL else 2},
                marker={"size": 7},
                name=escape(name),
                legendgroup=name,
                showlegend=column == 1,
                customdata=[[row.accepted, row.drafted] for row in rows],
                hovertemplate=f"{escape(name)}, %{{x}}: τ = %{{y:.2f}}<br>"
                "%{customdata[0]} of %{customdata[1]} drafted tokens kept<extra></extra>",
                row=1,
                col=column,
            )
        figure.update_xaxes(type="category", tickangle=0, row=1, col=column)
    figure.update_xaxes(title_text="drafted tokens γ", title_font={"size": 13}, row=1, col=1)
    figure.update_xaxes(title_text="tokens looked up", title_font={"size": 13}, row=1, col=2)
    figure.update_yaxes(title_text="τ, tokens per round", gridcolor=LINE, row=1, col=1)
    title = "How far to look back, how far to draft"
    said = f"lookup of at most {longest} · γ = {gamma} · {len(answered)} answers, temperature 0"
    return framed(figure, title, said, identity, height=520, head=24, foot=40)
