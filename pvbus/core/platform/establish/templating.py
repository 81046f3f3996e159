"""Renders the files of a Carvel Package as `spec.template.spec.template` of it says: by ytt, helm and kbld.

Each step runs its own program, on the files of the package and on what the step before it left. A step that
would leave its input as it is needs no program: ytt where no file has a directive, kbld where every image has
its digest. Without its program a step is refused, never left out.

Secrets and ConfigMaps with values are read in the name of the install's account: who may write installs could
read them otherwise.

Source: kapp-controller, pkg/template/{ytt,helm_template,kbld,values}.go and pkg/packageinstall/app.go.
"""

import base64
import binascii
import posixpath
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import json

from pvbus.core.errors import PROGRAM_MISSING, PermanentError
from pvbus.core.kernel.effects import Effect, Execute, Executed, KindRef
from pvbus.core.kernel.objects import annotations_of, mapping
from pvbus.core.platform.establish.applying import RefusedError, read
from pvbus.core.platform.establish.objects import parsed_values
from pvbus.core.platform.packaging.archives import IMAGES_FILE, images_of

Files = dict[str, bytes]

NOT_SUPPORTED = "NotSupported"
"""The reason of a refusal as a package needs what only kapp-controller does."""
FAILED = "TemplateFailed"
SET_OTHERS = "set PVBUS_INSTALLER to others and install kapp-controller to have it done"
EXTENSIONS = "ext.packaging.carvel.dev/"
"""How the annotations begin with which an install changes the templates and logins of its package."""
OVERLAYS = f"{EXTENSIONS}ytt-paths-from-secret-name"
"""Names a Secret with further files for ytt; with suffixes (`.1`) there may be more, in that order."""
VALUES_AS_OVERLAYS = f"{EXTENSIONS}ytt-data-values-overlays"
"""The values of the install are files for ytt, not plain data values."""
NO_VALUES = "spec.values has no effect: nothing in the package is a template"
NO_OVERLAYS = f"the annotation {OVERLAYS} has no effect: no template of the package is for ytt"
HOW_TO_GET = {
    "ytt": "https://carvel.dev/ytt/docs/latest/install/",
    "kbld": "https://carvel.dev/kbld/docs/latest/install/",
    "helm": "https://helm.sh/docs/intro/install/",
}
ERROR_CHARACTERS_MAX = 800
"""Of a program's last words in a message: a condition's message has a limit, and the end says most."""

_PACKAGE = "package"
"""The folder of the package's files, beside those of values."""
_STREAM = "-"
"""The path that means the output of the step before."""
_YTT_DIRECTIVE = b"#@"
_RELEASE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_YAML = (".yaml", ".yml", ".json")
_FIELD_PATH = re.compile(r"^\{?\.?([^{}]+)\}?$")
"""A path in an object, with or without braces and a leading dot."""
_DOT = re.compile(r"(?<!\\)\.")
_GIVEN_FACTS = {
    "kubernetesVersion": "version",
    "kappControllerVersion": "version",
    "kubernetesAPIs": "groupVersions",
}
"""Facts that a package may give itself; without this field they would be those of the cluster."""
_SECRET, _CONFIG_MAP = KindRef("", "Secret", "v1"), KindRef("", "ConfigMap", "v1")


class Setting(NamedTuple):
    """What an install adds to the templates of its package.

    name, namespace: of the install; its Secrets are in this namespace
    user: in whose name Secrets and ConfigMaps are read, "" for our own
    values: the Secrets with values, in order
    overlays: the Secrets with further files for ytt, in order
    are_values_overlays: whether values are files for ytt, too
    """

    name: str = ""
    namespace: str = ""
    user: str = ""
    values: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    are_values_overlays: bool = False


