// Joins strip.js to a live widget: records arrive as messages, Stop goes back.

function render({ model, el }) {
  const box = document.createElement("div");
  box.className = "quasar-strip";
  const root = document.createElement("div");
  root.className = "qs-root";
  const bar = document.createElement("p");
  bar.className = "qs-controls";
  bar.hidden = true;
  const stop = document.createElement("button");
  stop.type = "button";
  stop.textContent = "Stop";
  stop.addEventListener("click", () => { stop.disabled = true; model.send({ type: "stop" }); });
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  bar.append(stop, said);
  box.append(bar, root);
  el.append(box);

  const strip = quasarStrip(root);
  const state = () => {
    // The bar keeps its place once a run has had it: Stop is greyed out, so that nothing below moves.
    stop.disabled = !model.get("running");
    said.textContent = model.get("status");
    bar.hidden = bar.hidden && stop.disabled && !said.textContent;
  };
  model.on("change:running", state);
  model.on("change:status", state);
  model.on("msg:custom", (message) => strip.add(message.records));
  state();
  strip.add(model.get("records"));
  model.send({ type: "ready" }); // a view that opens during a run asks for what it missed
}

export default { render };
