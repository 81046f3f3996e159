"""`pvbus explain`: the reasons for the state of a variant, a set, a Repository or a package revision.

The answer combines the tables of the bus, which hold the last decision of every service, with the live
object. Expressions are evaluated again, one by one, with the inputs that render has.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import click
import msgspec

from pvbus.cli.asking import options_of, tasks_of
from pvbus.cli.edits import kept_for
from pvbus.cli.explain_text import repository_lines, set_lines, variant_lines
from pvbus.cli.explainrevision import document_of, missing, revision_lines
from pvbus.cli.explainrollouts import rollouts_of
from pvbus.cli.failing import VariantFailure, failing_targets, grouped, unready_children
from pvbus.cli.gone import read_gone
from pvbus.cli.live import REVISION
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.output import FORMATS, emit
from pvbus.cli.progress import SET, VARIANT
from pvbus.cli.reading import bus_option, data_option, live_object, live_objects, open_existing_bus, read_rows
from pvbus.controlplane.packages.content import RENDER_IDEMPOTENT
from pvbus.core.api.packages import RENDER_REMARKS
from pvbus.core.cel import Budget, CelError, compile_expression, set_budget
from pvbus.core.errors import UsageError
from pvbus.core.kernel.conflicts import CONFLICTS
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import KEPT_LABEL, Key, sync_key
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.core.kernel.objects import annotation, owner_name, timestamp
from pvbus.core.kernel.promotionrows import PromotionRow, ReleaseRow
from pvbus.core.kernel.records import (
    DESIRED,
    LATEST,
    PROMOTIONS,
    RELEASES,
    RESULTS,
    SETRESULTS,
    SETS,
    TARGETS,
    UNROLL,
    VARIANTS,
    ChildResult,
    ChildRow,
    ChildState,
    DesiredRow,
    ResultRow,
    SetResult,
    SyncMarker,
    TargetRow,
)
from pvbus.core.promotion.protocol.unowned import address_of, unowned_key
from pvbus.core.variants.conditions.sets import confirm_command, dispute_text
from pvbus.core.variants.expressions import expressions_of
from pvbus.core.variants.template import row_variables
from pvbus.ports.bus import Bus
from pvbus.ports.cluster import Kind, Object

Document = dict[str, Any]


@click.command(
    short_help="Explain the state of a variant, set or revision.",
    epilog="""\b
Examples:
  pvbus explain default/web-edge-asia-asia-01-web
  pvbus explain default/web                                a set, where no variant has the name
  pvbus explain pvs/web -n default                         a set; its short name is kubectl's
  pvbus explain repository blueprints                      in the kubeconfig's namespace
  pvbus explain packagerevision edge.web.v1                also one that no variant has made
  pvbus explain default/web-edge-asia-asia-01-web -o json
