// The page of the fleet. All that comes from the server is text: nodes are made with textContent, never of HTML.
"use strict";

const STATES = ["stalled", "needs attention", "removal held", "on hold", "removing", "working", "ready"];  // what asks for a person first
const QUIET_MS = 15000;  // the server sends something every 5 s
const GROUPS_MAX = 60;
const ROWS_MAX = 200;
const CELL = 14, GAP = 3, STEP = CELL + GAP;
const TEXT_MAX = 100000;  // three times the longest message of a condition; a megabyte holds up the page for seconds
// Control characters, marks of direction and invisible ones: they make a text look like another one.
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]/g;
const OF_SET = "set", OF_STATE = "state", OF_LIFECYCLE = "lifecycle", OF_NAMESPACE = "namespace";

const fleet = {
  variants: new Map(), names: null, sets: new Map(), rollouts: new Map(), tasks: new Map(), kept: new Map(), quarantines: new Map(), stops: new Map(), conflicts: 0, conflictsAt: 0, version: "", number: -1, loaded: false,
};
const shown = { filter: "", states: new Set(), group: OF_SET, list: false, tasks: "", overdue: false };

// ------------------------------------------------------------------ nodes

function plain(text) {
  const part = text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}... (and ${text.length - TEXT_MAX} more characters)` : text;
  return part.replace(UNSAFE, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function say(node, text) {
  const words = plain(text);
  if (node.textContent !== words) node.textContent = words;
}

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && (value !== false || name.startsWith("aria-"))) node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : plain(String(value)));
  }
  node.append(...children.filter((child) => child !== null).map((child) => (child instanceof Node ? child : plain(String(child)))));
  return node;
}

const link = (kind, name) => el("a", { href: `#/${kind}/${name.split("/").map(encodeURIComponent).join("/")}` }, name);
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const clock = (time) => time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const SPANS = [[86400 * 2, 86400, "d"], [7200, 3600, "h"], [120, 60, "min"], [0, 1, "s"]];

function span(seconds) {  // in words, as "3 h"
  const [, unit, word] = SPANS.find(([least]) => seconds >= least) || SPANS[3];
  return `${Math.max(0, Math.floor(seconds / unit)).toLocaleString("en")} ${word}`;
}

const ago = (since) => span(Date.now() / 1000 + connection.ahead - since);  // by the server's clock

function since(seconds) {  // what shows for how long something is so; it goes on by itself
  if (!seconds) return "";
  const at = new Date(seconds * 1000);
  return el("time", { datetime: at.toISOString(), title: at.toLocaleString(), "data-since": seconds }, ago(seconds));
}

setInterval(() => document.querySelectorAll("time[data-since]").forEach((node) => say(node, ago(Number(node.dataset.since)))), 10000);

const byName = (a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);
const withState = (state) => el("span", {}, glyph(state), ` ${state}`);
const warned = (row) => (row.warning ? `\u26a0 ${row.warning}` : "");
const reasonOf = (row) => [row.reason, warned(row)].filter(Boolean).join(" ");

function command(given) {
  const text = plain(given);  // what is copied is what is seen
  const code = el("code", {}, text);
  const said = el("span", { class: "unseen", role: "status" });
  const button = el("button", { type: "button", "aria-label": `Copy: ${text}`, onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = said.textContent = "Copied";
    } catch {  // not allowed on plain HTTP but for this machine
      getSelection().selectAllChildren(code);
      button.textContent = said.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; said.textContent = ""; }, 2000);
  }
  return el("div", { class: "command" }, code, button, said);
}

// ------------------------------------------------------------------ shapes: each state has one, beside its colour

let colours = {};
const sprites = new Map();  // a picture of each shape: ten thousand of them are drawn at once

function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = { back: style.getPropertyValue("--back").trim(), text: style.getPropertyValue("--text").trim() };
  for (const state of STATES) colours[state] = style.getPropertyValue(`--${state.replace(" ", "-")}`).trim();
  for (const state of STATES) sprites.set(state, glyph(state));
}

function draw(context, state, x, y) {
  const s = CELL, box = (inset, colour) => {
    context.fillStyle = colour;
    context.fillRect(x + inset, y + inset, s - 2 * inset, s - 2 * inset);
  };
  const colour = colours[state] || colours.removing;
  const line = (x1, y1, x2, y2, stroke) => {
    context.strokeStyle = stroke;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x + x1, y + y1);
    context.lineTo(x + x2, y + y2);
    context.stroke();
  };
  if (state === "removal held") {
    context.fillStyle = colour;
    context.beginPath();
    for (const [px, py] of [[s / 2, 0], [s, s / 2], [s / 2, s], [0, s / 2]]) context.lineTo(x + px, y + py);
    context.fill();
    line(s / 2, 3.5, s / 2, 8, colours.back);
    line(s / 2, 9, s / 2, 11, colours.back);
    return;
  }
  box(0, colour);
  if (state === "needs attention") {
    line(s / 2, 3, s / 2, 8, colours.back);
    line(s / 2, 9.5, s / 2, 11.5, colours.back);
  } else if (state === "stalled") {
    line(3, 3, s - 3, s - 3, colours.back);
    line(s - 3, 3, 3, s - 3, colours.back);
  } else if (state === "on hold") {
    line(5, 3, 5, s - 3, colours.back);
    line(9, 3, 9, s - 3, colours.back);
  } else if (state === "working" || state === "removing") {
    box(2, colours.back);
    if (state === "working") box(5, colour);
    else line(4, s / 2, s - 4, s / 2, colour);
  }
}

function canvasOf(width, height) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return [canvas, context];
}

function glyph(state) {
  const [canvas, context] = canvasOf(CELL, CELL);
  canvas.className = "glyph";
  draw(context, state, 0, 0);
  return canvas;
}

// ------------------------------------------------------------------ the model

function apply(message) {
  const { texts, labels } = message;
  if (message.whole) {
    fleet.variants.clear();
    fleet.sets.clear();
    fleet.rollouts.clear();
    fleet.tasks.clear();
    fleet.kept.clear();
    fleet.quarantines.clear();
    fleet.stops.clear();
    fleet.loaded = true;
  }
  const before = fleet.variants.size;
  for (const name of message.gone || []) fleet.variants.delete(name);
  for (const name of message.setsGone || []) fleet.sets.delete(name);
  for (const name of message.rolloutsGone || []) fleet.rollouts.delete(name);
  for (const name of message.tasksGone || []) fleet.tasks.delete(name);
  for (const name of message.retainedGone || []) fleet.kept.delete(name);
  for (const name of message.quarantinesGone || []) fleet.quarantines.delete(name);
  for (const [name, covers, why] of message.quarantines || []) fleet.quarantines.set(name, { name, covers, why });
  for (const name of message.stopsGone || []) fleet.stops.delete(name);
  for (const [name, why, entries] of message.stops || []) fleet.stops.set(name, { name, why, entries });
  [fleet.conflicts, fleet.conflictsAt] = message.conflicts || [0, 0];
  for (const [name, variant, note] of message.retained || []) fleet.kept.set(name, { name, variant, note });
  for (const rollout of message.rollouts || []) fleet.rollouts.set(rollout.name, rollout);
  for (const [name, revision, type, variant, state, question, owner, ticket, due, dueAt, since, note, blocks, answer] of message.tasks || []) {
    fleet.tasks.set(name, {
      name, revision, type: texts[type], variant, state: texts[state], question: texts[question], owner: texts[owner],
      ticket: texts[ticket], due: texts[due], dueAt, since: texts[since], note: texts[note], blocks: blocks.map((gate) => texts[gate]), answer,
    });
  }
  for (const [name, set, state, lifecycle, reason, label, warning, since] of message.variants || []) {
    fleet.variants.set(name, {
      name, set: texts[set], state: texts[state], lifecycle: texts[lifecycle], reason: texts[reason],
      labels: labels[label], warning: texts[warning], since,
    });
  }
  if (message.whole || (message.gone || []).length || fleet.variants.size !== before) fleet.names = null;
  for (const [name, state, reason, hold, label, warning, since] of message.sets || []) {
    fleet.sets.set(name, { name, state: texts[state], reason: texts[reason], hold, labels: labels[label], warning: texts[warning], since });
  }
}

