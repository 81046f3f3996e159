"""Imports an ApplicationSet of Argo CD: its clusters as targets, its template as a template of variants.

A set makes the packages, and Argo CD still deploys them: what an ApplicationSet says about that stays there.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pvbus.cli.importing.converted import (
    FUNCTIONS,
    Converted,
    NoCounterpartError,
    Note,
    Wanted,
    fields,
    items,
    namespace_pipeline,
    repository_of,
    revision_of,
    text_of,
    variant_set,
)
from pvbus.cli.importing.generators import Source, sources_of
from pvbus.cli.importing.texts import Text, constant, expression
from pvbus.core.errors import UsageError

SOURCE = ("repoURL", "path", "targetRevision", "kustomize", "name")
KUSTOMIZE = ("images", "commonLabels", "commonAnnotations")
DEPLOYING = ("project", "syncPolicy", "ignoreDifferences", "info", "revisionHistoryLimit")
IMAGE = re.compile(r"(?:([^=]+)=)?(.+?)(?::([^:/@]+))?(?:@(sha256:[0-9a-f]+))?")


def import_application_set(source: Mapping[str, Any], wanted: Wanted) -> Converted:
    """Make a set of an ApplicationSet. Raises UsageError if there is nothing to make one of."""
    spec = fields(source.get("spec"), "spec")
    notes: list[Note] = []
    template = fields(spec.get("template"), "spec.template")
    name = text_of(fields(source.get("metadata"), "metadata").get("name"), "metadata.name")
    upstream = _upstream(_single_source(template), wanted, notes)
    sources = sources_of(
        spec.get("generators"), "spec.generators", notes, is_go=spec.get("goTemplate") is True
    )
    targets = _merged(_targets(sources, template, wanted, notes))
    if not targets:
        raise UsageError("\n".join(["no generator can be imported", *map(str, notes)]))
    if _keeps_resources(spec):
        for target in targets:
            target.setdefault("template", {})["deletionPolicy"] = "orphan"
    notes += _remaining(spec, template)
    return Converted((variant_set(source, name, upstream, targets),), tuple(dict.fromkeys(notes)))


def _single_source(template: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = fields(template.get("spec"), "spec.template.spec")
    several = items(spec.get("sources"), "spec.template.spec.sources")
    if len(several) > 1:
        raise UsageError(
            "spec.template.spec.sources: a set has one upstream package: make a set of each source"
        )
    return fields(several[0] if several else spec.get("source"), "spec.template.spec.source")


def _upstream(source: Mapping[str, Any], wanted: Wanted, notes: list[Note]) -> dict[str, Any]:
    """Return the upstream. Raises UsageError if it is no single published package."""
    field = "spec.template.spec.source"
    if "chart" in source and not wanted.upstream_package:
        raise UsageError(
            f"{field}.chart: a Helm chart is no package: render it into one, and name that one by "
            "--upstream-repository, --upstream-package and --upstream-revision"
        )
    repository = repository_of(_fixed(source, "repoURL"), f"{field}.repoURL", wanted, notes)
    package = wanted.upstream_package or _fixed(source, "path").strip("./")
    if not package:
        raise UsageError(f"{field}.path: is the whole repository: name its package by --upstream-package")
    reference = text_of(source.get("targetRevision"), f"{field}.targetRevision")
    revision = revision_of(reference, f"{field}.targetRevision", wanted)
    return {"repo": repository, "package": package, "revision": revision}


def _fixed(source: Mapping[str, Any], key: str) -> str:
    """Return a part of the source that is the same for all targets. Raises UsageError."""
    text = text_of(source.get(key), f"spec.template.spec.source.{key}")
    if "{{" in text:
        raise UsageError(
            f"spec.template.spec.source.{key}: differs by target ({text}), and a set has one upstream "
            "package: put what differs into the template's packageContext, pipeline or injectors, and name "
            "the package by --upstream-package"
        )
    return text


def _targets(
    sources: Iterator[Source], template: Mapping[str, Any], wanted: Wanted, notes: list[Note]
) -> Iterator[dict[str, Any]]:
    for source in sources:
        try:
            yield _target(source, template, wanted, notes)
        except NoCounterpartError as exc:
            notes.append(Note(source.field, f"left out: {exc}"))


def _keeps_resources(spec: Mapping[str, Any]) -> bool:
    policy = fields(spec.get("syncPolicy"), "spec.syncPolicy")
    keeping = ("create-only", "create-update")
    return policy.get("preserveResourcesOnDeletion") is True or policy.get("applicationsSync") in keeping


def _target(source: Source, template: Mapping[str, Any], wanted: Wanted, notes: list[Note]) -> dict[str, Any]:
    """Return a target of the set. Raises NoCounterpartError where its package has no name."""
    metadata = fields(template.get("metadata"), "spec.template.metadata")
    package = source.text(text_of(metadata.get("name"), "spec.template.metadata.name"))
    made = _differences(source, template, metadata, notes)
    if source.selector is None:
        listed = {"name": wanted.repository, "packageNames": [constant(package)]}
        return {"repositories": [listed]} | ({"template": made} if made else {})
    if constant(package) is not None:
        raise NoCounterpartError(f"all its targets would be the one package {constant(package)}")
    downstream = {"repo": wanted.repository, "packageExpr": expression(package)}
    return {"objectSelector": source.selector, "template": {"downstream": downstream, **made}}


def _differences(
    source: Source, template: Mapping[str, Any], metadata: Mapping[str, Any], notes: list[Note]
) -> dict[str, Any]:
    """Return what else the template says of a target: labels, annotations, functions."""
    spec = fields(template.get("spec"), "spec.template.spec")
    destination = fields(spec.get("destination"), "spec.template.spec.destination")
    made: dict[str, Any] = {}
    for key, constants, expressions in (
        ("labels", "labels", "labelExprs"),
        ("annotations", "annotations", "annotationExprs"),
    ):
        for label, value in fields(metadata.get(key), f"spec.template.metadata.{key}").items():
            field = f"spec.template.metadata.{key}[{label}]"
            text = _attempt(text_of(value, field), field, source, notes)
            _put(made, constants, expressions, label, text)
    namespace = "spec.template.spec.destination.namespace"
    value = text_of(destination.get("namespace"), namespace)
    text = _attempt(value, namespace, source, notes) if value else None
    config: dict[str, Any] = {}
    _put(config, "configMap", "configMapExprs", "namespace", text)
    if config:
        made["pipeline"] = namespace_pipeline(config)
    functions = list(_kustomize(_single_source(template), source, notes))
    if functions:
        made.setdefault("pipeline", {"mutators": []})["mutators"] += functions
    return made


def _attempt(text: str, field: str, source: Source, notes: list[Note]) -> Text | None:
    """Return a text with its parameters, or note why it has no counterpart."""
    try:
        return source.text(text)
    except NoCounterpartError as exc:
        notes.append(Note(field, str(exc)))
        return None


def _put(made: dict[str, Any], constants: str, expressions: str, key: str, text: Text | None) -> None:
    """Put a value below its key: a constant among constants, else an expression."""
    if text is None:
        return
    if (value := constant(text)) is not None:
        made.setdefault(constants, {})[key] = value
    else:
        made.setdefault(expressions, []).append({"key": key, "valueExpr": expression(text)})


def _kustomize(
    application_source: Mapping[str, Any], source: Source, notes: list[Note]
) -> Iterator[dict[str, Any]]:
    """Yield the functions that do what a source's `kustomize` says, and note what has none."""
    field = "spec.template.spec.source.kustomize"
    kustomize = fields(application_source.get("kustomize"), field)
    for key in sorted(kustomize.keys() - set(KUSTOMIZE)):
        notes.append(Note(f"{field}.{key}", "has no counterpart: put it into the package or its pipeline"))
    for number, image in enumerate(items(kustomize.get("images"), f"{field}.images")):
        path = f"{field}.images[{number}]"
        text = _attempt(text_of(image, path), path, source, notes)
        if text is not None and (value := constant(text)) is not None:
            yield {"image": f"{FUNCTIONS}/set-image:v0.1.4", "configMap": _image(value, path)}
        elif text is not None:
            notes.append(Note(path, "differs by target: write configMapExprs for the function set-image"))
    for key, function in (
        ("commonLabels", "set-labels:v0.2.1"),
        ("commonAnnotations", "set-annotations:v0.1.4"),
    ):
        config: dict[str, Any] = {}
        for label, value in fields(kustomize.get(key), f"{field}.{key}").items():
            path = f"{field}.{key}[{label}]"
            text = _attempt(text_of(value, path), path, source, notes)
            _put(config, "configMap", "configMapExprs", label, text)
        if config:
            yield {"image": f"{FUNCTIONS}/{function}", **config}


