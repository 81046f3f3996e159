"""`pvbus diff`: shows what a variant's draft changes, and settles the conflicts of its upgrade."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from pvbus.cli.differences import diff_lines, unified
from pvbus.cli.edits import edit_lines, edits_of
from pvbus.cli.explain_text import conflict_value, is_warning
from pvbus.cli.fleet import (
    Member,
    Target,
    existing,
    files_of,
    key_of,
    kubeconfig_option,
    members_of,
    require_served,
    run_connected,
    selector_at,
)
from pvbus.cli.live import FILES, REVISION
from pvbus.cli.objectnames import Scope, named, namespace_option, object_argument
from pvbus.cli.output import FORMATS, emit
from pvbus.cli.progress import SET, VARIANT
from pvbus.cli.reading import data_option
from pvbus.controlplane.packages.upgrading import Names
from pvbus.core.errors import ConflictError, PermanentError, UsageError
from pvbus.core.kernel.conflicts import ABSENT, CONFLICTS, Conflict, shown
from pvbus.core.kernel.keys import Key
from pvbus.core.promotion.protocol.proposals import conflicts_of
from pvbus.core.variants.inject.renderstatus import render_status
from pvbus.core.variants.merge import MergeError
from pvbus.core.variants.merge.copies import upstream_texts
from pvbus.core.variants.merge.taking import beside, chosen, value_of, with_value
from pvbus.core.variants.revisions.owning import PUBLISHED, lifecycle_of
from pvbus.core.variants.revisions.signatures import shown_digest
from pvbus.core.yaml.editor import YamlError
from pvbus.ports.cluster import Cluster, Object

Returned = TypeVar("Returned")
SECOND_TRY_SECONDS = 0.5  # after a conflict: what was written may not be readable at once


@click.command(
    short_help="Show what a variant's draft changes; settle conflicts.",
    epilog="""\b
Examples:
  pvbus diff default/web-edge-asia-asia-01-web               the draft against the published revision
  pvbus diff default/web-edge-asia-asia-01-web --upstream    the draft against the upstream it was made from
  pvbus diff default/web-edge-asia-asia-01-web --take local spec.replicas
  pvbus diff default/web-edge-asia-asia-01-web --take upstream spec.replicas deployment.yaml
  pvbus diff --set default/web                               the drafts of a set that people have edited

