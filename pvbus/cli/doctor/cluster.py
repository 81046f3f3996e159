"""Whether the API server serves what the services need, and nobody else does their work."""

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.doctor.findings import Finding, look_at
from pvbus.cli.install.objects import service_name
from pvbus.cli.live import REVISION
from pvbus.cli.progress import SET, VARIANT
from pvbus.core.api.variants import PORCH_API, SET_API, VARIANT_API
from pvbus.core.errors import TransientError
from pvbus.core.ingest.rows import REPOSITORY
from pvbus.core.topics import SERVICES
from pvbus.ports.cluster import Kind, Object

CLOCK_SECONDS_MAX = 5.0
"""Orders of removals carry a time, and are void after 60 s: a tenth of it is no harm."""
NEEDED = ((SET, SET_API), (VARIANT, VARIANT_API), (REPOSITORY, VARIANT_API))
PACKAGES = (REVISION, Kind(REVISION.group, "PackageRevisionResources"))
API_SERVICE = f"{PORCH_API.partition('/')[2]}.{REVISION.group}"
PORCH_NAMESPACE, PORCH_CONTROLLERS = "porch-system", "porch-controllers"
RIVALS = ("packagevariants", "packagevariantsets")
"""Porch's reconcilers that write the same objects."""


async def check_server(cluster: HttpCluster) -> list[Finding]:
    """Return the server's version, and how far its clock is from ours. Raises TransientError."""
    before = time.time()
    version, there = await cluster.server_version(), await cluster.server_time()
    findings = [Finding("API server", "version", "ok", version)]
    if there is None:
        return [*findings, Finding("API server", "clock", "unknown", "its answers have no time")]
    # The header is in whole seconds, and from some moment between our two.
    off = max(before - (there + 1.0), there - time.time(), 0.0)
    if off <= CLOCK_SECONDS_MAX:
        return [*findings, Finding("API server", "clock", "ok", f"at most {off:.0f} s from ours")]
    message = f"{off:.0f} s from ours"
    return [*findings, Finding("API server", "clock", "wrong", message, "synchronize both with NTP")]


async def check_definitions(cluster: HttpCluster) -> AsyncIterator[Finding]:
    """Yield whether each kind is served at the version that the services read and write."""
    for kind, api in NEEDED:
        wanted = api.partition("/")[2]
        served = await cluster.versions(kind)
        if wanted in served:
            yield Finding("definitions", kind.kind, "ok", f"{wanted} is served")
        elif served:
            message = f"{wanted} is not served, only {', '.join(served)}"
            yield Finding("definitions", kind.kind, "wrong", message, "upgrade the definitions: Porch's, or "
                          "pvbus install --overlay standalone")  # fmt: skip
        else:
            action = "install Porch, or pvbus install --overlay standalone"
            yield Finding("definitions", kind.kind, "wrong", "is not served", action)


async def check_packages(cluster: HttpCluster) -> AsyncIterator[Finding]:
    """Yield whether package revisions can be had: from Porch's aggregated API, or pvbus's store."""
    reason = await _api_service_problem(cluster)
    for kind in PACKAGES:
        if reason:
            yield Finding(
                "packages", kind.kind, "wrong", reason, f"kubectl describe apiservice {API_SERVICE}"
            )
        elif await cluster.resource(kind, version=PORCH_API.partition("/")[2]) is None:
            yield Finding(
                "packages", kind.kind, "wrong", f"{PORCH_API} does not serve it", "install Porch's server"
            )
        else:
            yield Finding("packages", kind.kind, "ok", f"{PORCH_API} is served")


