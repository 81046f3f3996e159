"""A function changes nothing in its second run, and no byte of a file that it does not change."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pvbus.controlplane.packages.functions import files
from pvbus.controlplane.packages.functions.item import Value
from pvbus.controlplane.packages.functions.registry import BUILTINS
from pvbus.controlplane.packages.functions.yamltext import load
from pvbus.core.errors import PermanentError
from pvbus.core.yaml.editor import same
from tests.unit.packages.support import config_map

# A machine that is busy with other tests is no failure.
PATIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SECRET: Value = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "c"}, "data": {"p": "q"}}
CONFIGURATIONS: dict[str, list[Value]] = {
    "create-setters": [config_map(n="img"), config_map(l="[img, c]", t="1"), config_map(m="- 1\n- 2", n="c")],
    "ensure-name-substring": [config_map(prepend="dev-"), config_map(append="-dev")],
    "search-replace": [
        config_map(**{"by-value": "1", "put-value": "2"}),
        config_map(**{"by-value": "c", "put-comment": "kpt-set: ${n}"}),
        config_map(**{"by-path": "spec.made.here", "put-value": "true"}),
        config_map(**{"by-path": "**.list", "put-comment": "c"}),
        config_map(**{"by-path": "spec.**", "by-value-regex": "^(i)mg", "put-value": "x${1}"}),
    ],
    "set-image": [config_map(name="img", newTag="2"), config_map(name="img", newName="x.io/img")],
    "upsert-resource": [
        SECRET,
        {"kind": "List", "items": [SECRET, {**SECRET, "kind": "Thing"}]},
        {
            **SECRET,
            "metadata": {"name": "d", "annotations": {"config.kubernetes.io/target-path": "x/y.yaml"}},
        },
    ],
}

BODIES = st.lists(
    st.sampled_from(
        [
            "  containers:\n  - image: img:1 # the image\n    env: [{name: c, value: '1'}]\n",
            '  containers: [{image: img}, {image: "img@sha256:00"}]\n',
            "  volumes:\n  - configMap: {name: c} # from\n  - secret:\n      secretName: c\n",
            "  list: [img, c] # both\n",
            "  list:\n  - c # one\n\n  # between\n  - img\n",
            "  list: []\n",
            "  list: [[1, 2], {a: 1}]\n",
            "  one:   1    # spaced\n",
            "  text: |\n    img\n    1\n",
            "  folded: >-\n    img\n    c\n",
            "  map: {a: img, b: {c: 1}}\n",
            "  null:\n",
            "  same: &mark c\n  other: *mark\n",
            "  quoted: 'img:1'\n",
            "  made: {x: 1}\n",
        ]
    ),
    unique_by=lambda body: body.split(":")[0],
    max_size=5,
)
OBJECTS = st.tuples(
    st.sampled_from(
        ["v1\nkind: Pod", "v1\nkind: Secret", "v1\nkind: ConfigMap", "apps/v1\nkind: Deployment"]
    ),
    st.sampled_from(["c", "d", "'my-dev-c' # named"]),
    BODIES,
)


def package_of(objects: list[tuple[str, str, list[str]]]) -> dict[str, str]:
    return {
        f"{number}.yaml": (
            f"# head\napiVersion: {head}\nmetadata:\n  name: {name}\n"
            + (f"spec:\n{''.join(bodies)}" if bodies else "")
            + "# tail"
        )
        for number, (head, name, bodies) in enumerate(objects)
    }


def run(name: str, configuration: Value, resources: dict[str, str]) -> tuple[dict[str, str], set[Any]]:
    """Return the files after a function, and the files of its results."""
    package = files.read(resources)
    output = BUILTINS[name].run(package.items, configuration)
    placed = [item if item.id is not None else files.placed(item, "") for item in output.items]
    return files.write(resources, package, placed), {result.file.get("path") for result in output.results}


@pytest.mark.parametrize("name", sorted(CONFIGURATIONS))
@PATIENT
@given(data=st.data(), objects=st.lists(OBJECTS, min_size=1, max_size=3))
def test_the_second_run_changes_nothing(
    name: str, data: st.DataObject, objects: list[tuple[str, str, list[str]]]
) -> None:
    configuration = data.draw(st.sampled_from(CONFIGURATIONS[name]))
    resources = package_of(objects)
    try:
        once, touched = run(name, configuration, resources)
    except PermanentError:
        return  # no setter matches, or a scalar is in the way of a path
    assert run(name, configuration, once)[0] == once
    for file, before in resources.items():
        after = once[file]
        if same(load(after), load(before)) and file not in touched:
            assert after == before
        assert after.startswith("# head\napiVersion: ")
        assert after.endswith("# tail")
