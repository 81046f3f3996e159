"""Validation of a PackageVariantSet's spec: all its problems, in Porch's order and words.

Source: Porch v1.5.8, packagevariantset/validate.go, as the conformance cases pin it. Beyond Porch:
a map expression needs a key and a value, the maps of pipeline functions are checked like all others,
and malformed label selectors, and labels and annotations that no object can have, are reported here.
Expressions are compiled elsewhere (`pvbus.core.variants.template`): a compile error is no validation error.
"""

from collections.abc import Iterable, Iterator

from pvbus.core.api.names import map_problems
from pvbus.core.api.selectors import selector_problems
from pvbus.core.api.variants import (
    DownstreamTemplate,
    FunctionTemplate,
    InjectorTemplate,
    MapExpr,
    ObjectSelector,
    PackageVariantSetSpec,
    PipelineTemplate,
    RepositoryTarget,
    Target,
    Upstream,
    VariantTemplate,
)
from pvbus.core.variants import versions
from pvbus.core.variants.following import follow_problems

ADOPTION_POLICIES = ("adoptNone", "adoptExisting")
DELETION_POLICIES = ("orphan", "delete")


def validate_set(spec: PackageVariantSetSpec) -> list[str]:
    """Return all problems in order; the condition joins them with `; `."""
    return [*_upstream(spec.upstream), *_targets(spec.targets)]


def duplicate_downstreams(spec: PackageVariantSetSpec) -> list[str]:
    """Return a problem for each downstream that two entries of listed repositories share.

    The set alone shows only the downstreams that no expression decides. They are no problems of the whole
    set: its other targets continue, and unrolling reports all shared downstreams.
    """
    seen: dict[tuple[str, str], str] = {}
    problems = []
    for field_path, downstream in _static_downstreams(spec):
        first = seen.setdefault(downstream, field_path)
        if first != field_path:
            problems.append(
                f'{first} and {field_path} have the same downstream "{downstream[0]}/{downstream[1]}"'
            )
    return problems


def _static_downstreams(spec: PackageVariantSetSpec) -> Iterator[tuple[str, tuple[str, str]]]:
    default = spec.upstream.package if spec.upstream is not None else ""
    for i, target in enumerate(spec.targets):
        template = (target.template and target.template.downstream) or DownstreamTemplate()
        if template.repo_expr or template.package_expr:
            continue
        for j, repository in enumerate(target.repositories or ()):
            for k, package in enumerate(repository.package_names or (default,)):
                field_path = f"spec.targets[{i}].repositories[{j}]"
                if repository.package_names:
                    field_path += f".packageNames[{k}]"
                yield field_path, (template.repo or repository.name, template.package or package)


def _upstream(upstream: Upstream | None) -> Iterator[str]:
    if upstream is None:
        yield "spec.upstream is a required field"
        return
    if not upstream.package:
        yield "spec.upstream.package is a required field"
    if not upstream.repo:
        yield "spec.upstream.repo is a required field"
    if not upstream.revision and not upstream.workspace_name:
        yield "either spec.upstream.revision or spec.upstream.workspaceName must be specified"
    if wrong := versions.problem(upstream):
        yield f"spec.upstream.workspaceName: {wrong}"


def _targets(targets: tuple[Target, ...]) -> Iterator[str]:
    if not targets:
        yield "must specify at least one item in spec.targets"
    for i, target in enumerate(targets):
        field = f"spec.targets[{i}]"
        yield from _selection(target, field)
        if target.template is not None:
            yield from _template(target.template, f"{field}.template")


def _selection(target: Target, field: str) -> Iterator[str]:
    if target.repositories is not None:
        yield from _repositories(target.repositories, f"{field}.repositories")
    if target.object_selector is not None:
        yield from _object_selector(target.object_selector, field)
    ways = (target.repositories, target.repository_selector, target.object_selector)
    if sum(way is not None for way in ways) != 1:
        yield f"{field} must specify one of `repositories`, `repositorySelector`, or `objectSelector`"
    if target.repository_selector is not None:
        yield from selector_problems(target.repository_selector, f"{field}.repositorySelector")
    if target.object_selector is not None:
        yield from selector_problems(target.object_selector, f"{field}.objectSelector")