def setting_of(obj: Mapping[str, Any], user: str) -> Setting:
    """Return what an install's object adds to the templates of its package. user: of its account."""
    meta, annotations = obj["metadata"], annotations_of(obj)
    values = (obj.get("spec") or {}).get("values") or ()
    overlays = sorted(name for name in annotations if f"{name}.".startswith(f"{OVERLAYS}."))
    return Setting(
        name=meta["name"],
        namespace=meta.get("namespace") or "",
        user=user,
        values=tuple(str((item.get("secretRef") or {}).get("name") or "") for item in values),
        overlays=tuple(str(annotations[name]) for name in overlays),
        are_values_overlays=VALUES_AS_OVERLAYS in annotations,
    )


class Rendered(NamedTuple):
    """The files that templates leave, and what had no effect, in words."""

    files: Files
    gaps: tuple[str, ...] = ()


class _Step(NamedTuple):
    """A step of a template.

    where: its field, as messages name it
    options: what the package says of it
    files: the files of the package
    before: what the step before left, None for the first step
    setting: what of the install is left for this step
    """

    where: str
    options: Mapping[str, Any]
    files: Files
    before: Files | None
    setting: Setting


_Steps = Generator[Effect, Any, tuple[Files, Setting]]


def render(
    files: Files, steps: Sequence[Mapping[str, Any]], setting: Setting
) -> Generator[Effect, Any, Rendered]:
    """Return what the steps of a package leave. Raises RefusedError, PermanentError."""
    before: Files | None = None
    for number, given in enumerate(steps):
        tool = _tool_of(given, number)
        step = _Step(f"template.{tool}", given[tool] or {}, files, before, setting)
        before, setting = yield from _TOOLS[tool](step)
    unused = [*([NO_VALUES] if setting.values else []), *([NO_OVERLAYS] if setting.overlays else [])]
    return Rendered(_manifests_of(files) if before is None else before, tuple(unused))


def _tool_of(step: Mapping[str, Any], number: int) -> str:
    if len(step) != 1:
        raise RefusedError("InvalidPackage", f"template[{number}] must name exactly one tool")
    (tool,) = step
    if tool not in _TOOLS:
        raise RefusedError(NOT_SUPPORTED, f"template.{tool} is not done here: {SET_OTHERS}")
    return tool


def only(given: Mapping[str, Any], where: str, *fields: str) -> None:
    """Check that an item has no other fields. Raises RefusedError."""
    if others := sorted(set(given) - set(fields)):
        raise RefusedError(NOT_SUPPORTED, f"{where}.{others[0]} is not done here: {SET_OTHERS}")


def path_of(text: Any) -> str:
    """Return a path as files have it: `./config/` is `config`, and `.` is "", the folder of all."""
    path = posixpath.normpath(str(text or "").strip("/"))
    return "" if path == "." else path


def is_below(path: str, folder: str) -> bool:
    return not folder or path.startswith(f"{folder}/")


# ---------------------------------------------------------------- ytt


def _run_ytt(step: _Step) -> _Steps:
    options, setting = step.options, step.setting
    fields = ("paths", "ignoreUnknownComments", "strict", "inline", "fileMarks", "valuesFrom")
    only(options, step.where, *fields)
    arguments, chosen = _inputs(step)
    inline = yield from inline_files(options.get("inline") or {}, setting, f"{step.where}.inline")
    if setting.are_values_overlays:
        inline += yield from _secrets(setting, setting.values, "spec.values")
        setting = setting._replace(values=())
    inline += yield from _secrets(setting, setting.overlays, f"the annotation {OVERLAYS}")
    setting = setting._replace(overlays=())
    added = _numbered("inline", inline)
    if not options.get("fileMarks") and not _has_directives((*chosen.values(), *added.values())):
        # ytt has nothing to do, nor has it where to put values: the files stay as they are.
        return {**chosen, **_manifests_of(added)}, setting
    values = yield from _value_files(step, setting)
    arguments += [word for number in range(len(inline)) for word in ("-f", f"inline-{number}")]
    arguments += [word for mark in options.get("fileMarks") or () for word in ("--file-mark", str(mark))]
    arguments += [word for path in values.paths for word in ("--data-values-file", path)]
    flags = {"ignoreUnknownComments": "--ignore-unknown-comments", "strict": "--strict"}
    arguments = [*(flag for field, flag in flags.items() if options.get(field)), *arguments]
    shown = _shown(step.files, arguments)
    output = yield from _execute("ytt", step, arguments, {**shown, **added, **values.files})
    return output, setting._replace(values=())


