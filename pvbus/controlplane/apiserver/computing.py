"""The computation of a write as a piece of work for another process: all that it needs crosses as bytes.

A kind crosses as the pickled `ServedKind`s of its family, of which the other process keeps the last few with
their compiled schemas. Objects cross as JSON. A kind whose strategy has a state of the server, as that of
definitions and roles, is computed in the server.
"""

import pickle
from functools import lru_cache
from typing import NamedTuple

from pvbus.controlplane.apiserver import changes, revisions
from pvbus.controlplane.apiserver.apply.tracking import Tracker
from pvbus.controlplane.apiserver.changes import Sent
from pvbus.controlplane.apiserver.entries import decode, encode
from pvbus.controlplane.apiserver.registry import Endpoint, Registry
from pvbus.controlplane.apiserver.requests import Options
from pvbus.controlplane.apiserver.revisions import Admission, Base, Rules
from pvbus.controlplane.apiserver.strategies import BUILTIN, Strategy

FAMILIES_KEPT = 8
"""Kinds whose compiled schemas another process keeps; the largest of them takes some 30 MB."""


class Stored(NamedTuple):
    """The stored object that a write replaces, in the form in which processes send it.

    rv: its resourceVersion
    uid: its uid
    raw: its JSON
    """

    rv: int
    uid: str
    raw: bytes


class Task(NamedTuple):
    """A write to compute.

    family: the pickled kinds that serve the object, of `Registry.family`
    resource: group, version and plural
    is_hooked: whether hooks judge the object, too
    sent: the body of the request
    options: the options of the write
    """

    family: bytes
    resource: tuple[str, str, str]
    is_hooked: bool
    sent: Sent
    options: Options


class Result(NamedTuple):
    """The outcome of a computed write.

    raw: the JSON of the new object, None if the object does not change
    warnings: the warnings for the client
    generated: the prefix of a generated name, "" for a given one
    """

    raw: bytes | None
    warnings: list[str]
    generated: str = ""


def crosses(rules: Rules) -> bool:
    """Return whether writes of a kind can be computed in another process."""
    return rules.strategy == _strategy(rules.endpoint, is_hooked=rules.is_hooked)


def updated(task: Task, stored: Stored | None, conditional: bool) -> Result:
    """Compute `revisions.updated`. Raises as that does."""
    rules, sent, options = _rules(task), task.sent, task.options
    change = changes.change_of(rules.endpoint, rules.tracker, sent, options)
    base = None if stored is None else Base(stored.rv, stored.uid, decode(stored.raw))
    new = revisions.prepare_update(rules, sent.key, base, change, options, sent.subresource, conditional)
    return Result(None if new is None else encode(new), options.warnings)


def created(task: Task, namespace: str | None, admission: Admission) -> Result:
    """Compute `revisions.created`. Raises as that does."""
    rules, sent, options = _rules(task), task.sent, task.options
    obj = changes.new_object(rules.endpoint, rules.tracker, sent, options)
    obj = revisions.begun(rules, obj, namespace, options)
    obj, generated = revisions.prepare_create(rules, obj, admission, options)
    return Result(encode(obj), options.warnings, generated)


def _rules(task: Task) -> Rules:
    registry = _registry(task.family)
    endpoint = registry.endpoint(*task.resource)
    assert endpoint is not None
    strategy = _strategy(endpoint, is_hooked=task.is_hooked)
    return Rules(endpoint, strategy, Tracker(registry), task.is_hooked)


def _strategy(endpoint: Endpoint, *, is_hooked: bool) -> Strategy:
    return revisions.strategy_of(endpoint, BUILTIN, is_hooked=is_hooked)


@lru_cache(FAMILIES_KEPT)
def _registry(family: bytes) -> Registry:
    return Registry(pickle.loads(family))  # the server's
