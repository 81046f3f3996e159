"""Google's C++ evaluator behind our front end: the extra `fast-cel`.

Alone it answers differently from cel-go in places (text of numbers and durations, blanks in
int(' 42'), keys of maps, time zones). So it evaluates only trees of parts in which the two agree,
and only its successes count: where it fails, for whatever reason, the correction layer evaluates
again and its outcome stands. That makes errors and the limit of loops the same by construction;
its own limit of 10,000 is hit one iteration earlier than ours. `map` and `filter` are left out
because it copies the list at each iteration: 10,000 elements take 2.5 s.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cel_expr_python import cel

from pvbus.core.cel.checker import Checked
from pvbus.core.cel.corrections import corrected
from pvbus.core.cel.functions import BUILDERS
from pvbus.core.cel.reads import children
from pvbus.core.cel.syntax import Call, Const, Ident, ListLiteral, Macro, MapLiteral, Node, Select
from pvbus.core.cel.types import STRING

_AGREED_CALLS = frozenset(
    """_&&_ _||_ _?_:_ !_ -_ _==_ _!=_ _<_ _<=_ _>_ _>=_ _+_ _-_ _*_ _/_ _%_ _[_] @in size dyn
    contains startsWith endsWith""".split()  # noqa: SIM905 - a table of words
)
_AGREED_MACROS = frozenset(["all", "exists", "exists_one"])
_AGREED_CONSTANTS = (str, int, bool)
_TEXT_OF = frozenset(["string", "int", "bool"])  # static types whose string() is the same


class CppEngine:
    """Evaluates in C++ where that is known to agree with cel-go, else in the correction layer."""

    name = "cel-cpp"

    def __init__(self) -> None:
        self._environments: dict[frozenset[str], Any] = {}

    def program(self, checked: Checked) -> Callable[[Mapping[str, Any]], Any]:
        """Return the evaluation of an expression."""
        otherwise = corrected(checked)
        if not agreed(checked):
            return otherwise
        try:
            program = self._environment(checked).compile(checked.text)
        except RuntimeError:
            return otherwise
        wanted = cel.Type.STRING

        def evaluate(inputs: Mapping[str, Any]) -> Any:
            try:
                found = program.eval(data=inputs)
                if found.type() == wanted:
                    return found.value()
            except RuntimeError:
                pass
            return otherwise(inputs)

        return evaluate

    def _environment(self, checked: Checked) -> Any:
        found = self._environments.get(checked.variables)
        if found is None:
            strings = {"repoDefault", "packageDefault"}
            kinds = {name: cel.Type.STRING if name in strings else cel.Type.DYN for name in checked.variables}
            found = self._environments[checked.variables] = cel.NewEnv(variables=kinds)
        return found


def agreed(checked: Checked) -> bool:
    """Tell whether an expression is made only of parts in which both evaluators agree."""
    return _agreed(checked.tree, checked)


def _agreed(node: Node, checked: Checked) -> bool:
    match node:
        case Const(value=value):
            fine = type(value) in _AGREED_CONSTANTS
        case Ident() | Select():
            fine = node not in checked.type_names
        case Call(function="string", args=(arg,)):
            fine = node not in checked.sources and checked.types[arg].kind in _TEXT_OF
        case Call(function=function):
            fine = function in _AGREED_CALLS
        case Macro(name=name):
            fine = name in _AGREED_MACROS and not any(map(_builds, children(node)))
        case MapLiteral(entries=entries):
            fine = all(checked.types[key] == STRING for key, _ in entries)
        case _:
            fine = isinstance(node, ListLiteral)
    return fine and all(_agreed(child, checked) for child in children(node))


def _builds(node: Node) -> bool:
    """Tell whether anything below builds text: in loops only the correction layer limits that."""
    return (isinstance(node, Call) and node.function in BUILDERS) or any(map(_builds, children(node)))
