"""`pvbus import`: sets from the definitions of other programs, and what has no counterpart in them."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from pvbus.adapters.manifests import Manifest, read_manifests
from pvbus.cli.importing.applicationset import import_application_set
from pvbus.cli.importing.converted import Converted, Wanted
from pvbus.cli.importing.fleetbundle import import_bundle
from pvbus.cli.subcommands import Subcommands
from pvbus.cli.validate import problems_of
from pvbus.core.errors import UsageError
from pvbus.runtime.yamltext import yaml_text

EPILOG = """\b
Examples:
  pvbus import applicationset guestbook.yaml --upstream-revision 1 > set.yaml
  pvbus import bundle gitrepo.yaml --upstream-revision 1 --repository edge > set.yaml
  pvbus validate set.yaml && pvbus plan -f set.yaml
"""


@click.group(
    "import",
    cls=Subcommands,
    short_help="Make sets of ApplicationSets or Fleet's bundles.",
    epilog=EPILOG,
)
def import_() -> None:
    """Make sets of ApplicationSets of Argo CD, or of GitRepos and Bundles of Rancher's Fleet.

    The sets go to standard output. What has no counterpart, and what was assumed, goes to standard error, a
    line for each field. Nothing is selected that the definition does not select: what is only partly
    understood is left out. Exit code 2 if nothing is left.
    """


def _options(command: Any) -> Any:
    for option in (
        click.option(
            "--upstream-repository", default="", metavar="NAME", help="The Repository of the blueprint."
        ),
        click.option("--upstream-package", default="", metavar="PACKAGE", help="The blueprint's package."),
        click.option(
            "--upstream-revision", type=click.IntRange(min=1), metavar="N", help="Its published revision."
        ),
        click.option(
            "--repository",
            default="deployments",
            show_default=True,
            metavar="NAME",
            help="The Repository that the variants go to.",
        ),
        click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."),
    ):
        command = option(command)
    return command


@import_.command(short_help="Make sets of ApplicationSets.")
@_options
def applicationset(files: tuple[Path, ...], upstream_revision: int | None, **names: str) -> None:
    """Make a set of each ApplicationSet in FILE, which may be a folder."""
    wanted = Wanted(upstream_revision=upstream_revision or 0, **names)
    found = _of_kinds(read_manifests(files), "argoproj.io", ("ApplicationSet",))
    _print(found, lambda source: import_application_set(source, wanted))


@import_.command(short_help="Make sets of Fleet's GitRepos and Bundles.")
@_options
def bundle(files: tuple[Path, ...], upstream_revision: int | None, **names: str) -> None:
    """Make sets of the GitRepos and Bundles in FILE, which may be a folder: one for each of their paths.

    A target that names a ClusterGroup needs that object in the files, too.
    """
    wanted = Wanted(upstream_revision=upstream_revision or 0, **names)
    manifests = read_manifests(files)
    groups = {
        manifest.object["metadata"]["name"]: (manifest.object.get("spec") or {}).get("selector") or {}
        for manifest in manifests
        if manifest.object["kind"] == "ClusterGroup"
    }
    found = _of_kinds(manifests, "fleet.cattle.io", ("GitRepo", "Bundle"))
    _print(found, lambda source: import_bundle(source, groups, wanted))


def _of_kinds(manifests: Iterable[Manifest], group: str, kinds: tuple[str, ...]) -> list[Manifest]:
    """Return the objects of some kinds. Raises UsageError without any."""
    found = [
        manifest
        for manifest in manifests
        if manifest.object["kind"] in kinds and manifest.object["apiVersion"].startswith(f"{group}/")
    ]
    if not found:
        raise UsageError(f"there is no {' or '.join(kinds)} of {group} in the files")
    return found


def _print(found: Iterable[Manifest], convert: Callable[[Mapping[str, Any]], Converted]) -> None:
    """Print all sets once every one was made, and every note. Raises UsageError that names the object."""
    made: list[Mapping[str, Any]] = []
    for manifest in found:
        name = f"{manifest.object['kind']} {manifest.object['metadata'].get('name', '')}"
        try:
            result = convert(manifest.object)
        except UsageError as exc:
            raise UsageError(f"{manifest.location}: {name}: {exc}") from exc
        valid = (Manifest(manifest.file, manifest.document, obj) for obj in result.objects)
        for problem in problems_of(list(valid)):
            raise UsageError(f"the set would not be valid: {problem}")
        for note in result.notes:
            click.echo(f"{name}: {note}", err=True)
        made += result.objects
    click.echo("---\n".join(map(yaml_text, made)), nl=False)
