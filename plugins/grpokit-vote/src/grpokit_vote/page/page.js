"use strict";
const KEYS = "123456789abcdefghijklmnopqrst"; // of the choices
const HINTS = {
  best: "Choose the best.",
  "best-worst": "Choose the best, then the worst.",
  pairs: "Choose the better one.",
  stars: "Give each 1 to 5 stars.",
};
const STATES = {
  drawing: "The run is drawing the next samples.",
  ended: "No run is at work here, and no question waits.",
  absent: "The run has not asked anything yet. This page waits for it.",
};
const [PAUSE, LONGEST] = [1000, 15000]; // milliseconds between requests
const at = Object.fromEntries([...document.querySelectorAll("[id]")].map(part => [part.id, part]));
const voter = localStorage.getItem("voter") || crypto.randomUUID();
localStorage.setItem("voter", voter);

let asked = {}; // what the service has answered last
let shown = ""; // stands for the question on the page
let answer = []; // what is chosen of it: the best, the best and the worst, or the stars of each
let busy = true; // a question or a vote is on its way, so that no key counts twice
let news = ""; // what became of the last vote
let pause = PAUSE, timer = 0, turns = Promise.resolve();

// The vote that the service has not answered: it outlives the service and this page.
const kept = () => JSON.parse(localStorage.getItem("vote"));

function element(name, fields, ...children) {
  const made = Object.assign(document.createElement(name), fields);
  made.append(...children);
  return made;
}

async function request(path, content) {
  const headers = { "Content-Type": "application/json" };
  const reply = await fetch(path, content && { method: "POST", headers, body: JSON.stringify(content) });
  if (!reply.ok) throw Object.assign(new Error(await reply.text()), { status: reply.status });
  return reply;
}

async function picture(name, alt) {
  const image = element("img", { src: `sample/${name}`, alt });
  await image.decode();
  image.classList.toggle("small", Math.max(image.naturalWidth, image.naturalHeight) < 128);
  return image;
}

async function sample(name, index) {
  if (name.endsWith(".png")) return picture(name, `Choice ${index + 1}`);
  const textContent = await (await request(`sample/${name}`)).text();
  return element("pre", { textContent, tabIndex: 0, role: "group", ariaLabel: `Text of choice ${index + 1}` });
}

function choice(part, index) {
  const name = `Choice ${index + 1}`;
  if (asked.how === "stars") {
    const buttons = [1, 2, 3, 4, 5].map(stars => element("button", {
      textContent: `${stars}★`, ariaLabel: `${name}: ${stars} of 5 stars`, onclick: () => rate(index, stars),
    }));
    const row = element("div", { className: "stars" }, ...buttons);
    return element("li", { tabIndex: 0, role: "group", ariaLabel: name }, part, row);
  }
  const key = element("kbd", { textContent: KEYS[index] || "", ariaHidden: "true" });
  const press = { ariaLabel: name, onclick: () => choose(index) };
  if (part.tagName === "PRE") return element("li", {}, part, element("button", press, "Choice ", key));
  return element("li", {}, element("button", press, part, key));
}

function say(text, unseen = "") {
  at.said.replaceChildren(text, element("span", { className: "unseen", textContent: ` ${unseen}` }));
}

function mark() {
  [...at.choices.children].forEach((item, index) => {
    item.querySelectorAll("button").forEach((button, place) => {
      const chosen = asked.how === "stars" ? answer[index] === place + 1 : answer.includes(index);
      button.ariaPressed = String(chosen);
    });
  });
}

function choose(index) {
  if (busy || index >= asked.samples.length || answer.includes(index)) return;
  answer.push(index);
  mark();
  const names = answer.map(place => asked.samples[place]);
  if (asked.how !== "best-worst") vote(names[0], `Choice ${index + 1} is noted.`);
  else if (names.length === 2) vote(names, "The best and the worst are noted.");
  else say(`Choice ${index + 1} is the best.`, "Now choose the worst.");
}

function rate(index, stars) {
  if (busy) return;
  answer[index] = stars;
  mark();
  const open = asked.samples.map((_, place) => place).filter(place => !answer[place]);
  const next = open.find(place => place > index) ?? open[0];
  if (next === undefined) {
    vote(Object.fromEntries(asked.samples.map((name, place) => [name, answer[place]])), "The stars are noted.");
  } else {
    at.choices.children[next].focus();
    say(`Choice ${index + 1} has ${stars} of 5 stars.`, `Choice ${next + 1} is next.`);
  }
}

function vote(content, words) {
  if (busy || asked.state !== "ask") return;
  busy = true;
  news = words;
  const made = { id: crypto.randomUUID(), voter, ballot: asked.ballot, samples: asked.samples, answer: content };
  localStorage.setItem("vote", JSON.stringify(made));
  go();
}

async function send(made) {
  try {
    const { late } = await (await request("vote", made)).json();
    if (late) news = "The run had gone on. Your vote is kept for the next run that shows these samples.";
  } catch (error) {
    if (!error.status || error.status >= 500) throw error;
    news = `Your vote does not count: ${error.message}`;
    shown = ""; // so that nothing of it stays chosen
  }
  localStorage.removeItem("vote");
}

