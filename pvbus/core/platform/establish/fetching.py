"""Reads what a Carvel Package brings: its files, as `spec.template.spec` of it says, and their objects.

Done here: `fetch` of inline files, images, imgpkg bundles and git; `template` as in `templating`; `deploy` by
kapp. All else is refused by name.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Content, Effect, Observation, Observe, Pull
from pvbus.core.kernel.packagerows import Stage
from pvbus.core.platform.establish.applying import RefusedError
from pvbus.core.platform.establish.objects import Object, parsed
from pvbus.core.platform.establish.templating import (
    NOT_SUPPORTED,
    SET_OTHERS,
    Files,
    Setting,
    inline_files,
    is_below,
    only,
    path_of,
    render,
)
from pvbus.core.platform.packaging.fields import FieldProblem
from pvbus.core.platform.packaging.needs import highest_tag
from pvbus.core.platform.packaging.reading import split_reference
from pvbus.core.platform.packaging.references import GitFolder, git_url


class Brought(NamedTuple):
    """The objects that a package brings.

    objects: the objects, in the order of the package's files
    gaps: what in them has no effect here, in words
    """

    objects: list[Object]
    gaps: tuple[str, ...]


@contextmanager
def _stage_of_refusals(stage: Stage) -> Iterator[None]:
    """Name the stage in refusals, as which errors of effects count, too."""
    try:
        yield
    except RefusedError as refusal:
        raise RefusedError(refusal.reason, refusal.message, stage) from refusal
    except PermanentError as error:
        raise RefusedError(error.reason, str(error), stage) from error


def fetch_content(package: Mapping[str, Any], setting: Setting) -> Generator[Effect, Any, Brought]:
    """Fetch and read a Package. setting: of its install, with its pull secrets. Raises RefusedError."""
    spec = ((package.get("spec") or {}).get("template") or {}).get("spec") or {}
    gaps = _deployed_gaps(spec.get("deploy") or ())
    files: Files = {}
    items = list(spec.get("fetch") or ())
    for number, item in enumerate(items):
        for path, data in (yield from fetch_files(item, setting)).items():
            # One item has its own paths, more have a folder each, as in kapp-controller.
            files[path if len(items) == 1 else path_of(f"{item.get('path') or number}/{path}")] = data
    found = yield from render_objects(files, list(spec.get("template") or ()), setting)
    if items and not found.objects:
        # kapp refuses it, too: a mistyped path would delete all that is installed.
        text = "the package has no objects: look at its paths and subPath"
        raise RefusedError("InvalidPackage", text, "template")
    return Brought(found.objects, (*gaps, *found.gaps))


def render_objects(
    files: Files, steps: Sequence[Mapping[str, Any]], setting: Setting
) -> Generator[Effect, Any, Brought]:
    """Return the objects that the steps of a template leave. Raises RefusedError."""
    with _stage_of_refusals("template"):
        rendered = yield from render(files, steps, setting)
        return Brought(parsed(rendered.files), rendered.gaps)


def fetch_files(item: Mapping[str, Any], setting: Setting) -> Generator[Effect, Any, Files]:
    """Return the files of an item of `fetch`. Raises RefusedError.

    setting: in whose name, and in which namespace, Secrets and ConfigMaps are read
    """
    with _stage_of_refusals("fetch"):
        return (yield from _fetch(item, setting))


def _fetch(item: Mapping[str, Any], setting: Setting) -> Generator[Effect, Any, Files]:
    kinds = [name for name in item if name != "path"]
    if len(kinds) != 1:
        raise RefusedError("InvalidPackage", "an item of fetch must have exactly one source")
    (kind,) = kinds
    given = item[kind] or {}
    secret = (given.get("secretRef") or {}).get("name")
    secrets = (f"{setting.namespace}/{secret}",) if secret else ()
    match kind:
        case "inline":
            folders = yield from inline_files(given, setting, "fetch.inline")
            return {path: data for folder in folders for path, data in folder.items()}
        case "image" | "imgpkgBundle":
            field = "url" if kind == "image" else "image"
            only(given, f"fetch.{kind}", field, "secretRef", "subPath", "tagSelection")
            source, tag, digest = split_reference(str(given.get(field) or ""))
            if selected := given.get("tagSelection"):
                if tag or digest:
                    raise RefusedError("InvalidPackage", f"fetch.{kind} has a tag beside tagSelection")
                tag = yield from _select_tag(source, selected, f"fetch.{kind}.tagSelection", secrets)
            files = yield from _pull(source, tag or "latest", digest, secrets)
        case "git":
            only(given, "fetch.git", "url", "ref", "secretRef", "subPath", "depth", "lfsSkipSmudge")
            folder = path_of(given.get("subPath"))
            repository = GitFolder(git_url(str(given.get("url") or "")), folder)
            # A branch is written `origin/main` for kapp-controller.
            ref = str(given.get("ref") or "HEAD").removeprefix("origin/")
            return (yield from _pull(str(repository), ref, "", secrets))
        case _:
            raise RefusedError(NOT_SUPPORTED, f"fetch.{kind} is not done here: {SET_OTHERS}")
    folder = path_of(given.get("subPath"))
    return {path.removeprefix(f"{folder}/"): data for path, data in files.items() if is_below(path, folder)}


def _select_tag(
    source: str, selected: Mapping[str, Any], where: str, secrets: tuple[str, ...]
) -> Generator[Effect, Any, str]:
    """Return the highest tag that a selection admits. Raises RefusedError."""
    only(selected, where, "semver")
    seen: Observation = yield Observe(source, (), secrets)
    found = highest_tag(seen.tags, selected, where)
    if isinstance(found, FieldProblem):
        raise RefusedError("InvalidPackage", str(found))
    if found is None:
        raise RefusedError("NotFound", f"{where}: {source} has no tag that it admits")
    return found


def _pull(source: str, tag: str, digest: str, secrets: tuple[str, ...]) -> Generator[Effect, Any, Files]:
    if not digest:
        seen: Observation = yield Observe(source, (tag,), secrets)
        digest = seen.digests.get(tag, "")
        if not digest:
            raise RefusedError("NotFound", f"{source} has no {tag}")
    content: Content = yield Pull(source, digest, secrets)
    return dict(content.files)


def _deployed_gaps(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    gaps = []
    for step in steps:
        for name, options in step.items():
            if name != "kapp":
                raise RefusedError(NOT_SUPPORTED, f"deploy.{name} is not done here: {SET_OTHERS}")
            given = options or {}
            only(given, "deploy.kapp", "rawOptions", "inspect", "delete")
            if given.get("rawOptions"):
                gaps.append("deploy.kapp.rawOptions has no effect")
    return gaps
