"""Times: of one verify pass by width, and of the parts of a round.

At batch 1 a pass is bound by reading the weights, so T(M) is nearly flat in the width M: that is why drafting pays, and
why half the bytes can mean half the time. The floor drawn with every curve is what this machine's memory allows: bytes
read / stream bandwidth measured in the same run.
"""

from collections.abc import Sequence

import plotly.graph_objects as go

from quasar_lab.evaluation.origin import Origin
from quasar_lab.evaluation.pass_profile import ProfileResult
from quasar_lab.evaluation.pass_time import StepResult, StepRow
from quasar_lab.evaluation.round_times import RoundTimes, round_times
from quasar_lab.figures.plot import Plot
from quasar_lab.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    SOFT,
    VERIFIERS,
    error_bars,
    escape,
    framed,
    label_room,
    origin_line,
)
from quasar_lab.speculative.trace import Trace
from quasar_lab.support.errors import InputError
from quasar_lab.support.result import Json

LIGHT = "#c7ccd1"
PARTS = {
    "draft": ("draft", ORANGE),
    "verify": ("verify", SKY),
    "products": ("products", SKY),
    "attention": ("attention", BLUE),
    "rounding": ("norms, rounding", PURPLE),
    "other": ("rest of verify", GREEN),
    "sample": ("sample", GREY),
    "host": ("host", LIGHT),
}
"""Part of a round → what a reader sees of it, and its colour."""
FIRST_WIDTH = 5
"""Where the slider starts: at the default γ of 4, or the width nearest to it."""
READOUT_LINE = 17
"""Pixels of a line of the readout."""


def step_time(result: StepResult | Json) -> Plot:
    """T(M) of each verifier: median with a bar from the 20th to the 80th percentile, and its floor (dashed). A slider
    goes through the γ whose width was measured and reads off times, their ratio, bytes and floors.

    result: what `benchmark.step` returns, or the JSON of `quasar-lab bench step`.
    """
    result = StepResult.of(result)
    verifiers = result.by_verifier()
    figure = go.Figure()
    for (name, rows), colour in zip(verifiers.items(), VERIFIERS, strict=False):
        _curve(figure, name, rows, colour)
        _floor(figure, name, rows, colour)
    widths = sorted({row.width for row in result.steps})
    figure.update_xaxes(title_text="width M = γ + 1 of the pass", tickvals=widths)
    highest = max(row.ms_p80 for row in result.steps)
    figure.update_yaxes(title_text="ms per pass", range=[0, 1.08 * highest])  # fixed: the slider must not move it
    subtitle = (
        "median and 20–80 %, verifiers interleaved · floor: bytes read at "
        f"{result.bandwidth_gb_s:.1f} GB/s, measured here"
    )
    figure = framed(
        figure,
        "Time of one verify pass",
        subtitle,
        step_origin(result, ", ".join(verifiers)),
        height=590,
        head=READOUT_LINE * (len(verifiers) + 1) + 14,
        foot=78,
    )
    if result.common_widths():
        _slider(figure, result)
    return figure


def step_origin(result: StepResult, recipe: str) -> str:
    """The stamp of a figure of pass times. recipe: whose times they are."""
    return origin_line(result.origin, recipe=recipe, count=f"{result.fewest_samples()} samples", timed=True)


def _curve(figure: go.Figure, name: str, rows: Sequence[StepRow], colour: str) -> None:
    times = [row.ms_p50 for row in rows]
    figure.add_scatter(
        x=[row.width for row in rows],
        y=times,
        error_y=error_bars([row.ms_p20 for row in rows], times, [row.ms_p80 for row in rows]),
        mode="lines+markers",
        line={"color": colour, "width": 2},
        marker={"size": 8},
        name=escape(name),
        customdata=[[row.bytes / 1e6, row.fraction_of_floor, row.samples] for row in rows],
        hovertemplate=(
            f"{escape(name)}, width %{{x}}<br>%{{y:.2f}} ms · %{{customdata[0]:.0f}} MB read"
            "<br>%{customdata[1]:.0%} of the stream bandwidth · %{customdata[2]} samples<extra></extra>"
        ),
    )


