"""`pvbus validate`: checks that an API server and the services would accept manifests."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
import msgspec

from pvbus.adapters.manifests import FileProblem, Manifest, read_manifests
from pvbus.cli.applyrecord import digest, identity
from pvbus.cli.output import FORMATS, counted, emit
from pvbus.controlplane.apiserver.crdvalidation import validate_crd
from pvbus.controlplane.apiserver.structural import Schema, compile_schema
from pvbus.core.api.crds import crds
from pvbus.core.api.promotion import PROMOTION_API
from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.api.spellings import hint_of, meaning_of
from pvbus.core.api.variants import PackageVariant, PackageVariantSet
from pvbus.core.promotion.protocol.evidencenames import evidence_warnings
from pvbus.core.promotion.protocol.quarantines import set_of
from pvbus.core.promotion.protocol.selection import Package, is_for
from pvbus.core.promotion.protocol.validation import canary_warnings, never_opens, validate_policy
from pvbus.core.variants.expressions import expressions_of
from pvbus.core.variants.inject.mutations.validation import validate_variant
from pvbus.core.variants.template import compile_targets, unknown_fields
from pvbus.core.variants.unroll.validation import duplicate_downstreams, validate_set
from pvbus.ports.cluster import Object

CRD = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")


@click.command(
    short_help="Check manifests without a cluster.",
    epilog="""\b
Examples:
  pvbus validate set.yaml
  pvbus validate manifests/ && pvbus plan -f manifests/
  pvbus validate manifests/ -o json
""",
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True)
def validate(paths: tuple[Path, ...], output: str) -> None:
    """Check manifests without a cluster; FILE may be a folder.

    Sets, variants, Repositories and RolloutPolicies are checked by their schemas (a field that nobody knows
    is an error), by the rules that the services have, and by compiling every expression. Kinds whose
    CustomResourceDefinition is among the files are checked by it. Exit code 1 when anything is wrong.

    cel-python, another implementation of CEL, gives a second opinion on the syntax of each expression. A
    disagreement is a warning, which does not change the exit code.
    """
    manifests = read_manifests(paths)
    problems = list(problems_of(manifests))
    warnings = list(warnings_of(manifests))
    if output == "text":
        for problem in problems:
            click.echo(str(problem))
        for warning in warnings:
            click.echo(f"warning: {warning}")
        click.echo(_summary(len(manifests), len(problems), len(warnings)), err=bool(problems))
    else:
        document = {
            "objects": len(manifests),
            "problems": [problem._asdict() for problem in problems],
            "warnings": [warning._asdict() for warning in warnings],
        }
        emit(document, output)
    sys.exit(1 if problems else 0)


def _summary(objects: int, problems: int, warnings: int) -> str:
    parts = [counted(objects, "object"), counted(problems, "problem") if problems else "no problems"]
    return ", ".join([*parts, counted(warnings, "warning")] if warnings else parts)


def problems_of(manifests: Sequence[Manifest]) -> Iterator[FileProblem]:
    """Yield all problems, in the order of the manifests."""
    own = [m.object for m in manifests if _version_of(m.object) == CRD and not validate_crd(m.object)]
    schemas = _schemas([*crds(), *own])
    seen: dict[str, Manifest] = {}
    for manifest in manifests:
        obj = manifest.object
        name = f"{obj['kind']} {obj['metadata']['name']}"
        for field, message in _findings(obj, schemas):
            yield FileProblem(str(manifest.file), manifest.document, name, field, message)
        first = seen.setdefault(identity(obj), manifest)
        if digest(first.object) != digest(obj):
            message = f"differs from {first.location}: leave one of them out"
            yield FileProblem(str(manifest.file), manifest.document, name, "", message)


def warnings_of(manifests: Sequence[Manifest]) -> Iterator[FileProblem]:
    """Yield a warning for each field that may not mean what its author wants."""
    for manifest in manifests:
        obj = manifest.object
        found: Iterable[tuple[str, str]] = ()
        if obj["kind"] == "PackageVariantSet":
            found = _of_expressions(obj)
        elif _version_of(obj) == (PROMOTION_API, "RolloutPolicy") and isinstance(obj.get("spec"), dict):
            found = _of_canaries(obj, [each.object for each in manifests])
        for field, message in found:
            name = f"{obj['kind']} {obj['metadata']['name']}"
            yield FileProblem(str(manifest.file), manifest.document, name, field, message)


def _of_expressions(obj: Object) -> Iterator[tuple[str, str]]:
    """Yield each expression about whose syntax cel-python and our parser disagree, or that says something
    else than it seems to."""
    for field, text in expressions_of(obj.get("spec"), "spec"):
        for message in filter(None, (_second_opinion(text), meaning_of(field, text))):
            yield field, message


def _of_canaries(obj: Object, objects: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Yield what is odd about the canaries of a policy. objects: all that are checked with it."""
    try:
        policy: RolloutPolicy = _converted(obj, RolloutPolicy)
    except msgspec.ValidationError:
        return  # the schema says so
    yield from (split(warning) for warning in canary_warnings(policy.spec))
    if not validate_policy(policy.spec) and (never := never_opens(policy.spec, time.time())):
        yield split(never)
    yield from (("spec.evidence.object", words) for words in _of_evidence(policy, objects))
    namespace = policy.metadata.namespace
    peers = [each for each in objects if each["metadata"].get("namespace", "") == namespace]
    variants = {each["metadata"]["name"] for each in peers if each["kind"] == "PackageVariant"}
    has_sets = any(each["kind"] == "PackageVariantSet" for each in peers)
    for i, canary in enumerate(policy.spec.canaries):
        if variants and not has_sets and canary not in variants:
            close = get_close_matches(canary, sorted(variants), 1)
            hint = f': did you mean "{close[0]}"?' if close else ""
            message = f'"{canary}" is no PackageVariant of these files, so nothing would be approved{hint}'
            yield f"spec.canaries[{i}]", message


