"""`pvbus undo`: gives a set or a RolloutPolicy a former spec again, after the plan of it and a question."""

import asyncio
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.markup import escape, render

from pvbus.adapters.manifests import Manifest
from pvbus.cli.differences import differences
from pvbus.cli.fleet import kubeconfig_option, persist, require_served
from pvbus.cli.live import connect_live
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.plan import progress_printer
from pvbus.cli.planinput import PlanInput
from pvbus.cli.planpreview import Plan, Request, plan_on, settings
from pvbus.cli.planrollouts import rollout_lines, rollouts_of
from pvbus.cli.planscreen import screen_lines
from pvbus.cli.progress import SET
from pvbus.cli.reading import data_option
from pvbus.cli.spechistory import change_words, former_of, read_history, revision_numbered
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objectrows import POLICY
from pvbus.core.kernel.objects import annotation
from pvbus.core.kernel.specretention import CHANGE_CAUSE, CHANGED_AT, spec_of
from pvbus.ports.cluster import Cluster, Kind, Object, Resource
from pvbus.telemetry.logs import configure

if TYPE_CHECKING:
    from pvbus.adapters.kubernetes.cluster import HttpCluster

KINDS = (SET, POLICY)


class Live(NamedTuple):
    """The live system.

    data: the folder of its bus, None if that is not known
    kubeconfig: the kubeconfig that is given, None for that of the folder
    """

    data: str | None
    kubeconfig: str | None


GITOPS_MANAGERS: Mapping[str, str] = {
    "argocd-controller": "Argo CD",
    "argocd-application-controller": "Argo CD",
    "kustomize-controller": "Flux",
    "helm-controller": "Flux",
    "fleetagent": "Fleet",
}
"""The names under which such programs write, as managedFields has them, and how people call them."""
GITOPS_MARKS: Mapping[str, str] = {
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
    "objectset.rio.cattle.io/id": "Fleet",
}
"""Labels and annotations of what they manage."""


@click.command(
    short_help="Give a set or a policy the spec that it had before.",
    epilog="""\b
Examples:
  pvbus history packagevariantset/web                        which specs there were
  pvbus undo packagevariantset/web                           the one before the current one
  pvbus undo pvs web --to-revision 3 --reason "asia is down"
  pvbus undo rolloutpolicy/web                               the waves that a policy had before

Exit codes: 0 done, or the object has this spec already; 1 there is no such object or revision, Argo CD, Flux
or Fleet manages it, or nothing was changed; 2 bad usage.
""",
)
@object_argument("[KIND] NAME", KINDS)
@namespace_option
@click.option("--to-revision", type=click.IntRange(min=1), help="The revision, as in pvbus history.")
@click.option("--reason", help="Why, for the history and those who read it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@kubeconfig_option
@data_option
def undo(
    words: tuple[str, ...],
    namespace: str | None,
    to_revision: int | None,
    reason: str | None,
    yes: bool,
    kubeconfig: str | None,
    data: str,
) -> None:
    """Give a PackageVariantSet or a RolloutPolicy a former spec again: show the plan, ask, and write it.

    Without --to-revision it is the newest spec that differs from the current one. The write is refused if
    more than the status of the object has changed since the plan was made. An object that Argo CD, Flux or
    Fleet manages is refused: they would put the current spec back. The plan of a policy is what its next
    rollout would do.
    """
    configure("error")
    kind, key, _ = named(words, KINDS, Scope(namespace, data, kubeconfig))

    async def run() -> str:
        folder = None if kubeconfig else data
        async with connect_live(folder, kubeconfig) as cluster:
            return await _undo(cluster, Live(folder, kubeconfig), kind or SET, key, to_revision, reason, yes)

    click.echo(asyncio.run(run()))


async def _undo(
    cluster: "HttpCluster",
    live: Live,
    kind: Kind,
    key: Key,
    to_revision: int | None,
    reason: str | None,
    yes: bool,
) -> str:
    """Undo the spec of a set or a policy; return the message."""
    owner, retained = await read_history(cluster, kind, key)
    name = f"{kind.kind} {key}"
    if manager := gitops_manager(owner):
        raise PermanentError(
            f"{manager} manages {name} and would put the current spec back: revert the change in "
            f"the git repository that {manager} reads",
            reason="Managed",
        )
    spec = owner.get("spec") or {}
    chosen = (
        former_of(retained, spec)
        if to_revision is None
        else revision_numbered(retained, to_revision, kind, key)
    )
    if chosen is None:
        raise PermanentError(f"{name} has only ever had this spec, as far as it is kept")
    number = chosen.get("revision")
    if spec_of(chosen) == spec:
        return f"{name} has the spec of revision {number} already"
    resource = await require_served(cluster, kind)
    wanted = with_spec(resource, owner, chosen, reason)
    for change in change_words(differences(spec, spec_of(chosen), "spec")):
        click.echo(change)
    await _show_plan(cluster, live, wanted)
    if not (yes or sys.stdin.isatty()):
        raise UsageError("cannot ask here, as this is no terminal: add --yes to undo it")
    if not yes and not click.confirm(f"Give {name} the spec of revision {number} again?"):
        raise PermanentError("nothing was changed", reason="Declined")
    await persist(partial(write_shown, cluster, resource, owner, wanted))
    follow = f"to wait for it: pvbus wait pvs/{key}" if kind == SET else f"see: pvbus rollout status {key}"
    return f"{name} has the spec of revision {number} again; {follow}"


async def write_shown(cluster: Cluster, resource: Resource, shown: Object, wanted: Object) -> None:
    """Write an object that is as it was shown to a person but for its status, which may change at any moment.

    shown: the object that the plan was made of. wanted: what is written instead
    Raises PermanentError if anything else has changed, ConflictError to look again.
    """
    meta = shown["metadata"]
    live = await cluster.get(resource, meta["namespace"], meta["name"])
    if live is None or _without_versions(live) != _without_versions(shown):
        raise PermanentError(
            f"{resource.kind} {meta['namespace']}/{meta['name']} has changed since the plan was made; "
            "nothing was written: try again",
            reason="Changed",
        )
    version = live["metadata"]["resourceVersion"]
    await cluster.update(resource, {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}})


