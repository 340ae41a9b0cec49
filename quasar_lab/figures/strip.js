// QUASAR_STATES, which stands before this file, is the table of `speculative/token_states.py`.
//
// The token strip. quasarStrip(root) → { add(records), clear() }: draws the records of a trace, in order, as they come.
//
// One drawing for reports and for live widgets; what is shown at which moment is strip_model.js's to know. Token text is
// untrusted, so every text enters the page through textContent; there is no innerHTML in this file.

function quasarStrip(root) {
  const ALWAYS = Object.keys(QUASAR_STATES).filter((state) => !QUASAR_STATES[state].audits_only);
  const ICONS = {
    previous: "M2 1h2v10H2zM11 1v10L4 6z",
    play: "M2 1l9 5-9 5z",
    pause: "M2 1h3v10H2zM7 1h3v10H7z",
    next: "M8 1h2v10H8zM1 1v10l7-5z",
    flip: "M1 3h7V1l3 3-3 3V5H1zM11 9H4v2L1 8l3-3v2h7z",
  };
  const MARKS = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍" };
  const STEP_MS = 700;

  let current, focused, timer, states, model, view;
  let pointer = { at: "", moved: false };

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

  // Whitespace gets a mark; what has no shape, or turns the direction of what follows, its number.
  const code = (mark) => `⟨U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  const visible = (piece) => piece.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Z}]/gu, (mark) => MARKS[mark] || code(mark)) || "∅";
  const share = (value) => (value >= 0.01 || value === 0 ? value.toFixed(2) : value >= 0.0005 ? value.toFixed(3) : "<0.001");
  // Rounds as Python does, a half to the even digit, so that the strip and the figures beside it say the same.
  const fixed = (value, digits) => {
    const exact = value.toFixed(60); // doubles of this size end before that
    const end = exact.indexOf(".") + 1 + digits;
    const down = exact.slice(0, digits ? end : end - 1);
    return /^50*$/.test(exact.slice(end)) && "02468".includes(down.slice(-1)) ? down : value.toFixed(digits);
  };
  const milliseconds = (value) => value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
  const quoted = (pieces) => `“${pieces.map(visible).join("")}”`;

  function clear() {
    pause();
    [current, focused, states, model] = [-1, null, new Set(ALWAYS), quasarStripModel()];
    root.replaceChildren();
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "token strip: left and right step through the run, up and down through its tokens, space plays");
    root.dataset.lmSuppressShortcuts = "true"; // JupyterLab must not take the arrow keys for itself
    view = {
      head: make("div", "qs-head"), answer: make("p", "qs-answer"), controls: make("div", "qs-controls"), legend: make("div", "qs-legend"),
      rounds: make("div", "qs-rounds"), focus: make("div", "qs-focus"), stamp: make("p", "qs-stamp"), said: make("p", "qs-said"),
    };
    view.rounds.setAttribute("role", "list");
    view.focus.setAttribute("role", "region");
    view.focus.setAttribute("aria-label", "numbers of one token");
    view.said.setAttribute("role", "status");
    root.append(...Object.values(view));
    drawControls();
  }

  function drawControls() {
    const button = (name, label, act) => {
      const node = make("button");
      node.type = "button";
      node.append(icon(name));
      node.setAttribute("aria-label", label);
      node.title = label;
      node.addEventListener("click", act);
      return node;
    };
    view.play = button("play", "play", toggle);
    view.playText = make("span", "", "play");
    view.play.append(view.playText);
    view.range = make("input");
    view.range.type = "range";
    view.range.min = 0;
    view.range.setAttribute("aria-label", "step");
    view.range.addEventListener("input", () => step(Number(view.range.value)));
    view.where = make("span", "qs-where");
    view.flip = button("flip", "next flip", nextFlip);
    view.flip.append(make("span", "", "next flip"));
    view.hint = make("span", "qs-hint");
    view.controls.append(button("previous", "previous step", () => step(current - 1)), view.play,
      button("next", "next step", () => step(current + 1)), view.flip, view.range, view.where, view.hint);
  }

  // --- records in ---------------------------------------------------------------------------------------------------

  function add(records) {
    const last = model.rows.length - 1;
    for (const record of records) {
      if (record.kind === "header") clear();
      model.add(record);
    }
    if (!model.header) return;
    const { rows } = model;
    rows.filter((row) => !row.node).forEach(drawRow);
    scaleTimes();
    drawHead();
    drawLegend();
    drawStamp();
    view.flip.hidden = !model.flips().length;
    if (rows.length && (current === last || current < 0)) show(rows.length - 1);
    else updateWhere();
  }

  function drawRow(row) {
    row.node = make("div", `qs-round qs-${row.kind}-row`);
    row.node.setAttribute("role", "listitem");
    row.node.setAttribute("aria-label", nameOf(row));
    const tokens = make("span", "qs-tokens");
    if (row.kind === "audit") tokens.append(make("span", "qs-verdict", `${model.judges().auditor} keeps ${row.record.accepted} of ${row.record.length}`));
    row.tokens.forEach((token) => {
      token.node = drawToken("button", token.piece, token.state);
      token.node.type = "button";
      token.node.tabIndex = -1; // the focused token alone is a stop of the Tab key
      if (token.flip || token.differs) token.node.classList.add(token.flip ? "qs-flip" : "qs-differs");
      if (token.beyond) token.node.classList.add("qs-beyond");
      if (token.settled !== undefined) states.add("provisional");
      states.add(token.state);
      token.node.addEventListener("mousemove", () => { if (pointer.moved && focused.token !== token) focus(row, token); });
      token.node.addEventListener("focus", () => focus(row, token));
      token.node.addEventListener("click", () => { pause(); focus(row, token); });
      tokens.append(token.node);
    });
    row.time = make("span", "qs-time");
    const number = { prefill: "0", round: String(row.record.index + 1), audit: "audit" }[row.kind];
    row.node.append(make("span", "qs-number", number), tokens, row.time);
    row.time.hidden = !row.ms;
    notes(row).forEach((text) => row.node.append(make("span", "qs-source", text)));
    view.rounds.append(row.node);
  }

  function nameOf(row) {
    if (row.kind === "prefill") return "prefill";
    return row.kind === "audit" ? `audit after round ${row.record.after}` : `round ${row.record.index + 1}`;
  }

  // Small lines under a row: where its draft was copied from, and what a replay's verifier would do.
  function notes(row) {
    if (row.kind === "prefill") return ["first token, from reading the prompt: not a round"];
    const lines = [];
    const { source } = row;
    if (source && source.copied) lines.push(`⟵ ${source.region} ${spanOf(source)} ${quoted(source.copied)}`);
    else if (source) lines.push(`⟵ ${source.type}`);
    const { verifier, other } = model.judges();
    for (const token of row.tokens.filter((one) => one.flip || one.differs)) {
      const theirs = row.record.other;
      const margins = `margin ${row.record.margin[token.row].toFixed(2)} in ${verifier}, ${theirs.margin[token.row].toFixed(2)} in ${other}`;
      lines.push(token.flip ? `⇄ ${other} would ${verdictOf(theirs.decision[token.place])} ${quoted([token.piece])} · ${margins}`
        : `≠ ${other} would write ${quoted([theirs.top[token.row][0][1]])} for ${quoted([token.piece])} · ${margins}`);
    }
    return lines;
  }

  const spanOf = (source) => (source.from === source.to ? `${source.from}` : `${source.from}–${source.to}`);
  const verdictOf = (kept) => (kept ? "keep" : "refuse");

  function drawToken(tag, piece, state) {
    const node = make(tag, "qs-token");
    node.append(make("i"), make("span", "qs-text", visible(piece)));
    paint(node, piece, state);
    return node;
  }

  function paint(node, piece, state) {
    node.classList.remove(...[...node.classList].filter((name) => name.startsWith("qs-is-")));
    node.classList.add(`qs-is-${state}`);
    node.firstChild.textContent = (QUASAR_STATES[state] || { glyph: "?" }).glyph;
    if (node.tagName === "BUTTON") node.setAttribute("aria-label", `${visible(piece)}, ${state}`);
  }

  // --- what surrounds the rounds ------------------------------------------------------------------------------------

  function scaleTimes() {
    const { scale, steps } = model.times();
    if (!scale) return;
    for (const { row, total, cut } of steps) {
      if (row.scale === scale) continue;
      row.scale = scale;
      const { draft = 0, verify } = row.ms;
      const parts = [["draft", draft], [row.kind === "audit" ? "audit" : "verify", verify], ["rest", total - draft - verify]];
      const bar = make("span", `qs-bar-of-time${cut ? " qs-cut" : ""}`);
      bar.append(...parts.map(([name, ms]) => {
        const part = make("b", `qs-${name}-time`);
        part.style.width = `${(100 * ms) / (cut ? total : scale)}%`;
        return part;
      }));
      row.time.replaceChildren(bar, make("span", "qs-ms", `${milliseconds(total)} ms`));
      row.time.title = parts.map(([name, ms]) => `${name} ${ms.toFixed(2)} ms`).join(" · ") + (cut ? " · longer than its bar" : "");
      row.time.setAttribute("role", "img");
      row.time.setAttribute("aria-label", row.time.title);
    }
  }

  function drawHead() {
    const { header } = model;
    const facts = model.facts();
    const { other } = model.judges();
    const drafter = header.drafter === "none" ? "no drafter" : `${header.drafter} γ = ${header.gamma}`;
    const nodes = [make("span", "", `${header.model} · ${header.verifier} · ${drafter} · T = ${header.sampling.temperature}`)];
    const fact = (value, words) => { const node = make("span"); node.append(make("b", "", value), ` ${words}`); nodes.push(node); };
    if (facts.perRound !== null) fact(fixed(facts.perRound, 2), "tokens / round");
    if (facts.share !== null) fact(`${fixed(100 * facts.share, 0)} %`, "drafts accepted");
    if (header.backend === "reference") nodes.push(make("span", "qs-warn", "not a speed measurement"));
    else if (facts.speed !== null) fact(fixed(facts.speed, 0), "tokens / s");
    if (facts.audits) fact(`${facts.refusing} of ${facts.audits}`, `audits took tokens back, ${facts.retracted} in all`);
    if (other !== undefined) fact(String(facts.flips), `${facts.flips === 1 ? "decision" : "decisions"} ${other} would flip`);
    if (facts.differing) fact(String(facts.differing), `${facts.differing === 1 ? "token" : "tokens"} ${other} would write otherwise`);
    view.head.replaceChildren(...nodes);
  }

  function drawAnswer() {
    const [stays, waits] = model.textAt(current);
    view.answer.replaceChildren(stays, make("span", "qs-waits", waits));
    view.answer.hidden = !stays && !waits;
  }

  function drawLegend() {
    const bars = make("span", "qs-bars");
    const audited = model.header.auditor === undefined ? [] : [["audit", "audit"]];
    for (const [name, words] of [["draft", "draft"], ["verify", "verify"], ...audited, ["rest", "sample, host"]]) {
      const key = make("span");
      key.append(make("i", `qs-${name}-time`), words);
      bars.append(key);
    }
    const known = Object.keys(QUASAR_STATES).filter((state) => states.has(state));
    view.legend.replaceChildren(...known.map((state) => drawToken("span", state, state)), bars);
  }

  function drawStamp() {
    const { header, summary } = model;
    const parts = [header.model, header.recipe, `${header.device} / ${header.backend} backend`, header.started];
    if (header.backend === "reference") parts.push("not a speed measurement");
    if (summary) parts.push(`ended by: ${summary.finish_reason}`);
    view.stamp.textContent = parts.filter(Boolean).join(" · ");
  }

  // --- moving through the run ---------------------------------------------------------------------------------------

  function show(moment, chosen) {
    const { rows } = model;
    if (!rows.length) return;
    current = Math.max(0, Math.min(rows.length - 1, moment));
    rows.forEach((row, place) => {
      row.node.hidden = place > current;
      if (place === current) row.node.setAttribute("aria-current", "step");
      else row.node.removeAttribute("aria-current");
      for (const token of row.tokens) {
        if (token.settled === undefined) continue;
        const state = model.stateAt(token, current);
        if (!token.node.classList.contains(`qs-is-${state}`)) paint(token.node, token.piece, state);
      }
    });
    const row = rows[current];
    requestAnimationFrame(() => scrollTo(row.node)); // a widget is drawn before it is on the page
    const shown = row.tokens.length ? row : rows[current - 1]; // an audit that keeps everything may add nothing
    focus(shown, chosen || shown.tokens.find((token) => token.state === "rejected") || shown.tokens[shown.tokens.length - 1]);
    drawAnswer();
    updateWhere();
  }

  // A person moves: playing ends, and where the run stands now is said.
  function step(moment, chosen) {
    pause();
    show(moment, chosen);
    const row = model.rows[current];
    if (!row) return;
    const told = row.tokens.map((token) => `${visible(token.piece)} ${model.stateAt(token, current)}`).join(", ");
    view.said.textContent = `${nameOf(row)}: ${[row.kind === "audit" ? row.node.querySelector(".qs-verdict").textContent : "", told].filter(Boolean).join(", ")}`;
  }

  function nextFlip() {
    const marks = model.flips();
    if (!marks.length) return;
    const place = marks.findIndex(({ token }) => focused && token === focused.token);
    const { index, token } = place >= 0 ? marks[(place + 1) % marks.length] : marks.find((mark) => mark.index > current) || marks[0];
    step(index, token);
  }

  function nextToken(by) {
    const all = model.rows.slice(0, current + 1).flatMap((row) => row.tokens.map((token) => ({ row, token })));
    const place = all.findIndex(({ token }) => focused && token === focused.token);
    const found = all[Math.max(0, Math.min(all.length - 1, place + by))];
    pause();
    if (found) found.token.node.focus();
  }

  function scrollTo(node) {
    const box = view.rounds;
    const edge = node.offsetTop + node.offsetHeight;
    if (edge > box.scrollTop + box.clientHeight || node.offsetTop < box.scrollTop) box.scrollTop = edge - box.clientHeight + 4;
  }

  function updateWhere() {
    const { rows } = model;
    const total = rows.filter((row) => row.kind === "round").length;
    view.range.max = Math.max(0, rows.length - 1);
    view.range.value = current;
    view.range.style.setProperty("--qs-at", `${rows.length > 1 ? (100 * current) / (rows.length - 1) : 100}%`);
    view.where.textContent = rows.length ? `${nameOf(rows[current])} of ${total}` : "no rounds yet";
    view.hint.textContent = `← → step, space plays${view.flip.hidden ? "" : ", f flips"}`;
    view.range.setAttribute("aria-valuetext", view.where.textContent);
  }

  function pause() {
    if (timer) clearInterval(timer);
    timer = null;
    if (view) drawPlay("play");
  }

  function drawPlay(name) {
    view.play.firstChild.replaceWith(icon(name));
    view.playText.textContent = view.play.title = name;
    view.play.setAttribute("aria-label", name);
  }

  function toggle() {
    if (timer) return pause();
    if (current >= model.rows.length - 1) show(0);
    drawPlay("pause");
    timer = setInterval(() => { if (current >= model.rows.length - 1) pause(); else show(current + 1); }, STEP_MS);
    return undefined;
  }

  // A mouse at rest, under which the strip scrolls, points at nothing.
  root.addEventListener("mousemove", (event) => {
    const at = `${event.screenX} ${event.screenY}`;
    pointer = { at, moved: at !== pointer.at };
  }, true);

  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const steps = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: model.rows.length - 1 };
    const onToken = event.target.classList.contains("qs-token");
    const onButton = event.target.tagName === "BUTTON" && !onToken;
    if (event.key in steps) {
      step(steps[event.key]);
      if (onToken && focused) focused.token.node.focus({ preventScroll: true }); // the keyboard follows what is shown
    } else if (onToken && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      nextToken(event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === " " && !onButton) {
      toggle();
    } else if (event.key === "f" && model.flips().length) {
      nextFlip();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  });

  // --- the numbers behind one token ---------------------------------------------------------------------------------

  function focus(row, token) {
    if (focused) light(focused, false);
    focused = { row, token };
    light(focused, true);
    view.focus.replaceChildren(...panels(row, token));
  }

  // Marks a token and its row, and of a copied draft the tokens it was copied from.
  function light({ row, token }, on) {
    row.node.classList.toggle("qs-on", on);
    token.node.classList.toggle("qs-on", on);
    token.node.tabIndex = on ? 0 : -1;
    if (token.role !== "draft" || !row.source || !row.source.tokens) return;
    row.source.tokens.forEach((copied) => copied.node.classList.toggle("qs-from", on));
  }

  function panels(row, token) {
    const { record } = token;
    const { verifier, auditor, other } = model.judges();
    const own = row.kind === "audit" ? auditor : verifier;
    const found = [decision(row, token), likeliest(`${own}: top 5 here`, record.top[token.row], token, "")];
    if (row.kind === "round" && token.audit && current >= token.settled) {
      const { record: audit, place, judged } = token.audit;
      const panel = likeliest(`${auditor} in the audit`, audit.top[place], token, "qs-other");
      panel.append(make("p", "", judged ? `margin ${audit.margin[place].toFixed(2)} → ${token.kept ? "kept" : "retracted"}` : "behind the first token refused: not judged"));
      found.push(panel);
    }
    if (record.other) {
      const panel = likeliest(`${other} on the same draft`, record.other.top[token.row], token, "qs-other");
      panel.append(make("p", "", `margin ${record.other.margin[token.row].toFixed(2)}`), ...compared(token, verifier, other));
      found.push(panel);
    }
    return found;
  }

  // What a replay's verifier says to what was decided here; nothing where nothing was.
  function compared(token, verifier, other) {
    const theirs = token.record.other;
    const line = (differs, text) => [make("p", differs ? "qs-differing" : "", text)];
    if (token.role === "draft") {
      if (!token.judged) return [];
      const kept = theirs.decision[token.place];
      return token.flip ? line(true, `⇄ ${other} would ${verdictOf(kept)} it, ${verifier} does not`) : line(false, "same decision ✓");
    }
    if (model.header.sampling.temperature > 0) return [];
    if (token.differs) return line(true, `≠ ${other} would write ${quoted([theirs.top[token.row][0][1]])}`);
    return theirs.top[token.row][0][0] === token.id ? line(false, "same token ✓") : [];
  }

  function decision(row, token) {
    const panel = make("div");
    const { record } = token;
    const { verifier, auditor } = model.judges();
    const name = quoted([token.piece]);
    const margin = `margin ${record.margin[token.row].toFixed(2)}`;
    const lines = [];
    if (token.role === "draft") {
      panel.append(make("h4", "", `draft ${name}, position ${token.place + 1}`));
      lines.push(...rule(record, token.place, { judged: token.judged, outcome: token.state, judge: "target", writer: "draft", behind: "a draft before it was refused" }));
      if (token.beyond) lines.push("behind the end of the text: not emitted");
    } else if (token.role === "taken") {
      panel.append(make("h4", "", `${name}, taken back`));
      lines.push(...rule(record, token.row, { judged: token.audit.judged, outcome: "retracted", judge: auditor, writer: verifier, behind: "it stood behind a token refused" }));
    } else {
      const why = { prefill: "the first token, from reading the prompt", own: { corrected: "the verifier's own token where the draft was refused",
        bonus: "every draft was accepted: one token more from the same pass", plain: "nothing was drafted: plain decoding" }[token.state],
        auditor: token.state === "corrected" ? `${auditor}'s own token in place of the one refused` : `all were kept: one token more, from ${auditor}'s pass` }[token.role];
      panel.append(make("h4", "", `${name}, ${token.state}`));
      lines.push(why, `${margin} (top-1 − top-2 logit)`);
    }
    if (token.settled !== undefined) {
      lines.push({ provisional: `◌ waits for an audit by ${auditor}`, retracted: `⟲ ${auditor} took it back` }[model.stateAt(token, current)] || `kept by ${auditor}`);
    }
    lines.forEach((text) => panel.append(make("p", "", text)));
    if (token.role === "draft" && row.source && row.source.copied) panel.append(origin(row.source, token.place));
    return panel;
  }

  // The numbers of the accept rule for one token: p, q, what u had to stay below, and what came of it.
  function rule(record, place, { judged, outcome, judge, writer, behind }) {
    const [p, q, u] = [record.p[place], record.q[place], record.u[place]];
    const lines = [`${judge} p = ${share(p)} · ${writer} q = ${share(q)}${q === 1 ? " (not drawn)" : ""}`];
    const least = `min(1, p/q) = ${share(q > 0 ? Math.min(1, p / q) : 1)}`;
    if (!judged) return [...lines, `not judged: ${behind}`];
    if (u !== null) return [...lines, `${least} · draw u = ${u.toFixed(3)}`, `margin ${record.margin[place].toFixed(2)} → ${outcome}`];
    return [...lines, `${least} · greedy: arg-max is ${quoted([record.top[place][0][1]])}`, `margin ${record.margin[place].toFixed(2)} → ${outcome}`];
  }

  // The words that were looked up, and what had followed them: the copied tokens, this one marked.
  function origin(source, place) {
    const line = make("p", "qs-origin", `copied from ${source.region} ${spanOf(source)}: `);
    const words = make("span", "qs-quote");
    const marked = (piece, index) => make(index === place ? "mark" : "span", "", visible(piece));
    words.append(make("span", "qs-matched", source.matched.map(visible).join("")), ...source.copied.map(marked));
    line.append(words);
    return line;
  }

  function likeliest(title, top, token, className) {
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
