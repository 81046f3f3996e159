"""`pvbus packages pull`: reads a package as the services do, and shows what is in it."""

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import click

from pvbus.adapters.files import open_plain
from pvbus.adapters.sources.sources import PackageSources
from pvbus.cli.output import FORMATS, emit
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.effects import Content
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.platform.packaging.archives import images_of, layout_of, objects_of
from pvbus.core.platform.packaging.pullsecrets import JSON_KEY, JSON_TYPE, logins_of
from pvbus.core.platform.packaging.references import (
    GIT,
    GitFolder,
    Image,
    Inline,
    Reference,
    digest_of_files,
    parse,
    reference_problem,
    split_reference,
)
from pvbus.core.platform.packaging.xpkg import package_meta
from pvbus.core.yaml.reader import YamlError, document
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import SourcesConfig
from pvbus.runtime.process.sources import sources_of
from pvbus.telemetry.terminal import one_line

SECRET = "file/login"
FILE_BYTES_MAX = 1 << 20
TAGS_SHOWN = 8
_LAYOUTS = {
    "xpkg": "Crossplane package (xpkg)",
    "folder": "folder of a Crossplane package",
    "imgpkg": "Carvel bundle (imgpkg)",
    "plain": "plain files",
}


@click.command(
    short_help="Read a package from its source, and show what is in it.",
    epilog="""\b
Examples:
  pvbus packages pull xpkg.example.org/acme/network:v1.2.0
  pvbus packages pull registry.example.org/acme/network@sha256:4f53c... -o json
  pvbus packages pull 'git+https://git.example.org/team/repo.git//network?ref=v1.2.0'
  pvbus packages pull git+file://$PWD//network?ref=main
  pvbus packages pull ghcr.io/acme/private:v1 --login ~/.docker/config.json

\b
Exit codes: 0 the package can be used; 1 it cannot, or its source does not answer; 2 bad usage.
""",
)
@click.argument("source", metavar="SOURCE")
@click.option(
    "--login",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A login: a Docker configuration (config.json), or the manifest of a pull secret.",
)
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
def pull(source: str, login: Path | None, output: str) -> None:
    """Read a package from its source, and show its digest, what it says of itself, its objects and its size.

    SOURCE is what the services read packages from:

    \b
      REGISTRY/REPOSITORY:TAG             an image
      REGISTRY/REPOSITORY@sha256:...      an image by its digest, which never changes
      git+URL//FOLDER?ref=REF             a folder of git; REF is a branch, a tag or a commit
      git+URL//FOLDER:REF                 the same

    It is read with the same limits and checks, and nothing is written but the cache. Mirrors, authorities and
    limits are the settings PVBUS_SOURCES_*, see docs/sources.md.
    """
    try:
        reference = _reference(source)
    except PermanentError as exc:
        raise UsageError(str(exc)) from exc
    config = load_config(SourcesConfig)
    found = asyncio.run(_pull(reference, config, _secret(login) if login else None))
    if output == "text":
        _show(found)
    else:
        emit(found.document(), output)
    if found.defect:
        raise click.exceptions.Exit(1)


def _reference(source: str) -> Reference:
    """Return what is to be read, as installs name it. Raises PermanentError."""
    if not source.startswith(GIT):
        return parse(source)
    if problem := reference_problem(source):
        raise PermanentError(problem, reason="InvalidSource")
    folder, ref, digest = split_reference(source)
    if digest:
        raise PermanentError(f"{source}: name a branch, a tag or a commit with ?ref=", reason="InvalidSource")
    return parse(f"{folder}?ref={quote(ref)}" if ref else folder)


class Found(NamedTuple):
    """A content, and what is in it.

    source: where it was read
    content: the content
    layout: the form of the package, "" if it has none
    meta: the manifest of the package
    objects: kinds and names of its objects
    images: the images that it names
    defect: why it cannot be used, "" if it can
    """

    source: str
    content: Content
    layout: str = ""
    meta: Mapping[str, Any] = {}
    objects: tuple[str, ...] = ()
    images: Mapping[str, str] = {}
    defect: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.content.files.values()))

    def document(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "source": self.source,
            "digest": self.content.digest,
            "layout": self.layout,
            "meta": self.meta,
            "objects": list(self.objects),
            "images": dict(self.images),
            "files": {path: len(data) for path, data in sorted(self.content.files.items())},
            "bytes": self.size_bytes,
            "defect": self.defect,
        }


