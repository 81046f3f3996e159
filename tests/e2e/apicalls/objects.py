"""Random objects, good and bad, of the kinds that both servers have."""

import base64
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

Json = Any

NAMES = ("a", "b", "c")
WORDS = ("one", "two", "three", "four")


class KindOf(NamedTuple):
    """A kind for random calls. fields: makes what an object has beside its metadata."""

    kind: str
    api_version: str
    plural: str
    fields: Callable[[Random], dict[str, Json]]
    namespaced: bool = True
    has_status: bool = False
    custom: bool = False

    @property
    def root(self) -> str:
        base = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        return f"{base}/namespaces/{{ns}}/{self.plural}" if self.namespaced else f"{base}/{self.plural}"

    def names(self) -> tuple[str, ...]:
        return NAMES if self.namespaced else tuple(f"{{ns}}-{name}" for name in NAMES)


def some(
    random: Random, makers: Mapping[str, Callable[[Random], Json]], share: float = 0.4
) -> dict[str, Json]:
    return {name: make(random) for name, make in makers.items() if random.random() < share}


def word(random: Random) -> str:
    return random.choice(WORDS)


def _texts(random: Random) -> Json:
    return {word(random): word(random) for _ in range(random.randint(0, 3))}


def _encoded(random: Random) -> Json:
    return {
        word(random): base64.b64encode(word(random).encode()).decode() for _ in range(random.randint(0, 2))
    }


def _config_map(random: Random) -> dict[str, Json]:
    if random.random() < 0.05:
        return random.choice(
            [
                {"data": {"bad key": "x"}},
                {"data": {"a": 1}},
                {"data": "x"},
                {"data": {"a": None}},
                {"extra": 1},
            ]
        )
    made = some(random, {"data": _texts, "binaryData": _encoded})
    if random.random() < 0.04:
        made["immutable"] = random.random() < 0.5
    return made


def _secret(random: Random) -> dict[str, Json]:
    if random.random() < 0.05:
        return random.choice([{"data": {"a": "not base64!"}}, {"type": 1}, {"stringData": {"a": 1}}])
    made = some(random, {"data": _encoded, "stringData": _texts})
    if random.random() < 0.2:
        made["type"] = random.choice(["Opaque", "example.com/own"])
    return made


def _ports(random: Random) -> Json:
    found: list[dict[str, Json]] = []
    for _ in range(random.randint(0, 3)):
        port: dict[str, Json] = {"name": random.choice(["http", "dns", "web"])}
        if random.random() < 0.5:
            port["protocol"] = random.choice(["TCP", "UDP"])
        if random.random() < 0.7:
            port["port"] = random.choice([53, 80])
        if all(
            (p["name"], p.get("protocol", "TCP")) != (port["name"], port.get("protocol", "TCP"))
            for p in found
        ):
            found.append(port)
    if random.random() < 0.04:
        found.append({"name": "http"})
    return found


_SPEC: Mapping[str, Callable[[Random], Json]] = {
    "size": lambda random: random.randint(0, 9),
    "title": word,
    "level": lambda random: random.choice(["low", "high"]),
    "shape": word,
    "limit": lambda random: random.choice([5, "10%"]),
    "on": lambda random: random.random() < 0.5,
    "note": lambda random: random.choice([None, "x", "y"]),
    "tags": lambda random: random.sample(WORDS, random.randint(0, 3)),
    "args": lambda random: [word(random) for _ in range(random.randint(0, 3))],
    "ports": _ports,
    "options": _texts,
    "pair": lambda random: some(random, {"left": word, "right": word}),
    "deep": lambda random: {"inner": some(random, {"one": lambda r: r.randint(0, 3), "two": lambda r: 2})},
    "free": lambda random: random.choice(
        [{}, {"x": 1}, {"x": "1", "y": [1, 2]}, {"x": {"y": True}}, {"x": None}]
    ),
}
_BAD_SPECS: tuple[Json, ...] = (
    {"size": "five"},
    {"size": 10},
    {"size": -1, "level": "middle"},
    {"title": "much longer than that"},
    {"unknown": 1},
    {"tags": ["one", "one"]},
    {"ports": [{"port": 1}]},
    {"deep": {"inner": {"three": 3}}},
    {"limit": 1.5},
    {"on": "yes"},
    {"tags": "one"},
    "text",
    None,
    [],
)