""",
)
@object_argument("[KIND] NAME", (VARIANT, SET, REPOSITORY))
@namespace_option
@click.option("--set", "is_set", is_flag=True, help="NAME is a PackageVariantSet.")
@click.option("--repository", "is_repository", is_flag=True, help="NAME is a Repository.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--kubeconfig", help="The API server's kubeconfig; by default the data folder's.")
@data_option
@bus_option
def explain(
    words: tuple[str, ...],
    namespace: str | None,
    is_set: bool,
    is_repository: bool,
    output: str,
    kubeconfig: str | None,
    data: str,
    bus: str | None,
) -> None:
    """Say which set, target and object made a variant, what each expression gave, what was injected
    from where, which people are asked, and what it waits for.

    For a removal that is held it says how to confirm it. For a Repository it shows the conditions, and so the
    packages that cannot be served; for a PackageRevision the gates that are not met, who signed its
    conditions, and who moves it on. When an object is gone it says when and why, for as long as the bus keeps
    events (7 days). A NAME without a kind is a variant, or if there is none, a set. Exit code 1 when there is
    no such object.
    """
    if is_set and is_repository:
        raise UsageError("NAME names a set or a Repository, not both: give --set or --repository")
    kinds = (SET,) if is_set else (REPOSITORY,) if is_repository else (VARIANT, SET, REPOSITORY, REVISION)
    target = named(words, kinds, Scope(namespace, data, kubeconfig))
    kind, key = target.kind or (kinds[0] if len(kinds) == 1 else None), target.key
    if kind == REPOSITORY:
        document, lines = asyncio.run(_repository(key, kubeconfig, data)), repository_lines
    elif kind == REVISION:
        document, lines = asyncio.run(_revision(key, kubeconfig, data, bus)), revision_lines
    else:
        document = asyncio.run(_explain(key, kind, kubeconfig, data, bus))
        lines = set_lines if "set" in document else variant_lines
    if output == "text":
        click.echo("\n".join(lines(document)))
    else:
        emit(document, output)
    sys.exit(0 if document["known"] else 1)


async def _repository(key: Key, kubeconfig: str | None, data: str) -> Document:
    live = await live_object(data, kubeconfig, REPOSITORY, key)
    found = live if isinstance(live, dict) else None
    status = (found or {}).get("status") or {}
    return {
        "repository": str(key),
        "known": found is not None,
        "packageRevisions": status.get("packageCount", 0),
        "conditions": status.get("conditions") or [],
        "liveNote": live if isinstance(live, str) else "",
    }


async def _revision(key: Key, kubeconfig: str | None, data: str, bus_url: str | None) -> Document:
    live = await live_object(data, kubeconfig, REVISION, key)
    if not isinstance(live, dict):
        return missing(key, live)
    async with open_existing_bus(data, bus_url) as bus:
        owner = owner_name(live, VARIANT.kind)
        at = str(Key(key.namespace, owner)) if owner else unowned_key(*key)
        promotion = await _promotion(bus, at)
        asked = await tasks_of(bus, key.namespace, (key.name,), options_of(data, kubeconfig))
    return document_of(key, live, promotion, asked)


async def _explain(
    key: Key, kind: Kind | None, kubeconfig: str | None, data: str, bus_url: str | None
) -> Document:
    """Explain a set or a variant.

    kind: None for the variant of this name, or if there is none, the set
    """
    async with open_existing_bus(data, bus_url) as bus:
        is_set = kind == SET or (kind is None and await _is_only_set(bus, key))
        document = await bus_document(bus, key, is_set=is_set, hints=options_of(data, kubeconfig))
    live = await live_object(data, kubeconfig, SET if is_set else VARIANT, key)
    document["live"] = live if isinstance(live, dict) else None
    document["liveNote"] = live if isinstance(live, str) else ""
    document["conditions"] = (document["live"] or {}).get("status", {}).get("conditions") or document[
        "conditions"
    ]
    document["known"] = bool(document["known"] or document["live"])
    marked = await live_objects(data, kubeconfig, REVISION, key.namespace, f"{KEPT_LABEL}=true")
    document["kept"] = kept_for(marked, key, is_set=is_set)
    if document["live"] is not None:
        if not is_set:
            revisions = await _revisions(data, kubeconfig, key, document["revisions"])
            document["conflicts"] = list(_conflicts(revisions))
            document["renders"] = list(_renders(revisions))
        document["live"].get("metadata", {}).pop("managedFields", None)
    return document


async def bus_document(bus: Bus, key: Key, *, is_set: bool, hints: str = "") -> Document:
    """Return the facts that the bus has of a variant or a set, without a look at the API server.

    hints: the options that commands need to ask that server
    """
    kind = SET if is_set else VARIANT
    document = await (_set(bus, key) if is_set else _variant(bus, key))
    if not is_set:
        names = (*document["revisions"], *(each["revision"] for each in document["promotion"]))
        document["tasks"] = await tasks_of(bus, key.namespace, names, hints)
    document["gone"] = None if document["known"] else await read_gone(bus, kind, key)
    document["conditions"] = await _conditions(bus, kind, key)
    document["liveNote"] = ""
    document["waitsFor"] += await _note_if_unlisted(bus, kind, key)
    return document


async def _is_only_set(bus: Bus, key: Key) -> bool:
    """Return whether a set has this name, or had it last, and no variant has."""
    name = str(key)
    is_variant, is_set = [name in await read_rows(bus, topic, key=name) for topic in (VARIANTS, SETS)]
    if is_variant or (await _variant(bus, key))["known"] or (await read_gone(bus, VARIANT, key))["at"]:
        return False
    return is_set or (await _set(bus, key))["known"] or bool((await read_gone(bus, SET, key))["at"])


async def _revisions(data: str, kubeconfig: str | None, key: Key, names: list[str]) -> list[Object]:
    """Return the package revisions that can be read."""
    read = [await live_object(data, kubeconfig, REVISION, (key.namespace, name)) for name in names]
    return [each for each in read if isinstance(each, dict)]


def _conflicts(revisions: list[Object]) -> Iterator[Document]:
    """Yield the merge conflicts of upgrades, as the revisions report them."""
    for revision in revisions:
        with suppress(msgspec.DecodeError):
            reported = msgspec.json.decode(annotation(revision, CONFLICTS), type=list[dict[str, Any]])
            yield from ({"revision": revision["metadata"]["name"], **conflict} for conflict in reported)


def _renders(revisions: list[Object]) -> Iterator[Document]:
    """Yield the package store's remarks on the last render of each revision."""
    for revision in revisions:
        conditions = (revision.get("status") or {}).get("conditions") or ()
        said = [annotation(revision, RENDER_REMARKS)]
        said += [each.get("message", "") for each in conditions if each.get("type") == RENDER_IDEMPOTENT]
        yield from ({"revision": revision["metadata"]["name"], "remark": text} for text in filter(None, said))


