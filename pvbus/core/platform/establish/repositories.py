"""Carvel's PackageRepositories: what one brings is what its namespace can install.

A repository has a folder `packages` with Packages and PackageMetadata. They are written into the repository's
namespace with an annotation that names it, and compared again after the period that the repository says. What
a new content lacks is removed, but for what an install needs: a Package of a version that one has, and all
that an install may need that is not decided yet, or cannot be read. While the content itself cannot be read,
nothing is removed.

What a repository has is what carries its annotation in the cluster; its row says how the last look ended.

Source: kapp-controller, pkg/pkgrepository/{app_template,package_repo_app}.go.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Create, Delete, Effect, Get, KindRef, List, Outcome, Put, Update
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey, digest
from pvbus.core.kernel.markers import SyncView
from pvbus.core.kernel.objects import annotation
from pvbus.core.kernel.packagekinds import CARVEL_INSTALL, CARVEL_REPOSITORY
from pvbus.core.kernel.packagerows import SCOPE, EstablishedRevision, EstablishedRow, ScopedKey, Stage
from pvbus.core.kernel.records import ESTABLISHED
from pvbus.core.platform.establish import objects as forms
from pvbus.core.platform.establish import reporting
from pvbus.core.platform.establish.applying import CONFLICT, RefusedError
from pvbus.core.platform.establish.fetching import fetch_files, render_objects
from pvbus.core.platform.establish.notices import notice_for
from pvbus.core.platform.establish.objects import Object, key_of, kind_of, title
from pvbus.core.platform.establish.outcome import Carried
from pvbus.core.platform.establish.periods import period_of
from pvbus.core.platform.establish.state import InstallData, asked
from pvbus.core.platform.establish.templating import NOT_SUPPORTED, SET_OTHERS, Setting
from pvbus.core.platform.packaging.carvelobjects import GLOBAL_NAMESPACE
from pvbus.core.platform.packaging.reading import install_of
from pvbus.core.platform.packaging.repositorystatus import repository_status
from pvbus.core.platform.packaging.statuses import DELETE_FAILED

REPOSITORY = KindRef("packaging.carvel.dev", "PackageRepository", "v1alpha1")
PACKAGE = KindRef("data.packaging.carvel.dev", "Package", "v1alpha1")
METADATA = KindRef("data.packaging.carvel.dev", "PackageMetadata", "v1alpha1")
BROUGHT_BY = "packaging.carvel.dev/package-repository-ref"
"""On what a repository brings: `<namespace>/<name>` of the repository, as kapp-controller writes it."""
FINALIZER = "pvbus.dev/packages"
"""On a PackageRepository whose Packages we wrote: it goes after them."""
SYNC_SECONDS = 300.0
AGAIN_SECONDS = 60.0
"""After a refusal, and while a Package is held."""
FOLDER = "packages"
HELD = "PackagesHeld"
_SHOWN_MAX = 5
KEYS = f"{SCOPE}|{CARVEL_REPOSITORY}|"
"""How the keys of repositories begin."""
_INSTALL = (REPOSITORY.group, "PackageInstall")
_YTT = {"ytt": {"paths": [FOLDER], "ignoreUnknownComments": True}}
_KBLD = {"kbld": {"paths": ["-", ".imgpkg/images.yml"]}}


class Needs(NamedTuple):
    """What the installs that can use a repository need of it.

    versions: (refName, version) -> the install that has this version
    names: refName -> an install of which no version is decided
    unknown: why it is not known what others need, "" if it is
    """

    versions: Mapping[tuple[str, str], str]
    names: Mapping[str, str]
    unknown: str = ""

    def why_held(self, package: Object) -> str:
        """Return who needs a Package, in words; "" if nobody does."""
        spec = package.get("spec") or {}
        name, version = str(spec.get("refName") or ""), str(spec.get("version") or "")
        install = self.versions.get((name, version)) or self.names.get(name)
        return f"PackageInstall {install} needs it" if install else self.unknown


def _needs_of(table: Mapping[str, InstallData], namespace: str, sync: SyncView) -> Needs:
    """Return what installs need of the repositories of a namespace."""
    are_listed = sync.ok(str(CARVEL_INSTALL), namespace)
    versions: dict[tuple[str, str], str] = {}
    names: dict[str, str] = {}
    unknown = "" if are_listed else "it is not known yet which PackageInstalls there are"
    for key, data in table.items():
        name, row = ObjectKey.parse(ScopedKey.parse(key).rest), data.row
        if (name.group, name.kind) != _INSTALL or namespace not in (GLOBAL_NAMESPACE, name.namespace):
            continue
        shown = f"{name.namespace}/{name.name}"
        if row is not None and row.status != "removed":
            former = data.done.revisions if data.done is not None else ()
            versions |= {(row.package, each.name): shown for each in former}
            versions[row.package, row.version] = shown
        if data.raw is None or (row is not None and row.version):
            continue
        install = install_of(data.object())
        if isinstance(install, Install):
            names[install.package] = shown
        else:
            unknown = unknown or f"PackageInstall {shown} cannot be read, and may need it"
    return Needs(versions, names, unknown)


def observe(table: dict[str, InstallData], key: str, value: bytes | None) -> bool:
    """Apply a repository's object; return whether it is news: our own reports are none."""
    data = table.setdefault(key, InstallData())
    before, data.raw = data.raw, value
    if data.is_empty:
        del table[key]
    if before and value and asked(before) == asked(value):
        return False
    data.look_again()
    return True


