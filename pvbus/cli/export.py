"""`pvbus export`: everything that `plan` needs of a live system, in one file."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import click

from pvbus.adapters.files import write_private
from pvbus.cli.live import LEFT_OUT
from pvbus.cli.plan import progress_printer
from pvbus.cli.planinput import admitted, read_input, write_export
from pvbus.cli.planpreview import read_live
from pvbus.cli.reading import files_option
from pvbus.core.errors import PermanentError, UsageError


@click.command(
    short_help="Write what `plan` needs of a live system into a file.",
    epilog="""\b
Examples:
  pvbus export --data .pvbus -o live.json
  pvbus plan -f live.json -f changes.yaml --check    the same answer as against the live system
  pvbus export --kubeconfig ~/.kube/config -n fleet -o live.json
""",
)
@click.option("-n", "--namespace", default="", help="Only this namespace; all if not given.")
@click.option("--data", help="Data folder of the live `pvbus up`.")
@click.option("--kubeconfig", help="A cluster's kubeconfig. The cluster is only read.")
@files_option("Changes that will be planned: also what these need is exported.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file; stdout if not given.")
def export(
    namespace: str, data: str | None, kubeconfig: str | None, files: tuple[Path, ...], output: Path | None
) -> None:
    """Write sets, variants, Repositories, PackageRevisions with their files, and the objects that sets
    select and packages inject.

    It leaves out the data of Secrets, managedFields, kubectl's last-applied annotation, and the files of
    older published revisions. Nothing is written to the live system.
    """
    if bool(data) == bool(kubeconfig):
        raise UsageError("give the live system: --data DIR of `pvbus up`, or --kubeconfig FILE of a cluster")
    changes, errors = admitted(read_input(files).manifests)
    if errors:
        raise UsageError("the changes are refused:\n  " + "\n  ".join(errors))
    found = asyncio.run(
        read_live(data, kubeconfig, namespace, changes, progress_printer(), every_package=True)
    )
    text = write_export(found)
    if output is None:
        sys.stdout.write(text)
    else:
        _write(output, text)
    kinds = Counter(item["kind"] for item in found.items)
    what = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())) or "nothing"
    print(f"exported {what}; left out: {', '.join(LEFT_OUT)}", file=sys.stderr)


def _write(path: Path, text: str) -> None:
    """Write a file atomically, readable by its owner only. Raises PermanentError."""
    try:
        write_private(path, text.encode())
    except OSError as exc:
        raise PermanentError(f"{path} cannot be written: {exc.strerror}", reason="Output") from exc
