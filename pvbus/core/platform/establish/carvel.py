"""A small installer for Carvel's PackageInstalls, for a cluster without kapp-controller.

It writes the objects of a package in the name of the install's ServiceAccount, so the API server decides what
an install may do. All objects are checked before one is written. What an update does not have any more is
deleted; what was there before its package is left there at the end. Before the first write the row and an
annotation of the install say which objects are the install's, so that they are deleted with it even after a
crash, or the loss of the bus.
"""

from collections.abc import Collection, Generator, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.errors import FORBIDDEN, PermanentError
from pvbus.core.kernel.effects import Delete, Effect, KindRef, Update
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.objects import annotation, annotations_of
from pvbus.core.kernel.packagerows import EstablishedRevision, EstablishedRow, LockRow
from pvbus.core.platform.establish import applying
from pvbus.core.platform.establish import objects as forms
from pvbus.core.platform.establish.applying import Item, NotYetError, RefusedError
from pvbus.core.platform.establish.changerules import (
    Change,
    Order,
    ignored_annotations,
    is_orphaned,
    order_of,
)
from pvbus.core.platform.establish.fetching import fetch_content
from pvbus.core.platform.establish.objects import ADOPTED, CONTENT, Object, key_of, kind_of, title
from pvbus.core.platform.establish.outcome import Carried
from pvbus.core.platform.establish.owners import controller_of
from pvbus.core.platform.establish.periods import period_of
from pvbus.core.platform.establish.readiness import awaited_state
from pvbus.core.platform.establish.templating import (
    EXTENSIONS,
    NOT_SUPPORTED,
    OVERLAYS,
    VALUES_AS_OVERLAYS,
    setting_of,
)
from pvbus.core.platform.packaging.statuses import DELETE_FAILED, DELETING

INSTALLED_BY = "pvbus.dev/installed-by"
"""On an object of a package: `<namespace>/<name>` of its PackageInstall."""
NOTED = "pvbus.dev/objects"
"""On a PackageInstall: the objects that it has, or is about to get, as a JSON list of okeys."""
NOTED_CHARACTERS_MAX = 200_000
"""Of 256 KiB that the annotations of an object may have."""
FINALIZER = "pvbus.dev/installed-objects"
"""On a PackageInstall whose objects we wrote: it goes after them."""
KAPP_LABEL = "kapp.k14s.io/app"
"""kapp's mark on an object: which app it belongs to. Source: kapp, pkg/kapp/app/labeled_app.go."""
_APP_NAMES = ("{}.app.apps.k14s.io", "{}.app", "{}-ctrl.apps.k14s.io", "{}-ctrl")
"""Of the ConfigMap in which kapp keeps what it knows of an install, the newest form first.
Source: kapp-controller, pkg/deploy/kapp.go; kapp, pkg/kapp/app/recorded_app.go."""
_CONFIG_MAP = KindRef("", "ConfigMap", "v1")
PACKAGE = KindRef("data.packaging.carvel.dev", "Package", "v1alpha1")
INSTALL = KindRef("packaging.carvel.dev", "PackageInstall", "v1alpha1")
_NAMESPACE = KindRef("", "Namespace", "v1")
AT_ONCE_SECONDS = 0.01
SOON_SECONDS = 1.0
REFUSED_SECONDS = 60.0
DELETE_AGAIN_SECONDS = 20.0
"""Nobody watches the rights of accounts, nor namespaces: one that is deleted later is held for so long."""
LOOK_SECONDS = 600.0


def user_of(install: Install) -> str:
    """Return the user in whose name an install's objects are written."""
    return f"system:serviceaccount:{ObjectKey.parse(install.okey).namespace}:{install.service_account}"


def unsupported(obj: Mapping[str, Any]) -> str:
    """Return what of an install's object would make another installation, in words; "" if nothing."""
    if (obj.get("spec") or {}).get("cluster"):
        return "spec.cluster has no effect here: it would be installed in this cluster"
    changing = sorted(name for name in annotations_of(obj) if _is_unsupported(name))
    return f"the annotation {changing[0]} has no effect here" if changing else ""


def _is_unsupported(annotation_name: str) -> bool:
    is_done = annotation_name == VALUES_AS_OVERLAYS or f"{annotation_name}.".startswith(f"{OVERLAYS}.")
    return annotation_name.startswith(EXTENSIONS) and not is_done


