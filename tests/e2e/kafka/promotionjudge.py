"""Judges how revisions were proposed, approved and rolled back, and takes the services' word for nothing.

It is pure. What it compares is the record that the git repository keeps of its refs, the API server's log of
writes, and the rows of the rollout in the order of their partition.

| law | judged by |
| --- | --- |
| a revision is proposed once, and approved once | git, and the API server's log |
| a wave begins when the one before is approved, and a person let it | git |
| no more than so many revisions are on their way back | git |
| no more than so many approvals are in flight, and none is ordered beyond the failing budget | the topic |
| an order is given once per attempt | the topic |
| a lifecycle never goes back, and none comes twice | the watch of the API server |
| no other target gets a revision before each canary has it | the watch |
| what fails is quarantined once, and before anything is undone | the watch |
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from tests.tools.busfile import Row

NOTHING = "0" * 40
PROPOSALS, DRAFTS, TAGS = "refs/heads/proposed/", "refs/heads/drafts/", "refs/tags/"
IN_FLIGHT = ("ordered", "cancelling", "approved")
FAILING = ("failed", "refused")


class RefUpdate(NamedTuple):
    """One line of a post-receive hook. push: the process that received it."""

    push: str
    old: str
    new: str
    ref: str

    @property
    def is_made(self) -> bool:
        return self.old == NOTHING

    @property
    def is_gone(self) -> bool:
        return self.new == NOTHING


class Published(NamedTuple):
    """A proposal that became a tag. at: the number of its line."""

    at: int
    package: str
    workspace: str


class Leave(NamedTuple):
    """A person lets a wave of workspaces pass; `at` lines were there before."""

    at: int
    workspaces: str
    wave: int


class Plan(NamedTuple):
    """waves: the packages of each. in_flight: so many at a time. failing: so many may fail."""

    waves: Sequence[Sequence[str]]
    in_flight: int
    failing: int

    def wave_of(self, package: str) -> int:
        """Return the wave of a package, from 1."""
        return next(number for number, wave in enumerate(self.waves, 1) if package in wave)


def parse(text: str) -> list[RefUpdate]:
    """Return the complete lines of the record."""
    return [RefUpdate(*line.split(" ", 3)) for line in text.split("\n")[:-1]]


def made(updates: Iterable[RefUpdate], prefix: str) -> list[str]:
    """Return the refs below a prefix in the order in which they were made, without the prefix."""
    return [each.ref.removeprefix(prefix) for each in updates if each.is_made and each.ref.startswith(prefix)]


def published(updates: Sequence[RefUpdate]) -> list[Published]:
    """Return what was approved, in the order of time. The push of a tag deletes the proposal, too."""
    found: list[Published] = []
    numbered = list(enumerate(updates))
    for _, lines in groupby(numbered, key=lambda line: line[1].push):
        push = list(lines)
        proposals = {}
        for _, each in push:
            if each.is_gone and each.ref.startswith(PROPOSALS):
                package, _, workspace = each.ref.removeprefix(PROPOSALS).rpartition("/")
                proposals[package] = workspace
        for at, each in push:
            if each.is_made and each.ref.startswith(TAGS):
                package = each.ref.removeprefix(TAGS).rpartition("/")[0]
                found.append(Published(at, package, proposals.get(package, "")))
    return found


def problems_of_git(updates: Sequence[RefUpdate], plan: Plan, leaves: Sequence[Leave]) -> Iterator[str]:
    """Yield what is wrong with the history of a repository."""
    for proposal, count in Counter(made(updates, PROPOSALS)).items():
        if count > 1:
            yield f"{proposal} was proposed {count} times"
    for tag, count in Counter(each.ref for each in updates if each.ref.startswith(TAGS)).items():
        if count > 1:
            yield f"{tag} was written {count} times"
    done = published(updates)
    for (package, workspace), count in Counter((each.package, each.workspace) for each in done).items():
        if not workspace:
            yield f"a revision of {package} was published without a proposal"
        elif count > 1:
            yield f"{package}/{workspace} was approved {count} times"
    yield from _early(done, plan, leaves)
    yield from _too_many_on_their_way(updates, done, plan)


def _early(done: Sequence[Published], plan: Plan, leaves: Sequence[Leave]) -> Iterator[str]:
    attempts: dict[str, list[Published]] = {}
    for each in done:
        attempts.setdefault(_attempt(each.workspace), []).append(each)
    for workspaces, mine in attempts.items():
        for number, each in enumerate(mine):
            wave = plan.wave_of(each.package)
            before = {one.package for one in mine[:number]}
            missing = [package for one in plan.waves[: wave - 1] for package in one if package not in before]
            if missing:
                yield f"{each.package}/{each.workspace} of wave {wave} was published before {missing}"
            for leave in leaves:
                if leave.workspaces == workspaces and each.at < leave.at and wave > leave.wave:
                    yield f"{each.package}/{each.workspace} was published before wave {leave.wave} might pass"


def _attempt(workspace: str) -> str:
    """Return what the workspaces of one attempt have in common: the end of a rollback's is a hash."""
    return workspace.rpartition("-")[0] if workspace.startswith("rollback-") else workspace


