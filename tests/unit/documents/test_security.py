"""docs/security.md: every promise has a test, and what it says of rights is what the rights are."""

import re
from collections.abc import Sequence

import pytest

from docs.security import POWERS, powers
from pvbus.controlplane.apiserver.identity import Attributes
from pvbus.controlplane.apiserver.rbac.builtin import PEOPLE, cluster_roles
from pvbus.controlplane.apiserver.rbac.rules import permits_all, rules_of
from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP
from pvbus.core.kernel.packagekinds import CROSSPLANE_GROUP
from pvbus.core.kernel.rights import ALL_RIGHTS
from tests.e2e.cli.command import REPOSITORY

TEXT = (REPOSITORY / "docs" / "security.md").read_text()
RBAC = "rbac.authorization.k8s.io"
TRUSTED = (
    (CONFIG_GROUP, "repositories"),
    ("", "secrets"),
    ("", "configmaps"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    (RBAC, "clusterroles"),
    (RBAC, "rolebindings"),
    (CROSSPLANE_GROUP, "providers"),
    ("packaging.carvel.dev", "packageinstalls"),
)


def rows(heading: str) -> Sequence[list[str]]:
    """Return the cells of each row of the first table below a heading."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_promise_names_a_test() -> None:
    """test_documents.py looks whether each of them exists."""
    promises = rows("Promises")
    assert len(promises) >= 15
    for promise, tests in promises:
        named = tests.split(", ")
        assert all(re.fullmatch(r"`tests/[\w/]+\.py::test_\w+`", test) for test in named), promise


def test_everything_that_is_trusted_has_its_limit_or_none() -> None:
    trusted = rows("What is trusted")
    assert all(who and what for who, what, _ in trusted)
    assert [who for who, _, limit in trusted if not limit] == [
        "your Kafka, your API server, root of each machine"
    ]


@pytest.mark.parametrize("role", sorted(set(PEOPLE) - {"admin"}))
def test_only_the_administrator_makes_what_is_trusted(role: str) -> None:
    """Nor does any other role read a Secret, act in another name, or give a right."""
    (found,) = (each for each in cluster_roles() if each["metadata"]["name"] == PEOPLE[role])
    rules = rules_of(found)
    asked = [
        Attributes(verb, group, "", plural)
        for group, plural in TRUSTED
        for verb in ("create", "update", "patch", "delete", "deletecollection")
    ]
    asked += [Attributes(verb, "", "", "secrets") for verb in ("get", "list", "watch")]
    asked += [Attributes("impersonate", "", "", plural) for plural in ("users", "groups", "serviceaccounts")]
    asked += [Attributes(verb, RBAC, "", "clusterroles") for verb in ("bind", "escalate")]
    asked.append(Attributes("clone-address", PORCH_GROUP, "", "packagerevisions"))
    assert [request for request in asked if any(permits_all(rule, request) for rule in rules)] == []


def test_every_power_of_a_service_is_in_the_table() -> None:
    """Of the rights as they are now; a service that gets such a right appears in it."""
    table = {power: who for power, who, _ in powers()}
    for power, is_it in POWERS.items():
        holders = {f"`{name}`" for name, rights in ALL_RIGHTS.items() if any(map(is_it, rights))}
        assert set(table[power].split(", ")) == (holders or {"none"}), power
    assert table["writes Secrets"] == "`establish`", "which may act as any account anyway"
    assert "`unroll`" not in " ".join(table.values())
