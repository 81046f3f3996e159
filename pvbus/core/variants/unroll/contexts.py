"""A set's targets, one context per candidate child, and the downstream each evaluates to.

Only identity (repoExpr, packageExpr) is evaluated here. After the first pass only contexts whose
object, Repository or selection changed are evaluated again.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pvbus.core.api.selectors import requirements_of
from pvbus.core.api.variants import (
    Downstream,
    PackageVariantSet,
    PackageVariantSetSpec,
    Target,
)
from pvbus.core.cel import Budget
from pvbus.core.kernel.keys import ObjectKey
from pvbus.core.kernel.records import ObjectRow, Root
from pvbus.core.variants.template import CompiledSet, RenderError, Roots, TargetInputs, variables_of
from pvbus.core.variants.unroll.index import TargetSelector
from pvbus.core.variants.unroll.view import REPOSITORY_KIND, UnrollView, object_row

INDEX_TURN = 2_000
"""Objects that become ready to be selected at a time: some 10 ms."""

ContextKey = tuple[int, str]
"""(target index, okey of the object), or (target index, `#<repository>.<package>` position)."""


class Context(NamedTuple):
    """One candidate child.

    object: the okey of the target's object, "" for a listed target
    namespace: the namespace of this object
    repo_default: the name of this object
    downstream: None if the child's identity cannot be evaluated
    error: why it cannot be evaluated, "" if it can
    repository: the name of the Repository that its template looked up, found or not, "" without one
    """

    key: ContextKey
    object: str
    namespace: str
    repo_default: str
    package_default: str
    downstream: Downstream | None = None
    error: str = ""
    repository: str = ""


def describe_object(okey: str) -> str:
    """Return an object as messages name it: `Site default/s1`, `Site s1` without a namespace."""
    key = ObjectKey.parse(okey)
    return f"{key.kind} {key.namespace}/{key.name}" if key.namespace else f"{key.kind} {key.name}"


def root_of(key: str, row: ObjectRow) -> Root:
    """Return the fields of an object that CEL may read: name, namespace, labels and annotations."""
    name = ObjectKey.parse(key)
    return _root(name.namespace, name.name, row)


def _root(namespace: str, name: str, row: ObjectRow) -> Root:
    return Root(name=name, namespace=namespace, labels=row.labels, annotations=row.annotations)


def selector_of(target: Target, namespace: str) -> TargetSelector | None:
    """Return a target's selector in the form of the index; None for a list target."""
    if target.repository_selector is not None:
        return TargetSelector(REPOSITORY_KIND, namespace, requirements_of(target.repository_selector))
    if (selector := target.object_selector) is not None:
        kind = f"{selector.api_version.rpartition('/')[0]}/{selector.kind}"
        return TargetSelector(kind, namespace, requirements_of(selector), selector.name)
    return None


def selected_kinds(spec: PackageVariantSetSpec) -> dict[str, tuple[str, ...]]:
    """Return the kinds that a set's selectors name, each with the requested versions ("" is any)."""
    kinds: dict[str, tuple[str, ...]] = {}
    for target in spec.targets:
        if target.object_selector is not None:
            group, _, version = target.object_selector.api_version.rpartition("/")
            kind = f"{group}/{target.object_selector.kind}"
        elif target.repository_selector is not None:
            kind, version = REPOSITORY_KIND, ""
        else:
            continue
        kinds[kind] = tuple(dict.fromkeys((*kinds.get(kind, ()), version)))
    return kinds