def reconcile(
    key: str, table: Mapping[str, InstallData], now: float, sync: SyncView
) -> Generator[Effect, Any, Outcome]:
    """Look at a repository if it is time to; return its row, and write its status.

    table: with all installs. sync: whether all PackageInstalls are in it
    """
    data = table[key]
    name = ObjectKey.parse(ScopedKey.parse(key).rest)
    live: Object | None = yield Get(REPOSITORY, name.namespace, name.name)
    if live is None:
        return Outcome((Put(ESTABLISHED, key, None),), "changed") if data.done is not None else Outcome()
    if data.looked_at and data.looked_at <= now < data.looked_at + data.look_after:
        return Outcome(again_after=data.looked_at + data.look_after - now)
    meta, spec, changes = live["metadata"], live.get("spec") or {}, data.changes
    if spec.get("paused") and not meta.get("deletionTimestamp"):
        yield from reporting.report(
            REPOSITORY, name.namespace, name.name, meta["uid"], repository_status(live, None, now), now,
            is_whole=True,
        )  # fmt: skip
        return Outcome()
    done = yield from _sync(live, _needs_of(table, name.namespace, sync))
    if done.is_over:
        return Outcome((Put(ESTABLISHED, key, None),), "changed") if data.done is not None else Outcome()
    row = EstablishedRow(
        uid=meta["uid"], revisions=done.revisions, is_healthy=done.is_healthy, reason=done.reason,
        message=done.message, stage=done.stage,
    )  # fmt: skip
    yield from reporting.report(
        REPOSITORY, name.namespace, name.name, meta["uid"], repository_status(live, row, now), now,
        is_whole=True,
    )  # fmt: skip
    if changes == data.changes:
        data.looked_at, data.look_after = now, done.again_after or SYNC_SECONDS
    if row == data.done:
        return Outcome(again_after=done.again_after)
    is_warning = not row.is_healthy or row.reason == HELD
    reason = row.reason or "ReconcileSucceeded"
    notice = notice_for(name, REPOSITORY, row.uid, reason, row.message, now, is_warning=is_warning)
    return Outcome((Put(ESTABLISHED, key, row, notice=notice),), "changed", again_after=done.again_after)


def _sync(obj: Object, needs: Needs) -> Generator[Effect, Any, Carried]:
    """Compare the cluster with what a repository brings now, and write. obj: the live repository."""
    spec, meta = obj.get("spec") or {}, obj["metadata"]
    period = period_of(spec.get("syncPeriod"), SYNC_SECONDS)
    try:
        if "deletionTimestamp" in meta:
            return (yield from _remove_all(obj, needs))
        wanted = yield from _content_of(spec.get("fetch") or {}, meta["namespace"])
        live = yield from _list_packages(meta["namespace"])
        due, foreign = _compare(wanted, live, f"{meta['namespace']}/{meta['name']}")
        if foreign:
            raise RefusedError(CONFLICT, f"{_listed(foreign)}: nothing was changed")
        yield from _take_finalizer(obj)
        for item in due:
            yield (
                Create(kind_of(item), item) if "uid" not in item["metadata"] else Update(kind_of(item), item)
            )
        keys = {key_of(item) for item in wanted}
        held = yield from _remove(
            [item for key, item in live.items() if key not in keys and _is_of(item, meta)], needs
        )
    except RefusedError as refusal:
        return _failed(refusal.reason, refusal.message, refusal.stage)
    except PermanentError as error:
        return _failed(error.reason, str(error))
    count = sum(item["kind"] == PACKAGE.kind for item in wanted)
    entry = EstablishedRevision(name=digest(wanted), state="established")
    words = f"{count} Package{'s' if count != 1 else ''}"
    if held:
        message = f"{words}; no longer in it, but held: {_listed(held)}"
        return Carried((entry,), True, reason=HELD, message=message, again_after=min(period, AGAIN_SECONDS))
    return Carried((entry,), True, message=words, again_after=period)


def _failed(reason: str, message: str, stage: Stage = "deploy") -> Carried:
    entry = EstablishedRevision(name="", state="failed", reason=reason, message=message)
    return Carried((entry,), reason=reason, message=message, stage=stage, again_after=AGAIN_SECONDS)