async def _conditions(bus: Bus, kind: Kind, key: Key) -> list[Document]:
    rows = await read_rows(bus, LATEST, key=str(key))
    prefix = f"{kind.kind}|{key}|"
    events = [msgspec.json.decode(v, type=ConditionEvent) for k, v in rows.items() if k.startswith(prefix)]
    return [msgspec.to_builtins(event.condition) for event in events]


async def _note_if_unlisted(bus: Bus, kind: Kind, key: Key) -> list[str]:
    """Return a note if the list of the kind is not complete yet, or leaves the namespace out.

    Every partition has the marker; one is read.
    """
    rows = await read_rows(bus, SETS if kind == SET else VARIANTS, key=str(key))
    value = rows.get(sync_key(*kind))
    marker = msgspec.json.decode(value, type=SyncMarker) if value else SyncMarker(state="syncing", epoch=0)
    if marker.state != "ok":
        return [f"{kind.kind}s to be listed ({marker.state})"]
    problem = marker.coverage.problem(key.namespace)
    return [f"{kind.kind}s to be listed: {problem}"] if problem else []


# ---------------------------------------------------------------- a variant


async def _variant(bus: Bus, key: Key) -> Document:
    targets = _below(await read_rows(bus, TARGETS, key=str(key)), str(key))
    desired = _decoded((await read_rows(bus, DESIRED, key=str(key))).get(str(key)), DesiredRow)
    result = _decoded((await read_rows(bus, RESULTS, key=str(key))).get(str(key)), ResultRow)
    makers = [
        await _maker(bus, key, name, msgspec.json.decode(value, type=TargetRow))
        for name, value in targets.items()
    ]
    rollouts = await rollouts_of(bus, key)
    canaries = [
        f"rollout {each['policy']}, which waits for {w}" for each in rollouts for w in each["waitsFor"]
    ]
    return {
        "variant": str(key),
        "known": bool(makers or desired or result),
        "madeBy": makers,
        "decided": msgspec.to_builtins(desired),
        "revisions": list(result.revisions) if result else [],
        "upstream": result.upstream if result else "",
        "injected": msgspec.to_builtins(result.injected) if result else [],
        "waitsFor": [*(result.waiting if result else ()), *canaries],
        "rollouts": rollouts,
        "promotion": list(await _promotion(bus, str(key))),
    }


async def _promotion(bus: Bus, key: str) -> list[Document]:
    """Return why each open revision is not proposed, or what becomes of it; [] where promote does not run.
    key: the variant's, or that of a revision which no variant owns"""
    at = str(address_of(key))
    row = _decoded((await read_rows(bus, PROMOTIONS, key=at)).get(key), PromotionRow)
    if row is None:
        return []
    done = _decoded((await read_rows(bus, RELEASES, key=at)).get(key), ReleaseRow)
    carried = {(each.revision, each.row_digest): each for each in (done.carried if done is not None else ())}
    found = []
    for verdict in row.verdicts:
        outcome = carried.get((verdict.revision, verdict.row_digest))
        found.append(
            {
                "revision": verdict.revision,
                "reason": verdict.reason,
                "message": verdict.message,
                "order": verdict.order,
                "outcome": outcome.outcome if outcome is not None and verdict.order else "",
                "outcomeMessage": outcome.message if outcome is not None and verdict.order else "",
            }
        )
    return found