\b
Exit codes: 0 shown or settled; 1 no such variant or conflict, or the draft cannot be changed; 2 bad usage.
""",
)
@object_argument("[KIND] NAME [FIELD [FILE]]", (VARIANT, SET), required=False)
@namespace_option
@click.option(
    "--upstream", is_flag=True, help="Compare with the upstream's revision, not with the published one."
)
@click.option(
    "--take",
    type=click.Choice(["local", "upstream"]),
    help="Settle the conflict in FIELD (of FILE, where several have it): the draft gets this side's value, "
    "and the conflict goes from the list.",
)
@click.option(
    "--set",
    "set_name",
    metavar="[NAMESPACE/]SET",
    help="List the drafts of a whole set that people have edited: these stay when the set is deleted.",
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@kubeconfig_option
@data_option
def diff(
    words: tuple[str, ...],
    namespace: str | None,
    upstream: bool,
    take: str | None,
    set_name: str | None,
    output: str,
    kubeconfig: str | None,
    data: str,
) -> int:
    """Show what publishing a variant's draft would change, after the conflicts of its last upgrade.

    A conflict is a value that this package and its upstream have both changed. The draft has upstream's
    value, except where a whole sub-package (its name ends with a slash), file or object is in conflict, or
    a list element that was deleted here: there it is as it was. `pvbus propose` refuses the draft until each
    conflict is settled with --take.
    """
    target, field, where = _named(words, set_name, Scope(namespace, data, kubeconfig))
    key = target.key
    if target.kind == SET:
        if take or upstream or field:
            raise UsageError("a set has no draft of its own: leave out FIELD, --take and --upstream")
        edits = asyncio.run(run_connected(data, kubeconfig, partial(edits_of, key=key)))
        if output == "text":
            click.echo("\n".join(edit_lines(edits)))
        else:
            emit(edits, output)
        return 0
    if bool(take) != bool(field):
        raise UsageError("--take settles the conflict in one FIELD: give both, or none to see the conflicts")
    if take and field:
        work = partial(settle, key=key, side=take, field=field, where=where)
        click.echo(asyncio.run(run_connected(data, kubeconfig, work)))
        return 0
    document = asyncio.run(
        run_connected(data, kubeconfig, partial(compare_sides, key=key, upstream=upstream))
    )
    if output == "text":
        _print(document)
    else:
        emit(document, output)
    return 0


def _named(words: tuple[str, ...], set_name: str | None, scope: Scope) -> tuple[Target, str, str]:
    """Return the variant or set, the field and the file. Raises UsageError."""
    if bool(words) == bool(set_name):
        raise UsageError("name one variant (NAMESPACE/VARIANT), or list a set's edits (--set NAMESPACE/SET)")
    kinds = (SET,) if set_name else (VARIANT, SET)
    found = named((set_name,) if set_name else words, kinds, scope, rest_max=2)
    field, where = (*found.rest, "", "")[:2]
    return Target(found.kind or kinds[0], found.key), field, where


# ------------------------------------------------------------ reading


class Revisions(NamedTuple):
    """A variant with its revisions.

    variant: the PackageVariant
    drafts: its drafts
    published_all: its published revisions, the one of the highest number first
    """

    variant: Object
    drafts: list[Member]
    published_all: list[Member]

    @property
    def published(self) -> Member | None:
        """The published revision of the highest number, None if there is none."""
        return self.published_all[0] if self.published_all else None

    def draft(self) -> Member | None:
        """Return the draft, None if there is none. Raises PermanentError if there are several."""
        if len(self.drafts) > 1:
            names = ", ".join(each.name for each in self.drafts)
            raise PermanentError(
                f"{key_of(self.variant)} has several drafts ({names}): delete or publish all but one with "
                "kubectl"
            )
        return self.drafts[0] if self.drafts else None


class Sides(NamedTuple):
    """The files of two revisions, and their names."""

    older: str
    newer: str
    before: Mapping[str, str]
    after: Mapping[str, str]


async def revisions_of(cluster: Cluster, key: Key) -> Revisions:
    variant = await existing(cluster, VARIANT, key)
    members = await members_of(cluster, key.namespace, [variant], selector_at(variant, "downstream"))
    published = [each for each in members if lifecycle_of(each.revision) in PUBLISHED]
    drafts = [each for each in members if each not in published]
    return Revisions(variant, drafts, sorted(published, key=_number, reverse=True))


def _number(member: Member) -> int:
    return int(member.revision["spec"].get("revision") or 0)


async def compare_sides(cluster: Cluster, key: Key, *, upstream: bool) -> Object:
    """Return the document of `-o json`."""
    found = await revisions_of(cluster, key)
    draft = found.draft()
    document: Object = {
        "variant": str(key),
        "draft": draft.name if draft else "",
        "lifecycle": lifecycle_of(draft.revision) if draft else "",
        "published": found.published.name if found.published else "",
        "against": "",
        "conflicts": msgspec.to_builtins(conflicts_of(draft.revision)) if draft else [],
        "diff": "",
        "content": "",
    }
    if sides := await sides_of(cluster, found, upstream=upstream):
        document["against"], document["diff"] = sides.older, unified(sides.before, sides.after)
        document["content"] = shown_digest(sides.after) if draft else ""
    return document


async def sides_of(cluster: Cluster, found: Revisions, *, upstream: bool) -> Sides | None:
    """Read a draft and what it is compared with; None if there is nothing to compare.

    upstream: whether that is the upstream's revision, not the published one; without a draft, the published
        one is compared with it
    """
    published = found.published
    newer = found.draft() or (published if upstream else None)
    older = published.name if published is not None else ""
    if upstream and newer:
        older = await _upstream_of(cluster, found.variant, newer)
    if not (newer and older):
        return None
    before, after = [await texts_of(cluster, newer.key.namespace, name) for name in (older, newer.name)]
    return Sides(older, newer.name, before, after)


async def texts_of(cluster: Cluster, namespace: str, name: str) -> Mapping[str, str]:
    """Read the files of a package revision."""
    return _texts(await files_of(cluster, namespace, name))


def _texts(files: Object) -> Mapping[str, str]:
    return files["spec"].get("resources") or {}


async def _upstream_of(cluster: Cluster, variant: Object, member: Member) -> str:
    """Return the name of the revision that a revision records as its upstream.

    It is `<revision>@<commit>` for a draft or branch that has gone on since, and for a revision that is gone.
    """
    resource = await require_served(cluster, REVISION)
    selector = selector_at(variant, "upstream")
    listing = await cluster.list(resource, member.key.namespace, field_selector=selector)
    lock = _lock(member.revision, "upstreamLock")
    ref, commit = lock.get("ref"), lock.get("commit")
    for obj in listing.items:
        own = _lock(obj, "selfLock")
        is_fixed = not commit or own.get("commit") == commit or int(obj["spec"].get("revision") or 0) > 0
        if ref and own.get("ref") == ref and is_fixed:
            return str(obj["metadata"]["name"])
    files = await require_served(cluster, FILES)
    for obj in listing.items if commit else ():
        at = f"{obj['metadata']['name']}@{commit}"
        if await cluster.get(files, member.key.namespace, at) is not None:
            return at
    raise PermanentError(
        f"the upstream of {member.name} ({ref or 'none recorded'}) is not among the revisions"
    )


def _lock(revision: Object, which: str) -> Object:
    return ((revision.get("status") or {}).get(which) or {}).get("git") or {}


# ------------------------------------------------------------ settling


async def settle(cluster: Cluster, key: Key, side: str, field: str, where: str) -> str:
    """Settle one conflict; return the message. Raises PermanentError."""
    try:
        return await twice(partial(_settle, cluster, key, side, field, where))
    except ConflictError as exc:
        raise PermanentError(f"{key}: others write to the draft at the same time ({exc}): try again") from exc
    except (MergeError, YamlError) as exc:
        raise PermanentError(f"{key}: {exc}") from exc


async def twice(attempt: Callable[[], Awaitable[Returned]]) -> Returned:
    """Try again after a first conflict. Raises the second one."""
    try:
        return await attempt()
    except ConflictError:
        await asyncio.sleep(SECOND_TRY_SECONDS)
        return await attempt()


async def _settle(cluster: Cluster, key: Key, side: str, field: str, where: str) -> str:
    found = await revisions_of(cluster, key)
    draft = next((each for each in found.drafts if conflicts_of(each.revision)), None)
    if draft is None:
        raise PermanentError(f"{key} has no draft with a conflict: there is nothing to settle")
    if lifecycle_of(draft.revision) != "Draft":
        raise PermanentError(
            f"{draft.name} is {lifecycle_of(draft.revision)}, and nothing changes it: make a draft of it "
            "again first (pvbus reject --set SET, or porchctl rpkg reject)"
        )
    conflict = chosen(conflicts_of(draft.revision), field, where)
    words = "has this value already"
    if side != conflict.taken:  # of a warning, the draft has both
        words = await put_side(cluster, draft, conflict, side)
    left = await twice(partial(_remove, cluster, draft, conflict))
    settled = f"{conflict.file}: {field}" if field != conflict.file else field
    return f"{settled}: {side}'s value taken; {draft.name} {words}\n{_left_words(key, left)}"


def _left_words(key: Key, left: int) -> str:
    if left:
        return f"to settle: {left} more, see pvbus diff {key}"
    return f"no conflict is left; what the draft changes: pvbus diff {key}"


async def put_side(cluster: Cluster, draft: Member, conflict: Conflict, side: str) -> str:
    """Put a side's value into the draft; return what happened to it, in words."""
    task: Object = next(iter(draft.revision["spec"].get("tasks") or ()), {})
    names = Names.of(task)
    source = names.local if side == "local" else names.new  # none where the draft began as a clone
    known = _texts(await files_of(cluster, draft.key.namespace, source)) if source else {}
    files = await files_of(cluster, draft.key.namespace, draft.name)
    before = _texts(files)
    if conflict.is_warning:
        after = with_value(beside(conflict) if side == "local" else conflict, before, ABSENT)
    else:
        known = upstream_texts(known) if side == "upstream" else known  # as it was merged
        after = with_value(conflict, before, value_for(conflict, side, known))
    if after == before:
        return "has this value already"
    files["spec"]["resources"] = after
    saved = await cluster.update(await require_served(cluster, FILES), files)
    status = render_status(saved)
    if status and status["error"]:
        raise PermanentError(
            f"{draft.name} is saved, but its pipeline fails with this value: {status['error']}"
        )
    return "is saved and rendered"


