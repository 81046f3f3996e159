"""What a PackageVariant changes in a package, beyond the shared cases."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.core.api import kptfile
from pvbus.core.api.packages import PackageCondition
from pvbus.core.api.variants import Injector, PackageVariant, PackageVariantSetSpec, PackageVariantSpec
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import digest
from pvbus.core.variants.inject.mutations import (
    CandidateListing,
    Mutation,
    injected_from,
    injection_points,
    mutate,
    validate_variant,
    wanted,
)
from pvbus.core.variants.inject.mutations.injection import UNMATCHED
from pvbus.core.variants.inject.mutations.pipeline import function_name, is_own
from pvbus.core.variants.unroll.validation import validate_set
from pvbus.core.yaml import editor
from tests.unit.core.api.strictkptfile import read_strictly, unmet_gates

KPTFILE = """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: pkg
info: # what it is
  description: Example
pipeline:
  mutators:
  # about labels
  - image: set-labels:v0.2
    configMap: {app: foo} # flow
"""
CONTEXT = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: kptfile.kpt.dev
data: # keys
  name: example
  region: 'eu' # where
"""
TEAM_FILE = """\
# a team
apiVersion: hr.example.com/v1alpha1
kind: Team
metadata:
  name: team # its name
  annotations:
    kpt.dev/config-injection: required
spec:
  chargeCode: example # kept while equal
  seats: 3
"""


class Cluster:
    """Candidates by (group, version, kind); any other kind is unknown."""

    def __init__(self, listings: Mapping[tuple[str, str, str], CandidateListing] | None = None) -> None:
        self.listings = listings or {}

    def listing(self, group: str, version: str, kind: str) -> CandidateListing:
        unknown = CandidateListing(error=f'no matches for kind "{kind}" in version "{group}/{version}"')
        return self.listings.get((group, version, kind), unknown)


TEAMS = ("hr.example.com", "v1alpha1", "Team")


def variant(name: str = "my-pv", **spec: Any) -> PackageVariant:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, PackageVariant)


def apply(resources: dict[str, str], pv: PackageVariant, cluster: Cluster | None = None) -> Mutation:
    return mutate(resources, pv, cluster or Cluster(), revision_name="repo.pkg.v1", namespace="ns")


def test_nothing_to_do_gives_the_same_texts() -> None:
    """Without a spec no file changes, not even to the same value in another layout."""
    resources = {
        "Kptfile": KPTFILE,
        "team.yaml": TEAM_FILE.replace("required", "no"),
        "README.md": "- x: [",
    }
    resources["team.yaml"] = resources["team.yaml"].replace(
        "    kpt.dev/config-injection: no\n", "    a: b\n"
    )
    mutation = apply(resources, variant())
    assert mutation == Mutation(resources, False, ())
    assert all(mutation.resources[file] is resources[file] for file in ("team.yaml", "README.md"))


def test_own_functions_come_first_and_foreign_ones_keep_their_text() -> None:
    """New entries are put before the comment of the first foreign one; the rest is unchanged."""
    pv = variant(
        pipeline={
            "mutators": [{"name": "ns", "image": "set-namespace:v1", "configMap": {"namespace": "yes"}}]
        }
    )
    mutation = apply({"Kptfile": KPTFILE}, pv)
    own = (
        "  - name: PackageVariant.my-pv.ns.0\n    image: set-namespace:v1\n"
        '    configMap:\n      namespace: "yes"\n'
    )
    assert mutation.resources["Kptfile"] == KPTFILE.replace("  mutators:\n", f"  mutators:\n{own}")
    assert mutation.changed
    assert apply(mutation.resources, variant()).resources["Kptfile"] == KPTFILE


def test_the_last_own_function_takes_its_list_and_the_pipeline_along() -> None:
    """No empty list and no empty pipeline is left behind."""
    text = KPTFILE[: KPTFILE.index("pipeline:")]
    added = apply({"Kptfile": text}, variant(pipeline={"validators": [{"name": "v", "image": "i"}]}))
    assert "pipeline:\n  validators:\n  - name: PackageVariant.my-pv.v.0\n" in added.resources["Kptfile"]
    assert apply(added.resources, variant()).resources["Kptfile"] == text


