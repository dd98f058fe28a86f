// Pictures and texts: before and after, over the evaluations, and the best and worst groups. A click shows them large.

const PAIRS = 6; // that are shown before somebody asks for all

const picture = name => PICTURES[name] ?? name;
const fits = prompt => prompt.toLowerCase().includes(state.filter.trim().toLowerCase());

function output(card, label) {
  if (!card) return el("span", { class: "missing" }, "none kept");
  if (card.missing) return el("span", { class: "missing" }, "picture missing");
  if (card.picture) {
    return el("img", {
      src: picture(card.picture), alt: label, loading: LIVE ? "lazy" : null, decoding: "async",
      onerror: event => event.target.replaceWith(el("span", { class: "missing" }, "picture missing")),
    });
  }
  const more = card.left_out ? ` … and ${card.left_out} more characters` : "";
  return el("code", {}, card.text + more);
}

// A sample that opens large; `gallery` is what the dialog walks through.
function sample(card, label, gallery, place) {
  const shown = output(card, label);
  if (!card || card.missing) return shown;
  return el("button", {
    type: "button", class: card.picture ? "picture" : "text", "aria-label": `${label}: show it large`,
    onclick: () => enlarge(gallery, place),
  }, shown);
}

const rewardNames = row => {
  const names = Object.keys(row.scores);
  const all = names.length > 1 && "reward" in row ? [...names, "reward"] : names;
  return state.reward ? all.filter(name => name === state.reward) : all;
};
const scoreOf = (row, name) => (name === "reward" ? row.reward : row.scores[name]);
const chosenScore = row => (state.reward ? scoreOf(row, state.reward) : row.reward ?? Object.values(row.scores)[0]);

function scoreList(rows, { label = null, run = null } = {}) {
  const last = rows[rows.length - 1];
  return el("ul", { class: "scores", "aria-label": label }, run === null ? null : el("li", {}, swatch(run)), rewardNames(last).map(name => {
    const values = rows.map(row => scoreOf(row, name));
    const gap = rows.length > 1 && isNumber(values[0]) && isNumber(values.at(-1)) ? values.at(-1) - values[0] : null;
    const change = gap === null ? "" : ` (${figure(gap, 2, true)})`;
    return el("li", {}, `${name} ${values.map(value => figure(value, 2)).join(" → ")}${change}`);
  }));
}

// One prompt with what came out in each column, and its source and target.
function strip(prompt, parts, rows, gallery, place, ...extra) {
  const given = parts.find(part => part.row)?.row ?? {};
  const cells = [["source", given.source], ...parts.map(part => [part.label, part.row?.output, part]), ["target", given.target]];
  const outputs = cells.filter(([label, card, part]) => part || (card && label));
  return el("article", { class: "card" }, el("h3", { class: "clip" }, prompt, given.n ? el("small", {}, ` sample ${given.n + 1}`) : null),
    el("ul", { class: "cells" }, outputs.map(([label, card, part]) => el("li", {},
      el("span", { class: "label" }, part && isNumber(part.run) && several() ? swatch(part.run) : null, label),
      sample(card, `${label}, ${prompt}`, gallery, place)))),
    rows.length ? scoreList(rows) : null, extra);
}

// How far apart the scores are that there are; null for fewer than two.
function distance(scores) {
  const found = scores.filter(isNumber);
  return found.length > 1 ? Math.max(...found) - Math.min(...found) : null;
}

function columnsOf(pairs, entry) {
  return pairs.columns.map((column, i) => {
    const row = state.view.runs[column.run].evaluations[column.evaluation].rows[entry.rows[i]];
    return { label: column.label, run: column.run, row };
  });
}

