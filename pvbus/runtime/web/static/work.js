// What people do on the page: each action asks once, shows the command that it equals, and then its result.
// The token of the sign-in goes to the server and is not kept here; the session's id is this tab's alone.
"use strict";

// contents: what the person has seen of each revision's files, as a digest: an answer is about these
const work = { open: false, user: "", tokens: [], session: sessionStorage.getItem("pvbus-session") || "", contents: new Map() };

async function sent(method, path, body) {
  const headers = { "Content-Type": "application/json", "X-Pvbus-Session": work.session };
  const answer = await fetch(path, { method, headers, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  let document = {};
  try { document = JSON.parse(text); } catch { /* a page of words: the status says enough */ }
  if (!answer.ok) throw Object.assign(new Error(document.error || `the server answers ${answer.status}`), { status: answer.status });
  return document;
}

function signed(session, user) {
  work.session = session;
  work.user = user;
  if (session) sessionStorage.setItem("pvbus-session", session);
  else sessionStorage.removeItem("pvbus-session");
  showUser();
  changed();
}

async function learnWork() {
  try {
    const { open, user, tokens } = await sent("GET", "/api/session");
    Object.assign(work, { open, tokens });
    signed(user ? work.session : "", user);
  } catch { /* the page says that its server does not answer */ }
}

function showUser() {
  const place = document.getElementById("user");
  const button = work.user
    ? el("button", { type: "button", onclick: () => { sent("DELETE", "/api/session").catch(() => {}); signed("", ""); } }, "Sign out")
    : el("button", { type: "button", onclick: () => signIn() }, "Sign in");
  place.hidden = !work.open;
  place.replaceChildren(...(work.user ? [el("span", {}, `${work.user} `)] : []), button);
}

// ------------------------------------------------------------------ dialogs

function dialog(title, ...content) {  // resolves once it is closed
  const heading = el("h2", { id: "dialog-title" }, title);
  const node = el("dialog", { "aria-labelledby": "dialog-title" }, heading, ...content);
  const before = document.activeElement;
  document.body.append(node);
  node.showModal();
  const closed = new Promise((resolve) => node.addEventListener("close", () => {
    node.remove();
    if (before && before.isConnected) before.focus();
    resolve();
  }));
  return { node, closed };
}

const closer = (words) => el("button", { type: "button", onclick: (event) => event.target.closest("dialog").close() }, words);

async function signIn() {
  const input = el("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const said = el("p", { role: "alert" });
  const form = el("form", { onsubmit: (event) => { event.preventDefault(); begin(); } },
    el("p", {}, "What you do here is done as your own user at the API server, which decides what you may. The token stays in the server's memory, until you sign out or an hour passes without an action."),
    el("label", {}, "Kubernetes token", input), said,
    el("div", { class: "buttons" }, el("button", { type: "submit" }, "Sign in"), closer("Cancel")),
    ...(work.tokens.length ? [el("p", { class: "quiet" }, "A token is printed by:"), ...work.tokens.map(command)] : []));
  const { node, closed } = dialog("Sign in", form);
  async function begin() {
    say(said, "");
    try {
      const { session, user } = await sent("POST", "/api/session", { token: input.value.trim() });
      signed(session, user);
      node.close();
    } catch (error) { say(said, error.message); }
    input.value = "";
  }
  await closed;
  return Boolean(work.user);
}

// fields: what the person is asked for, by the name in the request: [label, whether it must be given]
async function act(request, fields = {}) {
  if (!work.user && !(await signIn())) return;
  const body = el("div", {}, el("p", { class: "quiet", role: "status" }, "Asking the API server"));
  const { node, closed } = dialog("One moment", body);
  const title = node.querySelector("h2");
  try {
    const look = await sent("POST", "/api/look", request);
    if (look.question) ask(look);
    else show(look.lines.length ? "There is nothing to do" : "Done", look);
  } catch (error) { failed(error); }
  await closed;

  function lines(texts) { return el("div", { class: "said" }, ...texts.map((text) => el("p", {}, text))); }

  function ask(look) {
    say(title, look.question);
    const inputs = Object.entries(fields).map(([name, [label, required]]) => [name, label, el("input", { type: "text", maxlength: 500, required })]);
    if (look.number) inputs.push(["typed", `Type ${look.number} to confirm`, el("input", { type: "text", inputmode: "numeric", autocomplete: "off", required: true, pattern: String(look.number) })]);
    const go = el("button", { type: "submit", class: "go" }, "Do it");
    body.replaceChildren(lines(look.lines), el("form", { onsubmit: (event) => { event.preventDefault(); go.disabled = true; carryOut(look, inputs); } },
      ...inputs.map(([, label, input]) => el("label", {}, label, input)),
      el("p", { class: "quiet" }, "The same on the command line:"), command(look.command),
      el("div", { class: "buttons" }, go, closer("Cancel"))));
    (inputs.length ? inputs[0][2] : go).focus();
  }

  async function carryOut(look, inputs) {
    const given = Object.fromEntries(inputs.map(([name, , input]) => [name, input.value]));
    body.append(el("p", { class: "quiet", role: "status" }, "Working"));
    try {
      const done = await sent("POST", "/api/act", { ...request, ...given, seen: look.seen });
      show(done.ok ? "Done" : "Not done, or not all of it", done);
    } catch (error) { failed(error); }
  }

  function show(words, done) {
    say(title, words);
    const undo = done.resolution ? [el("button", { type: "button", onclick: () => { node.close(); act({ action: "undo", resolution: done.resolution }); } }, "Undo")] : [];
    body.replaceChildren(el("div", { role: "status", class: done.ok === false ? "refused" : "done" }, lines(done.lines)),
      el("p", { class: "quiet" }, "The same on the command line:"), command(done.command), el("div", { class: "buttons" }, closer("Close"), ...undo));
    body.querySelector(".buttons button").focus();
  }

  function failed(error) {
    if (error.status === 401) signed("", "");
    say(title, "Not done");
    body.replaceChildren(el("p", { role: "alert" }, error.message), el("div", { class: "buttons" }, closer("Close")));
    body.querySelector(".buttons button").focus();
  }
}

// ------------------------------------------------------------------ what can be done with what is shown

const doing = (words, request, fields) => el("button", { type: "button", onclick: () => act(request, fields) }, words);
const actionsOf = (label, buttons) => (work.open && buttons.length ? [el("div", { class: "actions", role: "group", "aria-label": plain(label) }, ...buttons)] : []);

function objectActions(kind, name, row) {
  const named = { kind, name };
  const buttons = [row.state === "on hold" ? doing("Unhold", { action: "unhold", ...named })
    : doing("Hold", { action: "hold", ...named }, { reason: ["Reason", false] })];
  buttons.push(doing("Retry", { action: "retry", ...named }));
  const may = (lifecycle) => kind === "set" || row.lifecycle === lifecycle;
  if (may("Draft")) buttons.push(doing("Propose", { action: "move", move: "propose", ...named }));
  if (may("Proposed")) buttons.push(doing("Approve", { action: "move", move: "approve", ...named }), doing("Reject", { action: "move", move: "reject", ...named }));
  return actionsOf(`Actions on ${name}`, buttons);
}

function taskActions(task) {
  const answer = (status) => doing(`Answer ${status}`, { action: "answer", revision: task.revision, type: task.type, status, get content() { return work.contents.get(task.revision) || ""; } }, { message: ["Why, in a sentence", false] });
  return actionsOf(`Answer ${task.type} of ${task.revision}`, task.state === "proposed" ? [] : [answer("True"), answer("False")]);
}

const conflictActions = (group) => actionsOf(`Settle ${group.where}`, ["local", "upstream"].map((side) => doing(`Take ${side}`, { action: "take", group: group.id, side })));
const undoActions = (resolution) => actionsOf(`Undo ${resolution}`, [doing("Undo", { action: "undo", resolution })]);
const removalActions = (held) => actionsOf(`Confirm the removals of ${held.set}`, held.confirm ? [doing("Confirm", { action: "confirm", name: held.set })] : []);

const releaseActions = (row) => actionsOf(`End ${row.name}`, [doing("Release", { action: "release", name: row.name }, { reason: ["Why it ends", true] })]);

const liftActions = (row, entry) => actionsOf(`Lift ${row.name} ${entry}`, [doing("Lift", { action: "lift", name: row.name, entry }, { reason: ["Why it ends", true] })]);
const overrideActions = (row) => actionsOf(`Approve ${row.name}`, [doing("Approve all the same", { action: "move", move: "approve", kind: "variant", name: row.name, overrides: true },
  { override: ["Why it goes out all the same", true] })]);

function rolloutActions(rollout) {
  return actionsOf(`Steer ${rollout.name}`, rollout.verbs.map((order) => doing(order[0].toUpperCase() + order.slice(1).replace("-", " "),
    { action: "rollout", name: rollout.name, order }, order === "promote" ? { reason: ["Why in a denied time, too", false] } : {})));
}