def _repositories(repositories: tuple[RepositoryTarget, ...], field: str) -> Iterator[str]:
    if not repositories:
        yield f"{field} must not be an empty list if specified"
    for j, repository in enumerate(repositories):
        if not repository.name:
            yield f"{field}[{j}].name cannot be empty"
        for k, package in enumerate(repository.package_names):
            if not package:
                yield f"{field}[{j}].packageNames[{k}] cannot be empty"


def _object_selector(selector: ObjectSelector, field: str) -> Iterator[str]:
    """The field's spelling in these two messages is Porch's."""
    if not selector.api_version:
        yield f"{field}.objectselector.apiVersion cannot be empty"
    if not selector.kind:
        yield f"{field}.objectselector.kind cannot be empty"


def _template(template: VariantTemplate, field: str) -> Iterator[str]:
    if template.adoption_policy not in (None, *ADOPTION_POLICIES):
        yield f'{field}.adoptionPolicy can only be "adoptNone" or "adoptExisting"'
    if template.deletion_policy not in (None, *DELETION_POLICIES):
        yield f'{field}.deletionPolicy can only be "orphan" or "delete"'
    downstream = template.downstream or DownstreamTemplate()
    yield from _one_of(downstream.repo, downstream.repo_expr, field, "downstream.repo", "downstream.repoExpr")
    yield from _one_of(
        downstream.package, downstream.package_expr, field, "downstream.package", "downstream.packageExpr"
    )
    yield from _map_exprs(template.label_exprs, f"{field}.labelExprs")
    yield from _map_exprs(template.annotation_exprs, f"{field}.annotationExprs")
    if template.package_context is not None:
        yield from _map_exprs(template.package_context.data_exprs, f"{field}.packageContext.dataExprs")
    for j, injector in enumerate(template.injectors):
        yield from _injector(injector, f"{field}.injectors[{j}]")
    pipeline = template.pipeline or PipelineTemplate()
    yield from _functions(pipeline.validators, f"{field}.pipeline.validators")
    yield from _functions(pipeline.mutators, f"{field}.pipeline.mutators")
    yield from map_problems(field, template.labels, template.annotations)
    yield from follow_problems(f"{field}.annotations", template.annotations)


def _one_of(value: str | None, expr: str | None, field: str, name: str, expr_name: str) -> Iterator[str]:
    if value is not None and expr is not None:
        yield f"{field} may specify only one of `{name}` and `{expr_name}`"


def _either(value: str | None, expr: str | None, field: str, name: str, expr_name: str) -> Iterator[str]:
    yield from _one_of(value, expr, field, name, expr_name)
    if value is None and expr is None:
        yield f"{field} must specify either `{name}` or `{expr_name}`"


def _map_exprs(exprs: tuple[MapExpr, ...], field: str) -> Iterator[str]:
    for j, expr in enumerate(exprs):
        yield from _either(expr.key, expr.key_expr, f"{field}[{j}]", "key", "keyExpr")
        yield from _either(expr.value, expr.value_expr, f"{field}[{j}]", "value", "valueExpr")


def _injector(injector: InjectorTemplate, field: str) -> Iterator[str]:
    yield from _either(injector.name, injector.name_expr, field, "name", "nameExpr")


def _functions(functions: Iterable[FunctionTemplate], field: str) -> Iterator[str]:
    for j, function in enumerate(functions):
        if not function.image:
            yield f"{field}[{j}].image must not be empty"
        if "." in function.name:
            yield f"{field}[{j}].name must not contain '.'"
        yield from _map_exprs(function.config_map_exprs, f"{field}[{j}].configMapExprs")
