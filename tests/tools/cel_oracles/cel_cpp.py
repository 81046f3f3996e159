"""Google's C++ evaluator as an oracle.

It answers differently from cel-go in places: text of numbers and durations, blanks in int(' 42'), keys of
maps, time zones. So it evaluates only trees of parts in which the two agree. `map` and `filter` are left
out because it copies the list at each iteration: 10,000 elements take 2.5 s. Its own limit of 10,000
iterations is hit one iteration earlier than ours.
"""

from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel

from pvbus.core.cel.checker import Checked
from pvbus.core.cel.reads import children
from pvbus.core.cel.syntax import Call, Const, Ident, ListLiteral, Macro, MapLiteral, Node, Select
from pvbus.core.cel.types import STRING
from tests.tools.cel_oracles.answers import Evaluation, NoAnswer, no_answer

_AGREED_CALLS = frozenset(
    """_&&_ _||_ _?_:_ !_ -_ _==_ _!=_ _<_ _<=_ _>_ _>=_ _+_ _-_ _*_ _/_ _%_ _[_] @in size dyn
    contains startsWith endsWith""".split()  # noqa: SIM905 - a table of words
)
_AGREED_MACROS = frozenset(["all", "exists", "exists_one"])
_AGREED_CONSTANTS = (str, int, bool)
_BUILDERS = frozenset(["_+_", "string", "bytes"])  # their result is as large as their arguments
_TEXT_OF = frozenset(["string", "int", "bool"])  # static types whose string() is the same


class CppOracle:
    """Evaluates in C++ where that is known to agree with cel-go."""

    name = "cel-cpp"

    def __init__(self) -> None:
        self._environments: dict[frozenset[str], Any] = {}

    def program(self, checked: Checked) -> Evaluation:
        """Return the evaluation of an expression; it raises NoAnswer."""
        if not agreed(checked):
            return no_answer
        try:
            program = self._environment(checked).compile(checked.text)
        except RuntimeError:
            return no_answer
        wanted = cel.Type.STRING

        def evaluate(inputs: Mapping[str, Any]) -> Any:
            try:
                found = program.eval(data=inputs)
                if found.type() == wanted:
                    return found.value()
            except RuntimeError as error:
                raise NoAnswer from error
            raise NoAnswer

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
    """Tell whether anything below builds text: the C++ evaluator does not limit that in loops."""
    return (isinstance(node, Call) and node.function in _BUILDERS) or any(map(_builds, children(node)))
