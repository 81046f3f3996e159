"""Renders a set's template to the spec of a PackageVariant.

Two services share this: unroll compiles a set, gets each target's downstream from its template and
cuts the inputs down to the parts that the rest reads; render turns such a row into the spec.
Expressions see four fields of an object (name, namespace, labels, annotations), or repo and package
of a listed target, and nothing else.

Source of order, overlay and error prefixes: Porch v1.5.8, packagevariantset/render.go.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from pvbus.core import cel
from pvbus.core.api.variants import (
    Downstream,
    DownstreamTemplate,
    Function,
    FunctionTemplate,
    Injector,
    InjectorTemplate,
    MapExpr,
    PackageContext,
    PackageContextTemplate,
    PackageVariantSetSpec,
    PackageVariantSpec,
    Pipeline,
    PipelineTemplate,
    Upstream,
    VariantTemplate,
)
from pvbus.core.cel import (
    EXPRESSIONS_MAX,
    Budget,
    CelCompileError,
    CelError,
    Path,
    Program,
    compile_expression,
    set_budget,
)
from pvbus.core.kernel.records import Root, TargetRow
from pvbus.core.variants.expressions import expressions_of
from pvbus.core.variants.missing import no_repository

Roots = Mapping[str, Root]
_OBJECT_FIELDS = ("name", "namespace", "labels", "annotations")
_LISTED_FIELDS = ("repo", "package")
_FIELDS = {"upstream": _OBJECT_FIELDS, "repository": _OBJECT_FIELDS}
TEMPLATES_KEPT = 1024  # compiled templates in render's cache: one per target of the active sets


class RenderError(Exception):
    """A target cannot be rendered; the text begins with the field of its template."""


class TargetInputs(NamedTuple):
    """The inputs of one target's expressions, except its Repository.

    list_target: the target is an entry of a list, so expressions see only its repo and package.
    """

    repo_default: str
    package_default: str
    upstream: Root
    target: Root
    list_target: bool


class _MapEntry(NamedTuple):
    """One compiled entry of a map. field: the path of the entry, for example `template.labelExprs[0]`."""

    field: str
    key: str | Program
    value: str | Program


class _Expressions:
    """Compiles the expressions of one template, and collects the errors by field."""

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[str] = []
        self.programs: list[Program] = []

    def compile(self, text: str, field: str) -> str | Program:
        self.count += 1
        if self.count > EXPRESSIONS_MAX:
            if self.count == EXPRESSIONS_MAX + 1:
                self.errors.append(f"{field}: ERROR: a template has at most {EXPRESSIONS_MAX} expressions")
            return ""
        try:
            program = compile_expression(text)
        except CelCompileError as error:
            self.errors.append(f"{field}: {error}")
            return ""
        self.programs.append(program)
        return program

    def entries(self, exprs: tuple[MapExpr, ...], field: str) -> tuple[_MapEntry, ...]:
        return tuple(self._entry(expr, f"{field}[{n}]") for n, expr in enumerate(exprs))

    def _entry(self, expr: MapExpr, field: str) -> _MapEntry:
        """Compile an entry; an empty expression is compiled, too, and fails."""
        key, value = expr.key or "", expr.value or ""
        return _MapEntry(
            field,
            self.compile(expr.key_expr, f"{field}.keyExpr") if expr.key_expr is not None else key,
            self.compile(expr.value_expr, f"{field}.valueExpr") if expr.value_expr is not None else value,
        )


class CompiledTemplate:
    """A template whose expressions are compiled. Immutable once made.

    errors: of the expressions that do not compile, each with its field. `identity` fails on those of the
    downstream, `spec` on all of them, so that a target with wrong labels still has a known downstream.
    """

    def __init__(self, template: VariantTemplate) -> None:
        made = _Expressions()
        downstream = template.downstream or DownstreamTemplate()
        context = template.package_context or PackageContextTemplate()
        pipeline = template.pipeline or PipelineTemplate()
        self._template = template
        self._repo = _part(made, downstream.repo, downstream.repo_expr, "template.downstream.repoExpr")
        self._package = _part(
            made, downstream.package, downstream.package_expr, "template.downstream.packageExpr"
        )
        made.programs.clear()  # the downstream is not evaluated again
        self._identity_errors = tuple(made.errors)
        self._labels = made.entries(template.label_exprs, "template.labelExprs")
        self._annotations = made.entries(template.annotation_exprs, "template.annotationExprs")
        self._data = made.entries(context.data_exprs, "template.packageContext.dataExprs")
        self._remove_keys = tuple(
            (field, made.compile(text, field))
            for n, text in enumerate(context.remove_key_exprs)
            for field in (f"template.packageContext.removeKeyExprs[{n}]",)
        )
        self._injectors = tuple(
            _part(made, injector.name, injector.name_expr, f"template.injectors[{n}].nameExpr")
            for n, injector in enumerate(template.injectors)
        )
        self._validators = _config_maps(made, pipeline.validators, "validators")
        self._mutators = _config_maps(made, pipeline.mutators, "mutators")
        self.errors = tuple(made.errors)
        self.reads: frozenset[Path] = frozenset(path for program in made.programs for path in program.reads)
        self._extracts = _extracts(self.reads)

    # --- identity

    def identity(
        self, inputs: TargetInputs, repository: Callable[[str], Root | None], budget: Budget | None = None
    ) -> Downstream:
        """Return the downstream of a target.

        `repoExpr` is evaluated without the Repository, `packageExpr` may read it.

        repository: looks up a Repository by name in the set's namespace
        budget: says afterwards what the expressions have cost

        Raises:
            RenderError: an expression fails or does not compile, or there is no such Repository.
        """
        if self._identity_errors:
            raise _broken(self._identity_errors)
        evaluate = _Evaluation(variables_of(inputs, None), budget or Budget())
        repo = evaluate(self._repo, "template.downstream.repoExpr") or inputs.repo_default
        downstream_repository = repository(repo)
        if downstream_repository is None:
            raise RenderError(no_repository(repo, inputs.upstream.namespace))  # the set's, as the upstream's
        evaluate.variables["repository"] = _object(downstream_repository)
        package = evaluate(self._package, "template.downstream.packageExpr")
        return Downstream(repo=repo, package=package or inputs.package_default)

    # --- everything else

    def spec(
        self,
        upstream: Upstream | None,
        downstream: Downstream,
        variables: dict[str, Any],
        budget: Budget | None = None,
    ) -> PackageVariantSpec:
        """Return the spec for a known downstream. budget: see `identity`.

        Raises:
            RenderError: an expression fails or does not compile.
        """
        if self.errors:
            raise _broken(self.errors)
        evaluate = _Evaluation(variables, budget or Budget())
        template = self._template
        context, pipeline = template.package_context, template.pipeline
        return PackageVariantSpec(
            upstream=upstream,
            downstream=downstream,
            adoption_policy=template.adoption_policy or "",
            deletion_policy=template.deletion_policy or "",
            labels=_overlaid(template.labels, self._labels, evaluate),
            annotations=_overlaid(template.annotations, self._annotations, evaluate),
            package_context=self._package_context(context, evaluate) if context is not None else None,
            injectors=tuple(
                _injector(injector, name, f"template.injectors[{n}]", evaluate)
                for n, (injector, name) in enumerate(zip(template.injectors, self._injectors, strict=True))
            ),
            pipeline=self._pipeline(pipeline, evaluate) if pipeline is not None else None,
        )

    def _package_context(self, context: PackageContextTemplate, evaluate: "_Evaluation") -> PackageContext:
        data = _overlaid(context.data, self._data, evaluate)
        removed = {*context.remove_keys}
        for field, program in self._remove_keys:
            removed.add(evaluate(program, field))
        return PackageContext(data=data, remove_keys=tuple(sorted(removed, key=str.encode)))

    def _pipeline(self, pipeline: PipelineTemplate, evaluate: "_Evaluation") -> Pipeline | None:
        if not (pipeline.validators or pipeline.mutators):
            return None
        return Pipeline(
            validators=_functions(pipeline.validators, self._validators, evaluate),
            mutators=_functions(pipeline.mutators, self._mutators, evaluate),
        )

    # --- inputs

    def slim_roots(self, inputs: TargetInputs, repository: Root | None) -> Roots:
        """Return the objects that `spec` needs, each cut down to the fields that its expressions read."""
        given = {"upstream": inputs.upstream, "target": inputs.target, "repository": repository}
        slim = {}
        for name, extract in self._extracts.items():
            root = given[name]
            if root is not None:
                slim[name] = root if extract is None else _cut(root, extract)
        return slim


def _broken(errors: tuple[str, ...]) -> RenderError:
    return RenderError("; ".join(errors))


class CompiledSet(NamedTuple):
    """The compiled templates of a set. targets: in order; None for one without a template."""

    targets: tuple[CompiledTemplate | None, ...]

    def errors(self) -> list[str]:
        """Return each compile error once, in the order of the targets."""
        return list(dict.fromkeys(error for t in self.targets if t is not None for error in t.errors))


def compile_targets(spec: PackageVariantSetSpec) -> CompiledSet:
    """Compile every template of a set. A compile error fails only its target, on evaluation."""
    return CompiledSet(
        tuple(CompiledTemplate(t.template) if t.template is not None else None for t in spec.targets)
    )


def compile_ahead(templates: Iterable[VariantTemplate | None]) -> Iterator[int]:
    """Compile the expressions of templates one by one, for `CompiledTemplate`; yield what each cost."""
    for template in templates:
        if template is not None:
            texts = expressions_of(msgspec.to_builtins(template), "")
            for _, text in islice(texts, EXPRESSIONS_MAX):
                if cost := cel.compile_ahead(text):
                    yield cost


def unknown_fields(
    spec: PackageVariantSetSpec, *, bytes_max: float = float("inf")
) -> Iterator[tuple[str, str]]:
    """Yield each field that an expression reads and no object can have: (path of the expression, message).

    Such an expression compiles, and fails for every target whose evaluation gets there. bytes_max: of the
    expressions that are compiled, for those who may not take long; what follows them is named as not checked.
    """
    size = 0
    for number, target in enumerate(spec.targets):
        known = {**_FIELDS, "target": _LISTED_FIELDS if target.repositories else _OBJECT_FIELDS}
        template = msgspec.to_builtins(target.template)
        for path, text in expressions_of(template, f"spec.targets[{number}].template"):
            size += len(text)
            if size > bytes_max:
                yield path, "from here on fields are not checked, as the expressions are long: pvbus validate"
                return
            with suppress(CelCompileError):  # an error of its own
                for variable, field in sorted(compile_expression(text).fields):
                    if variable in known and field not in known[variable]:
                        *others, last = known[variable]
                        yield path, f"{variable} has no field {field}: it has {', '.join(others)} and {last}"


class TemplateCache:
    """LRU cache of compiled templates, by content."""

    def __init__(self) -> None:
        self._retained: OrderedDict[bytes, CompiledTemplate] = OrderedDict()

    def has(self, template: VariantTemplate) -> bool:
        return msgspec.msgpack.encode(template) in self._retained

    def get(self, template: VariantTemplate) -> CompiledTemplate:
        """Return the compiled template; what does not compile fails when it is evaluated."""
        key = msgspec.msgpack.encode(template)
        compiled = self._retained.get(key)
        if compiled is None:
            compiled = self._retained[key] = CompiledTemplate(template)
            if len(self._retained) > TEMPLATES_KEPT:
                self._retained.popitem(last=False)
        else:
            self._retained.move_to_end(key)
        return compiled


def render_row(row: TargetRow, templates: TemplateCache, budget: Budget | None = None) -> PackageVariantSpec:
    """Return the spec for a row in the state `present`. budget: says afterwards what it cost.

    Raises:
        RenderError: an expression fails for this target.
    """
    if row.template is None:
        return PackageVariantSpec(upstream=row.upstream, downstream=row.downstream)
    return templates.get(row.template).spec(row.upstream, row.downstream, row_variables(row), budget)


def row_variables(row: TargetRow) -> dict[str, Any]:
    """Return the variables of a present row's expressions, cut down to the fields they read."""
    variables: dict[str, Any] = {"repoDefault": row.repo_default, "packageDefault": row.package_default}
    for name, root in row.roots.items():
        variables[name] = _listed(root) if name == "target" and row.list_target else _object(root)
    return variables


