"""The program of the story that deploys: one Application per package, shaped as Argo CD's, which lags.

It shows a new revision first with the health of the former one, as Argo CD does while it syncs. So what the
rollout may believe is only what the last comparison after the sync says.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.demos.story import LOOK_SECONDS, NAMESPACE
from pvbus.cli.live import REVISION
from pvbus.core.errors import ConflictError, TransientError
from pvbus.core.kernel.objects import timestamp
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Kind, Object, Resource

APPLICATION = Kind("argoproj.io", "Application")
APPLICATIONS = "argocd"
LAG_SECONDS = 3.0
"""Between a publication, its sync and the health after it, each."""

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


async def deploy(cluster: HttpCluster) -> None:
    """Bring each Application to the latest published commit of its package, late. Never returns."""
    synced: dict[str, tuple[str, float]] = {}
    while True:
        with contextlib.suppress(ConflictError, TransientError):
            resource, revisions = await cluster.resource(APPLICATION), await cluster.resource(REVISION)
            if resource is not None and revisions is not None:
                listed = (await cluster.list(revisions, NAMESPACE)).items
                for name, commit in _wanted(listed):
                    await _bring(cluster, resource, name, commit, synced)
        await asyncio.sleep(LOOK_SECONDS)


def _wanted(revisions: list[Object]) -> Iterator[tuple[str, str]]:
    """Yield the variant of each package, and the commit of its latest published revision."""
    latest: dict[str, Object] = {}
    for obj in revisions:
        owners = obj["metadata"].get("ownerReferences") or ()
        if lifecycle_of(obj) != "Published" or not owners:
            continue
        former = latest.get(owners[0]["name"])
        if former is None or obj["spec"]["revision"] > former["spec"]["revision"]:
            latest[owners[0]["name"]] = obj
    for name, obj in sorted(latest.items()):
        yield name, obj["status"]["selfLock"]["git"]["commit"]


async def _bring(
    cluster: HttpCluster, resource: Resource, name: str, commit: str, synced: dict[str, tuple[str, float]]
) -> None:
    """Write the next of three statuses: the new commit with old health, no health yet, and health."""
    former, since = synced.get(name, ("", 0.0))
    now = time.monotonic()
    if former != commit:
        synced[name] = (commit, now)
        await _write(cluster, resource, name, status_of(commit, time.time(), is_compared=False))
    elif since and now - since > LAG_SECONDS:
        synced[name] = (commit, 0.0)
        await _write(cluster, resource, name, status_of(commit, time.time(), is_compared=True))


def status_of(commit: str, now: float, *, is_compared: bool) -> dict[str, Any]:
    """Return the status of a sync that has finished at this time.

    is_compared: whether the live state was compared after the sync; until then the health is that of before
    """
    reconciled = now + 1 if is_compared else now - 1
    return {
        "sync": {"status": "Synced", "revision": commit},
        "health": {"status": "Healthy"},
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