def _too_many_on_their_way(
    updates: Sequence[RefUpdate], done: Sequence[Published], plan: Plan
) -> Iterator[str]:
    """Yield each moment at which too many rollbacks have begun and not ended."""
    ended = {each.at: (each.package, each.workspace) for each in done}
    going: set[tuple[str, str]] = set()
    for at, each in enumerate(updates):
        if at in ended:
            going.discard(ended[at])
        package, _, workspace = each.ref.removeprefix(DRAFTS).rpartition("/")
        if each.ref.startswith(DRAFTS) and each.is_made and workspace.startswith("rollback-"):
            going.add((package, workspace))
            if len(going) > plan.in_flight:
                yield f"{len(going)} rollbacks are on their way: {sorted(going)}"


def problems_of_log(
    lines: Iterable[Mapping[str, Any]], repository: str, updates: Sequence[RefUpdate]
) -> Iterator[str]:
    """Yield each revision that was brought to a lifecycle twice, or of which git knows nothing.

    lines: of the API server's log, decoded. A request whose sender was killed may have no line.
    """
    moves = Counter(
        (line["name"], line["lifecycle"])
        for line in lines
        if line.get("event") == "package written" and line.get("lifecycle") in ("Proposed", "Published")
    )
    done = {f"{repository}.{each.package}.{each.workspace}" for each in published(updates)}
    if not moves:
        yield "the log has no change of a lifecycle"
    for (name, lifecycle), count in moves.items():
        if count > 1:
            yield f"{name} became {lifecycle} {count} times"
        if lifecycle == "Published" and name not in done:
            yield f"{name} became Published, and git has no tag of it"


def problems_of_rows(rows: Sequence[Row], policy: str, plan: Plan) -> Iterator[str]:
    """Yield what is wrong at the end of any step. rows: of the rollout's topic, committed ones.

    A transaction ends with a marker, which has an offset and is no record.
    """
    targets: dict[str, Mapping[str, Any]] = {}
    attempt, after = 0, -1
    partitions = {row.partition for row in rows if row.key.partition("|")[0] == policy}
    fresh: list[str] = []
    for row in (row for row in rows if row.partition in partitions):
        if row.offset != after:
            yield from _problems_of_step(targets, attempt, fresh, plan)
            fresh = []
        after = row.offset + 1
        name, _, target = row.key.partition("|")
        if name != policy or row.value is None:
            continue
        if not target:
            attempt = row.value.get("attempt", 0)
            continue
        now = {"state": "planned", **row.value}  # a row has no defaults
        if now["state"] == "ordered" != targets.get(target, {}).get("state"):
            fresh.append(target)
        targets[target] = now
    yield from _problems_of_step(targets, attempt, fresh, plan)