async def _maker(bus: Bus, key: Key, set_name: str, row: TargetRow) -> Document:
    """Describe the part of one set in a variant."""
    skey = f"{key.namespace}/{set_name}"
    children = await read_rows(bus, UNROLL, key=skey)
    child = _decoded(children.get(f"{skey}|{key.name}"), ChildRow)
    rollup = _decoded((await read_rows(bus, SETRESULTS, key=skey)).get(skey), SetResult)
    return {
        "set": skey,
        "state": child.state.value if child else row.state,
        "target": f"spec.targets[{row.target}]",
        "object": child.okey if child else "",
        "upstream": msgspec.to_builtins(row.upstream),
        "downstream": msgspec.to_builtins(row.downstream),
        "expressions": list(_expressions(row)),
        "removal": _removal(child, rollup),
        "held": _held(skey, rollup) if child is not None and child.state is ChildState.HELD else None,
    }


def _removal(child: ChildRow | None, rollup: SetResult | None) -> Document | None:
    """Return the progress of the removal of a variant that no target wants any more, None if it is wanted."""
    if child is None or child.state is ChildState.PRESENT:
        return None
    since = timestamp(child.since) if child.since else ""
    waits_for = rollup.waiting if rollup is not None else ""
    return {"state": child.state.value, "since": since, "waitsFor": waits_for}


def _held(skey: str, rollup: SetResult | None) -> Document:
    """Return the commands to show and confirm the held removals; no token yet: the list is being written."""
    token = rollup.hold.token if rollup is not None and rollup.hold is not None else ""
    return {
        "token": token,
        "show": f"pvbus confirm {skey} --show",
        "confirm": confirm_command(Key.parse(skey), token) if token else "",
    }


def _expressions(row: TargetRow) -> Iterator[Document]:
    """Evaluate every expression of a row, except the downstream's, whose results the row holds."""
    variables = row_variables(row)
    set_budget(variables, Budget())
    for field, text in expressions_of(msgspec.to_builtins(row.template), "template"):
        entry: Document = {"field": field, "expression": text}
        if field.startswith("template.downstream."):
            entry["value"] = row.downstream.repo if field.endswith("repoExpr") else row.downstream.package
        else:
            try:
                entry["value"] = compile_expression(text).evaluate(variables)
            except CelError as exc:
                entry["error"] = str(exc)
        yield entry


# ---------------------------------------------------------------- a set


async def _set(bus: Bus, key: Key) -> Document:
    skey = str(key)
    children = {
        name: msgspec.json.decode(value, type=ChildRow)
        for name, value in _below(await read_rows(bus, UNROLL, key=skey), skey).items()
    }
    reported = await read_rows(bus, SETRESULTS, key=skey)
    result = _decoded(reported.get(skey), SetResult)
    results = {
        name: msgspec.json.decode(value, type=ChildResult) for name, value in _below(reported, skey).items()
    }
    states: dict[str, int] = {}
    for child in children.values():
        states[child.state.value] = states.get(child.state.value, 0) + 1
    held = sorted(name for name, child in children.items() if child.state is ChildState.HELD)
    return {
        "set": skey,
        "known": bool(children or result),
        "result": msgspec.to_builtins(result),
        "children": states,
        "failingTargets": grouped(await _failing(bus, key, result)),
        "notReady": grouped(await unready_children(bus, key, children, results)),
        "held": {"variants": held, **_held(skey, result)} if held else None,
        "disputes": list(map(dispute_text, result.disputes)) if result else [],
        "removing": result.waiting if result else "",
        "waitsFor": [] if result else ["its first evaluation"],
    }


async def _failing(bus: Bus, key: Key, result: SetResult | None) -> list[VariantFailure]:
    """Return the targets that fail. A valid set has none, and is not evaluated."""
    if result is None or result.reason == "Valid":
        return []
    return await failing_targets(bus, key)


def _below(rows: Mapping[str, bytes], key: str) -> dict[str, bytes]:
    """Return the rows with keys `<key>|<rest>`, by `<rest>`."""
    prefix = f"{key}|"
    return {name[len(prefix) :]: value for name, value in rows.items() if name.startswith(prefix)}


def _decoded(value: bytes | None, type_: Any) -> Any:
    return None if value is None else msgspec.json.decode(value, type=type_)