async function undo() {
  if (busy) return;
  busy = true;
  news = "Your last vote is taken back.";
  try {
    if (answer.length) shown = news = "";
    else await request("undo", { voter });
  } catch (error) {
    news = "";
    say(error.status ? error.message : "The page's service does not answer; nothing was taken back.");
  }
  go();
}

function count({ given, waiting, left, agreement: { same, repeats, better } }) {
  const parts = [`votes given: ${given}`, `waiting: ${waiting}`];
  if (left != null) parts.push(`time left: ${Math.floor(left / 60)}:${String(Math.floor(left % 60)).padStart(2, "0")}`);
  if (repeats) parts.push(`You agreed with yourself in ${same} of ${repeats} repeats`);
  if (better === false) parts.push("no better than chance: a run learns nothing from such votes");
  at.counters.textContent = parts.join(" · ");
  document.title = `${waiting ? `(${waiting}) ` : ""}Vote · grpokit`;
}

async function show(next) {
  const { state, given, ballot, question, how, works, prompt = "", samples = [], sources = [] } = next;
  count(next);
  const asks = state === "ask", sign = JSON.stringify([state, given, ballot, samples]);
  if (sign !== shown) {
    busy = true;
    const parts = await Promise.all(samples.map(sample));
    const pictures = await Promise.all(sources.map(name => picture(name, "Picture of the prompt")));
    if (shown && asked.state === "ask") news ||= "The last question is closed.";
    [asked, answer, shown] = [{ ...next, samples }, [], sign];
    at.prompt.textContent = prompt;
    at.sources.replaceChildren(...pictures);
    at.question.textContent = asks ? question : STATES[state];
    at.choices.replaceChildren(...parts.map(choice));
    at.choices.classList.toggle("texts", !at.choices.querySelector("img"));
    at.same.disabled = !asks;
    at.question.focus();
    say(news, asks ? `${question} ${samples.length} choices.` : STATES[state]);
    news = "";
  }
  const pauses = works ? "" : " The run is not at work now; it uses the votes once it is resumed.";
  at.hint.textContent = asks ? HINTS[how] + pauses : "";
  fit();
  busy = false;
}

// As many columns as show the pictures largest; where a screen is too small for all of them, it scrolls.
function fit() {
  const images = [...at.choices.querySelectorAll("img")];
  if (!images.length) return;
  const shape = Math.max(...images.map(image => image.naturalWidth / image.naturalHeight));
  const room = innerHeight - at.choices.offsetTop - at.footer.offsetHeight;
  const label = asked.how === "stars" ? 70 : 55;
  const layouts = images.map((_, index) => {
    const rows = Math.ceil(images.length / (index + 1)), cell = at.choices.clientWidth / (index + 1) - 24;
    return { columns: index + 1, cell, size: Math.min(cell, (room / rows - label) * shape) };
  });
  let { columns, size } = layouts.reduce((best, each) => (each.size > best.size ? each : best));
  const least = 130 * Math.sqrt(shape);
  if (size < least) {
    const layout = layouts.findLast(each => each.cell >= least) || layouts[0];
    [columns, size] = [layout.columns, Math.min(layout.cell, Math.max(room - label, 130) * shape)];
  }
  at.choices.style.setProperty("--columns", columns);
  at.choices.style.setProperty("--width", `${size + 12}px`);
  at.choices.style.setProperty("--height", `${size / shape}px`);
}

async function turn() {
  clearTimeout(timer);
  try {
    if (kept()) await send(kept());
    const next = await (await request(`next?voter=${voter}`)).json();
    if (pause > PAUSE) say("The page's service answers again.");
    if (!kept()) await show(next);
    pause = PAUSE;
  } catch (error) {
    pause = Math.min(2 * pause, LONGEST);
    const why = error.status ? error.message : "The page's service does not answer";
    say(kept() ? `${why}; your last vote is kept and sent again.` : `${why}.`);
  }
  at.again.hidden = pause === PAUSE;
  timer = setTimeout(go, pause);
}

function go() {
  turns = turns.then(turn);
}

addEventListener("keydown", event => {
  const { key, target, repeat, ctrlKey, altKey, metaKey } = event;
  const index = KEYS.indexOf(key), items = [...at.choices.children];
  if (repeat || ctrlKey || altKey || metaKey || (key === " " && target.closest("button, pre"))) return;
  if (key === "u" || key === "Backspace") undo();
  else if (key === " ") vote(null, "No difference is noted.");
  else if (index < 0) return;
  else if (asked.how !== "stars") choose(index);
  else if (index < 5) rate(Math.max(0, items.indexOf(target.closest("li"))), index + 1);
  event.preventDefault();
});
at.same.onclick = () => vote(null, "No difference is noted.");
at.undo.onclick = undo;
at.again.onclick = go;
addEventListener("resize", fit);
go();