def _problems_of_step(
    targets: Mapping[str, Mapping[str, Any]], attempt: int, fresh: Sequence[str], plan: Plan
) -> Iterator[str]:
    mine = [target for target in targets.values() if target["attempt"] == attempt]
    for states in (IN_FLIGHT, ("undoing",)):
        busy = [each["target"] for each in mine if each["state"] in states]
        if len(busy) > plan.in_flight:
            yield f"attempt {attempt}: {len(busy)} targets are {' or '.join(states)}: {busy}"
    failing = [each["target"] for each in mine if each["state"] in FAILING]
    if fresh and len(failing) > plan.failing:
        yield f"attempt {attempt}: {fresh} were ordered while {failing} fail"


def problems_of_orders(rows: Iterable[Row]) -> Iterator[str]:
    """Yield each order that was written twice for one attempt. rows: of the topic of approvals."""
    orders = Counter(
        (row.key, row.value["attempt"], row.value["order"]) for row in rows if row.value is not None
    )
    for (key, attempt, order), count in orders.items():
        if count > 1:
            yield f"{key}: {order} was ordered {count} times in attempt {attempt}"


LIFECYCLES = ("Draft", "Proposed", "Published")


def histories(events: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, str]]]:
    """Return when each revision got which lifecycle. events: PackageRevisions, as a watch told them."""
    found: dict[str, list[tuple[int, str]]] = {}
    for obj in events:
        history = found.setdefault(obj["metadata"]["name"], [])
        if not history or history[-1][1] != obj["spec"]["lifecycle"]:
            history.append((int(obj["metadata"]["resourceVersion"]), obj["spec"]["lifecycle"]))
    return found


def problems_of_watch(
    revisions: Sequence[Mapping[str, Any]],
    quarantines: Sequence[Mapping[str, Any]],
    *,
    repository: str,
    canaries: Sequence[str],
) -> Iterator[str]:
    """Yield what is wrong with the histories of revisions and quarantines, as a watch told each version of
    them. The API server has one count of versions for all kinds.

    canaries: their packages
    """
    mine = [obj for obj in revisions if obj["spec"]["repository"] == repository]
    mine = [obj for obj in mine if obj["spec"].get("revision", 0) >= 0]  # -1: the branch's
    placed = {
        obj["metadata"]["name"]: (obj["spec"]["packageName"], obj["spec"]["workspaceName"]) for obj in mine
    }
    published: dict[tuple[str, str], int] = {}
    begun: dict[str, int] = {}
    for name, history in histories(mine).items():
        steps = [LIFECYCLES.index(lifecycle) for _, lifecycle in history]
        if steps != sorted(set(steps)):
            yield f"{name} was {', then '.join(lifecycle for _, lifecycle in history)}"
        if history[-1][1] == LIFECYCLES[-1]:
            published[placed[name]] = history[-1][0]
        begun[name] = history[0][0]
    for (package, workspace), at in published.items():
        is_rollback = workspace.startswith("rollback-")
        for canary in () if is_rollback or package in canaries else canaries:
            if published.get((canary, workspace), at) >= at:
                yield f"{package}/{workspace} was published before canary {canary}"
    covered: dict[str, int] = {}
    for obj in quarantines:
        name, version = obj["metadata"]["name"], int(obj["metadata"]["resourceVersion"])
        if covered.setdefault(name, version) != version:
            yield f"quarantine {name} was written again"
    attempts = [name.split("-")[-3] for name in covered]  # POLICY-ATTEMPT-NUMBER-UID
    yield from (f"attempt {each} has {n} quarantines" for each, n in Counter(attempts).items() if n > 1)
    for name, at in begun.items():
        workspace = placed[name][1]
        if workspace.startswith("rollback-"):
            times = [covered[each] for each in covered if each.split("-")[-3] == workspace.split("-")[1]]
            if not times or min(times) > at:
                yield f"{name} was made before anything was quarantined"
