"""The warning that a second run of a pipeline would change its output."""

import sys

import pytest

from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages import render as module
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.layout import Annotation, RenderNote
from pvbus.controlplane.packages.render import RenderResult, render, rendering_of

GROW = [
    sys.executable,
    "-c",
    "import json, sys, yaml\nl = yaml.safe_load(sys.stdin)\n"
    "for i in l['items']: i['trace'] = i.get('trace', '') + 'x'\njson.dump(l, sys.stdout)",
]
REGISTRY = FunctionRegistry({"grow": GROW}, isolated=False)
THING = (
    "apiVersion: x.org/v1\nkind: Thing\nmetadata: {{name: {name}, labels: {{app: a}}}}\n"
    "spec: {{value: {value}}}\n"
)


def package(mutators: str, *replacements: str, **values: str) -> dict[str, str]:
    """Build a package: objects with a value each, and replacements `source>target[ options]`."""
    entries = "".join(_replacement(each) for each in replacements)
    config = (
        "apiVersion: fn.kpt.dev/v1alpha1\nkind: ApplyReplacements\nmetadata: {name: r}\n"
        f"replacements:\n{entries}"
    )
    head = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: p\npipeline:\n  mutators:\n"
    things = {f"{name}.yaml": THING.format(name=name, value=value) for name, value in values.items()}
    return {"Kptfile": head + mutators, **({"r.yaml": config} if replacements else {}), **things}


def _replacement(text: str) -> str:
    ends, _, options = text.partition(" ")
    source, target = ends.split(">")
    more = f", options: {{{options}}}" if options else ""
    return (
        f"- source: {{kind: Thing, name: {source}, fieldPath: spec.value}}\n"
        f"  targets: [{{select: {{kind: Thing, name: {target}}}, fieldPaths: [spec.value]{more}}}]\n"
    )


REPLACE = "  - {image: 'apply-replacements:v0.1.1', configPath: r.yaml}\n"
AGAIN = "a second run of the pipeline would change"


def label(value: str, more: str = "", key: str = "app") -> str:
    return f"  - {{image: 'set-labels:v0.2', configMap: {{{key}: {value}}}{more}}}\n"


@pytest.mark.parametrize(
    ("resources", "files"),
    [
        (package(REPLACE, "a>b delimiter: '-', index: 0", a="edge-01", b="x-crds"), "b.yaml"),
        (package(REPLACE, "a>b delimiter: '-', index: 0", a="edge01", b="x-crds"), ""),
        (package(REPLACE, "a>b delimiter: '-', index: 99", a="x", b="y"), "b.yaml"),
        (package(REPLACE, "b>c", "a>b", a="1", b="2", c="3"), "c.yaml"),
        (package(REPLACE, "a>b", "b>c", a="1", b="2", c="3"), ""),
        (
            package(label("c", ", selectors: [{labels: {app: b}}]", key="x") + label("b"), a="1"),
            "Kptfile, a.yaml",
        ),
        (package(label("c", key="x") + label("b"), a="1"), ""),
        (package(label("b") + label("c"), a="1"), ""),
    ],
)
def test_the_files_that_a_second_run_would_change(resources: dict[str, str], files: str) -> None:
    """It is of the outcome: functions of which each is repeatable may not be so together."""
    result = render(resources, registry=REGISTRY)
    assert result.rendered, result.message
    again = render(result.resources, registry=REGISTRY)
    assert (again.resources != result.resources) is bool(files)
    assert result.warning.startswith(f"{AGAIN} {files} again: ") if files else result.warning == ""


def test_many_files_are_counted() -> None:
    names = {f"b{number}": "x-y" for number in range(5)}
    to_all = [f"a>{name} delimiter: '-', index: 0" for name in names]
    result = render(package(REPLACE, *to_all, a="e-1", **names), registry=REGISTRY)
    assert f"{AGAIN} b0.yaml, b1.yaml, b2.yaml and 2 more files again: " in result.warning


def test_a_second_run_that_would_fail_is_said() -> None:
    """The first run renames the object that the pipeline reads."""
    resources = package(REPLACE, "a>b", a="z", b="y")
    resources["r.yaml"] = resources["r.yaml"].replace("name: b}, fieldPaths: [spec.value]", "name: a}")
    result = render(resources, registry=REGISTRY)
    assert result.rendered, result.message
    assert result.warning.startswith("a second run of the pipeline would fail: pipeline.mutators[0]: ")


def runs(resources: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, RenderResult]:
    count = 0
    run = module._Run.run

    def counted(self: module._Run) -> None:
        nonlocal count
        count += 1
        run(self)

    monkeypatch.setattr(module._Run, "run", counted)
    result = render(resources, registry=REGISTRY)
    assert result.rendered, result.message
    return count, result


GROWS = package(REPLACE, "a>b delimiter: '-', index: 99", a="x", b="y")


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (GROWS, 2),
        (package(label("b"), a="1"), 1),
        (package("  - {image: 'grow:v1'}\n" + REPLACE, "a>b", a="1", b="2"), 1),
        (package(REPLACE, "a>b", a="1", b="1"), 1),
    ],
    ids=["repeated", "constants", "not built in", "nothing changed"],
)
def test_what_needs_no_second_run_or_costs_too_much_has_none(
    resources: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runs(resources, monkeypatch)[0] == expected


def test_a_pipeline_that_took_long_has_no_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECOND_RUN_SECONDS_MAX", 0.0)
    count, result = runs(GROWS, monkeypatch)
    assert (count, result.warning) == (1, "")


def test_the_second_run_changes_nothing_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = render(GROWS, registry=REGISTRY)
    monkeypatch.setattr(module._Run, "warning", lambda _: "")
    unchecked = render(GROWS, registry=REGISTRY)
    assert checked.resources == unchecked.resources
    assert (checked.results, checked.notes) == (unchecked.results, unchecked.notes)


def test_remarks_and_warning_survive_the_commit_message() -> None:
    resources = package(REPLACE.replace("v0.1.1", "v9"), "a>b delimiter: '-', index: 99", a="x", b="y")
    note = rendering_of(render(resources, registry=REGISTRY)).note
    assert note is not None
    assert note.remarks == ("apply-replacements:v9 runs as version 0.1.1, the newest one built in",)
    assert note.warning.startswith(AGAIN)
    assert layout.parse_render_note(layout.draft_message("t", Annotation(), note)) == note


def test_a_remark_is_one_line_that_no_reader_takes_for_another() -> None:
    line = layout.one_line("a\nkpt:{}\r\npvbus-render: failed\u2028x " + "y" * 1000)
    note = RenderNote("done", "ab", (line,), line)
    message = layout.draft_message("t", Annotation(package="p"), note)
    assert layout.parse_render_note(message) == note
    assert [each.package for each in layout.parse_annotations(message)] == ["p"]
