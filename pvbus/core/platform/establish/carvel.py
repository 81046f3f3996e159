"""A small installer for Carvel's PackageInstalls, for a cluster without kapp-controller.

It writes the objects of a package in the name of the install's ServiceAccount, so the API server decides what
an install may do. All objects are checked before one is written. What an update does not have any more is
deleted; what was there before its package is left there at the end. Before the first write the row and an
annotation of the install say which objects are the install's, so that they are deleted with it even after a
crash, or the loss of the bus.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any

import msgspec

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Delete, Effect, Get, KindRef, Update
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagerows import EstablishedRevision, EstablishedRow, LockRow
from pvbus.core.platform.establish import applying
from pvbus.core.platform.establish import objects as forms
from pvbus.core.platform.establish.applying import Item, NotYetError, RefusedError
from pvbus.core.platform.establish.fetching import brought
from pvbus.core.platform.establish.objects import ADOPTED, CONTENT, Object, annotation, key_of, kind_of, title
from pvbus.core.platform.establish.outcome import Carried
from pvbus.core.platform.establish.owners import controller_of

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
PACKAGE = KindRef("data.packaging.carvel.dev", "Package", "v1alpha1")
INSTALL = KindRef("packaging.carvel.dev", "PackageInstall", "v1alpha1")
AT_ONCE_SECONDS = 0.01
SOON_SECONDS = 1.0
REFUSED_SECONDS = 60.0
LOOK_SECONDS = 600.0


def user_of(install: Install) -> str:
    """Return the user in whose name an install's objects are written."""
    return f"system:serviceaccount:{ObjectKey.parse(install.okey).namespace}:{install.service_account}"


def carried(
    install: Install, obj: Object, row: LockRow, before: EstablishedRow, package: Object | None
) -> Generator[Effect, Any, Carried]:
    """Carry a row out. obj: the install's object. package: the Carvel Package of the locked version."""
    former = before.revisions[-1] if before.revisions else EstablishedRevision(name=row.version)
    try:
        if package is None:
            raise RefusedError("PackageNotFound", f"there is no Package {install.package}.{row.version}")
        if not install.service_account:
            raise RefusedError(
                "NoServiceAccount", "spec.serviceAccountName is missing: nothing is written without"
            )
        if (obj.get("spec") or {}).get("values"):
            raise RefusedError("NotSupported", "spec.values has no effect here: templates are not rendered")
        return (yield from _installed(install, obj, row, former, package))
    except RefusedError as refusal:
        return _ended(row, former, "failed", refusal.reason, refusal.message)._replace(
            again_after=REFUSED_SECONDS
        )
    except NotYetError as leaving:
        found = _ended(row, former, "pending", "Pending", str(leaving))
        return found._replace(waiting=(str(leaving),), again_after=SOON_SECONDS)


def _installed(
    install: Install, obj: Object, row: LockRow, former: EstablishedRevision, package: Object
) -> Generator[Effect, Any, Carried]:
    name, user = ObjectKey.parse(install.okey), user_of(install)
    content = yield from brought(package, name.namespace)
    placed = yield from applying.with_namespaces(forms.in_order(content.objects), name.namespace)
    keys = tuple(map(key_of, placed))
    items = yield from _compared(placed, name, user)
    yield from _checked(items, user)
    if not set(keys) <= set(former.objects):
        union = tuple(dict.fromkeys((*former.objects, *keys)))
        entry = EstablishedRevision(name=row.version, state="pending", objects=union)
        return Carried((entry,), reason="Reconciling", again_after=AT_ONCE_SECONDS)
    yield from _noted(obj, tuple(dict.fromkeys((*former.objects, *keys))))
    yield from applying.written(items, as_user=user)
    outdated = [key for key in former.objects if key not in keys]
    yield from _deleted(outdated, name, user)
    entry = EstablishedRevision(name=row.version, state="established", objects=keys)
    return Carried((entry,), True, message="; ".join(content.gaps), again_after=LOOK_SECONDS)


def _checked(items: list[Item], user: str) -> Generator[Effect, Any, None]:
    try:
        yield from applying.checked(items, as_user=user)
    except PermanentError as error:
        raise RefusedError(error.reason, str(error)) from error


def _compared(placed: Iterable[Object], name: ObjectKey, user: str) -> Generator[Effect, Any, list[Item]]:
    """Read what is there, and return what is to be written. Raises RefusedError for what others have."""
    items, foreign = [], []
    for given in placed:
        kind, meta = kind_of(given), given["metadata"]
        wanted = forms.with_annotations(given, {INSTALLED_BY: f"{name.namespace}/{name.name}"})
        try:
            live = yield from applying.read(kind, meta.get("namespace", ""), meta["name"], user)
        except PermanentError as error:
            raise RefusedError(error.reason, f"{title(key_of(given))}: {error}") from error
        if live is None:
            items.append(Item(kind, wanted, None, forms.wanted_object(wanted, [])))
        elif stranger := _stranger_of(live, name):
            foreign.append(f"{title(key_of(given))} belongs to {stranger}")
        elif live["metadata"].get("deletionTimestamp"):
            raise NotYetError(f"{title(key_of(given))} is being deleted")
        else:
            is_adopted = bool(annotation(live, ADOPTED)) or not annotation(live, INSTALLED_BY)
            references = list(live["metadata"].get("ownerReferences") or ())
            new = forms.updated_object(live, wanted, references, is_adopted=is_adopted)
            items.append(Item(kind, wanted, live, new))
    if foreign:
        raise RefusedError(applying.CONFLICT, f"{'; '.join(foreign[:5])}: nothing was changed")
    return items