@pytest.mark.parametrize(
    ("name", "pv", "own"),
    [
        ("PackageVariant.my-pv.f.0", "my-pv", True),
        ("PackageVariant.my-pv..0", "my-pv", True),
        ("PackageVariant.a.b.f.0", "a.b", True),
        ("PackageVariant.a.b.0", "a.b", False),
        ("PackageVariant.a.b.0", "a", True),
        ("PackageVariant.a.b.f.0", "a", False),
        ("PackageVariant.my-pv.f.x", "my-pv", False),
        ("PackageVariant.my-pv.f", "my-pv", False),
        ("PackageVariant.other.f.0", "my-pv", False),
        (None, "my-pv", False),
    ],
)
def test_own_functions_are_known_by_their_name(name: str | None, pv: str, own: bool) -> None:
    """A dot in the variant's name is no obstacle; another variant's entry is never taken for ours."""
    assert is_own({"name": name}, pv) is own


names = st.text("ab.", min_size=1, max_size=5)


@given(names, names, st.sampled_from(["", "f", "set-labels"]), st.integers(0, 20))
def test_an_entry_belongs_to_exactly_the_variant_that_made_it(
    one: str, other: str, function: str, index: int
) -> None:
    """Whatever dots two variants' names have, neither takes the other's functions for its own."""
    entry = {"name": function_name(one, function, index)}
    assert is_own(entry, one)
    assert is_own(entry, other) == (one == other)


def test_context_keys_are_set_and_then_removed() -> None:
    """Removal wins over setting; comments and quotes of the other keys stay."""
    spec = {"data": {"zone": "on", "region": "us"}, "removeKeys": ["zone", "missing"]}
    mutation = apply({"Kptfile": KPTFILE, "package-context.yaml": CONTEXT}, variant(packageContext=spec))
    assert mutation.resources["package-context.yaml"] == CONTEXT.replace("'eu'", "'us'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "\"package-context.yaml\" not found in PackageRevisionResources 'ns/repo.pkg.v1'"),
        (
            CONTEXT.replace("ConfigMap", "Secret"),
            '"package-context.yaml" does not contain kind "ConfigMap" in '
            "PackageRevisionResources 'ns/repo.pkg.v1'",
        ),
        (
            CONTEXT.replace("kptfile.kpt.dev", "other"),
            '"package-context.yaml" does not contain resource named "kptfile.kpt.dev" in '
            "PackageRevisionResources 'ns/repo.pkg.v1'",
        ),
        (
            CONTEXT[: CONTEXT.index("data: #")],
            "PackageRevisionResources ns/repo.pkg.v1 PackageContext no data field found",
        ),
        (
            CONTEXT + "---\n" + CONTEXT,
            'failed to parse "package-context.yaml" of PackageRevisionResources ns/repo.pkg.v1: '
            "expected exactly one object, got 2",
        ),
        (
            "a: [\n",
            'failed to parse "package-context.yaml" of PackageRevisionResources ns/repo.pkg.v1: '
            "yaml: line 2: did not find expected node content",
        ),
    ],
)
def test_a_package_context_that_cannot_be_set_is_an_error(text: str | None, message: str) -> None:
    """Each fault of the file has its own sentence."""
    resources = {"Kptfile": KPTFILE} | ({"package-context.yaml": text} if text is not None else {})
    with pytest.raises(PermanentError) as caught:
        apply(resources, variant(packageContext={"data": {"a": "b"}}))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({}, "nil resources found for PackageRevisionResources 'ns/repo.pkg.v1'"),
        ({"a.yaml": "a: b\n"}, "\"Kptfile\" not found in PackageRevisionResources 'ns/repo.pkg.v1'"),
        ({"Kptfile": "a: [\n"}, None),
        ({"Kptfile": "just text\n"}, None),
        ({"Kptfile": "pipeline:\n  mutators: text\n"}, None),
    ],
)
def test_a_package_without_a_usable_kptfile_is_an_error(
    resources: dict[str, str], message: str | None
) -> None:
    """No file is written then, and the error is a permanent one that names the file."""
    with pytest.raises(PermanentError, match=r"Kptfile|nil resources") as caught:
        apply(resources, variant(pipeline={"mutators": [{"name": "a", "image": "b"}]}))
    assert message is None or str(caught.value) == message


def inject(content: Any, *, text: str = TEAM_FILE, names: tuple[str, ...] = ("alpha",)) -> Mutation:
    cluster = Cluster({TEAMS: CandidateListing({"alpha": content})})
    pv = variant(injectors=[{"name": name} for name in names])
    return apply({"Kptfile": KPTFILE, "team.yaml": text}, pv, cluster)