def _floor(figure: go.Figure, name: str, rows: Sequence[StepRow], colour: str) -> None:
    figure.add_scatter(
        x=[row.width for row in rows],
        y=[row.floor_ms for row in rows],
        mode="lines",
        line={"color": colour, "width": 1.5, "dash": "dash"},
        name=f"floor of {escape(name)}",
        hovertemplate="floor %{y:.2f} ms<extra></extra>",
    )


def _slider(figure: go.Figure, result: StepResult) -> None:
    """A slider over the widths that every verifier was timed at: rings on the curves, and a readout above the plot.

    Each step carries its own update of the figure, so it works on a page without Python."""
    widths = result.common_widths()
    start = min(range(len(widths)), key=lambda place: abs(widths[place] - FIRST_WIDTH))
    states = {width: _state(result, width) for width in widths}
    rings = len(figure.data)
    readout = len(figure.layout.annotations)
    _mark(figure, **states[widths[start]])
    steps = [
        {
            "label": str(width - 1),
            "method": "update",
            "args": [
                {"x": [state["x"]], "y": [state["y"]]},
                {f"annotations[{readout}].text": state["text"]},
                [rings],
            ],
        }
        for width, state in states.items()
    ]
    slider = {
        "active": start,
        "steps": steps,
        "currentvalue": {"prefix": "drafted tokens γ = ", "font": {"size": 13}},
        "pad": {"t": 66, "b": 0},
        "x": 0,
        "len": 1,
        "y": 0,
        "yanchor": "top",
        "font": {"size": 11, "color": SOFT},
    }
    figure.update_layout(sliders=[slider])


def _state(result: StepResult, width: int) -> Json:
    """What the slider shows at a width: the rings' places, and the readout: a line per verifier, and how many times
    faster the last is than the first."""
    rows = [result.row(verifier, width) for verifier in result.by_verifier()]
    first, last = rows[0], rows[-1]
    head = f"γ = {width - 1}, a pass of width {width}"
    if first is not last:
        ratio = first.ms_p50 / last.ms_p50
        head += f": {escape(first.verifier)} / {escape(last.verifier)} = <b>{ratio:.2f}</b>"
    lines = [
        f"{escape(row.verifier)} <b>{row.ms_p50:.2f} ms</b>, {row.bytes / 1e6:.0f} MB, floor {row.floor_ms:.2f} ms"
        for row in rows
    ]
    return {"x": [width] * len(rows), "y": [row.ms_p50 for row in rows], "text": "<br>".join([head, *lines])}


def _mark(figure: go.Figure, x: list[int], y: list[float], text: str) -> None:
    """Rings and readout, at the slider's first place."""
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"size": 18, "color": ORANGE, "symbol": "circle-open", "line": {"width": 2.5}},
        showlegend=False,
        hoverinfo="skip",
        name="at the slider",
    )
    figure.add_annotation(
        text=text,
        xref="paper",
        yref="paper",
        x=0,
        y=1,
        xshift=-50,
        yshift=6,
        xanchor="left",
        yanchor="bottom",
        align="left",
        showarrow=False,
        font={"size": 13, "color": INK},
        name="readout",
    )


