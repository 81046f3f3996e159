"""The App of each PackageInstall: an object for people and programs to read, as kapp-controller has one.

It has the spec of the package and the status of its stages, and belongs to its install, so it goes with it.
Nothing is decided on it. An App that belongs to nobody, or to somebody else, is left alone, as is one that is
controlled by hand.

Source: kapp-controller, pkg/packageinstall/app.go; pkg/apis/kappctrl/v1alpha1/types.go.
"""

from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import Any

from pvbus.core.errors import AlreadyExistsError, PermanentError
from pvbus.core.kernel.effects import Create, Effect, KindRef, Update
from pvbus.core.kernel.keys import ObjectKey, digest
from pvbus.core.kernel.objects import annotations_of, timestamp
from pvbus.core.kernel.packagerows import EstablishedRow
from pvbus.core.platform.establish import objects as forms
from pvbus.core.platform.establish import reporting
from pvbus.core.platform.establish.applying import read
from pvbus.core.platform.establish.objects import Object
from pvbus.core.platform.establish.owners import controller_of
from pvbus.core.platform.establish.state import InstallData
from pvbus.core.platform.packaging.conditions import Status
from pvbus.core.platform.packaging.repositorystatus import STAGES, stage_statuses

APP = KindRef("kappctrl.k14s.io", "App", "v1alpha1")
BY_HAND = "ext.packaging.carvel.dev/manually-controlled"
_OF_INSTALL = ("serviceAccountName", "syncPeriod", "noopDelete", "paused", "canceled", "cluster")
_OF_STATUS = ("conditions", "friendlyDescription", "usefulErrorMessage")
_TIMES = ("startedAt", "updatedAt")


def report_app(
    name: ObjectKey, data: InstallData, package: Object | None, status: Status, now: float
) -> Generator[Effect, Any, None]:
    """Write the App of an install if it differs. data, status: of the install; package: what it installs."""
    obj, done = data.object(), data.done
    if package is None or done is None or obj["metadata"].get("deletionTimestamp"):
        return
    wanted = _wanted(obj, package)
    said = digest((wanted, status, done.revisions, done.stage))
    if said == data.app and data.looked_at != now:
        return
    # A cluster that serves no Apps needs none.
    with suppress(PermanentError):
        live = yield from _write(name, wanted)
        if live is not None:
            shown = _status(live, done, status, now)
            yield from reporting.report(
                APP, name.namespace, name.name, live["metadata"]["uid"], shown, now, is_whole=True
            )
        data.app = said


def _wanted(obj: Object, package: Object) -> Object:
    meta, spec = obj["metadata"], obj.get("spec") or {}
    given = (((package.get("spec") or {}).get("template")) or {}).get("spec") or {}
    owner = {
        "apiVersion": "packaging.carvel.dev/v1alpha1",
        "kind": "PackageInstall",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": f"{APP.group}/{APP.version}",
        "kind": APP.kind,
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "ownerReferences": [owner]},
        "spec": {**given, **{field: spec[field] for field in _OF_INSTALL if spec.get(field)}},
    }


def _write(name: ObjectKey, wanted: Object) -> Generator[Effect, Any, Object | None]:
    """Return the App as it is stored; None if it is not ours."""
    references = wanted["metadata"]["ownerReferences"]
    live = yield from read(APP, name.namespace, name.name)
    if live is None:
        try:
            created: Object = yield Create(APP, forms.wanted_object(wanted, references))
        except AlreadyExistsError:
            return None  # since we looked: the next pass sees it
        return created
    owner = controller_of(live) or {}
    if owner.get("uid") != references[0]["uid"] or BY_HAND in annotations_of(live):
        return None
    new = forms.updated_object(live, wanted, list(live["metadata"]["ownerReferences"]))
    if new is live:
        return live
    stored: Object = yield Update(APP, new)
    return stored


def _status(live: Object, done: EstablishedRow, status: Status, now: float) -> Status:
    """Return the status of an App: the stages of the last work, with the times at which they were done."""
    found: Status = {field: status[field] for field in _OF_STATUS if field in status}
    found["observedGeneration"] = reporting.generation_of(live)
    found["managedAppName"] = f"{live['metadata']['name']}.app"
    is_failed = any(each.state == "failed" for each in done.revisions)
    if not is_failed and not done.is_healthy:
        return found  # nothing is finished yet
    stages = stage_statuses(done.stage or "deploy" if is_failed else "", done.message, timestamp(now))
    before = live.get("status") or {}
    is_same = before.get("observedGeneration") == found["observedGeneration"] and all(
        _untimed(before.get(stage)) == _untimed(stages.get(stage)) for stage in STAGES
    )
    return {**found, **({stage: before[stage] for stage in stages} if is_same else stages)}


def _untimed(stage: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {field: value for field, value in (stage or {}).items() if field not in _TIMES}