def test_injected_content_replaces_the_spec_and_keeps_equal_fields() -> None:
    """The marker is written, the hash is in the result and not in the package."""
    mutation = inject({"chargeCode": "example", "seats": 4, "lead": "no"})
    marker = "    kpt.dev/config-injection: required\n"
    assert mutation.resources["team.yaml"] == TEAM_FILE.replace(
        "seats: 3\n", 'seats: 4\n  lead: "no"\n'
    ).replace(marker, f"{marker}    kpt.dev/injected-resource: alpha\n")
    (outcome,) = mutation.injected
    assert outcome.hash == digest({"chargeCode": "example", "seats": 4, "lead": "no"})
    assert (outcome.source_name, outcome.reason, outcome.point.required) == ("alpha", "ConfigInjected", True)
    assert all(outcome.hash not in text for text in mutation.resources.values())


def test_the_design_documents_spelling_of_the_marker_is_read_and_replaced() -> None:
    """Both spellings name the source; an injection leaves one."""
    old = TEAM_FILE.replace(
        "    kpt.dev/config-injection",
        "    kpt.dev/injected-resource-name: old\n    kpt.dev/config-injection",
    )
    assert injected_from(editor.values(old)[0]) == "old"
    after = inject({"seats": 1}, text=old).resources["team.yaml"]
    assert injected_from(editor.values(after)[0]) == "alpha"
    assert "injected-resource-name" not in after


@pytest.mark.parametrize(
    ("injectors", "listing", "message"),
    [
        ([], CandidateListing({"a": {}}), "no injectors defined"),
        ([{"name": "a"}], None, 'no matches for kind "Team" in version "hr.example.com/v1alpha1"'),
        ([{"name": "a"}], CandidateListing(), "no in-cluster resources of type hr.example.com/v1alpha1.Team"),
        (
            [{"name": "a", "kind": "Other"}, {"name": "b", "group": ""}],
            CandidateListing({"a": {}, "b": {}}),
            UNMATCHED,
        ),
        ([{"name": "b"}], CandidateListing({"": None}), UNMATCHED),
        ([{"name": "a", "kind": "Other"}], CandidateListing(), UNMATCHED),
        ([{"name": "a"}], CandidateListing({"a": None}), 'field "spec" not found in resource "a"'),
    ],
)
def test_each_way_of_not_injecting_has_its_message(
    injectors: list[dict[str, str]], listing: CandidateListing | None, message: str
) -> None:
    """The object stays as it is, its condition is False, and the gate of a required point is there."""
    cluster = Cluster({TEAMS: listing} if listing is not None else {})
    mutation = apply({"Kptfile": KPTFILE, "team.yaml": TEAM_FILE}, variant(injectors=injectors), cluster)
    assert mutation.resources["team.yaml"] is TEAM_FILE
    parsed = read_strictly(mutation.resources["Kptfile"])
    condition = PackageCondition(
        type="config.injection.Team.team", status="False", reason="NoResourceSelected", message=message
    )
    assert parsed.status.conditions == (condition,)
    assert [gate.condition_type for gate in unmet_gates(parsed)] == ["config.injection.Team.team"]


SECRET_FILE = """\
apiVersion: v1
kind: Secret
metadata:
  name: token
  annotations:
    kpt.dev/config-injection: optional
"""
NO_SPEC = 'the schema of v1.Secret has no field "spec" to inject'


@pytest.mark.parametrize(
    ("injectors", "listing", "message"),
    [
        ([], CandidateListing({}, "no matches for kind"), "no matches for kind"),
        ([{"name": "a"}], CandidateListing({"": None}), NO_SPEC),
        ([{"name": "a", "kind": "X"}], CandidateListing(), NO_SPEC),
    ],
)
def test_the_schema_is_looked_at_before_injectors_and_objects(
    injectors: list[dict[str, str]], listing: CandidateListing, message: str
) -> None:
    """In the order of the design document: no schema, no such field in it, no match."""
    cluster = Cluster({("", "v1", "Secret"): listing})
    files = {"Kptfile": KPTFILE, "token.yaml": SECRET_FILE}
    (outcome,) = apply(files, variant(injectors=injectors), cluster).injected
    assert (outcome.message, outcome.reason) == (message, "NoResourceSelected")