def _has_directives(contents: Iterable[bytes]) -> bool:
    return any(_YTT_DIRECTIVE in data for data in contents)


def inline_files(
    inline: Mapping[str, Any], setting: Setting, where: str
) -> Generator[Effect, Any, list[Files]]:
    """Return the files of a field `inline`, one folder for each of its sources. Raises RefusedError.

    where: the field, as messages name it
    """
    only(inline, where, "paths", "pathsFrom")
    folders = [{path_of(path): str(text).encode() for path, text in (inline.get("paths") or {}).items()}]
    for source in inline.get("pathsFrom") or ():
        only(source, f"{where}.pathsFrom", "secretRef", "configMapRef")
        content = yield from _content_of(source, setting, f"{where}.pathsFrom")
        reference = source.get("secretRef") or source.get("configMapRef") or {}
        folder = path_of(reference.get("directoryPath"))
        folders.append({path_of(f"{folder}/{name}"): data for name, data in content.items()})
    return [folder for folder in folders if folder]


# ---------------------------------------------------------------- helm


def _run_helm(step: _Step) -> _Steps:
    options, setting = step.options, step.setting
    only(options, step.where, "name", "namespace", "path", "valuesFrom", "kubernetesVersion")
    chart = path_of(options.get("path"))
    if not any(path == posixpath.join(chart, "Chart.yaml") for path in step.files):
        where = f" in {chart}" if chart else ""
        raise RefusedError("InvalidPackage", f"{step.where}: the package has no Chart.yaml{where}")
    release = str(options.get("name") or setting.name)
    if not _RELEASE.fullmatch(release):  # one that begins with a dash would be an option of helm
        raise RefusedError("InvalidPackage", f"{step.where}.name is no name of a release: {release}")
    namespace = str(options.get("namespace") or setting.namespace)
    arguments = ["template", release, posixpath.join(_PACKAGE, chart).rstrip("/")]
    arguments += ["--namespace", namespace, "--include-crds"]
    if "kubernetesVersion" in options:
        version = str((options["kubernetesVersion"] or {}).get("version") or "")
        if not version:
            field = f"{step.where}.kubernetesVersion without a version"
            raise RefusedError(NOT_SUPPORTED, f"{field} is not done here: {SET_OTHERS}")
        arguments += ["--kube-version", version]
    values = yield from _value_files(step, setting)
    arguments += [word for path in values.paths for word in ("--values", path)]
    output = yield from _execute("helm", step, arguments, {**_placed(step.files), **values.files})
    return output, setting._replace(values=())


# ---------------------------------------------------------------- kbld


def _run_kbld(step: _Step) -> _Steps:
    only(step.options, step.where, "paths")
    arguments, chosen = _inputs(step)
    is_locked = IMAGES_FILE in map(path_of, step.options.get("paths") or ())
    if not _has_unresolved(chosen, images_of(step.files) if is_locked else {}):
        return chosen, step.setting
    shown = _shown(step.files, arguments)
    output = yield from _execute("kbld", step, [*arguments, "--build=false"], shown)
    return output, step.setting


def _has_unresolved(manifests: Files, locked: Mapping[str, str]) -> bool:
    """Return whether kbld has anything to change: an image without a digest, or one that a lock has moved.

    locked: image as it is named -> by digest
    """
    for path, data in manifests.items():
        if b"image" not in data and b"kbld" not in data:
            continue
        for value in parsed_values(path, data):
            if isinstance(value, dict) and str(value.get("apiVersion")).startswith("kbld."):
                return True
            if any("@sha256:" not in image or locked.get(image, image) != image for image in _images(value)):
                return True
    return False


def _images(value: Any) -> Iterator[str]:
    """Yield what kbld takes for images: the texts of all fields with that name."""
    if isinstance(value, dict):
        for field, item in value.items():
            if field == "image" and isinstance(item, str):
                yield item
            else:
                yield from _images(item)
    elif isinstance(value, list):
        for item in value:
            yield from _images(item)


