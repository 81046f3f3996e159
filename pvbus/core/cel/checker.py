"""Type-checks a syntax tree like cel-go with Porch's settings.

Standard library and macros only, homogeneous list and map literals. The evaluator gets only trees that
passed this check.
"""

import msgspec

from pvbus.core.cel import types as t
from pvbus.core.cel.errors import EXPRESSION_BYTES_MAX, CompileProblem, reported
from pvbus.core.cel.library import CONVERSIONS, FUNCTIONS, TYPES, Overload
from pvbus.core.cel.syntax import (
    Call,
    Const,
    Ident,
    ListLiteral,
    Macro,
    MapLiteral,
    Node,
    Select,
    parse,
    qualified_name,
)
from pvbus.core.cel.types import Type
from pvbus.core.cel.values import Uint

_LITERALS: dict[type, Type] = {
    str: t.STRING, bytes: t.BYTES, bool: t.BOOL, int: t.INT, float: t.DOUBLE, Uint: t.UINT,
    type(None): t.NULL,
}  # fmt: skip


class Checked(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """An expression that compiles.

    sources: for conversions whose overloads the checker narrowed, the remaining argument kinds.
    type_names: the nodes that name a type, such as `int` or `google.protobuf.Timestamp`.
    types: of every node, with variables resolved.
    """

    text: str
    tree: Node
    variables: frozenset[str]
    types: dict[Node, Type]
    sources: dict[Node, frozenset[str]]
    type_names: dict[Node, str]


def check(text: str, variables: dict[str, Type]) -> Checked:
    """Parse and check an expression.

    Raises:
        CelCompileError: it can never work; the text lists all problems found.
    """
    if len(text.encode()) > EXPRESSION_BYTES_MAX:
        raise reported("", [CompileProblem(0, f"expression is longer than {EXPRESSION_BYTES_MAX} bytes")])
    try:
        tree = parse(text)
    except CompileProblem as problem:
        raise reported(text, [problem]) from None
    checker = _Checker(variables)
    checker.check(tree)
    checker.require_homogeneous()
    if checker.problems:
        raise reported(text, checker.problems)
    return Checked(
        text=text,
        tree=tree,
        variables=frozenset(variables),
        types={node: checker.resolved(kind) for node, kind in checker.types.items()},
        sources=checker.sources,
        type_names=checker.type_names,
    )


class _Checker:
    def __init__(self, variables: dict[str, Type]) -> None:
        self._scopes: list[dict[str, Type]] = [variables]
        self._bindings = t.Bindings()
        self._fresh = 0
        self._literals: list[ListLiteral | MapLiteral] = []
        self.types: dict[Node, Type] = {}
        self.sources: dict[Node, frozenset[str]] = {}
        self.type_names: dict[Node, str] = {}
        self.problems: list[CompileProblem] = []

    # --- results

    def resolved(self, kind: Type) -> Type:
        return t.substitute(self._bindings, kind, free_to_dyn=True)

    def require_homogeneous(self) -> None:
        """Report literals of mixed types, but only if there is no other problem, as in cel-go."""
        if self.problems:
            return
        for literal in self._literals:
            if isinstance(literal, ListLiteral):
                self._require_one_type(literal.items, stop=True)
            else:
                self._require_one_type(tuple(key for key, _ in literal.entries))
                self._require_one_type(tuple(value for _, value in literal.entries))

    def _require_one_type(self, nodes: tuple[Node, ...], *, stop: bool = False) -> None:
        kinds = [self.resolved(self.types[node]) for node in nodes]
        for node, kind in zip(nodes, kinds, strict=True):
            if kind != kinds[0]:
                self._report(node, f"expected type '{kinds[0]}' but found '{kind}'")
                if stop:
                    return

    # --- helpers

    def _report(self, node: Node, message: str) -> Type:
        self.problems.append(CompileProblem(node.offset, message))
        return t.ERROR

    def _report_undeclared(self, node: Node, name: str) -> Type:
        return self._report(node, f"undeclared reference to '{name}' (in container '')")

    def _free(self) -> Type:
        self._fresh += 1
        return t.variable(f"_var{self._fresh - 1}")

    def _assignable(self, wanted: list[Type], given: list[Type]) -> bool:
        return t.unify(self._bindings, wanted, given)

    def _lookup(self, name: str) -> Type | None:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), None)

    # --- nodes

    def check(self, node: Node) -> Type:
        match node:
            case Const():
                kind = _LITERALS[type(node.value)]
            case Ident():
                kind = self._ident(node)
            case Select():
                kind = self._select(node)
            case Call():
                kind = self._call(node)
            case ListLiteral():
                kind = self._list(node)
            case MapLiteral():
                kind = self._map(node)
            case Macro():
                kind = self._macro(node)
            case _:
                raise AssertionError(node)
        self.types[node] = kind
        return kind

    def _ident(self, node: Ident) -> Type:
        kind = self._lookup(node.name)
        if kind is not None:
            return kind
        if node.name in TYPES:
            return self._type_name(node, node.name)
        return self._report_undeclared(node, node.name)

    def _type_name(self, node: Node, name: str) -> Type:
        self.type_names[node] = name
        return t.type_of(TYPES[name])

    def _select(self, node: Select) -> Type:
        name = qualified_name(node)
        if name is not None and name in TYPES:
            return self._type_name(node, name)
        operand = t.substitute(self._bindings, self.check(node.operand))
        if operand.kind == "map":
            found = operand.params[1]
        else:
            found = t.DYN
            if operand.kind == "var":
                self._assignable([t.DYN], [operand])
            elif operand.kind not in ("dyn", "error"):
                self._report(node, f"type '{operand}' does not support field selection")
        return t.BOOL if node.test else t.substitute(self._bindings, found)

    def _call(self, node: Call) -> Type:
        args = [self.check(arg) for arg in node.args]
        if node.function in ("_&&_", "_||_"):
            for arg in node.args:
                self._require_term(arg)
            return t.BOOL
        if node.target is not None:
            args.insert(0, self.check(node.target))
        overloads = FUNCTIONS.get(node.function)
        if overloads is None:
            return self._report_undeclared(node, node.function)
        return self._overload(node, overloads, args)

    def _require_term(self, node: Node) -> None:
        if not self._assignable([self.types[node]], [t.BOOL]):
            self._report(node, f"expected type 'bool' but found '{self.types[node]}'")

    def _overload(self, node: Call, overloads: list[Overload], args: list[Type]) -> Type:
        result: Type | None = None
        matched: list[Overload] = []
        candidates = [o for o in overloads if o.member == (node.target is not None)]
        for overload in candidates:
            fresh = {var: self._free() for var in _variables(overload)}
            params = [t.substitute(fresh, p) for p in overload.params]
            if not self._assignable(args, params):
                continue
            matched.append(overload)
            found = t.substitute(self._bindings, t.substitute(fresh, overload.result))
            if result is None:
                result = found
            elif result.kind != "dyn" and found != result:
                result = t.DYN
        if result is None:
            shown = [str(self.resolved(arg)) for arg in args]
            applied = (
                f"{shown[0]}.({', '.join(shown[1:])})" if node.target is not None else f"({', '.join(shown)})"
            )
            return self._report(
                node, f"found no matching overload for '{node.function}' applied to '{applied}'"
            )
        if node.function in CONVERSIONS and len(matched) < len(candidates):
            self.sources[node] = frozenset(overload.params[0].kind for overload in matched)
        return result

    def _list(self, node: ListLiteral) -> Type:
        self._literals.append(node)
        for item in node.items:
            self.check(item)
        return t.list_of(self._join(node.items))

    def _map(self, node: MapLiteral) -> Type:
        self._literals.append(node)
        for key, value in node.entries:
            self.check(key)
            self.check(value)
        keys = self._join(tuple(key for key, _ in node.entries))
        return t.map_of(keys, self._join(tuple(value for _, value in node.entries)))

    def _join(self, nodes: tuple[Node, ...]) -> Type:
        joined: Type | None = None
        for node in nodes:
            kind = self.types[node]
            if joined is None:
                joined = kind
            elif self._assignable([joined], [kind]):
                joined = t.most_general(joined, kind)
            else:
                joined = t.DYN
        return joined if joined is not None else self._free()

    def _macro(self, node: Macro) -> Type:
        ranged = t.substitute(self._bindings, self.check(node.range))
        if ranged.kind in ("list", "map"):
            item = ranged.params[0]
        elif ranged.kind in ("dyn", "error", "var"):
            self._assignable([t.DYN], [ranged])
            item = t.DYN
        else:
            item = self._report(
                node.range,
                f"expression of type '{ranged}' cannot be range of a comprehension"
                " (must be list, map, or dynamic)",
            )
        self._scopes.append({node.variable: item})
        condition = self.check(node.condition) if node.condition is not None else None
        body = self.check(node.body) if node.body is not None else item
        self._scopes.pop()
        if node.name in ("all", "exists"):
            assert node.body is not None
            self._require_term(node.body)
            return t.BOOL
        test = body if node.name == "exists_one" else condition
        made = t.INT if node.name == "exists_one" else t.list_of(body)
        if test is not None and not self._assignable([test], [t.BOOL]):
            applied = ", ".join(str(self.resolved(kind)) for kind in (test, made, made))
            self._report(node, f"found no matching overload for '_?_:_' applied to '({applied})'")
        return t.BOOL if node.name == "exists_one" else t.substitute(self._bindings, made)


def _variables(overload: Overload) -> list[Type]:
    """Return the type variables of an overload, in the order of their first use."""
    found: dict[Type, None] = {}

    def visit(kind: Type) -> None:
        if kind.kind == "var":
            found[kind] = None
        for param in kind.params:
            visit(param)

    for kind in (*overload.params, overload.result):
        visit(kind)
    return list(found)
