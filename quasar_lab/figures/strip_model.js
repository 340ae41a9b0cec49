// What the token strip knows: the records of a trace, in order, turned into rows of tokens. Nothing is drawn here.
//
// A row is one step: the prefill, a round, or an audit. A *moment* is the index of a row: everything that can be seen
// is asked for a moment, so stepping back shows the run as it was then. Where an exact verifier audits, what a round
// writes is provisional up to the moment of its audit, and its own state or retracted from then on.

function quasarStripModel() {
  const model = { header: null, summary: null, rows: [], add, stateAt, textAt, facts, flips, judges, times };
  let output; // what the drafter could copy from, prompt first: {piece, token}; token null in the prompt
  let waiting; // tokens that no audit has seen yet

  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const accepted = (states) => states.filter((state) => state === "accepted").length;
  const rounds = () => model.rows.filter((row) => row.kind === "round").map((row) => row.record);

  function add(record) {
    const take = { header: open, prefill: addPrefill, round: addRound, audit: addAudit, footer: close }[record.kind];
    if (take) take(record);
  }

  function open(record) {
    [model.header, model.summary, model.rows] = [record, null, []];
    output = record.prompt_pieces.map((piece) => ({ piece, token: null }));
    waiting = [];
  }

  function close(record) {
    model.summary = record.summary;
  }

  function addRow(kind, record, tokens, more) {
    model.rows.push({ kind, record, tokens, source: null, ms: null, ...more });
  }

  function write(tokens) {
    output.push(...tokens.map((token) => ({ piece: token.piece, token })));
  }

  function addPrefill(record) {
    const tokens = record.emitted_pieces.map((piece, place) => ({
      piece, state: "plain", id: record.emitted_ids[place], row: 0, record, role: "prefill" }));
    addRow("prefill", record, tokens, {});
    write(tokens);
  }

  function addRound(record) {
    const refused = record.states.indexOf("rejected");
    const { other } = record;
    const flipped = (place) => Boolean(other && other.flip[place]);
    const drafted = record.draft_pieces.map((piece, place) => ({
      piece, state: record.states[place], id: record.draft_ids[place], place, row: place, record, role: "draft",
      beyond: record.states[place] === "accepted" && place >= record.emitted_ids.length,
      judged: refused < 0 || place <= refused, // behind the first refusal nothing was decided
      flip: flipped(place) && (refused < 0 || place <= refused) }));
    const kept = accepted(record.states);
    const own = record.emitted_pieces.slice(kept).map((piece, place) => ({
      piece, state: record.emitted_states[kept + place], id: record.emitted_ids[kept + place], row: kept, record, role: "own",
      // Where nothing is drawn, the other verifier's own token is its likeliest. A flipped draft here is counted already.
      differs: Boolean(other) && model.header.sampling.temperature === 0 && !flipped(kept) && other.top[kept][0][0] !== record.emitted_ids[kept + place] }));
    addRow("round", record, [...drafted, ...own], { source: origin(record), ms: record.ms });
    const emitted = [...drafted.slice(0, Math.min(kept, record.emitted_ids.length)), ...own];
    write(emitted);
    if (model.header.auditor === undefined) return;
    emitted.forEach((token) => { token.settled = Infinity; });
    waiting.push(...emitted);
  }

  // The copied span, as the text stood when it was copied; positions count from 1 in the prompt or in the output.
  function origin(record) {
    const { source } = record;
    if (!source || !record.draft_ids.length) return null;
    if (source.type !== "ngram" || source.start === undefined) return { type: source.type };
    const [first, last] = [source.start, source.start + record.draft_ids.length];
    const base = source.region === "prompt" ? 0 : model.header.prompt_pieces.length;
    return {
      type: "ngram", region: source.region, from: first - base + 1, to: last - base,
      matched: output.slice(Math.max(0, first - (source.matched || 0)), first).map((item) => item.piece),
      copied: output.slice(first, last).map((item) => item.piece),
      tokens: output.slice(first, last).map((item) => item.token).filter(Boolean) };
  }

  // Keeps a prefix of what waits, takes the rest back, and adds the exact verifier's own token.
  function addAudit(record) {
    const moment = model.rows.length;
    waiting.forEach((token, place) => {
      token.settled = moment;
      token.kept = place < record.accepted;
      token.audit = { record, place, judged: place <= record.accepted };
    });
    const taken = waiting.slice(record.accepted).map((token, place) => ({
      piece: token.piece, state: "retracted", id: token.id, row: record.accepted + place, record, role: "taken", audit: token.audit }));
    const own = record.emitted_pieces.slice(record.accepted).map((piece, place) => ({
      piece, state: record.emitted_states[record.accepted + place], id: record.emitted_ids[record.accepted + place],
      row: record.accepted, record, role: "auditor" }));
    output.length = record.position + record.accepted;
    write(own);
    waiting = [];
    addRow("audit", record, [...taken, ...own], { ms: record.ms });
  }

  // --- what can be asked --------------------------------------------------------------------------------------------

  function stateAt(token, moment) {
    if (token.settled === undefined) return token.state;
    if (moment < token.settled) return "provisional";
    return token.kept ? token.state : "retracted";
  }

  // [what stays, what waits for an audit]; of a finished run its own text, without special tokens.
  function textAt(moment) {
    if (model.summary && moment >= model.rows.length - 1) return [model.summary.text, ""];
    const stays = [];
    let waits = [];
    for (const row of model.rows.slice(0, moment + 1)) {
      if (row.kind === "round" && model.header.auditor !== undefined) {
        waits.push(...row.record.emitted_pieces);
      } else {
        stays.push(...row.record.emitted_pieces);
        if (row.kind === "audit") waits = [];
      }
    }
    return [stays.join(""), waits.join("")];
  }

  // Who judged: the verifier of the rounds, its auditor, and the one that a replay asked.
  function judges() {
    const { verifier, auditor } = model.header;
    const asked = rounds().find((round) => round.other);
    const fast = auditor !== undefined && verifier.endsWith(`+${auditor}`) ? verifier.slice(0, -auditor.length - 1) : verifier;
    return { verifier: fast, auditor, other: asked && asked.other.verifier };
  }

  // Rows and tokens on which a replay's verifier decides otherwise: about a draft (flip) or its own token (differs).
  function flips() {
    return model.rows.flatMap((row, index) => row.tokens.filter((token) => token.flip || token.differs).map((token) => ({ index, token })));
  }

  // The numbers above the strip: of the whole run, as far as it has come.
  function facts() {
    const done = rounds();
    const audits = model.rows.filter((row) => row.kind === "audit").map((row) => row.record);
    const settled = sum((model.header.auditor === undefined ? done : audits).map((record) => record.emitted_ids.length));
    const tokens = model.summary ? model.summary.new_tokens - 1 : settled + waiting.length;
    const drafted = sum(done.map((round) => round.draft_ids.length));
    const seconds = sum([...done, ...audits].map((record) => sum(Object.values(record.ms)))) / 1000;
    const measured = model.summary && model.summary.tokens_per_second;
    const marks = flips();
    return {
      rounds: done.length, audits: audits.length,
      perRound: done.length ? tokens / done.length : null,
      share: drafted ? sum(done.map((round) => accepted(round.states))) / drafted : null,
      speed: measured || (seconds ? tokens / seconds : null),
      refusing: audits.filter((audit) => audit.accepted < audit.length).length,
      retracted: sum(audits.map((audit) => audit.length - audit.accepted)),
      flips: marks.filter(({ token }) => token.flip).length,
      differing: marks.filter(({ token }) => token.differs).length };
  }

  // Steps that took time, in ms, and the scale of their bars: the slowest step that is none of the few odd ones. One that
  // took more than three times the middle is odd: its bar is cut at the scale, and the others keep their lengths.
  function times() {
    const timed = model.rows.filter((row) => row.ms);
    const totals = timed.map((row) => sum(Object.values(row.ms)));
    const ordered = [...totals].sort((a, b) => a - b);
    const usual = ordered.filter((total) => total <= 3 * ordered[Math.floor((ordered.length - 1) / 2)]);
    const scale = usual.length ? usual[usual.length - 1] : 0;
    return { scale, steps: timed.map((row, place) => ({ row, total: totals[place], cut: totals[place] > scale })) };
  }

  return model;
}
