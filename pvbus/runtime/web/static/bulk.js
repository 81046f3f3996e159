// Many objects at once: which ones a person has selected, and one action on all of them, which asks once and is
// carried out object by object. What is refused of one leaves the others.
"use strict";

const LOOK_AT_ONCE = 50, DO_AT_ONCE = 10;  // the progress shows after each of these requests
const SELECTED_MAX = 1000;  // a whole set has actions of its own
const NAMES_MAX = 200;

class Selection {  // kinds: the actions on what is selected, as [words, whether it fits a row, act(names)]
  constructor(noun, kinds, redraw) {
    this.noun = noun;
    this.names = new Set();
    this.redraw = redraw;
    this.shown = [];
    this.rowOf = () => undefined;
    const button = (words, onclick) => el("button", { type: "button", onclick }, words);
    this.all = button("Select all", () => this.take(this.shown.map((row) => row.name)));
    this.none = button("Clear", () => this.take([]));
    this.counted = el("p", { role: "status" });
    this.actions = kinds.map(([words, fits, run]) => ({ words, fits, node: button("", () => run(this.rows().filter(fits))) }));
    this.node = el("div", { class: "selection", role: "group", "aria-label": `Selected ${noun}s`, hidden: true },
      this.counted, el("div", { class: "buttons" }, this.all, this.none, ...this.actions.map((each) => each.node)));
  }

  rows() { return [...this.names].map((name) => this.rowOf(name)).filter(Boolean); }

  take(names) {
    this.names = new Set(names.slice(0, SELECTED_MAX));
    this.redraw();
  }

  toggle(name) {
    if (!this.names.delete(name) && this.names.size < SELECTED_MAX) this.names.add(name);
    this.redraw();
  }

  draw(shown, rowOf) {  // shown: the rows that the view shows now; rowOf: returns a row by its name
    this.node.hidden = !work.open || !shown.length;
    this.shown = shown;
    this.rowOf = rowOf;
    const rows = this.rows(), here = new Set(shown.map((row) => row.name));
    this.names = new Set(rows.map((row) => row.name));
    const hidden = rows.filter((row) => !here.has(row.name)).length;
    say(this.all, `Select all ${Math.min(shown.length, SELECTED_MAX).toLocaleString("en")}`);
    const limit = rows.length === SELECTED_MAX ? `; more than ${SELECTED_MAX.toLocaleString("en")} at once are not possible` : "";
    say(this.counted, rows.length ? `${plural(rows.length, this.noun)} selected${hidden ? `, ${hidden.toLocaleString("en")} of them not shown by the filter` : ""}${limit}` : "");
    this.none.hidden = !rows.length;
    for (const { words, fits, node } of this.actions) {
      const count = rows.filter(fits).length;
      node.hidden = !count;
      say(node, `${words} ${count.toLocaleString("en")}`);
    }
  }

  box(name) {
    return el("input", { type: "checkbox", checked: this.names.has(name), "aria-label": `Select ${name}`, "data-name": name, onchange: () => this.toggle(name) });
  }
}

