// Curves, drawn by plotly once they come near the window. Keys on a chart: + and - zoom, arrows move, 0 shows all.

const IN_VIEW = 6; // charts; the others are folded
let plotly = null; // a promise of the library
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const plain = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // plotly reads tags

function library() {
  plotly ??= (async () => {
    const bytes = Uint8Array.from(atob(byId("plotly").textContent), letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(el("script", {}, await new Response(stream).text()));
    return window.Plotly;
  })();
  return plotly;
}

// Charts of the same kind of all runs as one: a colour for each line, or with several runs for each run.
function merged() {
  const charts = new Map();
  state.view.runs.forEach((run, i) => {
    for (const chart of run.charts) {
      if (!charts.has(chart.id)) charts.set(chart.id, { ...chart, range: [...chart.range], lines: [] });
      const all = charts.get(chart.id);
      all.range = [Math.min(all.range[0], chart.range[0]), Math.max(all.range[1], chart.range[1])];
      all.lines.push(...chart.lines.map(line => ({ ...line, run: i })));
    }
  });
  for (const chart of charts.values()) {
    const names = [...new Set(chart.lines.map(line => line.name))];
    for (const line of chart.lines) {
      const place = names.indexOf(line.name);
      line.colour = several() ? line.run : place;
      line.dash = several() ? place : place + Math.floor(place / 8);
      line.title = several() ? `${state.view.runs[line.run].name}: ${line.name}` : line.name;
    }
  }
  return [...charts.values()];
}

// `floor`: where the axis ends, which a band on an axis of logarithms must not go below.
function traces(chart, hidden, floor) {
  return chart.lines.flatMap(line => {
    const colour = colourOf(line.colour), visible = !hidden.has(line.title);
    const shape = { x: line.x, mode: line.x.length < 15 ? "lines+markers" : "lines", visible };
    const style = { color: colour, width: 2, dash: DASHES[line.dash % DASHES.length] };
    const drawn = [];
    if (line.half) {
      const edge = { ...shape, mode: "lines", hoverinfo: "skip", line: { width: 0, color: colour } };
      drawn.push({ ...edge, y: line.y.map((y, i) => y + line.half[i]) });
      drawn.push({ ...edge, y: line.y.map((y, i) => Math.max(floor, y - line.half[i])), fill: "tonexty", fillcolor: faint(colour, 0.16) });
    }
    const name = plain(line.title);
    if (line.smooth) {
      drawn.push({ ...shape, y: line.y, hoverinfo: "skip", line: { color: faint(colour, 0.35), width: 1 } });
      drawn.push({ ...shape, y: line.smooth, name, customdata: line.y, line: style,
        hovertemplate: `${name}: %{customdata:.4~g} (mean %{y:.4~g})<extra></extra>` });
    } else {
      const width = line.half ? " ± %{customdata:.2~g}" : "";
      drawn.push({ ...shape, y: line.y, name, customdata: line.half, line: style, marker: { size: 6, color: colour },
        hovertemplate: `${name}: %{y:.4~g}${width}<extra></extra>` });
    }
    return drawn;
  });
}

function layout(more = {}) {
  const axis = { gridcolor: inkOf("line"), zeroline: false, linecolor: inkOf("line"), tickcolor: inkOf("line") };
  const touch = matchMedia("(pointer: coarse)").matches;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 58, r: 12, t: 8, b: 40 }, height: 260,
    font: { family: "system-ui, sans-serif", size: 12, color: inkOf("soft") }, showlegend: false, hovermode: "x unified", hoverdistance: -1,
    hoverlabel: { bgcolor: inkOf("paper"), bordercolor: inkOf("line"), font: { color: inkOf("ink"), size: 12 } },
    dragmode: touch ? false : "zoom", uirevision: "kept", ...more,
    xaxis: { ...axis, title: { text: "step", standoff: 4 }, hoverformat: "d", ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
  };
}

// What an axis of logarithms shows at first, in powers of ten.
function decades(lines) {
  const ends = lines.flatMap(line => line.y.flatMap((y, i) => [y, y + (line.half?.[i] ?? 0)])).map(Math.log10);
  const [low, high] = [Math.min(...ends), Math.max(...ends)], room = Math.max(0.05 * (high - low), 0.02);
  return [low - room, high + room];
}

function shading() {
  if (several()) return {};
  const phases = state.view.runs[0].phases.map((phase, i) => ({ ...phase, i }));
  const shapes = phases.filter(({ i }) => i % 2).map(({ first, last }) => ({
    type: "rect", xref: "x", yref: "paper", x0: first - 0.5, x1: last + 0.5, y0: 0, y1: 1, layer: "below",
    fillcolor: faint(inkOf("soft"), 0.16), line: { width: 0 },
  }));
  const annotations = phases.length > 8 ? [] : phases.map(({ name, first, last }) => ({
    x: (first + last) / 2, y: 1, xref: "x", yref: "paper", text: plain(name), showarrow: false, yanchor: "top", font: { size: 10 },
  }));
  return { shapes, annotations };
}

