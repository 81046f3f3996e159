// What waits for a person, of all kinds, in one place.
"use strict";

const REASONS = [  // of variants: the reason of AttentionNeeded, what it means, and where it is settled
  ["UpgradeConflict", "Conflicts of upgrades", "#/conflicts", "settle equal ones together"],
  ["DraftRejected", "Rejected drafts", "", ""],
  ["RollbackStranded", "Stranded by a rollback", "", ""],
];
const ELSEWHERE = new Set(["TaskOpen", "DeletionHeld", "VariantsNeedAttention"]);  // they have sections of their own
const stopped = (rollout) => rollout.phase === "Stopped" || rollout.verbs.includes("approve");

const needs = { version: "", found: null };

function needsOf() {  // once for each version of the fleet: ten thousand variants are looked at
  const version = `${fleet.version} ${fleet.tasks.size}`;
  if (needs.found && needs.version === version) return needs.found;
  const byReason = new Map(REASONS.map(([reason]) => [reason, []])), held = new Map(), stalled = [], others = [];
  for (const row of fleet.variants.values()) {
    if (row.state === "removal held") held.set(row.set, (held.get(row.set) || 0) + 1);
    else if (row.state === "stalled") stalled.push(row);
    else if (row.state !== "needs attention") continue;
    else if (byReason.has(row.reason)) byReason.get(row.reason).push(row);
    else if (!ELSEWHERE.has(row.reason)) others.push(row);
  }
  const sets = [...fleet.sets.values()].filter((set) => set.state === "stalled");
  const found = [
    { kind: "stop", title: "All rollouts are stopped", href: "", hint: "", rows: [...fleet.stops.values()] },
    ...REASONS.map(([reason, title, href, hint]) => ({ kind: "variant", title, href, hint, rows: byReason.get(reason) })),
    { kind: "held", title: "Held removals", href: "#/removals", hint: "see and confirm them", rows: [...held].map(([name, count]) => ({ name, count })) },
    { kind: "task", title: "Open tasks", href: "#/tasks", hint: "all of them", rows: [...fleet.tasks.values()].sort(byDue) },
    { kind: "quarantine", title: "Quarantined", href: "", hint: "", rows: [...fleet.quarantines.values()] },
    { kind: "rollout", title: "Rollouts that wait for a person", href: "#/rollouts", hint: "all rollouts", rows: [...fleet.rollouts.values()].filter(stopped) },
    { kind: "set", title: "Stalled sets", href: "", hint: "", rows: sets },
    { kind: "variant", title: "Stalled variants", href: "#/?state=stalled&list=", hint: "in the fleet", rows: stalled },
    { kind: "variant", title: "Others", href: "", hint: "", rows: others },
  ].filter((each) => each.rows.length);
  for (const each of found) if (each.kind !== "task") each.rows.sort(byName);
  Object.assign(needs, { version, found });
  return found;
}

const needsCount = () => needsOf().reduce((sum, each) => sum + (each.kind === "held" ? each.rows.reduce((all, row) => all + row.count, 0) : each.rows.length), 0);

function showNeeds(place) {  // a line on top of the fleet
  const found = needsOf();
  place.hidden = !found.length;
  const mark = JSON.stringify(found.map((each) => [each.title, each.rows.length]));
  if (mark === place.dataset.mark) return;
  place.dataset.mark = mark;
  place.replaceChildren(el("h2", {}, el("a", { href: "#/person" }, "Needs a person")),
    el("ul", {}, ...found.map((each) => el("li", {}, `${each.title}: ${each.rows.length.toLocaleString("en")}`))));
}

function quarantineTable(rows, hints) {
  return table(["Quarantine", "Covers", "Why", "To end it"], rows.map((row) => el("tr", {}, el("td", {}, row.name), el("td", {}, row.covers), el("td", {}, row.why),
    el("td", {}, ...releaseActions(row), command(`pvbus rollout release ${row.name} --reason TEXT${hints}`)))));
}

function stopTable(rows, hints) {  // a row for each entry: each is lifted by itself
  return table(["Stop", "Who, and why", "To lift it"], rows.flatMap((row) => row.entries.map(([entry, words]) => el("tr", {}, el("td", {}, `${row.name} ${entry}`), el("td", {}, words),
    el("td", {}, ...liftActions(row, entry), command(`pvbus rollout lift ${row.name} ${entry} --reason TEXT${hints}`))))));
}

function overrideTable(rows, hints) {
  return table(["Variant", "In spite of it"], rows.map((row) => el("tr", {}, el("td", {}, link("variant", row.name)),
    el("td", {}, ...overrideActions(row), command(`pvbus approve pv/${row.name} --override REASON${hints}`)))));
}

class NeedsView {
  constructor() {
    this.list = el("div");
    this.node = el("div", {}, el("h2", {}, this.title()), this.list);
  }

  title() { return "Needs a person"; }

  draw() {
    const found = needsOf(), hints = (connection.status && connection.status.hints) || "";
    const mark = JSON.stringify([found.map((each) => [each.title, each.rows.slice(0, ROWS_MAX), each.rows.length]), hints, work.open]);
    if (mark === this.mark) return;
    this.mark = mark;
    const nodes = found.map((each) => el("section", { "aria-label": each.title },
      el("h3", {}, `${each.title} (${each.rows.length.toLocaleString("en")})`),
      each.href ? el("p", {}, el("a", { href: each.href }, `${each.title}: ${each.hint}`)) : null,
      el("div", { class: "wide" }, this[each.kind](each.rows.slice(0, ROWS_MAX), hints)),
      each.rows.length > ROWS_MAX ? el("p", { class: "quiet" }, `and ${plural(each.rows.length - ROWS_MAX, "other")}`) : null));
    const none = el("p", {}, "Nothing waits for a person: no conflict, held removal, task, rejected, stranded or quarantined revision, stopped rollout, or stalled variant.");
    replaceKept(this.list, nodes.length ? nodes : [none]);
  }

  objects(kind, rows) {
    return table([kind === "set" ? "Set" : "Variant", "State", "Reason", "Since"], rows.map((row) => el("tr", {}, el("td", {}, link(kind, row.name)),
      el("td", { class: "state" }, withState(row.state)), el("td", {}, reasonOf(row)), el("td", {}, since(row.since)))));
  }

  variant(rows) { return this.objects("variant", rows); }

  set(rows) { return this.objects("set", rows); }

  held(rows) {
    return table(["Set", "#Removals"], rows.map((row) => el("tr", {}, el("td", {}, link("set", row.name)), el("td", { class: "number" }, row.count.toLocaleString("en")))));
  }

  task(rows) {
    return table(["Question", "Asked of", "Due", "Variant"], rows.map((row) => el("tr", {}, el("td", {}, row.question), el("td", {}, row.owner || "nobody by name"),
      el("td", {}, isOverdue(row) ? `\u26a0 overdue: ${row.due}` : row.due || "none"), el("td", {}, link("variant", row.variant)))));
  }

  quarantine(rows, hints) { return quarantineTable(rows, hints); }

  stop(rows, hints) { return stopTable(rows, hints); }

  rollout(rows) {
    return table(["Rollout", "Stands", "Waits for"], rows.map((row) => el("tr", {}, el("td", {}, row.name), el("td", {}, row.standing), el("td", {}, row.waits.join("; ")))));
  }
}
