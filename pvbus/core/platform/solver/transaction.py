"""What has to be done for a solution: the actions in order, and the installs that are created."""

from collections.abc import Mapping
from typing import Literal

from pvbus.core.platform.solver.closure import Catalog, Location, node_of
from pvbus.core.platform.solver.connected import strongly_connected
from pvbus.core.platform.solver.model import (
    Chosen,
    Installed,
    Model,
    PackageNeed,
    Problem,
    Resolution,
    flattened,
)

Doing = Literal["install", "upgrade", "downgrade", "replace", "keep", "hold", "orphan", "delete"]
Strategy = Literal["direct", "closure"]


class Action(Model, frozen=True, kw_only=True):
    """What is done with one package.

    before, after: the versions before and after, "" for none
    step: actions of one step may run at once, after those of lower steps
    action: `replace` puts in another version of equal precedence; `hold` does nothing, because a quarantined
        wish rests on the package; `orphan` leaves the package, though nobody needs it
    """

    action: Doing
    target: str
    package: str
    before: str = ""
    after: str = ""
    step: int = 0


class Creation(Model, frozen=True, kw_only=True):
    """An install that is created, and whose: its owner is the first that needs it."""

    target: str
    package: str
    version: str
    owner: tuple[str, str]


def actions_of(problem: Problem, resolution: Resolution) -> tuple[Action, ...]:
    """Return the actions of a solution: what is installed or stays, then what is not chosen.

    A package comes in a later step than what it needs; packages that need each other share a step. Deletions
    come last, each in a step of its own, what needs others before what is needed.
    """
    catalog = Catalog(problem)
    chosen = {(each.target, each.package): each for each in resolution.chosen}
    edges = {location: needed_by(each) for location, each in chosen.items()}
    steps: dict[Location, int] = {}
    actions = []
    for group in strongly_connected(edges):
        step = max(
            (steps[other] + 1 for location in group for other in edges[location] if other in steps), default=0
        )
        steps.update(dict.fromkeys(group, step))
    for location in sorted(chosen, key=lambda location: (steps[location], location)):
        actions.append(_change(catalog, location, chosen[location], steps[location]))
    last = max(steps.values(), default=-1) + 1
    actions += _leftover(catalog, resolution, last)
    return tuple(actions)


def needed_by(chosen: Chosen) -> list[Location]:
    """Return target and provider of each dependency that a choice has met."""
    return sorted({(edge.target, edge.provider) for edge in chosen.edges if edge.status == "met"})


def _change(catalog: Catalog, location: Location, chosen: Chosen, step: int) -> Action:
    installed = catalog.installed.get(location)
    before = installed.version if installed else ""
    made: Doing = "install" if not before else "keep" if before == chosen.version else "replace"
    if made == "replace":
        language = catalog.language_of(location[1])
        old, new = catalog.version(language, before), catalog.version(language, chosen.version)
        if old is not None and new is not None and old.key != new.key:
            made = "upgrade" if old.key < new.key else "downgrade"
    return Action(
        action=made, target=location[0], package=location[1], before=before, after=chosen.version, step=step
    )


def _leftover(catalog: Catalog, resolution: Resolution, step: int) -> list[Action]:
    """Return what happens to installed packages that are not chosen: those of quarantined wishes are held."""
    chosen = {(each.target, each.package) for each in resolution.chosen}
    left = {location: each for location, each in catalog.installed.items() if location not in chosen}
    held = _held(catalog, resolution, left)
    edges = {
        location: [p for p in _installed_needs(catalog, left[location]) if p in left] for location in left
    }
    actions = []
    for group in reversed(strongly_connected(edges)):
        for location in group:
            made: Doing = "hold" if location in held else catalog.policy.unneeded
            after = "" if made == "delete" else left[location].version
            actions.append(
                Action(
                    action=made,
                    target=location[0],
                    package=location[1],
                    before=left[location].version,
                    after=after,
                    step=step,
                )
            )
            step += made == "delete"
    return actions


def _held(catalog: Catalog, resolution: Resolution, left: Mapping[Location, Installed]) -> set[Location]:
    """Return what quarantined wishes rest on: their installed packages, and all that these need."""
    pending = [
        node_of(each.wish) for each in resolution.outcomes if each.status in ("quarantined", "undecided")
    ]
    found: set[Location] = set()
    while pending:
        location = pending.pop()
        installed = catalog.installed.get(location)
        if location in found or installed is None:
            continue
        found.add(location)
        pending += _installed_needs(catalog, installed)
    return found & left.keys()


def _installed_needs(catalog: Catalog, installed: Installed) -> list[Location]:
    """Return the packages that an installed version may rest on, in order."""
    location = (installed.target, installed.package)
    found: set[Location] = set()
    for candidate in catalog.candidates(location):
        if candidate.version != installed.version:
            continue
        for requirement in candidate.requirements:
            for leaf in flattened(requirement.need):
                if isinstance(leaf, PackageNeed):
                    found.add((location[0] if leaf.target is None else leaf.target, leaf.package))
                elif not hasattr(leaf, "platform"):
                    found.update((location[0], package) for package in catalog.providers(leaf.offer))
    return sorted(found)


def creations_of(
    problem: Problem,
    resolution: Resolution,
    strategy: Strategy = "direct",
    strategies: Mapping[Location, Strategy] = {},
) -> tuple[tuple[Creation, ...], ...]:
    """Return the installs that come into being, in rounds.

    What exists, or was created for another install, is not created again. What is there, and nobody wants
    for itself, creates what it needs, too.

    strategy: which installs create others
        `direct`: each install creates what it needs itself, so that the closure arises round by round
        `closure`: each install of a user creates all of its closure at once
    strategies: location -> the strategy of a single install, instead of `strategy`
    """
    chosen = {(each.target, each.package): each for each in resolution.chosen}
    existing = {(each.target, each.package) for each in problem.installed}
    owners = sorted(node_of(each.wish) for each in resolution.outcomes if node_of(each.wish) in chosen)
    owners += sorted(existing & chosen.keys() - set(owners))
    existing.update(owners)
    rounds = []
    while owners:
        made = []
        for owner in dict.fromkeys(owners):
            is_whole = strategies.get(owner, strategy) == "closure"
            reached = _closure(chosen, owner) if is_whole else needed_by(chosen[owner])
            for location in reached:
                if location not in existing:
                    existing.add(location)
                    each = chosen[location]
                    made.append(
                        Creation(target=location[0], package=location[1], version=each.version, owner=owner)
                    )
        if made:
            rounds.append(tuple(made))
        owners = [
            (each.target, each.package) for each in made if strategies.get(each.owner, strategy) == "direct"
        ]
    return tuple(rounds)


def _closure(chosen: Mapping[Location, Chosen], location: Location) -> list[Location]:
    found: list[Location] = []
    pending = needed_by(chosen[location])
    while pending:
        other = pending.pop(0)
        if other not in found and other != location:
            found.append(other)
            pending += needed_by(chosen[other])
    return found
