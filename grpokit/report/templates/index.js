// The index of a folder of runs: a table with a row for each of them, which leads to its page.

const HEAD = ["run", "state", "steps", "planned", "policy", "reward", "before", "after", "change", "±", "verdict"];
const VERDICTS = { better: "▲ better", worse: "▼ worse", even: "= no clear change", alarmed: "alarm" };
let index = JSON.parse(byId("view").textContent);
let sorted = { column: null, down: true };

const cells = ({ name, error, state, steps, planned, policy, score, mood }) => (error ? [name, error, ...HEAD.slice(2).map(() => null)]
  : [name, state, steps, planned || null, policy, score?.name, score?.before, score?.after, score?.change, score?.width, VERDICTS[mood]]);

function shown(value, column) {
  if (column === 0) {
    const { link } = index.runs.find(({ name }) => name === value);
    return link ? el("a", { href: link, "data-key": `run-${value}` }, value) : value;
  }
  if (column > 5 && column < 10) return figure(value, 3, column === 8);
  if (column === 10 && value) return el("em", { class: Object.keys(VERDICTS).find(key => VERDICTS[key] === value) }, value);
  return typeof value === "number" ? value.toLocaleString("en") : value ?? "–";
}

function draw() {
  const focus = document.activeElement?.dataset?.key;
  const states = [...new Set(index.runs.map(run => run.state ?? "unreadable"))].sort();
  const counts = states.map(state => `${index.runs.filter(run => (run.state ?? "unreadable") === state).length} ${state}`);
  const onsort = column => {
    sorted = { column, down: sorted.column === column ? !sorted.down : column > 1 };
    draw();
  };
  byId("page").replaceChildren(
    el("header", {}, el("h1", {}, document.title.replace(/ · grpokit$/, "")),
      el("p", { class: "verdict" }, counted(index.runs.length, "run")), el("p", { class: "lead" }, counts.join(", "))),
    section("runs", "Runs",
      note("Mean on held-out prompts at the first and the last evaluation. ± is half of a 95 % confidence interval of the change. Click a heading to sort."),
      table("Runs", HEAD, inOrder(index.runs.map(cells), sorted), { show: shown, sorted, onsort })));
  if (focus) [...document.querySelectorAll("[data-key]")].find(element => element.dataset.key === focus)?.focus();
}

if (index) draw();
else follow(view => { index = view; draw(); });