function beforeAndAfter(pairs) {
  if (!pairs || !pairs.entries.length) return null;
  const entries = pairs.entries.map(entry => ({ parts: columnsOf(pairs, entry), gain: entry.gain }));
  if (state.reward) {
    for (const entry of entries) {
      const [before, after] = [entry.parts[0].row, entry.parts.at(-1).row].map(chosenScore);
      entry.gain = isNumber(before) && isNumber(after) ? after - before : null;
    }
  }
  const gain = entry => entry.gain, last = entry => chosenScore(entry.parts.at(-1).row);
  const by = (value, sign) => (a, b) => { // what has no score comes last
    const [x, y] = [value(a), value(b)];
    return isNumber(x) && isNumber(y) ? sign * (x - y) : isNumber(y) - isNumber(x);
  };
  const spread = entry => distance(entry.parts.map(part => chosenScore(part.row)));
  const order = state.sort ?? (several() ? "difference" : "gain");
  const orders = {
    difference: by(spread, -1),
    gain: by(gain, -1), loss: by(gain, 1), high: by(last, -1), low: by(last, 1),
    prompt: (a, b) => a.parts[0].row.prompt.localeCompare(b.parts[0].row.prompt),
  };
  const found = entries.filter(entry => fits(entry.parts[0].row.prompt)).sort(orders[order]);
  const gallery = found.map(entry => ({ prompt: entry.parts[0].row.prompt, parts: entry.parts }));
  const shown = state.all ? found : found.slice(0, PAIRS);
  const title = several() ? "The same prompts, run by run" : "Before and after";
  return section("pairs", title,
    note(several() ? `Of ${counted(pairs.entries.length, "held-out sample")} on this page, ${pairs.gained} have a higher reward in `
      + `the last of the runs than in the first, ${pairs.lost} a lower one and ${pairs.same} the same. Click one to see it large.`
      : `Of ${counted(pairs.entries.length, "held-out sample")} on this page, ${pairs.gained} gained, ${pairs.lost} lost and `
      + `${pairs.same} did not change, by their reward. Click one to see it large.`),
    choice("Sort by", "sort", order, [["difference", "largest difference"], ["gain", "largest gain"], ["loss", "largest loss"], ["high", "highest score now"],
      ["low", "lowest score now"], ["prompt", "prompt"]], value => change({ sort: value })),
    el("div", { class: "pairs" }, shown.map((entry, i) => strip(entry.parts[0].row.prompt, entry.parts,
      entry.parts.map(part => part.row), gallery, i))),
    found.length ? null : note("No prompt has these words."),
    found.length > PAIRS ? el("button", { type: "button", class: "more", "data-key": "all", onclick: () => change({ all: !state.all }) },
      state.all ? "Show fewer" : `Show all ${found.length}`) : null);
}

function overTheRun() {
  const steps = [...new Set(state.view.runs.flatMap(run => run.evaluations.map(e => e.step)))].sort((a, b) => a - b);
  if (!steps.length) return null;
  const place = Math.max(0, steps.findLastIndex(step => step <= (state.step ?? Infinity)));
  const step = steps[place];
  const now = state.view.runs.map((run, i) => ({ run: i, evaluation: run.evaluations.filter(e => e.step <= step).at(-1) }));
  const prompts = new Map();
  for (const { run, evaluation } of now) {
    for (const row of evaluation?.rows ?? []) {
      const key = JSON.stringify([row.prompt, row.n]);
      if (!prompts.has(key)) prompts.set(key, { prompt: row.prompt, parts: [] });
      const label = several() ? `${state.view.runs[run].name}, step ${evaluation.step}` : `step ${evaluation.step}`;
      prompts.get(key).parts.push({ label, run, row });
    }
  }
  const gallery = [...prompts.values()].filter(entry => fits(entry.prompt));
  const text = `${steps.length > 1 ? `Evaluation after step ${step}` : `After step ${step}`}${steps.length > 1 && place === steps.length - 1 ? ", the newest" : ""}`;
  const slider = el("input", {
    type: "range", min: 0, max: steps.length - 1, step: 1, value: place, "data-key": "slider",
    "aria-label": "Evaluation", "aria-valuetext": text,
    oninput: event => change({ step: Number(event.target.value) === steps.length - 1 ? null : steps[Number(event.target.value)] }),
  });
  return section("steps", "Samples over the run",
    steps.length > 1 ? note("The same held-out prompts with the same random draws at every evaluation. Move the slider to go back in the run.") : null,
    el("div", { class: "slider" }, steps.length > 1 ? slider : null, el("output", {}, text)),
    el("div", { class: "pairs" }, gallery.map((entry, i) => strip(entry.prompt, entry.parts, [], gallery, i,
      entry.parts.map(part => scoreList([part.row], several() ? { label: `Scores of ${part.label}`, run: part.run } : {}))))),
    gallery.length ? null : note("No prompt has these words."));
}