function sorted() {  // the variants by name; the order changes only with the names
  fleet.names = fleet.names || [...fleet.variants.keys()].sort();
  return fleet.names.map((name) => fleet.variants.get(name));
}

// ------------------------------------------------------------------ the connection

const connection = { source: null, heard: 0, staleSince: null, retries: 0, status: null, problem: "", ahead: 0 };

async function load() {
  const answer = await fetch("/api/fleet", { cache: "no-cache" });
  if (!answer.ok) throw new Error(answer.status === 401 ? "signed out" : `the server answers ${answer.status}`);
  const message = await answer.json();
  const number = Number(message.version.split("-")[1]);
  if (number > 0 || !fleet.loaded) apply(message);
  fleet.version = message.version;
  fleet.number = number;
}

function connect() {
  if (connection.source) return;
  const source = new EventSource(`/api/events?since=${encodeURIComponent(fleet.version)}`);
  connection.source = source;
  let queue = Promise.resolve();  // a whole load is awaited before the changes after it
  source.onmessage = (event) => {
    connection.heard = Date.now();
    queue = queue.then(() => source === connection.source && take(JSON.parse(event.data)));
    queue.catch(() => lost(source, "a load failed"));
  };
  source.onerror = () => lost(source, "the server does not answer");
}

async function take(message) {
  const [epoch, number] = message.version.split("-");
  const isNewer = Number(number) > fleet.number || epoch !== fleet.version.split("-")[0];
  if (message.reload) {
    await load();
  } else if (message.texts && isNewer) {
    apply(message);
    fleet.version = message.version;
    fleet.number = Number(number);
  }
  connection.retries = 0;
  connection.problem = "";
  connection.staleSince = null;
  connection.status = message.status;
  connection.ahead = message.status.now - Date.now() / 1000;
  showConnection();
  if (message.reload || message.texts || !views.drawn || overdueTasks().length !== views.overdue) changed();
}

async function lost(source, why) {
  if (source !== connection.source) return;
  source.close();
  connection.source = null;
  connection.problem = why;
  connection.staleSince = connection.staleSince || new Date();
  showConnection();
  try {
    const answer = await fetch("/page.css", { method: "HEAD", cache: "no-store" });
    if (answer.status === 401) {
      connection.problem = "signed out: open the address with the token again, which pvbus prints at its start";
      showConnection();
    }
  } catch { /* the server is not there: that is shown already */ }
  setTimeout(connect, Math.min(5000, 500 * 2 ** connection.retries++));
}

function showConnection() {
  const line = document.getElementById("connection");
  const { status, staleSince, problem } = connection;
  const isStale = Boolean(staleSince || (status && status.problem));
  let text = "Connecting";
  if (staleSince) text = `\u26a0 Stale since ${clock(staleSince)}: ${problem}`;
  else if (isStale) text = `\u26a0 Stale since ${clock(new Date(status.since * 1000))}: the bus is not read: ${status.problem}`;
  else if (status && status.restored < 1) text = `Reading the bus: ${Math.floor(status.restored * 100)} %`;
  else if (status) text = "\u25cf Live";
  say(line, text);
  line.classList.toggle("stale", isStale);
  document.body.classList.toggle("stale", isStale);
  document.title = plain(`${isStale ? "(stale) " : ""}${views.title()} - pvbus`);
  const notice = document.getElementById("notice");
  const missing = status && status.restored >= 1 ? status.incomplete : [];
  const words = missing.map((each) => `${each.kind}s may be missing here (${each.why})`).join("; ");
  say(notice, words);
  notice.hidden = !words;
}

setInterval(() => {
  if (connection.source && Date.now() - connection.heard > QUIET_MS) lost(connection.source, "the server is silent");
}, 1000);

// ------------------------------------------------------------------ the view in the address

const DEFAULTS = { filter: "", states: new Set(), group: OF_SET, list: false, tasks: "", overdue: false };
const FLEET_PATH = /^\/?$/, TASKS_PATH = /^\/tasks$/;
const pathOf = () => location.hash.slice(1).split("?")[0];

function readAddress() {
  const given = new URLSearchParams(location.hash.split("?").slice(1).join("?"));
  Object.assign(shown, { ...DEFAULTS, states: new Set() });
  if (TASKS_PATH.test(pathOf())) Object.assign(shown, { tasks: given.get("filter") || "", overdue: given.has("overdue") });
  if (!FLEET_PATH.test(pathOf())) return;
  const states = (given.get("state") || "").split(",").filter((state) => STATES.includes(state));
  Object.assign(shown, { filter: given.get("filter") || "", states: new Set(states), group: given.get("group") || OF_SET, list: given.has("list") });
}

function addressOf() {
  const given = new URLSearchParams(), isTasks = TASKS_PATH.test(pathOf());
  const filter = isTasks ? shown.tasks : shown.filter;
  if (filter) given.set("filter", filter);
  if (isTasks && shown.overdue) given.set("overdue", "");
  if (!isTasks && shown.states.size) given.set("state", STATES.filter((state) => shown.states.has(state)).join(","));
  if (!isTasks && shown.group !== OF_SET) given.set("group", shown.group);
  if (!isTasks && shown.list) given.set("list", "");
  const query = given.toString();
  return `#${pathOf() || "/"}${query ? `?${query}` : ""}`;
}

function choose(typing) {  // the person has chosen what is shown: a step of the history, and one for all letters of a word
  const address = addressOf(), isSame = typing && history.state === "typing";
  if (address !== location.hash) history[isSame ? "replaceState" : "pushState"](typing ? "typing" : null, "", address);
  drawNow();
}

// ------------------------------------------------------------------ the fleet

function matcher(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (row) => words.every((word) => {
    const at = word.indexOf("=");
    if (at < 0) return (row.text = row.text || `${row.name}\n${row.reason}\n${row.warning}`.toLowerCase()).includes(word);
    const value = valueOf(row, word.slice(0, at), true);
    return value !== undefined && value.toLowerCase() === word.slice(at + 1);
  });
}

