"use strict";
const KEYS = "123456789abcdefghijklmnopqrst";
const HINTS = {
  best: "Choose the best.", "best-worst": "Choose the best, then the worst.", pairs: "Choose one of the two.",
  stars: "Give each 1 to 5 stars.",
};
const STATES = {
  drawing: "The run is drawing the next samples.",
  ended: "No run is at work, and no question waits.",
  absent: "The run has not asked anything yet. This page waits for it.",
};
const [PAUSE, LONGEST] = [1000, 15000]; // milliseconds between requests
const at = Object.fromEntries([...document.querySelectorAll("[id]")].map(part => [part.id, part]));
const voter = localStorage.getItem("voter") || crypto.randomUUID();
localStorage.setItem("voter", voter);
const kept = () => JSON.parse(localStorage.getItem("vote")); // a vote that was not answered yet

let asked = {}; // what the service asks now
let shown = ""; // stands for the question on the page
let answer = []; // what is chosen of it: [best], [best, worst], or a number of stars for each sample
let busy = true; // a question or a vote is on its way
let due = false, wake = () => {};
let said = ""; // what happened to the last vote

function element(name, fields = {}, ...children) {
  const made = Object.assign(document.createElement(name), fields);
  made.append(...children);
  return made;
}

async function request(path, content) {
  const options = content && {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content),
  };
  const reply = await fetch(path, options);
  if (!reply.ok) throw Object.assign(new Error(await reply.text()), { status: reply.status });
  return reply;
}

async function picture(name, alt) {
  const image = element("img", { src: `sample/${name}`, alt });
  await image.decode();
  image.classList.toggle("small", Math.max(image.naturalWidth, image.naturalHeight) < 128);
  return image;
}

async function content(name, number) {
  if (name.endsWith(".png")) return picture(name, `Choice ${number}`);
  const text = await (await request(`sample/${name}`)).text();
  return element("pre", { textContent: text, tabIndex: 0, role: "group", ariaLabel: `Text of choice ${number}` });
}

function choice(part, index) {
  const number = index + 1, key = KEYS[index] || "";
  const isText = part.tagName === "PRE";
  if (asked.how === "stars") {
    const stars = [1, 2, 3, 4, 5].map(count => element("button", {
      textContent: `${count}★`, ariaLabel: `Choice ${number}: ${count} of 5 stars`, onclick: () => rate(index, count),
    }));
    const item = element("li", { tabIndex: 0, role: "group", ariaLabel: `Choice ${number}` }, part);
    item.append(element("div", { className: "stars" }, ...stars));
    return item;
  }
  const label = isText ? `Choice ${number} ` : "";
  const button = element("button", { className: "choice", onclick: () => choose(index) });
  button.append(...(isText ? [label] : [part]), element("kbd", { textContent: key, ariaHidden: "true" }));
  return element("li", {}, ...(isText ? [part] : []), button);
}

function say(text, unseen = "") {
  at.said.replaceChildren(text, element("span", { className: "unseen", textContent: ` ${unseen}` }));
}

function mark() {
  [...at.choices.children].forEach((item, index) => {
    const buttons = [...item.querySelectorAll("button")];
    const name = asked.samples[index];
    buttons.forEach((button, star) => {
      const on = asked.how === "stars" ? answer[index] === star + 1 : answer.includes(name);
      button.ariaPressed = String(on);
    });
  });
}

function choose(index) {
  const name = asked.samples[index];
  if (busy || !name || answer.includes(name)) return;
  answer.push(name);
  mark();
  if (asked.how === "best-worst" && answer.length < 2) {
    say(`Choice ${index + 1} is the best. Now choose the worst.`);
  } else {
    vote(asked.how === "best-worst" ? answer : name, `Choice ${index + 1} is noted.`);
  }
}

function rate(index, count) {
  if (busy) return;
  answer[index] = count;
  mark();
  const samples = asked.samples, items = at.choices.children;
  const open = [...samples.keys()].filter(other => !answer[other]);
  if (!open.length) {
    vote(Object.fromEntries(samples.map((name, other) => [name, answer[other]])), "The stars are noted.");
    return;
  }
  const next = open.find(other => other > index) ?? open[0];
  items[next].focus();
  say(`Choice ${index + 1} has ${count} of 5 stars. Choice ${next + 1} is next.`);
}

function vote(given, words) {
  if (busy || asked.state !== "ask") return;
  busy = true;
  said = words;
  const { ballot, pair, again } = asked;
  localStorage.setItem("vote", JSON.stringify({ id: crypto.randomUUID(), voter, ballot, pair, again, answer: given }));
  go();
}

async function undo() {
  if (busy) return;
  if (answer.length) {
    answer = [];
    mark();
    say("Nothing is chosen.");
    return;
  }
  busy = true;
  try {
    await request("undo", { voter });
    said = "Your last vote is taken back.";
  } catch (error) {
    say(error.status ? error.message : "The page's service does not answer; nothing was taken back.");
  }
  go();
}