async def _pull(reference: Reference, config: SourcesConfig, secret: Mapping[str, Any] | None) -> Found:
    """Read a package. Raises UsageError, PermanentError, TransientError."""

    async def secrets(key: str) -> Mapping[str, Any] | None:
        return secret

    # Who runs the command may read the machine's folders anyway.
    sources = sources_of(config, secrets, local_folders=("/",))
    try:
        keys = (SECRET,) if secret else ()
        digest = await _digest(sources, reference, keys)
        return _summed_up(str(reference), await sources.pull(str(reference), digest, keys))
    finally:
        await sources.close()


async def _digest(sources: PackageSources, reference: Reference, keys: tuple[str, ...]) -> str:
    """Return the digest of the content that a reference names."""
    match reference:
        case Inline(files):
            return digest_of_files(files)
        case Image(digest=digest) if digest:
            return digest
    wanted = reference.tag if isinstance(reference, Image) else reference.ref
    seen = await sources.observe(str(reference), (), keys)
    if not wanted:
        raise UsageError(f"{reference}: name {_wanted(reference)}; {_tags(seen.tags)}")
    if wanted not in seen.digests:
        raise PermanentError(f"{reference}: there is no {wanted}; {_tags(seen.tags)}", reason="NotFound")
    return seen.digests[wanted]


def _wanted(reference: Image | GitFolder) -> str:
    return "a tag or a digest" if isinstance(reference, Image) else "a branch, tag or commit with ?ref="


def _tags(tags: tuple[str, ...]) -> str:
    if not tags:
        return "it has no tags"
    more = f" and {len(tags) - TAGS_SHOWN} more" if len(tags) > TAGS_SHOWN else ""
    return f"it has {', '.join(tags[-TAGS_SHOWN:])}{more}"


def _summed_up(source: str, content: Content) -> Found:
    """Return the facts that the services read from a content."""
    found = Found(source, content, layout_of(content.files))
    if found.layout in ("xpkg", "folder"):
        row = package_meta(content.files)
        names = tuple(" ".join(ObjectKey.parse(each)[1::2]) for each in row.objects)
        return found._replace(meta=row.meta, objects=names, defect=row.defect)
    try:
        objects = tuple(map(_named, objects_of(content.files)))
        return found._replace(objects=objects, images=images_of(content.files))
    except PermanentError as exc:
        return found._replace(defect=f"{exc} ({exc.reason})")


def _secret(path: Path) -> Mapping[str, Any]:
    """Return a pull secret from a file. Raises UsageError."""
    with open_plain(path) as stream:
        data = stream.read(FILE_BYTES_MAX)
    try:
        content = document(data).value
        if not isinstance(content, dict):
            raise UsageError(f"{path}: it is neither a Docker configuration nor a Secret")
        if content.get("kind") == "Secret":
            secret = _with_data(content)
        else:
            secret = {
                "metadata": {"namespace": "file", "name": path.name},
                "type": JSON_TYPE,
                "data": {JSON_KEY: base64.b64encode(data).decode()},
            }
        logins_of(secret)
    except (YamlError, PermanentError, AttributeError) as exc:
        raise UsageError(f"{path}: it is neither a Docker configuration nor a Secret: {exc}") from exc
    return secret


def _with_data(secret: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a Secret with its stringData as data, as the API server stores it."""
    texts = {
        key: base64.b64encode(str(value).encode()).decode()
        for key, value in (secret.get("stringData") or {}).items()
    }
    return {**secret, "data": {**(secret.get("data") or {}), **texts}}


def _named(obj: Mapping[str, Any]) -> str:
    metadata = obj.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    return f"{obj['kind']} {name}".strip()


def _show(found: Found) -> None:
    """Print for people."""
    count = len(found.content.files)
    lines = [
        ("source", found.source),
        ("digest", found.content.digest),
        ("layout", _LAYOUTS.get(found.layout, "unknown")),
    ]
    if found.meta:
        lines.append(("meta", f"{_named(found.meta)} ({found.meta['apiVersion']})"))
        lines += [("needs", each) for each in _needs(found.meta)]
    lines += [("object", each) for each in found.objects]
    lines += [("image", each) for each in found.images.values()]
    lines.append(("size", f"{found.size_bytes} bytes in {count} {'file' if count == 1 else 'files'}"))
    if found.defect:
        lines.append(("defect", found.defect))
    for name, text in lines:
        click.echo(f"{name.upper():9}{one_line(text)}")


def _needs(meta: Mapping[str, Any]) -> list[str]:
    """Return the dependencies of a package, as far as its manifest has the usual form."""
    spec = meta.get("spec") or {}
    items = spec.get("dependsOn") if isinstance(spec, dict) else None
    needs = []
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict):
            name = next(
                (item[key] for key in ("package", "provider", "configuration", "function") if key in item), ""
            )
            needs.append(f"{name or item} {item.get('version', '')}".strip())
    return needs
