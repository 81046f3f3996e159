"""Expressions that are made to take long or to fill the memory, as far as their inputs allow.

A case has the name of what it tries. `TARGET` has annotations as large as Kubernetes admits, and more below
`deep`, which objects of checks and schemas may have.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Hostile(NamedTuple):
    """A hostile expression over the variable `target`."""

    name: str
    text: str


def _nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": [value]}
    return value


TARGET: Final[Mapping[str, Any]] = {
    "name": "edge",
    "long": "a" * 260_000,
    "annotations": {
        "big": "a" * 200_000,
        "same": "a" * 199_999 + "b",
        "wide": "é" * 100_000,
        "pattern": "(a?){1000}" + "b" * 100_000,
        "classes": r"(?i)[\pL]" * 800,
        "slashes": "\\" * 100_000,
        "digits": "1" * 100_000,
        "zeros": "0" * 70_000 + "x",
        "dots": "1." * 50_000,
        "hours": "1h" * 50_000,
        "few": "a" * 700,
        "some": "a" * 35_000,
        "part": "a" * 170 + "b",
        "fewer": "0" * 79_000 + "1",
        "minutes": "1m" * 13_000,
        "instant": "2024-01-01T00:00:00." + "1" * 100_000 + "Z",
    },
    "labels": {f"k{n:05}": f"v{n}" for n in range(10_000)},
    "deep": {
        "list": list(range(100_000)),
        "texts": [("a" * 40) + str(n) for n in range(20_000)],
        "large": ["a" * 5_000 + str(n) for n in range(200)],
        "lists": [[n, [n]] for n in range(30_000)],
        "copies": [[n, [n]] for n in range(30_000)],
        "objects": [{"name": f"n{n}", "ports": [n, n + 1]} for n in range(20_000)],
        "some": [str(n) for n in range(19_000)],
        "pairs": [[n, {"a": n}] for n in range(3_000)],
        "others": [[n, {"a": n}] for n in range(3_000)],
        "chain": _nested(2_000),
        "twin": _nested(2_000),
    },
}

_BIG = "target.annotations.big"
_TEN = "[0,1,2,3,4,5,6,7,8,9]"
_LABELS = "target.labels"
_DEEP = "target.deep"


def _loops(body: str, levels: int = 6) -> str:
    """Nest loops over ten numbers around a body that gives a bool."""
    for level in range(levels):
        body = f"{_TEN}.all(v{level}, {body})"
    return f"{body} ? 'yes' : 'no'"


def _chosen(condition: str) -> str:
    return f"{condition} ? 'yes' : 'no'"


def _doubled(text: str, times: int) -> str:
    for level in range(times):
        text = f"[{text}].map(d{level}, d{level} + d{level})[0]"
    return text


def _repeated(piece: str, join: str) -> str:
    return join.join([piece] * (3_900 // len(piece + join)))


HOSTILE: Final = tuple(
    Hostile(name, text)
    for name, text in {
        # patterns
        "pattern of states": _chosen(f"{_BIG}.matches('(a?){{1000}}bN')"),
        "pattern of states in a loop": _loops(f"{_BIG}.matches('(a?){{1000}}bN')"),
        "pattern of states, short text": _loops("'aaaaaaaaaaaaaaaaaaaa'.matches('(a?){1000}bN')"),
        "pattern from an annotation": _chosen(f"{_BIG}.matches(target.annotations.pattern)"),
        "pattern from an annotation in loops": _loops(f"{_BIG}.matches(target.annotations.pattern)", 3),
        "pattern as long as its text": _chosen(f"{_BIG}.matches({_BIG})"),
        "pattern of classes": _chosen("'a'.matches(target.annotations.classes)"),
        "literal of classes": _chosen("'a'.matches('" + r"\\pL" * 45 + "')"),
        "classes, absorbed": _loops(r"'a'.matches('(?i)[\\pL]{40}') || true"),
        "other patterns all the time": _loops("!'a'.matches(string(v0) + string(v1) + '{400}')", 3),
        "patterns that do not compile": _loops("'a'.matches('(' + string(v0)) || true"),
        "pattern that is too large": _loops(r"'a'.matches('\\pL{1000}') || true"),
        "pattern of repetitions": _chosen(f"{_BIG}.matches('((a{{0,10}}){{0,10}}){{0,10}}b')"),
        "pattern of any characters": _chosen(f"{_BIG}.matches('.{{0,1000}}$')"),
        "pattern of alternatives": _chosen(f"{_BIG}.matches('(a|aa|aaa){{300}}x')"),
        "pattern over wide text": _chosen("target.annotations.wide.matches('(é?){400}z')"),
        "pattern of few steps over long text": _loops(f"!{_BIG}.matches('b')"),
        "pattern of backslashes": _chosen("'a'.matches(target.annotations.slashes)"),
        "short matches": _loops("!'abc'.matches('^b+$')"),
        "pattern for every label": _chosen(f"{_LABELS}.all(k, k.matches('^(k|[0-9]){{1,60}}$'))"),
        # text
        "contains, product": _chosen("target.annotations.big.contains(target.annotations.same)"),
        "contains in a loop": _loops(f"!{_BIG}.contains('aaaaaaaaab')"),
        "contains, short": _loops("!'aaaaaaaaaaaaaaaa'.contains('aab')"),
        "startsWith": _loops(f"{_BIG}.startsWith({_BIG} + 'b') || true"),
        "endsWith": _loops(f"!{_BIG}.endsWith(target.annotations.same)"),
        "doubled by concatenation": f"{_doubled('target.annotations.big', 12)}",
        "doubled from a little": f"string({_doubled(chr(39) + 'abcdefghij' + chr(39), 40)}.size())",
        "text in nested loops": f"string({_LABELS}.map(a, {_LABELS}.map(b, {_BIG} + a + b)).size())",
        "lists joined": f"string({_LABELS}.map(a, {_DEEP}.list + {_DEEP}.list).size())",
        "text compared": _loops(f"{_BIG} < target.annotations.same"),
        "text compared with itself": _loops(f"{_BIG} + 'a' == {_BIG} + 'a'"),
        "short text joined": _loops("'abcdefgh' + 'i' != 'x'"),
        "sizes": _loops(f"{_BIG}.size() > 1 && size({_DEEP}.list) > 1"),
        # structures
        "deep equality": _chosen(f"{_DEEP}.lists == {_DEEP}.copies"),
        "deep equality in a loop": _loops(f"{_DEEP}.lists == {_DEEP}.copies"),
        "equality of a long chain": _chosen(f"{_DEEP}.chain == {_DEEP}.twin"),
        "equality of maps": _loops(f"{_LABELS} == {_LABELS}"),
        "inequality of objects": _loops(f"{_DEEP}.objects != {_DEEP}.lists"),
        "in a big list": _loops(f"!(-1 in {_DEEP}.list)"),
        "list in a list of lists": _loops(f"!([1] in {_DEEP}.lists)"),
        "text in a list of texts": _loops(f"!('a' in {_DEEP}.texts)"),
        "big key": _loops(f"!({_BIG} in {_LABELS}) && !(({_BIG} + 'x') in {_LABELS})"),
        "big key twice": _chosen(
            f"[{{string(bytes({_BIG})): 1}}].all(m, {_LABELS}.all(k, m[{_BIG}] == 1))"
        ),
        "short list": _loops("3 in [1, 2, 3] && 'c' in ['a', 'b', 'c']"),
        "equality of literals": _loops("[[1, 2], [3]] == [[1, 2], [3]] && {'a': 1} == {'a': 1}"),
        "index": _loops(f"{_DEEP}.list[9] == 9 && {_LABELS}['k0000' + string(v0)] != ''", 4),
        # loops
        "four nested loops": "string(L.map(a, L.map(b, L.map(c, L.map(d, d)))).size())".replace("L", _LABELS),
        "loops of constants": _loops("true"),
        "list of lists": f"string({_LABELS}.map(a, {_LABELS}.map(b, [[a, b], [b]])).size())",
        "maps made": f"string({_DEEP}.list.map(n, {{'a': {{'d': n}}, 'b': {{'d': n}}}}).size())",
        "filter": f"string({_DEEP}.list.filter(n, n % 2 == 0).filter(n, n % 3 == 0).size())",
        "exists_one": _chosen(f"{_DEEP}.list.exists_one(n, n == 5)"),
        "exists, sorted again": _loops(f"{_LABELS}.exists(k, true)"),
        "map with condition": f"string({_DEEP}.objects.map(o, o.name != '', o.ports[0] + o.ports[1]).size())",
        "objects walked": _chosen(f"{_DEEP}.objects.all(o, has(o.name) && o.ports.all(p, p >= 0))"),
        # conversions
        "int of digits": "string(int(target.annotations.digits))",
        "int of zeros": _loops("int(target.annotations.zeros) > 0 || true"),
        "uint of digits": _loops("uint(target.annotations.digits) > 0u || true"),
        "double of digits": _loops("double(target.annotations.digits) > 0.0 || true"),
        "double of dots": _loops("double(target.annotations.dots) > 0.0 || true"),
        "duration of digits": _loops("duration(target.annotations.digits) > duration('1s') || true"),
        "duration of hours": _loops("duration(target.annotations.hours) > duration('1s') || true"),
        "timestamp of digits": _loops("timestamp(target.annotations.instant) > timestamp(0) || true"),
        "bytes": _loops("size(bytes(target.annotations.wide)) > 1"),
        "string of bytes": _loops("size(string(bytes(target.annotations.wide))) > 1"),
        "bool of text": _loops(f"bool({_BIG}) || true"),
        "numbers": _loops("int('12345') + int(1.5) + int(uint(3)) > 0 && double('1.5e10') > 1.0"),
        "texts of numbers": _loops("string(1.2345e-10) + string(123456789) + string(2u) != ''"),
        "texts of times": _loops("string(timestamp(v0)) + string(duration('1h2m3.5s')) != ''"),
        "times": _loops("timestamp('2024-01-01T00:00:00.123Z').getDayOfYear() == 0"),
        "times in zones": _loops("timestamp(v0).getHours('Europe/Paris') >= 0"),
        "zones that do not exist": _loops("timestamp(0).getHours('Mars/' + string(v0)) > 0 || true"),
        "zone with a long name": _loops(f"timestamp(0).getHours({_BIG}) > 0 || true"),
        "durations": _loops("duration('1h') > duration('1s') && duration('1h').getMinutes() > 1"),
        # just below the limit of an expression
        "pattern of states below the limit": _chosen("target.annotations.few.matches('(a?){1000}bN')"),
        "one step over long text": _chosen(f"{_BIG}.matches('bN')"),
        "contains below the limit": _chosen("target.annotations.some.contains(target.annotations.part)"),
        "contains, few characters in much text": _chosen("target.long.contains('aaaaaaaab')"),
        "contains, six characters in much text": _chosen("target.long.contains('aaaaab')"),
        "int below the limit": "target.annotations.some.size() > int(target.annotations.fewer) ? 'a' : 'b'",
        "double below the limit": _chosen("double(target.annotations.fewer) > 1.0"),
        "duration below the limit": _chosen("duration(target.annotations.minutes) > duration('1s')"),
        "list below the limit": _chosen(f"-1 in {_DEEP}.some"),
        "equality below the limit": _chosen(f"{_DEEP}.pairs == {_DEEP}.others"),
        "text below the limit": f"string(({_BIG} + {_BIG}).size())",
        "keys below the limit": _chosen(f"{_LABELS}.exists_one(k, k.size() == 1)"),
        # types and errors
        "types": _loops("type(dyn(v0)) == int && type([v0]) == list && dyn(v0) != dyn('a')"),
        "dyn of all types": _loops(
            "[dyn(1), dyn('a'), dyn(1.5), dyn([1]), dyn({'a': 1}), dyn(null)].all(x, x != dyn(b'a'))", 4
        ),
        "errors, absorbed": _loops("target.missing == 1 || target.labels.missing == 'x' || true"),
        "errors of arithmetic": _loops("1 / (v0 - v0) > 0 || 9223372036854775807 + v0 < 0 || true"),
        "errors, all kept": _chosen(f"{_DEEP}.list.exists(n, target.missing == n)"),
        "arithmetic": _loops("(v0 * v1 + v2 - v3) % 7 >= -7 && -v0 <= 0 && 1.5 * 2.5 / 3.5 > 0.1"),
        "ternaries": _loops("v0 > 5 ? true : v1 > 5 ? true : v2 < 5 ? true : v3 > 3 ? true : v4 != 9"),
        "ternaries, chained": f"{_TEN}.map(v, {'v == 99 ? string(v) : ' * 60}'x')[0]",
        "large literals": f"string([{_repeated('[]', ',')}].map(x, x)[0].size())",
        "large maps": f"string([{_repeated('{}', ',')}].size())",
        "large literal in a loop": _loops(f"[{_repeated('1', ',')[:3000]}1].size() > 0"),
        "logical chain": _loops("&&".join(["true"] * 500)),
        "logical chain of errors": _loops("||".join(["target.x"] * 300) + " || true"),
        "selections": _loops("target.labels.k00001 != target.labels['k00002'] && has(target.labels.k00003)"),
    }.items()
)  # fmt: skip
