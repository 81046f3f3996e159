"""A package in a plain folder as the one package revision of a cluster: `condition` and `task` with --folder.

No server knows the package, so none guards it: the conditions, gates and questions are those of its Kptfile,
and a change is an edit of this file. What is recorded is what the package store would record, so that a push
of the folder brings conditions along that are bound to the files they were set on.
"""

import getpass
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import click

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.cli.fleet import run_connected
from pvbus.cli.live import REVISION
from pvbus.controlplane.packages import bounds, content, signing, taskhistory
from pvbus.controlplane.packages.content import KptfileFacts, facts_of
from pvbus.controlplane.packages.layout import KPTFILE
from pvbus.controlplane.packages.render import Rendering
from pvbus.core.api.variants import PORCH_API
from pvbus.core.errors import ConflictError, UsageError
from pvbus.core.kernel import gates, tasks
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objects import timestamp
from pvbus.core.variants.merge.copies import edit_kptfile
from pvbus.core.yaml.rawtext import bytes_of, text_of
from pvbus.ports.cluster import Cluster, Object, Resource

Result = TypeVar("Result")

folder_option = click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="A package in this folder, in place of NAME and without a server.",
)


class PackageHome(NamedTuple):
    """Where the package revision is that a command is about.

    data: the data folder
    kubeconfig: that of an API server, None for that of the data folder
    folder: the package's folder, None for an API server
    """

    data: str
    kubeconfig: str | None
    folder: str | None = None

    async def run(self, work: Callable[[Cluster], Awaitable[Result]]) -> Result:
        """Do the work with the cluster that has it."""
        if self.folder is not None:
            return await work(PackageFolder(Path(self.folder)))
        return await run_connected(self.data, self.kubeconfig, work)


def folder_key(folder: str) -> Key:
    """Return the key of a folder's package revision: it is shown as the folder's path."""
    path = Path(folder).resolve()
    return Key(str(path.parent), path.name)


class PackageFolder(MemoryCluster):
    """A cluster with one draft, whose updates are edits of the folder's Kptfile."""

    def __init__(self, folder: Path) -> None:
        """Read the package. Raises: UsageError if the folder has none, or one that cannot be read."""
        super().__init__(now=lambda: timestamp(time.time()))
        self._folder = folder
        self._read()

    def _read(self) -> None:
        self._texts = _texts_in(self._folder)
        self._facts = _facts_in(self._folder, self._texts)
        self.put(_revision_of(folder_key(str(self._folder)), self._facts))

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Read the folder anew."""
        self._read()
        return await super().get(resource, namespace, name)

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        """Write what an update changes of conditions and annotations. Raises: ConflictError, UsageError."""
        before, after = self._texts[KPTFILE], _edited(self._texts, self._facts, obj)
        if after != before:
            _replace(self._folder / KPTFILE, before, after)
        return await self.get(resource, obj["metadata"]["namespace"], obj["metadata"]["name"]) or obj


def _texts_in(folder: Path) -> dict[str, str]:
    """Return the package's regular files, without git's own."""
    if not (folder / KPTFILE).is_file():
        raise UsageError(f"{folder} has no {KPTFILE}: name the folder of a package (kpt pkg init makes one)")
    texts, size = {}, 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if ".git" in inside.parts or path.is_symlink() or not path.is_file():
            continue
        size += path.stat().st_size
        if size > bounds.PACKAGE_BYTES_MAX:
            raise UsageError(f"{folder} has more than {bounds.PACKAGE_BYTES_MAX} bytes: that is no package")
        texts[inside.as_posix()] = text_of(path.read_bytes())
    if KPTFILE not in texts:
        raise UsageError(f"{folder / KPTFILE} is a symbolic link: a package has a file")
    return texts


def _facts_in(folder: Path, texts: dict[str, str]) -> KptfileFacts:
    """Return the facts of a package; what was signed of other files is not True of these."""
    facts = facts_of(texts[KPTFILE])
    if facts.rendered is not None and facts.rendered.get("reason") == "InvalidKptfile":
        raise UsageError(f"{folder}: {facts.rendered['message']}")
    return signing.judged_edit(facts, texts, {}, "the folder's files have changed since")


def _revision_of(key: Key, facts: KptfileFacts) -> Object:
    return {
        "apiVersion": PORCH_API,
        "kind": REVISION.kind,
        "metadata": {"namespace": key.namespace, "name": key.name},
        "spec": {
            "lifecycle": "Draft",
            "readinessGates": [dict(gate) for gate in facts.gates],
            "packageMetadata": {"labels": facts.labels, "annotations": facts.annotations},
        },
        "status": {"conditions": content.shown_conditions(facts, "")},
    }


def _edited(texts: dict[str, str], facts: KptfileFacts, wanted: Object) -> str:
    """Return the Kptfile that an update wants, with what the package store would record.

    Raises: UsageError for annotations that cannot be read.
    """
    edits = [content.with_conditions(gates.conditions_of(wanted), facts.own)]
    annotations = tasks.kptfile_annotations(wanted)
    if annotations != facts.annotations:
        edits.append(content.with_metadata("annotations", annotations, exact=True))
    user = f"{getpass.getuser()} (in a folder)"
    try:
        after = edit_kptfile(texts, *edits)
        made, _ = signing.signed(facts, texts, texts, Rendering(after, None), user)
    except ValueError as error:
        raise UsageError(f"{KPTFILE}: {error}") from None
    made, _ = taskhistory.recorded(texts, made, user)
    return made.texts[KPTFILE]


def _replace(path: Path, before: str, after: str) -> None:
    """Replace a file that nobody has changed since it was read. Raises: ConflictError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(bytes_of(after))
        beside.chmod(path.stat().st_mode)
        if text_of(path.read_bytes()) != before:
            raise ConflictError(f"{path} has changed in the same moment: nothing was written")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
