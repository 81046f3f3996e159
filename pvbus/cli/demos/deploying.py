"""The program of the story that deploys: one Application per package, shaped as Argo CD's, which lags.

It shows a new revision first with the health of the former one, as Argo CD does while it syncs. So what the
rollout may believe is only what the last comparison after the sync says. Of the images one runs nowhere, and
one makes errors as soon as a few clusters have it.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.demos.story import LOOK_SECONDS, NAMESPACE
from pvbus.cli.live import FILES, REVISION
from pvbus.core.errors import ConflictError, TransientError
from pvbus.core.kernel.objects import timestamp
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Kind, Object, Resource

APPLICATION = Kind("argoproj.io", "Application")
APPLICATIONS = "argocd"
LAG_SECONDS = 3.0
"""Between a sync and the health after it."""
FORMER, BROKEN, MENDED = "web:1.0.0", "web:2.0.0", "web:2.1.0"
"""The image that the fleet begins with, one that runs nowhere, and one that makes errors under load."""
LOAD_MIN = 2
"""So many clusters with that image make errors: more than the canary."""
HEALTH = Kind("", "ConfigMap")
HEALTH_NAME = "web-health"

DEFINITION = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: applications.argoproj.io}
spec:
  group: argoproj.io
  names: {kind: Application, listKind: ApplicationList, plural: applications, singular: application}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
EVIDENCE = """\
  evidence:
    object:
      apiVersion: argoproj.io/v1alpha1
      kind: Application
      namespace: "'argocd'"
      name: target.name
      binding: Commit
      revision: object.status.sync.revision
      current: >-
        object.status.sync.status == 'Synced' && object.status.operationState.phase == 'Succeeded' &&
        timestamp(object.status.reconciledAt) > timestamp(object.status.operationState.finishedAt)
      good: object.status.health.status == 'Healthy'
      bad: object.status.health.status == 'Degraded'
"""


class Sync(NamedTuple):
    """What an Application has synced. since: when, 0 once its health is known."""

    commit: str
    since: float
    image: str


async def deploy(cluster: HttpCluster, errors: Path | None) -> None:
    """Bring each Application to the latest published commit of its package, late. Never returns.

    errors: the file whose number is the metric of errors; without it a ConfigMap has the fleet's health
    """
    synced: dict[str, Sync] = {}
    shown: bool | None = None
    while True:
        with contextlib.suppress(ConflictError, TransientError):
            resource, revisions = await cluster.resource(APPLICATION), await cluster.resource(REVISION)
            if resource is not None and revisions is not None:
                listed = (await cluster.list(revisions, NAMESPACE)).items
                for name, obj in _wanted(listed):
                    await _bring(cluster, resource, name, obj, synced)
                healthy = sum(each.image == MENDED for each in synced.values()) < LOAD_MIN
                if healthy != shown:
                    await _show_health(cluster, errors, healthy=healthy)
                    shown = healthy
        await asyncio.sleep(LOOK_SECONDS)


def _wanted(revisions: list[Object]) -> Iterator[tuple[str, Object]]:
    """Yield the variant of each package, and its latest published revision."""
    latest: dict[str, Object] = {}
    for obj in revisions:
        owners = obj["metadata"].get("ownerReferences") or ()
        if lifecycle_of(obj) != "Published" or not owners:
            continue
        former = latest.get(owners[0]["name"])
        if former is None or obj["spec"]["revision"] > former["spec"]["revision"]:
            latest[owners[0]["name"]] = obj
    yield from sorted(latest.items(), key=lambda item: item[0])


async def _bring(
    cluster: HttpCluster, resource: Resource, name: str, obj: Object, synced: dict[str, Sync]
) -> None:
    """Write the next of three statuses: the new commit with old health, no health yet, and health."""
    former, now = synced.get(name), time.monotonic()
    commit = obj["status"]["selfLock"]["git"]["commit"]
    if former is None or former.commit != commit:
        image = await _image_of(cluster, obj["metadata"]["name"])
        await _write(cluster, resource, name, status_of(commit, time.time(), is_compared=False))
        synced[name] = Sync(commit, now, image)
    elif former.since and now - former.since > LAG_SECONDS:
        health = "Degraded" if former.image == BROKEN else "Healthy"
        status = status_of(commit, time.time(), is_compared=True, health=health)
        await _write(cluster, resource, name, status)
        synced[name] = former._replace(since=0.0)


async def _image_of(cluster: HttpCluster, name: str) -> str:
    """Return which of the story's images a revision has, "" for none."""
    resource = await cluster.resource(FILES)
    found = await cluster.get(resource, NAMESPACE, name) if resource is not None else None
    text = ((found or {}).get("spec") or {}).get("resources", {}).get("deployment.yaml", "")
    return next((image for image in (FORMER, BROKEN, MENDED) if image in text), "")


async def _show_health(cluster: HttpCluster, errors: Path | None, *, healthy: bool) -> None:
    if errors is not None:
        errors.write_text("0\n" if healthy else "7\n")
        return
    resource = await cluster.resource(HEALTH)
    assert resource is not None
    body = {
        "apiVersion": "v1",
        "kind": HEALTH.kind,
        "metadata": {"name": HEALTH_NAME, "namespace": NAMESPACE},
        "data": {"healthy": str(healthy).lower()},
    }
    present = await cluster.get(resource, NAMESPACE, HEALTH_NAME)
    if present is None:
        await cluster.create(resource, body)
    else:
        await cluster.update(resource, {**present, "data": body["data"]})


def status_of(commit: str, now: float, *, is_compared: bool, health: str = "Healthy") -> dict[str, Any]:
    """Return the status of a sync that has finished at this time.

    is_compared: whether the live state was compared after the sync; until then the health is that of before
    """
    reconciled = now + 1 if is_compared else now - 1
    return {
        "sync": {"status": "Synced", "revision": commit},
        "health": {"status": health},
        "operationState": {"phase": "Succeeded", "finishedAt": timestamp(now)},
        "reconciledAt": timestamp(reconciled),
    }


async def _write(cluster: HttpCluster, resource: Resource, name: str, status: dict[str, Any]) -> None:
    body = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": APPLICATION.kind,
        "metadata": {"name": name, "namespace": APPLICATIONS},
        "status": status,
    }
    present = await cluster.get(resource, APPLICATIONS, name)
    if present is None:
        await cluster.create(resource, body)
    else:
        await cluster.update(resource, {**present, "status": status})