def round_breakdown(trace: Trace, parts: ProfileResult | Json | None = None) -> Plot:
    """Milliseconds of every round, stacked: draft, verify, sample, host; above each bar, the tokens it emitted.

    parts: what `pass_parts.profile_passes` returns of the trace's verifier. Verify is then split by the shares of the
    nearest width in it, which is an estimate, and said to be one. Raises InputError where `parts` does not hold the
    verifier.
    """
    profile = None if parts is None else ProfileResult.of(parts)
    times = round_times(trace, profile)
    numbers = [record.index + 1 for record in trace.rounds]
    figure = go.Figure()
    for part, spent in times.parts.items():
        name, colour = PARTS[part]
        figure.add_bar(
            x=numbers,
            y=spent,
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            customdata=times.emitted,
            hovertemplate=f"round %{{x}}: {name} %{{y:.2f}} ms · %{{customdata}} tokens emitted<extra></extra>",
        )
    figure.add_scatter(
        x=numbers,
        y=times.rounds,
        mode="text",
        text=[str(count) for count in times.emitted],
        textposition="top center",
        name="tokens emitted",
        showlegend=False,
        hoverinfo="skip",
        cliponaxis=False,
    )
    figure.update_layout(barmode="stack", bargap=0.15, legend_traceorder="normal")
    figure.update_xaxes(title_text="round")
    figure.update_yaxes(title_text="ms", range=[0, 1.12 * max(times.rounds, default=1.0)])
    facts = ["numbers: tokens emitted", f"{times.verify_share:.0%} of the time is the verify pass"]
    if trace.rounds:
        facts.append(f"{times.ms_per_round:.1f} ms a round, {times.ms_per_token:.1f} ms a token")
    line = origin_line(Origin.from_json(trace.header), count=f"{len(trace.rounds)} rounds", timed=True)
    return framed(figure, "Where the time of a round goes", _facts(facts, profile), line, height=480)


def mean_round(traces: Sequence[Trace], parts: ProfileResult | Json | None = None) -> Plot:
    """The mean round of several runs beside each other, one stacked bar each, in ms; what it costs a token beside it.

    parts: as in `round_breakdown`, of all verifiers of the runs. Raises InputError on no runs, or runs without rounds.
    """
    if not traces or not all(trace.rounds for trace in traces):
        raise InputError("a run has no rounds, or there is none; accepted: one or more runs with rounds")
    profile = None if parts is None else ProfileResult.of(parts)
    runs = [round_times(trace, profile) for trace in traces]
    labels = [_label(trace, times) for trace, times in zip(traces, runs, strict=True)]
    figure = go.Figure()
    for part in runs[0].parts:
        name, colour = PARTS[part]
        figure.add_bar(
            y=labels,
            x=[times.mean(part) for times in runs],
            orientation="h",
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate=f"%{{y}}<br>{name} %{{x:.2f}} ms<extra></extra>",
        )
    figure.add_scatter(
        x=[times.ms_per_round for times in runs],
        y=labels,
        mode="text",
        text=[f" <b>{times.ms_per_token:.1f}</b> ms a token" for times in runs],
        textposition="middle right",
        showlegend=False,
        hoverinfo="skip",
        cliponaxis=False,
        name="ms a token",
    )
    figure.update_layout(barmode="stack", bargap=0.45, legend_traceorder="normal")
    figure.update_xaxes(title_text="ms a round, mean", range=[0, 1.8 * max(times.ms_per_round for times in runs)])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    facts = ["a round gives τ tokens: its time is divided by τ", "runs made one after the other: compare within a bar"]
    line, height = _runs_origin(traces), 340 + 68 * len(traces)
    return framed(
        figure, "The mean round of each run", _facts(facts, profile), line, height=height, left=label_room(labels)
    )


def _label(trace: Trace, times: RoundTimes) -> str:
    drafter = trace.header["drafter"]
    drafted = "plain" if drafter == "none" else f"+ {escape(drafter)}"
    return f"{escape(trace.header['verifier'])}<br>{drafted}<br>τ = {times.tau:.2f}"


def _runs_origin(traces: Sequence[Trace]) -> str:
    """The stamp of several runs of one model."""
    verifiers = ", ".join(dict.fromkeys(trace.header["verifier"] for trace in traces))
    rounds = sum(len(trace.rounds) for trace in traces)
    return origin_line(Origin.from_json(traces[0].header), recipe=verifiers, count=f"{rounds} rounds", timed=True)


def _facts(facts: list[str], profile: ProfileResult | None) -> str:
    """The subtitle; where verify is split, it says how."""
    if profile is not None:
        samples = profile.fewest_samples()
        estimate = f"verify (blue to green) split by estimate: its ops timed one by one, {samples} samples"
        facts = [*facts, estimate]
    return " · ".join(facts)
