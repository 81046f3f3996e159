"""The final state of an installation in a form that two installations can be compared in.

What is left out is what two runs of the same job differ in by their nature, and nothing else:

- `uid`s; where a text has one, in a label or an owner reference too, the object's kind and name stand for it;
- `resourceVersion`s, and `managedFields`, which have times;
- times: `creationTimestamp`, `lastTransitionTime`, `publishTimestamp`, `time`;
- commit ids, wherever they stand;
- of an event on `pvbus.conditions.latest`, which tells of the last transition, what depends on how many of
  them somebody saw who was dead for a while: the `id`, made of the ids of all events before it, `previous`,
  `observedGeneration`, the `cause`, which is what the object was then, and the message where it only counts
  (`AllApplied`);
- the folder of the repositories, which each run has elsewhere.

Of the objects themselves generations, conditions with their reasons and messages, workspaces and tasks stay,
and every file of every draft.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pygit2

from pvbus.cli.reading import open_existing_bus, read_rows
from pvbus.core.kernel.records import LATEST
from pvbus.examples import fleet as example
from tests.e2e.faults.fleet import CLUSTER, REPOSITORY, REVISION, SET, VARIANT, Fleet

LEFT_OUT = frozenset(
    {
        "uid",
        "resourceVersion",
        "managedFields",
        "creationTimestamp",
        "lastTransitionTime",
        "publishTimestamp",
    }
)
LEFT_OUT_OF_EVENTS = LEFT_OUT | {"id", "previous", "observedGeneration", "cause", "time"}
COUNTING = "AllApplied"
COMMIT = re.compile(r"\b[0-9a-f]{40}\b")

State = dict[str, Any]
"""Anything comparable by what it is and its name, as `PackageVariant web-edge-asia-asia-01-web`."""


async def final_state(fleet: Fleet, data: str, bus: str) -> State:
    """Read the whole outcome. data, bus: as the commands of pvbus take them."""
    objects = {kind: await fleet.items(kind) for kind in (CLUSTER, REPOSITORY, SET, VARIANT, REVISION)}
    uids = {
        obj["metadata"]["uid"]: f"{kind.kind} {obj['metadata']['name']}"
        for kind, found in objects.items()
        for obj in found
    }
    replaced = {**{uid: f"<uid of {name}>" for uid, name in uids.items()}, str(fleet.folder): "<folder>"}
    state: State = {
        f"{kind.kind} {obj['metadata']['name']}": _cleaned(obj, LEFT_OUT, replaced)
        for kind in (SET, VARIANT, REVISION)
        for obj in objects[kind]
    }
    for region in example.REGIONS:
        state |= _trees(fleet.folder / f"edge-{region}.git", replaced)
    async with open_existing_bus(data, bus) as opened:
        for key, value in (await read_rows(opened, LATEST)).items():
            event = msgspec.json.decode(value)
            if event["condition"]["reason"] == COUNTING:
                del event["condition"]["message"]
            state[f"latest {key}"] = _cleaned(event, LEFT_OUT_OF_EVENTS, replaced)
    return state


def _trees(remote: Path, replaced: Mapping[str, str]) -> State:
    """Every file of every branch."""
    repository = pygit2.Repository(str(remote))
    found = {}
    for branch in repository.branches.local:
        tree = repository.branches.local[branch].peel(pygit2.Tree)
        found[f"git {remote.stem} {branch}"] = dict(_files(repository, tree, "", replaced))
    return found


def _files(repository: Any, tree: Any, folder: str, replaced: Mapping[str, str]) -> Any:
    for entry in tree:
        if isinstance(entry, pygit2.Tree):
            yield from _files(repository, entry, f"{folder}{entry.name}/", replaced)
        else:
            yield f"{folder}{entry.name}", _text(entry.data.decode(), replaced)


def _cleaned(value: Any, left_out: frozenset[str], replaced: Mapping[str, str]) -> Any:
    match value:
        case dict():
            return {
                _text(name, replaced): _cleaned(each, left_out, replaced)
                for name, each in value.items()
                if name not in left_out
            }
        case list():
            return [_cleaned(each, left_out, replaced) for each in value]
        case str():
            return _text(value, replaced)
    return value


def _text(text: str, replaced: Mapping[str, str]) -> str:
    for old, new in replaced.items():
        text = text.replace(old, new)
    return COMMIT.sub("<commit>", text)


def differences(one: State, other: State) -> list[str]:
    """Say where two states differ, a line for each thing."""
    problems = [f"only in the first: {name}" for name in sorted(one.keys() - other.keys())]
    problems += [f"only in the second: {name}" for name in sorted(other.keys() - one.keys())]
    for name in sorted(one.keys() & other.keys()):
        if one[name] != other[name]:
            problems.append(f"{name}:\n  {_json(one[name])}\n  {_json(other[name])}")
    return problems


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
