"""Injects the content of in-cluster objects into a package's annotated objects.

An injection point is an object with the annotation `kpt.dev/config-injection`. The first in-cluster
object of its group, version and kind that an injector names is chosen; its `spec`, or the `data` of a
core ConfigMap, replaces that of the point. The outcome of each point is a condition of the Kptfile,
and a required point is a readiness gate. The hash of the injected content is in the result only: in
the package, every change of the object would change two fields.

A point that is itself wrong keeps its content, and does not keep the sound ones from theirs.

Source: Porch v1.5.8, injection.go; departures: there one wrong point stops them all; here the schema of a
point is looked at first, as in the design document.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from pvbus.core.api import kptfile
from pvbus.core.api.packages import PackageCondition
from pvbus.core.api.variants import Injector
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.kinds import KINDS_WITHOUT_SPEC
from pvbus.core.variants.revisions.content import no_object
from pvbus.core.yaml import editor

POINT = "kpt.dev/config-injection"
INJECTED = "kpt.dev/injected-resource"
INJECTED_ALIAS = "kpt.dev/injected-resource-name"
"""The spelling of the design document: read, and replaced on injection."""


UNMATCHED = "no resource matched any injection selector for this injection point"
INVALID_POINT = "InvalidInjectionPoint"


class InjectionPoint(NamedTuple):
    """An annotated object. document: its position among the documents of the file."""

    file: str
    document: int
    group: str
    version: str
    kind: str
    name: str
    required: bool
    condition_type: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def field(self) -> str:
        """The field that is replaced."""
        return "data" if (self.group, self.kind) == ("", "ConfigMap") else "spec"


class InjectionPoints(NamedTuple):
    """The injection points of a package, by file and document.

    If a file cannot be read, there are no points at all.

    problem: everything that is wrong, in Porch's words, "" if nothing is
    wrong: condition type -> what is wrong with its points
    """

    points: tuple[InjectionPoint, ...]
    problem: str = ""
    wrong: Mapping[str, str] = {}

    @property
    def stops_all(self) -> bool:
        """Whether there is a problem and no sound point."""
        return bool(self.problem) and all(point.condition_type in self.wrong for point in self.points)


class CandidateListing(NamedTuple):
    """The in-cluster objects of a kind in the variant's namespace: content by name.

    Content is the value of `spec` (`data` of a core ConfigMap), None when the object has no such
    field. error: why they cannot be listed, as `no matches for kind "Team" in version "x.io/v1"`.
    """

    objects: Mapping[str, Any] = {}
    error: str = ""


class Candidates(Protocol):
    """The in-cluster objects that can be injected."""

    def listing(self, group: str, version: str, kind: str) -> CandidateListing: ...


class Injected(NamedTuple):
    """The outcome of one point. source_name and hash are None unless it was injected.

    detail: which injectors were considered, when none of them matched.
    """

    point: InjectionPoint
    message: str
    reason: str = "NoResourceSelected"
    source_name: str | None = None
    hash: str | None = None
    detail: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the package has to be corrected at this point."""
        return self.reason == INVALID_POINT

    @property
    def is_missing(self) -> bool:
        """Whether the package needs it and has it not."""
        return self.point.required and self.source_name is None and not self.is_wrong

    @property
    def explanation(self) -> str:
        """Porch's message, which is that of the Kptfile's condition, and our detail."""
        return f"{self.message}: {self.detail}" if self.detail else self.message


def injection_points(resources: Mapping[str, str]) -> InjectionPoints:
    """Return the injection points of a package's files."""
    points: list[InjectionPoint] = []
    problems: list[tuple[str, str]] = []
    files: dict[str, str] = {}
    for file in filter(_is_yaml, sorted(resources)):
        try:
            found = _points_of(file, resources[file])
        except editor.YamlError as error:
            return InjectionPoints((), f"{file}: {error}")
        for point, value in found:
            points.append(point)
            type_ = point.condition_type
            if value not in ("required", "optional"):
                words = (
                    f'{file}: {point.kind}/{point.name} has invalid "{POINT}" annotation value of "{value}"'
                )
                problems.append((type_, words))
            if type_ in files:
                both = f"{files[type_]} and {file}"
                problems.append((type_, f'duplicate injection conditionType "{type_}" ({both})'))
            files[type_] = file
    wrong: dict[str, list[str]] = {}
    for type_, words in problems:
        wrong.setdefault(type_, []).append(words)
    return InjectionPoints(
        tuple(points),
        problem_of(words for _, words in problems),
        {type_: ", ".join(words) for type_, words in wrong.items()},
    )


def problem_of(problems: Iterable[str]) -> str:
    """Return all that is wrong with the points of a package, in Porch's words; "" if nothing is."""
    words = ", ".join(dict.fromkeys(problems))
    return f"errors in injection points: {words}" if words else ""


def _is_yaml(file: str) -> bool:
    return file.endswith((".yaml", ".yml", ".json")) or file.rpartition("/")[2] == kptfile.FILE


@lru_cache(maxsize=1024)
def _points_of(file: str, text: str) -> tuple[tuple[InjectionPoint, str], ...]:
    """Return the points of a file, with the value of their annotation.

    Cached, since a fleet's packages share most of their files, and parsing is slow.
    """
    found = []
    for number, document in enumerate(editor.parse(text)):
        value = document.value
        if value is None:
            continue
        if not isinstance(value, dict):
            raise editor.YamlError(f"failed to extract objects: {no_object(number, document.text, value)}")
        requirement = editor.get(value, ("metadata", "annotations", POINT))
        if requirement is None:
            continue
        group, _, version = str(value.get("apiVersion") or "").rpartition("/")
        kind, name = str(value.get("kind") or ""), str(editor.get(value, ("metadata", "name")) or "")
        condition_type = f"config.injection.{kind}.{name}"
        required = requirement == "required"
        point = InjectionPoint(file, number, group, version, kind, name, required, condition_type)
        found.append((point, str(requirement)))
    return tuple(found)