async def _api_service_problem(cluster: HttpCluster) -> str:
    """Return why the aggregated API is not available, "" if it is or nothing is known of it."""
    resource = await cluster.resource(Kind("apiregistration.k8s.io", "APIService"))
    found = await look_at(cluster, resource, "", API_SERVICE) if resource else None
    if not isinstance(found, dict):
        return ""
    for condition in (found.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Available" and condition.get("status") != "True":
            return f"{API_SERVICE} is not available: {condition.get('reason')}: {condition.get('message')}"
    return ""


# ------------------------------------------------------------ Deployments


async def check_rivals(cluster: HttpCluster) -> AsyncIterator[Finding]:
    """Yield whether Porch's own controllers of variants and sets are off."""
    resource = await cluster.resource(Kind("apps", "Deployment"))
    if resource is None:
        return
    found = await look_at(cluster, resource, PORCH_NAMESPACE, PORCH_CONTROLLERS)
    where = f"the Deployment {PORCH_NAMESPACE}/{PORCH_CONTROLLERS}"
    if found is None:
        yield Finding("Porch", "controllers", "ok", f"there is no {where.removeprefix('the ')}")
    elif isinstance(found, str):
        yield Finding("Porch", "controllers", "unknown", found)
    elif running := sorted(set(rivals_of(found))):
        message = f"{where} reconciles {', '.join(running)}, too: both write the same objects"
        action = (
            f"take {', '.join(running)} out of its --reconcilers, and the variables ENABLE_* for them away"
        )
        yield Finding("Porch", "controllers", "wrong", message, action)
    else:
        yield Finding("Porch", "controllers", "ok", "they leave variants and sets to pvbus")


def rivals_of(deployment: Object) -> Iterator[str]:
    """Yield the reconcilers of variants and sets that a Deployment of Porch's controllers has on.

    Source: Porch, documentation of its controllers: `--reconcilers=a,b` or `*`, and ENABLE_<RECONCILER>.
    """
    for container in deployment["spec"]["template"]["spec"].get("containers") or ():
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        given = list(_reconcilers(words))
        enabled = {each["name"] for each in container.get("env") or () if each.get("value") == "true"}
        for name in RIVALS:
            if name in given or "*" in given or f"ENABLE_{name.upper()}" in enabled:
                yield name


def _reconcilers(words: list[Any]) -> Iterator[str]:
    for number, word in enumerate(words):
        flag, _, value = str(word).partition("=")
        if flag.lstrip("-") == "reconcilers":
            text = value or (str(words[number + 1]) if number + 1 < len(words) else "")
            yield from (name.strip() for name in text.split(","))


async def check_workers(cluster: HttpCluster, namespace: str) -> AsyncIterator[Finding]:
    """Yield whether the services of an installation run; nothing if there is none in the namespace."""
    resource = await cluster.resource(Kind("apps", "Deployment"))
    if resource is None:
        return
    found = {name: await look_at(cluster, resource, namespace, service_name(name)) for name in SERVICES}
    if not any(found.values()):
        yield Finding("workers", namespace, "unknown", "pvbus is not installed there", "pvbus install")
        return
    for name, deployment in found.items():
        yield _worker(name, deployment, namespace)


def _worker(service: str, deployment: Object | str | None, namespace: str) -> Finding:
    if isinstance(deployment, str):
        return Finding("workers", service, "unknown", deployment)
    if deployment is None:
        return Finding("workers", service, "wrong", "has no Deployment", "pvbus install")
    wanted = deployment["spec"].get("replicas", 1)
    ready = (deployment.get("status") or {}).get("readyReplicas", 0)
    if ready and ready >= wanted:
        return Finding("workers", service, "ok", f"{ready} of {wanted} ready")
    action = f"kubectl -n {namespace} describe pods -l app.kubernetes.io/component={service}"
    return Finding("workers", service, "wrong", f"{ready} of {wanted} ready", action)


async def reach(cluster: HttpCluster) -> Finding | None:
    """Return the finding about an API server that does not answer; None if it does."""
    try:
        await cluster.server_version()
    except TransientError as exc:
        action = "see whether the kubeconfig names it, and whether its token or certificate is still valid"
        return Finding("API server", "answer", "wrong", str(exc), action)
    return None
