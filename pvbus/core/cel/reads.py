"""Finds the parts of its variables that an expression reads, from the syntax tree."""

from pvbus.core.cel.checker import Checked
from pvbus.core.cel.syntax import (
    Call,
    Const,
    Ident,
    ListLiteral,
    Macro,
    MapLiteral,
    Node,
    Select,
)

Path = tuple[str, ...]  # a variable, then the keys below it that are known


def paths(checked: Checked) -> frozenset[Path]:
    """Return the shortest paths that cover all reads; none is a prefix of another."""
    found: set[Path] = set()
    _visit(checked.tree, checked, frozenset(), found)
    return frozenset(p for p in found if not any(p[:n] in found for n in range(1, len(p))))


def fields(checked: Checked) -> frozenset[tuple[str, str]]:
    """Return (variable, field) of each field that an expression selects and does not ask for with has()."""
    asked: set[Path] = set()
    read: set[Path] = set()
    rest: list[tuple[Node, frozenset[str]]] = [(checked.tree, frozenset())]
    while rest:
        node, bound = rest.pop()
        path = _path(node, checked, bound)
        if path is not None:
            (asked if isinstance(node, Select) and node.test else read).add(path[:2])
        inner = bound | {node.variable} if isinstance(node, Macro) else bound
        ranged = node.range if isinstance(node, Macro) else None
        rest += [(child, bound if child is ranged else inner) for child in children(node)]
    return frozenset((path[0], path[1]) for path in read - asked if len(path) > 1)


def _visit(node: Node, checked: Checked, bound: frozenset[str], found: set[Path]) -> None:
    path = _path(node, checked, bound)
    if path is not None:
        found.add(path)
        return
    if isinstance(node, Call) and node.function == "@in" and isinstance(key := node.args[0], Const):
        container = _path(node.args[1], checked, bound)
        if container is not None and isinstance(key.value, str):
            found.add((*container, key.value))
            return
    for child in children(node):
        inner = bound | {node.variable} if isinstance(node, Macro) and child is not node.range else bound
        _visit(child, checked, inner, found)


def _path(node: Node, checked: Checked, bound: frozenset[str]) -> Path | None:
    """Return the path of a chain of selections with known keys on a variable, else None."""
    if isinstance(node, Ident):
        return None if node.name in bound or node in checked.type_names else (node.name,)
    if isinstance(node, Select) and node not in checked.type_names:
        prefix = _path(node.operand, checked, bound)
        return (*prefix, node.field) if prefix is not None else None
    if isinstance(node, Call) and node.function == "_[_]":
        prefix = _path(node.args[0], checked, bound)
        key = node.args[1]
        if prefix is not None and isinstance(key, Const) and isinstance(key.value, str):
            return (*prefix, key.value)
    return None


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below a node, in the order of the text."""
    match node:
        case Select(operand=operand):
            return (operand,)
        case Call(target=target, args=args):
            return args if target is None else (target, *args)
        case ListLiteral(items=items):
            return items
        case MapLiteral(entries=entries):
            return tuple(child for entry in entries for child in entry)
        case Macro(range=ranged, condition=condition, body=body):
            return (ranged, *(child for child in (condition, body) if child is not None))
    return ()
