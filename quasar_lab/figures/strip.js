// The token strip. quasarStrip(root) → { add(records), clear() }: draws the records of a trace, in order, as they come.
//
// One drawing for reports and for live widgets. Token text is untrusted, so every text enters the page through
// textContent; there is no innerHTML in this file.

function quasarStrip(root) {
  const GLYPHS = { accepted: "✓", rejected: "✗", corrected: "↻", bonus: "+", plain: "·", provisional: "◌", retracted: "⟲" };
  const ALWAYS = ["accepted", "rejected", "corrected", "bonus", "plain"];
  const ICONS = {
    previous: "M2 1h2v10H2zM11 1v10L4 6z",
    play: "M2 1l9 5-9 5z",
    pause: "M2 1h3v10H2zM7 1h3v10H7z",
    next: "M8 1h2v10H8zM1 1v10l7-5z",
  };
  const MARKS = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍" };
  const STEP_MS = 700;

  let header, summary, rows, pieces, current, longest, timer, states;
  let view;

  function make(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 12 12");
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", ICONS[name]);
    svg.append(path);
    return svg;
  }

  const visible = (piece) => piece.replace(/[ \n\t\r]/g, (mark) => MARKS[mark]) || "∅";
  const share = (value) => (value >= 0.9995 ? "1.00" : value >= 0.01 || value === 0 ? value.toFixed(2) : value.toExponential(0));

  function clear() {
    clearInterval(timer);
    [header, summary, rows, pieces, current, longest, timer, states] = [null, null, [], [], -1, 0, null, new Set(ALWAYS)];
    root.replaceChildren();
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "token strip: arrow keys step through the rounds, space plays");
    root.dataset.lmSuppressShortcuts = "true"; // JupyterLab must not take the arrow keys for itself
    view = {
      head: make("div", "qs-head"), answer: make("p", "qs-answer"), controls: make("div", "qs-controls"), legend: make("div", "qs-legend"),
      rounds: make("div", "qs-rounds"), focus: make("div", "qs-focus"), stamp: make("p", "qs-stamp"),
    };
    view.focus.setAttribute("aria-live", "polite");
    root.append(...Object.values(view));
    drawControls();
  }

  function drawControls() {
    const button = (name, label, act) => {
      const node = make("button");
      node.type = "button";
      node.append(icon(name));
      node.setAttribute("aria-label", label);
      node.addEventListener("click", act);
      return node;
    };
    view.play = button("play", "play the rounds", toggle);
    view.playText = make("span", "", "play");
    view.play.append(view.playText);
    view.range = make("input");
    view.range.type = "range";
    view.range.min = 0;
    view.range.setAttribute("aria-label", "round");
    view.range.addEventListener("input", () => { pause(); show(Number(view.range.value)); });
    view.where = make("span");
    view.controls.append(button("previous", "previous round", () => { pause(); show(current - 1); }), view.play,
      button("next", "next round", () => { pause(); show(current + 1); }), view.range, view.where);
  }

  // --- records in ---------------------------------------------------------------------------------------------------

  function add(records) {
    const last = rows.length - 1;
    for (const record of records) {
      if (record.kind === "header") {
        clear();
        header = record;
        pieces = [...record.prompt_pieces];
      } else if (record.kind === "prefill") {
        addPrefill(record);
      } else if (record.kind === "round") {
        addRound(record);
      } else if (record.kind === "footer") {
        summary = record.summary;
      }
    }
    scaleTimes();
    drawHead();
    drawLegend();
    drawStamp();
    drawAnswer();
    if (rows.length && (current === last || current < 0)) show(rows.length - 1);
    else updateWhere();
  }

  function addPrefill(record) {
    const tokens = record.emitted_pieces.map((piece, place) => ({
      piece, state: "plain", id: record.emitted_ids[place], row: 0, record, role: "prefill" }));
    addRow({ number: "0", record, tokens, source: "first token, from reading the prompt: not a round", ms: null });
    pieces.push(...record.emitted_pieces);
  }

  function addRound(record) {
    const refused = record.states.indexOf("rejected");
    const drafted = record.draft_pieces.map((piece, place) => ({
      piece, state: record.states[place], id: record.draft_ids[place], place, row: place, record, role: "draft",
      beyond: record.states[place] === "accepted" && place >= record.emitted_ids.length,
      judged: refused < 0 || place <= refused, // behind the first refusal nothing was decided
      flip: Boolean(record.other && record.other.flip && record.other.flip[place]) }));
    const accepted = record.states.filter((state) => state === "accepted").length;
    const own = record.emitted_pieces.slice(accepted).map((piece, place) => ({
      piece, state: record.emitted_states[accepted + place], id: record.emitted_ids[accepted + place],
      row: accepted, record, role: "own" }));
    addRow({ number: String(record.index + 1), record, tokens: [...drafted, ...own], source: sourceLine(record.source, record.draft_ids.length), ms: record.ms });
    pieces.push(...record.emitted_pieces);
  }

  function sourceLine(source, length) { // the copied span as far as it was drafted
    if (!source) return "";
    if (source.type !== "ngram") return `⟵ ${source.type}`;
    const start = source.region === "prompt" ? source.start : source.start - header.prompt_pieces.length;
    const text = pieces.slice(source.start, source.start + length).map(visible).join("");
    const span = length === 1 ? `${start + 1}` : `${start + 1}–${start + length}`;
    return `⟵ ${source.region} ${span} “${text}”`;
  }

  function addRow(row) {
    row.node = make("div", "qs-round");
    const tokens = make("span", "qs-tokens");
    row.tokens.forEach((token) => {
      token.node = drawToken(token.piece, token.state, "button");
      if (token.flip && token.judged) token.node.classList.add("qs-flip");
      if (token.beyond) token.node.classList.add("qs-beyond");
      states.add(token.state);
      token.node.addEventListener("mouseenter", () => focus(row, token));
      token.node.addEventListener("focus", () => focus(row, token));
      token.node.addEventListener("click", () => { pause(); focus(row, token); });
      tokens.append(token.node);
    });
    row.time = make("span", "qs-time");
    row.node.append(make("span", "qs-number", row.number), tokens, row.time);
    if (!row.ms) row.time.style.visibility = "hidden";
    if (row.source) row.node.append(make("span", "qs-source", row.source));
    rows.push(row);
    view.rounds.append(row.node);
  }

  function drawToken(piece, state, tag) {
    const node = make(tag, `qs-token ${state === "plain" ? "qs-plain-state" : `qs-${state}`}`);
    if (tag === "button") {
      node.type = "button";
      node.setAttribute("aria-label", `${visible(piece)}, ${state}`);
    }
    node.append(make("i", "", GLYPHS[state] || "?"), make(state === "rejected" || state === "retracted" ? "s" : "span", "", visible(piece)));
    return node;
  }

  // --- what surrounds the rounds ------------------------------------------------------------------------------------

  function scaleTimes() {
    const total = (ms) => Object.values(ms).reduce((sum, part) => sum + part, 0);
    const most = Math.max(0, ...rows.filter((row) => row.ms).map((row) => total(row.ms)));
    if (!most) return;
    for (const row of rows) {
      if (!row.ms || (row.scale === most)) continue;
      row.scale = most;
      const parts = [["draft", row.ms.draft], ["verify", row.ms.verify], ["rest", total(row.ms) - row.ms.draft - row.ms.verify]];
      row.time.replaceChildren(...parts.map(([name, ms]) => {
        const bar = make("b", `qs-${name}-time`);
        bar.style.width = `${(100 * ms) / most}%`;
        return bar;
      }));
      row.time.title = parts.map(([name, ms]) => `${name} ${ms.toFixed(2)} ms`).join(" · ");
      row.time.setAttribute("role", "img");
      row.time.setAttribute("aria-label", row.time.title);
    }
  }

  function drawHead() {
    if (!header) return;
    const rounds = rows.filter((row) => row.ms).map((row) => row.record);
    const sum = (values) => values.reduce((total, value) => total + value, 0);
    const emitted = sum(rounds.map((round) => round.emitted_ids.length));
    const drafted = sum(rounds.map((round) => round.draft_ids.length));
    const kept = sum(rounds.map((round) => round.states.filter((state) => state === "accepted").length));
    const flips = rounds.some((round) => round.other) ? rows.flatMap((row) => row.tokens).filter((token) => token.flip && token.judged).length : null;
    const drafter = header.drafter === "none" ? "no drafter" : `${header.drafter} γ = ${header.gamma}`;
    const facts = [make("span", "", `${header.model} · ${header.verifier} · ${drafter} · T = ${header.sampling.temperature}`)];
    const fact = (value, words) => { const node = make("span"); node.append(make("b", "", value), ` ${words}`); facts.push(node); };
    if (rounds.length) fact((emitted / rounds.length).toFixed(2), "tokens / round");
    if (drafted) fact(`${Math.round((100 * kept) / drafted)} %`, "drafts accepted");
    const seconds = sum(rounds.map((round) => sum(Object.values(round.ms)))) / 1000;
    if (header.backend === "reference") facts.push(make("span", "qs-warn", "not a speed measurement"));
    else if (rounds.length) fact((summary && summary.tokens_per_second ? summary.tokens_per_second : emitted / seconds).toFixed(0), "tokens / s");
    if (flips !== null) fact(String(flips), `${flips === 1 ? "decision" : "decisions"} ${rounds.find((round) => round.other).other.verifier} would flip`);
    view.head.replaceChildren(...facts);
  }

  // The text as far as the rounds are shown; of a finished run its own text, without special tokens.
  function drawAnswer() {
    const all = current >= rows.length - 1;
    const text = all && summary ? summary.text : rows.slice(0, current + 1).map((row) => row.record.emitted_pieces.join("")).join("");
    view.answer.textContent = text;
    view.answer.hidden = !text;
  }

  function drawLegend() {
    const bars = make("span", "qs-bars");
    for (const [name, words] of [["draft", "draft"], ["verify", "verify"], ["rest", "sample, host"]]) {
      const key = make("span");
      key.append(make("i", `qs-${name}-time`), words);
      bars.append(key);
    }
    view.legend.replaceChildren(...[...states].map((state) => drawToken(state, state, "span")), bars);
  }

  function drawStamp() {
    if (!header) return;
    const parts = [header.model, header.recipe, `${header.device} / ${header.backend} backend`, header.started];
    if (header.backend === "reference") parts.push("not a speed measurement");
    if (summary) parts.push(`ended by: ${summary.finish_reason}`);
    view.stamp.textContent = parts.filter(Boolean).join(" · ");
  }

  // --- moving through the rounds ------------------------------------------------------------------------------------

  function show(index) {
    if (!rows.length) return;
    current = Math.max(0, Math.min(rows.length - 1, index));
    rows.forEach((row, place) => { row.node.hidden = place > current; });
    const row = rows[current];
    requestAnimationFrame(() => scrollTo(row.node)); // a widget is drawn before it is on the page
    const told = row.tokens.find((token) => token.state === "rejected") || row.tokens[row.tokens.length - 1];
    if (told) focus(row, told);
    drawAnswer();
    updateWhere();
  }

  function scrollTo(node) {
    const box = view.rounds;
    const edge = node.offsetTop + node.offsetHeight;
    if (edge > box.scrollTop + box.clientHeight || node.offsetTop < box.scrollTop) box.scrollTop = edge - box.clientHeight + 4;
  }

  function updateWhere() {
    view.range.max = Math.max(0, rows.length - 1);
    view.range.value = current;
    const total = rows.filter((row) => row.ms).length;
    view.where.textContent = rows.length ? `round ${rows[current].number} of ${total} — ← → step, space plays` : "no rounds yet";
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    view.play.firstChild.replaceWith(icon("play"));
    view.playText.textContent = "play";
  }

  function toggle() {
    if (timer) return pause();
    if (current >= rows.length - 1) show(0);
    view.play.firstChild.replaceWith(icon("pause"));
    view.playText.textContent = "pause";
    timer = setInterval(() => { if (current >= rows.length - 1) pause(); else show(current + 1); }, STEP_MS);
    return undefined;
  }

  root.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: rows.length - 1 };
    if (event.key in moves) {
      pause();
      show(moves[event.key]);
    } else if (event.key === " " && !(event.target.tagName === "BUTTON" && view.controls.contains(event.target))) {
      toggle();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  });

  // --- the numbers behind one token ---------------------------------------------------------------------------------

  function focus(row, token) {
    rows.forEach((other) => { other.node.classList.toggle("qs-on", other === row); other.tokens.forEach((t) => t.node.classList.toggle("qs-on", t === token)); });
    const record = token.record;
    const panels = [decisionPanel(token), topPanel(`${header.verifier}: top 5 here`, record.top[token.row], token, "")];
    const other = record.other;
    if (other) {
      const panel = topPanel(`${other.verifier} on the same draft`, other.top[token.row], token, "qs-other");
      if (token.role === "draft" && token.judged) panel.append(make("p", "", token.flip ? "the other verifier decides differently" : "same decision ✓"));
      panels.push(panel);
    }
    view.focus.replaceChildren(...panels);
  }

  function decisionPanel(token) {
    const panel = make("div");
    const record = token.record;
    const margin = `margin ${record.margin[token.row].toFixed(2)} (top-1 − top-2 logit)`;
    const name = `“${visible(token.piece)}”`;
    if (token.role !== "draft") {
      const why = { corrected: "the verifier's own token where the draft was refused", bonus: "every draft was accepted: one token more from the same pass",
        plain: token.role === "prefill" ? "the first token, from reading the prompt" : "nothing was drafted: plain decoding" }[token.state];
      panel.append(make("h4", "", `${name}, ${token.state}`), make("p", "", why), make("p", "", margin));
      return panel;
    }
    const { place } = token;
    const [p, q, u] = [record.p[place], record.q[place], record.u[place]];
    panel.append(make("h4", "", `draft ${name}, position ${place + 1}`));
    const lines = [`target p = ${share(p)} · draft q = ${share(q)}${q === 1 ? " (copied, not drawn)" : ""}`];
    if (!token.judged) {
      lines.push(`not judged: position ${record.states.indexOf("rejected") + 1} was refused`);
    } else if (u === null) {
      const best = record.top[token.row][0];
      lines.push(`greedy, kept when it is the arg-max: that is “${visible(best[1])}” → ${token.state}`, margin);
    } else {
      lines.push(`kept when u < min(1, p/q) = ${share(q > 0 ? Math.min(1, p / q) : 1)}`, `draw u = ${u.toFixed(3)} → ${token.state}`, margin);
    }
    if (token.beyond) lines.push("behind the end of the text: not emitted");
    lines.forEach((line) => panel.append(make("p", "", line)));
    return panel;
  }

  function topPanel(title, top, token, className) {
    const panel = make("div");
    panel.append(make("h4", "", title));
    top.forEach(([id, piece, p]) => {
      const bar = make("div", `qs-bar ${className}${id === token.id ? " qs-drafted" : ""}`);
      const fill = make("div");
      fill.style.width = `${100 * p}%`;
      const label = make("span", "", visible(piece));
      label.title = `token ${id}`;
      bar.append(label, fill, make("span", "", share(p)));
      panel.append(bar);
    });
    return panel;
  }

  clear();
  return { add, clear };
}