const drawings = new WeakMap(); // plot -> what draws it: () => [traces, layout]
const near = new IntersectionObserver(entries => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) { near.unobserve(target); drawPlot(target); }
}, { rootMargin: "500px" });
const resetOf = plot => plot.closest("figure").querySelector(".reset");

// Without a wait once the library is there, since a print-out takes what is drawn at once.
async function drawPlot(plot) {
  const [data, wanted] = drawings.get(plot)();
  const fresh = !plot.data;
  const { react } = window.Plotly ?? await library();
  await react(plot, data, printing() ? { ...wanted, ...PRINTED } : wanted, { displayModeBar: false, responsive: true, doubleClick: false });
  if (!fresh) return;
  plot.on("plotly_relayout", event => { if (Object.keys(event).some(key => key.includes(".range["))) resetOf(plot).hidden = false; });
  plot.on("plotly_doubleclick", () => showAll(plot));
}

async function showAll(plot) {
  const [, { yaxis }] = drawings.get(plot)();
  await (await library()).relayout(plot, { "xaxis.autorange": true, "yaxis.range": yaxis.range ?? null,
    ...(yaxis.range ? {} : { "yaxis.autorange": true }) });
  resetOf(plot).hidden = true;
}

// A figure with a title, a plot, and below it what there is to press and to read. `draw` returns [traces, layout].
// For a screen reader the plot is a picture of what `summary` says; the keys are for those who see it.
function chartFigure(id, title, unit, summary, draw, extra = [], button = null) {
  const reset = el("button", { type: "button", class: "small reset", hidden: true,
    onclick: event => showAll(event.target.closest("figure").querySelector(".plot")) }, "Show all");
  const plot = el("div", { class: "plot", id: `plot-${id}`, tabindex: "0", role: "img", "aria-roledescription": "chart",
    "aria-label": `${title}, ${summary}` });
  plot.addEventListener("keydown", event => {
    if (!plot.data) return;
    const [low, high] = plot.layout.xaxis.range.map(Number), span = high - low, middle = (low + high) / 2;
    const to = { "+": [middle - span / 4, middle + span / 4], "-": [middle - span, middle + span],
      ArrowLeft: [low - span / 4, high - span / 4], ArrowRight: [low + span / 4, high + span / 4] }[event.key === "=" ? "+" : event.key];
    if (to) window.Plotly.relayout(plot, { "xaxis.range[0]": to[0], "xaxis.range[1]": to[1] });
    else if (event.key === "0") showAll(plot);
    if (to || event.key === "0") event.preventDefault();
  });
  drawings.set(plot, draw);
  near.observe(plot);
  return el("figure", { id: `chart-${id}` }, el("figcaption", {}, el("h3", {}, title, " ", el("small", {}, unit)), el("div", {}, reset, button)), plot, extra);
}

function redrawAll() {
  for (const plot of document.querySelectorAll(".plot")) if (plot.data || printing()) drawPlot(plot);
}

// On paper there are all charts, in the colours of the light page.
const PRINTED = { width: 330, height: 190 }; // pixels: two charts beside each other fit A4 and Letter, and three rows
const printing = () => document.documentElement.classList.contains("printing");
let folded = false;
function onPaper(on) {
  document.documentElement.classList.toggle("printing", on);
  const more = byId("more-curves");
  if (on) folded = !more?.open;
  if (more) more.open = on || !folded;
  redrawAll();
  if (!on) dispatchEvent(new Event("resize")); // on which plotly gives each chart its own width again
}
addEventListener("beforeprint", () => onPaper(true));
addEventListener("afterprint", () => onPaper(false));

// A browser without a window prints at the end of loading, which each picture puts off until the library is there.
let loaded = false;
library().finally(() => { loaded = true; });
function putOff(n) {
  const next = () => putOff(n + 1);
  if (!loaded) el("img", { src: `data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg" id="a${n}"/>`, onload: next, onerror: next });
}
putOff(0);

