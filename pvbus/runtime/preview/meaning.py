"""What an object means to a plan: its content without what only servers set.

The state of an object in a plan and the state on a live server have equal digests if the same happened to it.
Left out are what a server numbers (uid, resourceVersion, times), status, what stands for a commit in a
preview, and what promotion and the package server note on a revision beside its lifecycle. Absent, null and
empty fields are equal, as for an API server.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from pvbus.controlplane.packages.layout import CAUSE, DRAFT, KPTFILE, LATEST_LABEL
from pvbus.controlplane.packages.shown import DEFER_RENDER
from pvbus.core.kernel.keys import (
    KEPT_FOR,
    PLANNED_BY,
    PROPOSED_CONTENT,
    RETURNED,
    SET_UID_LABEL,
    SIGNED_PLAN,
)
from pvbus.core.variants.revisions.former import MADE_BY
from pvbus.ports.cluster import Object

ABSENT = ""
"""The digest of an object that does not exist."""
DIGEST_BYTES = 16
SERVERS = {
    "PackageRevision": frozenset({"packageMetadata", "readinessGates", "tasks"}),
    "PackageRevisionResources": frozenset({"packageName", "repository", "workspaceName", "revision"}),
}
"""Fields of the spec that a package server fills in, from the package's files or from its git."""
UNNAMED_LABELS = frozenset({SET_UID_LABEL, LATEST_LABEL})
UNNAMED_ANNOTATIONS = frozenset({PLANNED_BY, SIGNED_PLAN, CAUSE, DEFER_RENDER, PROPOSED_CONTENT, RETURNED})
_COMMIT = re.compile(r"^(\s+commit:).*$", re.MULTILINE)
_encoder = msgspec.json.Encoder(order="sorted")


def digest_of_object(obj: Object | None) -> str:
    """Return the digest of what an object means, ABSENT for None."""
    if obj is None:
        return ABSENT
    return blake2b(_encoder.encode(meaning_of(obj)), digest_size=DIGEST_BYTES).hexdigest()


def before_promotion(obj: Object) -> Object:
    """Return a package revision as the draft that it was before it was proposed and published."""
    return {**obj, "spec": {**obj["spec"], "lifecycle": DRAFT, "revision": 0}}


def meaning_of(obj: Object) -> dict[str, Any]:
    """Return an object without what only servers set."""
    spec = obj.get("spec")
    if obj["kind"] == "PackageRevisionResources":
        return {"files": _files(spec or {})}
    meta = obj["metadata"]
    left_out = SERVERS.get(obj["kind"], frozenset())
    rest = {k: v for k, v in obj.items() if k not in ("apiVersion", "metadata", "status", "spec")}
    annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k not in UNNAMED_ANNOTATIONS}
    for key in annotations.keys() & {MADE_BY, KEPT_FOR}:
        annotations[key] = str(annotations[key]).partition("@")[0]  # the rest is a uid
    found = {
        **rest,
        "spec": {k: v for k, v in spec.items() if k not in left_out} if isinstance(spec, dict) else spec,
        "labels": {k: v for k, v in (meta.get("labels") or {}).items() if k not in UNNAMED_LABELS},
        "annotations": annotations,
        "owners": [[o.get("kind"), o.get("name")] for o in meta.get("ownerReferences") or ()],
        "finalizers": meta.get("finalizers"),
        "isTerminating": bool(meta.get("deletionTimestamp")),
    }
    plain: dict[str, Any] = _without_empty(found)
    return plain


def _files(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a package's files; the commit in the Kptfile's lock is that of a preview, or of git."""
    files = spec.get("resources") or {}
    kptfile = files.get(KPTFILE)
    if not isinstance(kptfile, str):
        return dict(files)
    return {**files, KPTFILE: _COMMIT.sub(r"\1", kptfile)}


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        items = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item not in (None, {}, [], "", 0, False)}
    if isinstance(value, list | tuple):
        return [_without_empty(item) for item in value]
    return value