function valueOf(row, key, anyCase) {
  if (key === OF_SET) return row.set;
  if (key === OF_STATE) return row.state;
  if (key === OF_LIFECYCLE) return row.lifecycle;
  if (key === OF_NAMESPACE) return row.name.split("/")[0];
  const label = key.startsWith("label ") ? key.slice(6) : key;
  for (const labels of [row.labels, setLabels(row)]) {
    if (Object.hasOwn(labels, label)) return labels[label];
    const near = anyCase && Object.keys(labels).find((each) => each.toLowerCase() === label);
    if (near) return labels[near];
  }
  return undefined;
}

function setLabels(row) {  // a variant has those of its set, too, unless it has its own
  const set = fleet.sets.get(row.set);
  return set ? set.labels : {};
}

const NONE = { [OF_SET]: "made by no set", [OF_LIFECYCLE]: "no package revision" };

function titleOf(key, value) {
  if (value === undefined || value === "") return NONE[key] || `without ${key.replace("label ", "")}`;
  return key.startsWith("label ") ? `${key.slice(6)}=${value}` : value;
}

function grouped(rows) {
  const groups = new Map();
  for (const row of rows) {
    const title = titleOf(shown.group, valueOf(row, shown.group));
    if (groups.has(title)) groups.get(title).push(row);
    else groups.set(title, [row]);
  }
  const sorted = [...groups].sort((a, b) => (shown.group === OF_STATE
    ? STATES.indexOf(a[0]) - STATES.indexOf(b[0]) : a[0] < b[0] ? -1 : 1));
  if (sorted.length <= GROUPS_MAX) return sorted;
  const rest = sorted.splice(GROUPS_MAX);
  return [...sorted, [`${plural(rest.length, "other value")}`, rest.flatMap((each) => each[1]).sort(byName)]];
}

function tally(rows) {
  const counts = new Map(STATES.map((state) => [state, 0]));
  for (const row of rows) counts.set(row.state, counts.get(row.state) + 1);
  return counts;
}

const inWords = (counts) => [...counts].filter(([, n]) => n).map(([state, n]) => `${n.toLocaleString("en")} ${state}`).join(", ");
const about = (row) => [row.name, row.state, row.reason && row.reason !== "NotReported" ? row.reason : "", warned(row), row.lifecycle, row.since ? `since ${ago(row.since)}` : "",
  ...Object.entries(row.labels).map(([key, value]) => `${key}=${value}`)].filter(Boolean).join(" \u00b7 ");

class Cells {  // the variants of one group: a canvas, with one option for the keyboard and screen readers
  constructor(selection) {
    this.at = 0;
    this.rows = [];
    this.selection = selection;
    this.option = el("span", { class: "unseen", role: "option", id: `option-${Cells.count++}`, "aria-selected": "false" });
    this.box = el("div", {
      class: "cells", role: "listbox", "aria-multiselectable": "true", tabindex: "0", "aria-activedescendant": this.option.id,
      onkeydown: (event) => this.key(event), onfocus: () => this.point(this.at), onblur: () => this.paint(),
      onmousemove: (event) => this.over(event), onclick: (event) => this.click(event),
    }, this.option);
    this.title = el("h3");
    this.counts = el("p");
    this.node = el("section", { class: "group" }, this.title, this.counts, this.box);
  }

  show(title, rows, width) {
    this.rows = rows;
    this.at = Math.min(this.at, rows.length - 1);
    this.columns = Math.max(1, Math.floor((width + GAP) / STEP));
    say(this.title, title);
    const counts = `${plural(rows.length, "variant")}: ${inWords(tally(rows))}`;
    say(this.counts, counts);
    this.box.setAttribute("aria-label", plain(`${title}, ${counts}`));
    this.describe();
    this.paint();
  }

  paint() {
    const lines = Math.ceil(this.rows.length / this.columns);
    const [canvas, context] = canvasOf(this.columns * STEP, lines * STEP);
    this.rows.forEach((row, n) => context.drawImage(sprites.get(row.state), (n % this.columns) * STEP, Math.floor(n / this.columns) * STEP, CELL, CELL));
    const outline = (n, width) => {
      context.strokeStyle = colours.text;
      context.lineWidth = width;
      context.strokeRect((n % this.columns) * STEP + width / 2, Math.floor(n / this.columns) * STEP + width / 2, CELL - width, CELL - width);
    };
    if (this.selection.names.size) this.rows.forEach((row, n) => { if (this.selection.names.has(row.name)) outline(n, 4); });
    if (document.activeElement === this.box) outline(this.at, 2);
    if (this.canvas) this.canvas.replaceWith(canvas);
    else this.box.prepend(canvas);
    this.canvas = canvas;
  }

  describe() {
    say(this.option, about(this.rows[this.at]));
    this.option.setAttribute("aria-selected", this.selection.names.has(this.rows[this.at].name));
    this.option.setAttribute("aria-posinset", this.at + 1);
    this.option.setAttribute("aria-setsize", this.rows.length);
  }

  point(at) {
    this.at = Math.max(0, Math.min(this.rows.length - 1, at));
    this.describe();
    this.paint();
    say(document.getElementById("pointed"), about(this.rows[this.at]));
    const top = this.box.getBoundingClientRect().top + Math.floor(this.at / this.columns) * STEP;
    if (top < 0 || top > innerHeight - 2 * STEP) scrollBy(0, top - innerHeight / 2);
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns,
      Home: -this.rows.length, End: this.rows.length };
    if (event.key === "Enter" || (event.key === " " && !work.open)) open(this.rows[this.at]);
    else if (event.key === " ") this.selection.toggle(this.rows[this.at].name);
    else if (event.key in steps) this.point(this.at + steps[event.key]);
    else return;
    event.preventDefault();
  }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / STEP), line = Math.floor((event.clientY - box.top) / STEP);
    return column < this.columns ? line * this.columns + column : -1;
  }

  over(event) {
    const row = this.rows[this.find(event)];
    if (row) say(document.getElementById("pointed"), about(row));
  }

  click(event) {
    const row = this.rows[this.find(event)];
    if (row && work.open && (event.shiftKey || event.ctrlKey || event.metaKey)) this.selection.toggle(row.name);
    else if (row) open(row);
  }
}
Cells.count = 0;

function open(row) {
  location.hash = `#/variant/${row.name.split("/").map(encodeURIComponent).join("/")}`;
}

class FleetView {
  title() { return "Fleet"; }

