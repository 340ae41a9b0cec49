"""The token strip: states as the run had them, sources as they were copied, token text that stays text, in a browser.

Oracles are the Python trace: a strip at some step shows what `Trace.audit_states` says of the trace cut there.
"""

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import FixedDrafter, SamplingDrafter, ToyVerifier, toy_pair

import quasar_lab as ql
from quasar_lab.evaluation.rescore import differences, rescore
from quasar_lab.figures import acceptance
from quasar_lab.figures.strip import embedded_json, token_strip, whole_characters
from quasar_lab.speculative.trace import Prefill, Round, Trace
from quasar_lab.support.errors import TraceError
from quasar_lab.widgets import token_strip as live

HOSTILE = [
    '<img src=x onerror="window.harmed=1">',
    "</script><script>window.harmed=1</script>",
    "<!--",
    "<!--<script>",
    "]]>",
    "&lt;b&gt;",
    "\u2028\u2029",
    "\u202eabc\u2066",
    "\u200f",
    "\ud800",
    "\udfff\ud83d",
    "\x00\x1b[2J",
    "\ufeff",
    "e\u0301",
    "\U0001f469\u200d\U0001f4bb",
    "__proto__",
    "${harmed}`",
    "\\u003cimg>",
    "'\"",
    " \t\r\n",
    "",
]
PIECES = st.sampled_from(HOSTILE) | st.text(alphabet=st.characters(), max_size=12)


def trace_of(pieces):
    """One round whose every text is hostile: drafts, top tokens, names, answer."""
    first, *rest = pieces
    count = len(rest)
    header = {
        **dict.fromkeys(("model", "checksum", "recipe", "verifier", "drafter", "device", "started"), first),
        "schema": "quasar-trace/1",
        "kind": "header",
        "backend": "cpu",
        "gamma": 16,
        "versions": {},
        "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0},
        "prompt_ids": [0] * len(pieces),
        "prompt_pieces": pieces,
        "prompt_text": "".join(pieces),
    }
    top = [[[place, piece, 0.1] for place, piece in enumerate(pieces[:5])]]
    ids = list(range(1, count + 1))
    record = Round(
        index=0,
        position=len(pieces) + 1,
        draft_ids=ids,
        draft_pieces=rest,
        parents=None,
        source={"type": "ngram", "start": 1, "length": count, "region": "prompt", "matched": 1},
        q=[1.0] * count,
        p=[0.5] * count,
        u=[None] * count,
        states=["accepted"] * count,
        emitted_ids=[*ids, 0],
        emitted_pieces=[*rest, first],
        emitted_states=["accepted"] * count + ["bonus"],
        top=top * (count + 1),
        margin=[0.0] * (count + 1),
        ms=dict.fromkeys(("draft", "verify", "sample", "host"), 1.0),
    )
    return Trace(header, Prefill([0], [first], top, [0.0], 1.0), [record])


