"""Compares what Crossplane and kapp-controller have installed with what pvbus decides.

Pure: objects and decided rows in, one `Comparison` for each install out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pvbus.adapters.manifests import kind_of
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import okey
from pvbus.core.kernel.packagekinds import CARVEL_REPOSITORY, CROSSPLANE_GROUP, IMAGE_CONFIG, INSTALLS
from pvbus.core.kernel.packagerows import PARENT_LABEL, LockRow
from pvbus.core.platform.packaging.imageconfigs import image_config_of
from pvbus.core.platform.packaging.reading import install_of, okey_of, split_reference
from pvbus.core.platform.resolve.plans import shown
from pvbus.ports.cluster import Kind, Object

LOCK = Kind(CROSSPLANE_GROUP, "Lock")
APP = Kind("kappctrl.k14s.io", "App")
BESIDE = (LOCK, APP)
"""Kinds of both projects that say what is installed, or that change how."""
DIGEST_CHARACTERS = 12
"""Of a digest, at the end of the name of a revision. Source: Crossplane, internal/xpkg, FriendlyID."""

Verdict = Literal["equal", "other", "missing", "refused", "undecided", "unsupported"]


class Unsupported(NamedTuple):
    """What the installer pvbus does not do.

    object: of which object, as kubectl names it
    field: the field, or the kind of the object
    message: what becomes of it
    """

    object: str
    field: str
    message: str


class Comparison(NamedTuple):
    """What is installed for an install, and what pvbus decides.

    okey: of the install
    package: its package
    installed: the version, or digest, that is installed; "" if none is
    decided: that pvbus decides, "" if none
    verdict: `equal`; `other`: another version or content; `missing`: pvbus would create the install;
        `refused`; `undecided`: it waits for a source or a user; `unsupported`: equal, and not installable
    why: why it is not equal, in words
    """

    okey: str
    package: str
    installed: str
    decided: str
    verdict: Verdict
    why: str = ""


class _Installed(NamedTuple):
    """What is installed. content: the first characters of the digest's hex part, "" if unknown."""

    version: str = ""
    content: str = ""


def comparisons(
    objects: Sequence[Object], rows: Mapping[str, LockRow], unsupported: Iterable[Unsupported] = ()
) -> list[Comparison]:
    """Return a comparison for each install that exists, or that pvbus would create.

    rows: okey -> the decided row
    unsupported: what counts as a difference of an install that is equal otherwise
    """
    there = {okey_of(each): each for each in objects if kind_of(each) in INSTALLS}
    installed = installed_versions(objects)
    gaps: dict[str, list[str]] = {}
    for each in unsupported:
        gaps.setdefault(each.object, []).append(f"{each.field}: {each.message}")
    found = []
    for key, obj in there.items():
        if not (obj.get("metadata") or {}).get("deletionTimestamp"):
            gap = "; ".join(gaps.get(shown(key), ()))
            found.append(_compared(key, obj, rows.get(key), installed.get(key, _Installed()), rows, gap))
    for key, row in rows.items():
        if key not in there and row.status != "removed":
            why = "; ".join(_needs(key, rows)) or "others need it"
            found.append(Comparison(key, row.package, "", row.version or row.digest, "missing", why))
    return sorted(found, key=lambda each: each.okey)


def _compared(
    key: str, obj: Object, row: LockRow | None, installed: _Installed, rows: Mapping[str, LockRow], gap: str
) -> Comparison:
    spec = obj.get("spec") or {}
    package = row.package if row else str(spec.get("package") or "")
    decided = (row.version or row.digest) if row else ""
    verdict: Verdict
    if row is None or (row.status == "waiting" or (row.status == "locked" and not decided)):
        verdict, why = "undecided", row.message if row else "it is not decided on"
    elif row.status in ("refused", "broken"):
        verdict, why = "refused", row.message or row.reason
    elif installed.version not in (row.version, row.digest):
        verdict, why = "other", _reasons(key, obj, row, rows)
    elif row.digest and installed.content not in ("", row.digest.rpartition(":")[2][:DIGEST_CHARACTERS]):
        verdict, why = "other", f"{row.version} names another content now: {row.digest}"
    else:
        verdict, why = ("unsupported", gap) if gap else ("equal", "")
    shown_version = installed.version or (f"...{installed.content}" if installed.content else "")
    return Comparison(key, package, shown_version, "" if verdict == "refused" else decided, verdict, why)


