"""Values that change are written, and everything else keeps its bytes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.controlplane.packages.caching import SizedCache
from pvbus.controlplane.packages.functions import files, yamltext
from pvbus.controlplane.packages.functions.registry import BUILTINS, FunctionRegistry
from pvbus.controlplane.packages.functions.yamltext import load, with_value
from pvbus.controlplane.packages.render import render
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import same
from pvbus.core.yaml.writer import dump

# A machine that is busy with other tests is no failure.
PATIENT = settings(max_examples=100, deadline=None)

keys = st.text("ab.-/_Xé 0", min_size=1, max_size=4)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-9, 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn", "Co")), max_size=8)
    | st.sampled_from(["true", "on", "0o17", "1e3", "~", "2001-01-01", "# x", "a: b", "- a", "two\nlines\n"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
maps = st.dictionaries(keys, values, max_size=4)


@PATIENT
@given(maps.filter(bool), maps.filter(bool))
def test_any_value_can_be_written_over_any_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    text = dump(old)
    assert same(load(text), old)
    assert same(load(with_value(text, old, new)), new)


@PATIENT
@given(maps.filter(bool))
def test_the_same_value_writes_nothing(value: dict[str, Any]) -> None:
    text = f"# before\n---\n{dump(value)}# after\n\n"
    assert with_value(text, load(text), value) == text


@PATIENT
@given(maps.filter(bool), maps.filter(bool), st.permutations([True, 1, 1.0, "1"]))
def test_a_remembered_edit_is_the_edit(old: dict[str, Any], new: dict[str, Any], likes: list[Any]) -> None:
    """Also of values that are equal for Python, and of equal values whose keys have another order."""
    text = dump(old)
    orders = [new, dict(reversed(new.items())), *({**new, "a": like} for like in likes)]
    plain = []
    for value in orders:
        yamltext._edits = SizedCache(0, len)
        plain.append(with_value(text, old, value))
    yamltext._edits = SizedCache(yamltext.REMEMBERED_EDITS_BYTES_MAX, len)
    assert [with_value(text, old, value) for value in (*orders, *orders)] == [*plain, *plain]


@PATIENT
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=7), st.lists(st.integers(0, 9), min_size=1, max_size=7)
)
def test_list_elements_that_stay_keep_their_comments(old: list[int], new: list[int]) -> None:
    """At least those at both ends: what comes or goes between them touches no other line."""
    text = "l:\n" + "".join(f"- {number} # c{number}\n" for number in old)
    changed = with_value(text, {"l": old}, {"l": new})
    assert load(changed) == {"l": new}
    for before, after in zip(old, new, strict=False):
        if before != after:
            break
        assert f"- {before} # c{before}\n" in changed


def objects_of(kinds: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects whose well-known fields may hold anything at all."""
    metadata = st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b"])},
        optional={"namespace": values, "labels": values, "annotations": values},
    )
    field = st.sampled_from(
        [
            *("spec", "data", "subjects", "namespace", "labels", "annotations", "replacements", "items"),
            *("image", "substring", "additionalImageFields", "additionalNameFields", "roleRef", "rules"),
        ]
    )
    extra = st.dictionaries(field, values, max_size=3)
    return st.builds(
        lambda api_version, kind, meta, rest: {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": meta,
            **rest,
        },
        st.sampled_from(["v1", "apps/v1", "batch/v1", "fn.kpt.dev/v1alpha1", "rbac.authorization.k8s.io/v1"]),
        kinds,
        metadata,
        extra,
    )


any_objects = objects_of(
    st.sampled_from(["ConfigMap", "Deployment", "CronJob", "RoleBinding", "Role", "NetworkPolicy", "Service"])
)
any_configs = st.none() | objects_of(
    st.sampled_from(
        [
            *("ConfigMap", "SetLabels", "SetAnnotations", "SetNamespace", "ApplyReplacements"),
            *("SetImage", "EnsureNameSubstring", "List"),
        ]
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BUILTINS))
@PATIENT
@given(given_objects=st.lists(any_objects, max_size=3), config=any_configs)
def test_a_built_in_function_answers_anything_with_a_result_or_a_refusal(
    name: str, given_objects: list[dict[str, Any]], config: dict[str, Any] | None
) -> None:
    package = files.read({f"{number}.yaml": dump(value) for number, value in enumerate(given_objects)})
    try:
        output = BUILTINS[name].run(package.items, config)
    except PermanentError:
        return
    for item in output.items:
        assert same(load(item.text), item.value)


pipeline_entries = st.fixed_dictionaries(
    {"image": st.sampled_from(["set-labels:v0.2", "set-namespace", "set-annotations", "none"])},
    optional={
        "configMap": st.dictionaries(
            st.sampled_from(["namespace", "x"]), st.text("ab", max_size=2), max_size=2
        ),
        "selectors": st.just([{"kind": "Deployment"}]),
        "exclude": st.just([{"name": "a"}]),
    },
)
BODIES = st.lists(
    st.sampled_from(["# note\n", "x: 1\n", "y:   [ 1,2 ]  # z\n", "q: 'v'\n", "\n"]), unique=True
)


@PATIENT
@given(
    pipeline=st.lists(pipeline_entries, max_size=3),
    bodies=st.lists(st.tuples(any_objects, BODIES), min_size=1, max_size=4),
    other=st.text(max_size=20),
)
def test_a_render_changes_no_byte_of_a_file_whose_objects_keep_their_values(
    pipeline: list[dict[str, Any]], bodies: list[tuple[dict[str, Any], list[str]]], other: str
) -> None:
    resources = {"Kptfile": dump({"apiVersion": "kpt.dev/v1", "kind": "Kptfile", "metadata": {"name": "p"}})}
    resources["Kptfile"] += dump({"pipeline": {"mutators": pipeline}})
    resources["notes.txt"] = other
    for number, (value, body) in enumerate(bodies):
        resources[f"{number}.yaml"] = "# head\n" + dump(value) + "".join(body) + "# tail"
    result = render(resources, registry=FunctionRegistry())
    assert result.resources.keys() == resources.keys()
    for file, text in resources.items():
        if file == "notes.txt" or (file != "Kptfile" and same(load(text), load(result.resources[file]))):
            assert result.resources[file] == text
        elif file != "Kptfile":
            assert result.resources[file].startswith("# head\n")
            assert result.resources[file].endswith("# tail")
    if not result.rendered:
        assert {**result.resources, "Kptfile": ""} == {**resources, "Kptfile": ""}