def _image(text: str, field: str) -> dict[str, str]:
    """Return the configuration of set-image for `[name=]newName[:tag][@digest]`. Raises UsageError."""
    match = IMAGE.fullmatch(text)
    if not match:
        raise UsageError(f"{field}: is no image: {text}")
    name, new, tag, digest = match.groups()
    made = {"name": name or new, "newName": new, "newTag": tag, "digest": digest}
    return {key: value for key, value in made.items() if value}


def _merged(targets: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the listed targets that differ in nothing but their package."""
    merged: list[dict[str, Any]] = []
    for target in targets:
        listed = target.get("repositories")
        same = next((each for each in merged if listed and _alike(each, target)), None)
        if same is None:
            merged.append(target)
        else:
            same["repositories"][0]["packageNames"] += target["repositories"][0]["packageNames"]
    return merged


def _alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return "repositories" in first and first.get("template") == second.get("template")


def _remaining(spec: Mapping[str, Any], template: Mapping[str, Any]) -> Iterator[Note]:
    """Yield a note for all else that the definition says."""
    application = fields(template.get("spec"), "spec.template.spec")
    deploying = [key for key in DEPLOYING if key in application]
    deploying += [
        f"destination.{key}"
        for key in ("server", "name")
        if key in fields(application.get("destination"), "spec.template.spec.destination")
    ]
    if deploying:
        message = "stays with Argo CD, which deploys the packages (docs/deploying.md): " + ", ".join(
            deploying
        )
        yield Note("spec.template.spec", message)
    for key in sorted(_single_source(template).keys() - set(SOURCE)):
        yield Note(
            f"spec.template.spec.source.{key}",
            "has no counterpart: render it into the package; what differs by target goes to the template's "
            "packageContext or pipeline",
        )
    if "templatePatch" in spec:
        yield Note(
            "spec.templatePatch", "has no counterpart: what it patches differs by target in the template"
        )
    yield from _strategy(fields(spec.get("strategy"), "spec.strategy"))


def _strategy(strategy: Mapping[str, Any]) -> Iterator[Note]:
    rolling = fields(strategy.get("rollingSync"), "spec.strategy.rollingSync")
    for number, step in enumerate(items(rolling.get("steps"), "spec.strategy.rollingSync.steps")):
        field = f"spec.strategy.rollingSync.steps[{number}]"
        for requirement in items(fields(step, field).get("matchExpressions"), f"{field}.matchExpressions"):
            required = fields(requirement, f"{field}.matchExpressions")
            yield Note(
                field,
                f"the order of a RolloutPolicy says it: label {required.get('key')}, values "
                f"{required.get('values')}; its waves are counts or percents",
            )
