// Tables: scores of each prompt, what moves the rewards, and the details at the end.

const ROWS = 200; // of the table of prompts

function promptTable() {
  const runs = state.view.runs.map((run, i) => ({ run, i, prompts: run.prompts })).filter(({ prompts }) => prompts);
  if (!runs.length) return null;
  const names = runs[0].prompts.names.filter(name => runs.every(({ prompts }) => prompts.names.includes(name)));
  const name = state.reward && names.includes(state.reward) ? state.reward : names[0];
  if (!name) return null;
  const columns = several() ? runs.map(({ run, prompts }) => `${run.name}, ${prompts.labels[1]}`)
    : [...new Set(runs[0].prompts.labels)];
  const compared = columns.length > 1;
  const rows = new Map();
  runs.forEach(({ prompts }, i) => {
    const at = prompts.names.indexOf(name);
    for (const { prompt, key, before, after } of prompts.rows) {
      const place = JSON.stringify(key);
      if (!rows.has(place)) rows.set(place, { prompt, values: [] });
      const { values } = rows.get(place);
      if (several()) values[i] = after[at];
      else values.push(before[at], after[at]);
    }
  });
  const list = [...rows.values()].filter(({ prompt }) => fits(prompt)).map(({ prompt, values }) => {
    const ends = [values[0], values[columns.length - 1]];
    const change = ends.every(isNumber) ? ends[1] - ends[0] : null;
    return [prompt, ...columns.map((_, i) => values[i]), ...(compared ? [change] : [])];
  });
  if (state.sorted.column === null && several()) list.sort((a, b) => (distance(b.slice(1, -1)) ?? -1) - (distance(a.slice(1, -1)) ?? -1));
  const left = Math.max(...runs.map(({ prompts }) => prompts.left_out)) + Math.max(0, list.length - ROWS);
  return section("prompts", "Prompt by prompt",
    note(`Mean ${name} over the samples of each held-out prompt${state.reward ? "" : "; choose another reward at the top of the page"}. `
      + "Click a heading to sort.", left ? ` ${counted(left, "further prompt")} of this order are not shown.` : ""),
    table("Scores of each held-out prompt", ["prompt", ...columns, ...(compared ? [several() ? `${columns.at(-1)} minus ${columns[0]}` : "change"] : [])],
      inOrder(list, state.sorted), {
        show: (value, i) => (i ? figure(value, 3, i === columns.length + 1) : el("span", { class: "clip", title: value }, value)), most: ROWS,
        sorted: state.sorted, onsort: i => change({ sorted: { column: i, down: state.sorted.column === i ? !state.sorted.down : i > 0 } }),
      }));
}

function moved() {
  const runs = state.view.runs.filter(run => run.moved);
  if (!runs.length) return null;
  return section("moved", "What moves the rewards",
    note("Shares of each reward's variance inside held-out prompts, by an analysis of variance over a grid of random draws. "
      + "“Both” is their joint effect, together with chance."),
    runs.map(run => [several() ? el("h3", {}, run.name) : null,
      table(`What moves the rewards${several() ? ` of ${run.name}` : ""}`, run.moved.head, run.moved.body)]));
}

function details() {
  const part = (key, title, ...content) => el("details", { "data-open": key }, el("summary", {}, el("h3", {}, title)), content);
  const text = (label, content) => el("pre", { tabindex: "0", role: "region", "aria-label": label }, content);
  return section("details", "Details", state.view.runs.map((run, i) => {
    const of = several() ? ` of ${run.name}` : "";
    const value = number => (isNumber(number) ? oneSign(Number.isInteger(number) ? number.toLocaleString("en") : Number(number.toPrecision(5)).toString()) : number ?? "–");
    return [
      run.last.length ? part(`last-${i}`, `The last step in numbers${of}`,
        table(`The last step in numbers${of}`, ["metric", "value"], run.last, { show: (cell, i) => (i ? value(cell) : cell) })) : null,
      part(`config-${i}`, `Config${of}`, text(`Config${of}`, run.config)),
      part(`versions-${i}`, `Versions${of}`, text(`Versions${of}`, run.versions)),
    ];
  }));
}
