"""The two-way selector index: from an object to the selectors that may select it, and back.

Every selector is anchored to one of its positive requirements (a name, a label with its value, or a
label that exists): the one that the fewest objects fulfil. An object event therefore visits only the
selectors that are anchored to a name or label that the object has or had; purely negative selectors are
visited each time. A selector finds its objects through the shortest postings list of its requirements.

A selector of a namespace also selects objects without a namespace, which only cluster-scoped kinds
have. Operators have their Kubernetes meaning: `NotIn` and `DoesNotExist` hold for an object that
lacks the label, `In` and `Exists` do not: `pvbus.core.api.selectors.matches` decides.

Labels are stored as a tuple of keys and values, which are shared between objects: a mapping of three takes
184 bytes, its tuple 88.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from sys import intern
from typing import Literal, NamedTuple

from pvbus.core.api.selectors import Requirements, matches
from pvbus.core.errors import PermanentError


class TargetSelector(NamedTuple):
    """Objects of a kind (`<group>/<Kind>`) in a namespace. name: None for any name."""

    kind: str
    namespace: str
    requirements: Requirements = ()
    name: str | None = None


class SelectorChange(NamedTuple):
    """The effect of an object event on one selector.

    position: the place of the selector among those of its owner
    what: `changed` if the object is still selected, and its labels or other fields changed
    """

    owner: Hashable
    position: int
    okey: str
    what: Literal["entered", "left", "changed"]


_Labels = Mapping[str, str]
_Packed = tuple[str, ...]
"""Labels: key, value, key, value, ..."""
_Anchor = tuple[str, str | None]
"""(label, value), (label, None): it exists, ("", name), or ("", None): no positive requirement."""
_SCAN: _Anchor = ("", None)
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


class _Compiled:
    """A selector of an owner. Compared by identity.

    keys: all labels that the selector reads; another label does not change whether it accepts an object
    anchors: where the scopes list the selector; an object that it accepts has at least one of them, and
        every object has `_SCAN`
    """

    __slots__ = ("anchors", "keys", "owner", "position", "requirements", "selector")

    def __init__(self, owner: Hashable, position: int, selector: TargetSelector) -> None:
        self.owner = owner
        self.position = position
        self.selector = selector
        self.requirements = selector.requirements
        self.keys = frozenset(each.key for each in selector.requirements)
        self.anchors: tuple[_Anchor, ...] = (_SCAN,)
        for each in selector.requirements:
            if each.operator not in _OPERATORS:
                raise PermanentError(f'"{each.operator}" is not a valid label selector operator')

    def positive(self) -> Iterator[tuple[_Anchor, ...]]:
        """Yield the positive requirements, each as the anchors that together cover it."""
        if self.selector.name is not None:
            yield (("", self.selector.name),)
        for key, operator, values in self.requirements:
            if operator == "In" and values:  # nothing can fulfil an empty list, so it has no anchor
                yield tuple((key, value) for value in sorted(values))
            elif operator == "Exists":
                yield ((key, None),)


class _Scope:
    """The objects of one kind and namespace, and their selectors.

    Postings exist from the first selector on, as most kinds have none. They are filled in parts, as 100,000
    objects take most of a second: an object is in the postings with its present labels, or it waits.

    anchored: anchor -> the selectors that are listed under it, in the order of their arrival
    postings: label -> value -> names of the objects; None before the first selector
    waiting: names of the objects that are not in the postings yet
    counts: label -> number of objects that have it; a label may have as many values as there are objects
    """

    __slots__ = ("anchored", "counts", "objects", "postings", "waiting")

    def __init__(self) -> None:
        self.objects: dict[str, _Packed] = {}
        self.anchored: dict[_Anchor, dict[_Compiled, None]] = {}
        self.postings: dict[str, dict[str, set[str]]] | None = None
        self.waiting: dict[str, None] = {}
        self.counts: Counter[str] = Counter()

    def add(self, compiled: _Compiled) -> None:
        for anchor in compiled.anchors:
            self.anchored.setdefault(anchor, {})[compiled] = None

    def drop(self, compiled: _Compiled) -> None:
        for anchor in compiled.anchors:
            bucket = self.anchored[anchor]
            del bucket[compiled]
            if not bucket:
                del self.anchored[anchor]

    def put(self, name: str, labels: _Labels | None) -> _Labels | None:
        """Store an object's labels, or remove the object if they are None; return the former labels."""
        packed = self.objects.get(name)
        before = None if packed is None else dict(zip(packed[::2], packed[1::2], strict=True))
        if labels is None:
            self.objects.pop(name, None)
        else:
            self.objects[name] = tuple([intern(text) for label in labels.items() for text in label])
        if self.postings is not None and name not in self.waiting:
            self._post(self.postings, name, before or {}, labels or {})
        elif labels is None:
            self.waiting.pop(name, None)
        return before

    def labels_of(self, name: str) -> _Labels:
        """Return the labels of an object that is there."""
        packed = self.objects[name]
        return dict(zip(packed[::2], packed[1::2], strict=True))

    def post_some(self, count: int) -> int:
        """Put up to so many objects into the postings; return how many these were."""
        if self.postings is None:
            self.postings, self.waiting = {}, dict.fromkeys(self.objects)
        posted = min(count, len(self.waiting))
        for _ in range(posted):
            name, _ = self.waiting.popitem()
            self._post(self.postings, name, {}, self.labels_of(name))
        return posted

    def whole_postings(self) -> dict[str, dict[str, set[str]]]:
        self.post_some(len(self.objects))
        assert self.postings is not None
        return self.postings

    def _post(
        self, postings: dict[str, dict[str, set[str]]], name: str, before: _Labels, after: _Labels
    ) -> None:
        for key, value in before.items() - after.items():
            names = postings[key][value]
            names.discard(name)
            self.counts[key] -= 1
            if not names:
                del postings[key][value]
                if not postings[key]:
                    del postings[key], self.counts[key]
        for key, value in after.items() - before.items():
            postings.setdefault(intern(key), {}).setdefault(intern(value), set()).add(name)
            self.counts[key] += 1

    def candidates(self, name: str, before: _Labels, after: _Labels) -> list[_Compiled]:
        """Return the selectors for this name that are anchored to it, or to a label it has or had."""
        entries: dict[_Compiled, None] = {}
        anchored = self.anchored
        for pairs in (after.items(), before.items() - after.items()):
            for pair in pairs:
                if pair in anchored:
                    entries.update(anchored[pair])
                if (key := (pair[0], None)) in anchored:
                    entries.update(anchored[key])
        for anchor in (("", name), _SCAN):
            if anchor in anchored:
                entries.update(anchored[anchor])
        return [entry for entry in entries if entry.selector.name in (None, name)]

    def size(self, anchors: Iterable[_Anchor]) -> int:
        """Count the objects that fulfil a requirement."""
        return sum(
            self.counts[key] if key and value is None else sum(map(len, self._names((key, value))))
            for key, value in anchors
        )

    def find(self, compiled: _Compiled) -> Iterator[str]:
        """Yield the names of the selected objects. If a name is wanted, no other list but an empty one is
        preferred to it."""
        best = min(compiled.positive(), key=self.size, default=None)
        groups = (
            (self.objects,) if best is None else (names for anchor in best for names in self._names(anchor))
        )
        for names in groups:
            for name in names:
                if matches(compiled.requirements, self.labels_of(name)):
                    yield name

    def _names(self, anchor: _Anchor) -> Iterable[Collection[str]]:
        key, value = anchor
        if not key:
            return ((value,),) if value is not None and value in self.objects else ()
        by_value = self.whole_postings().get(key, {})
        if value is None:
            return by_value.values()
        return (by_value[value],) if value in by_value else ()


