"""Validation of a PackageVariant's spec: every problem at once, in Porch's words and order.

Source: Porch v1.5.8, packagevariant_controller.go, validatePackageVariant. We also refuse dots in
function names, as Porch does in a set, and labels and annotations that no PackageRevision can have: with them
it could be created, and never be updated or proposed.
"""

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pvbus.core.api.names import map_problems
from pvbus.core.api.variants import PackageVariantSpec, Pipeline
from pvbus.core.variants import versions
from pvbus.core.variants.following import follow_problems

RESERVED_KEYS = ("name", "package-path")
"""Keys of the package context that Porch's server writes itself."""
NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})


def validate_variant(spec: PackageVariantSpec, annotations: Mapping[str, str] = NO_ANNOTATIONS) -> list[str]:
    """Return the problems of a variant, [] if it is valid. annotations: those of the variant."""
    return [*_problems(spec), *follow_problems("metadata.annotations", annotations)]


def _problems(spec: PackageVariantSpec) -> Iterator[str]:
    for field, end in (("upstream", spec.upstream), ("downstream", spec.downstream)):
        if end is None:
            yield f"missing required field spec.{field}"
            continue
        if not end.repo:
            yield f"missing required field spec.{field}.repo"
        if not end.package:
            yield f"missing required field spec.{field}.package"
    if spec.upstream is not None and (wrong := versions.problem(spec.upstream)):
        yield f"spec.upstream.workspaceName: {wrong}"
    if spec.adoption_policy not in ("", "adoptNone", "adoptExisting"):
        yield 'spec.adoptionPolicy field can only be "adoptNone" or "adoptExisting"'
    if spec.deletion_policy not in ("", "orphan", "delete"):
        yield 'spec.deletionPolicy can only be "orphan" or "delete"'
    if spec.package_context is not None:
        data, remove_keys = dict(spec.package_context.data), list(spec.package_context.remove_keys)
        for key in RESERVED_KEYS:
            if key in data:
                yield _reserved("data", data, key)
            yield from [_reserved("removeKeys", remove_keys, key)] * remove_keys.count(key)
    for index, injector in enumerate(spec.injectors):
        if not injector.name:
            yield f"spec.injectors[{index}].name must not be empty"
    yield from _pipeline_problems(spec.pipeline or Pipeline())
    yield from map_problems("spec", spec.labels, spec.annotations)
    yield from follow_problems("spec.annotations", spec.annotations)


def _reserved(field: str, value: Any, key: str) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f'spec.packageContext.{field}: Invalid value: {text}: must not contain the key "{key}"'


def _pipeline_problems(pipeline: Pipeline) -> Iterator[str]:
    for field, functions in (("validators", pipeline.validators), ("mutators", pipeline.mutators)):
        for index, function in enumerate(functions):
            if "." in function.name:
                yield f"spec.pipeline.{field}[{index}].name must not contain '.'"