def reconcile_install(
    install: Install, obj: Object, row: LockRow, before: EstablishedRow, package: Object | None
) -> Generator[Effect, Any, Carried]:
    """Carry out the lock's row of a PackageInstall.

    obj: the install's object
    before: what establish did so far for this install
    package: the Carvel Package of the locked version, None if there is none
    """
    former = before.revisions[-1] if before.revisions else EstablishedRevision(name=row.version)
    try:
        if package is None:
            raise RefusedError("PackageNotFound", f"there is no Package {install.package}.{row.version}")
        if not install.service_account:
            raise RefusedError(
                "NoServiceAccount", "spec.serviceAccountName is missing: nothing is written without"
            )
        if refused := unsupported(obj):
            text = f"{refused}; remove it, or set PVBUS_INSTALLER to others"
            raise RefusedError(NOT_SUPPORTED, text)
        return (yield from _install(install, obj, row, former, package))
    except RefusedError as refusal:
        ended = _ended(row, former, "failed", refusal.reason, refusal.message)
        return ended._replace(again_after=REFUSED_SECONDS, stage=refusal.stage)
    except NotYetError as leaving:
        found = _ended(row, former, "pending", "Pending", str(leaving))
        return found._replace(waiting=(str(leaving),), again_after=SOON_SECONDS)


def _install(
    install: Install, obj: Object, row: LockRow, former: EstablishedRevision, package: Object
) -> Generator[Effect, Any, Carried]:
    name, user = ObjectKey.parse(install.okey), user_of(install)
    content = yield from fetch_content(package, setting_of(obj, user))
    where = str((obj.get("spec") or {}).get("defaultNamespace") or name.namespace)
    placed = yield from applying.with_namespaces(forms.in_order(content.objects), where)
    keys = tuple(map(key_of, placed))
    gaps = (*content.gaps, *ignored_annotations(placed))
    items = yield from _compare(placed, name, user)
    outdated = [key for key in former.objects if key not in keys]
    order = yield from _change_order(placed, outdated, name, user)
    yield from _check(items, user)
    if not set(keys) <= set(former.objects):
        union = tuple(dict.fromkeys((*former.objects, *keys)))
        entry = EstablishedRevision(name=row.version, state="pending", objects=union)
        return Carried((entry,), reason="Reconciling", again_after=AT_ONCE_SECONDS)
    yield from _note_objects(obj, tuple(dict.fromkeys((*former.objects, *keys))))
    yield from _carry_out(order, items, name, user)
    entry = EstablishedRevision(name=row.version, state="established", objects=keys)
    period = period_of((obj.get("spec") or {}).get("syncPeriod"), LOOK_SECONDS)
    return Carried((entry,), True, message="; ".join(gaps), again_after=period)


def _change_order(
    placed: Iterable[Object], outdated: Iterable[str], name: ObjectKey, user: str
) -> Generator[Effect, Any, Order]:
    """Return the order of writes and deletions: as rules say, else writes first. Raises RefusedError."""
    changes = [Change(key_of(obj), obj) for obj in placed]
    for key in sorted(outdated, key=lambda key: _removal_rank(ObjectKey.parse(key))):
        try:
            live = yield from _read_installed(key, name, user)
        except PermanentError:  # its deletion is refused, too, and that is reported
            live = None
        changes.append(Change(key, live or {}, is_deleted=True))
    return order_of(changes)


def _read_installed(text: str, name: ObjectKey, user: str) -> Generator[Effect, Any, Object | None]:
    """Read an object; None if it is gone, or is not the install's any more."""
    key = ObjectKey.parse(text)
    live = yield from applying.read(KindRef(key.group, key.kind), key.namespace, key.name, user)
    is_own = live is not None and annotation(live, INSTALLED_BY) == f"{name.namespace}/{name.name}"
    return live if is_own else None