_TOOLS: Mapping[str, Callable[[_Step], _Steps]] = {
    "ytt": _run_ytt,
    "helmTemplate": _run_helm,
    "kbld": _run_kbld,
}


# ---------------------------------------------------------------- what steps have in common


def _inputs(step: _Step) -> tuple[list[str], Files]:
    """Return the arguments that name what a step reads, and the manifests in it.

    Raises RefusedError for a path without any file, as the tools fail then.
    """
    paths = [str(path) for path in step.options.get("paths") or ()]
    if not paths and step.before is None:
        return ["-f", _PACKAGE], _manifests_of(step.files)
    arguments: list[str] = []
    chosen: Files = {}
    for path in paths or [_STREAM]:
        if path == _STREAM:
            if step.before is None:
                text = (
                    f"{step.where}.paths names {_STREAM}, the output of the step before, and it is the first"
                )
                raise RefusedError("InvalidPackage", text)
            arguments += ["-f", _STREAM]
            chosen |= step.before
        else:
            name = path_of(path)
            files = _files_at(step, name, "paths")
            arguments += ["-f", posixpath.join(_PACKAGE, name).rstrip("/")]
            chosen |= _manifests_of(files)
    return arguments, chosen


def _files_at(step: _Step, path: str, field: str) -> Files:
    """Return a file of the package, or those of a folder, that a field of the step names.

    A program sees this machine's files, too, so a path must not lead out of the package. Raises RefusedError.
    """
    where = f"{step.where}.{field}"
    files = {file: data for file, data in step.files.items() if file == path or is_below(file, path)}
    if not files:
        raise RefusedError("InvalidPackage", f"{where} names {path}, which the package lacks")
    if "=" in path:  # ytt takes what follows for the path, and what precedes for the name
        raise RefusedError("InvalidPackage", f"{where} names {path}: ytt reads a path with = elsewhere")
    return files


def _manifests_of(files: Files) -> Files:
    return {path: data for path, data in files.items() if path.endswith(_YAML) and not path.startswith(".")}


class _Values(NamedTuple):
    """Files with values, and their paths in the order in which they count; a path may be the stream."""

    files: Files
    paths: tuple[str, ...]


def _value_files(step: _Step, setting: Setting) -> Generator[Effect, Any, _Values]:
    """Return the values that a step names itself, then those of the install, which count more."""
    sources = [*(step.options.get("valuesFrom") or ())]
    sources += [{"secretRef": {"name": name}} for name in setting.values]
    files: Files = {}
    paths: list[str] = []
    for number, source in enumerate(sources):
        where = f"{step.where}.valuesFrom"
        only(source, where, "secretRef", "configMapRef", "path", "downwardAPI")
        if path := str(source.get("path") or ""):
            if path != _STREAM:
                name = path_of(path)
                _files_at(step, name, "valuesFrom")
                path = posixpath.join(_PACKAGE, name)
            paths.append(path)
            continue
        if "downwardAPI" in source:
            content = _described(source["downwardAPI"] or {}, setting, f"{where}.downwardAPI")
        else:
            content = yield from _content_of(source, setting, where)
        found = {f"values-{number}/{name}": data for name, data in sorted(content.items())}
        files |= found
        paths += found
    return _Values(files, tuple(paths))


def _described(given: Mapping[str, Any], setting: Setting, where: str) -> Files:
    """Return what a package asks of its App, a file for each value. Raises RefusedError."""
    files: Files = {}
    for number, item in enumerate(given.get("items") or ()):
        facts = [field for field in item if field != "name"]
        if len(facts) != 1:
            raise RefusedError("InvalidPackage", f"{where}: an item must have exactly one fact")
        value = _fact(facts[0], item[facts[0]], setting, where)
        keys = [key.replace("\\", "") for key in _DOT.split(str(item.get("name") or ""))]
        if not all(keys):
            raise RefusedError("InvalidPackage", f"{where}: {item.get('name')!r} is no name of a value")
        for key in reversed(keys):
            value = {key: value}
        files[f"{number:03}.yml"] = json.encode(value)
    return files