  constructor() {
    this.cells = new Map();
    this.sets = el("div", { class: "wide" });
    this.empty = el("div", { hidden: true },
      el("h2", {}, "The fleet is empty"),
      el("p", {}, "There is no PackageVariantSet and no PackageVariant. They show here as soon as somebody creates one. To look around, start with the example of 200 variants:"),
      command("pvbus up --example fleet"));
    this.search = el("input", { type: "search", value: shown.filter, placeholder: "web region=asia", oninput: () => {
      shown.filter = this.search.value;
      choose(true);
    } });
    this.group = el("select", { onchange: () => {
      shown.group = this.group.value;
      choose();
    } });
    this.list = el("button", { type: "button", "aria-pressed": shown.list, onclick: () => {
      shown.list = !shown.list;
      this.list.setAttribute("aria-pressed", shown.list);
      choose();
    } }, "Show as list");
    this.buttons = new Map(STATES.map((state) => [state, this.button(state)]));
    this.counted = el("p", { class: "quiet", role: "status" });
    this.groups = el("div");
    this.selection = variantSelection(drawNow);
    this.content = el("div", {},
      el("section", { "aria-label": "Sets" }, el("h2", {}, "Sets"), this.sets),
      el("section", { "aria-label": "Variants" }, el("h2", {}, "Variants"),
        el("div", { class: "tools" },
          el("label", {}, "Filter by name, reason or label=value", this.search),
          el("label", {}, "Group by", this.group), this.list),
        el("fieldset", { class: "legend" }, el("legend", {}, "States"), ...[...this.buttons.values()].map((each) => each.node)),
        this.counted, this.selection.node, el("p", { id: "pointed" }), this.groups));
    this.needs = el("section", { id: "needs", "aria-label": "Needs a person", hidden: true });
    this.node = el("div", {}, this.empty, this.needs, this.content);
  }

  button(state) {
    const count = el("span");
    const node = el("button", { type: "button", "aria-pressed": shown.states.has(state), onclick: () => {
      if (!shown.states.delete(state)) shown.states.add(state);
      node.setAttribute("aria-pressed", shown.states.has(state));
      choose();
    } }, glyph(state), `${state} `, count);
    return { node, count };
  }

  sync() {  // with what the address says now
    this.search.value = shown.filter;
    this.group.value = shown.group;
    this.list.setAttribute("aria-pressed", shown.list);
    for (const [state, { node }] of this.buttons) node.setAttribute("aria-pressed", shown.states.has(state));
  }

  draw() {
    const rows = sorted();
    const isEmpty = !rows.length && !fleet.sets.size;
    const isRead = connection.status && connection.status.restored >= 1;
    this.empty.hidden = !(isEmpty && isRead);
    this.content.hidden = isEmpty;
    showNeeds(this.needs);
    this.showGroupings(rows);
    this.showSets(rows);
    const matches = matcher(shown.filter);
    const named = rows.filter(matches);
    const counts = tally(named);
    for (const [state, { count }] of this.buttons) count.textContent = counts.get(state).toLocaleString("en");
    const found = shown.states.size ? named.filter((row) => shown.states.has(row.state)) : named;
    this.counted.textContent = found.length === rows.length
      ? plural(rows.length, "variant") : `${plural(found.length, "variant")} of ${rows.length.toLocaleString("en")}`;
    this.selection.draw(found, (name) => fleet.variants.get(name));
    if (shown.list) this.showList(found);
    else this.showMap(found);
  }

  showGroupings(rows) {
    const keys = new Set();
    for (const row of rows) for (const key of Object.keys(row.labels)) keys.add(key);
    for (const set of fleet.sets.values()) for (const key of Object.keys(set.labels)) keys.add(key);
    const wanted = [OF_SET, OF_STATE, OF_LIFECYCLE, OF_NAMESPACE, ...[...keys].sort().map((key) => `label ${key}`)];
    if (!wanted.includes(shown.group)) wanted.push(shown.group);  // of the address: the labels may come later
    if (wanted.join("\n") === this.grouping) return;
    this.grouping = wanted.join("\n");
    this.group.replaceChildren(...wanted.map((key) => el("option", { value: key, selected: key === shown.group }, key)));
  }

  showSets(rows) {
    const counts = new Map();
    for (const row of rows) {
      const [all, ready] = counts.get(row.set) || [0, 0];
      counts.set(row.set, [all + 1, ready + (row.state === "ready")]);
    }
    const sets = [...fleet.sets.values()].sort((a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state) || byName(a, b));
    const lines = sets.slice(0, ROWS_MAX).map((set) => {
      const [all, ready] = counts.get(set.name) || [0, 0];
      return el("tr", {}, el("td", {}, link("set", set.name)), el("td", { class: "state" }, withState(set.state)),
        el("td", {}, reasonOf(set)), el("td", { class: "number" }, all.toLocaleString("en")), el("td", { class: "number" }, ready.toLocaleString("en")));
    });
    const mark = JSON.stringify([sets.slice(0, ROWS_MAX), sets.map((set) => counts.get(set.name))]);
    if (mark === this.setsMark) return;  // a row that is replaced would lose the keyboard's focus
    this.setsMark = mark;
    const more = sets.length > ROWS_MAX ? el("p", { class: "quiet" }, `and ${plural(sets.length - ROWS_MAX, "more set")}`) : null;
    this.sets.replaceChildren(sets.length ? table(["Set", "State", "Reason", "#Variants", "#Ready"], lines)
      : el("p", {}, "There is no set; persons or other programs have made the variants."), ...(more ? [more] : []));
  }

  showList(rows) {
    const { names } = this.selection, top = rows.slice(0, ROWS_MAX);
    const mark = JSON.stringify([top, rows.length, work.open, top.filter((row) => names.has(row.name)).map((row) => row.name)]);
    if (this.listMark === mark) return;
    this.listMark = mark;
    const lines = top.map((row) => el("tr", {}, ...(work.open ? [el("td", {}, this.selection.box(row.name))] : []), el("td", {}, link("variant", row.name)),
      el("td", { class: "state" }, withState(row.state)), el("td", {}, reasonOf(row)), el("td", {}, since(row.since)), el("td", {}, row.lifecycle),
      el("td", {}, Object.entries(row.labels).map(([key, value]) => `${key}=${value}`).join(", "))));
    const more = rows.length > ROWS_MAX ? el("p", {}, `and ${plural(rows.length - ROWS_MAX, "more variant")}: filter them`) : null;
    this.cells.clear();
    replaceKept(this.groups, [el("div", { class: "wide" }, table([...(work.open ? ["Select"] : []), "Variant", "State", "Reason", "Since", "Lifecycle", "Labels"], lines)), ...(more ? [more] : [])]);
  }

  showMap(rows) {
    this.listMark = "";
    const width = this.groups.clientWidth || document.documentElement.clientWidth - 40;
    const groups = grouped(rows);
    const before = this.cells;
    this.cells = new Map(groups.map(([title]) => [title, before.get(title) || new Cells(this.selection)]));
    const nodes = [...this.cells.values()].map((cells) => cells.node);
    if (nodes.length !== this.groups.children.length || nodes.some((node, n) => this.groups.children[n] !== node)) {
      const focused = document.activeElement;
      this.groups.replaceChildren(...nodes);
      if (this.groups.contains(focused)) focused.focus();
    }
    for (const [title, found] of groups) this.cells.get(title).show(title, found, width);
  }
}

function scrolled(label, node) {  // of text alone: the keyboard scrolls what it can reach
  return el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": label }, node);
}

function table(heads, lines) {
  const cells = heads.map((head) => el("th", { scope: "col", class: head.startsWith("#") ? "number" : null }, head.replace("#", "")));
  return el("table", {}, el("thead", {}, el("tr", {}, ...cells)), el("tbody", {}, ...lines));
}