def _carry_out(
    order: Order, items: Iterable[Item], name: ObjectKey, user: str
) -> Generator[Effect, Any, None]:
    """Write and delete what is due, stage by stage. Raises NotYetError while one waits for another.

    Nothing is remembered between passes: each one goes on with what is still due.
    """
    due = {key_of(item.wanted): item for item in items if item.is_due}
    for stage in order.stages:
        for change in stage:
            is_due = bool(change.obj) if change.is_deleted else change.key in due
            if is_due and (awaited := (yield from _find_awaited(change, order, name, user))):
                raise NotYetError(f"{title(change.key)} waits for {awaited}")
        if not stage[0].is_deleted:
            yield from applying.write([due[key] for key, *_ in stage if key in due], as_user=user)
            continue
        left = yield from _delete([change.key for change in stage], name, user)
        if left.refusals:
            raise RefusedError(left.reason, f"{_listed(left.refusals)}: the new version does not have it")


def _find_awaited(change: Change, order: Order, name: ObjectKey, user: str) -> Generator[Effect, Any, str]:
    """Return what has to happen before a change by the rules, "" if nothing. Raises RefusedError."""
    if not (needs := order.needs.get(change.key)):
        return ""
    deleted = {each.key for stage in order.stages for each in stage if each.is_deleted}
    for key in needs:
        live = yield from _read_installed(key, name, user)
        if key in deleted:
            state = "gone" if live is not None else ""
        else:
            state = awaited_state(live) if live is not None else "written"
        if state:
            return f"{title(key)} to be {state}"
    return ""


def _check(items: list[Item], user: str) -> Generator[Effect, Any, None]:
    try:
        yield from applying.check(items, as_user=user)
    except PermanentError as error:
        raise RefusedError(error.reason, str(error)) from error


def _compare(placed: Iterable[Object], name: ObjectKey, user: str) -> Generator[Effect, Any, list[Item]]:
    """Read what is there, and return what is to be written. Raises RefusedError for what others have."""
    items, foreign = [], []
    app: str | None = None
    for given in placed:
        kind, meta = kind_of(given), given["metadata"]
        wanted = forms.with_annotations(given, {INSTALLED_BY: f"{name.namespace}/{name.name}"})
        try:
            live = yield from applying.read(kind, meta.get("namespace", ""), meta["name"], user)
        except PermanentError as error:
            raise RefusedError(error.reason, f"{title(key_of(given))}: {error}") from error
        if app is None and live is not None and app_of(live):
            app = yield from _read_own_app(name, user)
        if live is None:
            items.append(Item(kind, wanted, None, forms.wanted_object(wanted, [])))
        elif stranger := _stranger_of(live, name, app or ""):
            foreign.append(f"{title(key_of(given))} belongs to {stranger}")
        elif live["metadata"].get("deletionTimestamp"):
            raise NotYetError(f"{title(key_of(given))} is being deleted")
        else:
            is_own = bool(annotation(live, INSTALLED_BY) or (app and app_of(live) == app))
            is_adopted = bool(annotation(live, ADOPTED)) or not is_own
            references = list(live["metadata"].get("ownerReferences") or ())
            new = forms.updated_object(live, wanted, references, is_adopted=is_adopted)
            items.append(Item(kind, wanted, live, new))
    if foreign:
        raise RefusedError(applying.CONFLICT, f"{'; '.join(foreign[:5])}: nothing was changed")
    return items


def app_of(live: Mapping[str, Any]) -> str:
    """Return kapp's mark on an object, "" without one."""
    return str((live["metadata"].get("labels") or {}).get(KAPP_LABEL) or "")


def _read_own_app(name: ObjectKey, user: str) -> Generator[Effect, Any, str]:
    """Return kapp's mark on what kapp-controller has installed for an install, "" for nothing."""
    for form in _APP_NAMES:
        try:
            found = yield from applying.read(_CONFIG_MAP, name.namespace, form.format(name.name), user)
            spec = msgspec.json.decode(((found or {}).get("data") or {}).get("spec") or "{}")
        except (PermanentError, msgspec.MsgspecError):
            continue
        if isinstance(spec, dict) and spec.get("labelKey") == KAPP_LABEL and spec.get("labelValue"):
            return str(spec["labelValue"])
    return ""


def _stranger_of(live: Mapping[str, Any], name: ObjectKey, own_app: str) -> str:
    """Return whom else an object belongs to, "" if it is this install's or nobody's.

    own_app: kapp's mark on what kapp-controller has installed for this install, "" for nothing
    """
    holder = annotation(live, INSTALLED_BY)
    if holder:
        return "" if holder == f"{name.namespace}/{name.name}" else f"PackageInstall {holder}"
    if app := app_of(live):
        return "" if app == own_app else f"kapp's app {app}"
    found = controller_of(live)
    return f"{found.get('kind')} {found.get('name')}" if found is not None else ""