class Fragment(HTMLParser):
    """Tags, and the data of the JSON block and of the plain text, as a browser's parser would find them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.data, self._open = [], {"json": "", "plain": ""}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._open = {("type", "application/json"): "json", ("class", "qs-plain"): "plain"}.get((attrs or [None])[0])

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        if self._open:
            self.data[self._open] += data


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, min_size=2, max_size=8))
def test_no_token_becomes_markup(pieces):
    trace = trace_of(pieces)
    strip = token_strip(trace)
    found = Fragment(strip.html)
    assert sorted(found.tags) == ["div", "div", "p", "script", "script", "style"]
    assert json.loads(found.data["json"]) == whole_characters(list(trace.records()))
    assert found.data["plain"] == whole_characters(trace.text)
    strip.page().encode("utf-8")


@settings(max_examples=60, deadline=None)
@given(st.recursive(PIECES | st.floats(0, 1) | st.none(), lambda inner: st.lists(inner, max_size=4), max_leaves=12))
def test_the_json_is_plain_ascii_and_holds_no_angle(value):
    text = embedded_json(value)
    assert text.isascii()
    assert not set(text) & {"<", "\n", "\u2028"}
    assert json.loads(text) == value
    whole = whole_characters(value)
    json.dumps(whole, ensure_ascii=False).encode("utf-8")
    assert whole_characters(whole) == whole


def test_whole_characters_stay():
    assert whole_characters({"a\ud800": ["\U0001f469\u200d", ("\udc00b", 5, None)]}) == {
        "a\ufffd": ["\U0001f469\u200d", ["\ufffdb", 5, None]]
    }


def test_the_live_strip_sends_only_what_can_be_encoded(monkeypatch):
    heard = []
    monkeypatch.setattr(live.TokenStrip, "send", lambda self, content, buffers=None: heard.append(content))
    strip = live.TokenStrip(trace_of(HOSTILE[:12]))
    strip._say(list(trace_of(HOSTILE[:12]).records()))
    json.dumps([heard, strip.records], ensure_ascii=False).encode("utf-8")


def audited_trace():
    """Audits that keep and that refuse, drafts copied from prompt and output, and what the exact verifier would do."""
    pair = toy_pair(0.8, 6)
    run = ql.generate(pair, [1, 2, 1, 2], gamma=3, temperature=1.0, max_new_tokens=60)
    assert {record.accepted == record.length for record in run.audits} == {True, False}
    assert {record.source["region"] for record in run.rounds if record.source} == {"prompt", "output"}
    return rescore(run, pair.exact)


def right_then_wrong(ids, budget):
    """Two drafts that the toy keeps, then one that it refuses."""
    told = list(ids)
    for _ in range(min(budget, 2)):
        told.append(int(ToyVerifier().row(told).argmax()))
    return [*told[len(ids) :], int(ToyVerifier().row(told).argmin())][:budget]


def test_differences_are_counted_as_the_contract_has_them():
    plain = ql.generate(ToyVerifier(), [1, 2], drafter=FixedDrafter(right_then_wrong), max_new_tokens=60)
    with pytest.raises(TraceError, match="one verifier only"):
        differences(plain)
    same = differences(rescore(plain, ToyVerifier()))
    assert (same.flips, same.differing) == (0, 0)
    assert same.judged == sum(min(r.accepted + 1, len(r.draft_ids)) for r in plain.rounds)
    assert same.written == sum(len(r.emitted_ids) > r.accepted for r in plain.rounds)
    other = rescore(plain, ToyVerifier(seed=4))
    changed = differences(other)
    assert changed.flips == sum(sum(r.other["flip"][: r.accepted + 1]) for r in other.rounds) > 0
    # Every written token that the other's top-1 is not stands for one flip or one difference, and kept drafts too.
    tops = [
        (record.other["top"][place][0][0], record.top[place][0][0])
        for record in other.rounds
        for place in range(len(record.emitted_ids))
    ]
    both_refuse = sum(theirs != ours for theirs, ours in tops) - changed.flips
    assert changed.differing == both_refuse > 0
    warm = ql.generate(ToyVerifier(), [1, 2], drafter=SamplingDrafter(1), temperature=1.0, max_new_tokens=30)
    assert differences(rescore(warm, ToyVerifier(seed=4))).differing == 0


def test_the_figure_of_an_audited_run_counts_what_audits_left():
    trace = audited_trace()
    facts = acceptance(trace).layout.title.subtitle.text
    assert f"τ = {trace.summary()['mean_acceptance_length']:.2f} tokens per round" in facts
    refusing = sum(audit.accepted < audit.length for audit in trace.audits)
    assert f"{refusing} of {len(trace.audits)} audits took tokens back" in facts


def test_stop_ends_an_audited_live_run_within_one_round(monkeypatch):
    strip, heard = live.TokenStrip(), []

    def send(self, content, buffers=None):
        heard.append(content)
        if len(heard) == 5:
            self._heard(self, {"type": "stop"}, [])

    monkeypatch.setattr(live.TokenStrip, "send", send)
    strip.run(ql.stream(toy_pair(0.8, 4), [1, 2], max_new_tokens=500))
    strip.wait()
    assert strip.trace.summary()["finish_reason"] == "cancelled"
    kinds = [[record["kind"] for record in message["records"]] for message in heard]
    assert kinds[5:] in ([["footer"]], [["audit"], ["footer"]])
    assert [kind for message in kinds[2:] for kind in message if len(message) > 1] == []


# --- in a browser -----------------------------------------------------------------------------------------------------

STATES = """() => [...document.querySelectorAll('.qs-round:not([hidden])')].map((row) =>
    [...row.querySelectorAll('button.qs-token')].map((token) => [
        [...token.classList].find((name) => name.startsWith('qs-is-')).slice(6),
        token.querySelector('.qs-text').textContent,
    ]))"""


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens HTML in a page that must log no error."""
    errors, pages = [], []

    def visit(html, **options):
        page = browser.new_page(**options)
        page.on("pageerror", lambda error: errors.append(error))
        page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
        path = tmp_path / f"page{len(pages)}.html"
        path.write_text(html, encoding="utf-8")
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield visit
    for page in pages:
        page.close()
    assert errors == []