def _of_evidence(policy: RolloutPolicy, objects: Sequence[Object]) -> Iterator[str]:
    """Yield why the evidence of a policy would never be known, as far as the files say."""
    rule = policy.spec.evidence.object
    if rule is None or validate_policy(policy.spec):
        return
    packages = [package for package in map(_package, objects) if package is not None]
    targets = {
        package.name: package.labels
        for package in packages
        if package.variant is not None
        and package.variant.metadata.namespace == policy.metadata.namespace
        and is_for(policy.spec, package)
    }
    group = rule.api_version.rpartition("/")[0]
    of_kind = [
        each
        for each in objects
        if (each["apiVersion"].rpartition("/")[0], each["kind"]) == (group, rule.kind)
    ]
    yield from evidence_warnings(policy.spec, targets, of_kind)


def _package(obj: Object) -> Package | None:
    """Return the package of a variant in a file, None for any other object."""
    if obj["kind"] != "PackageVariant":
        return None
    try:
        variant: PackageVariant = _converted(obj, PackageVariant)
    except msgspec.ValidationError:
        return None  # the schema says so
    downstream = variant.spec.downstream
    repository = downstream.repo if downstream is not None else ""
    name, labels = variant.metadata.name, variant.metadata.labels
    return Package(name, repository, None, None, labels, variant, set_of(variant))


def _second_opinion(text: str) -> str:
    """Return the disagreement, "" if none. cel-python takes 250 ms to import, so it is imported on demand."""
    from pvbus.core.cel.second_opinion import syntax_disagreement

    return syntax_disagreement(text)


def _version_of(obj: Object) -> tuple[str, str]:
    return obj["apiVersion"], obj["kind"]


def _schemas(definitions: Sequence[Object]) -> dict[tuple[str, str], Schema]:
    found = {}
    for crd in definitions:
        spec = crd["spec"]
        for version in spec["versions"]:
            if version.get("served"):
                schema = compile_schema(version["schema"]["openAPIV3Schema"])
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _findings(obj: Object, schemas: dict[tuple[str, str], Schema]) -> Iterator[tuple[str, str]]:
    if _version_of(obj) == CRD:
        yield from ((error.path, error.message) for error in validate_crd(obj))
        return
    schema = schemas.get(_version_of(obj))
    if schema is None:
        group = obj["apiVersion"].rpartition("/")[0]
        known = sorted(
            version for version, kind in schemas if kind == obj["kind"] and version.startswith(group + "/")
        )
        if group and known:
            yield "apiVersion", f'"{obj["apiVersion"]}" is not served; {", ".join(known)} is'
        return
    pruned, unknown = schema.pruned(schema.defaulted(obj))
    for field in unknown:
        hint = hint_of(obj["kind"], field)
        yield field, f"unknown field: {hint}" if hint else "unknown field"
    errors = [(error.path, error.message) for error in schema.validate(pruned)]
    yield from errors
    if not errors:  # a field of the wrong type would prevent the conversion
        yield from _rules(pruned)


def _rules(obj: Object) -> Iterator[tuple[str, str]]:
    """Yield the problems that the services would report in the condition Stalled."""
    if obj["kind"] == "PackageVariant":
        variant = _converted(obj, PackageVariant)
        problems = validate_variant(variant.spec, variant.metadata.annotations)
        yield from (split(problem) for problem in problems)
    elif obj["kind"] == "PackageVariantSet":
        spec = _converted(obj, PackageVariantSet).spec
        problems = validate_set(spec)
        yield from (split(problem) for problem in [*problems, *duplicate_downstreams(spec)])
        if problems:
            return
        for error in compile_targets(spec).errors():
            field, _, message = error.partition(": ")
            yield f"spec.targets[].{field}", message
        yield from unknown_fields(spec)
    elif _version_of(obj) == (PROMOTION_API, "RolloutPolicy"):
        policy = _converted(obj, RolloutPolicy)
        yield from (split(problem) for problem in validate_policy(policy.spec))


def _converted(obj: Object, type_: Any) -> Any:
    return msgspec.convert(obj, type_)


def split(problem: str) -> tuple[str, str]:
    """Split a rule's message into its field and the rest, if it begins with the field."""
    field, _, message = problem.partition(" ")
    if field.startswith("spec.") and message:
        return field.rstrip(":"), message
    return "", problem