def _gadget(random: Random) -> dict[str, Json]:
    if random.random() < 0.06:
        return {"spec": random.choice(_BAD_SPECS)}
    made: dict[str, Json] = {"spec": some(random, _SPEC, 0.3)} if random.random() < 0.95 else {}
    if random.random() < 0.1:
        made["status"] = gadget_status(random)
    return made


def gadget_status(random: Random) -> Json:
    if random.random() < 0.05:
        return random.choice([{"phase": 1}, {"conditions": [{"type": "Ready"}]}, "x"])
    conditions = [
        {"type": type_, "status": random.choice(["True", "False"]), "message": word(random)}
        for type_ in random.sample(["Ready", "Stalled"], random.randint(0, 2))
    ]
    return some(random, {"phase": word, "conditions": lambda _: conditions}, 0.6)


def _variant(random: Random) -> dict[str, Json]:
    spec: dict[str, Json] = {
        "upstream": {"repo": word(random), "package": word(random), "revision": random.randint(1, 3)},
        "downstream": {"repo": word(random), "package": word(random)},
    }
    spec |= some(
        random,
        {
            "labels": _texts,
            "annotations": _texts,
            "adoptionPolicy": lambda r: r.choice(["adoptNone", "adoptExisting", "no"]),
            "deletionPolicy": lambda r: r.choice(["delete", "orphan"]),
            "packageContext": lambda r: {"data": _texts(r), "removeKeys": [word(r)]},
            "injectors": lambda r: [{"name": word(r), "kind": "Site"}],
            "pipeline": lambda r: {"mutators": [{"name": word(r), "image": "set-labels:v1"}]},
        },
        0.25,
    )
    if random.random() < 0.03:
        spec["upstream"] = random.choice(["x", {"repo": 1}, {}])
    return {"spec": spec}


def variant_status(random: Random) -> Json:
    return {
        "conditions": [
            {**each, "lastTransitionTime": "2024-01-01T00:00:00Z", "reason": "R"}
            for each in _conditions(random)
        ]
    }


def _conditions(random: Random) -> list[dict[str, Json]]:
    types = random.sample(["Ready", "Stalled"], random.randint(0, 2))
    return [
        {"type": each, "status": random.choice(["True", "False"]), "message": word(random)} for each in types
    ]


def _event(random: Random) -> dict[str, Json]:
    made: dict[str, Json] = {
        "involvedObject": {"kind": "ConfigMap", "namespace": "{ns}", "name": word(random)}
    }
    return made | some(
        random,
        {
            "reason": word,
            "message": word,
            "type": lambda r: r.choice(["Normal", "Warning"]),
            "count": lambda r: r.randint(1, 3),
            "source": lambda r: {"component": word(r)},
        },
        0.5,
    )


def _namespace(random: Random) -> dict[str, Json]:
    return {}


KINDS: tuple[KindOf, ...] = (
    KindOf("Gadget", "example.com/v1", "gadgets", _gadget, has_status=True, custom=True),
    KindOf("Gadget", "example.com/v1beta1", "gadgets", _gadget, has_status=True, custom=True),
    KindOf("ConfigMap", "v1", "configmaps", _config_map),
    KindOf("Secret", "v1", "secrets", _secret),
    KindOf(
        "PackageVariant",
        "config.porch.kpt.dev/v1alpha1",
        "packagevariants",
        _variant,
        has_status=True,
        custom=True,
    ),
    KindOf("Event", "v1", "events", _event),
    KindOf("Namespace", "v1", "namespaces", _namespace, namespaced=False),
)
WEIGHTS = (8, 2, 5, 3, 3, 1, 1)
STATUSES: Mapping[str, Callable[[Random], Json]] = {
    "gadgets": gadget_status,
    "packagevariants": variant_status,
}