def moments(trace):
    """After every step: the states of all emitted tokens of every round, and the text with what waits."""
    for done in range(1, len(list(trace.steps())) + 1):
        steps = list(trace.steps())[:done]
        rounds, audits = ([s for s in steps if s.kind == kind] for kind in ("round", "audit"))
        cut = Trace(trace.header, trace.prefill, rounds, None, audits)
        waits = rounds[audits[-1].after :] if audits else rounds
        pending = "".join(p for record in waits for p in record.emitted_pieces) if trace.audited else ""
        yield steps, cut.audit_states(), cut.text + pending


@pytest.mark.slow
def test_stepping_by_keyboard_shows_every_state_as_it_was(open_page):
    trace = audited_trace()
    page = open_page(token_strip(trace).page())
    root = page.locator(".qs-root")
    root.press("Home")
    assert page.evaluate(STATES) == [[["plain", trace.prefill.emitted_pieces[0]]]]
    seen = set()
    for steps, states, text in moments(trace):
        root.press("ArrowRight")
        rows = page.evaluate(STATES)[1:]
        assert len(rows) == len(steps)
        emitted = []
        for step, row in zip(steps, rows, strict=True):
            if step.kind == "round":
                emitted.append(row[: step.accepted] + row[len(step.draft_ids) :])
                refused = row[step.accepted : len(step.draft_ids)]
                assert refused == [["rejected", piece] for piece in step.draft_pieces[step.accepted :]]
            else:
                taken = step.length - step.accepted
                assert [state for state, _ in row[:taken]] == ["retracted"] * taken
                assert [piece for _, piece in row[taken:]] == step.emitted_pieces[step.accepted :]
        assert [[state for state, _ in row] for row in emitted] == states
        seen |= {state for row in states for state in row}
        if len(steps) < len(list(trace.steps())):
            assert page.locator(".qs-answer").inner_text() == text
    assert {"provisional", "retracted", "accepted", "corrected"} <= seen
    assert page.locator(".qs-answer").inner_text() == trace.text
    root.press("ArrowLeft")
    assert page.locator(".qs-round:not([hidden])").count() == len(list(trace.steps()))
    root.press("End")
    notes = page.locator(".qs-source").all_inner_texts()
    copied = [f"“{''.join(record.draft_pieces)}”" for record in trace.rounds if record.source]
    assert [note.split()[-1] for note in notes if note.startswith("⟵")] == copied