def value_for(conflict: Conflict, side: str, texts: Mapping[str, str]) -> Any:
    """Return a side's value in full: that of its files if this is the one in the report, else the report's.

    The report shortens long values, and a file may have changed since. Raises MergeError if neither will do.
    """
    if not conflict.has_values:
        raise MergeError(
            f"{conflict.file} has a symbolic link, which the API does not carry: change it in git, then take "
            f"{conflict.taken}"
        )
    reported = conflict.local if side == "local" else conflict.new
    found = value_of(conflict, texts)
    if _same_text(shown(found), reported):
        return found
    if isinstance(reported, str) and reported.endswith("..."):
        raise MergeError(
            f"{conflict.file} is not as reported any more, and the value is too long for the report"
        )
    return reported


def _same_text(one: Any, other: Any) -> bool:
    if ABSENT in (one, other):
        return one is other
    return _canonical(one) == _canonical(other)


_canonical = msgspec.json.Encoder(order="sorted").encode


async def _remove(cluster: Cluster, draft: Member, conflict: Conflict) -> int:
    """Remove a conflict from the draft's list, unless inject has seen its new value and removed it first.

    Return how many are left.
    """
    live = await existing(cluster, REVISION, Key(draft.key.namespace, draft.name))
    listed = conflicts_of(live)
    left = [one for one in listed if one != conflict]
    if left == listed:
        return len(left)
    annotations = {k: v for k, v in live["metadata"].get("annotations", {}).items() if k != CONFLICTS}
    if left:
        annotations[CONFLICTS] = msgspec.json.encode(left).decode()
    live["metadata"]["annotations"] = annotations
    await cluster.update(await require_served(cluster, REVISION), live)
    return len(left)


