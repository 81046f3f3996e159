"""Keeps the former specs of an object as ControllerRevisions, as Kubernetes does for its own workloads.

The service conditions keeps those of sets, and rollout those of RolloutPolicies. Each spec that is seen
becomes one object with the next number, also a spec that comes back. Its name is made of the owner's uid, the
number and the spec, so a second process cannot write it twice. The object owns its revisions, which go with
it. The newest REVISIONS_MAX stay.

The history is a help for people: where it cannot be written, the service does its work none the less, and
`pvbus history` says that nothing is kept. Nothing is written for a spec that is the newest one already, so a
restart only reads.
"""

import hashlib
from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.effects import Create, Delete, Effect, Get, KindRef, List
from pvbus.core.kernel.keys import SET_UID_LABEL
from pvbus.core.kernel.objects import annotation, timestamp

Object = dict[str, Any]
REVISION = KindRef("apps", "ControllerRevision", "v1")
SET = KindRef(CONFIG_GROUP, "PackageVariantSet", "v1alpha2")
POLICY = KindRef(PROMOTION_GROUP, "RolloutPolicy", "v1alpha1")
UID_LABELS: Mapping[str, str] = {SET.kind: SET_UID_LABEL, POLICY.kind: "promotion.pvbus.dev/rolloutpolicy"}
"""The label of a revision that has the uid of its owner, by the owner's kind."""
REVISIONS_MAX = 10
"""As Deployments have it: a spec may have some 100 kB, and a person goes back one step or two."""
RETRY_SECONDS = 60.0
"""Until the next attempt where a write was refused: longer, and the rights that a person grants seem to be
none; shorter, and the API server's log fills with refusals."""
CHANGED_BY = "pvbus.dev/changed-by"
CHANGED_AT = "pvbus.dev/changed-at"
CHANGE_CAUSE = "kubernetes.io/change-cause"
"""kubectl's own annotation: on an object the reason of its latest change, on a revision that of its spec."""
OWNER_CHARACTERS_MAX = 200
"""Of a name, which has at most 253 characters."""
DIGEST_CHARACTERS = 10
_sorted = msgspec.json.Encoder(order="sorted")


class Author(NamedTuple):
    """Who wrote a spec, and when.

    manager: the program that managedFields name, "" if they name none
    at: the time, "" if none is known
    """

    manager: str = ""
    at: str = ""


class SpecRetention:
    """Has the spec of each object of a kind kept once per generation."""

    def __init__(self, kind: KindRef) -> None:
        self._kind = kind
        self._retained: dict[str, tuple[str, int]] = {}
        self._again_at: dict[str, float] = {}

    def retain(
        self, key: str, uid: str, generation: int, raw: bytes, now: float
    ) -> Generator[Effect, Any, float | None]:
        """Keep a spec if it is new; return the seconds until the next attempt, None if it is kept."""
        if self._retained.get(key) == (uid, generation):
            return None
        wait = self._again_at.get(key, now) - now
        if 0 < wait <= RETRY_SECONDS:  # a longer one is that of a clock that was set back since
            return wait
        try:
            yield from retain_spec(self._kind, msgspec.json.decode(raw), now)
        except (PermanentError, TransientError, ConflictError):
            self._again_at[key] = now + RETRY_SECONDS
            return RETRY_SECONDS
        self._retained[key] = (uid, generation)
        self._again_at.pop(key, None)
        return None

    def forget(self, key: str) -> None:
        """Forget an object that is gone."""
        self._retained.pop(key, None)
        self._again_at.pop(key, None)


def retain_spec(kind: KindRef, owner: Object, now: float) -> Generator[Effect, Any, None]:
    """Create the revision of a spec unless it is the newest one, and delete those that are too many."""
    meta, spec = owner["metadata"], owner.get("spec") or {}
    listing = yield List(REVISION, meta["namespace"], selector_of(kind.kind, meta["uid"]))
    retained = revisions_of(listing, meta["uid"])
    if not retained or spec_of(retained[-1]) != spec:
        live = yield Get(kind, meta["namespace"], meta["name"])
        author = author_of(live) if _is_same(live, owner) else Author()
        retained.append(
            (yield Create(REVISION, revision_body(kind, owner, next_number(retained), author, now)))
        )
    for old in retained[:-REVISIONS_MAX]:
        yield Delete(REVISION, meta["namespace"], old["metadata"]["name"], uid=old["metadata"]["uid"])


def selector_of(kind: str, uid: str) -> str:
    """Return the label selector of the revisions of an object."""
    return f"{UID_LABELS[kind]}={uid}"


def revisions_of(objects: Iterable[Object], uid: str) -> list[Object]:
    """Return the revisions that an object owns, oldest first: anybody may write its label on another."""
    owned = (
        obj
        for obj in objects
        if any(owner.get("uid") == uid for owner in obj["metadata"].get("ownerReferences") or ())
    )
    return sorted(owned, key=lambda obj: (int(obj.get("revision") or 0), str(obj["metadata"]["name"])))


def next_number(retained: list[Object]) -> int:
    """Return the number of the next revision."""
    return int(retained[-1].get("revision") or 0) + 1 if retained else 1


def spec_of(revision: Object) -> dict[str, Any]:
    """Return the spec that a revision keeps."""
    spec: dict[str, Any] = (revision.get("data") or {}).get("spec") or {}
    return spec


def author_of(owner: Object | None) -> Author:
    """Return who wrote the spec of a live object last, by its managedFields."""
    entries = ((owner or {}).get("metadata") or {}).get("managedFields") or ()
    writes = [entry for entry in entries if _has_spec(entry)]
    if not writes:
        return Author()
    last = max(writes, key=lambda entry: str(entry.get("time") or ""))
    return Author(str(last.get("manager") or ""), str(last.get("time") or ""))


def _has_spec(entry: Mapping[str, Any]) -> bool:
    return not entry.get("subresource") and "f:spec" in (entry.get("fieldsV1") or {})


def _is_same(live: Object | None, owner: Object) -> bool:
    """Return whether a live object has the spec that was observed: a later one has another author."""
    return live is not None and live.get("spec") == owner.get("spec")


def revision_body(kind: KindRef, owner: Object, number: int, author: Author, now: float) -> Object:
    """Return the revision of an object's spec."""
    meta = owner["metadata"]
    notes = {
        CHANGED_BY: author.manager,
        CHANGED_AT: author.at or timestamp(now),
        CHANGE_CAUSE: annotation(owner, CHANGE_CAUSE),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": REVISION.kind,
        "metadata": {
            "namespace": meta["namespace"],
            "name": revision_name(owner, number),
            "labels": {UID_LABELS[kind.kind]: meta["uid"]},
            "annotations": {name: text for name, text in notes.items() if text},
            "ownerReferences": [
                {
                    "apiVersion": f"{kind.group}/{kind.version}",
                    "kind": kind.kind,
                    "name": meta["name"],
                    "uid": meta["uid"],
                    "controller": True,
                }
            ],
        },
        "revision": number,
        "data": {"spec": owner.get("spec") or {}},
    }


def revision_name(owner: Object, number: int) -> str:
    """Return the name of a revision: readable, and another one for every owner, number and spec."""
    meta = owner["metadata"]
    digest = hashlib.sha256(_sorted.encode([meta["uid"], number, owner.get("spec") or {}])).hexdigest()
    head = str(meta["name"])[:OWNER_CHARACTERS_MAX].rstrip("-.")
    return f"{head}-{number}-{digest[:DIGEST_CHARACTERS]}"