@pytest.mark.slow
def test_playing_flips_and_scrubbing(open_page):
    trace = audited_trace()
    page = open_page(token_strip(trace).page())
    root = page.locator(".qs-root")
    root.press("Home")
    root.press(" ")
    assert page.get_by_role("button", name="pause").count() == 1
    page.wait_for_function("document.querySelectorAll('.qs-round:not([hidden])').length > 1")
    root.press(" ")
    assert page.get_by_role("button", name="play", exact=True).count() == 1
    root.press("Home")
    places = []
    while not places or places[-1] not in places[:-1]:
        page.get_by_role("button", name="next flip").click()
        places.append(
            page.evaluate(
                "[...document.querySelectorAll('button.qs-token')].findIndex((t) => t.classList.contains('qs-on'))"
            )
        )
        focused = page.locator(".qs-focus").inner_text()
        assert "toy would" in focused
        assert focused.count("margin") == 2 + focused.count("in the audit")
    found = differences(trace)
    assert len(places) - 1 == found.flips + found.differing > 0
    assert page.locator(".qs-flip").count() == found.flips
    head = page.locator(".qs-head").inner_text().replace("\n", " ")
    assert f"{found.flips} decision" in head
    assert f"{trace.summary()['mean_acceptance_length']:.2f} tokens / round" in head
    assert f"{100 * trace.summary()['draft_acceptance_rate']:.0f} % drafts accepted" in head
    refusing = sum(audit.accepted < audit.length for audit in trace.audits)
    assert f"{refusing} of {len(trace.audits)} audits" in head
    page.locator("input[type=range]").evaluate(
        "(range) => { range.value = 2; range.dispatchEvent(new Event('input')); }"
    )
    assert page.locator(".qs-round:not([hidden])").count() == 3
    assert page.locator("input[type=range]").get_attribute("aria-valuetext").startswith("round 2 of")


@pytest.mark.slow
def test_hostile_tokens_are_text_in_the_page(open_page):
    pieces = HOSTILE[:16]
    page = open_page(token_strip(trace_of(pieces)).page(), viewport={"width": 420, "height": 800})
    assert page.evaluate("window.harmed") is None
    assert page.locator("img").count() == 0
    shown = [text for row in page.evaluate(STATES) for _, text in row]
    assert len(shown) == len(pieces) + 1
    assert shown[0] == pieces[0].replace(" ", "␣")
    assert "⟨U+202E⟩abc⟨U+2066⟩" in shown
    assert "⟨U+2028⟩⟨U+2029⟩" in shown
    assert page.evaluate("document.documentElement.scrollWidth") <= 420


@pytest.mark.slow
def test_tab_stops_names_and_motion(open_page):
    page = open_page(token_strip(audited_trace()).page(), reduced_motion="reduce")
    page.locator(".qs-root").press("End")
    assert page.locator("button.qs-token[tabindex='0']").count() == 1
    assert page.locator("button:not([aria-label])").count() == 0
    assert page.locator(".qs-round[aria-current=step]").count() == 1
    assert page.evaluate("getComputedStyle(document.querySelector('.qs-token')).transitionDuration") == "0s"
    page.locator("button.qs-token").nth(-3).hover()
    assert "qs-on" in page.locator("button.qs-token").nth(-3).get_attribute("class")
    page.locator("button.qs-token[tabindex='0']").focus()
    before = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == before
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.classList.contains('qs-on')")
    assert "round" in page.locator("[role=status]").inner_text() + page.locator(".qs-where").inner_text()


WIDGET = """async ([source, records]) => {
  const module = await import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })));
  const state = { running: true, status: '', records: [] }, on = {}, sent = [];
  const model = {
    get: (name) => state[name], on: (name, act) => { on[name] = act; }, send: (message) => sent.push(message),
  };
  module.default.render({ model, el: document.body });
  const set = (name, value) => { state[name] = value; on[`change:${name}`](); };
  window.strip = { say: (record) => on['msg:custom']({ records: [record] }), sent, set };
}"""


