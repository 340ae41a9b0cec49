"""Times: of one verify pass by width, and of the parts of a round.

At batch 1 a pass is bound by reading the weights, so T(M) is nearly flat in the width M: that is why drafting pays, and
why half the bytes can mean half the time. The floor drawn with every curve is what this machine's memory allows: bytes
read / stream bandwidth measured in the same run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

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
    escape,
    framed,
    interval,
    rows_of,
    samples_of,
)
from quasar_lab.speculative.trace import Round, Trace
from quasar_lab.support.errors import InputError

LIGHT = "#c7ccd1"
PASS_PARTS = (
    ("products", "products", SKY),
    ("attention", "attention", BLUE),
    ("rounding", "norms, rounding", PURPLE),
    ("other", "rest of verify", GREEN),
)
READOUT_LINE = 17


def step_time(result: dict[str, Any]) -> go.Figure:
    """T(M) of each verifier: median with a bar from the 20th to the 80th percentile, and its floor (dashed). A slider
    goes through the γ whose width was measured and reads off times, their ratio, bytes and floors.

    result: what `benchmark.step` returns, or the JSON of `quasar-lab bench step`.
    """
    verifiers = rows_of(result["steps"])
    figure = go.Figure()
    for (name, rows), colour in zip(verifiers.items(), VERIFIERS, strict=False):
        figure.add_scatter(
            x=[row["width"] for row in rows],
            y=[row["ms_p50"] for row in rows],
            error_y=interval(rows, "ms_p20", "ms_p50", "ms_p80"),
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"size": 8},
            name=escape(name),
            customdata=[[row["bytes"] / 1e6, row["fraction_of_floor"], row["samples"]] for row in rows],
            hovertemplate=(
                f"{escape(name)}, width %{{x}}<br>%{{y:.2f}} ms · %{{customdata[0]:.0f}} MB read"
                "<br>%{customdata[1]:.0%} of the stream bandwidth · %{customdata[2]} samples<extra></extra>"
            ),
        )
        figure.add_scatter(
            x=[row["width"] for row in rows],
            y=[row["floor_ms"] for row in rows],
            mode="lines",
            line={"color": colour, "width": 1.5, "dash": "dash"},
            name=f"floor of {escape(name)}",
            hovertemplate="floor %{y:.2f} ms<extra></extra>",
        )
    figure.update_xaxes(
        title_text="width M = γ + 1 of the pass", tickvals=sorted({s["width"] for s in result["steps"]})
    )
    highest = max(step["ms_p80"] for step in result["steps"])
    figure.update_yaxes(title_text="ms per pass", range=[0, 1.08 * highest])  # fixed: the slider must not move it
    subtitle = (
        "median and 20–80 %, verifiers interleaved · floor: bytes read at "
        f"{result['bandwidth_gb_s']:.1f} GB/s, measured here"
    )
    identity = {**result, "recipe": ", ".join(verifiers), "samples": samples_of(result["steps"])}
    head = READOUT_LINE * (len(verifiers) + 1) + 14
    framed(figure, "Time of one verify pass", subtitle, identity, timed=True, height=590, head=head, foot=78)
    _slider(figure, {name: {row["width"]: row for row in rows} for name, rows in verifiers.items()})
    return figure


def _slider(figure: go.Figure, verifiers: dict[str, dict[int, dict[str, Any]]]) -> None:
    """A slider over the widths that every verifier was timed at: rings on the curves, and a readout above the plot.

    Each step carries its own update of the figure, so it works on a page without Python."""
    widths = sorted(set.intersection(*(set(rows) for rows in verifiers.values())))
    if not widths:
        return
    start = min(range(len(widths)), key=lambda place: abs(widths[place] - 5))
    rings, readout = len(figure.data), len(figure.layout.annotations)
    places = [[row[width]["ms_p50"] for row in verifiers.values()] for width in widths]
    figure.add_scatter(
        x=[widths[start]] * len(verifiers),
        y=places[start],
        mode="markers",
        marker={"size": 18, "color": ORANGE, "symbol": "circle-open", "line": {"width": 2.5}},
        showlegend=False,
        hoverinfo="skip",
        name="at the slider",
    )
    figure.add_annotation(
        text=_readout(verifiers, widths[start]),
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
    steps = [
        {
            "label": str(width - 1),
            "method": "update",
            "args": [
                {"x": [[width] * len(verifiers)], "y": [at]},
                {f"annotations[{readout}].text": _readout(verifiers, width)},
                [rings],
            ],
        }
        for width, at in zip(widths, places, strict=True)
    ]
    figure.update_layout(
        sliders=[
            {
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
        ]
    )


def _readout(verifiers: dict[str, dict[int, dict[str, Any]]], width: int) -> str:
    """A line per verifier, and how many times faster the last is than the first."""
    lines = [
        f"{escape(name)} <b>{row['ms_p50']:.2f} ms</b>, {row['bytes'] / 1e6:.0f} MB, floor {row['floor_ms']:.2f} ms"
        for name, row in ((name, rows[width]) for name, rows in verifiers.items())
    ]
    first, *_, last = [*verifiers, list(verifiers)[-1]]
    head = f"γ = {width - 1}, a pass of width {width}"
    if first != last:
        ratio = verifiers[first][width]["ms_p50"] / verifiers[last][width]["ms_p50"]
        head += f": {escape(first)} / {escape(last)} = <b>{ratio:.2f}</b>"
    return "<br>".join([head, *lines])


def round_breakdown(trace: Trace, parts: Mapping[str, Any] | None = None) -> go.Figure:
    """Milliseconds of every round, stacked: draft, verify, sample, host; above each bar, the tokens it emitted.

    parts: what `pass_parts.measure` returns of the trace's verifier; verify is then split by the shares of the nearest
    width in it, which is an estimate, and said to be one. Raises InputError where `parts` does not hold the verifier.
    """
    rounds = trace.rounds
    numbers = [record.index + 1 for record in rounds]
    emitted = [len(record.emitted_ids) for record in rounds]
    figure = go.Figure()
    for name, colour, spent in _stack(trace, parts):
        figure.add_bar(
            x=numbers,
            y=spent,
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            customdata=emitted,
            hovertemplate=f"round %{{x}}: {name} %{{y:.2f}} ms · %{{customdata}} tokens emitted<extra></extra>",
        )
    heights = [sum(record.ms.values()) for record in rounds]
    figure.add_scatter(
        x=numbers,
        y=heights,
        mode="text",
        text=[str(count) for count in emitted],
        textposition="top center",
        name="tokens emitted",
        showlegend=False,
        hoverinfo="skip",
        cliponaxis=False,
    )
    figure.update_layout(barmode="stack", bargap=0.15, legend_traceorder="normal")
    figure.update_xaxes(title_text="round")
    figure.update_yaxes(title_text="ms", range=[0, 1.12 * max(heights, default=1.0)])
    total = sum(heights)
    share = sum(record.ms["verify"] for record in rounds) / total if total else 0.0
    subtitle = f"numbers: tokens emitted · {share:.0%} of the time is the verify pass"
    if rounds:
        subtitle += f" · {total / len(rounds):.1f} ms a round, {total / sum(emitted):.1f} ms a token"
    if parts is not None:
        subtitle += f" · {_estimated(parts)}"
    return framed(figure, "Where the time of a round goes", subtitle, _run(trace), timed=True, height=480)


def mean_round(traces: Sequence[Trace], parts: Mapping[str, Any] | None = None) -> go.Figure:
    """The mean round of several runs beside each other, one stacked bar each, in ms; what it costs a token beside it.

    parts: as in `round_breakdown`, of all verifiers of the runs. Raises InputError on no runs, or runs without rounds.
    """
    if not traces or not all(trace.rounds for trace in traces):
        raise InputError("a run has no rounds, or there is none; accepted: one or more runs with rounds")
    labels = [_label(trace) for trace in traces]
    stacks = [_stack(trace, parts) for trace in traces]
    figure = go.Figure()
    for (name, colour, _), *columns in zip(stacks[0], *stacks, strict=True):
        figure.add_bar(
            y=labels,
            x=[sum(spent) / len(spent) for _, _, spent in columns],
            orientation="h",
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate=f"%{{y}}<br>{name} %{{x:.2f}} ms<extra></extra>",
        )
    totals = [sum(sum(record.ms.values()) for record in trace.rounds) for trace in traces]
    tokens = [sum(len(record.emitted_ids) for record in trace.rounds) for trace in traces]
    heights = [total / len(trace.rounds) for total, trace in zip(totals, traces, strict=True)]
    figure.add_scatter(
        x=heights,
        y=labels,
        mode="text",
        text=[f" <b>{total / count:.1f}</b> ms a token" for total, count in zip(totals, tokens, strict=True)],
        textposition="middle right",
        showlegend=False,
        hoverinfo="skip",
        cliponaxis=False,
        name="ms a token",
    )
    figure.update_layout(barmode="stack", bargap=0.45, legend_traceorder="normal")
    figure.update_xaxes(title_text="ms a round, mean", range=[0, 1.55 * max(heights)])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    subtitle = "a round gives τ tokens: its time is divided by τ · runs made one after the other: compare within a bar"
    if parts is not None:
        subtitle += f" · {_estimated(parts)}"
    identity = {
        **traces[0].header,
        "recipe": ", ".join(dict.fromkeys(trace.header["verifier"] for trace in traces)),
        "rounds": sum(len(trace.rounds) for trace in traces),
    }
    height = 340 + 68 * len(traces)
    return framed(figure, "The mean round of each run", subtitle, identity, timed=True, height=height, left=76)


def _label(trace: Trace) -> str:
    header, rounds = trace.header, trace.rounds
    tau = sum(len(record.emitted_ids) for record in rounds) / len(rounds)
    drafter = "plain" if header["drafter"] == "none" else f"+ {escape(header['drafter'])}"
    return f"{escape(header['verifier'])}<br>{drafter}<br>τ = {tau:.2f}"


def _run(trace: Trace) -> dict[str, Any]:
    return {**trace.header, "rounds": len(trace.rounds)}


def _estimated(parts: Mapping[str, Any]) -> str:
    samples = min(row["samples"] for row in parts["parts"])
    return f"verify (blue to green) split by estimate: its ops timed one by one, {samples} samples"


def _stack(trace: Trace, parts: Mapping[str, Any] | None) -> list[tuple[str, str, list[float]]]:
    """(name, colour, ms per round) from the bottom up."""
    rounds = trace.rounds
    spent = {name: [record.ms[name] for record in rounds] for name in ("draft", "verify", "sample", "host")}
    if parts is None:
        verify = [("verify", SKY, spent["verify"])]
    else:
        shares = _shares(trace, parts)
        split = [_nearest(shares, record) for record in rounds]
        verify = [
            (label, colour, [share[part] * ms for share, ms in zip(split, spent["verify"], strict=True)])
            for part, label, colour in PASS_PARTS
        ]
    return [
        ("draft", ORANGE, spent["draft"]),
        *verify,
        ("sample", GREY, spent["sample"]),
        ("host", LIGHT, spent["host"]),
    ]


def _shares(trace: Trace, parts: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Width → part → share, of the verifier that made the rounds (audited: the INT8 one)."""
    name = trace.writer
    found = {row["width"]: row["shares"] for row in parts["parts"] if row["verifier"] == name}
    if not found:
        known = ", ".join(dict.fromkeys(row["verifier"] for row in parts["parts"]))
        raise InputError(f"the parts are of {known or 'nothing'}; accepted: of {name}, which made the trace")
    return found


def _nearest(shares: dict[int, dict[str, float]], record: Round) -> dict[str, float]:
    return shares[min(shares, key=lambda width: abs(width - len(record.draft_ids) - 1))]
