"""Which function an image stands for."""

from pathlib import Path

import pytest

from pvbus.controlplane.packages.functions.registry import BUILTINS, FunctionRegistry, unread_fields
from pvbus.controlplane.packages.functions.set_labels import set_labels
from pvbus.core.errors import PermanentError, UsageError
from tests.unit.packages.support import config, config_map, items


@pytest.mark.parametrize(
    "image",
    [
        "set-labels",
        "set-labels:v0.2",
        "ghcr.io/kptdev/krm-functions-catalog/set-labels:v0.2",
        "localhost:5000/any/set-labels",
        "gcr.io/kpt-fn/set-labels@sha256:0123",
        "gcr.io/kpt-fn/set-labels:v0.1.5@sha256:0123",
    ],
)
def test_registry_and_tag_of_a_built_in_do_not_matter(image: str) -> None:
    assert FunctionRegistry().resolve(image).run is set_labels


@pytest.mark.parametrize(
    ("image", "noted"),
    [
        ("apply-replacements:v0.1.1", False),
        ("apply-replacements:v0.1.2", True),
        ("set-namespace:v0.4", False),
        ("set-namespace:v1", True),
        ("set-labels:latest", False),
        ("set-labels", False),
    ],
)
def test_a_tag_above_what_is_built_in_is_noted_and_runs(image: str, noted: bool) -> None:
    assert bool(FunctionRegistry().resolve(image).note) is noted


@pytest.mark.parametrize("key", ["docker.io/x/my-fn:v1", "docker.io/x/my-fn", "my-fn"])
def test_an_image_is_configured_with_or_without_its_tag_or_by_name(key: str) -> None:
    registry = FunctionRegistry({key: "builtin:set-labels"})
    assert registry.resolve("docker.io/x/my-fn:v1").run is set_labels


def test_the_configured_map_goes_before_the_built_in_functions() -> None:
    registry = FunctionRegistry({"set-labels": "false"})
    with pytest.raises(PermanentError, match="exit code 1"):
        registry.resolve("any/set-labels:v0.2").run(items(), config_map(a="b"))


def test_an_image_without_function_is_refused_with_the_ways_to_run_it() -> None:
    with pytest.raises(PermanentError, match="no built-in function") as caught:
        FunctionRegistry().resolve("docker.io/nephio/nfdeploy-fn:latest")
    for setting in ("PVBUS_FUNCTIONS", "PVBUS_FUNCTION_ENGINE", "PVBUS_FUNCTION_RUNNER"):
        assert setting in str(caught.value)


@pytest.mark.parametrize(
    ("image", "taken_away", "note"),
    [
        ("x/set-labels:v0.2", 0, "set-labels ran as the program cat, with network"),
        ("x/set-labels:v0.2", 1, ""),
        ("x/my-fn:v1", 1, "x/my-fn:v1 ran in a container of docker"),
        ("x/my-fn:v1", 2, "x/my-fn:v1 ran at the function runner runner:9445"),
    ],
)
def test_the_map_goes_first_then_built_ins_then_the_engine_then_the_runner(
    image: str, taken_away: int, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "docker"
    engine.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    images = {"set-labels": "cat"} if taken_away == 0 else {}
    engine_name = "auto" if taken_away < 2 else ""
    registry = FunctionRegistry(images, isolated=False, engine=engine_name, runner="runner:9445")
    resolved = registry.resolve(image)
    assert resolved.note == note
    assert resolved.builtin == ("" if note else "set-labels")


@pytest.mark.parametrize("target", ["builtin:none", "", "a 'b", []])
def test_a_configured_image_that_could_not_run_is_refused_at_once(target: str | list[str]) -> None:
    with pytest.raises(UsageError, match="my-fn"):
        FunctionRegistry({"my-fn": target})


def test_exec_of_a_kptfile_needs_permission() -> None:
    with pytest.raises(PermanentError, match="not allowed"):
        FunctionRegistry().resolve_exec("cat")
    assert FunctionRegistry(allow_exec=True).resolve_exec("cat").run(items(), None).items == ()


def test_these_functions_are_built_in() -> None:
    assert set(BUILTINS) == {
        "apply-replacements",
        "apply-setters",
        "create-setters",
        "ensure-name-substring",
        "search-replace",
        "set-annotations",
        "set-image",
        "set-labels",
        "set-namespace",
        "starlark",
        "upsert-resource",
    }


def test_the_digest_is_of_everything_that_decides_what_can_run() -> None:
    others = [
        FunctionRegistry({"my-fn": "cat"}),
        FunctionRegistry(allow_exec=True),
        FunctionRegistry(isolated=False),
        FunctionRegistry(runner="runner:80"),
    ]
    assert FunctionRegistry().digest == FunctionRegistry({}).digest
    assert len({each.digest for each in [FunctionRegistry(), *others]}) == 1 + len(others)


@pytest.mark.parametrize(
    ("name", "given", "unread"),
    [
        ("set-labels", "kind: SetLabels, labels: {a: b}, options: {setSelectorLabels: false}", "`options`"),
        ("set-namespace", "kind: SetNamespace, namespace: a, x: 1, y: 2", "`x`, `y`"),
        ("ensure-name-substring", "kind: EnsureNameSubstring, substring: a, mode: append", "`mode`"),
        ("apply-replacements", "kind: ApplyReplacements, replacements: [], strict: true", "`strict`"),
        ("set-image", "kind: SetImage, metadata: {name: a}, image: {}, additionalImageFields: []", ""),
        ("set-labels", "kind: ConfigMap, data: {options: b}", ""),
        ("starlark", "kind: StarlarkRun, source: pass, params: {a: b}", ""),
        ("unknown", "kind: Any, a: b", ""),
    ],
)
def test_a_field_that_a_function_does_not_read_is_a_warning(name: str, given: str, unread: str) -> None:
    """Dropped without a word, `setSelectorLabels: false` would change the selectors all the same."""
    results = unread_fields(name, config(f"{{apiVersion: fn.kpt.dev/v1alpha1, {given}}}"))
    assert [(each.severity, unread in each.message) for each in results] == [("warning", True)] * bool(unread)


def test_without_a_configuration_nothing_is_unread() -> None:
    assert unread_fields("set-labels", None) == ()