def wanted(
    points: Iterable[InjectionPoint], injectors: tuple[Injector, ...]
) -> tuple[tuple[str, str, str, str], ...]:
    """Return (group, version, kind, name) of all objects that could be injected, preferred ones first."""
    found = (
        (point.group, point.version, point.kind, injector.name)
        for point in points
        for injector in injectors
        if _fits(injector, point)
    )
    return tuple(dict.fromkeys(found))


def injected_from(value: Any) -> str | None:
    """Return the name of the in-cluster object that an object of a package was injected from."""
    annotations = editor.get(value, ("metadata", "annotations")) or {}
    name = annotations.get(INJECTED) or annotations.get(INJECTED_ALIAS)
    return str(name) if name else None


def with_injection(
    resources: dict[str, str], injectors: tuple[Injector, ...], candidates: Candidates
) -> tuple[dict[str, str], tuple[Injected, ...]]:
    """Fill the sound injection points; update conditions and gates of the Kptfile.

    A point without a match keeps its content; conditions of removed points stay. Raises: PermanentError, as
    Porch fails, if there are only wrong points.
    """
    found = injection_points(resources)
    if found.stops_all:
        raise PermanentError(found.problem, reason="InvalidPackage")
    result = dict(resources)
    outcomes = []
    for point in found.points:
        if words := found.wrong.get(point.condition_type):
            outcomes.append(Injected(point, words, INVALID_POINT))
            continue
        outcome, content = _choose(point, injectors, candidates)
        if outcome.source_name is not None:
            try:
                result[point.file] = _injected_text(result[point.file], point, outcome.source_name, content)
            except editor.YamlError as error:
                outcome = Injected(point, f"{point.file}: {error}", INVALID_POINT)
        outcomes.append(outcome)
    if outcomes:
        result[kptfile.FILE] = _with_conditions(result[kptfile.FILE], outcomes)
    return result, tuple(outcomes)


def _fits(injector: Injector, point: InjectionPoint) -> bool:
    return (
        injector.group in (None, point.group)
        and injector.version in (None, point.version)
        and injector.kind in (None, point.kind)
    )


def _choose(
    point: InjectionPoint, injectors: tuple[Injector, ...], candidates: Candidates
) -> tuple[Injected, Any]:
    """Return the outcome of a point and the content to inject. What is wrong with the schema comes first."""
    listing = candidates.listing(point.group, point.version, point.kind)
    if listing.error:
        return Injected(point, listing.error), None
    what = f"{point.api_version}.{point.kind}"
    if point.field == "spec" and point.kind in KINDS_WITHOUT_SPEC.get(point.group, ()):
        return Injected(point, f'the schema of {what} has no field "spec" to inject'), None
    if not injectors:
        return Injected(point, "no injectors defined"), None
    fitting = [one.name for one in injectors if _fits(one, point)]
    if fitting and not listing.objects:
        return Injected(point, f"no in-cluster resources of type {what}"), None
    name = next((one for one in fitting if one in listing.objects), None)
    if name is None:
        if fitting:
            names = ", ".join(f'"{one}"' for one in dict.fromkeys(fitting))
            detail = f"there are resources of type {what}, but none is named {names}"
        else:
            detail = f"no injector selects type {what}: {'; '.join(map(_selector, injectors))}"
        return Injected(point, UNMATCHED, detail=detail), None
    content = listing.objects[name]
    if content is None:
        return Injected(point, f'field "{point.field}" not found in resource "{name}"'), None
    message = f'injected resource "{name}" from cluster'
    return Injected(point, message, "ConfigInjected", name, digest(content)), content


def _selector(injector: Injector) -> str:
    """Return an injector's selector in words."""
    fields = (("group", injector.group), ("version", injector.version), ("kind", injector.kind))
    asked = [f'{field} "{value}"' for field, value in fields if value is not None]
    return f'"{injector.name}" is for {", ".join(asked) or "any kind"}'


def _injected_text(text: str, point: InjectionPoint, source: str, content: Any) -> str:
    """Return the text of the point's file with the content. Raises: YamlError."""
    documents = list(editor.parse(text))
    document = documents[point.document]
    annotations = ("metadata", "annotations")
    document = editor.assign(document, (point.field,), content)
    document = editor.assign(document, (*annotations, INJECTED), source)
    documents[point.document] = editor.delete(document, (*annotations, INJECTED_ALIAS))
    return editor.join(tuple(documents))


def _with_conditions(text: str, outcomes: list[Injected]) -> str:
    """Set the outcomes' conditions and add the gates of required points; foreign ones stay in order."""
    by_type = sorted(outcomes, key=lambda outcome: outcome.point.condition_type)
    for outcome in by_type:
        condition = PackageCondition(
            type=outcome.point.condition_type,
            status="False" if outcome.source_name is None else "True",
            reason=outcome.reason,
            message=outcome.message,
        )
        text = kptfile.upsert_condition(text, condition)
    required = [outcome.point.condition_type for outcome in by_type if outcome.point.required]
    return kptfile.add_readiness_gates(text, required)