def variables_of(inputs: TargetInputs, repository: Root | None) -> dict[str, Any]:
    """Return the variables of an evaluation; a Repository that is None stays unbound."""
    variables = {
        "repoDefault": inputs.repo_default,
        "packageDefault": inputs.package_default,
        "upstream": _object(inputs.upstream),
        "target": _listed(inputs.target) if inputs.list_target else _object(inputs.target),
    }
    if repository is not None:
        variables["repository"] = _object(repository)
    return variables


def _object(root: Root) -> dict[str, Any]:
    return {
        "name": root.name,
        "namespace": root.namespace,
        "labels": root.labels,
        "annotations": root.annotations,
    }


def _listed(root: Root) -> dict[str, Any]:
    return {"repo": root.repo, "package": root.package}


class _Extract(NamedTuple):
    """What expressions read of an object.

    fields: the names of the fields that they read as a whole
    keys: `labels` or `annotations`, each with the keys that they read of it
    """

    fields: tuple[str, ...]
    keys: tuple[tuple[str, tuple[str, ...]], ...]


def _extracts(reads: Iterable[Path]) -> dict[str, _Extract | None]:
    """Return what is read of each object; None for all of it."""
    by_root: dict[str, set[Path]] = {"upstream": set(), "target": set(), "repository": set()}
    for name, *path in reads:
        if name in by_root:
            by_root[name].add(tuple(path))
    return {name: None if () in paths else _extract(paths) for name, paths in by_root.items() if paths}