// ------------------------------------------------------------------ what a view asks the server

const questions = new WeakMap();  // the last question of each place: an answer to an earlier one comes too late

async function askServer(place, path, nodesOf) {
  const asked = Symbol(path);
  questions.set(place, asked);
  let nodes;
  try {
    const answer = await fetch(path, { cache: "no-store", headers: { "X-Pvbus-Session": work.session } });
    if (answer.status === 401 && work.user) signed("", "");
    const document = await answer.json().catch(() => ({}));  // a page of words: the status says enough
    if (!answer.ok) throw new Error(document.error || `the server answers ${answer.status}`);
    nodes = nodesOf(document);
  } catch (error) {
    nodes = [el("p", {}, `This could not be read: ${error.message}`),
      el("button", { type: "button", onclick: () => askServer(place, path, nodesOf) }, "Ask again")];
  }
  if (questions.get(place) === asked) replaceKept(place, nodes);
}

const focusName = (node) => node.dataset.name || node.textContent;

function replaceKept(place, nodes) {  // the focus stays on the button, link or box of the same name
  const focused = place.contains(document.activeElement) ? focusName(document.activeElement) : "";
  place.replaceChildren(...nodes);
  const same = focused && [...place.querySelectorAll("button, a, input")].find((each) => focusName(each) === focused);
  if (same) same.focus();
}

// ------------------------------------------------------------------ one variant, or one set

class ObjectView {
  constructor(kind, name) {
    this.kind = kind;
    this.name = name;
    this.facts = el("dl");
    this.answer = el("div", {}, el("p", { class: "quiet" }, "Asking the bus"));
    this.actions = el("div");
    this.detail = el("div");
    this.tasks = new TaskTable();
    this.questions = el("section", { "aria-label": "Open tasks" },
      el("h3", {}, el("a", { href: "#/tasks" }, "Open tasks")), this.tasks.node);
    this.node = el("article", {}, el("h2", {}, this.title()), this.actions, this.facts, this.answer, this.detail);
  }

  title() { return `${this.kind === "set" ? "Set" : "Variant"} ${this.name}`; }

  draw() {
    const row = (this.kind === "set" ? fleet.sets : fleet.variants).get(this.name);
    const tasks = this.kind === "set" ? [] : [...fleet.tasks.values()].filter((task) => task.variant === this.name).sort(byDue);
    if (!tasks.length) this.questions.remove();
    else if (!this.questions.parentNode) this.answer.before(this.questions);
    this.tasks.show(tasks);
    const kept = [...fleet.kept.values()].filter((each) => this.kind === "variant" && each.variant === this.name).sort(byName);
    const mark = JSON.stringify([row || null, tasks, kept, work.open, work.user]);
    if (mark === this.mark) return;
    this.mark = mark;
    replaceKept(this.actions, row ? objectActions(this.kind, this.name, row) : []);
    const facts = row ? [["State", withState(row.state)], ["Since", since(row.since)], ["Reason", row.reason], ["Warning", row.warning && `${warned(row)}: see the conditions`]] : [["State", fleet.loaded ? "not in the fleet" : "being read"]];
    if (row && this.kind === "variant") {
      const labels = Object.entries(row.labels).map(([key, value]) => `${key}=${value}`).join(", ");
      facts.push(["Set", row.set ? link("set", row.set) : "made by no set"], ["Lifecycle", row.lifecycle || "no package revision"], ["Labels", labels || "none"]);
    }
    facts.push(...kept.map((each) => ["Kept draft", `${each.name}: ${each.note}`]));
    this.facts.replaceChildren(...facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
    this.ask();
    if (this.kind === "variant" && work.open) askDetail(this.detail, this.name);
    if (this.kind === "set" && work.open) askHistory(this.detail, "set", this.name, [`pvbus history pvs/${this.name}`, `pvbus undo pvs/${this.name}`]);
  }

  ask() {
    askServer(this.answer, `/api/explain?kind=${this.kind}&name=${encodeURIComponent(this.name)}`, (found) => this.explained(found));
  }

  explained(document) {
    const lines = document.conditions.map((each) => el("tr", {}, el("td", {}, each.type), el("td", {}, each.status),
      el("td", {}, since(Date.parse(each.lastTransitionTime || "") / 1000 || 0)), el("td", {}, each.reason || ""), el("td", {}, each.message || "")));
    const conditions = lines.length ? scrolled("Conditions", table(["Type", "Status", "Since", "Reason", "Message"], lines))
      : el("p", {}, "Nothing was published of it yet.");
    return [el("section", { "aria-label": "Conditions" }, el("h3", {}, "Conditions"), conditions),
      el("section", { "aria-label": "Explanation" }, el("h3", {}, "Explanation"), el("pre", { tabindex: "0" }, document.lines.join("\n")),
        el("p", { class: "quiet" }, "From the bus. With the live object and the conflicts of its package revisions:"),
        command(document.command))];
  }
}

// ------------------------------------------------------------------ held removals

class RemovalsView {
  constructor() {
    this.node = el("div", {}, el("h2", {}, this.title()));
    this.list = el("div", {}, el("p", { class: "quiet" }, "Asking the server"));
    this.node.append(this.list);
  }

  title() { return "Held removals"; }

  draw() {
    const held = [...fleet.variants.values()].filter((row) => row.state === "removal held").map((row) => row.name).sort();
    const mark = JSON.stringify([[...fleet.sets.values()].filter((set) => set.hold), held, fleet.loaded, work.open]);
    if (mark === this.mark) return;
    this.mark = mark;
    askServer(this.list, "/api/removals", ({ held: sets }) => (sets.length ? sets.map((each) => this.of(each)) : [el("p", {},
      "No removal is held. When a set would lose many variants at once, they wait here until a person confirms it.")]));
  }

  of(held) {
    const names = held.variants.map((name) => el("li", {}, link("variant", name)));
    const more = held.count > held.variants.length ? el("p", {}, `and ${plural(held.count - held.variants.length, "other")}`) : null;
    return el("section", { "aria-label": `Set ${held.set}` }, el("h3", {}, link("set", held.set)),
      el("p", {}, `${plural(held.count, "removal")} ${held.count === 1 ? "is" : "are"} held, because they are too many at once.`),
      el("p", { class: "quiet" }, "To see them with what they were made for:"), command(held.show),
      ...removalActions(held), ...(held.confirm ? [el("p", { class: "quiet" }, "To confirm them, which deletes the variants:"), command(held.confirm),
        el("p", { class: "quiet" }, "The same without pvbus:"), command(held.annotate)]
        : [el("p", {}, "The list is still being written; the command that confirms it follows.")]),
      el("details", { open: names.length <= 20 }, el("summary", {}, plural(names.length, "variant")), el("ul", {}, ...names)), more);
  }
}

// ------------------------------------------------------------------ conflicts: equal ones are one row

class ConflictsView {
  constructor() {
    this.list = el("div", {}, el("p", { class: "quiet" }, "Asking the server"));
    this.settled = el("section", { "aria-label": "Settled" });
    this.groups = new Map();
    this.selection = conflictSelection(() => this.drawSelected());
    this.node = el("div", {}, el("h2", {}, this.title()), this.selection.node, this.list, this.settled);
  }