// entries: [{ name, request }] of the same action; verb: as "Hold"; fields: as those of `act`
async function actOnAll(verb, noun, entries, fields = {}) {
  if (!work.user && !(await signIn())) return;
  const run = { stopped: false, busy: true };
  const meter = el("progress", { max: entries.length, value: 0, "aria-label": "Progress" });
  const status = el("p", { role: "status" });
  const body = el("div", {}, status, meter);
  const { node, closed } = dialog("One moment", body);
  node.addEventListener("cancel", (event) => { if (run.busy) { event.preventDefault(); run.stopped = true; } });
  const title = node.querySelector("h2");
  const stop = el("button", { type: "button", onclick: () => { run.stopped = true; stop.disabled = true; } }, "Stop");
  body.append(el("div", { class: "buttons" }, stop));
  const looked = await sendAll("/api/look", entries, LOOK_AT_ONCE, "Asking the API server about");
  run.busy = false;
  ask(looked);
  await closed;

  async function sendAll(path, all, size, words) {  // what was answered, also if a later request fails
    const found = { items: [], each: "", error: null, unsure: [] };
    for (let at = 0; at < all.length && !run.stopped; at += size) {
      say(status, `${words} ${at.toLocaleString("en")} of ${all.length.toLocaleString("en")}`);
      const part = all.slice(at, at + size);
      try {
        const answer = await sent("POST", path, { action: "many", of: part.map((each) => each.request) });
        found.each = answer.each;
        answer.items.forEach((item, n) => found.items.push({ ...item, entry: part[n] }));
      } catch (error) {
        if (error.status === 401) signed("", "");
        return { ...found, error, unsure: part };
      }
      meter.value = found.items.length;
    }
    return found;
  }

  function ask({ items, each, error }) {
    const due = items.filter((item) => item.question), refused = items.filter((item) => item.ok === false), idle = items.filter((item) => !item.question && item.ok);
    const left = entries.length - items.length;
    say(title, due.length ? `${verb} ${plural(due.length, noun)}?` : error ? "Not done" : "There is nothing to do");
    const said = [...(error ? [el("p", { role: "alert" }, error.message)] : []), ...(left ? [el("p", {}, `${plural(left, noun)} ${left === 1 ? "was" : "were"} not looked at, and nothing is done to them.`)] : []),
      ...results(`${plural(refused.length, noun)} refused`, refused), ...results(`${plural(idle.length, noun)} without anything to do`, idle)];
    if (!due.length) return finish(said);
    const inputs = Object.entries(fields).map(([name, label]) => [name, label, el("input", { type: "text", maxlength: 500 })]);
    const go = el("button", { type: "submit", class: "go" }, "Do it");
    body.replaceChildren(...said, ...names(due), el("form", { onsubmit: (event) => { event.preventDefault(); go.disabled = true; carryOut(due, inputs); } },
      ...inputs.map(([, label, input]) => el("label", {}, label, input)), ...same(each, due),
      el("div", { class: "buttons" }, go, closer("Cancel"))));
    (inputs.length ? inputs[0][2] : go).focus();
  }

  async function carryOut(due, inputs) {
    const given = Object.fromEntries(inputs.map(([name, , input]) => [name, input.value]));
    const all = due.map(({ entry, seen }) => ({ ...entry, request: { ...entry.request, ...given, seen } }));
    Object.assign(run, { stopped: false, busy: true });
    Object.assign(meter, { max: all.length, value: 0 });
    stop.disabled = false;
    body.replaceChildren(status, meter, el("div", { class: "buttons" }, stop));
    stop.focus();
    const { items, each, error, unsure } = await sendAll("/api/act", all, DO_AT_ONCE, "Done:");
    run.busy = false;
    const failed = items.filter((item) => !item.ok), done = items.filter((item) => item.ok);
    const left = all.length - items.length - unsure.length;
    say(title, failed.length || error || left ? `${done.length.toLocaleString("en")} of ${plural(all.length, noun)} done` : `Done: ${plural(done.length, noun)}`);
    finish([
      ...(error ? [el("p", { role: "alert" }, `${error.message}. What became of ${plural(unsure.length, noun)} is not known: ${unsure.map((entry) => entry.name).join(", ")}`)] : []),
      ...(left ? [el("p", {}, `${plural(left, noun)} not begun.`)] : []),
      ...results(`${plural(failed.length, noun)} refused`, failed), ...results(`${plural(done.length, noun)} done`, done), ...same(each, due),
    ], done.filter((item) => item.resolution));
  }

  function finish(nodes, settled = []) {
    const undo = settled.length ? [el("button", { type: "button", onclick: () => { node.close(); actOnAll("Undo", "decision", settled.map(({ entry, resolution }) => ({ name: entry.name, request: { action: "undo", resolution } }))); } }, "Undo")] : [];
    body.replaceChildren(...nodes, el("div", { class: "buttons" }, closer("Close"), ...undo));
    body.querySelector(".buttons button").focus();
  }

  function same(each, due) {
    if (!each) return [];
    const subject = ({ request }) => request.name || request.group || request.resolution;
    return [el("p", { class: "quiet" }, "The same on the command line:"), command(`for name in ${due.map((item) => subject(item.entry)).join(" ")}; do ${each}; done`)];
  }

  function names(due) {
    return [el("details", { open: due.length <= 5 }, el("summary", {}, plural(due.length, noun)), el("ul", { class: "said", tabindex: "0", "aria-label": "Names" }, ...due.map((item) => el("li", {}, item.entry.name))))];
  }

  function results(words, items) {
    if (!items.length) return [];
    const rows = items.slice(0, NAMES_MAX).map((item) => el("tr", {}, el("td", {}, item.entry.name), el("td", {}, item.lines.join("; "))));
    const more = items.length > NAMES_MAX ? [el("p", { class: "quiet" }, `and ${plural(items.length - NAMES_MAX, "other")}`)] : [];
    const refused = items.some((item) => item.ok === false);
    return [el("section", { class: refused ? "refused" : "done", "aria-label": words }, el("h3", {}, words),
      el("div", { class: "said", tabindex: "0", role: "group", "aria-label": `Results: ${words}` }, table([noun[0].toUpperCase() + noun.slice(1), "Result"], rows)), ...more)];
  }
}

// ------------------------------------------------------------------ what can be done with all that is selected

function variantSelection(redraw) {
  const entry = (request) => (row) => ({ name: row.name, request: { kind: "variant", name: row.name, ...request } });
  const each = (verb, request, fields) => (rows) => actOnAll(verb, "variant", rows.map(entry(request)), fields);
  const move = (verb, lifecycle) => [verb, (row) => row.lifecycle === lifecycle, each(verb, { action: "move", move: verb.toLowerCase() })];
  return new Selection("variant", [
    ["Hold", (row) => row.state !== "on hold", each("Hold", { action: "hold" }, { reason: "Reason" })],
    ["Unhold", (row) => row.state === "on hold", each("Unhold", { action: "unhold" })],
    ["Retry", () => true, each("Retry", { action: "retry" })],
    move("Propose", "Draft"), move("Approve", "Proposed"), move("Reject", "Proposed"),
  ], redraw);
}

function conflictSelection(redraw) {
  const take = (side) => (rows) => actOnAll(`Take ${side} for`, "conflict", rows.map((row) => ({ name: row.where, request: { action: "take", group: row.name, side } })));
  return new Selection("conflict", [["Take local", () => true, take("local")], ["Take upstream", () => true, take("upstream")]], redraw);
}
