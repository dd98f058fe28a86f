// The top of the page: what run it is, the verdict, alarms, and the scores; or several runs against the first.

const MARKS = { better: "▲ ", worse: "▼ ", even: "= ", unknown: "" };

function changed(score, words) {
  if (score.change === null) return null;
  const width = score.width === null ? "" : ` ± ${figure(score.width)}`;
  return el("span", {}, el("em", { class: score.verdict }, `${MARKS[score.verdict]}${figure(score.change, 3, true)}${width}`), ` ${words[score.verdict]}`);
}

function tile(score, single) {
  const title = el("span", {}, score.name, score.monitor ? el("small", {}, " (monitor, not trained on)") : null);
  if (score.after === null) return el("li", { class: "tile" }, title, el("b", {}, "not scored"));
  if (single) {
    return el("li", { class: "tile" }, title, el("b", {}, figure(score.after)),
      score.after_width === null ? null : el("span", {}, `± ${figure(score.after_width)}`));
  }
  const means = score.before_width !== null && score.after_width !== null
    ? el("span", {}, `means ± ${figure(score.before_width)} and ± ${figure(score.after_width)}`) : null;
  return el("li", { class: "tile" }, title, el("b", {}, `${figure(score.before)} → ${figure(score.after)}`),
    changed(score, { better: "better", worse: "worse", even: "no clear change", unknown: "" }), means);
}

function facts(run) {
  return el("dl", { class: "facts" }, run.facts.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, sentence(text)))));
}

function warnings(run, of) {
  const items = run.warnings.map(({ text, steps }) => el("li", {}, sentence(text), " ", el("small", {}, steps)));
  const title = `${counted(items.length, "warning")}${of}`;
  const list = el("ul", {}, items);
  return [
    run.failure ? el("section", { class: "warn failed", "aria-label": `Failure${of}` }, el("h2", {}, `The run failed${of}`), el("p", {}, run.failure)) : null,
    run.alarm ? el("section", { class: "warn alarm", "aria-label": `Alarm${of}` }, el("h2", {}, `Alarm${of}`), el("p", {}, sentence(run.alarm))) : null,
    !items.length ? null : el("section", { class: "warn", "aria-label": title }, items.length > 5
      ? el("details", { "data-open": `warnings${of}` }, el("summary", {}, el("h2", {}, title)), list) : [el("h2", {}, title), list]),
  ];
}

const verdict = run => el("p", { class: `verdict ${run.mood}` }, sentence(run.verdict));

function headOfOne() {
  const run = state.view.runs[0];
  if (run.waiting) return el("header", {}, el("h1", {}, run.name), el("p", { class: "verdict" }, run.waiting));
  const single = run.evaluations.length < 2;
  return el("header", {}, el("h1", {}, run.name), verdict(run), el("p", { class: "lead" }, run.state), facts(run),
    warnings(run, ""),
    run.scores.length ? el("section", { "aria-labelledby": "scores-title" }, el("h2", { id: "scores-title", class: "unseen" }, "Scores"), el("ul", { class: "tiles" }, run.scores.map(score => tile(score, single))), note(run.basis)) : null);
}

function headOfMany() {
  const { runs, comparison } = state.view;
  const mode = comparison?.modes[state.mode] ? state.mode : "last";
  const at = comparison?.modes[mode];
  const cards = runs.map((run, i) => el("li", { class: "tile run" }, el("h2", {}, swatch(i), run.name),
    run.waiting ? el("p", {}, run.waiting) : [verdict(run), el("p", { class: "lead" }, run.state), facts(run)]));
  const gap = ({ run, scores }) => el("section", { "aria-label": `${runs[run].name} against ${runs[0].name}` },
    el("h2", {}, swatch(run), `${runs[run].name} against ${runs[0].name}`),
    el("ul", { class: "tiles" }, scores.map(score => el("li", { class: "tile" },
      el("span", {}, score.name), el("b", {}, `${figure(score.before)} | ${figure(score.after)}`),
      changed(score, { better: `${runs[run].name} is better`, worse: `${runs[0].name} is better`, even: "no clear difference", unknown: "" })))));
  const choose = Object.keys(comparison?.modes ?? {}).length > 1 ? choice("Compare", "mode", mode,
    [["last", "the last evaluation of each run"], ["equal", `equal steps (after step ${comparison.modes.equal.steps[0]})`]], value => change({ mode: value })) : null;
  return el("header", {}, el("h1", {}, runs.map(run => run.name).join(", ")), el("ul", { class: "tiles runs" }, cards),
    runs.map(run => (run.waiting ? null : warnings(run, ` in ${run.name}`))), choose,
    at?.gaps.map(gap), at?.note ? note(at.note) : null,
    at?.basis ? note(at.basis) : null);
}

function differences() {
  if (!state.view.comparison) return null;
  const { config, versions } = state.view.comparison, names = state.view.runs.map(run => run.name);
  const part = (title, rows, key) => [el("h3", {}, title), rows.length ? table(`Differences of the ${key}`, ["key", ...names], rows)
    : el("p", {}, `The ${key} are the same.`)];
  return section("differences", "What is different", part("Config", config, "configs"), part("Versions", versions, "versions"));
}