def _extract(paths: Iterable[Path]) -> _Extract:
    fields: set[str] = set()
    keys: dict[str, set[str]] = {}
    for field, *below in paths:
        if field in ("labels", "annotations") and below:
            keys.setdefault(field, set()).add(below[0])
        elif field in Root.__struct_fields__:
            fields.add(field)
    parts = [(field, tuple(sorted(names))) for field, names in keys.items() if field not in fields]
    return _Extract(tuple(sorted(fields)), tuple(parts))


def _cut(root: Root, extract: _Extract) -> Root:
    retained: dict[str, Any] = {}
    for field in extract.fields:
        retained[field] = getattr(root, field)
    for field, keys in extract.keys:
        whole = getattr(root, field)
        retained[field] = {key: whole[key] for key in keys if key in whole}
    return Root(**retained)


def _part(made: _Expressions, value: str | None, expr: str | None, field: str) -> str | Program:
    """Compile the expression, else return the value; empty counts as absent for both."""
    return made.compile(expr, field) if expr else value or ""


class _Evaluation:
    """Evaluates the expressions of one target within one budget."""

    def __init__(self, variables: dict[str, Any], budget: Budget) -> None:
        self.variables = variables
        set_budget(variables, budget)

    def __call__(self, part: str | Program, field: str) -> str:
        """Return the result of a field's expression, or its value. Raises RenderError."""
        if isinstance(part, str):
            return part
        try:
            return part.evaluate(self.variables)
        except CelError as error:
            raise RenderError(f"{field}: {error}") from error


