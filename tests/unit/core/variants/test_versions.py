"""Ranges of versions: what is one, what is in it, and that sets and variants read them alike."""

import pytest

from pvbus.core.api.variants import Downstream, PackageVariantSetSpec, PackageVariantSpec, Upstream
from pvbus.core.kernel.objectrows import REVISION, rows_of, topics_of
from pvbus.core.kernel.records import OBJECTS, RevisionFacts
from pvbus.core.variants import versions
from pvbus.core.variants.inject.mutations import validate_variant
from pvbus.core.variants.inject.view import InjectView
from pvbus.core.variants.unroll.validation import validate_set
from pvbus.core.variants.unroll.view import UnrollView
from tests.simulation.inject_world import package

PRESENT = ["1.0.0", "1.2.0", "1.2.3", "1.2.9", "1.3.0", "1.10.0", "2.0.0-beta.2", "2.0.0-beta.11", "2.0.0"]
PRESENT += ["0.4.1", "0.5.0", "0.0.3", "0.0.4"]


def facts(workspace: str, revision: int = -1, lifecycle: str = "Published") -> RevisionFacts:
    return RevisionFacts(
        repository="blue", package="app", workspace=workspace, revision=revision, lifecycle=lifecycle
    )


def followed(wanted: str, *present: str) -> str | None:
    upstream = Upstream(repo="blue", package="app", workspace_name=wanted)
    return versions.highest(upstream, present or PRESENT, lambda name: facts(f"v{name}"))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("*", "2.0.0"),
        ("=x", "2.0.0"),
        ("^1", "1.10.0"),
        ("^1.2", "1.10.0"),
        ("~1.2", "1.2.9"),
        ("~1.2.3", "1.2.9"),
        ("~1", "1.10.0"),
        ("=1.2", "1.2.9"),
        ("=1.2.x", "1.2.9"),
        ("=1.2.3", "1.2.3"),
        ("=v1.2.3", "1.2.3"),
        (">=1.2 <2", "1.10.0"),
        (">= 1.2, < 1.3", "1.2.9"),
        ("<=1.2", "1.2.9"),
        ("<1.2", "1.0.0"),
        (">1.2 <1.10", "1.3.0"),
        (">1.2.3 <1.3", "1.2.9"),
        ("^0.4", "0.4.1"),
        ("^0.0.3", "0.0.3"),
        ("^0", "0.5.0"),
        ("^0.0", "0.0.4"),
        ("=1.2.0 || =0.4.1", "1.2.0"),
        (">=2.0.0-beta <2.0.0", "2.0.0-beta.11"),
        (">=2.0.0-beta.3 <2.0.0-beta.9", None),
        ("<2", "1.10.0"),
        (">2", None),
        (">=3", None),
        ("<*", None),
    ],
)
def test_the_highest_version_in_a_range_is_followed(wanted: str, expected: str | None) -> None:
    assert versions.is_range(wanted)
    assert followed(wanted) == expected


@pytest.mark.parametrize("name", ["main", "v1", "v1.2.3", "1.x", "packagevariant-3", "", "x"])
def test_the_name_of_a_workspace_is_no_range(name: str) -> None:
    assert not versions.is_range(name)
    assert versions.problem(Upstream(workspace_name=name)) == ""


def test_a_number_is_a_version_and_drafts_and_branches_are_none() -> None:
    present = [
        facts("packagevariant-9", 2),
        facts("packagevariant-2", 10, "DeletionProposed"),
        facts("v1.5"),
        facts("main"),
        facts("v11.0.0", 0, "Draft"),
    ]

    def number(**wanted: object) -> int | None:
        found = versions.highest(Upstream(**wanted), present, lambda one: one)  # type: ignore[arg-type]
        return found.revision if found else None

    assert number(workspace_name="*") == 10
    assert number(workspace_name="<10") == 2
    assert number(workspace_name="^1") == -1
    assert number(workspace_name="*", revision=2) == 2
    assert number(workspace_name=">2", revision=2) is None


@pytest.mark.parametrize(
    ("wanted", "wrong"),
    [
        (">=1.2 <two", '"<two"'),
        ("^", '"^"'),
        ("1.0 - 2.0", '"- 2.0"'),
        ("=1.2.3.4", '"=1.2.3.4"'),
        ("^1 ||", '""'),
        (">=1.2,,<3 beta", '"beta"'),
        ("a b", '"a b"'),
    ],
)
def test_a_bad_range_is_a_validation_error_that_says_so(wanted: str, wrong: str) -> None:
    upstream = Upstream(repo="blue", package="app", workspace_name=wanted)
    message = f'spec.upstream.workspaceName: "{wanted}" is not a range of versions: {wrong} is no comparator'
    assert followed(wanted) is None
    variant = PackageVariantSpec(upstream=upstream, downstream=Downstream(repo="r", package="p"))
    (of_variant,) = validate_variant(variant)
    of_set = validate_set(PackageVariantSetSpec(upstream=upstream))
    assert of_variant.startswith(message)
    assert of_variant in of_set


def test_a_set_and_a_variant_follow_the_same_revision() -> None:
    inject, unroll = InjectView(1), UnrollView(1)
    for workspace, number in (("v1.2.0", -1), ("v1.3.0", -1), ("main", -1), ("packagevariant-1", 2)):
        (obj, _) = package("blue", "app", workspace, lifecycle="Published", revision=number)
        for row in rows_of(REVISION, obj, topics_of(REVISION, requested=False)):
            if row.topic == OBJECTS:
                list(inject.load_object(0, row.key, row.value) or ())
                list(unroll.load(0, row.key, row.value) or ())
    for wanted, name in (("^1", "blue.app.v1.3.0"), ("*", "blue.app.packagevariant-1"), ("^7", None)):
        upstream = Upstream(repo="blue", package="app", workspace_name=wanted)
        of_variant = inject.upstream("default", upstream)
        of_set = unroll.upstream("default", upstream)
        assert (of_variant.name if of_variant else None) == name
        assert (of_set[0].rpartition("|")[2] if of_set else None) == name
