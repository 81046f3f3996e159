"""Where Crossplane and kapp-controller install: what pvbus leaves to them, and how it knows that they work.

Two installers of one package undo each other's writes. So in the mode `pvbus` nothing is written to an
install whose status another installer has written lately, by its mark in managedFields, as
`pvbus.core.platform.establish.rivals` has it for Porch. In the mode `others` nothing is written but installs
for dependencies, the end of our finalizer and, for Crossplane, the switch that leaves dependencies to pvbus:
a status of ours would be overwritten.
"""

from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from typing import Any

from pvbus.core.kernel.effects import Effect, KindRef, Update
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.packagerows import EstablishedRevision, LockRow
from pvbus.core.platform.establish.carvel import without_finalizer
from pvbus.core.platform.establish.families import FAMILIES
from pvbus.core.platform.establish.objects import Object, with_annotations
from pvbus.core.platform.establish.outcome import Carried
from pvbus.core.platform.establish.rivals import Mark, mark_by, wait_seconds
from pvbus.core.platform.packaging.reading import RESOLVES

MANAGER = "pvbus"
"""What the names of our own programs begin with."""
LOOK_SECONDS = 60.0


def rival_of(install: Install, live: Object, now: float) -> tuple[str, float]:
    """Return why nothing may be written to an install, in words, and for how many seconds.

    The result is ("", 0.0) if pvbus may write.

    live: the install's object with its managedFields
    now: the time, in seconds since 1970
    """
    family = FAMILIES[install.family]
    name = family.installer
    mark = mark_by(
        live, lambda entry: entry.get("manager") == family.program and entry.get("subresource") == "status"
    )
    ours = mark_by(live, lambda entry: str(entry.get("manager", "")).startswith(MANAGER))
    seconds = wait_seconds(mark, now, beside=_is_after(mark, ours))
    if mark is None or not seconds:
        return "", 0.0
    at = datetime.fromtimestamp(mark.at, UTC)
    return (
        f"{name} wrote the status at {at:%Y-%m-%dT%H:%M:%SZ}, so it installs this package, too: nothing is "
        f"written. Set PVBUS_INSTALLER to others to have it install what pvbus decides, or stop {name}",
        seconds,
    )


def _is_after(mark: Mark | None, ours: Mark | None) -> bool:
    return mark is not None and ours is not None and mark.at >= ours.at


def follow(install: Install, kind: KindRef, live: Object, row: LockRow) -> Generator[Effect, Any, Carried]:
    """Leave an install to others, and report what they report. live: the install's object."""
    family, spec = FAMILIES[install.family], live.get("spec") or {}
    name = family.installer
    wanted = without_finalizer(live)
    if family.switch and spec.get(family.switch) is not True:
        # The annotation tells it from a user's switch, which is for pvbus, too.
        wanted = with_annotations({**wanted, "spec": {**spec, family.switch: True}}, {RESOLVES: "true"})
    if wanted is not live:
        live = yield Update(kind, wanted)
    is_healthy, message = _health(install, live, row)
    active = next((each for each in row.revisions if each.is_active), None)
    entry = EstablishedRevision(
        name=active.name if active is not None else row.version,
        state="established" if is_healthy else "pending",
        objects=active.objects if active is not None and is_healthy else (),
        message=message,
    )
    waiting = () if is_healthy else (f"{name} to install it",)
    return Carried(
        (entry,), is_healthy, False, "" if is_healthy else "Installing", message, waiting, LOOK_SECONDS
    )


def _health(install: Install, live: Mapping[str, Any], row: LockRow) -> tuple[bool, str]:
    """Return whether others report success for the version of the lock, and else what they say."""
    status = live.get("status") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    family = FAMILIES[install.family]
    if not family.has_revisions:
        is_current = status.get("version") == row.version
        is_seen = status.get("observedGeneration") in (None, live["metadata"].get("generation"))
    else:
        is_current, is_seen = True, True
        if active := next((each for each in row.revisions if each.is_active), None):
            current = str(status.get("currentIdentifier") or "")
            is_current = not current or active.digest in current or current.endswith(f":{active.version}")
    for name in family.success:
        condition = conditions.get(name) or {}
        if condition.get("status") != "True":
            return (
                False,
                f"{name}: {condition.get('message') or condition.get('reason') or 'not reported yet'}",
            )
    return (
        (True, "") if is_current and is_seen else (False, "what is installed is not the locked version yet")
    )
