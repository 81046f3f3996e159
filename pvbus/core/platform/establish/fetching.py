"""Reads what a Carvel Package brings: its files, as `spec.template.spec` of it says, and their objects.

Done here: `fetch` of inline paths, images, imgpkg bundles and git; `template` by ytt where no file has a
directive of ytt, which returns files as they are, and by kbld without its images resolved; `deploy` by kapp.
All else is refused by name: rendering is the business of the tools themselves, in kapp-controller.
"""

import posixpath
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Content, Effect, Observation, Observe, Pull
from pvbus.core.platform.establish.applying import RefusedError
from pvbus.core.platform.establish.objects import Object, parsed
from pvbus.core.platform.packaging.reading import split_reference
from pvbus.core.platform.packaging.references import GitFolder, git_url

Files = dict[str, bytes]

NOT_SUPPORTED = "NotSupported"
"""The reason of a refusal as a package needs what only kapp-controller does."""
_SET = "set PVBUS_INSTALLER to others and install kapp-controller to have it done"
_YTT_DIRECTIVE = b"#@"
_YAML = (".yaml", ".yml", ".json")


class Brought(NamedTuple):
    """The objects that a package brings.

    objects: the objects, in the order of the package's files
    gaps: what in them has no effect here, in words
    """

    objects: list[Object]
    gaps: tuple[str, ...]


def fetch_content(package: Mapping[str, Any], namespace: str) -> Generator[Effect, Any, Brought]:
    """Fetch and read a Package. namespace: where its pull secrets are. Raises RefusedError."""
    spec = ((package.get("spec") or {}).get("template") or {}).get("spec") or {}
    steps = list(spec.get("template") or ())
    gaps = [*_templated_gaps(steps), *_deployed_gaps(spec.get("deploy") or ())]
    files: Files = {}
    try:
        items = list(spec.get("fetch") or ())
        for number, item in enumerate(items):
            for path, data in (yield from _fetch(item, namespace)).items():
                # One item has its own paths, more have a folder each, as in kapp-controller.
                files[path if len(items) == 1 else _path(f"{item.get('path') or number}/{path}")] = data
        objects = parsed(_templated(files, steps))
    except PermanentError as error:
        raise RefusedError(error.reason, str(error)) from error
    if items and not objects:
        # kapp refuses it, too: a mistyped path would delete all that is installed.
        raise RefusedError("InvalidPackage", "the package has no objects: look at its paths and subPath")
    return Brought(objects, tuple(gaps))


def _fetch(item: Mapping[str, Any], namespace: str) -> Generator[Effect, Any, Files]:
    kinds = [name for name in item if name != "path"]
    if len(kinds) != 1:
        raise RefusedError("InvalidPackage", "an item of fetch must have exactly one source")
    (kind,) = kinds
    given = item[kind] or {}
    secret = (given.get("secretRef") or {}).get("name")
    secrets = (f"{namespace}/{secret}",) if secret else ()
    match kind:
        case "inline":
            _only(given, "fetch.inline", "paths")
            return {_path(path): str(text).encode() for path, text in (given.get("paths") or {}).items()}
        case "image" | "imgpkgBundle":
            field = "url" if kind == "image" else "image"
            _only(given, f"fetch.{kind}", field, "secretRef", "subPath", "tagSelection")
            source, tag, digest = split_reference(str(given.get(field) or ""))
            files = yield from _pull(source, tag or "latest", digest, secrets)
        case "git":
            _only(given, "fetch.git", "url", "ref", "secretRef", "subPath", "depth", "lfsSkipSmudge")
            folder = _path(given.get("subPath"))
            repository = GitFolder(git_url(str(given.get("url") or "")), folder)
            # A branch is written `origin/main` for kapp-controller.
            ref = str(given.get("ref") or "HEAD").removeprefix("origin/")
            return (yield from _pull(str(repository), ref, "", secrets))
        case _:
            raise RefusedError(NOT_SUPPORTED, f"fetch.{kind} is not done here: {_SET}")
    folder = _path(given.get("subPath"))
    return {path.removeprefix(f"{folder}/"): data for path, data in files.items() if _is_below(path, folder)}


def _path(text: Any) -> str:
    """Return a path as files have it: `./config/` is `config`, and `.` is "", the folder of all."""
    path = posixpath.normpath(str(text or "").strip("/"))
    return "" if path == "." else path


def _is_below(path: str, folder: str) -> bool:
    return not folder or path.startswith(f"{folder}/")


def _pull(source: str, tag: str, digest: str, secrets: tuple[str, ...]) -> Generator[Effect, Any, Files]:
    if not digest:
        seen: Observation = yield Observe(source, (tag,), secrets)
        digest = seen.digests.get(tag, "")
        if not digest:
            raise RefusedError("NotFound", f"{source} has no {tag}")
    content: Content = yield Pull(source, digest, secrets)
    return dict(content.files)


def _only(given: Mapping[str, Any], where: str, *fields: str) -> None:
    others = sorted(set(given) - set(fields))
    if others or given.get("tagSelection"):
        raise RefusedError(
            NOT_SUPPORTED, f"{where}.{(others or ['tagSelection'])[0]} is not done here: {_SET}"
        )


def _templated_gaps(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what of the template steps has no effect. Raises RefusedError for a step that is not done."""
    gaps = []
    for step in steps:
        for name, options in step.items():
            if name == "kbld":
                gaps.append("kbld is not run: images are not resolved to digests")
            elif name != "ytt":
                raise RefusedError(NOT_SUPPORTED, f"template.{name} is not done here: {_SET}")
            else:
                _only(options or {}, "template.ytt", "paths", "ignoreUnknownComments", "strict")
    return gaps


def _templated(files: Files, steps: Iterable[Mapping[str, Any]]) -> Files:
    """Return the files that the template steps leave. Raises RefusedError if ytt would change one."""
    chosen = {path: data for path, data in files.items() if path.endswith(_YAML) and not path.startswith(".")}
    for step in steps:
        if "ytt" not in step:
            continue
        paths = [_path(path) for path in (step["ytt"] or {}).get("paths") or ()]
        if paths and "-" not in paths:
            chosen = _chosen(files, chosen, paths)
        for path, data in sorted(chosen.items()):
            if _YTT_DIRECTIVE in data:
                raise RefusedError(
                    NOT_SUPPORTED, f"{path} has directives of ytt, which is not run here: {_SET}"
                )
    return chosen


def _chosen(files: Files, chosen: Files, paths: Sequence[str]) -> Files:
    """Return the files that ytt is given. Raises RefusedError for a path without any, as ytt fails then."""
    for path in paths:
        if not any(file == path or _is_below(file, path) for file in files):
            raise RefusedError("InvalidPackage", f"template.ytt.paths names {path}, which the package lacks")
    return {
        file: data
        for file, data in chosen.items()
        if any(file == path or _is_below(file, path) for path in paths)
    }


def _deployed_gaps(steps: Iterable[Mapping[str, Any]]) -> list[str]:
    gaps = []
    for step in steps:
        for name, options in step.items():
            if name != "kapp":
                raise RefusedError(NOT_SUPPORTED, f"deploy.{name} is not done here: {_SET}")
            given = options or {}
            _only(given, "deploy.kapp", "rawOptions", "inspect", "delete")
            if given.get("rawOptions"):
                gaps.append("deploy.kapp.rawOptions has no effect")
    return gaps