def _overlaid(
    static: Mapping[str, str], entries: tuple[_MapEntry, ...], evaluate: _Evaluation
) -> Mapping[str, str]:
    """Overlay the static map with the results; later entries replace earlier ones."""
    if not entries:
        return static
    made = dict(static)
    for field, key, value in entries:
        name = key if isinstance(key, str) else evaluate(key, f"{field}.keyExpr")
        made[name] = evaluate(value, f"{field}.valueExpr")
    return made


def _injector(injector: InjectorTemplate, name: str | Program, field: str, evaluate: _Evaluation) -> Injector:
    evaluated = evaluate(name, f"{field}.nameExpr")
    if not evaluated:
        raise RenderError(
            f"{field}: an injector needs a name; give one as name, or as the result of nameExpr"
        )
    return Injector(group=injector.group, version=injector.version, kind=injector.kind, name=evaluated)


def _config_maps(
    made: _Expressions, functions: tuple[FunctionTemplate, ...], kind: str
) -> tuple[tuple[_MapEntry, ...], ...]:
    return tuple(
        made.entries(function.config_map_exprs, f"template.pipeline.{kind}[{n}].configMapExprs")
        for n, function in enumerate(functions)
    )


def _functions(
    functions: tuple[FunctionTemplate, ...],
    entries: tuple[tuple[_MapEntry, ...], ...],
    evaluate: _Evaluation,
) -> tuple[Function, ...]:
    return tuple(
        _function(function, _overlaid(function.config_map, own, evaluate))
        for function, own in zip(functions, entries, strict=True)
    )


def _function(template: FunctionTemplate, config_map: Mapping[str, str]) -> Function:
    return Function(
        name=template.name,
        image=template.image,
        tag=template.tag,
        exec=template.exec,
        config_path=template.config_path,
        config_map=config_map,
        selectors=template.selectors,
        exclude=template.exclude,
    )
