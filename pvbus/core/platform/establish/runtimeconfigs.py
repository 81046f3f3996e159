"""The DeploymentRuntimeConfigs of a cluster, by name."""

from collections.abc import Mapping
from typing import Any

from pvbus.core.platform.establish.applying import RefusedError
from pvbus.core.platform.establish.runtime import DEFAULT_CONFIG
from pvbus.core.platform.packaging.imageconfigs import Chosen


class RuntimeConfigs:
    """What each config says.

    hidden: why they cannot be listed, in the API's words, "" if they can
    is_authority_written: whether an install creates the authority of certificates now
    """

    def __init__(self) -> None:
        self.hidden = ""
        self.is_authority_written = False
        self._specs: dict[str, Mapping[str, Any]] = {}

    def observe(self, name: str, obj: Mapping[str, Any] | None) -> bool:
        """Apply a config's object, None for a deleted one; return whether it says something else now."""
        before = self._specs.pop(name, None)
        if obj is not None:
            self._specs[name] = obj.get("spec") or {}
        return before != self._specs.get(name)

    def spec_of(self, chosen: Chosen) -> Mapping[str, Any]:
        """Return the spec of the config of a package, {} for the default one where there is none.

        Raises RefusedError if the config is missing or cannot be read.
        """
        name = chosen.name or DEFAULT_CONFIG
        if self.hidden:
            raise RefusedError(
                "NotSet",
                f"DeploymentRuntimeConfig {name} cannot be read, as ingest cannot list its kind "
                f"({self.hidden}): pvbus doctor says what it lacks",
            )
        if name not in self._specs and name != DEFAULT_CONFIG:
            raise RefusedError(
                "NotFound",
                f"DeploymentRuntimeConfig {name} does not exist: create it, or change {chosen.field}",
            )
        return self._specs.get(name, {})