class SelectorIndex:
    """Selectors by owner, objects by kind, namespace and name. Not thread-safe."""

    def __init__(self) -> None:
        self._scopes: dict[tuple[str, str], _Scope] = {}
        self._owners: dict[Hashable, tuple[_Compiled, ...]] = {}

    def set_selectors(self, owner: Hashable, selectors: Sequence[TargetSelector]) -> list[list[str]]:
        """Replace an owner's selectors; return the okeys of all matches of each, ordered by name.

        Raises PermanentError for an unknown operator; the owner then keeps its former selectors.
        """
        compiled = tuple(_Compiled(owner, i, selector) for i, selector in enumerate(selectors))
        self.remove_owner(owner)
        self._owners[owner] = compiled
        for entry in compiled:
            scopes = [
                self._scope(entry.selector.kind, namespace) for namespace in _namespaces(entry.selector)
            ]
            for scope in scopes:
                scope.whole_postings()
            # The sizes change later. A choice that is not the best any more costs time, but misses nothing.
            entry.anchors = min(
                entry.positive(),
                key=lambda anchors: sum(scope.size(anchors) for scope in scopes),
                default=(_SCAN,),
            )
            for scope in scopes:
                scope.add(entry)
        return self.matches(owner)

    def prepare(self, selectors: Iterable[TargetSelector], count: int) -> bool:
        """Make up to `count` objects ready for these selectors; return whether all are.

        `set_selectors` does what is left of it, without letting others run in between.
        """
        for selector in selectors:
            for namespace in _namespaces(selector):
                scope = self._scopes.get((selector.kind, namespace))
                if scope is not None:
                    count -= scope.post_some(count)
                    if scope.waiting:
                        return False
        return True

    def remove_owner(self, owner: Hashable) -> None:
        for entry in self._owners.pop(owner, ()):
            for namespace in _namespaces(entry.selector):
                key = (entry.selector.kind, namespace)
                self._scopes[key].drop(entry)
                self._tidy(key)

    def matches(self, owner: Hashable) -> list[list[str]]:
        """Return the okeys of all matches of each selector of an owner, ordered by name."""
        return [
            [
                f"{entry.selector.kind}|{namespace}|{name}"
                for namespace in _namespaces(entry.selector)
                for name in sorted(self._scopes[entry.selector.kind, namespace].find(entry))
            ]
            for entry in self._owners.get(owner, ())
        ]

    def put_object(self, kind: str, namespace: str, name: str, labels: _Labels) -> list[SelectorChange]:
        """Store an object's labels and return the changes of selectors.

        Labels equal to the stored ones give a `changed` for each selector that selects the object.
        """
        scope = self._scope(kind, namespace)
        before = scope.put(intern(name), labels)
        if not scope.anchored:
            return []
        return _changes(scope, f"{kind}|{namespace}|{name}", name, before, labels)

    def remove_object(self, kind: str, namespace: str, name: str) -> list[SelectorChange]:
        """Forget an object and return a `left` for each selector that selected it."""
        scope = self._scopes.get((kind, namespace))
        before = scope.put(name, None) if scope is not None else None
        if scope is None or before is None:
            return []
        self._tidy((kind, namespace))
        okey = f"{kind}|{namespace}|{name}"
        return [
            SelectorChange(entry.owner, entry.position, okey, "left")
            for entry in scope.candidates(name, {}, before)
            if matches(entry.requirements, before)
        ]

    def _scope(self, kind: str, namespace: str) -> _Scope:
        key = (kind, namespace)
        if key not in self._scopes:
            self._scopes[key] = _Scope()
        return self._scopes[key]

    def _tidy(self, key: tuple[str, str]) -> None:
        scope = self._scopes[key]
        if not scope.anchored and not scope.objects:
            del self._scopes[key]


def _namespaces(selector: TargetSelector) -> tuple[str, ...]:
    return (selector.namespace, "") if selector.namespace else ("",)


def _changes(
    scope: _Scope, okey: str, name: str, before: _Labels | None, after: _Labels
) -> list[SelectorChange]:
    if before is None:
        return [
            SelectorChange(entry.owner, entry.position, okey, "entered")
            for entry in scope.candidates(name, {}, after)
            if matches(entry.requirements, after)
        ]
    # A selector that accepts the object before or after is anchored to what it had or has, so is a candidate.
    moved = dict(before.items() ^ after.items())  # only its keys count
    changes = []
    for entry in scope.candidates(name, before, after):
        was = matches(entry.requirements, before)
        now = was if entry.keys.isdisjoint(moved) else matches(entry.requirements, after)
        if was and now:
            changes.append(SelectorChange(entry.owner, entry.position, okey, "changed"))
        elif was != now:
            changes.append(SelectorChange(entry.owner, entry.position, okey, "entered" if now else "left"))
    return changes
