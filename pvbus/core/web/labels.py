"""The labels by which a fleet is filtered and grouped: those of variants, their packages and their targets.

A target's labels may arrive before or after the variant that was made from it, and change without it.
"""

from collections.abc import Mapping

import msgspec

from pvbus.core.kernel.keys import SET_UID_LABEL

Labels = tuple[tuple[str, str], ...]
"""Names and values, in the order of the names."""


class _Labelled(msgspec.Struct):
    labels: Mapping[str, str] = {}


_labelled = msgspec.json.Decoder(_Labelled)


def labels_of(labels: Mapping[str, str]) -> Labels:
    """Return labels without the one that names the set by its uid."""
    return tuple(sorted((key, value) for key, value in labels.items() if key != SET_UID_LABEL))


def merged(below: Labels, over: Labels) -> Labels:
    """Return the labels of both; where both have one, that of `over`."""
    if not below or not over:
        return over or below
    return tuple(sorted({**dict(below), **dict(over)}.items()))


class TargetLabels:
    """The labels of objects by their keys, and which variants were made from each."""

    def __init__(self) -> None:
        self._labels: dict[str, Labels] = {}
        self._variants: dict[str, tuple[str, ...]] = {}

    def of(self, target: str) -> Labels:
        return self._labels.get(target, ())

    def variants_of(self, target: str) -> tuple[str, ...]:
        return self._variants.get(target, ())

    def load(self, key: str, value: bytes | None) -> tuple[str, ...]:
        """Apply the row of an object; return the variants whose labels this changes."""
        labels = labels_of(_labelled.decode(value).labels) if value is not None else ()
        if labels == self.of(key):
            return ()
        if labels:
            self._labels[key] = labels
        else:
            del self._labels[key]
        return self.variants_of(key)

    def move(self, variant: str, before: str, target: str) -> None:
        """Note that a variant was made from a target, and not from the one before. "" is none."""
        if before == target:
            return
        left = tuple(name for name in self._variants.pop(before, ()) if name != variant)
        if left:
            self._variants[before] = left
        if target:
            self._variants[target] = (*self._variants.get(target, ()), variant)
