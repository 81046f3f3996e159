"""Generators of an ApplicationSet, as selections of targets and the parameters that each target has.

A generator that is only partly understood would select other clusters than Argo CD does: it is left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pvbus.cli.importing.converted import NoCounterpartError, Note, fields, items, text_of
from pvbus.cli.importing.texts import Expression, Lookup, Text, parse, quoted
from pvbus.core.errors import UsageError

CLUSTERS = {"argocd.argoproj.io/secret-type": "cluster"}
IN_SECRET = ("server", "project", "clusterName")
LISTED = (
    "it has no counterpart; list what it finds as `repositories` with `packageNames`, or select the objects "
    "that it reads by an `objectSelector`"
)
LEFT_OUT = {
    "git": "a set does not read folders or files of git: " + LISTED,
    "scmProvider": LISTED,
    "pullRequest": "a pull request is no target: pvbus makes a draft of each variant instead",
    "merge": "write the merged parameters as labels of the clusters' Secrets",
    "clusterDecisionResource": LISTED,
    "plugin": LISTED,
}
"""Why a generator is left out, by its key."""


class Source(NamedTuple):
    """Targets of one kind.

    field: the generator, for messages
    selector: the `objectSelector`; None for a single target that is listed
    lookup: gives the parameters of a target
    is_go: whether its texts are templates of Go
    """

    field: str
    selector: dict[str, Any] | None
    lookup: Lookup
    is_go: bool

    def text(self, template: str) -> Text:
        """Put the parameters into a text. Raises NoCounterpartError."""
        return parse(template, self.lookup, is_go=self.is_go)


def sources_of(generators: Any, field: str, notes: list[Note], *, is_go: bool) -> Iterator[Source]:
    """Yield the targets of some generators, and note those that are left out. Raises UsageError."""
    for number, value in enumerate(items(generators, field)):
        path = f"{field}[{number}]"
        try:
            yield from _sources(fields(value, path), path, notes, is_go=is_go)
        except NoCounterpartError as exc:
            notes.append(Note(path, f"left out: {exc}"))


def _sources(generator: Mapping[str, Any], field: str, notes: list[Note], *, is_go: bool) -> list[Source]:
    if "selector" in generator:
        raise NoCounterpartError("`selector` filters what the generator finds; select by labels instead")
    (key, *others) = sorted(generator) or [""]
    if others or key not in ("list", "clusters", "matrix", *LEFT_OUT):
        raise NoCounterpartError(f"a generator has exactly one kind, and this one has {', '.join(generator)}")
    if key in LEFT_OUT:
        raise NoCounterpartError(LEFT_OUT[key])
    path, body = f"{field}.{key}", fields(generator[key], f"{field}.{key}")
    if "template" in body:
        raise NoCounterpartError("`template` replaces parts of the template for these targets alone")
    if key == "list":
        return list(_elements(body, path, is_go=is_go))
    if key == "clusters":
        return [_clusters(body, path, notes, is_go=is_go)]
    return list(_product(body, path, notes, is_go=is_go))


def _clusters(body: Mapping[str, Any], field: str, notes: list[Note], *, is_go: bool) -> Source:
    if body.get("flatList"):
        raise NoCounterpartError("`flatList` gives all clusters to one Application")
    selector = fields(body.get("selector"), f"{field}.selector")
    if not selector:
        notes.append(Note(field, "the cluster that Argo CD runs in is selected only if it has a Secret"))
    values = fields(body.get("values"), f"{field}.values")

    def lookup(name: str) -> Text:
        value = values.get(name.removeprefix("values.")) if name.startswith("values.") else None
        if value is not None:
            return parse(text_of(value, f"{field}.{name}"), _of_secret, is_go=is_go)
        return _of_secret(name)

    return Source(field, _secrets(selector, field), lookup, is_go)


def _secrets(selector: Mapping[str, Any], field: str) -> dict[str, Any]:
    labels = fields(selector.get("matchLabels"), f"{field}.selector.matchLabels")
    expressions = items(selector.get("matchExpressions"), f"{field}.selector.matchExpressions")
    found = {"apiVersion": "v1", "kind": "Secret", "matchLabels": CLUSTERS | dict(labels)}
    return found | ({"matchExpressions": expressions} if expressions else {})


def _of_secret(name: str) -> Text:
    """Return a parameter of a cluster: what its Secret shows beside its content."""
    if name in ("name", "nameNormalized"):
        return (Expression("target.name"),)
    for prefix, root in (
        ("metadata.labels.", "target.labels"),
        ("metadata.annotations.", "target.annotations"),
    ):
        if name.startswith(prefix):
            return (Expression(f"{root}[{quoted(name.removeprefix(prefix))}]"),)
    if name in IN_SECRET:
        raise NoCounterpartError(f"{name} is in the content of a Secret, which a selection never reads")
    raise NoCounterpartError(f"there is no parameter {name}")


def _elements(body: Mapping[str, Any], field: str, *, is_go: bool) -> Iterator[Source]:
    if "elementsYaml" in body:
        raise NoCounterpartError("`elementsYaml` is computed; write the elements out")
    for number, element in enumerate(items(body.get("elements"), f"{field}.elements")):
        path = f"{field}.elements[{number}]"
        values = dict(_leaves(fields(element, path), path))

        def lookup(name: str, values: Mapping[str, str] = values, path: str = path) -> Text:
            if name not in values:
                raise NoCounterpartError(f"the element has no {name}")
            return (values[name],)

        yield Source(path, None, lookup, is_go)


def _leaves(element: Mapping[str, Any], field: str, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in element.items():
        if isinstance(value, dict):
            yield from _leaves(value, field, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", text_of(value, f"{field}.{prefix}{key}")


def _product(body: Mapping[str, Any], field: str, notes: list[Note], *, is_go: bool) -> Iterator[Source]:
    """Yield each pair of a matrix: one of the two has to be listed, as a target is one object."""
    generators = items(body.get("generators"), f"{field}.generators")
    if len(generators) != 2:
        raise UsageError(
            f"{field}.generators: a matrix has two generators, and this one has {len(generators)}"
        )
    sides = []
    for number, generator in enumerate(generators):
        path = f"{field}.generators[{number}]"
        sides.append(_sources(fields(generator, path), path, notes, is_go=is_go))
    for first in sides[0]:
        for second in sides[1]:
            if first.selector and second.selector:
                raise NoCounterpartError("a target is one object, not a pair of two that are selected")
            selector = first.selector or second.selector
            yield Source(second.field, selector, _either(first.lookup, second.lookup), is_go)


def _either(first: Lookup, second: Lookup) -> Lookup:
    """Return the parameters of both; the second one's win, as in Argo CD."""

    def lookup(name: str) -> Text:
        try:
            return second(name)
        except NoCounterpartError:
            return first(name)

    return lookup