@pytest.mark.parametrize(
    ("text", "words", "gates"),
    [
        (
            TEAM_FILE.replace("required", "Required").replace("name: team", "name: other"),
            'wrong.yaml: Team/other has invalid "kpt.dev/config-injection" annotation value of "Required"',
            [],
        ),
        (
            f"{TEAM_FILE}---\n{TEAM_FILE}".replace("name: team", "name: other"),
            'duplicate injection conditionType "config.injection.Team.other" (wrong.yaml and wrong.yaml)',
            ["config.injection.Team.other"],
        ),
    ],
)
def test_a_wrong_point_keeps_its_content_and_the_sound_ones_get_theirs(
    text: str, words: str, gates: list[str]
) -> None:
    """Its condition says what is wrong, and applying the variant again changes nothing."""
    cluster = Cluster({TEAMS: CandidateListing({"alpha": {"seats": 9}})})
    pv = variant(injectors=[{"name": "alpha"}])
    files = {"Kptfile": KPTFILE, "team.yaml": TEAM_FILE, "wrong.yaml": text}
    mutation = apply(files, pv, cluster)
    assert mutation.resources["wrong.yaml"] == text
    assert editor.values(mutation.resources["team.yaml"])[0]["spec"] == {"seats": 9}
    parsed = read_strictly(mutation.resources["Kptfile"])
    conditions = {condition.type: condition for condition in parsed.status.conditions}
    assert conditions["config.injection.Team.team"].status == "True"
    wrong = conditions["config.injection.Team.other"]
    assert (wrong.status, wrong.reason) == ("False", "InvalidInjectionPoint")
    assert words in wrong.message
    assert [gate.condition_type for gate in unmet_gates(parsed)] == gates
    assert not apply(mutation.resources, pv, cluster).changed


def test_the_first_injector_that_names_an_object_wins() -> None:
    """An injector that matches nothing falls through to the next."""
    mutation = inject({"seats": 9}, names=("missing", "alpha"))
    assert mutation.injected[0].source_name == "alpha"


def test_foreign_conditions_and_gates_keep_their_order() -> None:
    """A rendered package keeps `Rendered` where the renderer put it, so a second run changes nothing."""
    text = KPTFILE + (
        "status:\n  conditions:\n  - type: z # last letter\n    status: 'True'\n"
        "  - type: config.injection.Team.team\n    status: 'False'\n    reason: Old\n    message: old\n"
        "  - type: Rendered\n    status: 'True'\n"
    )
    pv = variant(injectors=[{"name": "alpha"}])
    cluster = Cluster({TEAMS: CandidateListing({"alpha": {"seats": 3}})})
    mutation = apply({"Kptfile": text, "team.yaml": TEAM_FILE}, pv, cluster)
    types = [c.type for c in kptfile.read(mutation.resources["Kptfile"]).status.conditions]
    assert types == ["z", "config.injection.Team.team", "Rendered"]
    assert "- type: z # last letter\n" in mutation.resources["Kptfile"]
    assert apply(mutation.resources, pv, cluster) == Mutation(mutation.resources, False, mutation.injected)


def test_a_kptfile_that_differs_only_in_unknown_fields_keeps_its_text() -> None:
    """Porch would not save it: only known content counts."""
    extra = KPTFILE + "  - name: PackageVariant.my-pv.f.0\n    image: i\n"
    pv = variant(pipeline={"mutators": [{"name": "f", "image": "i"}]})
    ordered = apply({"Kptfile": extra}, pv)
    assert ordered.changed  # our entry moved to the front
    odd = ordered.resources["Kptfile"].replace("    image: i\n", "    image: i\n    unknown: x\n")
    assert apply({"Kptfile": odd}, pv) == Mutation({"Kptfile": odd}, False, ())


def test_points_and_wanted_objects_are_known_before_anything_is_cloned() -> None:
    """Objects are asked for once, those of earlier injectors first; filters are on the package's object."""
    config_map = (
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\n  annotations:\n"
        "    kpt.dev/config-injection: optional\n"
    )
    found = injection_points(
        {"b/t.yml": "---\n---\n" + TEAM_FILE, "a.json": "{}", "a.txt": "[", "sub/Kptfile": config_map}
    )
    assert found.problem == ""
    assert [(p.file, p.document, p.kind, p.required) for p in found.points] == [
        ("b/t.yml", 1, "Team", True),
        ("sub/Kptfile", 0, "ConfigMap", False),
    ]
    injectors = (
        Injector(name="x", kind="Team"),
        Injector(name="y"),
        Injector(name="y", group="", version="v1"),
    )
    assert wanted(found.points, injectors) == (
        ("hr.example.com", "v1alpha1", "Team", "x"),
        ("hr.example.com", "v1alpha1", "Team", "y"),
        ("", "v1", "ConfigMap", "y"),
    )


