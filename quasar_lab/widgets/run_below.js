// A button that runs the cells below the one it stands in, where JupyterLab lets a page ask for that
// (`quasar-lab lab` starts it so). Elsewhere a sentence says which menu does it.

function render({ model, el }) {
  const lab = window.jupyterapp;
  const command = "notebook:run-all-below";
  const able = Boolean(lab && lab.commands && lab.commands.hasCommand(command));
  const button = document.createElement("button");
  button.type = "button";
  button.className = "jupyter-button widget-button mod-success";
  button.textContent = "Run the cells below";
  button.hidden = !able;
  button.style.display = able ? "" : "none";
  button.addEventListener("click", () => {
    const notebook = lab.shell.currentWidget.content;
    const here = notebook.widgets.findIndex((cell) => cell.node.contains(el));
    if (here < 0 || here + 1 >= notebook.widgets.length) return;
    notebook.deselectAll();
    notebook.activeCellIndex = here + 1;
    lab.commands.execute(command);
  });
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  said.textContent = able ? "" : "The cells below still hold the models of before: run them again (menu Run).";
  const box = document.createElement("div"); // the look of `el` belongs to the widget's layout
  box.append(button, said);
  const show = () => { box.style.display = model.get("offered") ? "" : "none"; };
  model.on("change:offered", show);
  show();
  el.append(box);
}

export default { render };
