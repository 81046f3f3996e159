"""Finds functions that do something and are named by a participle, which says only what there is afterwards.

A function does something if it awaits, if it yields effects, or if what it got or belongs to is another one
after the call: it assigns to an attribute or an item of an argument (`self`, too), calls a method of such an
argument that changes a collection, or hands the argument to a function of the same module that does so.
A parameter that the function binds anew is its own from then on. What it changes through another module is
not seen.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
CHANGED = ast.Store | ast.Del

_IRREGULAR = (
    "begun bought broken brought built caught chosen done drawn driven fallen forgotten found frozen "
    "given gone grown held hidden kept known led left lost made meant met overridden paid said seen sent "
    "shown sold spent stolen stuck taken thrown told torn understood withdrawn won written"
)
PARTICIPLES = frozenset(_IRREGULAR.split())
"""Irregular ones; the others end with `ed`."""
NO_PARTICIPLES = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed", "succeed"})
OTHERS_WORDS = {
    "assigned": "Kafka's callback as a member of a group gets a partition",
    "revoked": "Kafka's callback as a member of a group loses a partition",
    "committed": "Kafka's word for the offsets of a group",
}
"""Participles that are the field's own names of functions."""
CHANGES = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft"),
        *("remove", "reverse", "setdefault", "sort", "update"),
    }
)
"""Methods with which a collection is changed."""


class Definition(NamedTuple):
    """A function of a module.

    function: its node
    owner: the class that it is a method of, "" for none
    """

    function: Function
    owner: str


class Handed(NamedTuple):
    """An argument that a function hands on.

    name: what it is called there
    callee: the index of the function that gets it
    parameter: what it is called in that function
    """

    name: str
    callee: int
    parameter: str


def effect_types(text: str) -> Iterator[str]:
    """Yield the names that a module gives to the type of a generator of effects."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Generator[Effect"):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def misnamed_verbs(text: str, effects: frozenset[str] = frozenset()) -> Iterator[tuple[int, str]]:
    """Yield line and name of each function with effects that is named by a participle.

    effects: the names of types of generators of effects, see `effect_types`
    """
    definitions = list(_definitions(ast.parse(text), ""))
    if not any(_is_participle(function.name) for function, _ in definitions):
        return
    changes = _changed_parameters(definitions)
    for index, (function, _) in enumerate(definitions):
        if _is_participle(function.name) and (changes[index] or _yields_effects(function, effects)):
            yield function.lineno, function.name


def _is_participle(name: str) -> bool:
    word = name.strip("_").partition("_")[0]
    regular = word.endswith("ed") and word not in NO_PARTICIPLES
    return name not in OTHERS_WORDS and (regular or word in PARTICIPLES)


def _yields_effects(function: Function, effects: frozenset[str]) -> bool:
    if isinstance(function, ast.AsyncFunctionDef):
        return True
    returned = ast.unparse(function.returns).strip("'\"") if function.returns is not None else ""
    return returned.startswith("Generator[Effect") or returned in effects


def _definitions(node: ast.AST, owner: str) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield Definition(child, owner)
            yield from _definitions(child, "")
        else:
            yield from _definitions(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _changed_parameters(definitions: list[Definition]) -> list[set[str]]:
    """Return for each function which of its parameters are changed by a call, also by those that it calls."""
    places = {(owner, function.name): index for index, (function, owner) in enumerate(definitions)}
    parameters = [_parameters(function) for function, _ in definitions]
    changed = [set(_changed_by_itself(function)) for function, _ in definitions]
    handed = [list(_handed(definition, places, parameters)) for definition in definitions]
    size = -1
    while size != (size := sum(map(len, changed))):
        for index, arguments in enumerate(handed):
            changed[index] |= {name for name, callee, parameter in arguments if parameter in changed[callee]}
    return changed


def _parameters(function: Function) -> list[str]:
    """Return the parameters by position, then the others; not those that the function binds anew."""
    arguments = function.args
    return [arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _shared(function: Function) -> set[str]:
    bound = {
        node.id for node in _body(function) if isinstance(node, ast.Name) and isinstance(node.ctx, CHANGED)
    }
    return set(_parameters(function)) - bound


def _body(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions within it."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        yield node
        pending.extend(
            child for child in ast.iter_child_nodes(node) if not isinstance(child, Function | ast.Lambda)
        )


def _root(node: ast.AST) -> str:
    """Return the name at which a chain of attributes and items begins, "" for none or for a bare name."""
    depth = 0
    while isinstance(node, ast.Attribute | ast.Subscript):
        node, depth = node.value, depth + 1
    return node.id if isinstance(node, ast.Name) and depth else ""


def _changed_by_itself(function: Function) -> Iterator[str]:
    shared = _shared(function)
    for node in _body(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, CHANGED):
            changed = _root(node)
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES
        ):
            changed = _root(node.func)
        else:
            continue
        if changed in shared:
            yield changed


def _handed(
    caller: Definition, places: dict[tuple[str, str], int], parameters: list[list[str]]
) -> Iterator[Handed]:
    """Yield each argument of the caller that a call hands on to a function of its module or class."""
    shared = _shared(caller.function)
    for node in _body(caller.function):
        if not isinstance(node, ast.Call):
            continue
        given: list[ast.expr] = list(node.args)
        index = places.get(("", node.func.id)) if isinstance(node.func, ast.Name) else None
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "self":
            index, given = places.get((caller.owner, node.func.attr)), [node.func.value, *given]
        if index is None:
            continue
        named = [
            *zip(parameters[index], given, strict=False),
            *((word.arg, word.value) for word in node.keywords),
        ]
        for parameter, value in named:
            if parameter and isinstance(value, ast.Name) and value.id in shared:
                yield Handed(value.id, index, parameter)