def _without_versions(obj: Object) -> Object:
    meta = {k: v for k, v in obj["metadata"].items() if k not in ("resourceVersion", "managedFields")}
    return {"metadata": meta, "spec": obj.get("spec")}


async def _show_plan(cluster: "HttpCluster", live: Live, wanted: Object) -> None:
    """Print what follows from a spec. Raises PermanentError if it cannot be planned."""
    meta = {name: value for name, value in wanted["metadata"].items() if name != "managedFields"}
    manifest = Manifest(Path("history"), 1, {**wanted, "metadata": meta})
    request = Request(PlanInput((), (manifest,)), settings(), progress=progress_printer("undo"))
    plan = await plan_on(cluster, request, live.data)
    lines = screen_lines(plan.document)
    for line in (*lines, *await _rollout_lines(plan, live)):
        click.echo(render(line).plain)
    if errors := plan.document.get("errors"):
        raise PermanentError(f"nothing was changed: {errors[0]}")


async def _rollout_lines(plan: Plan, live: Live) -> list[str]:
    try:
        return [] if plan.inputs is None else list(rollout_lines(await rollouts_of(plan.inputs, *live)))
    except PermanentError as exc:  # rights on these kinds are promotion's, which may be others'
        return [escape(f"what rollouts make of this is not known: {exc}")]


def with_spec(resource: Resource, owner: Object, revision: Object, reason: str | None) -> Object:
    """Return an object with the spec of a revision."""
    meta = owner["metadata"]
    undone = f"undo to revision {revision.get('revision')} of {annotation(revision, CHANGED_AT)}"
    cause = f"{undone}: {reason}" if reason else undone
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        **owner,
        "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), CHANGE_CAUSE: cause}},
        "spec": spec_of(revision),
    }


def gitops_manager(owner: Object) -> str:
    """Return the program that keeps an object as a git repository has it, "" if none does."""
    meta: dict[str, Any] = owner["metadata"]
    for mark, program in GITOPS_MARKS.items():
        if mark in {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}:
            return program
    return next(filter(None, map(_program, _managers(meta))), "")


def _managers(meta: Mapping[str, Any]) -> Iterable[str]:
    """Yield the names of those who own fields, but not of those who write the status alone."""
    for entry in meta.get("managedFields") or ():
        if not entry.get("subresource"):
            yield str(entry.get("manager") or "")


def _program(manager: str) -> str:
    return GITOPS_MANAGERS.get(manager, "Argo CD" if manager.startswith("argocd") else "")
