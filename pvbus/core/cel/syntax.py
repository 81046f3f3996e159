"""The syntax tree of an expression and the parser that makes it.

The standard macros are nodes of the tree (`Macro`, and a `Select` that only tests), not expanded:
checker and evaluator know them. Every node has the offset at which cel-go would report a problem
with it. Nodes are compared by identity, so they are the keys of the checker's results.
"""

import msgspec

from pvbus.core.cel.errors import BRACKETS_MAX, DEPTH_MAX, CompileProblem
from pvbus.core.cel.lexer import Token, tokens
from pvbus.core.cel.values import INT_MAX, INT_MIN, Uint
from pvbus.core.cel.wrappers import FIELD, WRAPPER_TYPES

RESERVED = frozenset(
    """as break const continue else for function if import let loop package namespace return var void
    while""".split()  # noqa: SIM905 - a table of words
)
ACCUMULATOR = "__result__"
_MACRO_ARGUMENTS = {"all": (2,), "exists": (2,), "exists_one": (2,), "filter": (2,), "map": (2, 3)}
_LEVELS = {
    "||": 1, "&&": 2, "<": 3, "<=": 3, ">=": 3, ">": 3, "==": 3, "!=": 3, "in": 3,
    "+": 4, "-": 4, "*": 5, "/": 5, "%": 5,
}  # fmt: skip


