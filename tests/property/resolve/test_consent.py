"""Nothing becomes lower that nobody allowed to: whatever is published, asked for and taken away in turn.

`PVBUS_TEST_CONSENT=5000` makes so many changes instead of the usual number; `PVBUS_TEST_CONSENT_FIRST` is the
first seed.
"""

import os
from random import Random
from typing import Any

from pvbus.core.platform.solver.masterminds import parse_version
from tests.unit.core.platform.resolve.world import REGISTRY, install_key, started

CHANGES = int(os.environ.get("PVBUS_TEST_CONSENT", "160"))
FIRST = int(os.environ.get("PVBUS_TEST_CONSENT_FIRST", "20"))
CHANGES_OF_A_WORLD = 20
NAMES = ("a", "b", "c", "d")
VERSIONS = ("v1.0.0", "v1.1.0", "v1.2.0", "v2.0.0")
RANGES = (">=v1.0.0", ">=v1.1.0", "<v2.0.0", "<v1.2.0", "v1.0.0", ">=v2.0.0")
DOWNGRADES, RANGE = "pvbus.dev/downgrades", "pvbus.dev/range"


class Change:
    """A world that is changed at random, by a seed.

    allowed: names of installs that allow a lower version for themselves and for what was made for them
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world = started()
        self.world.settings = None
        self.allowed: set[str] = set()
        self.count = 0
        for name in NAMES:
            for version in self.rng.sample(VERSIONS, 2):
                self.publish(name, version)

    def publish(self, name: str, version: str) -> None:
        others = self.rng.sample(NAMES, self.rng.choice((0, 1, 1, 2)))
        depends = tuple(
            {"provider": f"{REGISTRY}/{other}", "version": self.rng.choice(RANGES)}
            for other in others
            if other != name
        )
        source, self.count = f"{REGISTRY}/{name}", self.count + 1
        if version not in self.world.registry.tags.get(source, {}):  # a moved tag is a wish of its owner's
            self.world.registry.publish(source, version, depends=depends, salt=f"{self.count}")

    def make(self) -> str:
        """Change something; return the name of the install that a person has touched, "" for none."""
        kind = self.rng.choice(("publish", "install", "install", "install", "remove"))
        name = self.rng.choice(NAMES)
        if kind == "publish":
            self.publish(name, self.rng.choice(VERSIONS))
            self.world.pass_time(400)
            return ""
        if kind == "remove":
            if install_key(name) in self.world.objects:
                self.world.remove(install_key(name))
            self.allowed.discard(name)
        else:
            self.install(name)
        self.world.run()
        return name

    def install(self, name: str) -> None:
        annotations: dict[str, str] = {}
        tag = self.rng.choice(("", "", *(f":{each}" for each in VERSIONS)))
        if not tag:
            annotations[RANGE] = self.rng.choice(RANGES)
        self.allowed.discard(name)
        if self.rng.random() < 0.15:
            annotations[DOWNGRADES] = "true"
            self.allowed.add(name)
        self.world.install(name, f"{REGISTRY}/{name}{tag}", annotations=annotations)

    def versions(self) -> dict[str, Any]:
        """Return the version of each install."""
        return {key: parse_version(row.version).key for key, row in self.world.lock.items() if row.version}

    def is_free(self, key: str, touched: str) -> bool:
        """Whether an install may become lower: it consents, or all that it was made for do."""
        pending, seen = [key], {key}
        while pending:
            key = pending.pop()
            if self.consents(key, touched):
                continue
            holders = self.world.lock[key].holders
            if not holders:
                return False
            pending += [holder for holder in holders if holder not in seen]
            seen.update(holders)
        return True

    def consents(self, key: str, touched: str) -> bool:
        """Whether an install is gone, touched, allows it itself, or is asked for at this very version."""
        row, obj = self.world.lock.get(key), self.world.objects.get(key)
        if row is None or row.status == "removed" or key.rpartition("|")[2] in {touched, *self.allowed}:
            return True
        return obj is not None and obj["spec"]["package"].endswith(f":{row.version}")


def violations(seed: int, changes: int) -> list[tuple[int, int, str]]:
    """Return seed, number of the change and key of each install that became lower without consent."""
    found: list[tuple[int, int, str]] = []
    change = Change(seed)
    for number in range(changes):
        before, touched = change.versions(), change.make()
        after = change.versions()
        found += [
            (seed, number, key)
            for key, version in before.items()
            if key in after and after[key] < version and not change.is_free(key, touched)
        ]
    return found


def test_no_install_becomes_lower_that_nobody_touched_and_that_allows_it_not() -> None:
    worlds = CHANGES // CHANGES_OF_A_WORLD
    found = [each for seed in range(FIRST, FIRST + worlds) for each in violations(seed, CHANGES_OF_A_WORLD)]
    assert found == []
