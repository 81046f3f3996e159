"""The three-way merge, row by row: packages, objects, fields, Kptfile, other files, strategies."""

from collections.abc import Mapping
from typing import Any

import pytest

from pvbus.core.kernel.conflicts import ABSENT, Conflict, annotation, reported
from pvbus.core.variants.merge import MergeError, fields, packages
from pvbus.core.variants.merge.packages import PackageMerge
from pvbus.core.variants.merge.resolving import unresolved
from pvbus.core.variants.merge.schemas import KPTFILE, schema_of
from pvbus.core.yaml import editor

ROOT = {"Kptfile": "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: app\n"}
SUB = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: sub\n"


def config(name: str = "c", **data: Any) -> str:
    lines = "".join(f"  {key}: {value}\n" for key, value in data.items())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n{lines}"


def merge(
    old: Mapping[str, str], local: Mapping[str, str], new: Mapping[str, str], strategy: str = "resource-merge"
) -> PackageMerge:
    return packages.merge({**ROOT, **old}, {**ROOT, **local}, {**ROOT, **new}, strategy)


def files(old: Mapping[str, str], local: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Merge packages, and return all files but the root's Kptfile."""
    texts = merge(old, local, new).texts
    return {path: text for path, text in texts.items() if path != "Kptfile"}


def one(old: str | None, local: str | None, new: str | None, path: str = "a.yaml") -> str | None:
    """Merge one file; None is a side without it."""
    sides = [{} if text is None else {path: text} for text in (old, local, new)]
    return files(sides[0], sides[1], sides[2]).get(path)


# ---------------------------------------------------------------- packages


def sub(**data: Any) -> dict[str, str]:
    return {"sub/Kptfile": SUB, "sub/c.yaml": config(**data)}


def test_a_sub_package_added_on_both_sides_is_refused() -> None:
    with pytest.raises(MergeError, match="sub: the sub-package was added both locally and upstream"):
        merge({}, sub(a=1), sub(a=2))


def test_a_copy_with_another_name_and_upstream_is_an_unchanged_sub_package() -> None:
    copied = {
        "sub/Kptfile": SUB.replace("name: sub", "name: mine") + "upstream:\n  type: git\n",
        "sub/c.yaml": config(a=1).replace(
            "  name: c", "  name: c\n  annotations:\n    internal.kpt.dev/x: y"
        ),
    }
    assert files(sub(a=1), copied, {}) == {}


def test_packages_inside_of_a_deleted_one_stay_deleted() -> None:
    inner = {"sub/in/Kptfile": SUB, "sub/in/x.yaml": config()}
    assert files(sub(a=1), {}, {**sub(a=1), **inner}) == {}


# ---------------------------------------------------------------- objects

A1, A2, A3 = (config("a", x=number) for number in (1, 2, 3))
B = config("b", x=1)


@pytest.mark.parametrize(
    ("old", "local", "new", "expected"),
    [
        pytest.param(B, B, f"{B}---\n{A1}", f"{B}---\n{A1}", id="new upstream: added as its text"),
        pytest.param(B, f"{B}---\n{A1}", B + "# c\n", f"{B}---\n{A1}", id="local only: stays"),
        pytest.param(f"{B}---\n{A1}", B, f"{B}---\n{A2}", B, id="deleted locally: stays deleted"),
        pytest.param(f"{A1}---\n{B}", f"{A1}---\n{B}# mine\n", B, f"---\n{B}# mine\n", id="deleted upstream"),
        pytest.param(f"{A1}---\n{B}", f"{A2}---\n{B}", B, f"{A2}---\n{B}", id="deleted upstream, changed"),
        pytest.param(A1, A1 + "# mine\n", A2, A2 + "# mine\n", id="changed upstream: the field is edited"),
        pytest.param(A1, A1 + "  y: 1\n", A2, A2 + "  y: 1\n", id="changed on both sides: merged"),
        pytest.param(None, A1 + "  y: 1\n", A2, A2 + "  y: 1\n", id="added on both sides: merged"),
        pytest.param(A1, None, A2, None, id="the file deleted locally: stays deleted"),
        pytest.param(A1, A1 + "# mine\n", None, None, id="the file deleted upstream: deleted"),
        pytest.param(A1, A2, None, A2, id="the file deleted upstream, changed: stays"),
    ],
)
def test_objects(old: str | None, local: str | None, new: str | None, expected: str | None) -> None:
    assert one(old, local, new) == expected


def test_an_object_is_matched_by_group_and_not_by_version() -> None:
    old, local, new = (A1.replace("v1", f"g/{version}") for version in ("v1", "v1", "v2"))
    assert one(old, local + "  y: 2\n", new) == new + "  y: 2\n"
    other_group = A1.replace("v1", "h/v1")
    assert one(old, local + "# mine\n", other_group) == other_group


def test_an_object_that_was_renamed_locally_is_found_by_its_merge_comment() -> None:
    local = A1.replace("metadata:", "metadata: # kpt-merge: /a").replace("name: a", "name: mine")
    assert one(A1, local, A2) == local.replace("x: 1", "x: 2")


def test_an_object_that_was_moved_to_another_file_is_not_found() -> None:
    assert files({"a.yaml": A1}, {"b.yaml": A1}, {"a.yaml": A2}) == {"b.yaml": A1}


def test_an_object_that_is_there_twice_is_refused() -> None:
    with pytest.raises(MergeError, match=r"a.yaml: ConfigMap a is there twice"):
        one(A1, f"{A1}---\n{A2}", A3)


def test_comments_and_layout_of_the_local_text_stay() -> None:
    local = "# head\n" + A1.replace("\ndata:", "\n\ndata:").replace("x: 1", "x: 1   # why\n  # y\n  y: 2")
    assert one(A1, local, A3 + "  z: 1\n") == local.replace("x: 1 ", "x: 3 ") + "  z: 1\n"


def test_new_comments_of_upstream_come_with_the_values_they_stand_at() -> None:
    """A setter's comment on a new field, in a new element and on a changed value; local ones stay."""
    old = A1 + "  list: [1]\n"
    local = old + "  y: 1 # ours\n"
    new = A1.replace("x: 1", "x: 2 # kpt-set: ${x}") + "  y: 1 # theirs\n  z: 'a' # kpt-set: ${z}\n"
    assert one(old, local, new) == (
        A1.replace("x: 1", "x: 2 # kpt-set: ${x}") + "  y: 1 # ours\n  z: a # kpt-set: ${z}\n"
    )
    pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n"
    c, d = "  - name: c\n    image: c:1\n", "  - name: d\n    image: d:1 # kpt-set: ${d}\n"
    mine = c.replace("c:1", "c:1\n    tty: true")
    assert one(pod + c, pod + mine, pod + d + c) == pod + mine + d


def service(*ports: tuple[int, str]) -> str:
    head = "apiVersion: v1\nkind: Service\nmetadata:\n  name: s\nspec:\n  ports:"
    lines = "".join(f"  - port: {port}\n    name: {name}\n" for port, name in ports)
    return f"{head}\n{lines}" if ports else f"{head} []\n"


WEB, DNS = (80, "a"), (81, "b")


@pytest.mark.parametrize(
    ("old", "local", "new", "pairs"),
    [
        pytest.param([WEB], [(9999, "a")], [(8888, "a")], [(9999, 8888)], id="both keys are changed"),
        pytest.param([WEB], [(9, "x")], [(8, "y")], [(9, 8)], id="and all else"),
        pytest.param(
            [WEB, DNS],
            [(92, "b"), (91, "a")],
            [(82, "a"), (83, "b")],
            [(91, 82), (92, 83)],
            id="two, in any order",
        ),
        pytest.param([WEB], [WEB, (9, "x")], [WEB, (8, "y")], [], id="both add"),
        pytest.param([WEB], [WEB, (9, "x")], [(8, "a")], [], id="upstream's key alone"),
        pytest.param([WEB], [(9, "a")], [WEB, (8, "y")], [], id="the local key alone"),
        pytest.param([WEB], [(9, "a")], [], [], id="upstream deletes it"),
        pytest.param([WEB, DNS], [DNS], [DNS, (8, "a")], [], id="deleted locally"),
        pytest.param([WEB], [(9, "a")], [(9, "a")], [], id="the same key"),
        pytest.param([], [(9, "a")], [(8, "a")], [], id="there was none"),
    ],
)
def test_a_key_of_an_element_that_both_sides_change_gives_both_elements_and_a_warning(
    old: list[Any], local: list[Any], new: list[Any], pairs: list[tuple[int, int]]
) -> None:
    """As with kpt, and as docs/reference.md says: the key is what an element is known by."""
    sides = [{"a.yaml": service(*ports)} for ports in (old, local, new)]
    outcome = merge(sides[0], sides[1], sides[2])
    path = "spec.ports[port={},protocol=TCP]"
    assert [(each.file, each.object, each.field, each.beside, each.taken) for each in outcome.conflicts] == [
        ("a.yaml", "Service s", path.format(here), path.format(there), "both") for here, there in pairs
    ]
    ports = [each["port"] for each in editor.values(outcome.texts["a.yaml"])[0]["spec"]["ports"] or ()]
    assert {port for pair in pairs for port in pair} <= set(ports)
    assert unresolved(outcome.conflicts, outcome.texts) == outcome.conflicts
    left = [port for port in ports if port not in [there for _, there in pairs]]  # a person deletes these
    assert unresolved(outcome.conflicts, {"a.yaml": service(*((port, "k") for port in left))}) == ()


def test_elements_of_a_warning_are_shortened_in_the_report() -> None:
    long = "x" * 2000
    sides = [{"a.yaml": service((port, long))} for port in (1, 2, 3)]
    outcome = merge(sides[0], sides[1], sides[2])
    (listed,) = reported(annotation(outcome.conflicts))
    assert listed.is_warning
    assert len(str(listed.local)) < 1100
    assert unresolved([listed], outcome.texts) == (listed,)


def test_a_changed_comment_of_upstream_does_not_come_into_a_file_that_changed_here() -> None:
    commented = A1.replace("x: 1", "x: 1 # old words")
    assert one(commented, commented + "  y: 1\n", commented.replace("old", "new")) == commented + "  y: 1\n"


def test_a_text_that_is_as_upstreams_gets_upstreams_comments() -> None:
    """Also the one unchanged document of several."""
    new = A2.replace("x: 2", "x: 2 # new")
    assert one(f"{A1}---\n{B}", f"{A1}---\n{B}  y: 1\n", f"{new}---\n{B}") == f"{new}---\n{B}  y: 1\n"


# ---------------------------------------------------------------- fields


def test_field_rules() -> None:
    """One row of the table each: old, local, new, what comes out."""
    rows: list[tuple[str, Any, Any, Any, Any]] = [
        ("null upstream clears", {"a": 1}, {"a": 1}, {"a": None}, {}),
        ("null locally clears", {"a": 1}, {"a": None}, {"a": 1}, {}),
        ("null on all sides stays", {"a": None}, {"a": None}, {"a": None}, {"a": None}),
        ("null on both sides stays", {"a": 1}, {"a": None}, {"a": None}, {"a": None}),
        ("null before, set upstream", {"a": None}, {"a": None}, {"a": 1}, {"a": 1}),
        ("null before, set locally", {"a": None}, {"a": 1}, {"a": None}, {"a": 1}),
        ("null before, removed upstream", {"a": None}, {"a": None}, {}, {}),
        ("null before, removed locally", {"a": None}, {}, {"a": None}, {}),
        ("addition upstream", {}, {}, {"a": 1}, {"a": 1}),
        ("addition on both sides", {}, {"a": 1}, {"a": 2}, {"a": 2}),
        ("removal upstream", {"a": 1}, {"a": 1}, {}, {}),
        ("removal upstream of what is changed", {"a": 1}, {"a": 2}, {}, {}),
        ("local only", {}, {"a": 1}, {}, {"a": 1}),
        ("change upstream", {"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}),
        ("change on both sides", {"a": 1}, {"a": 2}, {"a": 3}, {"a": 3}),
        ("change upstream of what is deleted", {"a": 1}, {}, {"a": 2}, {"a": 2}),
        ("local change", {"a": 1}, {"a": 2}, {"a": 1}, {"a": 2}),
        ("local deletion", {"a": 1}, {}, {"a": 1}, {}),
        ("map: local deletion", {"m": {"a": 1}}, {}, {"m": {"a": 1}}, {}),
        ("map: removal upstream", {"m": {"a": 1}}, {"m": {"a": 1}}, {}, {}),
        ("map: what local added stays", {"m": {"a": 1}}, {"m": {"a": 1, "b": 2}}, {}, {"m": {"b": 2}}),
        ("map: emptied upstream", {"m": {"a": 1}}, {"m": {"a": 1}}, {"m": {}}, {"m": {}}),
        ("map: in both kinds", {"m": 1}, {"m": {"a": 1}}, {"m": 2}, {"m": 2}),
        ("list: upstream's", {"l": [1]}, {"l": [1]}, {"l": [2, 3]}, {"l": [2, 3]}),
        ("list: both", {"l": [1]}, {"l": [1, 4]}, {"l": [2]}, {"l": [2]}),
        ("list: local", {"l": [1]}, {"l": [1, 4]}, {"l": [1]}, {"l": [1, 4]}),
        ("true is not 1", {"a": 1}, {"a": 1}, {"a": True}, {"a": True}),
    ]
    for name, old, local, new, expected in rows:
        outcome = fields.merge(old, local, new)
        assert editor.same(outcome.value, expected), name


@pytest.mark.parametrize(
    ("old", "local", "new", "expected"),
    [
        ([1], [1], [1, 2], [1, 2]),
        ([1], [3, 1], [1, 2], [3, 1, 2]),
        ([1, 2], [1, 2, 3], [2], [2, 3]),
        ([1, 2], [1], [1, 2, 4], [1, 4]),
        ([1], None, [1, 2], [2]),
        ([1], [1, 2], None, None),
        (None, [1], [2], [1, 2]),
        ([], [], [], []),
    ],
)
def test_lists_with_a_merge_key_are_merged_by_element(old: Any, local: Any, new: Any, expected: Any) -> None:
    def pod(side: Any) -> Any:
        return {} if side is None else {"spec": {"containers": [{"name": f"n{number}"} for number in side]}}

    merged = fields.merge(pod(old), pod(local), pod(new), schema_of("", "Pod")).value
    found = None if "spec" not in merged else merged["spec"].get("containers")
    assert found == (None if expected is None else [{"name": f"n{number}"} for number in expected])


@pytest.mark.parametrize(
    ("group", "kind", "field", "elements"),
    [
        ("", "Pod", "spec.containers", [{"name": "x"}, {"name": "y"}]),
        ("", "Pod", "spec.volumes", [{"name": "x"}, {"name": "y"}]),
        ("", "Pod", "spec.hostAliases", [{"ip": "1"}, {"ip": "2"}]),
        ("", "Service", "spec.ports", [{"port": 1}, {"port": 1, "protocol": "UDP"}]),
        ("", "ServiceAccount", "secrets", [{"name": "x"}, {"name": "y"}]),
        ("", "ConfigMap", "metadata.finalizers", ["x", "y"]),
        ("", "ConfigMap", "metadata.ownerReferences", [{"uid": "x"}, {"uid": "y"}]),
        ("apps", "Deployment", "spec.template.spec.imagePullSecrets", [{"name": "x"}, {"name": "y"}]),
        (
            "batch",
            "CronJob",
            "spec.jobTemplate.spec.template.spec.topologySpreadConstraints",
            [{"topologyKey": "x", "whenUnsatisfiable": "a"}, {"topologyKey": "x", "whenUnsatisfiable": "b"}],
        ),
        ("rbac.authorization.k8s.io", "Role", "status.conditions", [{"type": "x"}, {"type": "y"}]),
    ],
)
def test_merge_keys_of_built_in_kinds(group: str, kind: str, field: str, elements: list[Any]) -> None:
    """One element was added locally and one upstream: a list with a merge key has both."""
    first, second = elements

    def value(*found: Any) -> Any:
        nested: Any = list(found)
        for step in reversed(field.split(".")):
            nested = {step: nested}
        return nested

    merged = fields.merge(value(), value(first), value(second), schema_of(group, kind))
    assert merged.value == value(first, second)
    whole = fields.merge(value(), value(first), value(second), schema_of("example.com", kind))
    assert whole.value == value(second)


def test_elements_of_containers_have_keys_of_their_own() -> None:
    def pod(**container: Any) -> Any:
        return {"spec": {"containers": [{"name": "c", **container}]}}

    env = [{"name": "A", "value": "1"}]
    outcome = fields.merge(
        pod(image="i:1", env=env),
        pod(image="i:1", env=[*env, {"name": "B", "value": "2"}], args=["x"]),
        pod(image="i:2", env=[{"name": "A", "value": "3"}]),
        schema_of("", "Pod"),
    )
    expected = [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]
    assert outcome.value == pod(image="i:2", env=expected, args=["x"])
    assert not outcome.conflicts


def test_elements_that_are_not_unique_make_the_list_one_value() -> None:
    twice = {"spec": {"containers": [{"name": "c"}, {"name": "c"}]}}
    new = {"spec": {"containers": [{"name": "d"}]}}
    assert fields.merge(twice, twice, new, schema_of("", "Pod")).value == new


@pytest.mark.parametrize(
    ("old", "local", "new", "expected", "conflicts"),
    [
        pytest.param([{"name": "a"}], [{"name": "a"}, None], [{"name": "b"}], [{"name": "b"}], 1, id="null"),
        pytest.param([None], [None], [None, {"name": "a"}], [None, {"name": "a"}], 0, id="null, one added"),
        pytest.param([], [{"name": None}], [{"name": "b"}], [{"name": "b"}], 1, id="a key that is null"),
        pytest.param([], [{"name": "a"}] * 2, [], [{"name": "a"}] * 2, 0, id="one key twice"),
        pytest.param(None, None, [{"name": "a"}], [{"name": "a"}], 0, id="null, and a list upstream"),
        pytest.param(None, [{"name": "a"}], None, [{"name": "a"}], 0, id="null, and a list locally"),
    ],
)
def test_a_list_with_an_element_without_a_key_is_one_value(
    old: Any, local: Any, new: Any, expected: Any, conflicts: int
) -> None:
    sides = [{"spec": {"containers": side}} for side in (old, local, new)]
    outcome = fields.merge(sides[0], sides[1], sides[2], schema_of("", "Pod"))
    assert outcome.value == {"spec": {"containers": expected}}
    assert len(outcome.conflicts) == conflicts


def test_a_null_that_both_sides_add_to_a_list_of_values_stays() -> None:
    sides = [{"metadata": {"finalizers": side}} for side in ([], [None], [None, "a"])]
    assert fields.merge(sides[0], sides[1], sides[2], schema_of("", "Pod")).value == sides[2]


def test_documents_without_content_are_no_objects() -> None:
    """They stay where they are, beside the objects that are merged."""
    empty = f"---\n---\n{A1}---\nnull\n"
    assert one(empty, empty.replace("x: 1", "x: 1\n  y: 1"), A2) == empty.replace("x: 1", "x: 2\n  y: 1")
    assert one("---\n", "---\n# mine\n", A1) == f"---\n# mine\n---\n{A1}"


# ---------------------------------------------------------------- conflicts


def test_conflicts_name_the_field_and_have_all_three_values() -> None:
    old = {"a": {"b.c": 1}, "l": [1]}
    outcome = fields.merge(old, {"a": {"b.c": 2}, "l": [2]}, {"a": {"b.c": 3}})
    assert outcome.conflicts == (
        Conflict(field='a["b.c"]', old=1, local=2, new=3),
        Conflict(field="l", old=[1], local=[2], new=ABSENT),
    )


def test_the_same_change_on_both_sides_is_no_conflict() -> None:
    assert not fields.merge({"a": 1}, {"a": 2}, {"a": 2}).conflicts


def test_a_conflict_in_a_list_names_the_element() -> None:
    def pod(image: str) -> Any:
        return {"spec": {"containers": [{"name": "c", "image": image}]}}

    (conflict,) = fields.merge(pod("i:1"), pod("i:2"), pod("i:3"), schema_of("", "Pod")).conflicts
    assert conflict.field == "spec.containers[name=c].image"


def test_what_upstream_changed_and_local_deleted_is_reported_as_local() -> None:
    (conflict,) = merge({"a.yaml": A1}, {}, {"a.yaml": A2}).conflicts
    assert (conflict.file, conflict.object, conflict.taken) == ("a.yaml", "ConfigMap a", "local")
    assert (conflict.local, conflict.new["data"]) == (ABSENT, {"x": 2})


# ---------------------------------------------------------------- Kptfile

KPT = """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: app  # the name
upstream:
  type: git
info:
  description: old
pipeline:
  mutators:
  - image: set-labels:v0.1 # labels
    configMap:
      a: b
"""


def kptfile(old: str, local: str, new: str) -> str:
    return packages.merge({"Kptfile": old}, {"Kptfile": local}, {"Kptfile": new}).texts["Kptfile"]


def test_a_kptfile_keeps_name_upstream_and_comments() -> None:
    local = KPT.replace("name: app", "name: mine").replace("type: git", "type: oci")
    new = KPT.replace("description: old", "description: new").replace("type: git", "type: other")
    assert kptfile(KPT, local, new) == local.replace("description: old", "description: new")


def test_a_sub_packages_kptfile_gets_the_new_upstream() -> None:
    old, local, new = ({"sub/Kptfile": text} for text in (KPT, KPT + "# mine\n", KPT.replace("git", "oci")))
    assert "upstream:\n  type: oci\n" in merge(old, local, new).texts["sub/Kptfile"]


def test_functions_of_a_variant_stay_beside_unnamed_ones_of_upstream() -> None:
    local = KPT.replace("mutators:\n", "mutators:\n  - name: PackageVariant.v.f.0\n    image: f:v1\n")
    new = KPT.replace("v0.1", "v0.2") + "  - image: g\n"
    assert kptfile(KPT, local, new) == local.replace("v0.1", "v0.2") + "  - image: g\n"


def test_functions_with_names_are_matched_by_them() -> None:
    def functions(**images: str) -> Any:
        entries = [{"name": name, "image": image} for name, image in images.items()]
        return {"pipeline": {"mutators": entries}}

    merged = fields.merge(functions(a="i:1"), functions(a="i:1", b="j"), functions(c="k", a="i:2"), KPTFILE)
    assert merged.value == functions(a="i:2", b="j", c="k")


def test_two_unnamed_functions_of_one_image_make_the_pipeline_one_value() -> None:
    twice = {"pipeline": {"mutators": [{"image": "f:v1"}, {"image": "f:v2"}]}}
    new = {"pipeline": {"mutators": [{"image": "f:v3"}]}}
    assert fields.merge(twice, twice, new, KPTFILE).value == new


def test_local_gates_and_conditions_stay_when_upstream_has_others() -> None:
    def status(*types: str) -> Any:
        return {
            "info": {"readinessGates": [{"conditionType": name} for name in types]},
            "status": {"conditions": [{"type": name, "status": "True"} for name in types]},
        }

    assert fields.merge(status("a"), status("a", "b"), status("c"), KPTFILE).value == status("b", "c")


def test_a_kptfile_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(MergeError, match="Kptfile: "):
        kptfile(KPT, "{", KPT + "# more\n")


# ---------------------------------------------------------------- other files


@pytest.mark.parametrize(
    ("old", "local", "new", "expected", "conflicts"),
    [
        ("a", "a", "b", "b", 0),
        ("a", "c", "b", "c", 1),
        ("a", "a", None, None, 0),
        ("a", "c", None, "c", 1),
        (None, "c", "b", "c", 1),
        (None, None, "b", "b", 0),
        ("a", None, "a", None, 0),
        ("a", None, "b", None, 1),
        ("a", "b", "b", "b", 0),
    ],
)
@pytest.mark.parametrize("path", ["README.md", "list.yaml", "data.json"])
def test_other_files(
    path: str, old: str | None, local: str | None, new: str | None, expected: str | None, conflicts: int
) -> None:
    """They are taken whole; so are YAML files that are no objects, and JSON."""
    sides = [{} if text is None else {path: f"- {text}\n"} for text in (old, local, new)]
    outcome = merge(sides[0], sides[1], sides[2])
    assert outcome.texts.get(path) == (None if expected is None else f"- {expected}\n")
    assert len(outcome.conflicts) == conflicts


def test_a_file_that_is_no_yaml_is_taken_whole() -> None:
    assert one("{", "{", "[") == "["
    assert one(A1, "{", A2) == "{"


# ---------------------------------------------------------------- strategies

CHANGED = {"a.yaml": A2, "own.txt": "own"}


def test_fast_forward_takes_upstream_only_if_nothing_is_changed() -> None:
    unchanged = {"a.yaml": A1, "package-context.yaml": config("kptfile.kpt.dev")}
    assert merge({"a.yaml": A1}, unchanged, {"b.yaml": B}, "fast-forward").texts == {**ROOT, "b.yaml": B}
    with pytest.raises(MergeError, match=r"modified: a.yaml, own.txt; use a different update strategy"):
        merge({"a.yaml": A1}, CHANGED, {"b.yaml": B}, "fast-forward")


def test_force_delete_replace_takes_upstream() -> None:
    assert merge({"a.yaml": A1}, CHANGED, {"b.yaml": B}, "force-delete-replace").texts == {
        **ROOT,
        "b.yaml": B,
    }


def test_copy_merge_copies_over_local_files_and_deletes_what_upstream_deleted() -> None:
    old, new = {"a.yaml": A1, "gone.txt": ""}, {"a.yaml": A3, "b.yaml": B}
    merged = merge(old, {**CHANGED, "gone.txt": "changed"}, new, "copy-merge")
    assert merged.texts == {**ROOT, "a.yaml": A3, "b.yaml": B, "own.txt": "own"}


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(MergeError, match="'ours' is none of resource-merge, fast-forward"):
        merge({}, {}, {}, "ours")