function groups() {
  const runs = state.view.runs.map((run, i) => ({ run, i })).filter(({ run }) => run.groups.length);
  if (!runs.length) return null;
  const one = ({ step, sides }, open, run, i) => el("details", { open, "data-open": `group-${i}-${step}` },
    el("summary", {}, several() ? swatch(i) : null, several() ? `${run.name}, step ${step}` : `Step ${step}`),
    el("div", { class: "sides" }, sides.filter(side => fits(side.prompt)).map(side => {
      const rows = [...side.rows];
      if (state.reward) rows.sort((a, b) => (chosenScore(b) ?? -Infinity) - (chosenScore(a) ?? -Infinity));
      const gallery = rows.map((row, n) => ({ prompt: side.prompt, parts: [{ label: `sample ${n + 1}`, row }] }));
      const kept = side.rows.length < side.count ? `; ${side.rows.length} of ${side.count} samples` : "";
      return el("div", {}, el("h3", { class: "clip" }, `${side.place === "best" ? "Best" : "Worst"}: ${side.prompt}`),
        el("small", {}, `mean reward ${figure(side.mean)}${kept}`),
        el("ul", { class: "cells" }, gallery.map((entry, n) => el("li", {},
        sample(rows[n].output, `sample ${n + 1}, ${side.prompt}`, gallery, n), scoreList([rows[n]]),
        el("span", { class: `label advantage ${["down", "", "up"][Math.sign(Math.round(100 * (rows[n].advantage ?? 0))) + 1]}` }, `advantage ${figure(rows[n].advantage, 2, true)}`)))));
    })));
  return section("groups", "Best and worst groups",
    note("Training groups with the highest and the lowest mean reward of a step. A sample with an advantage above 0 is made more likely, one with an advantage below 0 less likely."),
    runs.map(({ run, i }) => run.groups.map((group, n) => one(group, n === run.groups.length - 1, run, i)).reverse()));
}

// The dialog: one prompt, every column as large as it fits; arrow keys walk on, Escape closes it.
function enlarge(gallery, place) {
  const dialog = byId("large"), { prompt, parts } = gallery[place];
  const given = parts[0].row;
  const cells = [["source", given.source], ...parts.map(part => [part.label, part.row.output]), ["target", given.target]];
  const walk = by => enlarge(gallery, (place + by + gallery.length) % gallery.length);
  const button = (name, key, act) => el("button", { type: "button", "data-key": key, onclick: act }, name);
  const held = document.activeElement?.dataset?.key;
  dialog.replaceChildren(
    el("header", {}, el("h2", { id: "large-title" }, prompt), el("div", {},
      gallery.length > 1 ? [button("Previous", "previous", () => walk(-1)), button("Next", "next", () => walk(1))] : [],
      button("Close", "close", () => dialog.close()))),
    el("ul", { class: "cells" }, cells.filter(([, card]) => card).map(([label, card]) => el("li", {},
      el("span", { class: "label" }, label), output(card, `${label}, ${prompt}`)))),
    scoreList(parts.map(part => part.row)));
  dialog.onkeydown = event => {
    if (gallery.length > 1 && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      event.preventDefault();
      walk(event.key === "ArrowLeft" ? -1 : 1);
    }
  };
  dialog.onclose = draw;
  dialog.onclick = event => event.target === dialog && dialog.close();
  if (!dialog.open) dialog.showModal();
  (dialog.querySelector(`[data-key="${held}"]`) ?? dialog.querySelector('[data-key="close"]')).focus();
}
