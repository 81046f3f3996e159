"""Whether each service may do what it does: access reviews, which the API server answers by its own rules."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from pvbus.adapters.kubernetes.access import is_allowed
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.doctor.findings import Finding
from pvbus.cli.progress import SET
from pvbus.core.api.variants import PackageVariantSet
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.rights import OBSERVED_LABEL, OBSERVED_VERBS, Request, Right, rights_of
from pvbus.core.variants.unroll.contexts import selected_kinds
from pvbus.install.objects import service_name
from pvbus.ports.cluster import Kind, Resource

AREA = "rights"
_ACCOUNT = "system:serviceaccount:"


class Account(NamedTuple):
    """Whose rights are asked for.

    user: the user, with {service} in place of the service; "" for our own
    installation: the namespace of the services
    namespaces: the namespaces that the services are limited to; () if they are not, None to read it from the
        installation
    """

    user: str
    installation: str
    namespaces: tuple[str, ...] | None


class Need(NamedTuple):
    """A right that a service has to have.

    service: the service
    right: the right
    is_observed: whether it is for a kind that a set or a package names
    is_namespaced: whether that kind has namespaces
    """

    service: str
    right: Right
    is_observed: bool = False
    is_namespaced: bool = True


def needs_of(
    services: Sequence[str], observed: Iterable[Resource], *, namespaced: bool = False
) -> Iterator[Need]:
    """Yield the rights that services need.

    observed: the kinds that sets select and packages inject
    """
    for service in services:
        rights = rights_of(service, namespaced=namespaced)
        own = {(right.group, right.resource) for right in rights}
        yield from (Need(service, right) for right in rights)
        for resource in observed if service == "ingest" else ():
            if (resource.group, resource.plural) not in own:
                right = Right(resource.group, resource.plural, OBSERVED_VERBS, "")
                yield Need(service, right, is_observed=True, is_namespaced=resource.namespaced)


async def check_rights(
    cluster: HttpCluster, services: Sequence[str], observed: Iterable[Resource], whose: Account
) -> list[Finding]:
    """Ask for every right, in each namespace that the services are limited to."""
    needs = list(needs_of(services, observed, namespaced=bool(whose.namespaces)))
    checks = [_check(cluster, need, whose, name) for need in needs for name in whose.namespaces or ("",)]
    return list(await asyncio.gather(*checks))


async def _check(cluster: HttpCluster, need: Need, whose: Account, namespace: str) -> Finding:
    """Ask for one right.

    namespace: the namespace to ask for, "" for all at once
    """
    subject = f"{need.service}: {need.right.title}" + (f" in {namespace}" if namespace else "")
    user = whose.user
    if namespace and need.is_observed and not need.is_namespaced:
        message = "has no namespace, so a service that is limited to some cannot observe it"
        action = "take it out of the sets, or unset PVBUS_NAMESPACES"
        return Finding(AREA, subject, "wrong", message, action)
    try:
        answers = [await _is_allowed(cluster, need, verb, user, namespace) for verb in need.right.verbs]
    except PermanentError as exc:
        return Finding(AREA, subject, "unknown", f"the API server does not say: {exc}", _unknown_action(user))
    missing = [verb for verb, allowed in zip(need.right.verbs, answers, strict=True) if not allowed]
    if not missing:
        return Finding(AREA, subject, "ok", f"may {', '.join(need.right.verbs)}")
    return Finding(AREA, subject, "wrong", f"may not {', '.join(missing)}", _action(need, whose, namespace))


def _unknown_action(user: str) -> str:
    return "ask as a user who can create subjectaccessreviews.authorization.k8s.io" if user else ""


def _action(need: Need, whose: Account, namespace: str) -> str:
    if need.is_observed and namespace:
        role = f"pvbus-observes-{need.right.title}"
        account = f"{whose.installation}:{service_name(need.service)}"
        return (
            f"kubectl -n {namespace} create role {role} --verb={','.join(need.right.verbs)} "
            f"--resource={need.right.title} && kubectl -n {namespace} create rolebinding {role} "
            f"--role={role} --serviceaccount={account}"
        )
    if need.is_observed:
        role = f"pvbus-observes-{need.right.title}"
        return (
            f"kubectl create clusterrole {role} --verb={','.join(need.right.verbs)} "
            f"--resource={need.right.title} && kubectl label clusterrole {role} {OBSERVED_LABEL}=true"
        )
    other = "" if whose.user else ", or ask for the service's account with --as, not for yourself"
    if namespace:
        names = ",".join(whose.namespaces or ())
        name = f"Role {service_name(need.service)} in {namespace}"
        return f"bind the {name}: pvbus install --namespaces {names}{other}"
    return f"bind the ClusterRole {service_name(need.service)}: pvbus install{other}"


async def _is_allowed(cluster: HttpCluster, need: Need, verb: str, user: str, namespace: str) -> bool:
    """Raises PermanentError if the API server has no reviews, or does not let us create one."""
    name = user.replace("{service}", need.service)
    whose = {"user": name, "groups": groups_of(name)} if user else None
    return await is_allowed(cluster, Request(verb, need.right.group, need.right.resource, namespace), whose)


def groups_of(user: str) -> list[str]:
    """Return the groups that Kubernetes gives to a user by itself, as to every service account."""
    groups = ["system:authenticated"]
    if user.startswith(_ACCOUNT):
        namespace = user.removeprefix(_ACCOUNT).partition(":")[0]
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    return groups


async def read_selected_kinds(cluster: HttpCluster, namespace: str | None = None) -> set[Kind]:
    """Return the kinds that the sets of one or all namespaces select, but for sets that cannot be decoded."""
    resource = await cluster.resource(SET, version="v1alpha2")
    if resource is None:
        return set()
    kinds: set[Kind] = set()
    for obj in (await cluster.list(resource, namespace)).items:
        try:
            spec = msgspec.convert(obj, PackageVariantSet).spec
        except msgspec.ValidationError:
            continue
        kinds |= {Kind(*kind.rsplit("/", 1)) for kind in selected_kinds(spec)}
    return kinds