function chart(chart) {
  const hidden = new Set(state.hidden[chart.id] ?? []);
  if (state.reward) for (const line of chart.lines) if (line.reward && line.reward !== state.reward) hidden.add(line.title);
  const seen = chart.lines.filter(line => !hidden.has(line.title));
  const steps = seen.flatMap(line => [line.x[0], line.x.at(-1)]);
  const ends = seen.map(line => `${line.title} from ${figure(line.y[0])} to ${figure(line.y.at(-1))}`);
  const summary = seen.length ? `lines over steps ${Math.min(...steps)} to ${Math.max(...steps)}: ${ends.join("; ")}.` : "with all its lines hidden.";
  const legend = chart.lines.length < 2 ? null : el("ul", { class: "legend", "aria-label": `Lines of ${chart.title}` },
    chart.lines.map(line => el("li", {}, el("button", {
      type: "button", "aria-pressed": String(!hidden.has(line.title)), "data-key": `line-${chart.id}-${line.title}`,
      onclick: () => toggle(chart.id, line.title),
    }, el("span", { class: `stroke ${DASHES[line.dash % DASHES.length]}`, style: `color: var(--line-${line.colour % 8})`,
      "aria-hidden": "true" }), line.title))));
  const numbers = el("details", { "data-open": `numbers-${chart.id}` }, el("summary", {}, "Numbers"),
    table(`Numbers of ${chart.title}`, ["line", "first", "last", "lowest", "highest"], chart.lines.map(line => [line.title,
      line.y[0], line.y.at(-1), Math.min(...line.y), Math.max(...line.y)]), { show: (value, i) => (i ? figure(value) : value) }));
  const positive = seen.length > 0 && seen.every(line => line.y.every(y => y > 0));
  const log = positive && state.logs.includes(chart.id);
  const range = log ? decades(seen) : [...chart.range];
  const scale = positive ? el("button", { type: "button", class: "small", "aria-label": `Log axis of ${chart.title}`, "aria-pressed": String(log),
    "data-key": `log-${chart.id}`, onclick: () => change({ logs: log ? state.logs.filter(id => id !== chart.id) : [...state.logs, chart.id] }) },
    "Log axis") : null;
  const ticks = range[1] - range[0] > 1 && range[1] - range[0] < 3 ? { dtick: "D2" } : {}; // 1, 2 and 5
  const yaxis = { range, uirevision: log, ...(log ? { type: "log", tickformat: ".3~g", automargin: true, ...ticks } : {}) };
  const few = Math.max(...chart.lines.map(line => line.x.at(-1) - line.x[0])) <= 8; // then plotly would mark a step 1.5
  const smooth = chart.lines.some(line => line.smooth) ? "; bold: running mean" : "";
  return chartFigure(chart.id, chart.title, chart.unit + smooth, summary,
    () => [traces(chart, hidden, log ? 10 ** range[0] : -Infinity), layout({ xaxis: few ? { dtick: 1 } : {}, yaxis, ...shading() })],
    [legend, numbers], scale);
}

function histogram(run, i) {
  const { steps, edges, shares } = run.advantages;
  const middles = edges.slice(1).map((edge, n) => (edge + edges[n]) / 2);
  const title = several() ? `Histogram of advantages, ${run.name}` : "Histogram of advantages";
  const data = () => [{
    type: "heatmap", x: steps.map(String), y: middles, z: shares, colorscale: [[0, inkOf("card")], [1, colourOf(several() ? i : 0)]],
    zmin: 0, showscale: false, hovertemplate: "step %{x}, advantage %{y:.2f}: %{z:.0%} of the samples<extra></extra>",
  }];
  return chartFigure(`advantages-${i}`, title, "best and worst group of the steps that keep them; darker or brighter: more samples",
    `shades for ${counted(steps.length, "step")}: values from ${figure(edges[0], 1)} to ${figure(edges.at(-1), 1)}.`,
    () => [data(), layout({ hovermode: "closest", xaxis: { type: "category", nticks: 8 }, yaxis: { title: { text: "advantage" } } })]);
}

function rewardAgainstKl() {
  const runs = state.view.runs.map((run, i) => ({ run, i, points: run.reward_against_kl })).filter(({ points }) => points);
  if (!runs.length) return null;
  const data = () => runs.map(({ run, i, points }) => ({
    x: points.x, y: points.y, mode: "markers", name: plain(run.name), customdata: points.steps,
    marker: { size: 6, color: several() ? colourOf(i) : points.steps, colorscale: [[0, faint(colourOf(0), 0.25)], [1, colourOf(0)]] },
    hovertemplate: `${several() ? `${plain(run.name)}, ` : ""}step %{customdata}: KL %{x:.3~g}, reward %{y:.3~g}<extra></extra>`,
  }));
  return chartFigure("reward-kl", "Reward against KL", "one point for each step, later ones stronger",
    `points for ${counted(runs[0].points.steps.length, "step")}: the last has KL ${figure(runs[0].points.x.at(-1))} and reward ${figure(runs[0].points.y.at(-1))}.`,
    () => [data(), layout({ hovermode: "closest", xaxis: { title: { text: "KL to the reference, nats per decision", standoff: 4 }, hoverformat: null },
      yaxis: { title: { text: "reward in training" } } })]);
}

function curves() {
  const charts = merged();
  if (!charts.length) return null;
  const figures = charts.map(chart);
  const histograms = state.view.runs.map((run, i) => (run.advantages ? histogram(run, i) : null));
  const phases = several() ? [] : state.view.runs[0].phases;
  const steps = ({ first, last }) => (first === last ? `step ${first}` : `steps ${first}-${last}`);
  return section("curves", "Curves",
    note("Drag over a chart to zoom in, double-click to see all of it. With the keyboard, plus and minus zoom, the arrows move, and 0 shows everything. ", phases.length
      ? `Phases: ${phases.map(phase => `${phase.name} (${steps(phase)})`).join(", ")}. Every second one is shaded.` : ""),
    el("div", { class: "charts" }, figures.slice(0, IN_VIEW)),
    el("details", { id: "more-curves", "data-open": "more-curves" }, el("summary", {}, "More curves"),
      el("div", { class: "charts" }, histograms, rewardAgainstKl(), figures.slice(IN_VIEW))));
}
