"""A PackageVariant's changes to a package: context, pipeline functions, injected configuration.

Pure: files in, files out. Applying a mutation twice gives the same files as applying it once, byte
for byte, and an unchanged file keeps its exact text.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pvbus.core.api import kptfile
from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import PermanentError
from pvbus.core.variants.inject.mutations.context import with_context
from pvbus.core.variants.inject.mutations.injection import (
    CandidateListing,
    Candidates,
    Injected,
    InjectionPoint,
    InjectionPoints,
    injected_from,
    injection_points,
    problem_of,
    wanted,
    with_injection,
)
from pvbus.core.variants.inject.mutations.pipeline import with_pipeline
from pvbus.core.variants.inject.mutations.validation import validate_variant

__all__ = [
    "CandidateListing",
    "Candidates",
    "Injected",
    "InjectionPoint",
    "InjectionPoints",
    "Mutation",
    "injected_from",
    "injection_points",
    "mutate",
    "problem_of",
    "validate_variant",
    "wanted",
]


class Mutation(NamedTuple):
    """The resulting files, whether they differ from the input, and the outcome of each injection point.

    causes: the changes, in words.
    """

    resources: dict[str, str]
    changed: bool
    injected: tuple[Injected, ...]
    causes: tuple[str, ...] = ()


def mutate(
    resources: Mapping[str, str],
    variant: PackageVariant,
    candidates: Candidates,
    *,
    revision_name: str,
    namespace: str,
) -> Mutation:
    """Apply a variant to the files of a package revision; the Kptfile's pipeline is not run here.

    A Kptfile whose known content stays the same keeps its text: Porch would not save it either.
    Raises: PermanentError, in Porch's words, if the package lacks what the variant needs.
    """
    where = f"{namespace}/{revision_name}"
    if not resources:
        raise PermanentError(
            f"nil resources found for PackageRevisionResources '{where}'", reason="InvalidPackage"
        )
    spec = variant.spec
    in_context = with_context(dict(resources), spec.package_context, where=where)
    piped = with_pipeline(in_context, spec.pipeline, variant=variant.metadata.name, where=where)
    result, injected = with_injection(piped, spec.injectors, candidates)
    causes = ["package context"] if in_context != resources else []
    causes += ["pipeline"] if piped != in_context else []
    causes += _injections(piped, result, injected)
    before, after = resources[kptfile.FILE], result[kptfile.FILE]
    if before != after and kptfile.known_content(before) == kptfile.known_content(after):
        result[kptfile.FILE] = before
    changed = result != resources
    return Mutation(result, changed, injected, tuple(causes) if changed else ())


def _injections(
    before: Mapping[str, str], after: Mapping[str, str], injected: tuple[Injected, ...]
) -> list[str]:
    """Return, in words, the objects injected into changed files, or that only conditions changed."""
    done = [
        f"{one.point.kind} {one.source_name} into {one.point.file}"
        for one in injected
        if one.source_name is not None and before[one.point.file] != after[one.point.file]
    ]
    return done or (["injection conditions"] if before != after else [])
