"""The installs that are created for dependencies: their kind and their spec."""

from collections.abc import Mapping
from typing import Any

from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.packagerows import LockRow
from pvbus.core.platform.resolve.state import ScopeState

_KINDS = {"provider": "Provider", "configuration": "Configuration", "function": "Function"}
_INSTALL_KINDS = frozenset({*_KINDS.values(), "Package"})


def child_kind(state: ScopeState, holder: tuple[str, str], child: str, digest: str) -> str:
    """Return the kind of the install that a dependency asks for, else the kind of the package itself.

    holder: source and digest of the package that has the dependency
    child: the package that it depends on
    digest: the digest of the child's content
    """
    content = state.content(*holder)
    for item in _items(content.meta if content else {}):
        for field, kind in _KINDS.items():
            if item.get(field) == child:
                return kind
        if item.get("package") == child and item.get("kind") in _INSTALL_KINDS:
            return str(item["kind"])
    own = state.content(child, digest)
    found = own.meta.get("kind") if own else ""
    return found if found in _INSTALL_KINDS else "Provider"


def _items(meta: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = meta.get("spec")
    items = spec.get("dependsOn") if isinstance(spec, Mapping) else ()
    return [each for each in items or () if isinstance(each, Mapping)]


RUNTIME = "runtimeConfigRef"
_DEFAULTS: Mapping[str, Any] = {
    "packagePullSecrets": [],
    "packagePullPolicy": "IfNotPresent",
    "revisionActivationPolicy": "Automatic",
    "revisionHistoryLimit": 1,
    RUNTIME: {"name": "default"},
}
"""What an owner passes on, with what a dependency gets when the owner takes it back."""


def template_of(
    row: LockRow, owner: Install | None, parent: LockRow | None, *, is_there: bool, is_run: bool = True
) -> Mapping[str, Any]:
    """Return the spec of an install that is created, or was.

    It has the version that is decided on, and the pull secrets and policies that its owner has now. Of an
    install that is there and has no version yet nothing changes.

    parent: the row of the owner; what that was given counts while there is no object of it
    is_run: whether something runs installs of this kind, so that they have a runtimeConfigRef
    """
    former = dict(row.template)
    if is_there and not row.digest:
        return former
    passed = {name: former[name] for name in _DEFAULTS if name in former}
    if owner is not None:
        passed = _passed_on(owner)
    elif parent is not None and parent.template:
        passed = {name: parent.template[name] for name in _DEFAULTS if name in parent.template}
    if not is_run:
        passed.pop(RUNTIME, None)
    taken = {name: value for name, value in _DEFAULTS.items() if name in former}
    version = f":{row.version}" if row.version and not row.version.startswith("sha256:") else ""
    pinned = f"@{row.digest}" if row.digest and not version else ""
    return {**former, **taken, **passed, "package": f"{row.package}{version}{pinned}"}


def _passed_on(owner: Install) -> dict[str, Any]:
    passed: dict[str, Any] = {}
    if owner.secrets:
        passed["packagePullSecrets"] = [{"name": each.partition("/")[2]} for each in owner.secrets]
    if owner.pull_policy != "IfNotPresent":
        passed["packagePullPolicy"] = owner.pull_policy
    if owner.is_manual:
        passed["revisionActivationPolicy"] = "Manual"
    if owner.history_max != 1:
        passed["revisionHistoryLimit"] = owner.history_max
    if owner.runtime_config not in ("", _DEFAULTS[RUNTIME]["name"]):
        passed[RUNTIME] = {"name": owner.runtime_config}
    return passed