  title() { return "Conflicts"; }

  draw() {
    this.drawSettled();
    const mark = `${fleet.conflictsAt} ${fleet.version.split("-")[0]} ${work.open}`;
    if (mark === this.mark) return;
    this.mark = mark;
    askServer(this.list, "/api/conflicts", ({ groups, more }) => {
      this.groups = new Map(groups.map((each) => [each.id, { name: each.id, where: `${each.where} (${plural(each.count, "draft")})` }]));
      this.drawSelected();
      return groups.length
        ? [...groups.map((each) => this.of(each)), ...(more ? [el("p", {}, `and ${plural(more, "more group")}: pvbus conflicts list`)] : [])]
        : [el("p", {}, "No upgrade left a conflict. What a package and its upstream both changed waits here for a person.")];
    });
  }

  drawSelected() {
    this.selection.draw([...this.groups.values()], (id) => this.groups.get(id));
    for (const box of this.list.querySelectorAll("input[data-name]")) box.checked = this.selection.names.has(box.dataset.name);
  }

  drawSettled() {  // it reads every draft: once a person wants it
    const mark = `${work.user} ${fleet.conflictsAt}`;
    if (mark === this.settledMark) return;
    this.settledMark = mark;
    const show = () => askServer(this.settled, "/api/settled", ({ resolutions, more }) => [el("h3", {}, "Settled"),
      ...(resolutions.length ? resolutions.map((each) => this.resolution(each)) : [el("p", {}, "No draft records a decision.")]),
      ...(more ? [el("p", {}, `and ${plural(more, "more decision")}: pvbus conflicts settled`)] : [])]);
    if (this.isOpen && work.user) return show();
    this.settled.replaceChildren(...(work.user ? [el("button", { type: "button", onclick: () => { this.isOpen = true; show(); } }, "Show what was settled")] : []));
  }

  resolution(each) {
    const rest = each.count - each.variants.length;
    return el("section", { "aria-label": `Decision ${each.id}` }, el("h4", {}, each.places.join("; ")),
      el("p", {}, `${plural(each.count, "draft")} took ${each.side}. Published ones keep it.`), ...undoActions(each.id), command(`pvbus conflicts undo ${each.id}`),
      el("details", {}, el("summary", {}, plural(each.count, "variant")), el("ul", {}, ...each.variants.map((name) => el("li", {}, link("variant", name)))),
        rest > 0 ? el("p", {}, `and ${plural(rest, "other")}`) : null));
  }

  of(group) {
    const value = (side) => (Object.hasOwn(group.values, side) ? JSON.stringify(group.values[side]) : "nothing");
    const names = group.variants.map((name) => el("li", {}, link("variant", name)));
    const rest = group.count - names.length;
    const box = this.selection.box(group.id);
    box.setAttribute("aria-label", plain(`Select ${group.where}: ${value("local")} or ${value("upstream")}`));
    return el("section", { "aria-label": `Conflict in ${group.where}` }, el("h3", {}, ...(work.open ? [box, " "] : []), group.where),
      el("p", {}, `${plural(group.count, "draft")}. Local: `, el("code", {}, value("local")), "; upstream: ", el("code", {}, value("upstream"))),
      el("p", { class: "quiet" }, "To see what one of these settles, add --dry-run. Local is the package's own value:"),
      ...conflictActions(group), ...group.commands.map(command),
      el("details", { open: names.length <= 5 }, el("summary", {}, plural(group.count, "variant")), el("ul", {}, ...names),
        rest > 0 ? el("p", {}, `and ${plural(rest, "other")}`) : null));
  }
}

// ------------------------------------------------------------------ rollouts

const COUNTS = [["proven", "proven", "ready"], ["rolledBack", "rolled back", "on-hold"], ["failing", "failing", "stalled"],
  ["inFlight", "in flight", "working"], ["waiting", "wait", "removing"], ["left", "left the plan", "line"], ["unproven", "unproven", "line"]];

const KEPT_MAX = 50;

class RolloutsView {
  constructor() {
    this.list = el("div");
    this.sections = new Map();
    this.kept = el("div");
    this.node = el("div", {}, el("h2", {}, this.title()), this.kept, this.list);
  }

  title() { return "Rollouts"; }

  drawKept() {  // what keeps proposals from going out, and its end by a person
    const [stops, quarantines] = [fleet.stops, fleet.quarantines].map((all) => [...all.values()].sort(byName));
    const proposed = stops.length || quarantines.length ? sorted().filter((row) => row.lifecycle === "Proposed") : [];
    const rest = proposed.length - KEPT_MAX, hints = (connection.status && connection.status.hints) || "";
    const mark = JSON.stringify([stops, quarantines, proposed.slice(0, KEPT_MAX).map((row) => row.name), rest, hints, work.open]);
    if (mark === this.keptMark) return;
    this.keptMark = mark;
    const part = (title, rows, content, note) => (rows.length ? [el("section", { "aria-label": title }, el("h3", {}, title), el("div", { class: "wide" }, content), note || null)] : []);
    replaceKept(this.kept, [
      ...part("All rollouts are stopped", stops, stopTable(stops, hints)),
      ...part("Quarantined", quarantines, quarantineTable(quarantines, hints)),
      ...part("Proposals that these may keep", proposed, overrideTable(proposed.slice(0, KEPT_MAX), hints), rest > 0 ? el("p", { class: "quiet" }, `and ${plural(rest, "other")}`) : null),
    ]);
  }

  draw() {
    this.drawKept();
    const rollouts = [...fleet.rollouts.values()].sort(byName);
    const hints = (connection.status && connection.status.hints) || "";
    const before = this.sections;
    this.sections = new Map(rollouts.map((each) => {
      const mark = JSON.stringify([each, hints, work.open, work.user]), kept = before.get(each.name);
      return [each.name, kept && kept.mark === mark ? kept : { mark, node: this.of(each, hints, kept) }];
    }));
    const nodes = rollouts.length ? [...this.sections.values()].map((each) => each.node) : [this.nothing()];
    if (nodes.length !== this.list.children.length || nodes.some((node, n) => node !== this.list.children[n])) this.list.replaceChildren(...nodes);
  }

  nothing() {
    this.none = this.none || el("p", {}, "There is no RolloutPolicy. One approves what is proposed in waves, and stops or goes back if too much fails.");
    return this.none;
  }