def _fact(field: str, given: Any, setting: Setting, where: str) -> Any:
    """Return a fact of an App, or of the cluster if the package gives it itself. Raises RefusedError.

    The App of an install has its name and namespace; other metadata would be that of another object.
    """
    if field == "fieldPath":
        path = _FIELD_PATH.sub(r"\1", str(given))
        value = {"metadata.name": setting.name, "metadata.namespace": setting.namespace}.get(path)
        words = f"{where}.{field} {given}"
    else:
        value = mapping(given).get(_GIVEN_FACTS.get(field, ""))
        words = f"{where}.{field} without a value"
    if not value:
        raise RefusedError(NOT_SUPPORTED, f"{words} is not done here: {SET_OTHERS}")
    return value


def _secrets(setting: Setting, names: Iterable[str], where: str) -> Generator[Effect, Any, list[Files]]:
    contents = []
    for name in names:
        contents.append((yield from _content_of({"secretRef": {"name": name}}, setting, where)))
    return contents


def _numbered(name: str, folders: Iterable[Files]) -> Files:
    return {
        f"{name}-{number}/{path}": data
        for number, files in enumerate(folders)
        for path, data in files.items()
    }


def _content_of(source: Mapping[str, Any], setting: Setting, where: str) -> Generator[Effect, Any, Files]:
    """Return what a Secret or a ConfigMap has, by key. Raises RefusedError."""
    kind, field = (_SECRET, "secretRef") if "secretRef" in source else (_CONFIG_MAP, "configMapRef")
    name = str((source.get(field) or {}).get("name") or "")
    if not name:
        raise RefusedError("InvalidPackage", f"{where}: {field} names nothing")
    words = f"{kind.kind} {setting.namespace}/{name}"
    try:
        obj = yield from read(kind, setting.namespace, name, setting.user)
    except PermanentError as error:
        raise RefusedError(
            error.reason, f"{where}: {words} cannot be read by the account: {error}"
        ) from error
    if obj is None:
        raise RefusedError("NotFound", f"{where}: there is no {words}")
    data = obj.get("data") or {}
    if kind is _CONFIG_MAP:
        return {key: str(text).encode() for key, text in data.items()}
    try:
        return {key: base64.b64decode(text or "", validate=True) for key, text in data.items()}
    except (binascii.Error, ValueError) as error:
        raise RefusedError("InvalidContent", f"{where}: {words} is not base64") from error


def _shown(files: Files, arguments: Sequence[str]) -> Files:
    """Return the files for ytt and kbld, in their folder: hidden ones only where an argument names them."""
    named = tuple(word for word in arguments if word.startswith(f"{_PACKAGE}/."))
    return {
        path: data
        for path, data in _placed(files).items()
        if not path.startswith(f"{_PACKAGE}/.") or any(path == word or is_below(path, word) for word in named)
    }


def _placed(files: Files) -> Files:
    return {f"{_PACKAGE}/{path}": data for path, data in files.items()}


def _execute(
    program: str, step: _Step, arguments: Sequence[str], files: Files
) -> Generator[Effect, Any, Files]:
    """Run a program, and return its output as a file. Raises RefusedError in words for people."""
    given = b"\n---\n".join((step.before or {}).values())
    try:
        done: Executed = yield Execute(program, tuple(arguments), files, given)
    except PermanentError as error:
        words = _missing(program, step.where) if error.reason == PROGRAM_MISSING else f"{step.where}: {error}"
        raise RefusedError(error.reason, words) from error
    if done.code:
        said = done.err.decode(errors="replace").strip()[-ERROR_CHARACTERS_MAX:] or "it says nothing"
        raise RefusedError(FAILED, f"{step.where}: {program} ended with {done.code}: {said}")
    return {f"the output of {program}": done.out}


def _missing(program: str, where: str) -> str:
    return (
        f"{where} needs the program {program}, which PATH does not have: install it where the service "
        f"establish runs ({HOW_TO_GET[program]}), or {SET_OTHERS}"
    )
