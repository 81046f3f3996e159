"""Packages of Crossplane's family that depend on each other, made from their numbers, and their registry.

They are in groups that share nothing. A package needs up to five later ones of its group, and two of a group
need an API kind, which the last one brings. Crossplane's `dependsOn` has no alternatives, so none has `or`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple

import msgspec

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Content, Observation

REGISTRY = "registry.example.org/bench"
GROUP = 20
NEEDS_MAX = 5
OBJECTS = 3
TAG, NEXT_TAG = "v1.0.0", "v1.1.0"
"""Only what users install has the second one: the versions of the others are chosen."""
API_USERS = (3, 7)
"""Of a group: who needs its API kind."""
META = "meta.pkg.crossplane.io/v1"


def source(number: int) -> str:
    return f"{REGISTRY}/p{number:05}"


def number_of(name: str) -> int:
    return int(name.rpartition("/p")[2])


@cache
def needs(number: int, count: int) -> tuple[int, ...]:
    """Return the packages that a package needs. count: of all."""
    last = min(count, (number // GROUP + 1) * GROUP) - 1
    later = range(number + 1, last)  # the last one is found by its API kind
    rng = Random(number)
    return tuple(sorted(rng.sample(later, min(len(later), rng.randint(0, NEEDS_MAX)))))


def roots(count: int) -> list[int]:
    """Return the packages that no other one needs by name: users install these, and so all come."""
    needed = {other for number in range(count) for other in needs(number, count)}
    return [number for number in range(count) if number not in needed]


def provider_of(number: int, count: int) -> int:
    """Return the package that brings the API kind of a package's group."""
    return min(count, (number // GROUP + 1) * GROUP) - 1


def _definition(number: int) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    group = f"p{number}.example.org"
    names = {"kind": "Thing", "plural": "things", "singular": "thing", "listKind": "ThingList"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {"group": group, "names": names, "scope": "Cluster", "versions": [version]},
    }


def _objects(number: int, tag: str, count: int) -> Iterator[dict[str, Any]]:
    is_provider = provider_of(number, count) == number
    if is_provider:
        yield _definition(number)
    for index in range(OBJECTS - is_provider):
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"p{number:05}-{index}", "namespace": "default"},
            "data": {"version": tag},
        }


def _manifest(number: int, count: int) -> dict[str, Any]:
    depends: list[dict[str, Any]] = [
        {"configuration": source(other), "version": ">=v1.0.0"} for other in needs(number, count)
    ]
    provider = provider_of(number, count)
    if number % GROUP in API_USERS and provider > number:
        depends.append({"crd": {"apiVersion": f"p{provider}.example.org/v1", "kind": "Thing"}})
    metadata = {"name": f"p{number:05}"}
    return {"apiVersion": META, "kind": "Configuration", "metadata": metadata, "spec": {"dependsOn": depends}}


def content(number: int, tag: str, count: int) -> Content:
    documents = [_manifest(number, count), *_objects(number, tag, count)]
    data = b"\n---\n".join(map(msgspec.json.encode, documents))
    return Content(f"sha256:{hashlib.sha256(data).hexdigest()}", {"package.yaml": data})


def install(number: int) -> dict[str, Any]:
    """Return the install of a package as a user writes it: with a tag, whose content is followed."""
    return {
        "apiVersion": "pkg.crossplane.io/v1",
        "kind": "Configuration",
        "metadata": {"name": f"p{number:05}"},
        "spec": {"package": f"{source(number)}:{TAG}"},
    }


class Registry:
    """Implements `pvbus.ports.sources.Sources` for the packages below a count."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._roots = frozenset(roots(count))

    async def observe(self, source: str, tags: Sequence[str], secrets: Sequence[str]) -> Observation:
        number = self._number(source)
        known = (TAG, NEXT_TAG) if number in self._roots else (TAG,)
        digests = {tag: content(number, tag, self._count).digest for tag in tags if tag in known}
        return Observation(known, digests)

    async def pull(self, source: str, digest: str, secrets: Sequence[str]) -> Content:
        for tag in (TAG, NEXT_TAG):
            found = content(self._number(source), tag, self._count)
            if found.digest == digest:
                return found
        raise PermanentError("there is no such content", reason="NotFound")

    async def close(self) -> None:
        return

    def _number(self, source: str) -> int:
        if not source.startswith(f"{REGISTRY}/p") or number_of(source) >= self._count:
            raise PermanentError("there is no such repository", reason="NotFound")
        return number_of(source)


class OneByOne(NamedTuple):
    """passes: reconciliations of the lock. looked_at: packages in it, of all passes together. writes: of
    installs and of the lock."""

    passes: int
    looked_at: int
    writes: int


def one_by_one(count: int) -> OneByOne:
    """Install in Crossplane's order, from its rule alone: no program of Crossplane's runs here.

    Every revision adds itself to the one lock, a write. A pass over the whole lock creates the first
    dependency that is missing, and ends. A pass that misses nothing ends it.
    """
    locked = dict.fromkeys(roots(count))
    passes, looked_at, writes = 0, 0, len(locked)
    pending = list(locked)
    while pending:
        number = pending.pop(0)
        for missing in (other for other in needs(number, count) if other not in locked):
            passes, looked_at, writes = passes + 1, looked_at + len(locked), writes + 2
            locked[missing] = None
            pending.append(missing)
    return OneByOne(passes + 1, looked_at + len(locked), writes)