  of(rollout, hints, kept) {  // kept: what was shown of it before
    const standing = `${rollout.standing[0].toUpperCase()}${rollout.standing.slice(1)}.`;
    const isOpen = Boolean(kept && kept.node.querySelector("details[open]:not(.history)"));
    const words = rollout.conditions.filter((each) => each.message).map((each) => `${each.type} is ${each.status} (${each.reason}): ${each.message}`);
    const list = (title, texts) => (texts.length ? [el("p", { class: "quiet" }, title), el("ul", {}, ...texts.map((text) => el("li", {}, text)))] : []);
    return el("section", { "aria-label": `Rollout ${rollout.name}`, class: "rollout" }, el("h3", {}, rollout.name), el("p", {}, standing),
      ...this.bar(rollout.counts), ...list("Wrong in the policy or its annotations:", rollout.problems), ...list("Conditions:", words),
      ...list("It waits for:", rollout.waits), ...rolloutActions(rollout),
      el("details", { open: isOpen }, el("summary", {}, "Commands and attempts"),
        command(`pvbus rollout status ${rollout.name} --watch${hints}`), ...rollout.orders.map((each) => command(each + hints)),
        rollout.history.length ? scrolled(`Attempts of ${rollout.name}`, table(["#Attempt", "Phase", "#Wave", "Began", "Ended", "Why"], rollout.history.map((each) =>
          el("tr", {}, el("td", { class: "number" }, String(each.attempt)), el("td", {}, each.phase), el("td", { class: "number" }, each.phase === "RolledBack" ? "-" : String(each.wave)),
            el("td", {}, each.startedAt), el("td", {}, each.endedAt || ""), el("td", {}, each.reason ? `${each.reason}: ${each.message || ""}` : ""))))) : null),
      ...this.history(rollout.name, kept));
  }

  history(name, kept) {  // of the policy: once a person opens it
    if (!work.open) return [];
    const before = kept && kept.node.querySelector("details.history"), place = el("div");
    if (before && before.dataset.user === work.user) return [before];  // a rollout changes each second, its policy does not
    return [el("details", { class: "history", "data-user": work.user, open: Boolean(before && before.open), ontoggle: (event) => { if (event.target.open) askHistory(place, "policy", name, [`pvbus history rolloutpolicy/${name}`]); } },
      el("summary", {}, "Who changed the policy"), place)];
  }

  bar(counts) {
    const found = COUNTS.filter(([field]) => counts[field]);
    if (!found.length) return [];
    const words = `${plural(counts.total, "target")}: ${found.map(([field, text]) => `${counts[field].toLocaleString("en")} ${text}`).join(", ")}`;
    const parts = found.map(([field, , colour]) => {
      const part = el("span");
      part.style.flexGrow = counts[field];
      part.style.background = `var(--${colour})`;
      return part;
    });
    return [el("p", {}, words), el("div", { class: "bar", "aria-hidden": "true" }, ...parts)];
  }
}

// ------------------------------------------------------------------ tasks

const isOverdue = (task) => task.dueAt !== null && task.dueAt < Date.now() / 1000 + connection.ahead;  // the server's clock
const overdueTasks = () => [...fleet.tasks.values()].filter(isOverdue);
const byDue = (a, b) => (a.dueAt === null) - (b.dueAt === null) || (a.dueAt || 0) - (b.dueAt || 0)
  || (a.since < b.since ? -1 : a.since > b.since ? 1 : byName(a, b));

function taskMatcher(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fields = (task) => ({ owner: task.owner, type: task.type, ticket: task.ticket, namespace: task.revision.split("/")[0] });
  return (task) => words.every((word) => {
    const [key, value] = [word.split("=", 1)[0], word.slice(word.indexOf("=") + 1)];
    if (word.includes("=") && Object.hasOwn(fields(task), key)) return fields(task)[key].toLowerCase() === value;
    return [task.revision, task.variant, task.type, task.question, task.owner, task.ticket].some((each) => each.toLowerCase().includes(word));
  });
}

class TaskTable {  // a body of two lines for each task, so that one that changes leaves the keyboard's focus to the others
  constructor() {
    this.bodies = new Map();
    this.table = table(TaskTable.heads, []);
    this.table.className = "tasks";
    this.node = el("div", { class: "wide" }, this.table);
  }

  show(tasks) {
    const hints = (connection.status && connection.status.hints) || "", before = this.bodies;
    this.bodies = new Map(tasks.map((task) => {
      const mark = JSON.stringify([task, hints, isOverdue(task), work.open]), kept = before.get(task.name);
      return [task.name, kept && kept.mark === mark ? kept : { mark, node: this.of(task, hints) }];
    }));
    const nodes = [...this.bodies.values()].map((each) => each.node);
    if (nodes.length === this.table.tBodies.length && nodes.every((node, n) => node === this.table.tBodies[n])) return;
    const focused = document.activeElement;
    for (const body of [...this.table.tBodies]) if (!nodes.includes(body)) body.remove();
    nodes.forEach((node, n) => { if (this.table.tBodies[n] !== node) this.table.insertBefore(node, this.table.tBodies[n] || null); });
    if (this.table.contains(focused)) focused.focus();
  }

  of(task, hints) {
    const due = isOverdue(task) ? el("span", {}, el("strong", { class: "overdue" }, "\u26a0 overdue"), el("br"), task.due) : task.due || "none";
    const blocks = task.blocks.length ? `readiness gate${task.blocks.length > 1 ? "s" : ""} ${task.blocks.join(", ")}` : "nothing";
    const notes = [`${task.type} of ${task.revision}${task.since ? `, open since ${task.since}` : ""}`, task.note];
    if (task.state === "proposed") notes.push("It is proposed, and only a draft's tasks are answered: reject it first.");
    const cells = [due, task.question, task.owner || "nobody by name", task.ticket || "none", link("variant", task.variant), blocks];
    return el("tbody", {}, el("tr", {}, ...cells.map((cell, n) => el(n === 1 ? "th" : "td", { scope: n === 1 ? "row" : null, "data-head": TaskTable.heads[n] }, cell))),
      el("tr", {}, el("td", { colspan: cells.length }, ...notes.filter(Boolean).map((words) => el("p", {}, words)),
        ...taskActions(task), el("p", { class: "quiet" }, "To answer it with True or False:"), command(task.answer + hints))));
  }
}
TaskTable.heads = ["Due", "Question", "Asked of", "Ticket", "Variant", "Blocks"];

class TasksView {
  constructor() {
    this.tasks = new TaskTable();
    this.search = el("input", { type: "search", value: shown.tasks, placeholder: "owner=ann licensed", oninput: () => {
      shown.tasks = this.search.value;
      choose(true);
    } });
    this.late = el("button", { type: "button", "aria-pressed": shown.overdue, onclick: () => {
      shown.overdue = !shown.overdue;
      this.late.setAttribute("aria-pressed", shown.overdue);
      choose();
    } }, "Only overdue");
    this.counted = el("p", { class: "quiet", role: "status" });
    this.tools = el("div", { class: "tools" }, el("label", {}, "Filter by words, owner=, type=, ticket= or namespace=", this.search), this.late);
    this.others = el("div");
    this.node = el("div", {}, el("h2", {}, this.title()), this.tools, this.counted, this.tasks.node, this.others);
  }

  title() { return "Tasks"; }

  sync() {
    this.search.value = shown.tasks;
    this.late.setAttribute("aria-pressed", shown.overdue);
  }

