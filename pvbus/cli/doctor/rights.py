"""Whether each service may do what it does: access reviews, which the API server answers by its own rules."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from pvbus.adapters.kubernetes.access import is_allowed
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.doctor.findings import Finding
from pvbus.cli.install.objects import service_name
from pvbus.cli.progress import SET
from pvbus.core.api.variants import PackageVariantSet
from pvbus.core.errors import PermanentError
from pvbus.core.rights import OBSERVED_LABEL, OBSERVED_VERBS, RIGHTS, Request, Right
from pvbus.core.unroll.contexts import selected_kinds
from pvbus.ports.cluster import Kind, Resource

AREA = "rights"
_ACCOUNT = "system:serviceaccount:"


class Need(NamedTuple):
    """A right that a service has to have. is_observed: for a kind that a set or a package names."""

    service: str
    right: Right
    is_observed: bool = False


def needs_of(services: Sequence[str], observed: Iterable[Resource]) -> Iterator[Need]:
    """Yield what services need. observed: the kinds that sets select and packages inject."""
    for service in services:
        own = {(right.group, right.resource) for right in RIGHTS[service]}
        yield from (Need(service, right) for right in RIGHTS[service])
        for resource in observed if service == "ingest" else ():
            if (resource.group, resource.plural) not in own:
                yield Need(service, Right(resource.group, resource.plural, OBSERVED_VERBS, ""), True)


async def check_rights(
    cluster: HttpCluster, services: Sequence[str], observed: Iterable[Resource], user: str
) -> list[Finding]:
    """Ask for every right. user: whose, with {service} for the service; "" for our own."""
    needs = list(needs_of(services, observed))
    return list(await asyncio.gather(*(_check(cluster, need, user) for need in needs)))


async def _check(cluster: HttpCluster, need: Need, user: str) -> Finding:
    subject = f"{need.service}: {need.right.title}"
    try:
        answers = [await _is_allowed(cluster, need, verb, user) for verb in need.right.verbs]
    except PermanentError as exc:
        return Finding(AREA, subject, "unknown", f"the API server does not say: {exc}", _unknown_action(user))
    missing = [verb for verb, allowed in zip(need.right.verbs, answers, strict=True) if not allowed]
    if not missing:
        return Finding(AREA, subject, "ok", f"may {', '.join(need.right.verbs)}")
    return Finding(AREA, subject, "wrong", f"may not {', '.join(missing)}", _action(need, user))


def _unknown_action(user: str) -> str:
    return "ask as a user who may create subjectaccessreviews.authorization.k8s.io" if user else ""


def _action(need: Need, user: str) -> str:
    if need.is_observed:
        role = f"pvbus-observes-{need.right.title}"
        return (
            f"kubectl create clusterrole {role} --verb={','.join(need.right.verbs)} "
            f"--resource={need.right.title} && kubectl label clusterrole {role} {OBSERVED_LABEL}=true"
        )
    whose = "" if user else ", or ask for the service's account with --as, not for yourself"
    return f"bind the ClusterRole {service_name(need.service)}: pvbus install{whose}"


async def _is_allowed(cluster: HttpCluster, need: Need, verb: str, user: str) -> bool:
    """Raises PermanentError if the API server has no reviews, or does not let us create one."""
    name = user.replace("{service}", need.service)
    whose = {"user": name, "groups": groups_of(name)} if user else None
    return await is_allowed(cluster, Request(verb, need.right.group, need.right.resource), whose)


def groups_of(user: str) -> list[str]:
    """Return the groups that a user has of itself: Kubernetes gives them to every service account."""
    groups = ["system:authenticated"]
    if user.startswith(_ACCOUNT):
        namespace = user.removeprefix(_ACCOUNT).partition(":")[0]
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    return groups


async def selected(cluster: HttpCluster) -> set[Kind]:
    """Return the kinds that the sets of the cluster select. Sets that cannot be decoded are left out."""
    resource = await cluster.resource(SET, version="v1alpha2")
    if resource is None:
        return set()
    kinds: set[Kind] = set()
    for obj in (await cluster.list(resource)).items:
        try:
            spec = msgspec.convert(obj, PackageVariantSet).spec
        except msgspec.ValidationError:
            continue
        kinds |= {Kind(*kind.rsplit("/", 1)) for kind in selected_kinds(spec)}
    return kinds