def _stranger_of(live: Mapping[str, Any], name: ObjectKey) -> str:
    """Return whom else an object belongs to, "" if it is this install's or nobody's."""
    holder = annotation(live, INSTALLED_BY)
    if holder:
        return "" if holder == f"{name.namespace}/{name.name}" else f"PackageInstall {holder}"
    if app := (live["metadata"].get("labels") or {}).get(KAPP_LABEL):
        return f"kapp's app {app}"
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


def _noted(obj: Object, keys: tuple[str, ...]) -> Generator[Effect, Any, None]:
    """Note on the install what it is about to have, and have it stay until that is gone."""
    meta = obj["metadata"]
    finalizers = list(meta.get("finalizers") or ())
    text = msgspec.json.encode(keys).decode()
    is_known = set(keys) <= set(noted(obj)) or len(text) > NOTED_CHARACTERS_MAX
    if FINALIZER in finalizers and is_known:
        return
    new = {**obj, "metadata": {**meta, "finalizers": list(dict.fromkeys((*finalizers, FINALIZER)))}}
    yield Update(INSTALL, new if is_known else forms.with_annotations(new, {NOTED: text}))


def _deleted(keys: Iterable[str], name: ObjectKey, user: str) -> Generator[Effect, Any, bool]:
    """Delete objects of an install, the last written first; return whether none of them is left.

    One that was there before the install stays, as does one that is not the install's any more.
    """
    parsed = sorted(map(ObjectKey.parse, keys), key=_removal_rank)
    is_over = True
    for key in parsed:
        kind = KindRef(key.group, key.kind)
        live = yield from applying.read(kind, key.namespace, key.name, user)
        if live is None or annotation(live, INSTALLED_BY) != f"{name.namespace}/{name.name}":
            continue
        meta = live["metadata"]
        if annotation(live, ADOPTED):
            left = forms.with_annotations(live, {INSTALLED_BY: None, ADOPTED: None, CONTENT: None})
            yield Update(kind, left, as_user=user)
            continue
        if not meta.get("deletionTimestamp"):
            yield Delete(
                kind,
                key.namespace,
                key.name,
                meta.get("uid", ""),
                meta.get("resourceVersion", ""),
                as_user=user,
            )
        is_over = is_over and not meta.get("finalizers") and not meta.get("deletionTimestamp")
    return is_over


def _removal_rank(key: ObjectKey) -> int:
    version = f"{key.group}/v1" if key.group else "v1"
    return -forms.rank({"apiVersion": version, "kind": key.kind})


def ended(key: ObjectKey, before: EstablishedRow) -> Generator[Effect, Any, Carried | None]:
    """Delete what an install that is being deleted has, then let it go; None if it is not such an install."""
    live: Object | None = yield Get(INSTALL, key.namespace, key.name)
    if live is None or FINALIZER not in (live["metadata"].get("finalizers") or ()):
        return None
    if not live["metadata"].get("deletionTimestamp"):
        return None
    spec = live.get("spec") or {}
    user = f"system:serviceaccount:{key.namespace}:{spec.get('serviceAccountName', '')}"
    found = dict.fromkeys((*(each for one in before.revisions for each in one.objects), *noted(live)))
    if not spec.get("noopDelete"):
        try:
            is_over = yield from _deleted(found, key, user)
        except PermanentError as error:
            message = f"its objects cannot be deleted as {user}: {error}"
            return Carried(before.revisions, False, False, "DeleteFailed", message, (), REFUSED_SECONDS)
        if not is_over:
            waiting = "its objects to be gone"
            return Carried(before.revisions, False, False, "Deleting", waiting, (waiting,), SOON_SECONDS)
    meta = live["metadata"]
    finalizers = [each for each in meta["finalizers"] if each != FINALIZER]
    yield Update(INSTALL, {**live, "metadata": {**meta, "finalizers": finalizers}})
    return Carried(is_over=True)


def _ended(row: LockRow, former: EstablishedRevision, state: Any, reason: str, message: str) -> Carried:
    """Return an outcome that leaves the objects as they are."""
    entry = EstablishedRevision(
        name=row.version or former.name, state=state, objects=former.objects, reason=reason, message=message
    )
    return Carried((entry,), False, reason=reason, message=message)