class Node(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A node of the syntax tree.

    offset: where a problem with this node is reported
    depth: the levels of its subtree, itself included
    """

    offset: int
    depth: int = 1


class Const(Node, frozen=True, eq=False, kw_only=True):
    value: str | bytes | int | float | bool | Uint | None


class Ident(Node, frozen=True, eq=False, kw_only=True):
    name: str


class Select(Node, frozen=True, eq=False, kw_only=True):
    """A field selection. test: it is the argument of has()."""

    operand: Node
    field: str
    test: bool = False


class Call(Node, frozen=True, eq=False, kw_only=True):
    """A call. function: a name, or cel-go's name of an operator (`_+_`, `_[_]`, `@in`). The logical
    operators have two or more arguments."""

    function: str
    target: Node | None = None
    args: tuple[Node, ...] = ()


class ListLiteral(Node, frozen=True, eq=False, kw_only=True):
    items: tuple[Node, ...]


class MapLiteral(Node, frozen=True, eq=False, kw_only=True):
    entries: tuple[tuple[Node, Node], ...]


class Macro(Node, frozen=True, eq=False, kw_only=True):
    """A macro.

    name: `all`, `exists`, `exists_one`, `filter` or `map`
    condition: the condition of `filter`, and of `map` with three arguments
    body: the body of all macros but `filter`
    """

    name: str
    range: Node
    variable: str
    condition: Node | None = None
    body: Node | None = None


def parse(text: str) -> Node:
    """Parse an expression.

    Raises:
        CompileProblem: the text is not an expression, or its tree is too deep.
    """
    return _Parser(tokens(text)).whole()


class _Parser:
    """Recursive descent; binary operators by precedence, which keeps the stack shallow."""

    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._at = 0
        self._open = 0

    # --- tokens

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _accept(self, *kinds: str) -> Token | None:
        return self._take() if self._next.kind in kinds else None

    def _expect(self, kind: str) -> Token:
        if self._next.kind != kind:
            raise self._unexpected(f"'{kind}'")
        return self._take()

    def _unexpected(self, wanted: str) -> CompileProblem:
        token = self._next
        return CompileProblem(
            token.offset, f"Syntax error: mismatched input '{token.text}' expecting {wanted}"
        )

    # --- levels

    def whole(self) -> Node:
        node = self._expression()
        if self._next.kind != "end":
            token = self._next
            raise CompileProblem(
                token.offset, f"Syntax error: extraneous input '{token.text}' expecting <EOF>"
            )
        return node

    def _expression(self) -> Node:
        self._open += 1
        if self._open > BRACKETS_MAX:
            raise self._too_deep(self._next.offset)
        condition = self._binary(1)
        if (mark := self._accept("?")) is not None:
            yes = self._binary(1)
            self._expect(":")
            condition = self._call("_?_:_", mark, condition, yes, self._expression())
        self._open -= 1
        return condition

    def _binary(self, lowest: int) -> Node:
        """Parse operators of this level and above. A chain of one logical operator is one call."""
        node = self._unary()
        while (level := self._level()) >= lowest:
            mark = self._take()
            function = "@in" if mark.text == "in" else f"_{mark.text}_"
            args = [node, self._binary(level + 1)]
            while function in ("_&&_", "_||_") and self._next.kind == mark.kind:
                mark = self._take()
                args.append(self._binary(level + 1))
            node = self._call(function, mark, *args)
        return node

    def _level(self) -> int:
        token = self._next
        return _LEVELS.get(token.text, 0) if token.kind != "const" else 0

    def _unary(self) -> Node:
        """Parse a signed operand. An even number of signs cancels out, as in cel-go: `!!x` is x."""
        mark = self._next
        if mark.kind not in ("!", "-") or self._signed_number():
            return self._member()
        signs = 0
        while self._accept(mark.kind):
            signs += 1
        operand = self._member()
        return self._call(f"{mark.kind}_", mark, operand) if signs % 2 else operand

    def _signed_number(self) -> bool:
        return self._next.kind == "-" and self._tokens[self._at + 1].kind == "number"

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._next.kind == "{" and isinstance(node, Ident | Select):
                node = self._message(_dotted(node))
            if (mark := self._accept(".", "[")) is None:
                return node
            if self._next.kind == "?":
                raise CompileProblem(mark.offset, f"unsupported syntax '{mark.text}?'")
            if mark.kind == "[":
                index = self._expression()
                self._expect("]")
                node = self._call("_[_]", mark, node, index)
                continue
            field = self._take()
            if field.kind != "name" or field.text in ("in", "true", "false", "null"):
                message = f"Syntax error: no viable alternative at input '.{field.text}'"
                raise CompileProblem(field.offset, message)
            if (bracket := self._accept("(")) is not None:
                node = self._member_call(node, field.text, bracket, self._list_until(")"))
            else:
                node = self._sized(Select(offset=mark.offset, operand=node, field=field.text), node)

    def _message(self, name: str) -> Node:
        """Parse the fields of a message literal, which is one of the wrappers."""
        brace = self._take()
        if name not in WRAPPER_TYPES:
            raise CompileProblem(brace.offset, f"undeclared reference to '{name}' (in container '')")
        values: list[Node] = []
        while self._next.kind != "}":
            field = self._take()
            if field.text != FIELD or values:
                problem = "duplicate field" if field.text == FIELD else "undefined field"
                raise CompileProblem(field.offset, f"{problem} '{field.text}'")
            self._expect(":")
            values.append(self._expression())
            if not self._accept(","):
                break
        if not values:
            self._accept(",")
        self._expect("}")
        return self._call(name, brace, *values)

    def _primary(self) -> Node:
        token = self._take()
        match token.kind:
            case "const":
                return Const(offset=token.offset, value=token.value)
            case "number":
                return self._number(token)
            case "-" if self._next.kind == "number":
                return self._number(token)
            case "(":
                node = self._expression()
                self._expect(")")
                return node
            case "[":
                if self._next.kind == "?":
                    raise CompileProblem(self._next.offset, "unsupported syntax '?'")
                items = self._list_until("]", trailing_comma=True)
                return self._sized(ListLiteral(offset=token.offset, items=items), *items)
            case "{":
                return self._map(token)
            case "." if self._next.kind == "name":
                return self._name(self._take())
            case "name":
                return self._name(token)
        self._at -= 1
        raise self._unexpected("an expression")

    def _number(self, token: Token) -> Node:
        value = token.value if token.kind == "number" else self._take().value
        assert isinstance(value, int | float)
        if token.kind == "-":
            value = -value
        if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
            raise CompileProblem(token.offset, "invalid int literal")
        return Const(offset=token.offset, value=value)

    def _map(self, brace: Token) -> Node:
        entries: list[tuple[Node, Node]] = []
        while self._next.kind != "}":
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
            if not self._accept(","):
                break
        if not entries:
            self._accept(",")
        self._expect("}")
        inner = [node for entry in entries for node in entry]
        return self._sized(MapLiteral(offset=brace.offset, entries=tuple(entries)), *inner)

    def _name(self, token: Token) -> Node:
        constants: dict[str, bool | None] = {"true": True, "false": False, "null": None}
        if token.text in constants:
            return Const(offset=token.offset, value=constants[token.text])
        if token.text == "in":
            self._at -= 1
            raise self._unexpected("an expression")
        if token.text in RESERVED:
            raise CompileProblem(token.offset, f"reserved identifier: {token.text}")
        if (bracket := self._accept("(")) is None:
            return Ident(offset=token.offset, name=token.text)
        args = self._list_until(")")
        if token.text == "has" and len(args) == 1:
            return self._has(bracket, args[0])
        return self._call(token.text, bracket, *args)

    def _list_until(self, end: str, *, trailing_comma: bool = False) -> tuple[Node, ...]:
        items: list[Node] = []
        if trailing_comma and self._next.kind == ",":
            self._take()
        elif self._next.kind != end:
            items.append(self._expression())
            while self._accept(","):
                if trailing_comma and self._next.kind == end:
                    break
                items.append(self._expression())
        self._expect(end)
        return tuple(items)

    # --- macros and nodes

    def _has(self, bracket: Token, argument: Node) -> Node:
        if not isinstance(argument, Select) or argument.test:
            raise CompileProblem(argument.offset, "invalid argument to has() macro")
        return msgspec.structs.replace(argument, test=True, offset=bracket.offset)

    def _member_call(self, target: Node, name: str, bracket: Token, args: tuple[Node, ...]) -> Node:
        if len(args) not in _MACRO_ARGUMENTS.get(name, ()):
            node = Call(offset=bracket.offset, function=name, target=target, args=args)
            return self._sized(node, target, *args)
        variable = args[0]
        if not isinstance(variable, Ident):
            raise CompileProblem(variable.offset, "argument is not an identifier")
        if variable.name == ACCUMULATOR:
            raise CompileProblem(variable.offset, "iteration variable overwrites accumulator variable")
        condition = args[1] if name == "filter" or len(args) == 3 else None
        body = args[-1] if name != "filter" else None
        macro = Macro(
            offset=bracket.offset,
            name=name,
            range=target,
            variable=variable.name,
            condition=condition,
            body=body,
        )
        return self._sized(macro, target, *args[1:])

    def _call(self, function: str, mark: Token, *args: Node) -> Node:
        return self._sized(Call(offset=mark.offset, function=function, args=args), *args)

    def _sized(self, node: Node, *children: Node) -> Node:
        depth = 1 + max((child.depth for child in children), default=0)
        if depth > DEPTH_MAX:
            raise self._too_deep(node.offset)
        return msgspec.structs.replace(node, depth=depth)

    @staticmethod
    def _too_deep(offset: int) -> CompileProblem:
        return CompileProblem(offset, "expression recursion limit exceeded")


def _dotted(node: Node) -> str:
    if isinstance(node, Select):
        return f"{_dotted(node.operand)}.{node.field}"
    return node.name if isinstance(node, Ident) else ""


def qualified_name(node: Node) -> str | None:
    """Return `a.b.c` of a chain of plain selections on a name, else None."""
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select) and not node.test:
        prefix = qualified_name(node.operand)
        return f"{prefix}.{node.field}" if prefix is not None else None
    return None
