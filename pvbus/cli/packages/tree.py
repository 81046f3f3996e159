"""`pvbus packages tree`: what needs what, in which version, and in which state."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from pvbus.cli.objectnames import INSTALL, Scope, namespace_option, object_argument
from pvbus.cli.output import FORMATS, emit
from pvbus.cli.packages.input import input_options, install_named, is_install, read_facts
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import ObjectKey, namespaced_name
from pvbus.core.kernel.packagerows import DEPENDENCY_CYCLE, LockedDependency, LockRow
from pvbus.core.platform.resolve.carvel import decided_rows
from pvbus.core.platform.resolve.plans import unreadable
from pvbus.telemetry.terminal import one_line


@click.command(
    short_help="Show what needs what, with versions and states.",
    epilog="""\b
Examples:
  pvbus packages tree
  pvbus packages tree demo/pkg-demo --kubeconfig ~/.kube/config
  pvbus packages tree -f packages/ --output json
""",
)
@object_argument("[[KIND] NAME]", (INSTALL,), required=False)
@namespace_option
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
@input_options
def tree(
    words: tuple[str, ...],
    namespace: str | None,
    output: str,
    files: tuple[Path, ...],
    kubeconfig: str | None,
    data: str,
) -> None:
    """Show PackageInstalls with what they need: all that users made, those of a namespace, or one.

    The state is what pvbus decides from what is there now; nothing is changed. What is marked with + does
    not exist yet, and is created. A dependency that is shown elsewhere already is not shown again. An install
    that cannot be read is broken, with the field that is wrong.

    Exit codes: 0 everything that is shown has what it needs; 1 something has not, or there is no such
    install; 2 bad usage.
    """
    asked = install_named(words, Scope(namespace, data, kubeconfig)) if words else None
    read = read_facts(files, kubeconfig, data)
    facts = read.facts
    rows = decided_rows(facts)
    unread = {each.okey: unreadable(None, each) for each in read.problems if is_install(each)}
    rows |= unread
    roots = [okey for okey, row in rows.items() if not row.holders and row.status != "removed"]
    if asked is not None:
        roots = [asked[0]]
        if roots[0] not in rows:
            raise PermanentError(f"there is no PackageInstall {asked[1]}: check namespace and name")
    elif namespace:
        roots = [okey for okey in roots if ObjectKey.parse(okey).namespace == namespace]
    shown, there = _reached(rows, roots), frozenset((*facts.installs, *unread))
    if output == "text":
        for line in text_of(rows, roots, there):
            click.echo(one_line(line))
        if not roots:
            click.echo("there are no PackageInstalls", err=True)
    else:
        emit([document_of(okey, rows[okey], is_there=okey in there) for okey in shown], output)
    sys.exit(0 if all(rows[okey].status == "locked" for okey in shown) else 1)


def text_of(rows: Mapping[str, LockRow], roots: list[str], there: frozenset[str]) -> Iterator[str]:
    """Yield the lines of a tree.

    there: the okeys of the installs that exist
    """
    seen: set[str] = set()
    for okey in roots:
        yield from _lines(rows, okey, there, seen)


def _lines(rows: Mapping[str, LockRow], root: str, there: frozenset[str], seen: set[str]) -> Iterator[str]:
    """Yield an install and what it needs. Not recursive: chains of dependencies may be long."""
    pending: list[tuple[str, str, LockedDependency | None]] = [("", root, None)]
    while pending:
        indent, okey, dependency = pending.pop()
        if dependency is not None and not okey:
            yield f"{indent}- {_unmet(dependency)}"
            continue
        row = rows[okey]
        again = okey in seen
        seen.add(okey)
        yield f"{indent}{'- ' if dependency else ''}{_line(okey, row, dependency, okey in there, again)}"
        if not again:
            pending += [(f"{indent}  ", each.install, each) for each in reversed(row.dependencies)]


def _line(okey: str, row: LockRow, dependency: LockedDependency | None, is_there: bool, again: bool) -> str:
    text = f"{'' if is_there else '+ '}{namespaced_name(okey)}  {row.package or '-'} {row.version or '-'}"
    if dependency is not None:
        wanted = dependency.range or dependency.offer
        text += f"  {dependency.condition}" + (f" ({wanted})" if wanted else "")
    if row.status != "locked":
        text += f"  {row.status}: {row.message or row.reason}"
    elif row.reason == DEPENDENCY_CYCLE and not again:
        text += f"  {row.reason}: {row.message}"
    return f"{text}  (see above)" if again and row.dependencies else text


def _unmet(dependency: LockedDependency) -> str:
    wanted = f"{dependency.package} {dependency.range}".strip() or dependency.offer
    text = f"{wanted}  {dependency.condition}"
    return f"{text}: {dependency.message}" if dependency.message else text


def document_of(okey: str, row: LockRow, *, is_there: bool) -> dict[str, Any]:
    """Return an install as plain values."""
    key = ObjectKey.parse(okey)
    return {
        "namespace": key.namespace,
        "name": key.name,
        "package": row.package,
        "version": row.version,
        "status": row.status,
        "reason": row.reason,
        "message": row.message,
        "exists": is_there,
        "createdFor": [namespaced_name(each) for each in row.holders],
        "dependencies": [_dependency(each) for each in row.dependencies],
    }


def _dependency(dependency: LockedDependency) -> dict[str, Any]:
    return {
        "name": dependency.name,
        "package": dependency.package,
        "range": dependency.range,
        "api": dependency.offer.removeprefix("API "),
        "condition": dependency.condition,
        "install": namespaced_name(dependency.install) if dependency.install else "",
        "version": dependency.version,
        "optional": dependency.is_optional,
        "message": dependency.message,
    }


def _reached(rows: Mapping[str, LockRow], roots: list[str]) -> list[str]:
    found: dict[str, None] = {}
    pending = list(reversed(roots))
    while pending:
        okey = pending.pop()
        if okey not in found:
            found[okey] = None
            pending += [each.install for each in reversed(rows[okey].dependencies) if each.install]
    return list(found)
