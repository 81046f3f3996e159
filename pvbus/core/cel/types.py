"""Types of CEL at compile time and their unification.

The rules are those of cel-go's checker, oddities included: they decide the overload for an argument
of unknown type, and users notice it (`int(m['k'])` fails for every string, because the first
overload of int() binds the unknown value type of `m` to int).
"""

from typing import NamedTuple


class Type(NamedTuple):
    """A type. kind: a simple type's name, `list`, `map`, `type`, `dyn`, `error`, or `var` (then name is
    the variable's)."""

    kind: str
    params: tuple["Type", ...] = ()
    name: str = ""

    def __str__(self) -> str:
        if self.kind == "var":
            return self.name
        if self.kind == "error":
            return "!error!"
        if not self.params:
            return self.kind
        return f"{self.kind}({', '.join(map(str, self.params))})"


BOOL, INT, UINT, DOUBLE, STRING, BYTES, NULL, DYN, ERROR, TYPE, TIMESTAMP, DURATION = map(
    Type,
    (
        "bool",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "null",
        "dyn",
        "error",
        "type",
        "timestamp",
        "duration",
    ),
)


def list_of(item: Type) -> Type:
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def type_of(inner: Type) -> Type:
    return Type("type", (inner,))


def variable(name: str) -> Type:
    return Type("var", (), name)


class Bindings:
    """What type variables are bound to. What a trial binds can be taken back: most overloads do not fit, and
    a copy for each of them would make the check of a long expression quadratic."""

    def __init__(self) -> None:
        self._bound: dict[Type, Type] = {}
        self._former: list[tuple[Type, Type | None]] = []

    def get(self, var: Type) -> Type | None:
        return self._bound.get(var)

    def __setitem__(self, var: Type, given: Type) -> None:
        self._former.append((var, self._bound.get(var)))
        self._bound[var] = given

    def end_trial(self, *, fits: bool) -> None:
        """Retain what was bound since the last trial, or take it back."""
        while self._former and not fits:
            var, bound = self._former.pop()
            if bound is None:
                del self._bound[var]
            else:
                self._bound[var] = bound
        self._former.clear()


def wrapper_of(inner: Type) -> Type:
    """Return the type of a well-known wrapper: its value, or null."""
    return Type("wrapper", (inner,))


_NULLABLE = frozenset(["null", "timestamp", "duration", "wrapper"])


def substitute(bindings: "Bindings | dict[Type, Type]", given: Type, *, free_to_dyn: bool = False) -> Type:
    """Replace bound variables, and with `free_to_dyn` the free ones by dyn."""
    bound = bindings.get(given)
    if bound is not None:
        return substitute(bindings, bound, free_to_dyn=free_to_dyn)
    if given.kind == "var":
        return DYN if free_to_dyn else given
    if not given.params:
        return given
    inner = tuple(substitute(bindings, p, free_to_dyn=free_to_dyn) for p in given.params)
    return Type(given.kind, inner)


def unify(bindings: Bindings, wanted: list[Type], given: list[Type]) -> bool:
    """Bind variables so that each type fits its counterpart; return whether that is possible."""
    fits = len(wanted) == len(given) and all(
        _fits(bindings, a, b) for a, b in zip(wanted, given, strict=True)
    )
    bindings.end_trial(fits=fits)
    return fits


def most_general(one: Type, other: Type) -> Type:
    return one if _less_specific(one, other) else other


def _less_specific(one: Type, other: Type) -> bool:
    if one.kind in ("dyn", "var"):
        return True
    if other.kind in ("dyn", "var") or one.kind != other.kind:
        return False
    if one.kind == "type":
        return True
    return all(_less_specific(a, b) for a, b in zip(one.params, other.params, strict=True))


def _fits(bindings: Bindings, one: Type, other: Type) -> bool:
    if other.kind == "var":
        fits, was_bound = _bind(bindings, one, other)
        if fits or was_bound:
            return fits
    if one.kind == "var":
        return _bind(bindings, other, one)[0]
    if {one.kind, other.kind} & {"dyn", "error"}:
        return True
    if "null" in (one.kind, other.kind):
        return one.kind in _NULLABLE and other.kind in _NULLABLE
    one, other = unwrapped(one), unwrapped(other)
    if one.kind != other.kind:
        return False
    return one.kind == "type" or all(
        _fits(bindings, a, b) for a, b in zip(one.params, other.params, strict=True)
    )


def unwrapped(kind: Type) -> Type:
    """Return the type of a wrapper's value; any other type as it is."""
    return kind.params[0] if kind.kind == "wrapper" else kind


def _bind(bindings: Bindings, given: Type, var: Type) -> tuple[bool, bool]:
    """Bind a variable; return whether the type is a valid binding, and whether the variable was bound."""
    if given == var:
        return True, True
    bound = bindings.get(var)
    if bound is not None:
        if given == bound:
            return True, True
        if not _fits(bindings, given, bound):
            return False, True
        general = most_general(given, bound)
        if not _occurs(bindings, var, general):
            bindings[var] = general
        return True, True
    if _occurs(bindings, var, given):
        return False, False
    bindings[var] = given
    return True, False


def _occurs(bindings: Bindings, var: Type, within: Type) -> bool:
    if var == within:
        return True
    if within.kind == "var":
        bound = bindings.get(within)
        return bound is not None and _occurs(bindings, var, bound)
    return any(_occurs(bindings, var, p) for p in within.params)
