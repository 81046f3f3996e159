"""Whether the API server serves what the services need, and nobody else does their work."""

import base64
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

from cryptography import x509

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.doctor.findings import Finding, State, look_at
from pvbus.cli.live import REVISION
from pvbus.cli.progress import SET, VARIANT
from pvbus.core.api.variants import PORCH_API, SET_API, VARIANT_API
from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.core.kernel.rights import PACKAGES as PACKAGES_SERVICE
from pvbus.core.kernel.topics import PLATFORM, PROMOTION, SERVICES
from pvbus.core.platform.establish.rivals import QUIET_SECONDS, last_mark
from pvbus.install.monitoring import EXPIRY_DAYS_MIN
from pvbus.install.objects import service_name
from pvbus.ports.cluster import Kind, Object, Resource

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


async def check_namespaces(cluster: HttpCluster, namespaces: tuple[str, ...]) -> AsyncIterator[Finding]:
    """Yield whether the namespaces exist that the services are limited to."""
    resource = await cluster.resource(Kind("", "Namespace"))
    assert resource is not None
    for name in namespaces:
        found = await look_at(cluster, resource, "", name)
        if found is None:
            action = "correct the name: pvbus install --namespaces; or create it"
            yield Finding("namespaces", name, "wrong", "there is no such namespace", action)
        elif isinstance(found, str):
            yield Finding("namespaces", name, "unknown", found)
        elif found["metadata"].get("deletionTimestamp"):
            yield Finding("namespaces", name, "wrong", "is being deleted", "wait, then create it again")
        else:
            yield Finding("namespaces", name, "ok", "exists")


async def check_packages(cluster: HttpCluster) -> AsyncIterator[Finding]:
    """Yield whether package revisions can be had: from Porch's aggregated API, or pvbus's store."""
    api_service = await _api_service(cluster)
    reason = _api_service_problem(api_service)
    if (authority := authority_of(api_service, datetime.now(UTC))) is not None:
        yield authority
    for kind in PACKAGES:
        if reason:
            yield Finding(
                "packages", kind.kind, "wrong", reason, f"kubectl describe apiservice {API_SERVICE}"
            )
        elif await cluster.resource(kind, version=PORCH_API.partition("/")[2]) is None:
            yield Finding(
                "packages",
                kind.kind,
                "wrong",
                f"{PORCH_API} does not serve it",
                "install Porch's server, or pvbus install --overlay standalone",
            )
        else:
            yield Finding("packages", kind.kind, "ok", f"{PORCH_API} is served")


async def _api_service(cluster: HttpCluster) -> Object:
    """Return the APIService of the packages, {} if there is none or we may not see it."""
    resource = await cluster.resource(Kind("apiregistration.k8s.io", "APIService"))
    found = await look_at(cluster, resource, "", API_SERVICE) if resource else None
    return found if isinstance(found, dict) else {}


def authority_of(api_service: Object, now: datetime) -> Finding | None:
    """Return until when kube-apiserver can know the server by its certificate; None if it does not look."""
    spec = api_service.get("spec") or {}
    if not spec.get("service") or spec.get("insecureSkipTLSVerify"):
        return None
    action = (
        "see the log of its pods (`the authority is not in the APIService`), or who makes its certificate"
    )
    try:
        found = x509.load_pem_x509_certificates(base64.b64decode(spec.get("caBundle") or ""))
    except ValueError:
        message = f"the caBundle of the APIService {API_SERVICE} has no certificate"
        return Finding("packages", "certificate", "wrong", message, action)
    last = max(each.not_valid_after_utc for each in found)
    left = (last - now).days
    state: State = "ok" if left >= EXPIRY_DAYS_MIN else "wrong"
    message = f"its authority expires on {last:%Y-%m-%d}, in {left} days"
    return Finding("packages", "certificate", state, message, "" if state == "ok" else action)


def _api_service_problem(found: Object) -> str:
    """Return why the aggregated API is not available, "" if it is or nothing is known of it."""
    for condition in (found.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Available" and condition.get("status") != "True":
            return f"{API_SERVICE} is not available: {condition.get('reason')}: {condition.get('message')}"
    return ""


async def check_marks(cluster: HttpCluster) -> AsyncIterator[Finding]:
    """Yield when Porch's controllers wrote sets or variants last, if they ever did."""
    objects: list[Object] = []
    for kind in (SET, VARIANT):
        resource = await cluster.resource(kind)
        with contextlib.suppress(PermanentError):  # without the right to list them: said with the rights
            objects += (await cluster.list(resource, metadata_only=True)).items if resource else ()
    mark = last_mark(objects)
    if mark is None:
        return
    age = (await cluster.server_time() or time.time()) - mark.at
    message = f"Porch's controllers wrote {mark.namespace}/{mark.name} {age:.0f} s ago"
    if age >= QUIET_SECONDS:
        yield Finding("Porch", "last write", "ok", message)
        return
    action = "switch its controllers of variants and sets off; pvbus writes once they are quiet for a minute"
    yield Finding("Porch", "last write", "wrong", message, action)


# ------------------------------------------------------------ Deployments


async def _deployments(cluster: HttpCluster) -> Resource | None:
    """Return the resource of Deployments; None if nothing runs them, as on pvbus's own server."""
    if await cluster.resource(Kind("", "Pod")) is None:
        return None
    return await cluster.resource(Kind("apps", "Deployment"))


async def check_rivals(cluster: HttpCluster) -> AsyncIterator[Finding]:
    """Yield whether Porch's own controllers of variants and sets are off."""
    resource = await _deployments(cluster)
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


async def read_installed_services(cluster: HttpCluster, namespace: str) -> list[str]:
    """Return the services of an installation: the five, and each optional one that has a Deployment."""
    resource = await _deployments(cluster)
    if resource is None:
        return [*SERVICES]
    found = [*SERVICES]
    for name in (*PROMOTION, *PLATFORM):
        if isinstance(await look_at(cluster, resource, namespace, service_name(name)), dict):
            found.append(name)
    return found


async def check_workers(cluster: HttpCluster, namespace: str) -> AsyncIterator[Finding]:
    """Yield whether the services of an installation run; nothing if there is none in the namespace."""
    resource = await _deployments(cluster)
    if resource is None:
        return
    found = {name: await look_at(cluster, resource, namespace, service_name(name)) for name in SERVICES}
    for name in (*PROMOTION, *PLATFORM, PACKAGES_SERVICE):  # not every installation has these
        deployment = await look_at(cluster, resource, namespace, service_name(name))
        if deployment is not None:
            found[name] = deployment
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
