"""The second day of the example fleet, step by step: what a person types, and what is true afterwards.

The commands are run as they are printed; every figure is read from the API server.
"""

import re
from collections import Counter
from collections.abc import Iterable

from pvbus.cli.demos.story import Fleet, Step, condition, counted, first_published, is_settled
from pvbus.cli.live import REVISION
from pvbus.cli.progress import SET, VARIANT
from pvbus.core.kernel.conflicts import CONFLICTS
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.variants.revisions.owning import lifecycle_of

LOCAL, CONFLICTING, RETIRED = "asia-01", "europe-01", "africa-01"
IMAGE = "spec.template.spec.containers[name=web].image"


def steps(options: str, example: str, work: str) -> Iterable[Step]:
    """Return the steps of the day.

    options: the options for pvbus
    example: the folder of the fleet's repositories
    work: a folder for its clone
    """
    return *_upgrade(options, f"{example}/blueprints.git", work), *_accidents(options)


def _upgrade(options: str, blueprints: str, work: str) -> Iterable[Step]:
    edit = "kubectl get packagerevisionresources {} -o yaml \\\n  | sed '{}' | kubectl replace -f -"
    conflicting = f"default/web-edge-europe-{CONFLICTING}-web"
    move = "pvbus {} --set default/web{}{}"
    commit = f"git -C {work} -c user.name=me -c user.email=me@example.dev commit"
    return (
        Step(
            "Two people edit the drafts of their clusters.",
            edit.format(_name(LOCAL, 1), "s/pathType: Prefix/pathType: Exact/")
            + "\n"
            + edit.format(_name(CONFLICTING, 1), "s/web:1.0.0/web:1.0.1/"),
            _await_edited,
        ),
        Step(
            "The fleet goes live: every draft is proposed and approved.",
            move.format("propose", options, "") + "\n" + move.format("approve", options, " --yes"),
            _await_published,
        ),
        Step(
            "The blueprint publishes its second revision, with another image.",
            f"git clone --quiet {blueprints} {work}\n"
            f"sed -i 's/web:1.0.0/web:2.0.0/' {work}/web/deployment.yaml\n"
            f"{commit} --quiet --all --message 'Web 2'\n"
            f"git -C {work} tag web/v2\n"
            f"git -C {work} push --quiet origin HEAD:main web/v2\n"
            "kubectl wait packagerevision/blueprints.web.v2 --for=create --timeout=60s",
            _await_released,
        ),
        Step(
            "The set moves to it: one line for the whole fleet.",
            'kubectl patch packagevariantset web --type merge -p \'{"spec":{"upstream":{"revision":2}}}\'',
            _await_upgraded,
        ),
        Step(
            "One edit changes the same line as upstream.",
            f"pvbus diff {conflicting}{options}",
            _in_conflict,
        ),
        Step(
            "Asia goes first.",
            move.format("propose", options, " -l region=asia")
            + "\n"
            + move.format("approve", options, " -l region=asia --yes"),
            _asia_published,
        ),
        Step(
            "Europe is proposed; the draft in conflict is refused until a person has settled it.",
            move.format("propose", options, " -l region=europe"),
            _europe_proposed,
            codes=(1,),
        ),
        Step(
            "The cluster keeps its own image, and is proposed, too.",
            f"pvbus diff {conflicting} --take local '{IMAGE}'{options}\n"
            + move.format("propose", options, " -l region=europe"),
            _await_settled,
        ),
    )


def _accidents(options: str) -> Iterable[Step]:
    label = "kubectl label clusters.fleet.example.dev {} stage={} --overwrite"
    return (
        Step(
            "A cluster is retired.",
            label.format(RETIRED, "retired"),
            _await_retired,
        ),
        Step(
            "It was the wrong one: it comes back, and takes up its package.",
            label.format(RETIRED, "production"),
            _back,
        ),
        Step(
            "A slip of the selector: all of Africa is retired.",
            label.format("-l region=africa,stage=production", "retired"),
            _await_guarded,
        ),
        Step(
            "Look at what is held, and undo it.",
            f"pvbus confirm default/web --show{options} | tail -n 1\n"
            + label.format("-l region=africa,stage=retired", "production"),
            _undone,
        ),
    )


def _name(cluster: str, number: int) -> str:
    return f"edge-{cluster.partition('-')[0]}.{cluster}-web.packagevariant-{number}"


