"""Which text can be drafted, and how far: acceptance by category of text, by γ and by lookup length.

## Idea

The numbers come from simulated drafting (`draft_simulation`), which takes so little time that a slider can go through
every setting. τ is at most γ + 1. What a draft holds behind its first wrong token is thrown away, and the share of
drafted tokens that were kept shows how much that is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from quasar_lab.evaluation.draft_simulation import ALL, CategoryAcceptance, PlainAnswer, SettingsSweep, sweep, table
from quasar_lab.evaluation.origin import Origin
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LINE,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    escape,
    framed,
    label_room,
    origin_line,
)

CATEGORY_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)


def tau_by_text(
    answered: Sequence[PlainAnswer], identity: Mapping[str, Any], *, longest: int = 3, gamma: int = 4, span: float = 2.0
) -> Plot:
    """Left: τ of each category of text with n-gram drafts, beside 1 without. Right: which share of the drafts was kept.

    identity: of the verifier that wrote the answers. span: the least τ that the axis holds, so that it stands still
    under a slider.
    """
    rows = table(answered, f"ngram:{longest}", gamma)
    facts = f"n-gram lookup of at most {longest}, γ = {gamma} · {len(answered)} answers, temperature 0"
    said = f"τ: tokens a round, dashed without a drafter · {facts}"
    line = origin_line(Origin.from_json(identity))
    left = label_room(row.category for row in rows)
    return framed(_bars_by_text(rows, span), "The text decides", said, line, height=430, left=left, head=24)


def _bars_by_text(rows: Sequence[CategoryAcceptance], span: float) -> go.Figure:
    ordered = sorted(rows, key=lambda row: (row.category != ALL, row.mean_acceptance_length or 0))
    figure = make_subplots(
        rows=1,
        cols=2,
        shared_yaxes=True,
        horizontal_spacing=0.06,
        subplot_titles=("τ", "drafts kept"),
    )
    lengths = [row.mean_acceptance_length for row in ordered]
    _bars(
        figure,
        ordered,
        name="mean acceptance length",
        values=lengths,
        number=".2f",
        colour=BLUE,
        words="τ = %{x:.2f}: %{customdata[0]} tokens in %{customdata[1]} rounds",
        column=1,
    )
    _bars(
        figure,
        ordered,
        name="draft acceptance rate",
        values=[row.draft_acceptance_rate for row in ordered],
        number=".0%",
        colour=GREEN,
        words="%{customdata[2]} of %{customdata[3]} drafted tokens kept",
        column=2,
    )
    figure.add_vline(x=1, line={"color": GREY, "width": 1.5, "dash": "dash"}, row=1, col=1)
    most = max(span, *(length or 0 for length in lengths))
    figure.update_xaxes(range=[0, 1.3 * most], row=1, col=1)
    figure.update_xaxes(range=[0, 1.3], tickformat=".0%", dtick=0.5, row=1, col=2)
    return figure.update_layout(bargap=0.35)


def _bars(
    figure: go.Figure,
    rows: Sequence[CategoryAcceptance],
    *,
    name: str,
    values: Sequence[float | None],
    number: str,
    colour: str,
    words: str,
    column: int,
) -> None:
    """A bar per category in one panel. number: format of the text at its end. words: what its label says."""
    figure.add_bar(
        y=[row.category for row in rows],
        x=values,
        orientation="h",
        marker={"color": [INK if row.category == ALL else colour for row in rows]},
        text=["–" if value is None else format(value, number) for value in values],
        textposition="outside",
        cliponaxis=False,
        customdata=[[row.new_tokens, row.rounds, row.accepted, row.drafted] for row in rows],
        hovertemplate=f"%{{y}}: {words}<extra></extra>",
        name=name,
        showlegend=False,
        row=1,
        col=column,
    )


def tau_by_settings(
    answered: Sequence[PlainAnswer],
    identity: Mapping[str, Any],
    *,
    gammas: Sequence[int],
    lookups: Sequence[int],
    longest: int = 3,
    gamma: int = 4,
) -> Plot:
    """τ per category of text: left by γ, with lookups of at most `longest`, right by longest lookup, with `gamma`."""
    figure = _lines_by_settings(sweep(answered, gammas, lookups, longest, gamma))
    title = "How far to look back, how far to draft"
    said = f"lookup of at most {longest} · γ = {gamma} · {len(answered)} answers, temperature 0"
    line = origin_line(Origin.from_json(identity))
    return framed(figure, title, said, line, height=520, head=24, foot=40)


def _lines_by_settings(found: SettingsSweep) -> go.Figure:
    figure = make_subplots(
        rows=1,
        cols=2,
        horizontal_spacing=0.1,
        shared_yaxes=True,
        subplot_titles=("by γ", "by longest lookup"),
    )
    for column, tables in enumerate((found.by_gamma, found.by_lookup), 1):
        _lines(figure, tables, column)
        figure.update_xaxes(type="category", tickangle=0, row=1, col=column)
    figure.update_xaxes(title_text="drafted tokens γ", title_font={"size": 13}, row=1, col=1)
    figure.update_xaxes(title_text="tokens looked up", title_font={"size": 13}, row=1, col=2)
    return figure.update_yaxes(title_text="τ, tokens per round", gridcolor=LINE, row=1, col=1)


def _lines(figure: go.Figure, tables: Mapping[int, Sequence[CategoryAcceptance]], column: int) -> None:
    """A line per category over the settings of one panel. tables: setting → its rows, categories in the same order."""
    names = [row.category for row in next(iter(tables.values()))]
    colours = {**dict(zip(names, CATEGORY_COLOURS, strict=False)), ALL: INK}
    for place, name in enumerate(names):
        rows = [rows[place] for rows in tables.values()]
        figure.add_scatter(
            x=list(tables),
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