def test_validation_tells_every_problem_at_once_in_order() -> None:
    """A dot in a function's name is reported as for a set."""
    spec = msgspec.convert(
        {
            "upstream": {"repo": "r"},
            "adoptionPolicy": "x",
            "deletionPolicy": "y",
            "packageContext": {"data": {"package-path": "p", "name": "n"}, "removeKeys": ["name"]},
            "injectors": [{"name": "a"}, {"name": ""}],
            "pipeline": {"mutators": [{"name": "a.b"}], "validators": [{"name": "ok"}, {"name": "c.d"}]},
        },
        PackageVariantSpec,
    )
    data = (
        'spec.packageContext.data: Invalid value: {"name":"n","package-path":"p"}: must not contain the key'
    )
    assert validate_variant(spec) == [
        "missing required field spec.upstream.package",
        "missing required field spec.downstream",
        'spec.adoptionPolicy field can only be "adoptNone" or "adoptExisting"',
        'spec.deletionPolicy can only be "orphan" or "delete"',
        f'{data} "name"',
        'spec.packageContext.removeKeys: Invalid value: ["name"]: must not contain the key "name"',
        f'{data} "package-path"',
        "spec.injectors[1].name must not be empty",
        "spec.pipeline.validators[1].name must not contain '.'",
        "spec.pipeline.mutators[0].name must not contain '.'",
    ]


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (
            {"labels": {"site": "Z\u00fcrich 12 / Ost"}},
            'spec.labels: Invalid value: "Z\u00fcrich 12 / Ost": a valid',
        ),
        ({"labels": {"bad key!": "x"}}, 'spec.labels: Invalid value: "bad key!": name part must consist of'),
        ({"labels": {"a": "b" * 64}}, f'spec.labels: Invalid value: "{"b" * 64}": must be no more than 63'),
        ({"annotations": {"a/b/c": "x"}}, 'spec.annotations: Invalid value: "a/b/c": a valid label key must'),
        (
            {"annotations": {"a": "b" * 300_000}},
            "spec.annotations: Too long: may not be more than 262144 bytes",
        ),
        ({"labels": {"a.b/C_1": "", "d": "E.f-2"}, "annotations": {"A": "any / text"}}, ""),
    ],
)
def test_labels_that_no_package_revision_can_have_are_problems_of_variant_and_set(
    maps: dict[str, dict[str, str]], message: str
) -> None:
    """With them the draft was created, and every later write to it refused: it could never be proposed."""
    ends = {"upstream": {"repo": "r", "package": "p", "revision": 1}}
    variant = msgspec.convert(
        {**ends, "downstream": {"repo": "d", "package": "q"}, **maps}, PackageVariantSpec
    )
    target = {"repositories": [{"name": "d"}], "template": maps}
    problems = {
        "spec": validate_variant(variant),
        "spec.targets[0].template": validate_set(
            msgspec.convert({**ends, "targets": [target]}, PackageVariantSetSpec)
        ),
    }
    for field, found in problems.items():
        assert len(found) == bool(message), found
        assert all(text.startswith(message.replace("spec", field, 1)) for text in found)


functions: st.SearchStrategy[Any] = st.builds(
    dict,
    name=st.sampled_from(["", "f", "g"]),
    image=st.sampled_from(["i:v1", "j"]),
    configMap=st.sampled_from([{}, {"a": "1"}]),
)
contents = st.none() | st.dictionaries(
    st.sampled_from(["chargeCode", "seats", "x"]), st.sampled_from(["yes", 1, "example", ["a"], {"b": "c"}])
)