def noted(obj: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the objects that an install says it has; () if it says nothing that can be read.

    A person may have changed it: what another install has is left alone all the same.
    """
    try:
        found = msgspec.json.decode(annotation(obj, NOTED) or "[]", type=tuple[str, ...])
    except msgspec.MsgspecError:
        return ()
    return tuple(each for each in found if each.count("|") == 2)


def _note_objects(obj: Object, keys: tuple[str, ...]) -> Generator[Effect, Any, None]:
    """Note on the install what it is about to have, and have it stay until that is gone."""
    meta = obj["metadata"]
    finalizers = list(meta.get("finalizers") or ())
    text = msgspec.json.encode(keys).decode()
    is_known = set(keys) <= set(noted(obj)) or len(text) > NOTED_CHARACTERS_MAX
    if FINALIZER in finalizers and is_known:
        return
    new = {**obj, "metadata": {**meta, "finalizers": list(dict.fromkeys((*finalizers, FINALIZER)))}}
    yield Update(INSTALL, new if is_known else forms.with_annotations(new, {NOTED: text}))


class _Left(NamedTuple):
    """What a deletion could not remove yet.

    waiting: the objects that are not gone yet, each with what holds it
    refusals: why other objects cannot be deleted, one sentence each
    reason: one word for the first refusal, "" without refusals
    """

    waiting: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    reason: str = ""


def _delete(keys: Iterable[str], name: ObjectKey, user: str) -> Generator[Effect, Any, _Left]:
    """Delete objects of an install in this order; return what is left of them.

    One that was there before the install stays, as does one that is not the install's any more. A refusal
    does not hold up the others.
    """
    waiting, refusals, reason = [], [], ""
    for key in keys:
        try:
            holds = yield from _object_deleted(key, name, user)
        except PermanentError as error:
            refusals.append(f"{title(key)}: {error}")
            reason = reason or error.reason
            continue
        if holds is not None:
            waiting.append(f"{title(key)}{f' ({holds})' if holds else ''}")
    return _Left(tuple(waiting), tuple(refusals), reason)


def _delete_in_order(keys: Iterable[str], name: ObjectKey, user: str) -> Generator[Effect, Any, _Left]:
    """Delete all objects of an install: as rules say, else the last written first. Raises RefusedError."""
    order = yield from _change_order((), keys, name, user)
    waiting: list[str] = []
    refusals: list[str] = []
    reason = ""
    for stage in order.stages:
        free = []
        for change in stage:
            if awaited := (yield from _find_awaited(change, order, name, user)):
                waiting.append(f"{title(change.key)} (waits for {awaited})")
            else:
                free.append(change.key)
        left = yield from _delete(free, name, user)
        waiting += left.waiting
        refusals += left.refusals
        reason = reason or left.reason
    return _Left(tuple(waiting), tuple(refusals), reason)


def _object_deleted(text: str, name: ObjectKey, user: str) -> Generator[Effect, Any, str | None]:
    """Delete an object of an install; return which finalizers hold it, None if it is gone or stays."""
    live = yield from _read_installed(text, name, user)
    if live is None:
        return None
    key, meta = ObjectKey.parse(text), live["metadata"]
    kind = KindRef(key.group, key.kind)
    if annotation(live, ADOPTED) or is_orphaned(live):
        left = forms.with_annotations(live, {INSTALLED_BY: None, ADOPTED: None, CONTENT: None})
        yield Update(kind, left, as_user=user)
        return None
    if not meta.get("deletionTimestamp"):
        uid, version = meta.get("uid", ""), meta.get("resourceVersion", "")
        yield Delete(kind, key.namespace, key.name, uid, version, as_user=user)
    finalizers = ", ".join(meta.get("finalizers") or ())
    return finalizers if finalizers or meta.get("deletionTimestamp") else None


def _removal_rank(key: ObjectKey) -> int:
    version = f"{key.group}/v1" if key.group else "v1"
    return -forms.rank({"apiVersion": version, "kind": key.kind})


def is_holding(live: Object) -> bool:
    """Return whether an install is being deleted and waits for the end of what it has."""
    meta = live["metadata"]
    return FINALIZER in (meta.get("finalizers") or ()) and bool(meta.get("deletionTimestamp"))


def without_finalizer(live: Object) -> Object:
    """Return an install as it is once others install it: it does not wait for us when it is deleted."""
    meta = live["metadata"]
    finalizers = [each for each in meta.get("finalizers") or () if each != FINALIZER]
    if meta.get("deletionTimestamp") or len(finalizers) == len(meta.get("finalizers") or ()):
        return live
    return forms.with_annotations({**live, "metadata": {**meta, "finalizers": finalizers}}, {NOTED: None})


def remove_install(key: ObjectKey, live: Object, before: EstablishedRow) -> Generator[Effect, Any, Carried]:
    """Delete what an install that is being deleted has, then let it go. live: its object.

    In a namespace that is being deleted, too, it goes whatever is left: it would hold the namespace for ever,
    as the account and its rights go before it.
    """
    spec = live.get("spec") or {}
    keys = dict.fromkeys((*(each for one in before.revisions for each in one.objects), *noted(live)))
    if keys and not spec.get("noopDelete"):
        unfinished = yield from _delete_objects(keys, key, spec.get("serviceAccountName") or "")
        if unfinished is not None and not (yield from _is_namespace_going(key.namespace)):
            return unfinished._replace(revisions=before.revisions)
    meta = live["metadata"]
    finalizers = [each for each in meta["finalizers"] if each != FINALIZER]
    yield Update(INSTALL, {**live, "metadata": {**meta, "finalizers": finalizers}})
    return Carried(is_over=True)


def _delete_objects(
    keys: Iterable[str], name: ObjectKey, account: str
) -> Generator[Effect, Any, Carried | None]:
    """Delete the objects of an install; return the outcome while that is not done, None once it is."""
    if not account:
        message = f"spec.serviceAccountName is missing: nothing is deleted without: set it, or {_WAY_OUT}"
        return Carried(reason=DELETE_FAILED, message=message, again_after=DELETE_AGAIN_SECONDS)
    user = f"system:serviceaccount:{name.namespace}:{account}"
    try:
        left = yield from _delete_in_order(keys, name, user)
    except RefusedError as refusal:
        message = f"{refusal.message}; or {_WAY_OUT}"
        return Carried(reason=DELETE_FAILED, message=message, again_after=DELETE_AGAIN_SECONDS)
    if left.refusals:
        remedy = "give the account these rights, or " if left.reason == FORBIDDEN else ""
        message = f"{user} cannot delete {_listed(left.refusals)}: {remedy}{_WAY_OUT}"
        return Carried(reason=DELETE_FAILED, message=message, again_after=DELETE_AGAIN_SECONDS)
    if left.waiting:
        waiting = f"its objects to be gone: {_listed(left.waiting)}"
        return Carried(
            reason=DELETING, message=f"waits for {waiting}", waiting=(waiting,), again_after=SOON_SECONDS
        )
    return None


_WAY_OUT = "set spec.noopDelete to true, and the install goes without its objects"
_LISTED_MAX = 5
"""Objects that a message names: the same right is missing for most of them."""


def _listed(texts: Collection[str]) -> str:
    more = len(texts) - _LISTED_MAX
    return "; ".join(list(texts)[:_LISTED_MAX]) + (f"; and {more} more" if more > 0 else "")


def _is_namespace_going(name: str) -> Generator[Effect, Any, bool]:
    """Return whether a namespace is being deleted; not if we may not read it, as that right is new."""
    try:
        namespace = yield from applying.read(_NAMESPACE, "", name)
    except PermanentError as error:
        if error.reason != FORBIDDEN:
            raise
        return False
    return namespace is not None and bool(namespace["metadata"].get("deletionTimestamp"))


def _ended(row: LockRow, former: EstablishedRevision, state: Any, reason: str, message: str) -> Carried:
    """Return an outcome that leaves the objects as they are."""
    entry = EstablishedRevision(
        name=row.version or former.name, state=state, objects=former.objects, reason=reason, message=message
    )
    return Carried((entry,), False, reason=reason, message=message)