  draw() {
    const all = [...fleet.tasks.values()].sort(byDue), late = all.filter(isOverdue);
    const found = (shown.overdue ? late : all).filter(taskMatcher(shown.tasks));
    const of = found.length === all.length ? "" : ` of ${all.length.toLocaleString("en")}`, rest = found.length - ROWS_MAX;
    const words = all.length ? `${plural(found.length, "open task")}${of}; ${late.length.toLocaleString("en")} overdue${rest > 0 ? `. The first ${ROWS_MAX} are shown: filter them` : ""}`
      : "No task is open. A condition of a package that asks a person shows here until it is True or False.";
    say(this.counted, words);
    const hints = (connection.status && connection.status.hints) || "";
    if (hints !== this.hints) {
      this.hints = hints;
      this.others.replaceChildren(el("p", { class: "quiet" }, "These are questions about drafts and proposals of variants. Those of all packages:"),
        command(`pvbus task list${hints}`), el("p", { class: "quiet" }, "The answers so far:"), command(`pvbus task list --answered${hints}`));
    }
    this.tools.hidden = !all.length;
    this.tasks.node.hidden = !found.length;
    this.tasks.show(found.slice(0, ROWS_MAX));
  }
}

// ------------------------------------------------------------------ drafts that stayed

class KeptView {
  constructor() {
    this.list = el("div");
    this.node = el("div", {}, el("h2", {}, this.title()), this.list);
  }

  title() { return "Kept drafts"; }

  draw() {
    const kept = [...fleet.kept.values()].sort(byName), hints = (connection.status && connection.status.hints) || "";
    const mark = JSON.stringify([kept, hints]);
    if (mark === this.mark) return;
    this.mark = mark;
    if (!kept.length) return this.list.replaceChildren(el("p", {}, "No draft was kept. One that people edited stays here when its variant is deleted."));
    const lines = kept.slice(0, ROWS_MAX).map((each) => el("tr", {}, el("th", { scope: "row" }, each.name), el("td", {}, link("variant", each.variant)), el("td", {}, each.note)));
    const more = kept.length > ROWS_MAX ? el("p", { class: "quiet" }, `and ${plural(kept.length - ROWS_MAX, "more draft")}`) : null;
    this.list.replaceChildren(el("p", {}, `${plural(kept.length, "draft")} with edits of people stayed when the variant went.`),
      el("div", { class: "wide" }, table(["Draft", "Variant that is gone", "Edited by, and what to do"], lines)), ...(more ? [more] : []),
      el("p", { class: "quiet" }, "The same on the command line:"), command(`pvbus explain ${kept[0].variant}${hints}`));
  }
}

// ------------------------------------------------------------------ views by address

const VIEWS = [  // path, name in the navigation ("" for none), and what makes the view
  { path: FLEET_PATH, href: "#/", name: () => "Fleet", make: () => new FleetView() },
  { path: /^\/person$/, href: "#/person", name: () => `Needs a person${fleet.loaded ? ` (${needsCount().toLocaleString("en")})` : ""}`, make: () => new NeedsView() },
  { path: /^\/removals$/, href: "#/removals", name: () => {
    const held = [...fleet.variants.values()].filter((row) => row.state === "removal held").length;
    return `Held removals${fleet.loaded ? ` (${held.toLocaleString("en")})` : ""}`;
  }, make: () => new RemovalsView() },
  { path: /^\/conflicts$/, href: "#/conflicts", name: () => `Conflicts${fleet.loaded ? ` (${fleet.conflicts.toLocaleString("en")})` : ""}`,
    make: () => new ConflictsView() },
  { path: /^\/rollouts$/, href: "#/rollouts", name: () => `Rollouts${fleet.loaded ? ` (${fleet.rollouts.size})` : ""}`,
    make: () => new RolloutsView() },
  { path: TASKS_PATH, href: "#/tasks", name: () => {
    const late = overdueTasks().length;
    return `Tasks${fleet.loaded ? ` (${fleet.tasks.size.toLocaleString("en")}${late ? `, ${late.toLocaleString("en")} overdue` : ""})` : ""}`;
  }, make: () => new TasksView() },
  { path: /^\/kept$/, href: "#/kept", name: () => `Kept drafts${fleet.loaded ? ` (${fleet.kept.size.toLocaleString("en")})` : ""}`, make: () => new KeptView() },
  { path: /^\/(variant|set)\/([^/]+)\/([^/]+)$/, name: () => "", make: (kind, namespace, name) => new ObjectView(kind, `${namespace}/${name}`) },
];

const views = {
  current: null,
  drawn: false,
  overdue: 0,  // tasks, when it was last drawn

  title() { return views.current ? views.current.title() : "Fleet"; },

  open() {
    const path = pathOf();
    readAddress();
    const view = VIEWS.find((each) => each.path.test(path)) || VIEWS[0];
    const isFirst = !views.current;
    views.current = view.make(...(path.match(view.path) || []).slice(1).map(decode));
    views.path = view;
    const main = document.getElementById("main");
    main.replaceChildren(views.current.node);
    if (!isFirst) {
      main.focus();
      scrollTo(0, 0);
    }
    views.draw();
  },

  navigate() {
    const links = VIEWS.filter((each) => each.name()).map((each) => ({ href: each.href, text: each.name(), here: each === views.path }));
    const mark = JSON.stringify(links);
    if (mark === views.mark) return;
    views.mark = mark;
    const nav = document.querySelector("nav");
    if (nav.children.length !== links.length) nav.replaceChildren(...links.map(({ href }) => el("a", { href })));
    links.forEach(({ text, here }, n) => {
      say(nav.children[n], text);
      if (here) nav.children[n].setAttribute("aria-current", "page");
      else nav.children[n].removeAttribute("aria-current");
    });
  },

  draw() {
    views.overdue = overdueTasks().length;
    views.navigate();
    views.current.draw();
    showConnection();
    if (fleet.loaded && connection.status && connection.status.restored >= 1 && !views.drawn) {
      views.drawn = true;
      performance.mark("fleet drawn");
    }
  },
};

function decode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

let drawing = 0, drawnIn = 0;

function changed() {  // at most a third of the time is spent on drawing
  if (drawing) return;
  drawing = setTimeout(() => requestAnimationFrame(drawFrame), Math.min(2000, 2 * drawnIn));
}

function drawFrame() {
  drawing = 0;
  const began = performance.now();
  views.draw();
  drawnIn = performance.now() - began;
}

function drawNow() {  // a person waits for it: in the next frame, however much changes by itself
  clearTimeout(drawing);
  drawing = setTimeout(() => requestAnimationFrame(drawFrame), 0);
}

function redraw() {
  readColours();
  if (views.current) views.open();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("resize", changed);
addEventListener("hashchange", () => {
  const isSame = views.current.sync && views.path.path.test(pathOf());
  if (!isSame) return views.open();
  readAddress();
  views.current.sync();
  views.draw();
});
addEventListener("keydown", (event) => {
  const search = document.querySelector("main input[type=search]");
  if (event.key !== "/" || !search || event.target.closest("input, select, textarea, dialog")) return;
  event.preventDefault();
  search.focus();
});
// A page that the browser keeps for "back" would keep its connection, and browsers have six for one server.
addEventListener("pagehide", () => {
  if (connection.source) connection.source.close();
  connection.source = null;
});
addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
readColours();
views.open();
learnWork();
load().catch((error) => { connection.problem = error.message; }).finally(connect);
connection.heard = Date.now();
