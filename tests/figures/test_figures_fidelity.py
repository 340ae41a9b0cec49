"""Figures of fidelity show the numbers they were given, mark the first difference where it is, and escape tokens."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from toys import VOCAB, Letters, ToyVerifier, toy_pair

import quasar_lab as ql
from quasar_lab import figures
from quasar_lab.evaluation.fidelity import on_own_answers
from quasar_lab.evaluation.text_difference import difference
from quasar_lab.support.errors import InputError

HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "&lt;b&gt;", '"><b>', "<!--")
PROMPT = [3, 1, 4]


class Hostile(Letters):
    """Every token is an attack."""

    def piece(self, token):
        return f"{HOSTILE[token % len(HOSTILE)]}{token}"


class Reader(HTMLParser):
    """Elements, classes and text of a page."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.cells, self.rows, self.text = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        attributes = dict(attributes)
        assert not any(name.startswith("on") for name in attributes)
        if tag == "td" and "title" in attributes:
            self.cells.append((int(re.search(r"token (\d+)", attributes["title"])[1]), attributes["class"]))

    def handle_data(self, data):
        self.text.append(data)


def pair_of(tokenizer, noise=0.5, seed=3):
    pair = toy_pair(noise, seed=seed)
    pair.exact.tokenizer = pair.fast.tokenizer = tokenizer
    return pair


@pytest.fixture(scope="module")
def read():
    """A toy's answers read by a noisy copy of it, all pieces hostile."""
    pair = pair_of(Hostile())
    return on_own_answers(pair.exact, pair.fast, [[a, b] for a in range(VOCAB) for b in range(3)], 15)


def stamp_of(figure):
    return next(a.text for a in figure.layout.annotations if a.name == "stamp")


def named(figure, name):
    return next(data for data in figure.data if data.name == name)


def markup(figure):
    """Texts of a figure that plotly would read as markup of an attack."""
    return re.findall(r"<(?:img|script|/script|b>\d|!--)", json.dumps(figure.to_plotly_json(), default=list))


class TestDivergence:
    def test_every_position_once_and_flips_marked(self, read):
        figure = figures.divergence(read)
        same, flips = named(figure, "same likeliest token"), named(figure, "flip")
        drawn = dict(zip([*same.x, *flips.x], [*same.y, *flips.y], strict=True))
        assert sorted(drawn) == list(range(len(read.series.kl)))
        kl = torch.tensor(read.series.kl).clamp(min=1e-9).log10()
        torch.testing.assert_close(torch.tensor([drawn[place] for place in sorted(drawn)]), kl)
        expected = [flip.position for flip in read.flip_margins if flip.position < len(kl)]
        assert list(flips.x) == expected
        assert 0 < len(expected) < len(kl)
        assert sum(named(figure, "share of all positions").x) == pytest.approx(1)
        low, high = figure.layout.yaxis.range
        assert low < float(kl.min())
        assert high > float(kl.max())
        assert stamp_of(figure) == "toy · fast against toy · cpu / toy backend"

    def test_two_that_are_the_same(self):
        toy = ToyVerifier()
        figure = figures.divergence(on_own_answers(toy, toy, [PROMPT], 10))
        assert list(named(figure, "flip").x) == []
        assert set(named(figure, "same likeliest token").y) == {-9.0}
        assert sum(named(figure, "share of all positions").x) == pytest.approx(1)

    def test_tokens_are_no_markup(self, read):
        assert "&lt;img" in json.dumps(figures.divergence(read).to_plotly_json(), default=list)
        assert markup(figures.divergence(read)) == markup(figures.flip_margins(read)) == []
        hostile = replace(read, origin=replace(read.origin, model=HOSTILE[0]), base=HOSTILE[1], verifier=HOSTILE[0])
        assert markup(figures.divergence(hostile)) == markup(figures.flip_margins(hostile)) == []


class TestFlipMargins:
    def test_shares_of_each(self, read):
        figure = figures.flip_margins(read)
        everywhere, flips = named(figure, "all positions"), named(figure, "flips")
        assert sum(everywhere.y) == pytest.approx(1)
        assert sum(flips.y) == pytest.approx(1)
        margins = torch.tensor([flip.margin for flip in read.flip_margins])
        for (low, high, count, _), share in zip(flips.customdata, flips.y, strict=True):
            inside = int(((margins >= low) & (margins < high)).sum())
            assert abs(count - inside) <= (low == flips.customdata[0][0]) * len(margins)
            assert share == pytest.approx(count / read.flips)

    def test_no_flips_are_said_to_be_none(self):
        toy = ToyVerifier()
        figure = figures.flip_margins(on_own_answers(toy, toy, [PROMPT], 10))
        assert "no flips in 10 tokens" in figure.layout.title.subtitle.text
        assert set(named(figure, "flips").y) == {0}


class TestLossless:
    def runs(self, seed, tokenizer=None):
        pair = pair_of(tokenizer or Letters(), 0.6, seed)
        return [
            ql.generate(pair.exact, PROMPT, drafter="none", max_new_tokens=20),
            *(ql.generate(verifier, PROMPT, max_new_tokens=20) for verifier in (pair.fast, pair)),
        ]

    def test_the_first_difference_is_marked_and_nothing_behind_it_compared(self):
        parted = 0
        for seed in range(6):
            runs = self.runs(seed)
            found = difference(runs[0], runs[1])
            cells = Reader(figures.lossless(runs).html).cells
            first = [place for place, kind in cells if kind == "ll-first"]
            behind = {place for place, kind in cells if kind == "ll-behind"}
            same = sum(kind == "ll-same" for _, kind in cells)
            if found is None:
                assert (first, behind, same) == ([], set(), 40)
                continue
            parted += 1
            assert first == [found.position]
            assert behind == set(range(found.position + 1, 20))
            assert same == 20 + found.position
        assert parted

    def test_corrections_of_audits_are_marked(self):
        corrections = 0
        for seed in range(6):
            runs = self.runs(seed)
            page = "".join(Reader(figures.lossless(runs).html).text)
            taken = sum(audit.accepted < audit.length for audit in runs[2].audits)
            assert (f"{taken} took tokens back" if taken else "all passed") in page
            assert page.count("⟲ ") - page.count("⟲ an audit") == taken
            corrections += taken
        assert corrections

    def test_tokens_are_text(self):
        parted = set()
        for seed in range(8):
            runs = self.runs(seed, Hostile())
            runs[0].header["model"] = HOSTILE[0]
            read = Reader(figures.lossless(runs).page())
            assert not {"img", "script"} & set(read.elements)
            assert read.elements.count("b") == 3  # the names of the runs
            assert len(read.cells) == 60
            assert HOSTILE[0] in "".join(read.text)
            found = difference(runs[0], runs[1])
            parted |= set() if found is None else {found.got_id % len(HOSTILE), found.expected_id % len(HOSTILE)}
        assert parted >= {0, 1}, "no difference was in a hostile token: this shows nothing"

    def test_one_run_or_a_sampled_one_is_refused(self):
        runs = self.runs(0)
        with pytest.raises(InputError, match="1 runs; accepted: two or more"):
            figures.lossless(runs[:1])
        with pytest.raises(InputError, match="sampled"):
            figures.lossless([runs[0], ql.generate(ToyVerifier(), PROMPT, temperature=1.0)])
