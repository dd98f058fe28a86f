// Puts the sections on the page, keeps what someone has chosen, and follows a run that is served.

const frozen = JSON.parse(byId("view").textContent);
const PICTURES = JSON.parse(byId("pictures").textContent);
const LIVE = frozen === null;
const state = {
  view: frozen, filter: "", reward: "", sort: null, all: false, step: null, mode: "last",
  sorted: { column: null, down: true }, hidden: {}, logs: [], linked: null, lost: "",
};
const several = () => state.view.runs.length > 1;

function toolbar() {
  const names = [...new Set(state.view.runs.flatMap(run => run.rewards ?? []))];
  const filter = el("input", { type: "search", value: state.filter, "data-key": "filter", placeholder: "words of a prompt",
    oninput: event => change({ filter: event.target.value }) });
  return el("div", { class: "toolbar", role: "search", "aria-label": "Filter" },
    el("label", {}, el("span", {}, "Prompts with"), filter),
    names.length > 1 ? choice("Reward", "reward", state.reward, [["", "all"], ...names.map(name => [name, name])],
      value => change({ reward: value })) : null);
}

// name -> what it depends on, and how it is drawn. What depends on nothing new stays as it is on the page.
const chosen = (...keys) => keys.map(key => state[key]);
const of = (...keys) => state.view.runs.map(run => keys.map(key => run[key]));
const heads = ["name", "steps", "state", "facts", "verdict", "mood", "failure", "alarm", "warnings", "scores", "basis", "waiting"];
const SECTIONS = {
  head: [() => [of(...heads), state.view.comparison?.modes, chosen("mode")], () => (several() ? headOfMany() : headOfOne())],
  contents: [() => present(), () => el("nav", { "aria-label": "Sections" }, present().map(([id, title]) => el("a", { href: `#${id}` }, title)))],
  panels: [() => of("name", "panels", "missing_panels"), panels],
  toolbar: [() => [of("rewards", "waiting")], () => (ready().length ? toolbar() : null)],
  samples: [() => [of("evaluations", "groups"), state.view.weights, chosen("filter", "reward", "sort", "all", "step", "mode", "linked")], samples],
  curves: [() => [of("charts", "advantages", "reward_against_kl", "phases"), chosen("reward", "hidden", "logs")], curves],
  prompts: [() => [of("prompts"), chosen("filter", "reward", "sorted")], promptTable],
  moved: [() => of("moved"), moved],
  differences: [() => [state.view.comparison?.config, state.view.comparison?.versions], differences],
  details: [() => of("last", "config", "versions"), details],
};
const ready = () => state.view.runs.filter(run => !run.waiting);
const present = () => [...document.querySelectorAll("#page > div > section[id]")].map(part => [part.id, part.querySelector("h2").textContent]);
const drawn = {}; // name -> [what it was drawn from, its place]
const stops = place => [...place.querySelectorAll("a, button, input, select, summary, [tabindex]")]; // of the Tab key

function change(what) {
  Object.assign(state, what);
  draw();
}

function toggle(id, title) {
  const hidden = new Set(state.hidden[id] ?? []);
  if (!hidden.delete(title)) hidden.add(title);
  change({ hidden: { ...state.hidden, [id]: [...hidden] } });
}

function draw() {
  if (byId("large").open) return; // it is drawn when the dialog closes, so that the focus finds its way back
  const view = state.view, waiting = view.runs.filter(run => run.waiting);
  const focus = document.activeElement?.dataset?.key;
  for (const name of [...Object.keys(SECTIONS).filter(key => key !== "contents"), "contents"]) {
    const [depends, make] = SECTIONS[name];
    if (!drawn[name]) byId("page").append(drawn[name] = el("div", { class: `part-${name}` }));
    const place = drawn[name], blank = waiting.length && !["head", "toolbar"].includes(name);
    const from = JSON.stringify(blank ? null : depends());
    if (place.from === from) continue;
    place.from = from;
    const stop = stops(place).indexOf(document.activeElement);
    const open = new Map([...place.querySelectorAll("details[data-open]")].map(part => [part.dataset.open, part.open]));
    if (name === "curves" && place.firstChild && !blank) redoCurves(place, make());
    else place.replaceChildren(...[blank ? null : make()].flat().filter(Boolean));
    for (const part of place.querySelectorAll("details[data-open]")) if (open.has(part.dataset.open)) part.open = open.get(part.dataset.open);
    if (stop >= 0) stops(place)[stop]?.focus({ preventScroll: true });
  }
  byId("page").insertBefore(drawn.contents, drawn.panels);
  if (focus && document.activeElement?.dataset?.key !== focus) {
    [...document.querySelectorAll("#page [data-key]")].find(element => element.dataset.key === focus)?.focus();
  }
}

// New curves take the plots that are there, so that they keep their zoom.
function redoCurves(place, fresh) {
  for (const plot of fresh?.querySelectorAll(".plot") ?? []) {
    const old = place.querySelector(`#${CSS.escape(plot.id)}`);
    if (!old?.data) continue;
    near.unobserve(plot);
    drawings.set(old, drawings.get(plot));
    old.setAttribute("aria-label", plot.getAttribute("aria-label"));
    resetOf(plot).hidden = resetOf(old).hidden;
    plot.replaceWith(old);
  }
  place.replaceChildren(...(fresh ? [fresh] : []));
  redrawAll();
}

function start() {
  const first = byId("waiting");
  first?.remove();
  draw();
  if (first) openLinked();
}

// What the address names, #sample=...: it is shown whatever was chosen before, marked, and brought into view.
function openLinked() {
  const id = location.hash.slice(1), link = id.match(/^sample=(?:evaluation-(\d+)-)?/);
  change({ linked: link && id, step: link?.[1] ? Number(link[1]) : state.step });
  if (link && !byId(id)) {
    change({ filter: "", all: true });
    for (const field of document.querySelectorAll("[data-key=filter]")) field.value = "";
  }
  const place = link && byId(id);
  state.lost = link && !place ? "This page does not have the sample that the address names." : "";
  say(state.lost);
  if (!place) return;
  for (let part = place; part; part = part.parentElement) if (part.matches("details")) part.open = true;
  place.focus({ preventScroll: true });
  place.scrollIntoView({ block: "center" });
  if (document.readyState !== "complete") addEventListener("load", () => place.scrollIntoView({ block: "center" }), { once: true });
}
addEventListener("hashchange", openLinked);

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
function take(view) {
  state.view = view;
  document.title = `${view.runs.map(run => run.name).join(" and ")} · grpokit`;
  start();
}
if (LIVE) follow(take, () => state.lost);
else start();
