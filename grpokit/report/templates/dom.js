// Elements, numbers and colours. Text from data only ever becomes a text node or an attribute.

const byId = id => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== ""));
  return element;
}

// A score as text; "–" where there is none.
function figure(value, digits = 3, signed = false) {
  if (typeof value !== "number") return "–";
  const size = Math.abs(value);
  const text = size > 1e-12 && (size < 10 ** -digits || size >= 1e6) ? size.toPrecision(2) : size.toFixed(digits);
  return (value < 0 && Number(text) ? "−" : signed ? "+" : "") + oneSign(text);
}

const oneSign = text => text.replaceAll("-", "−"); // of numbers that are less than 0, and of their exponents

// A sentence whose figures stay whole, "+0.314 ± 0.026" among them, and have the minus sign of the charts; so do options.
function sentence(text) {
  const figures = text.replace(/(?<![\w=.-])-(?=\d)/g, "−").split(/(--[a-z-]+|[+−]?\d[\d.,]*(?: ± [\d.e-]+)?)/);
  return figures.map((part, i) => (i % 2 ? el("span", { class: "whole" }, part) : part));
}

const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const isNumber = value => typeof value === "number";
const colourOf = index => getComputedStyle(document.documentElement).getPropertyValue(`--line-${index % 8}`).trim();
const inkOf = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function faint(colour, opacity) {
  const [r, g, b] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${r}, ${g}, ${b}, ${opacity})`;
}

function swatch(index) {
  return el("span", { class: "swatch", style: `background: var(--line-${index % 8})`, "aria-hidden": "true" });
}

// A table with a caption, and a button that downloads all of its rows. `show` makes a cell of a value and its column.
function table(caption, head, rows, { show = value => value, most = Infinity, sorted = null, onsort = null } = {}) {
  const cells = head.map((name, i) => el("th", {
    scope: "col",
    "aria-sort": sorted && sorted.column === i ? (sorted.down ? "descending" : "ascending") : null,
  }, onsort ? el("button", { type: "button", "data-key": `sort-${i}`, onclick: () => onsort(i) }, name,
    el("span", { "aria-hidden": "true" }, sorted && sorted.column === i ? (sorted.down ? " ▼" : " ▲") : " ↕")) : name));
  const body = rows.slice(0, most).map(row => el("tr", {}, row.map((value, i) => {
    const cell = show(value, i);
    return i ? el("td", {}, cell) : el("th", { scope: "row" }, cell);
  })));
  return [
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, el("tr", {}, cells)), el("tbody", {}, body))),
    el("button", { type: "button", class: "small csv", "aria-label": `Download CSV: ${caption}`, onclick: () => download(caption, csv([head, ...rows])) },
      "Download CSV"),
  ];
}

// Rows sorted by a column, those without a value in it last where it goes down.
function inOrder(rows, { column, down }) {
  if (column === null) return rows;
  const value = row => row[Math.min(column, row.length - 1)] ?? -Infinity;
  const compare = (a, b) => (typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b), "en", { numeric: true }) : a - b || 0);
  return [...rows].sort((a, b) => compare(value(a), value(b)) * (down ? -1 : 1));
}

// Rows as RFC 4180 has them. A spreadsheet would compute a text that begins like a formula, so it gets a quote in front.
function csv(rows) {
  const cell = value => {
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map(row => `${row.map(cell).join(",")}\r\n`).join("");
}

// A file whose name says of what run it is. Its first character tells a spreadsheet that it is UTF-8.
function download(caption, text) {
  const title = document.title.replace(/ · grpokit$/, "");
  const name = `${title} ${caption}`.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(-100);
  const address = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv;charset=utf-8" }));
  el("a", { href: address, download: `${name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function section(id, title, ...content) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), content);
}

const note = (...text) => el("p", { class: "note" }, text);

function choice(label, key, value, options, onchange) {
  return el("label", {}, el("span", {}, label), el("select", { "data-key": key, onchange: event => onchange(event.target.value) },
    options.map(([name, text]) => el("option", { value: name, selected: name === value }, text))));
}
