"""The statuses of installs and revisions, and the lock as objects, from the rows of `rows`.

Crossplane's condition types and reasons are the shipped ones, Carvel's those of kapp-controller and of the
merged proposal for dependencies. A status here has no times: `with_times` adds those that Crossplane's
definitions require.
Source: crossplane, apis/pkg/v1/conditions.go; carvel proposals, kapp-controller/004-dependency-resolution.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.packagerows import (
    DEPENDENCY_CYCLE,
    ROLLED_BACK,
    STAYS_ACTIVE,
    WAITING,
    DependencyCondition,
    EstablishedRevision,
    EstablishedRow,
    LockedDependency,
    LockedRevision,
    LockRow,
)
from pvbus.core.platform.packaging.conditions import Answer, Status, condition, observed
from pvbus.core.platform.packaging.imageconfigs import Access, Accesses
from pvbus.core.platform.packaging.references import reference_of
from pvbus.core.platform.solver.model import Explanation
from pvbus.core.platform.solver.states import DependencyState

DEPENDENCY_CONDITIONS: Mapping[DependencyState, DependencyCondition] = {
    DependencyState.OWNED: "OwnedPackageInstall",
    DependencyState.FOUND: "FoundPackageInstall",
    DependencyState.REQUIRES_DIFFERENT_VERSION: "FoundPackageInstallRequiresDifferentVersion",
    DependencyState.EXISTING_GVK: "ExistingGVK",
    DependencyState.UNKNOWN_PACKAGE: "UnknownPackage",
    DependencyState.UNKNOWN_VERSION: "UnknownPackageVersion",
    DependencyState.AMBIGUOUS: "UnknownPackage",
    DependencyState.WAITING: "WaitingForDependencies",
    DependencyState.UNMET: "WaitingForDependencies",
}
"""What both families report of a dependency that the solver could not grant."""


def refusal_words(explanation: Explanation | None, switch: str = "") -> str:
    """Return why an install is refused. switch: what leaves the versions of platforms out of account."""
    if explanation is None:
        return "it cannot be installed"
    if not explanation.unknown_platforms:
        return explanation.sentence
    names = ", ".join(f"{name}=<version>" for name in explanation.unknown_platforms)
    either = f", or {switch} in the install" if switch else ""
    return f"{explanation.sentence}: set {names} in PVBUS_PLATFORMS{either}"


API_WORD = "API "
"""How an offer of an API kind begins; see `pvbus.core.platform.solver.model.api`."""
_HEALTH_REASONS: Mapping[Answer, str] = {
    "True": "HealthyPackageRevision",
    "False": "UnhealthyPackageRevision",
    "Unknown": "UnknownPackageRevisionHealth",
}


RUNTIME_HEALTHY = "RuntimeHealthy"
"""The condition of a revision that only an active one has."""
INACTIVE = "the revision is inactive"
"""The message of a healthy revision that is not active: consumers of events see no spec."""


class Runtime(NamedTuple):
    """What runs a package.

    health: the status of its Deployment's Available
    endpoint: the address at which a function answers
    is_started: whether there is a Deployment
    """

    health: Answer
    message: str = ""
    endpoint: str = ""
    is_started: bool = True


# ---------------------------------------------------------------- Crossplane


def package_status(
    install: Install, lock: LockRow | None, established: EstablishedRow | None, access: Accesses | None = None
) -> Status:
    """Return the status of a Package, Provider, Configuration or Function.

    access: returns how a source is read, None if there are no ImageConfigs
    Its conditions speak of the generation that the lock has decided on, which may be behind the object's.
    """
    installed, healthy = _installed(install, lock, established), _healthy(lock, established)
    conditions = [installed, healthy]
    current = _asked(lock)
    found: Status = {}
    if current is not None:
        found = {"currentRevision": current.name, "currentIdentifier": _identifier(install, current)}
        found["resolvedPackage"] = found["currentIdentifier"]
    source = (current.source if current is not None else "") or install.package
    way = access(source) if access is not None else None
    if current is not None and way is not None:
        found["resolvedPackage"] = way.resolved(found["currentIdentifier"], source)
    found.update(way.references if way is not None else {})
    if ObjectKey.parse(install.okey).kind == "Package":
        is_ready = installed["status"] == healthy["status"] == "True"
        conditions.append(
            condition("Ready", "True" if is_ready else "False", "Available" if is_ready else "Unavailable")
        )
        switches = switches_of(install)
        if switches:
            found["switches"] = switches
    return observed({"conditions": conditions, **found}, lock.generation if lock is not None else 0)


def switches_of(install: Install) -> dict[str, bool]:
    """Return the switches of an install that are on, as its spec calls them."""
    switches = {
        "skipDependencyResolution": install.skips_dependencies,
        "ignoreCrossplaneConstraints": install.ignores_platform,
    }
    return {name: True for name, is_on in switches.items() if is_on}


def _installed(install: Install, lock: LockRow | None, established: EstablishedRow | None) -> Status:
    active, newest = _active(lock), _newest(lock)
    switches = "".join(f"; {name} is on" for name in switches_of(install))
    refusal = _refusal(lock)
    if active is None and newest is not None:
        return condition("Installed", "False", "InactivePackageRevision", f"{newest.name} is inactive")
    if active is None or _established(active, established) is None:
        message = refusal or (established.message if established else "")
        return condition("Installed", "False", "UnpackingPackage", (message + switches).removeprefix("; "))
    if not refusal and newest is not None and newest.revision > active.revision:
        refusal = f"{newest.name} is inactive: {active.name} stays active until it is activated"
    return condition("Installed", "True", "ActivePackageRevision", (refusal + switches).removeprefix("; "))


def _healthy(lock: LockRow | None, established: EstablishedRow | None) -> Status:
    active = _active(lock)
    done = _established(active, established) if active is not None else None
    if lock is not None and lock.status in ("broken", "refused"):
        return _health("Healthy", "False", _refusal(lock))
    if done is None or established is None:
        words = established.message if established is not None else ""
        return _health("Healthy", "Unknown", (lock.message if lock else "") or words)
    if done.state == "failed":
        return _health("Healthy", "False", done.message or established.message)
    if done.state == "established" and established.is_healthy:
        return _health("Healthy", "True")
    answer: Answer = "False" if done.state == "established" else "Unknown"
    return _health("Healthy", answer, done.message or established.message)


def running(status: Status, runtime: Runtime | None) -> Status:
    """Return the status of an install that is healthy as far as what runs it is."""
    if runtime is None or not runtime.is_started or runtime.health == "True":
        return status
    worse = _health("Healthy", runtime.health, runtime.message)
    conditions = [
        worse if each["type"] == "Healthy" and each["status"] == "True" else each
        for each in status["conditions"]
    ]
    return {**status, "conditions": conditions}


def _health(type_: str, answer: Answer, message: str = "") -> Status:
    return condition(type_, answer, _HEALTH_REASONS[answer], message)


_SHOWN = (WAITING, ROLLED_BACK, STAYS_ACTIVE, DEPENDENCY_CYCLE)
"""Reasons of a locked install that a person has to know."""


def _refusal(lock: LockRow | None) -> str:
    """Return why a decision is not to install what is asked for, "" if it is."""
    if lock is None or lock.status == "removed" or (lock.status == "locked" and lock.reason not in _SHOWN):
        return ""
    return lock.message or lock.reason


def revision_status(
    revision: LockedRevision,
    lock: LockRow,
    established: EstablishedRow | None,
    *,
    runtime: Runtime | None = None,
    references: Sequence[Mapping[str, Any]] = (),
    access: Access | None = None,
) -> Status:
    """Return the status of a revision.

    runtime: the state of an active revision's controller, None without one
    references: references to its objects, each with apiVersion, kind, name and perhaps uid
    access: how its source is read, None if no ImageConfig says so
    """
    done = _established(revision, established)
    conditions = [_revision_health(revision, done)]
    found: Status = {"conditions": conditions}
    if runtime is not None and revision.is_active:
        conditions.append(_health(RUNTIME_HEALTHY, runtime.health, runtime.message))
        if runtime.endpoint:
            found["endpoint"] = runtime.endpoint
    met = [each for each in lock.dependencies if _is_met(each)]
    wrong = [
        each
        for each in lock.dependencies
        if each.condition == "FoundPackageInstallRequiresDifferentVersion" and not each.is_optional
    ]
    if revision.is_active:
        found["foundDependencies"] = len(lock.dependencies)
        found["installedDependencies"] = len(met)
        found["invalidDependencies"] = len(wrong)
    if references:
        found["objectRefs"] = [dict(each) for each in references]
    if access is not None:
        found["resolvedImage"] = access.resolved(_image(lock, revision), revision.source or lock.package)
        found.update(access.references)
    return found


def _revision_health(revision: LockedRevision, done: EstablishedRevision | None) -> Status:
    wanted = "established" if revision.is_active else "released"
    if done is None or done.state not in (wanted, "failed"):
        return _health("RevisionHealthy", "Unknown", done.message if done else "")
    if done.state == "failed":
        return _health("RevisionHealthy", "False", done.message)
    return _health("RevisionHealthy", "True", done.message or ("" if revision.is_active else INACTIVE))


def lock_status(rows: Mapping[str, LockRow]) -> Status:
    """Return the status of the lock. rows: okey -> its row. Optional dependencies never fail it."""
    failed = []
    for key, row in sorted(rows.items()):
        if row.status in ("refused", "broken"):
            name = ObjectKey.parse(key).name
            failed.append(f"{name}: {row.message or row.reason or row.status}")
    if not failed:
        return {"conditions": [condition("Resolved", "True", "DependencyResolutionSucceeded")]}
    message = "; ".join(failed[:_FAILURES_MAX])
    if len(failed) > _FAILURES_MAX:
        message += f"; and {len(failed) - _FAILURES_MAX} more"
    return {"conditions": [condition("Resolved", "False", "DependencyResolutionFailed", message)]}


_FAILURES_MAX = 10


# ---------------------------------------------------------------- Carvel

DELETING = "Deleting"
DELETE_FAILED = "DeleteFailed"
"""Conditions of an install that is being deleted, and the reasons of its row in ESTABLISHED."""


def carvel_status(
    install: Install,
    lock: LockRow | None,
    established: EstablishedRow | None,
    healthy: Collection[str],
    troubles: Mapping[str, str] = {},
) -> Status:
    """Return the status of a PackageInstall.

    healthy: okeys of the installs that are healthy
    troubles: okey of another one -> what keeps it from that

    It has exactly one condition, as kapp-controller's has: Deleting, DeleteFailed, ReconcileFailed,
    Reconciling or ReconcileSucceeded.
    """
    state = _carvel_state(install, lock, established, healthy, troubles)
    found: Status = {
        "observedGeneration": lock.generation if lock and not install.is_deleted else install.generation,
        "conditions": [condition(state.type, "True", state.reason, state.message)],
        "friendlyDescription": _described(state),
    }
    if state.type in ("ReconcileFailed", DELETE_FAILED):
        found["usefulErrorMessage"] = state.message
    if lock is not None and lock.version:
        found["version"] = lock.version
        if established is not None:
            found["lastAttemptedVersion"] = lock.version
    if lock is not None and lock.dependencies:
        found["dependencies"] = dependency_statuses(lock, healthy)
    return found


class _State(NamedTuple):
    type: str
    reason: str = ""
    message: str = ""


def _carvel_state(
    install: Install,
    lock: LockRow | None,
    established: EstablishedRow | None,
    healthy: Collection[str],
    troubles: Mapping[str, str],
) -> _State:
    if install.is_deleted:
        if established is None or established.reason not in (DELETING, DELETE_FAILED):
            return _State(DELETING)
        return _State(established.reason, "", established.message)
    if lock is None or lock.status == "removed":
        return _State("Reconciling")
    if lock.status in ("refused", "broken"):
        return _State("ReconcileFailed", lock.reason, lock.message)
    pending = [each for each in lock.dependencies if _is_pending(each, healthy)]
    if pending:
        names = ", ".join(_title(each, troubles.get(each.install, "")) for each in pending)
        return _State("Reconciling", "WaitingForDependencies", f"waits for {names}")
    if lock.status == "waiting" or established is None:
        return _State("Reconciling", lock.reason, lock.message)
    if any(each.state == "failed" for each in established.revisions):
        return _State("ReconcileFailed", established.reason, established.message)
    if established.is_healthy:
        return _State("ReconcileSucceeded")
    return _State("Reconciling", established.reason, established.message)


def _described(state: _State) -> str:
    words = {
        DELETING: "Deleting",
        DELETE_FAILED: "Delete failed",
        "Reconciling": "Reconciling",
        "ReconcileSucceeded": "Reconcile succeeded",
        "ReconcileFailed": "Reconcile failed",
    }[state.type]
    return f"{words}: {state.message}" if state.message else words


def dependency_statuses(lock: LockRow, healthy: Collection[str]) -> list[Status]:
    """Return one status per dependency, in the order of the package.

    The first condition of each is the lock's. WaitingForDependencies follows while the dependency holds the
    install up. healthy: okeys of the installs that are healthy.
    """
    return [_dependency(each, is_pending=_is_pending(each, healthy)) for each in lock.dependencies]


def _dependency(dependency: LockedDependency, *, is_pending: bool) -> Status:
    found: Status = {"name": dependency.name} if dependency.name else {}
    if dependency.package:
        found["wantedPackageRef"] = {"refName": dependency.package}
    if dependency.package and dependency.range:
        found["wantedPackageRef"]["versionSelection"] = {"constraints": dependency.range}
    if dependency.offer:
        version, _, kind = dependency.offer.removeprefix(API_WORD).partition(" ")
        found["gvk"] = {"apiVersion": version, "kind": kind}
    if dependency.install:
        key = ObjectKey.parse(dependency.install)
        found["packageInstallRef"] = {"name": key.name, "namespace": key.namespace}
    if dependency.version:
        found["version"] = dependency.version
    conditions = [condition(dependency.condition, "True", message=dependency.message)]
    if is_pending and dependency.condition != "WaitingForDependencies":
        conditions.append(condition("WaitingForDependencies", "True"))
    return {**found, "conditions": conditions}


def _is_met(dependency: LockedDependency) -> bool:
    return dependency.condition in ("OwnedPackageInstall", "FoundPackageInstall", "ExistingGVK")


def _is_pending(dependency: LockedDependency, healthy: Collection[str]) -> bool:
    """Say whether an install waits for a dependency. An optional one is only waited for if it is chosen."""
    if not _is_met(dependency):
        return not dependency.is_optional
    return bool(dependency.install) and dependency.install not in healthy


def _title(dependency: LockedDependency, trouble: str) -> str:
    name = dependency.name or dependency.package or dependency.offer
    return f"{name} ({trouble})" if trouble else name


# ---------------------------------------------------------------- PackageLock

PAGE_BYTES_MAX = 500_000
"""Limit of one PackageLock, as JSON. An API server takes some 1.5 MB; half of that leaves room for
managedFields, which name every key of a map once more."""
_PAGE_HEAD_BYTES = 2_000
_COMPOSITIONS = "apiextensions.crossplane.io/Composition"
_DEFINITIONS = "apiextensions.k8s.io/CustomResourceDefinition"
_SECTIONS = ("packages", "compositions", "customResourceDefinitions", "objects")
_encoder = msgspec.json.Encoder(order="sorted")


def package_locks(rows: Mapping[str, LockRow], *, bytes_max: int = PAGE_BYTES_MAX) -> list[dict[str, Any]]:
    """Return the lock as PackageLocks `lock`, `lock-2` and so on, each smaller than `bytes_max`.

    rows: by okey of the install. Packages come first, then what their active revisions own: Compositions and
    CustomResourceDefinitions by name, everything else by okey.
    """
    pages: list[dict[str, Any]] = [{}]
    room = bytes_max - _PAGE_HEAD_BYTES
    used = 0
    for section, key, value in _entries(rows):
        size = len(_encoder.encode({key: value})) + 1
        if used and used + size > room:
            pages.append({})
            used = 0
        used += size
        if section == "packages":
            pages[-1].setdefault(section, []).append(value)
        else:
            pages[-1].setdefault(section, {})[key] = value
    return [_page(number, spec) for number, spec in enumerate(pages, start=1)]


def _page(number: int, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "pkg.crossplane.io/v1beta1",
        "kind": "PackageLock",
        "metadata": {"name": "lock" if number == 1 else f"lock-{number}"},
        "spec": {section: spec[section] for section in _SECTIONS if section in spec},
    }


def _entries(rows: Mapping[str, LockRow]) -> list[tuple[str, str, Any]]:
    """Return all entries of the lock: section, key, and value."""
    found: list[tuple[str, str, Any]] = []
    owned: list[tuple[str, str, Any]] = []
    for _, row in sorted(rows.items()):
        active = _active(row)
        if active is None:
            continue
        needs = list(dict.fromkeys(each.package or each.offer for each in row.dependencies))
        package = {"name": active.name, "image": _image(row, active), "dependencies": needs}
        found.append(("packages", active.name, package))
        for key in active.objects:
            gk, _, rest = key.partition("|")
            name = rest.partition("|")[2]
            if gk == _COMPOSITIONS:
                owned.append(("compositions", name, active.name))
            elif gk == _DEFINITIONS:
                owned.append(("customResourceDefinitions", name, active.name))
            else:
                owned.append(("objects", key, active.name))
    return found + sorted(owned, key=lambda each: (_SECTIONS.index(each[0]), each[1]))


def _image(row: LockRow, revision: LockedRevision) -> str:
    source = revision.source or row.package
    return f"{source}@{revision.digest}" if revision.digest else reference_of(source, revision.version)


# ---------------------------------------------------------------- shared


def _active(lock: LockRow | None) -> LockedRevision | None:
    return next((each for each in lock.revisions if each.is_active), None) if lock else None


def _newest(lock: LockRow | None) -> LockedRevision | None:
    return max(lock.revisions, key=lambda each: each.revision, default=None) if lock else None


def _asked(lock: LockRow | None) -> LockedRevision | None:
    """Return the revision of what an install asks for, as Crossplane's status has it; else the newest one."""
    found = (each for each in lock.revisions if each.digest == lock.observed) if lock else ()
    return next(iter(found), None) or _newest(lock)


def _established(
    revision: LockedRevision | None, established: EstablishedRow | None
) -> EstablishedRevision | None:
    if revision is None or established is None:
        return None
    return next((each for each in established.revisions if each.name == revision.name), None)


def _identifier(install: Install, revision: LockedRevision) -> str:
    """Return the image of a revision as an install would name it: by tag if it has one."""
    source = revision.source or install.package
    if install.digest or not revision.version:
        return f"{source}@{revision.digest}"
    return reference_of(source, revision.version)