@pytest.mark.slow
def test_live_tokens_are_provisional_and_then_turn(open_page):
    trace = audited_trace()
    page = open_page("<!doctype html><body></body>")
    page.evaluate(WIDGET, [live.TokenStrip._esm, []])
    records = list(trace.records())
    for record in records[:2]:
        page.evaluate("(record) => strip.say(record)", record)
    for record, (steps, states, _) in zip(records[2:], moments(trace), strict=False):
        page.evaluate("(record) => strip.say(record)", record)
        rows = [row for row, step in zip(page.evaluate(STATES)[1:], steps, strict=True) if step.kind == "round"]
        shown = [
            row[: s.accepted] + row[len(s.draft_ids) :]
            for row, s in zip(rows, (s for s in steps if s.kind == "round"), strict=True)
        ]
        assert [[state for state, _ in row] for row in shown] == states
    page.get_by_role("button", name="Stop").click()
    assert page.evaluate("strip.sent") == [{"type": "ready"}, {"type": "stop"}]


def test_the_end_of_a_run_moves_nothing_on_the_page(open_page):
    page = open_page("<!doctype html><body></body>")
    page.evaluate(WIDGET, [live.TokenStrip._esm, []])
    page.add_style_tag(content=live.TokenStrip._css)
    for record in with_rounds([1.0, 2.0]).records():
        page.evaluate("(record) => strip.say(record)", record)
    stop, place = (
        page.get_by_role("button", name="Stop"),
        "document.querySelector('.qs-root').getBoundingClientRect().top",
    )
    assert stop.is_enabled()
    during = page.evaluate(place)
    page.evaluate("strip.set('running', false)")
    assert page.evaluate(place) == during > 10
    assert stop.is_disabled()
    page.evaluate("strip.set('running', true)")
    assert page.evaluate(place) == during
    assert stop.is_enabled()


def with_rounds(times, accepted=None):
    """A trace whose rounds draft one token each and take these ms, the drafts of the first `accepted` kept."""
    accepted = len(times) if accepted is None else accepted
    model = trace_of(["a", "b"])
    rounds = []
    for place, ms in enumerate(times):
        kept = place < accepted
        record = replace(
            model.rounds[0], index=place, ms={"draft": ms / 4, "verify": ms / 2, "sample": 0.0, "host": ms / 4}
        )
        if not kept:
            record = replace(
                record, states=["rejected"], emitted_ids=[0], emitted_pieces=["a"], emitted_states=["corrected"]
            )
        rounds.append(record)
    return Trace(model.header, model.prefill, rounds)


def test_one_slow_round_leaves_the_other_bars_their_lengths(open_page):
    page = open_page(token_strip(with_rounds([2.0, 2.5, 400.0, 1.0])).page())
    bars = page.evaluate(
        """() => [...document.querySelectorAll('.qs-round-row')].map((row) => {
          const bar = row.querySelector('.qs-bar-of-time');
          const long = [...bar.children].reduce((sum, part) => sum + part.getBoundingClientRect().width, 0);
          const [ms, time] = [row.querySelector('.qs-ms').textContent, row.querySelector('.qs-time')];
          return [long / bar.getBoundingClientRect().width, bar.classList.contains('qs-cut'), ms, time.title];
        })"""
    )
    assert [round(share, 2) for share, *_ in bars] == [0.8, 1.0, 1.0, 0.4]
    assert [cut for _, cut, *_ in bars] == [False, False, True, False]
    assert [ms for *_, ms, _ in bars] == ["2.00 ms", "2.50 ms", "400 ms", "1.00 ms"]
    assert "longer than its bar" in bars[2][3]
    assert "longer" not in bars[0][3]


@pytest.mark.parametrize(("rounds", "accepted"), [(8, 5), (8, 3), (8, 1), (200, 1), (200, 3), (16, 1), (3, 2), (7, 0)])
def test_the_strip_rounds_as_the_figure_beside_it(open_page, rounds, accepted):
    trace = with_rounds([1.0] * rounds, accepted)
    page = open_page(token_strip(trace).page())
    said = page.locator(".qs-head").inner_text().replace("\n", " ")
    tokens = sum(len(record.emitted_ids) for record in trace.rounds)
    assert f"{tokens / rounds:.2f} tokens / round" in said
    assert f"{100 * (accepted / rounds):.0f} % drafts accepted" in said
    figure = acceptance(trace).layout.title.subtitle.text
    assert f"{accepted / rounds:.0%} of drafts accepted" in figure