def _content_of(fetch: Mapping[str, Any], namespace: str) -> Generator[Effect, Any, list[Object]]:
    """Return the Packages and PackageMetadata of a repository, in its namespace. Raises RefusedError."""
    sources = {kind: given for kind, given in fetch.items() if given is not None}
    if "pathsFrom" in sources.get("inline", ()):  # no account says whether its writer may read a Secret
        raise RefusedError(NOT_SUPPORTED, f"fetch.inline.pathsFrom is not done here: {SET_OTHERS}", "fetch")
    files = yield from fetch_files(sources, Setting(namespace=namespace))
    if not any(path.startswith(f"{FOLDER}/") for path in files):
        raise _invalid(f"the content has no folder {FOLDER}")
    steps: list[Mapping[str, Any]] = [
        _YTT,
        *([_KBLD] if "imgpkgBundle" in sources and ".imgpkg/images.yml" in files else []),
    ]
    found = yield from render_objects(files, steps, Setting(namespace=namespace))
    wanted = [_placed(item, namespace) for item in found.objects if kind_of(item) in (PACKAGE, METADATA)]
    keys = [key_of(item) for item in wanted]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise _invalid(f"{title(twice[0])} is there twice")
    if not wanted:
        # A mistyped path would remove all that installs could use.
        raise _invalid(f"the folder {FOLDER} has no Package")
    return wanted


def _invalid(text: str) -> RefusedError:
    return RefusedError("InvalidRepository", text, "template")


def _placed(item: Object, namespace: str) -> Object:
    return {**item, "metadata": {**item["metadata"], "namespace": namespace}}


def _list_packages(namespace: str) -> Generator[Effect, Any, dict[str, Object]]:
    """Return what is in a namespace, of whomever, by key."""
    found: dict[str, Object] = {}
    for kind in (PACKAGE, METADATA):
        items: list[Object] = yield List(kind, namespace)
        for item in items:
            whole = {**item, "apiVersion": f"{kind.group}/{kind.version}", "kind": kind.kind}
            found[key_of(whole)] = whole
    return found


def _compare(
    wanted: Iterable[Object], live: Mapping[str, Object], name: str
) -> tuple[list[Object], list[str]]:
    """Return what is to be written, and what others have that differs, in words.

    What another repository brings alike, or what a person has written alike, stays as it is.
    """
    due, foreign = [], []
    for item in wanted:
        given = forms.with_annotations(item, {BROUGHT_BY: name})
        present = live.get(key_of(item))
        if present is None:
            due.append(forms.wanted_object(given, []))
            continue
        owner = annotation(present, BROUGHT_BY)
        if owner == name:
            new = forms.updated_object(present, given, list(present["metadata"].get("ownerReferences") or ()))
            due += [new] if new is not present else []
        elif not forms.contains(present.get("spec"), item.get("spec")):
            whose = f"belongs to PackageRepository {owner}" if owner else "is there, of no repository"
            foreign.append(f"{title(key_of(item))} {whose} and differs")
    return due, foreign


def _is_of(item: Object, meta: Mapping[str, Any]) -> bool:
    return annotation(item, BROUGHT_BY) == f"{meta['namespace']}/{meta['name']}"


def _remove(items: Iterable[Object], needs: Needs) -> Generator[Effect, Any, list[str]]:
    """Delete what nobody needs; return what is held, with the reason."""
    held = []
    for item in items:
        kind, meta = kind_of(item), item["metadata"]
        if why := needs.why_held(item) if kind == PACKAGE else "":
            held.append(f"{title(key_of(item))} ({why})")
        elif not meta.get("deletionTimestamp"):
            version = meta.get("resourceVersion", "")
            yield Delete(kind, meta["namespace"], meta["name"], meta.get("uid", ""), version)
    return held


def _remove_all(obj: Object, needs: Needs) -> Generator[Effect, Any, Carried]:
    """Remove what a repository that is being deleted has brought, then let it go."""
    meta = obj["metadata"]
    if FINALIZER not in (meta.get("finalizers") or ()):
        return Carried(is_over=True)
    live = yield from _list_packages(meta["namespace"])
    held = yield from _remove([item for item in live.values() if _is_of(item, meta)], needs)
    if held:
        message = f"{_listed(held)}: delete these installs first, or take {FINALIZER} off its finalizers"
        return Carried(reason=DELETE_FAILED, message=message, again_after=AGAIN_SECONDS / 6)
    finalizers = [each for each in meta["finalizers"] if each != FINALIZER]
    yield Update(REPOSITORY, {**obj, "metadata": {**meta, "finalizers": finalizers}})
    return Carried(is_over=True)


def _take_finalizer(obj: Object) -> Generator[Effect, Any, None]:
    """Have the repository stay until what it brought is gone."""
    meta = obj["metadata"]
    finalizers = list(meta.get("finalizers") or ())
    if FINALIZER not in finalizers:
        yield Update(REPOSITORY, {**obj, "metadata": {**meta, "finalizers": [*finalizers, FINALIZER]}})


def _listed(texts: list[str]) -> str:
    more = len(texts) - _SHOWN_MAX
    return "; ".join(texts[:_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
