"""A page with every kind of figure, made from results that are made up or saved: for what a browser says of them."""

import json
from dataclasses import replace
from pathlib import Path

import nbformat
from outlier_inputs import LAYER, PROJECTION
from plotly.offline import get_plotlyjs
from speed_results import steps_of, trace_of
from toys import ToyVerifier

from quasar_lab import figures
from quasar_lab.evaluation.draft_simulation import PlainAnswer
from quasar_lab.evaluation.fidelity import MarginHistograms, Series, TextFidelity
from quasar_lab.evaluation.histogram import Histogram
from quasar_lab.evaluation.origin import Origin
from quasar_lab.evaluation.recipe_frontier import FrontierRow
from quasar_lab.reports.page import notebook_page
from quasar_lab.speculative.generation import generate

SAVED = Path(__file__).parents[1] / "kernels" / "benchmarks" / "results"
KINDS = ("chat", "code", "maths", "question answering", "summarization", "translation")
RECIPES = ("w8a8", "w8a8-plain", "w8a8-smoothquant", "w8a8-searched", "w4a16-group:128")
FORMULA = r"""# Pages

$$\text{floor} = \frac
{\text{bytes of weights and cache that a pass reads}}
{\text{stream bandwidth of the same run, measured}}$$

| recipe | what it does to the weights and to the activations | where its factors come from |
|---|---|---|
| `w8a8-smoothquant` | moves difficulty from activations to weights | the calibration text of this project |
"""


def answers():
    prompt = [1, 2, 3, 1, 2, 4, 1, 2]
    found = []
    for seed, kind in enumerate(KINDS):
        text = generate(ToyVerifier(seed=seed), prompt, drafter="none", max_new_tokens=30).token_ids
        found.append(PlainAnswer(kind, str(seed), prompt, text, 30, frozenset()))
    return found


def fidelity(kl=0.01, verifier="w8a8-smoothquant"):
    counts = [3, 8, 30, 40, 20, 9]
    kls = Histogram(edges=[10.0**power for power in range(-6, 1)], counts=counts, below=2, above=0)
    margins = Histogram(edges=[10.0**power for power in range(-4, 3)], counts=counts, below=0, above=0)
    flips = Histogram(edges=margins.edges, counts=[1, 1, 1, 0, 0, 0], below=0, above=0)
    pieces = ["a"] * 107 + ["b"] * 3
    return TextFidelity(
        tokens=110,
        kl_mean=kl,
        kl_p99=9 * kl,
        top1_agreement=0.97,
        flips=3,
        flip_margin_p50=0.1,
        margin_p50=1.0,
        kl_histogram=kls,
        margin_histogram=MarginHistograms(all=margins, flips=flips),
        series=Series(
            kl=[10 ** (-place % 5 - 1) for place in range(110)], margin=[1.0] * 110, expected=["a"] * 110, got=pieces
        ),
        flip_margins=[],
        base="bf16",
        verifier=verifier,
        origin=Origin("SmolLM2-135M-Instruct", "cpu", "cpu", threads=2),
        perplexity_bf16=20.0,
        perplexity=21.0,
        per_layer=[],
        window=64,
    )


def recipes():
    return [
        FrontierRow(name, 135_000_000 - 9_000_000 * place, 2 * 10**8, 270_000_000, fidelity(0.02 / 2**place, name))
        for place, name in enumerate(RECIPES)
    ]


def named_trace():
    """A run with names as long as real ones."""
    trace = trace_of()
    return replace(
        trace, header={**trace.header, "model": "SmolLM2-135M-Instruct", "drafter": "ngram", "verifier": RECIPES[2]}
    )


def flat_figures(tiny):
    """Figures that are drawn without WebGL, by name."""
    steps, trace, answered = steps_of(), named_trace(), answers()
    other = replace(trace, header={**trace.header, "verifier": "bf16", "drafter": "none"})
    table = json.loads((SAVED / "decode-cpu-t0.json").read_text())
    text = figures.capture(tiny, [3, 17, 5, 80, 41, 5, 80, 2] * 4)
    identity = {"model": "SmolLM2-135M-Instruct", "recipe": "w8a8", "device": "cpu", "backend": "cpu", "threads": 2}
    at = (LAYER, PROJECTION)
    return {
        "outliers": figures.outliers(tiny, *at, text=text),
        "sorted": figures.outliers(tiny, *at, text=text, order="sorted"),
        "model_map": figures.model_map(tiny, text),
        "error_by_alpha": figures.error_by_alpha(tiny, *at, text=text),
        "channel": figures.channel(tiny, *at, 7, text=text),
        "acceptance": figures.acceptance(trace),
        "step_time": figures.step_time(steps),
        "roofline": figures.roofline(steps),
        "round_breakdown": figures.round_breakdown(trace),
        "mean_round": figures.mean_round([trace, other]),
        "speedup_map": figures.speedup_map(steps),
        "speedup": figures.speedup(table),
        "speedup_factors": figures.speedup_factors(table, "w8a8", "ngram"),
        "predicted_speedup": figures.predicted_speedup(table),
        "tau_by_text": figures.tau_by_text(answered, identity),
        "tau_by_settings": figures.tau_by_settings(answered, identity, gammas=[1, 2, 4, 8, 16], lookups=[1, 2, 3, 5]),
        "divergence": figures.divergence(fidelity()),
        "flip_margins": figures.flip_margins(fidelity()),
        "frontier": figures.frontier(recipes()),
    }


def write_page(folder, drawn):
    """A report page of figures, and what it needs beside it; returns its path."""
    cells = [nbformat.v4.new_markdown_cell(FORMULA)]
    for figure in drawn:
        outputs = [nbformat.v4.new_output("display_data", data=data) for data in figure.outputs()]
        cells.append(nbformat.v4.new_code_cell("figure", outputs=outputs))
    (folder / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    page = folder / "page.html"
    page.write_text(notebook_page(nbformat.v4.new_notebook(cells=cells), "figures", "plotly.min.js"), encoding="utf-8")
    return page
