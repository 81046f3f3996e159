// One variant beyond the bus: its revisions, what its draft changes, its conflicts and its events, as the user reads them.
"use strict";

function askDetail(place, name) {
  const before = place.dataset.user;
  place.dataset.user = work.user;
  if (work.user) return askServer(place, `/api/detail?name=${encodeURIComponent(name)}`, (found) => detailNodes(found, name));
  return before === "" ? undefined : place.replaceChildren(el("p", {}, el("button", { type: "button", onclick: () => signIn() }, "Sign in to see its revisions, the draft's diff and its events")));
}

function detailNodes(found, name) {
  const part = (title, ...nodes) => el("section", { "aria-label": title }, el("h3", {}, title), ...nodes);
  for (const side of [found.published, found.upstream]) if (side.content) work.contents.set(side.revision, side.content);
  const place = [part("Revisions", revisionTable(found.revisions))];
  if (found.conflicts.length) place.push(part("Conflicts of the draft", conflictTable(found.conflicts, name)));
  place.push(part("Draft against the published revision", ...changeNodes(found.published, "There is no draft, or nothing published.")));
  place.push(part("Against the upstream", ...changeNodes(found.upstream, "There is no revision to compare.")));
  place.push(part("Events", eventTable(found.events)));
  return place;
}

const seconds = (time) => Date.parse(time || "") / 1000 || 0;
const outside = (href, text) => (/^https:\/\//.test(href) ? el("a", { href, rel: "noopener noreferrer", target: "_blank" }, text) : text);

function revisionTable(revisions) {
  if (!revisions.length) return el("p", {}, "It has no package revision.");
  return scrolled("Revisions", table(["Revision", "Lifecycle", "#Number", "Since", "By", "Why", "Commit", "Files"], revisions.map((each) => {
    const short = each.commit.slice(0, 10);
    return el("tr", {}, el("td", {}, each.name), el("td", {}, each.lifecycle), el("td", { class: "number" }, each.revision > 0 ? String(each.revision) : ""),
      el("td", {}, since(seconds(each.at))), el("td", {}, each.by), el("td", {}, each.why), el("td", {}, each.links ? outside(each.links.commit, short) : short, ...(each.log ? [command(each.log)] : [])),
      el("td", {}, each.links ? outside(each.links.folder, each.ref || "files") : each.ref));
  })));
}

function conflictTable(conflicts, name) {
  const value = (each, side) => (Object.hasOwn(each, side) && each[side] !== null ? JSON.stringify(each[side]) : "nothing");
  return el("div", { class: "wide" }, table(["Where", "It was", "Here", "Upstream", "Settle"], conflicts.map((each) => el("tr", {},
    el("td", {}, [each.file, each.object, each.field].filter(Boolean).join(", ")), ...["old", "local", "upstream"].map((side) => el("td", {}, el("code", {}, value(each, side)))),
    el("td", {}, ...actionsOf(`Settle ${each.field || each.file}`, ["local", "upstream"].map((side) => doing(`Take ${side}`,
      { action: "take-field", name, side, field: each.field || each.object || each.file, file: each.field || each.object ? each.file : "" }))))))));
}

function changeNodes(change, none) {
  if (change.error) return [el("p", {}, change.error)];
  if (!change.newer) return [el("p", {}, none)];
  const words = `${change.newer} against ${change.older}: ${plural(change.files.length + change.more, "file")} differ`;
  return [el("p", {}, words), ...change.files.map(fileNode)];
}

function fileNode(file) {
  const rows = file.fields.map((each) => el("tr", {}, el("td", {}, each.object), el("td", {}, each.field || "the whole object"),
    ...["before", "after"].map((side) => el("td", {}, el("code", {}, each[side] === undefined || each[side] === null ? "nothing" : JSON.stringify(each[side]))))));
  const lines = file.diff.split("\n").map((line) => el("span", { class: line.startsWith("+") ? "ins" : line.startsWith("-") ? "del" : null }, `${line}\n`));
  return el("details", { open: file.fields.length > 0 && file.fields.length < 6 }, el("summary", {}, `${file.file}: ${file.what}${file.fields.length ? `, ${plural(file.fields.length + file.more, "field")}` : ""}`),
    ...(rows.length ? [scrolled(`Fields of ${file.file}`, table(["Object", "Field", "Before", "After"], rows))] : []),
    el("pre", { tabindex: "0" }, ...lines, file.cut ? `and ${file.cut} more characters` : ""));
}

function askHistory(place, kind, name, commands) {  // of a set or a policy: who changed what, when
  if (!work.user) return place.replaceChildren(el("p", {}, el("button", { type: "button", onclick: () => signIn() }, "Sign in to see who changed it, and when")));
  return askServer(place, `/api/history?kind=${kind}&name=${encodeURIComponent(name)}`, ({ revisions }) => [el("section", { "aria-label": `History of ${name}` }, el("h3", {}, "History"),
    scrolled(`Former specs of ${name}`, table(["#Revision", "Since", "By", "Why", "Change"], [...revisions].reverse().map((each) => el("tr", {},
      el("td", { class: "number" }, `${each.revision}${each.isCurrent ? " (current)" : ""}`), el("td", {}, since(seconds(each.when))), el("td", {}, each.who), el("td", {}, each.why),
      el("td", {}, each.changes.join("; ") || "the first that is kept"))))), ...commands.map(commandOf))]);
}

const commandOf = (words) => command(words + ((connection.status && connection.status.hints) || ""));

function eventTable(events) {
  if (events.error) return el("p", {}, events.error);
  if (!events.rows.length) return el("p", {}, "The API server has no events of it.");
  return scrolled("Events", table(["Since", "Type", "Reason", "Message"], events.rows.map((each) => el("tr", {}, el("td", {}, since(seconds(each.at))),
    el("td", {}, each.type), el("td", {}, each.reason), el("td", {}, each.message)))));
}
