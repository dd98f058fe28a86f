// Samples: of held-out prompts over the evaluations, and the best and worst groups of training. A click shows one large.

const PAIRS = 6; // that are shown before someone asks for all

// A prompt as some letters, for the address of its samples (FNV-1a).
const digest = text => (new TextEncoder().encode(text).reduce((sum, byte) => Math.imul(sum ^ byte, 16777619), 2166136261) >>> 0).toString(36);
const linkTo = (id, label) => el("a", { class: "link", href: `#${id}`, "aria-label": `Link to ${label}` }, "Link");
// What the element of a sample has, so that its address leads to it.
const target = (id, name = "") => ({ id, tabindex: -1, class: `${name}${id === state.linked ? " linked" : ""}`.trim() || null });

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
// Without a chosen reward: the whole reward, or what the shared rewards of runs with different ones add up to.
function chosenScore(row) {
  if (state.reward) return scoreOf(row, state.reward);
  const { weights } = state.view;
  if ("reward" in weights && "reward" in row) return row.reward;
  const parts = Object.entries(weights).filter(([name]) => isNumber(row.scores[name]));
  return parts.length ? parts.reduce((sum, [name, weight]) => sum + weight * row.scores[name], 0) : null;
}

function scoreList(rows) {
  return el("ul", { class: "scores" }, rewardNames(rows.at(-1)).map(name => {
    const values = rows.map(row => scoreOf(row, name));
    const gap = rows.length > 1 && isNumber(values[0]) && isNumber(values.at(-1)) ? values.at(-1) - values[0] : null;
    const change = gap === null ? "" : ` (${figure(gap, 2, true)})`;
    return el("li", {}, `${name} ${values.map(value => figure(value, 2)).join(" → ")}${change}`);
  }));
}

// How far apart the scores are that there are; null for fewer than two.
function distance(scores) {
  const found = scores.filter(isNumber);
  return found.length > 1 ? Math.max(...found) - Math.min(...found) : null;
}

// One prompt with what came out in each column, and its source and target.
function strip({ prompt, parts }, gallery, place) {
  const rows = parts.flatMap(part => part.row ?? []), last = rows.at(-1);
  const cells = [["source", last.source], ...parts.map(part => [part.label, part.row?.output, part]), ["target", last.target]];
  const id = `sample=evaluation-${stepShown()}-${digest(prompt)}-${last.n + 1}`;
  return el("article", target(id, "card"), el("h3", { class: "clip" }, prompt, last.n ? el("small", {}, ` sample ${last.n + 1}`) : null),
    el("ul", { class: "cells" }, cells.filter(([, card, part]) => part || card).map(([label, card, part]) => el("li", {},
      el("span", { class: "label" }, part && several() ? swatch(part.run) : null, label), sample(card, `${label}, ${prompt}`, gallery, place)))),
    el("div", { class: "foot" }, scoreList(rows), linkTo(id, `sample ${last.n + 1} of ${prompt}`)));
}

const stepsOfAll = () => [...new Set(state.view.runs.flatMap(run => run.evaluations.map(e => e.step)))].sort((a, b) => a - b);
const equalStep = () => (state.mode === "equal" ? state.view.comparison?.modes.equal?.steps[0] : null);
const stepShown = () => state.step ?? equalStep() ?? stepsOfAll().at(-1);

// The first evaluation of a run and the one that the slider is at; of several runs each one's at the slider.
function columns() {
  const { runs } = state.view, last = stepShown();
  const shown = runs.map((run, i) => ({ run: i, evaluation: run.evaluations.filter(e => e.step <= last).at(-1) }));
  if (!several()) shown.unshift({ run: 0, evaluation: runs[0].evaluations[0] });
  return shown.filter(({ evaluation }, i) => evaluation && evaluation !== shown[i - 1]?.evaluation).map(({ run, evaluation }) => ({
    run, evaluation, label: `${several() ? `${runs[run].name}, ` : ""}${evaluation.label}`,
    rows: new Map(evaluation.rows.map(row => [JSON.stringify([row.prompt, row.n]), row])),
  }));
}

const ORDERS = [["difference", "largest difference"], ["gain", "largest gain"], ["loss", "largest loss"], ["high", "highest score now"],
  ["low", "lowest score now"], ["prompt", "prompt"]];