# ------------------------------------------------------------ the answer


def _print(document: Object) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in (*_conflict_lines(document), *_heading_lines(document)):
        click.echo(line)
    for line in diff_lines(document["diff"], indent=""):
        console.print(line)
    if document["content"]:
        click.echo(f"content {document['content']}: name it with --content to set a condition on these files")


def _heading_lines(document: Object) -> Iterator[str]:
    against, published = document["against"], document["published"]
    if not document["draft"]:
        state = f"{published} is published" if published else "nothing is published"
        yield f"{document['variant']} has no draft; {state}"
    if not against:
        if document["draft"] and not published:
            yield f"nothing is published yet to compare {document['draft']} with"
        yield f"to compare with the upstream: pvbus diff {document['variant']} --upstream"
        return
    newer = document["draft"] or published
    state = f" ({document['lifecycle']})" if document["lifecycle"] else ""
    yield f"{newer}{state} against {against}{'' if document['diff'] else ': no difference'}"


def _conflict_lines(document: Object) -> Iterator[str]:
    warnings = [each for each in document["conflicts"] if is_warning(each)]
    conflicts = [each for each in document["conflicts"] if not is_warning(each)]
    if conflicts:
        yield f"{len(conflicts)} to settle, as this package and its upstream have both changed it:"
        yield from _sides(conflicts)
        field = conflicts[0].get("field") or conflicts[0].get("object") or conflicts[0].get("file")
        yield f"to settle one: pvbus diff {document['variant']} --take local|upstream '{field}'"
    if warnings:
        yield f"{len(warnings)} to look at, as both sides changed the key of an element and both stay:"
        yield from _sides(warnings)
        field = warnings[0]["field"]
        yield f"to keep only one of the two: pvbus diff {document['variant']} --take local|upstream '{field}'"


def _sides(conflicts: list[Object]) -> Iterator[str]:
    for each in conflicts:
        where = ", ".join(each[part] for part in ("file", "object", "field") if each.get(part))
        old, local, new = (conflict_value(each, side) for side in ("old", "local", "new"))
        yield f"  {where}"
        taken = each.get("taken", "upstream")
        has = "both" if is_warning(each) else f"the {taken} one"
        yield f"    it was {old}, is {local} here and {new} upstream; the draft has {has}"
