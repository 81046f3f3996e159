"""Decides whether an install of a package is ready, from the conditions of its family."""

from typing import NamedTuple

import msgspec

from pvbus.core.api.variants import Condition
from pvbus.core.kernel.packagekinds import CARVEL_INSTALL, CROSSPLANE_INSTALLS
from pvbus.ports.cluster import Kind

CARVEL_GROUP = CARVEL_INSTALL.group
INSTALL_KINDS = (*CROSSPLANE_INSTALLS, CARVEL_INSTALL)
_CROSSPLANE_NAMES = {kind.kind for kind in CROSSPLANE_INSTALLS}
UNREPORTED = "no conditions reported yet"


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None


class _Status(msgspec.Struct, rename="camel"):
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0


class Judgement(NamedTuple):
    """Whether an install is ready.

    kind: its kind
    namespace: its namespace
    name: its name
    why: why it is not ready, "" if it is
    """

    kind: str
    namespace: str
    name: str
    why: str = ""

    @property
    def is_ready(self) -> bool:
        return not self.why

    @property
    def advice(self) -> str:
        """The command that shows more."""
        namespace = f" -n {self.namespace}" if self.namespace else ""
        return f"kubectl describe {self.kind.lower()}{namespace} {self.name}"


class InstallObject(msgspec.Struct, rename="camel"):
    """The part of an install that decides whether it is ready."""

    kind: str
    metadata: _Meta
    api_version: str = ""
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_install(self) -> bool:
        return Kind(self.api_version.rpartition("/")[0], self.kind) in INSTALL_KINDS

    def judge(self) -> Judgement:
        meta = self.metadata
        return Judgement(self.kind, meta.namespace, meta.name, self._why())

    def _why(self) -> str:
        if self.metadata.deletion_timestamp is not None:
            return "is being deleted"
        if self.api_version.startswith(f"{CARVEL_GROUP}/"):
            return self._why_not_reconciled()
        found = {each.type: each for each in self.status.conditions}
        if not {"Installed", "Healthy"} <= found.keys():
            return UNREPORTED
        return next((why for each in ("Installed", "Healthy") if (why := self._why_not(found[each]))), "")

    def _why_not_reconciled(self) -> str:
        """Return why an install of Carvel's is not reconciled.

        kapp-controller sets one condition at a time: for what it is doing, or for how that ended.
        """
        if self.status.observed_generation < self.metadata.generation or not self.status.conditions:
            return UNREPORTED
        found = {each.type: each for each in self.status.conditions if each.status == "True"}
        if "ReconcileSucceeded" in found:
            return ""
        reported = next(iter(found.values()), self.status.conditions[0])
        return f"not installed ({reported.reason or reported.type}): {reported.message}"

    def _why_not(self, condition: Condition) -> str:
        """Return why a condition is not True for the present generation.

        Crossplane's own conditions have no observedGeneration in older versions.
        """
        if 0 < condition.observed_generation < self.metadata.generation:
            return UNREPORTED
        if condition.status == "True":
            return ""
        return f"not {condition.type} ({condition.reason}): {condition.message}"


def is_trouble(kind: str, condition: Condition) -> bool | None:
    """Return whether a condition says that an install is not ready; None for an object of another kind."""
    if kind in _CROSSPLANE_NAMES:
        return condition.type in ("Installed", "Healthy") and condition.status != "True"
    if kind == CARVEL_INSTALL.kind:
        return condition.type != "ReconcileSucceeded" and condition.status == "True"
    return None