async function send() {
  try {
    const { late } = await (await request("vote", kept())).json();
    if (late) said = "The run had gone on without it. Your vote is kept for the next run that shows these samples.";
  } catch (error) {
    if (!error.status || error.status >= 500) throw error;
    said = `The vote does not count: ${error.message}`;
  }
  localStorage.removeItem("vote");
}

function count() {
  const { given, waiting, left, agreement: { same, repeats, better } } = asked;
  const parts = [`votes given: ${given}`, `waiting: ${waiting}`];
  if (left != null) parts.push(`time left: ${Math.floor(left / 60)}:${String(Math.floor(left % 60)).padStart(2, "0")}`);
  const words = better === false ? " (no better than chance: a run learns nothing from such votes)" : "";
  if (repeats) parts.push(`You agreed with yourself in ${same} of ${repeats} repeats${words}`);
  at.counters.textContent = parts.join(" · ");
  document.title = `${waiting ? `(${waiting}) ` : ""}Vote · grpokit`;
}

async function show(next) {
  const { given, ballot, pair, again, samples = [], sources = [], state, question, how, prompt = "" } = next;
  asked = next;
  count();
  const asks = state === "ask";
  const mine = JSON.stringify([given, ballot, pair, again, state]);
  if (mine === shown) {
    busy = false;
    return;
  }
  busy = true;
  const parts = await Promise.all(samples.map((name, index) => content(name, index + 1)));
  const pictures = await Promise.all(sources.map(name => picture(name, "Picture of the prompt")));
  shown = mine;
  answer = [];
  at.prompt.textContent = prompt;
  at.sources.replaceChildren(...pictures);
  at.question.textContent = asks ? question : STATES[state];
  at.choices.replaceChildren(...parts.map(choice));
  at.choices.className = parts.some(part => part.tagName === "PRE") ? "texts" : "";
  at.same.disabled = !asks;
  at.hint.textContent = asks ? HINTS[how] + (next.works ? "" : " The run is not at work now; it uses the votes once it is resumed.") : "";
  at.question.focus();
  say(said, asks ? `${question} ${samples.length} choices.` : STATES[state]);
  said = "";
  fit();
  busy = false;
}

function fit() {
  // As many columns as show the pictures largest; where a phone is too small for all of them, it scrolls.
  const images = [...at.choices.querySelectorAll("img")];
  if (!images.length) return;
  const shape = Math.max(...images.map(image => image.naturalWidth / image.naturalHeight));
  const width = at.choices.clientWidth, room = innerHeight - at.choices.offsetTop - at.buttons.parentElement.offsetHeight;
  const below = asked.how === "stars" ? 70 : 50; // of a picture, in pixels
  let best = { size: 0 };
  images.forEach((_, index) => {
    const columns = index + 1, rows = Math.ceil(images.length / columns);
    const cell = width / columns - 20, height = Math.max(130, room / rows - below);
    const size = Math.min(cell, height * shape);
    if (size > best.size && (columns === 1 || cell > 120)) best = { size, columns };
  });
  at.choices.style.setProperty("--columns", best.columns);
  at.choices.style.setProperty("--width", `${best.size + 12}px`);
  at.choices.style.setProperty("--height", `${best.size / shape}px`);
}

async function follow() {
  let pause = PAUSE;
  for (;;) {
    due = false;
    try {
      if (kept()) await send();
      const next = await (await request(`next?voter=${voter}`)).json();
      if (!kept()) await show(next);
      pause = PAUSE;
      at.again.hidden = true;
    } catch (error) {
      pause = Math.min(2 * pause, LONGEST);
      const why = error.status ? error.message : "The page's service does not answer";
      say(`${why}${kept() ? "; your last vote is kept and sent again." : "."}`);
      at.again.hidden = false;
    }
    if (!due) await new Promise(done => { wake = done; setTimeout(done, pause); });
  }
}

function go() {
  due = true;
  wake();
}

addEventListener("keydown", event => {
  const { key, target, repeat, ctrlKey, altKey, metaKey } = event;
  if (repeat || ctrlKey || altKey || metaKey) return;
  const index = KEYS.indexOf(key);
  if (key === "u" || key === "Backspace") undo();
  else if (key === " " && !target.closest("button, pre")) vote(null, "No difference is noted.");
  else if (asked.how !== "stars" && index >= 0) choose(index);
  else if (asked.how === "stars" && index >= 0 && index < 5) rate(current(), index + 1);
  else return;
  event.preventDefault();
});

function current() {
  const items = [...at.choices.children];
  const focused = items.indexOf(document.activeElement.closest("li"));
  return focused >= 0 ? focused : Math.max(0, items.findIndex((_, index) => !answer[index]));
}

at.same.onclick = () => vote(null, "No difference is noted.");
at.undo.onclick = undo;
at.again.onclick = go;
addEventListener("resize", fit);
follow();