@given(
    st.lists(functions, max_size=3),
    st.lists(functions, max_size=2),
    st.dictionaries(st.sampled_from(["region", "zone"]), st.sampled_from(["a", "1"])),
    st.lists(st.sampled_from(["region", "zone", "x"]), max_size=2),
    st.dictionaries(st.sampled_from(["a", "b"]), contents),
    st.lists(st.sampled_from(["a", "b", "c"]), max_size=2),
)
@settings(max_examples=100, deadline=None)
def test_twice_is_once(
    mutators: list[Any],
    validators: list[Any],
    data: dict[str, str],
    remove: list[str],
    listed: dict[str, Any],
    injectors: list[str],
) -> None:
    """Applying a variant again gives the same bytes and no change, and going back leaves none of it."""
    pv = variant(
        pipeline={"mutators": mutators, "validators": validators},
        packageContext={"data": data, "removeKeys": remove},
        injectors=[{"name": name} for name in injectors],
    )
    cluster = Cluster({TEAMS: CandidateListing(listed)})
    resources = {"Kptfile": KPTFILE, "package-context.yaml": CONTEXT, "team.yaml": TEAM_FILE}
    once = apply(resources, pv, cluster)
    assert apply(once.resources, pv, cluster) == Mutation(once.resources, False, once.injected)
    parsed = read_strictly(once.resources["Kptfile"])
    assert [f.image for f in parsed.pipeline.mutators] == [f["image"] for f in mutators] + ["set-labels:v0.2"]
    bare = apply(once.resources, variant(), cluster).resources["Kptfile"]
    assert "PackageVariant." not in bare
    assert bare.startswith(KPTFILE[: KPTFILE.index("info:")])


@pytest.mark.parametrize(
    ("injectors", "listing", "detail"),
    [
        (
            [{"name": "b"}, {"name": "c", "kind": "Team"}, {"name": "d", "kind": "Other"}],
            CandidateListing({"": None}),
            'there are resources of type hr.example.com/v1alpha1.Team, but none is named "b", "c"',
        ),
        (
            [{"name": "b"}],
            CandidateListing({"a": {}}),
            'there are resources of type hr.example.com/v1alpha1.Team, but none is named "b"',
        ),
        (
            [{"name": "a", "kind": "Other", "group": ""}, {"name": "b", "version": "v2"}],
            CandidateListing(),
            'no injector selects type hr.example.com/v1alpha1.Team: "a" is for group "", kind "Other"; '
            '"b" is for version "v2"',
        ),
        ([{"name": "b"}], CandidateListing(), ""),
    ],
)
def test_an_unmatched_point_explains_what_was_looked_for(
    injectors: list[dict[str, str]], listing: CandidateListing, detail: str
) -> None:
    """The Kptfile's condition has Porch's words; the rest is for the PackageVariant's condition."""
    mutation = apply(
        {"Kptfile": KPTFILE, "team.yaml": TEAM_FILE},
        variant(injectors=injectors),
        Cluster({TEAMS: listing}),
    )
    (outcome,) = mutation.injected
    assert outcome.detail == detail
    assert outcome.explanation == (f"{outcome.message}: {detail}" if detail else outcome.message)
    if detail:
        assert detail not in mutation.resources["Kptfile"]


def test_a_function_keeps_its_selectors_and_exclusions() -> None:
    """All fields of a function reach the Kptfile, and applying it again changes nothing."""
    function = {
        "name": "f",
        "image": "set-labels:v0.2",
        "selectors": [{"kind": "Deployment", "labels": {"app": "x"}}, {"apiVersion": "v1"}],
        "exclude": [{"name": "skip", "namespace": "ns", "annotations": {"a": "b"}}],
    }
    pv = variant(pipeline={"mutators": [function], "validators": [function]})
    mutation = apply({"Kptfile": KPTFILE}, pv)
    (value,) = editor.values(mutation.resources["Kptfile"])
    expected = {**function, "name": "PackageVariant.my-pv.f.0"}
    assert value["pipeline"]["mutators"][0] == expected
    assert value["pipeline"]["validators"] == [expected]
    read_strictly(mutation.resources["Kptfile"])
    assert not apply(mutation.resources, pv).changed


def test_the_causes_of_a_change_are_named() -> None:
    """Each step that changed something, and nothing when nothing changed."""
    files = {"Kptfile": KPTFILE, "package-context.yaml": CONTEXT, "team.yaml": TEAM_FILE}
    pv = variant(
        packageContext={"data": {"region": "us"}},
        pipeline={"mutators": [{"image": "x:v1"}]},
        injectors=[{"name": "alpha"}],
    )
    cluster = Cluster({TEAMS: CandidateListing({"alpha": {"seats": 1}})})
    first = apply(files, pv, cluster)
    assert first.causes == ("package context", "pipeline", "Team alpha into team.yaml")
    assert apply(first.resources, pv, cluster).causes == ()
    gone = apply(first.resources, pv, Cluster({TEAMS: CandidateListing({"": None})}))
    assert gone.causes == ("injection conditions",)