function heldOut() {
  const steps = stepsOfAll(), shown = columns(), last = stepShown();
  if (!steps.length) return null;
  const entries = [...new Set(shown.flatMap(column => [...column.rows.keys()]))].map(key => {
    const parts = shown.map(({ run, label, rows }) => ({ run, label, row: rows.get(key) }));
    const scores = parts.map(part => (part.row ? chosenScore(part.row) : null));
    const gain = isNumber(scores[0]) && isNumber(scores.at(-1)) && parts.length > 1 ? scores.at(-1) - scores[0] : null;
    if (!parts.slice(several() ? 0 : -1).some(part => part.row)) return null; // kept as best or worst of the first one
    return { prompt: JSON.parse(key)[0], parts, gain, loss: gain === null ? null : -gain, difference: distance(scores), high: scores.at(-1) };
  }).filter(Boolean);
  const order = state.sort ?? (several() ? "difference" : "gain");
  const value = order === "low" ? entry => (isNumber(entry.high) ? -entry.high : null) : entry => entry[order];
  const found = entries.filter(entry => fits(entry.prompt)).sort(order === "prompt" ? (a, b) => a.prompt.localeCompare(b.prompt)
    : (a, b) => (isNumber(value(a)) && isNumber(value(b)) ? value(b) - value(a) : isNumber(value(b)) - isNumber(value(a)))); // no score: last
  const gains = entries.map(entry => entry.gain).filter(isNumber);
  const place = Math.max(0, steps.findLastIndex(step => step <= last)), newest = place > 0 && place === steps.length - 1 ? ", the newest" : "";
  const text = `Evaluation: ${shown.at(-1).evaluation.label}${newest}`;
  const slider = el("input", {
    type: "range", min: 0, max: steps.length - 1, step: 1, value: place, "data-key": "slider", "aria-label": "Evaluation", "aria-valuetext": text,
    oninput: event => change({ step: Number(event.target.value) === steps.length - 1 ? null : steps[Number(event.target.value)] }),
  });
  return [
    note(state.view.runs.every(run => run.planned) ? "The same held-out prompts with the same random draws at every evaluation. " : "", gains.length ? `Of ${counted(gains.length, "sample")} kept `
      + `both times, ${gains.filter(g => g > 0).length} gained, ${gains.filter(g => g < 0).length} lost and ${gains.filter(g => g === 0).length} did not `
      + `change, from ${shown[0].label} to ${shown.at(-1).label}. ` : "", "Click one to see it large."),
    el("div", { class: "slider" }, steps.length > 1 ? slider : null, el("output", {}, text)),
    choice("Sort by", "sort", order, ORDERS, sort => change({ sort })),
    el("div", { class: "pairs" }, (state.all ? found : found.slice(0, PAIRS)).map((entry, i) => strip(entry, found, i))),
    found.length ? null : note("No prompt has these words."),
    found.length > PAIRS ? el("button", { type: "button", class: "more", "data-key": "all", onclick: () => change({ all: !state.all }) },
      state.all ? "Show fewer" : `Show all ${found.length}`) : null,
  ];
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
      const address = row => `sample=group-${step}-${side.place}-${side.rows.indexOf(row) + 1}${several() ? `-run-${i + 1}` : ""}`;
      const kept = side.rows.length < side.count ? `; ${side.rows.length} of ${side.count} samples` : "";
      return el("div", {}, el("h4", { class: "clip" }, `${side.place === "best" ? "Best" : "Worst"}: ${side.prompt}`),
        el("small", {}, `mean reward ${figure(side.mean)}${kept}`),
        el("ul", { class: "cells" }, gallery.map((entry, n) => el("li", target(address(rows[n])),
        sample(rows[n].output, `sample ${n + 1}, ${side.prompt}`, gallery, n), scoreList([rows[n]]),
        el("div", { class: "foot" }, el("span", { class: `label advantage ${["down", "", "up"][Math.sign(Math.round(100 * (rows[n].advantage ?? 0))) + 1]}` }, `advantage ${figure(rows[n].advantage, 2, true)}`),
          linkTo(address(rows[n]), `sample ${n + 1} of ${side.place} group, ${side.prompt}`))))));
    })));
  return [el("h3", {}, "Best and worst groups in training"),
    note("Groups with the highest and the lowest mean reward of a step. A sample with an advantage above 0 is made more likely, one with an advantage below 0 less likely."),
    runs.map(({ run, i }) => run.groups.map((group, n) => one(group, n === run.groups.length - 1, run, i)).reverse())];
}

function samples() {
  const parts = [heldOut(), groups()];
  return parts.some(Boolean) ? section("samples", several() ? "Samples, run by run" : "Samples", parts) : null;
}

// The dialog: one prompt, every column as large as it fits; arrow keys walk on, Escape closes it.
function enlarge(gallery, place) {
  const dialog = byId("large"), { prompt, parts } = gallery[place];
  const rows = parts.flatMap(part => part.row ?? []), last = rows.at(-1);
  const cells = [["source", last.source], ...parts.map(part => [part.label, part.row?.output]), ["target", last.target]];
  const walk = by => enlarge(gallery, (place + by + gallery.length) % gallery.length);
  const button = (name, key, act) => el("button", { type: "button", "data-key": key, onclick: act }, name);
  const held = document.activeElement?.dataset?.key;
  dialog.replaceChildren(
    el("header", {}, el("h2", { id: "large-title" }, prompt), el("div", {},
      gallery.length > 1 ? [button("Previous", "previous", () => walk(-1)), button("Next", "next", () => walk(1))] : [],
      button("Close", "close", () => dialog.close()))),
    el("ul", { class: "cells" }, cells.filter(([, card]) => card).map(([label, card]) => el("li", {},
      el("span", { class: "label" }, label), output(card, `${label}, ${prompt}`)))),
    scoreList(rows));
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