def _reasons(key: str, obj: Object, row: LockRow, rows: Mapping[str, LockRow]) -> str:
    """Return why an install gets the version of its row: its spec, then what others need."""
    install = install_of(obj)
    own = _asked(install) if isinstance(install, Install) else ""
    return "; ".join(filter(None, (own, row.message, *_needs(key, rows))))


def _asked(install: Install) -> str:
    if pin := install.tag or install.digest:
        return f"spec.package asks for {pin}"
    if install.range:
        return f"the highest that is possible of {install.range}"
    return "the highest that is possible"


def _needs(key: str, rows: Mapping[str, LockRow]) -> Iterator[str]:
    """Yield what others need of an install."""
    for holder, row in sorted(rows.items()):
        for each in row.dependencies:
            if each.install == key:
                yield f"{shown(holder)} needs {each.range or each.offer or each.package}"


# ---------------------------------------------------------------- what is installed


def installed_versions(objects: Sequence[Object]) -> dict[str, _Installed]:
    """Return okey -> what is installed for an install: by its status, its active revision, or the Lock."""
    locked = {each["name"]: each for lock in objects if kind_of(lock) == LOCK for each in _packages(lock)}
    active = {_parent(each): each for each in objects if _is_active(each)}
    found = {}
    for obj in objects:
        key = okey_of(obj)
        if kind_of(obj) not in INSTALLS:
            continue
        status = obj.get("status") or {}
        if kind_of(obj).group != CROSSPLANE_GROUP:
            found[key] = _Installed(str(status.get("version") or ""))
        else:
            found[key] = _crossplane_version(status, active.get(key), locked)
    return found


def _crossplane_version(
    status: Mapping[str, Any], revision: Object | None, locked: Mapping[str, Mapping[str, Any]]
) -> _Installed:
    name = str(status.get("currentRevision") or "")
    image = str(status.get("currentIdentifier") or "")
    if revision is not None:
        name = revision["metadata"]["name"]
        image = str((revision.get("spec") or {}).get("image") or image)
    _, tag, digest = split_reference(image)
    version = tag or digest or str(locked.get(name, {}).get("version") or "")
    return _Installed(version, _content(name))


def _content(revision: str) -> str:
    """Return the part of a digest that the name of a revision ends with, "" if it has none."""
    last = revision.rpartition("-")[2]
    is_hex = len(last) == DIGEST_CHARACTERS and not set(last) - set("0123456789abcdef")
    return last if is_hex else ""


def _is_active(obj: Object) -> bool:
    kind = kind_of(obj)
    is_revision = kind.group == CROSSPLANE_GROUP and kind.kind.endswith("Revision")
    return is_revision and (obj.get("spec") or {}).get("desiredState") == "Active"


def _parent(revision: Object) -> str:
    meta = revision["metadata"]
    names = [each["name"] for each in meta.get("ownerReferences") or () if each.get("controller")]
    name = names[0] if names else (meta.get("labels") or {}).get(PARENT_LABEL, "")
    return okey(CROSSPLANE_GROUP, kind_of(revision).kind.removesuffix("Revision"), "", str(name))


def _packages(lock: Object) -> list[Mapping[str, Any]]:
    return [each for each in lock.get("packages") or () if isinstance(each, Mapping) and each.get("name")]


# ---------------------------------------------------------------- what belongs to no install


def unsupported_beside(objects: Iterable[Object]) -> Iterator[Unsupported]:
    """Yield the objects of both projects that the installer pvbus does not read."""
    for obj in objects:
        kind, name, meta = kind_of(obj), shown(_key(obj)), obj["metadata"]
        if kind == IMAGE_CONFIG and image_config_of(obj).is_verifying:
            yield Unsupported(name, kind.kind, "no signatures are verified: its images are refused")
        elif kind == CARVEL_REPOSITORY and "http" in (obj.get("spec") or {}).get("fetch", {}):
            yield Unsupported(name, "fetch.http", "is not fetched: Packages stay as they are in the cluster")
        elif kind == APP and not meta.get("ownerReferences"):
            yield Unsupported(name, kind.kind, "is not installed")


def _key(obj: Object) -> str:
    kind, meta = kind_of(obj), obj["metadata"]
    return okey(kind.group, kind.kind, str(meta.get("namespace") or ""), meta["name"])
