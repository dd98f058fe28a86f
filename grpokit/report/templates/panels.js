// Panels that plugins made: below one heading those of all runs that have one with this title.

function panels() {
  const runs = state.view.runs.map((run, i) => ({ run, i }));
  const titles = [...new Set(runs.flatMap(({ run }) => run.panels.map(panel => panel.title)))];
  const missing = runs.flatMap(({ run }) => run.missing_panels.map(line => note(several() ? `${run.name}: ` : "", line)));
  return [...titles.map(title => section(`panel-${digest(title)}`, title, runs.map(({ run, i }) =>
    run.panels.filter(panel => panel.title === title).map(panel => onePanel(run, i, panel))))), ...missing];
}

function onePanel(run, i, panel) {
  const of = several() ? ` of ${run.name}` : "";
  const name = several() ? el("h3", {}, swatch(i), run.name) : null;
  const [answer, ...others] = panel.text;
  return el("div", { class: "panel" }, name,
    answer ? el("p", { class: "answer" }, prose(answer)) : null,
    others.map(text => note(prose(text))),
    panel.tables.map(({ caption, head, rows }) => [caption ? el("p", { class: "caption" }, caption) : null,
      table(`${caption}${of}`, head, rows, { show: (cell, column) => panelCell(cell, rows.map(row => row[column])) })]));
}

// Commands stand between backticks.
function prose(text) {
  const parts = text.split("`");
  return parts.map((part, i) => (i % 2 ? el("code", {}, part) : sentence(part)));
}

// A number with the digits of its column: none where all of them are whole.
function panelCell(cell, column) {
  if (typeof cell === "string") return prose(cell);
  const whole = column.filter(isNumber).every(Number.isInteger);
  return whole && isNumber(cell) ? oneSign(cell.toLocaleString("en")) : figure(cell);
}