class Contexts:
    """The contexts of one set at one generation and upstream.

    changed: keys of the contexts that must be evaluated again
    spent: what all evaluations have cost so far, in units of CEL's cost
    """

    def __init__(
        self, skey: str, obj: PackageVariantSet, compiled: CompiledSet, upstream: Root, view: UnrollView
    ) -> None:
        self.skey = skey
        self.spec = obj.spec
        self.namespace = obj.metadata.namespace
        self.compiled = compiled
        self.upstream = upstream
        self.view = view
        self.by_key: dict[ContextKey, Context] = {}
        self.by_downstream: dict[Downstream, dict[ContextKey, None]] = {}
        self.by_repository: dict[str, set[ContextKey]] = {}
        self.changed: dict[ContextKey, None] = {}
        self.spent = 0
        self._repositories: dict[str, Root | None] = {}  # those that were looked up, until they change
        self.failed: dict[ContextKey, None] = {}
        self.duplicated: dict[Downstream, None] = {}
        self._selectors = {
            number: selector
            for number, target in enumerate(obj.spec.targets)
            if (selector := selector_of(target, self.namespace)) is not None
        }
        self._positions = dict(enumerate(self._selectors))

    # ------------------------------------------------------------ building

    def index(self) -> bool:
        """Make some more objects ready to be selected; return whether all are."""
        return self.view.index.prepare(self._selectors.values(), INDEX_TURN)

    def build(self) -> Iterator[Context]:
        """Evaluate all contexts, target by target. Other sets may run in between; changes of selected
        objects in that time are left to `refresh`, after the last context."""
        matches = self.view.select(self.skey, list(self._selectors.values()))
        for number, target in enumerate(self.spec.targets):
            if target.repositories is not None:
                for context in self._listed(number, target):
                    self._put(context)
                    yield context
        for position, keys in enumerate(matches):
            for key in keys:
                if key in self.view.objects:  # else it is gone by now
                    context = self._selected(self._positions[position], key)
                    self._put(context)
                    yield context

    def _listed(self, number: int, target: Target) -> Iterator[Context]:
        package = self.spec.upstream.package if self.spec.upstream else ""
        for i, repository in enumerate(target.repositories or ()):
            for j, name in enumerate(repository.package_names or (package,)):
                yield Context((number, f"#{i:06}.{j:06}"), "", "", repository.name, name)

    def _selected(self, number: int, key: str) -> Context:
        package = self.spec.upstream.package if self.spec.upstream else ""
        name = ObjectKey.parse(key)
        return Context((number, key), key, name.namespace, name.name, package)

    def of_object(self, okey: str) -> list[Context]:
        """Return the contexts of an object, in the order of their targets."""
        keys = ((number, okey) for number in self._selectors)
        return [self.by_key[key] for key in keys if key in self.by_key]

    def note(self, objects: Mapping[str, Mapping[int, bool]], repositories: Iterable[str]) -> set[Downstream]:
        """Note what `refresh` must evaluate; return the downstreams of contexts that are gone.

        objects: okey of a changed object -> position of a selector -> whether it entered the selector or left
        repositories: names of the changed Repositories
        """
        touched: set[Downstream] = set()
        for key, moves in objects.items():
            for position, is_selected in moves.items():
                context_key = (self._positions[position], key)
                if is_selected:
                    self.changed[context_key] = None
                else:
                    self.changed.pop(context_key, None)
                    touched |= self._drop(context_key)
        for name in repositories:
            self._repositories.pop(name, None)
            self.changed.update(dict.fromkeys(self.by_repository.get(name, ())))
        return touched

    def refresh(self) -> Iterator[set[Downstream]]:
        """Evaluate the changed contexts one by one; yield the downstreams that each touches."""
        for context_key in sorted(self.changed):
            old = self.by_key.get(context_key)
            if old is None:
                touched = self._put(self._selected(*context_key))
            else:
                fresh = self._evaluate(old._replace(downstream=None, error=""))
                touched = self._unindex(old) | self._index(fresh)
            del self.changed[context_key]  # not before: a defect must not lose it
            yield touched

    def _put(self, context: Context) -> set[Downstream]:
        """Evaluate and add a context; return the downstream it wants."""
        context = self._evaluate(context)
        return self._index(context)

    def _index(self, context: Context) -> set[Downstream]:
        """Put the outcome of a context into the tables; return the downstream it wants."""
        key = context.key
        self.by_key[key] = context
        if context.repository:
            self.by_repository[context.repository].add(key)
        if context.downstream is None:
            self.failed[key] = None
            return set()
        wanting = self.by_downstream.setdefault(context.downstream, {})
        wanting[key] = None
        if len(wanting) > 1:
            self.duplicated[context.downstream] = None
        return {context.downstream}

    def _drop(self, key: ContextKey) -> set[Downstream]:
        """Remove a context; return the downstream it wanted."""
        context = self.by_key.pop(key, None)
        if context is None:
            return set()
        return self._unindex(context)

    def _unindex(self, context: Context) -> set[Downstream]:
        """Take the outcome of a context out of the tables; return the downstream it wanted."""
        key = context.key
        self.failed.pop(key, None)
        if context.repository:
            self.by_repository[context.repository].discard(key)
        if context.downstream is None:
            return set()
        wanting = self.by_downstream[context.downstream]
        wanting.pop(key, None)
        if len(wanting) < 2:
            self.duplicated.pop(context.downstream, None)
        if not wanting:
            del self.by_downstream[context.downstream]
        return {context.downstream}

    def errors(self) -> list[tuple[int, str, str, str, str]]:
        """Return the errors of targets: (target index, position, reason, message, name of the target)."""
        errors = []
        for number, template in enumerate(self.compiled.targets):
            # A target without contexts cannot fail, but its compile errors are reported.
            if template is not None and template.errors and not any(key[0] == number for key in self.by_key):
                where = f"spec.targets[{number}]"
                errors.append((number, "", "UnexpectedError", "; ".join(template.errors), where))
        for key in self.failed:
            errors.append((*key, "UnexpectedError", self.by_key[key].error, self.described(key)))
        for downstream in self.duplicated:
            keys = sorted(self.by_downstream[downstream])
            who = " and ".join(self.described(key) for key in keys[:2])
            more = f" (and {len(keys) - 2} more)" if len(keys) > 2 else ""
            message = (
                f'{who}{more} give the same downstream: package "{downstream.package}" in repository '
                f'"{downstream.repo}"'
            )
            errors.append((*keys[0], "ValidationError", message, ""))
        return errors

    def described(self, key: ContextKey) -> str:
        """Name a target by its object, or a listed one by its entry."""
        number, position = key
        if not position.startswith("#"):
            return f"spec.targets[{number}] with {describe_object(position)}"
        return f"spec.targets[{number}].repositories[{int(position[1:7])}]"

    # ------------------------------------------------------------ evaluating

    def inputs(self, context: Context) -> TargetInputs:
        """Return the inputs of a context's template."""
        if context.object:
            row = object_row(self.view.objects[context.object])
            target = _root(context.namespace, context.repo_default, row)
        else:
            target = Root(repo=context.repo_default, package=context.package_default)
        return TargetInputs(
            repo_default=context.repo_default,
            package_default=context.package_default,
            upstream=self.upstream,
            target=target,
            list_target=not context.object,
        )

    def variables(self, context: Context) -> dict[str, Any]:
        """Return the variables of a context's expressions, with its Repository if that is known."""
        repository = self._repository(context.repository) if context.repository else None
        return variables_of(self.inputs(context), repository)

    def _evaluate(self, context: Context) -> Context:
        template = self.compiled.targets[context.key[0]]
        if template is None:
            downstream = Downstream(repo=context.repo_default, package=context.package_default)
            return context._replace(downstream=downstream)

        looked_up = ""

        def repository(name: str) -> Root | None:
            nonlocal looked_up
            looked_up = name
            if name not in self.by_repository:
                self.by_repository[name] = set()
                self.view.use_repository(self.namespace, name, self.skey)
            return self._repository(name)

        budget = Budget()
        try:
            downstream = template.identity(self.inputs(context), repository, budget)
        except RenderError as error:
            return context._replace(error=str(error), repository=looked_up)
        finally:
            self.spent += budget.charged
        return context._replace(downstream=downstream, repository=looked_up)

    def roots(self, context: Context) -> Roots:
        """Return the roots of a context with a known downstream, cut to what its template reads."""
        template = self.compiled.targets[context.key[0]]
        if template is None or context.downstream is None:
            return {}
        return template.slim_roots(self.inputs(context), self._repository(context.downstream.repo))

    def _repository(self, name: str) -> Root | None:
        """Return the CEL root of a Repository, None if it does not exist. Looked up once until it changes."""
        if name not in self._repositories:
            row = self.view.repository(self.namespace, name)
            self._repositories[name] = _root(self.namespace, name, row) if row is not None else None
        return self._repositories[name]