def _line(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return f"`{found[0].strip()}`" if found else "nothing of it"


async def _await_edited(fleet: Fleet) -> str:
    path = _line(await fleet.text(_name(LOCAL, 1), "service.yaml"), r"pathType: \w+")
    image = _line(await fleet.text(_name(CONFLICTING, 1), "deployment.yaml"), r"image: \S+")
    return f"{LOCAL} has {path}, {CONFLICTING} has {image}, only in their drafts"


async def _await_published(fleet: Fleet) -> str:
    seconds = await first_published(fleet)
    return f"{await fleet.size()} packages are published in git, {seconds:.0f} s after the first was proposed"


async def _await_released(fleet: Fleet) -> str:
    second = await fleet.get(REVISION, "blueprints.web.v2") or {}
    following = Counter(str(obj["spec"]["upstream"].get("revision")) for obj in await fleet.all(VARIANT))
    shown = ", ".join(f"{count} variants follow revision {number}" for number, count in following.items())
    return f"blueprints.web.v2 is {lifecycle_of(second)}; {shown}: nothing moves by itself"


async def _await_upgraded(fleet: Fleet) -> str:
    size = await fleet.size()

    async def is_drafted() -> bool:
        drafts = await fleet.revisions(2)
        rendered = sum(condition(obj, "Rendered") == "True" for obj in drafts)
        return rendered == size and await is_settled(fleet)

    seconds = await fleet.until(is_drafted, "not every variant has a rendered upgrade draft")
    path = _line(await fleet.text(_name(LOCAL, 2), "service.yaml"), r"pathType: \w+")
    image = _line(await fleet.text(_name(LOCAL, 2), "deployment.yaml"), r"image: \S+")
    drafts = len(await fleet.revisions(2))
    return f"{drafts} upgrade drafts after {seconds:.0f} s; that of {LOCAL} has {image} and keeps {path}"


async def _in_conflict(fleet: Fleet) -> str:
    found = [
        obj["metadata"]["name"] for obj in await fleet.revisions(2) if annotations_of(obj).get(CONFLICTS)
    ]
    return f"{len(found)} of {len(await fleet.revisions(2))} drafts in conflict: {', '.join(found)}"


async def _asia_published(fleet: Fleet) -> str:
    async def is_published() -> bool:
        return all(lifecycle_of(obj) == "Published" for obj in await fleet.revisions(2, "asia"))

    seconds = await fleet.until(is_published, "not all of asia is published")
    counts = Counter(lifecycle_of(obj) for obj in await fleet.revisions(2))
    return f"second revisions: {counted(counts)}, {seconds:.0f} s after the first was proposed"


async def _europe_proposed(fleet: Fleet) -> str:
    counts = Counter(lifecycle_of(obj) for obj in await fleet.revisions(2, "europe"))
    return f"second revisions of europe: {counted(counts)}"


async def _await_settled(fleet: Fleet) -> str:
    name = _name(CONFLICTING, 2)
    image = _line(await fleet.text(name, "deployment.yaml"), r"image: \S+")
    state = lifecycle_of(await fleet.get(REVISION, name) or {})
    return f"{name} is {state} with {image}; {await _europe_proposed(fleet)}"


async def _await_retired(fleet: Fleet) -> str:
    variant = f"web-edge-africa-{RETIRED}-web"

    async def is_gone() -> bool:
        first = await fleet.get(REVISION, _name(RETIRED, 1))
        is_proposed = first is not None and lifecycle_of(first) == "DeletionProposed"
        return is_proposed and await fleet.get(VARIANT, variant) is None

    seconds = await fleet.until(is_gone, f"{variant} is still there")
    draft = await fleet.get(REVISION, _name(RETIRED, 2))
    left = "still there" if draft else "gone"
    return (
        f"{variant} is gone after {seconds:.0f} s, its draft is {left}; its published package is "
        f"DeletionProposed, for a person to approve; {await fleet.size()} variants are left"
    )


async def _back(fleet: Fleet) -> str:
    async def back() -> bool:
        first = await fleet.get(REVISION, _name(RETIRED, 1))
        second = await fleet.get(REVISION, _name(RETIRED, 2))
        return first is not None and lifecycle_of(first) == "Published" and second is not None

    seconds = await fleet.until(back, f"the package of {RETIRED} is not back")
    await fleet.until(lambda: is_settled(fleet), "not every variant is ready")
    states = [f"{_name(RETIRED, number)} is {await _lifecycle(fleet, number)}" for number in (1, 2)]
    return f"{' and '.join(states)} after {seconds:.0f} s; {await fleet.size()} variants"


async def _lifecycle(fleet: Fleet, number: int) -> str:
    return lifecycle_of(await fleet.get(REVISION, _name(RETIRED, number)) or {})


async def _hold(fleet: Fleet) -> str:
    """Return the set's message about the deletions that it holds, "" if it holds none."""
    conditions = ((await fleet.get(SET, "web") or {}).get("status") or {}).get("conditions") or ()
    held = (c["message"] for c in conditions if c["type"] == "DeletionHeld" and c["status"] == "True")
    return next(held, "")


async def _await_guarded(fleet: Fleet) -> str:
    async def is_listed() -> bool:
        return "pvbus confirm" in await _hold(fleet)

    seconds = await fleet.until(is_listed, "the set holds no deletions")
    going = [obj for obj in await fleet.all(VARIANT) if obj["metadata"].get("deletionTimestamp")]
    return (
        f"after {seconds:.0f} s the set says: {await _hold(fleet)}\n"
        f"     {await fleet.size()} variants are there, {len(going)} being deleted"
    )


async def _undone(fleet: Fleet) -> str:
    async def undone() -> bool:
        return not await _hold(fleet) and await is_settled(fleet)

    await fleet.until(undone, "the set still holds deletions")
    found = [*await fleet.revisions(1), *await fleet.revisions(2)]
    counts = Counter(lifecycle_of(obj) for obj in found)
    return f"nothing was deleted: {await fleet.size()} variants, {counted(counts)}"
