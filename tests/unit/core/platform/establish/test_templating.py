"""The templates of Carvel's packages: which program runs on which input, and what is refused.

The commands are those of kapp-controller; programs themselves run in `tests/integration/test_templates.py`.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Execute, Executed, Get
from pvbus.core.platform.establish.applying import RefusedError
from pvbus.core.platform.establish.templating import Rendered, Setting, render
from pvbus.ports.cluster import Object
from tests.kit.deciding import drive
from tests.unit.core.platform.establish.test_carvel import (
    KEY,
    USER,
    add_install,
    add_package,
    config_map,
    data_of,
    order,
)
from tests.unit.core.platform.establish.world import INSTALL, EstablishWorld

TEMPLATE = b"#@ load('@ytt:data', 'data')\nkind: A\n"
PLAIN = b"kind: B\n"
FILES = {
    "config/app.yml": TEMPLATE,
    "config/lib.star": b"x",
    "plain/b.yml": PLAIN,
    "odd=/etc/hosts": b"x",
    ".imgpkg/images.yml": b"apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages: []\n",
    "chart/Chart.yaml": b"name: c\n",
    "chart/values.yaml": b"a: 1\n",
}
SETTING = Setting("app", "team", USER)


def secret(name: str, **data: str) -> Object:
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return {"kind": "Secret", "metadata": {"name": name}, "data": encoded}


SECRETS = {
    "one": secret("one", **{"values.yml": "a: 2", "more.yml": "b: 3"}),
    "two": secret("two", **{"values.yml": "a: 4"}),
}
MAPS = {"map": {"kind": "ConfigMap", "metadata": {"name": "map"}, "data": {"x.yml": "c: 5"}}}


def asks_of_app(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [{"ytt": {"valuesFrom": [{"downwardAPI": {"items": [item]}}]}}]


def ran(
    steps: Sequence[Mapping[str, Any]],
    setting: Setting = SETTING,
    *,
    out: bytes = b"kind: Out\n",
    code: int = 0,
) -> tuple[Rendered, list[Execute]]:
    """Render FILES by programs that all answer the same; return what is left, and what was run."""
    commands: list[Execute] = []

    def answer(effect: Any) -> Any:
        match effect:
            case Execute():
                commands.append(effect)
                return Executed(code, out, b"config/app.yml:3: no such value\n")
            case Get(kind, namespace, name, user):
                assert (namespace, user) == ("team", USER)
                return (SECRETS if kind.kind == "Secret" else MAPS).get(name)
        raise AssertionError(effect)

    return drive(render(FILES, steps, setting), answer), commands


@pytest.mark.parametrize(
    ("steps", "setting", "expected"),
    [
        ([{"ytt": {}}], SETTING, ["ytt -f package"]),
        ([{"ytt": {"paths": ["config/"]}}], SETTING, ["ytt -f package/config"]),
        (
            [{"ytt": {"paths": ["config"], "ignoreUnknownComments": True, "fileMarks": ["a:type=data"]}}],
            SETTING,
            ["ytt --ignore-unknown-comments -f package/config --file-mark a:type=data"],
        ),
        (
            [{"ytt": {"paths": ["config"], "inline": {"paths": {"overlay.yml": "#@ x"}}}}],
            SETTING,
            ["ytt -f package/config -f inline-0"],
        ),
        (
            [{"ytt": {"paths": ["config"], "valuesFrom": [{"configMapRef": {"name": "map"}}]}}],
            SETTING._replace(values=("one",)),
            [
                "ytt -f package/config --data-values-file values-0/x.yml"
                " --data-values-file values-1/more.yml --data-values-file values-1/values.yml"
            ],
        ),
        (
            [{"ytt": {"paths": ["config"]}}],
            SETTING._replace(values=("one",), overlays=("two",), are_values_overlays=True),
            ["ytt -f package/config -f inline-0 -f inline-1"],
        ),
        (
            [{"ytt": {"paths": ["config"]}}, {"kbld": {"paths": ["-", ".imgpkg/images.yml"]}}],
            SETTING,
            ["ytt -f package/config", "kbld -f - -f package/.imgpkg/images.yml --build=false"],
        ),
        (
            [{"helmTemplate": {"path": "chart"}}],
            SETTING,
            ["helm template app package/chart --namespace team --include-crds"],
        ),
        (
            [
                {
                    "helmTemplate": {
                        "path": "chart",
                        "name": "mine",
                        "namespace": "other",
                        "kubernetesVersion": {"version": "1.33.0"},
                        "valuesFrom": [{"path": "chart/values.yaml"}, {"secretRef": {"name": "one"}}],
                    }
                },
                {"ytt": {"paths": ["-", "config"]}},
            ],
            SETTING._replace(values=("two",)),
            [
                "helm template mine package/chart --namespace other --include-crds --kube-version 1.33.0"
                " --values package/chart/values.yaml --values values-1/more.yml --values values-1/values.yml"
                " --values values-2/values.yml",
                "ytt -f - -f package/config",
            ],
        ),
    ],
)
def test_each_step_runs_the_command_of_kapp_controller(
    steps: list[Mapping[str, Any]], setting: Setting, expected: list[str]
) -> None:
    """The values of the install go to the first step that takes values, after those of the package."""
    out = b"kind: Out\nimage: nginx\n"
    rendered, commands = ran(steps, setting, out=out)
    assert [" ".join((each.program, *each.arguments)) for each in commands] == expected
    assert ([*rendered.files.values()], rendered.gaps) == ([out], ())


def test_what_a_package_asks_of_its_app_are_values() -> None:
    """A file for each, in order, with names taken apart at dots; as kapp-controller writes them."""
    items = [
        {"name": "app.name", "fieldPath": "metadata.name"},
        {"name": r"team\.org", "fieldPath": "{.metadata.namespace}"},
        {"name": "version", "kubernetesVersion": {"version": "1.33.0"}},
        {"name": "apis", "kubernetesAPIs": {"groupVersions": ["v1", "apps/v1"]}},
    ]
    sources = [{"downwardAPI": {"items": items}}]
    for step in (
        {"ytt": {"valuesFrom": sources}},
        {"helmTemplate": {"path": "chart", "valuesFrom": sources}},
    ):
        _, (command,) = ran([step], SETTING._replace(values=("two",)))
        paths = [word for word in command.arguments if word.startswith("values-")]
        assert paths == [*(f"values-0/{number:03}.yml" for number in range(4)), "values-1/values.yml"]
        assert [yaml.safe_load(command.files[path]) for path in paths[:4]] == [
            {"app": {"name": "app"}},
            {"team.org": "team"},
            {"version": "1.33.0"},
            {"apis": ["v1", "apps/v1"]},
        ]


def test_a_step_reads_the_files_of_the_package_and_what_the_one_before_left() -> None:
    """Hidden files are not ytt's; a lock of images is kbld's as its path is named."""
    steps = [{"ytt": {"paths": ["config"]}}, {"kbld": {"paths": ["-", ".imgpkg/images.yml"]}}]
    _, (first, second) = ran(steps, out=b"image: nginx\n")
    assert (first.given, "package/.imgpkg/images.yml" in first.files) == (b"", False)
    assert first.files["package/config/lib.star"] == b"x"
    assert (second.given, "package/.imgpkg/images.yml" in second.files) == (b"image: nginx\n", True)


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([], [TEMPLATE, PLAIN, b"name: c\n", b"a: 1\n"]),
        ([{"ytt": {"paths": ["plain"]}}], [PLAIN]),
        ([{"ytt": {"paths": ["plain"]}}, {"kbld": {}}], [PLAIN]),
        ([{"ytt": {"paths": ["plain"]}}, {"ytt": {"paths": ["-", "chart/values.yaml"]}}], [PLAIN, b"a: 1\n"]),
        ([{"ytt": {"paths": ["plain"], "inline": {"paths": {"c.yml": "kind: C"}}}}], [PLAIN, b"kind: C"]),
    ],
)
def test_a_step_without_work_needs_no_program(steps: list[Mapping[str, Any]], left: list[bytes]) -> None:
    """ytt leaves files without directives as they are, and kbld those without an image."""
    rendered, commands = ran(steps, SETTING._replace(values=("one",)))
    assert (sorted(rendered.files.values()), commands) == (sorted(left), [])
    assert rendered.gaps == ("spec.values has no effect: nothing in the package is a template",)


@pytest.mark.parametrize(
    ("steps", "reason", "words"),
    [
        ([{"ytt": {}, "kbld": {}}], "InvalidPackage", "template[0] must name exactly one tool"),
        ([{"sops": {}}], "NotSupported", "template.sops is not done here"),
        ([{"ytt": {"paths": ["-"]}}], "InvalidPackage", "names -, the output of the step before"),
        ([{"kbld": {"paths": ["confg"]}}], "InvalidPackage", "names confg, which the package lacks"),
        ([{"helmTemplate": {}}], "InvalidPackage", "has no Chart.yaml"),
        ([{"helmTemplate": {"path": "config"}}], "InvalidPackage", "has no Chart.yaml in config"),
        ([{"helmTemplate": {"path": "chart", "kubernetesVersion": {}}}], "NotSupported", "kubernetesVersion"),
        (
            [{"ytt": {"valuesFrom": [{"secretRef": {"name": "absent"}}]}}],
            "NotFound",
            "there is no Secret team/absent",
        ),
        ([{"ytt": {"valuesFrom": [{"secretRef": {}}]}}], "InvalidPackage", "secretRef names nothing"),
        (
            asks_of_app({"name": "a", "fieldPath": "metadata.uid"}),
            "NotSupported",
            "fieldPath metadata.uid is",
        ),
        (
            asks_of_app({"name": "a", "kubernetesVersion": {}}),
            "NotSupported",
            "kubernetesVersion without a value",
        ),
        (asks_of_app({"name": "a", "other": "b"}), "NotSupported", "downwardAPI.other"),
        (asks_of_app({"name": "a"}), "InvalidPackage", "exactly one fact"),
        (
            asks_of_app({"name": "a..b", "fieldPath": "metadata.name"}),
            "InvalidPackage",
            "is no name of a value",
        ),
        (
            [{"ytt": {"valuesFrom": [{"path": "../../etc/passwd"}]}}],
            "InvalidPackage",
            "valuesFrom names ../../etc/passwd, which the package lacks",
        ),
        ([{"ytt": {"paths": ["odd=/etc"]}}], "InvalidPackage", "ytt reads a path with = elsewhere"),
        (
            [{"helmTemplate": {"path": "chart", "name": "--post-renderer=sh"}}],
            "InvalidPackage",
            "is no name of a release",
        ),
    ],
)
def test_what_cannot_be_rendered_is_refused_in_words(
    steps: list[Mapping[str, Any]], reason: str, words: str
) -> None:
    with pytest.raises(RefusedError, match=words.replace("[", r"\[")) as refusal:
        ran(steps)
    assert refusal.value.reason == reason


def test_a_program_that_fails_is_reported_with_its_last_words() -> None:
    with pytest.raises(RefusedError, match=r"ytt ended with 1: config/app.yml:3: no such value") as refusal:
        ran([{"ytt": {}}], code=1)
    assert refusal.value.reason == "TemplateFailed"


@pytest.mark.parametrize(
    ("template", "program"),
    [([{"ytt": {}}], "ytt"), ([{"ytt": {}}, {"kbld": {}}], "kbld"), ([{"helmTemplate": {}}], "helm")],
)
def test_without_its_program_a_package_is_refused_and_what_is_installed_stays(
    template: list[Mapping[str, Any]], program: str
) -> None:
    """The condition and an Event name the program and how to get it; with the program it goes on."""
    world = EstablishWorld()
    add_install(world)
    add_package(world, "1.0.0", [config_map("settings", "1")])
    order(world, "1.0.0")
    world.settle()
    text = yaml.safe_dump(config_map("settings", "image: #@ x" if program != "helm" else "2"))
    paths = {"Chart.yaml": "name: c"} if program == "helm" else {"config.yml": text}
    add_package(world, "1.1.0", [], fetch=[{"inline": {"paths": paths}}], template=template)
    if program == "kbld":
        with_image = yaml.safe_dump({**config_map("settings", "2"), "image": "nginx"}).encode()
        world.programs["ytt"] = lambda _: Executed(0, with_image, b"")
    order(world, "1.1.0")
    world.mirror()
    (put,) = world.reconcile(KEY).puts
    world.settle()
    assert (world.done[KEY].reason, data_of(world, "settings")) == ("ProgramMissing", "1")
    obj = world.cluster.peek(INSTALL, "team", "app")
    assert obj is not None
    (condition,) = obj["status"]["conditions"]
    assert condition["type"] == "ReconcileFailed"
    assert put.notice is not None
    for words in (condition["message"], put.notice.note):
        assert f"needs the program {program}, which PATH does not have: install it where" in words
        assert "https://" in words
    world.programs[program] = lambda _: Executed(0, yaml.safe_dump(config_map("settings", "2")).encode(), b"")
    world.settle()
    assert (world.done[KEY].is_healthy, data_of(world, "settings")) == (True, "2")


def test_values_that_the_account_may_not_read_are_refused_with_its_name() -> None:
    """Whoever may write installs could otherwise read every Secret of the namespace."""

    def answer(effect: Any) -> Any:
        assert isinstance(effect, Get)
        assert effect.as_user == USER
        raise PermanentError("secrets one is forbidden", reason="Forbidden")

    steps = [{"ytt": {"paths": ["config"]}}]
    with pytest.raises(RefusedError, match="Secret team/one cannot be read by the account") as refusal:
        drive(render(FILES, steps, SETTING._replace(values=("one",))), answer)
    assert refusal.value.reason == "Forbidden"
