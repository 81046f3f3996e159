"""Tells kube-apiserver by which authority to know this server: the caBundle of the APIService.

It is written only where the APIService names this server's Service: on a cluster with Porch it is Porch's.
"""

import asyncio
import base64
from collections.abc import Callable

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.controlplane.aggregated.serving import Serving, joined
from pvbus.core.api.variants import PORCH_API, PORCH_GROUP
from pvbus.core.errors import ConflictError, PermanentError, PvbusError
from pvbus.ports.cluster import Object, Resource
from pvbus.telemetry.structured import structlog

NAME = f"{PORCH_API.rpartition('/')[2]}.{PORCH_GROUP}"
LOOK_SECONDS = 10.0

_API_SERVICE = Resource("apiregistration.k8s.io", "v1", "APIService", "apiservices", False)
_log = structlog.get_logger(__name__)


def publish_command(authority: bytes) -> str:
    """Return the command by which a person writes an authority into the APIService."""
    bundle = base64.b64encode(authority).decode()
    patch = f'{{"spec":{{"caBundle":"{bundle}","insecureSkipTLSVerify":false}}}}'
    return f"kubectl patch apiservice {NAME} --type=merge -p '{patch}'"


async def follow_authority(cluster: HttpCluster, serving: Callable[[], Serving | None], name: str) -> None:
    """Keep the authority of the certificate in the APIService, until cancelled.

    name: SERVICE.NAMESPACE.svc, which the APIService must name.
    """
    problem = ""
    while True:
        found = serving()
        if found is not None and found.authority:
            try:
                if await publish(cluster, found.authority, name):
                    _log.info("the authority is in the APIService", api_service=NAME)
                problem = ""
            except PvbusError as exc:
                if str(exc) != problem:
                    problem = str(exc)
                    command = publish_command(found.authority)
                    _log.error("the authority is not in the APIService", error=problem, remedy=command)
        await asyncio.sleep(LOOK_SECONDS)


async def publish(cluster: HttpCluster, authority: bytes, name: str) -> bool:
    """Add an authority to the APIService; return whether it was not there. Raises PvbusError."""
    while True:
        present = await cluster.get(_API_SERVICE, "", NAME)
        if present is None:
            raise PermanentError(f"there is no APIService {NAME}: pvbus install --overlay standalone")
        wanted = _with(present, authority, name)
        if wanted == present:
            return False
        try:
            await cluster.update(_API_SERVICE, wanted)
        except ConflictError:
            continue  # another replica added its own
        return True


def _with(present: Object, authority: bytes, name: str) -> Object:
    service = present["spec"].get("service") or {}
    named = f"{service.get('name')}.{service.get('namespace')}.svc"
    if named != name:
        text = f"the APIService {NAME} names {named}, not {name}: it is another server's"
        raise PermanentError(text, reason="Foreign")
    bundle = joined(base64.b64decode(present["spec"].get("caBundle") or ""), authority)
    spec = {**present["spec"], "caBundle": base64.b64encode(bundle).decode()}
    spec.pop("insecureSkipTLSVerify", None)
    return {**present, "spec": spec}
