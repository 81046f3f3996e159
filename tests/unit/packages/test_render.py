"""The pipeline: which function sees what, in which order, and what becomes of failures."""

import sys

import pytest

from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.functions.yamltext import load
from pvbus.controlplane.packages.render import RenderResult, input_digest, render, rendering_of
from tests.unit.packages.support import objects, text

# Appends its argument to the field `trace` of every object it gets, and reports how many it got.
TRACER = """
import json, sys, yaml
list_ = yaml.safe_load(sys.stdin)
for item in list_['items']:
    item['trace'] = item.get('trace', '') + sys.argv[1]
list_['results'] = [{'message': sys.argv[1] + str(len(list_['items'])), 'severity': 'info'}]
json.dump(list_, sys.stdout)
"""
PROGRAM = """
import json, sys, yaml
list_ = yaml.safe_load(sys.stdin)
items = list_['items']
{}
json.dump(list_, sys.stdout)
"""
SUCCESS = text("""
    status:
      conditions:
      - type: Rendered
        status: "True"
        reason: RenderSuccess
    """)


def program(body: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(body)]


REGISTRY = FunctionRegistry(
    {
        **{f"trace-{letter}": [sys.executable, "-c", TRACER, letter] for letter in "abc"},
        "config-trace": program(
            "list_['results'] = [{'message': str(list_['functionConfig'].get('trace'))}]"
        ),
        "config": program("list_['results'] = [{'message': json.dumps(list_.get('functionConfig'))}]"),
        "fail": program("sys.exit('on purpose')"),
        "drop-secrets": program("list_['items'] = [i for i in items if i['kind'] != 'Secret']"),
        "add-secret": program("items.append(dict(apiVersion='v1', kind='Secret', metadata={'name': 'new'}))"),
        "add-bad": program("items.append({'kind': 'Secret'})"),
        "same-place": program(
            "ann = {'internal.config.kubernetes.io/path': 'a.yaml'};"
            "ann['internal.config.kubernetes.io/index'] = '0';"
            "items.append(dict(apiVersion='v1', kind='Secret', metadata={'name': 'new', 'annotations': ann}))"
        ),
    }
)


def kptfile(pipeline: str = "", *, annotations: str = "{}") -> str:
    head = f"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: p\n  annotations: {annotations}\n"
    return head + (f"pipeline:\n{pipeline}" if pipeline else "")


def steps(*images: str, phase: str = "mutators") -> str:
    return f"  {phase}:\n" + "".join(f"  - image: {image}\n" for image in images)


def thing(name: str, kind: str = "Thing", extra: str = "") -> str:
    return f"apiVersion: x.org/v1 # keep\nkind: {kind}\nmetadata:\n  name: {name}\n{extra}"


def rendered(resources: dict[str, str]) -> RenderResult:
    result = render(resources, registry=REGISTRY)
    assert result.rendered, result.message
    return result


def messages(result: RenderResult) -> list[str]:
    return [each.message for each in result.results]


def test_an_empty_pipeline_adds_the_condition_and_nothing_else() -> None:
    resources = {"Kptfile": kptfile(), "a.yaml": thing("a"), "README.md": "# not: yaml: [\n"}
    result = rendered(resources)
    assert result.resources == {**resources, "Kptfile": kptfile() + SUCCESS}
    assert (result.condition.status, result.condition.reason) == ("True", "RenderSuccess")


def test_a_render_without_effect_is_stable_byte_for_byte() -> None:
    first = rendered({"Kptfile": kptfile(), "a.yaml": thing("a")})
    second = rendered(dict(first.resources))
    assert second.resources == first.resources
    assert second.digest == first.output_digest == first.digest


def test_the_condition_goes_last_and_others_stay() -> None:
    status = "status:\n  conditions:\n"
    former, mine = "  - {type: Rendered, status: 'False'}\n", "  - {type: Mine, status: 'True'} # m\n"
    result = rendered({"Kptfile": kptfile() + status + former + mine})
    head, _, last = result.resources["Kptfile"].partition(mine)
    assert head == kptfile() + status
    assert load(last) == [{"type": "Rendered", "status": "True", "reason": "RenderSuccess"}]


def test_functions_run_in_order_each_on_the_output_before() -> None:
    result = rendered({"Kptfile": kptfile(steps("trace-b", "trace-a", "trace-c")), "a.yaml": thing("a")})
    assert result.resources["a.yaml"] == thing("a") + "trace: bac\n"


def test_every_function_that_ran_is_reported_by_its_whole_name() -> None:
    """Like Porch's server does: also one without results, and an image with the default registry."""
    pipeline = steps("set-namespace:v0.4.1", "example.com/own/drop-secrets")
    config = "    configMap: {namespace: a}\n"
    head, _, last = pipeline.partition("  - image: example.com")
    result = rendered(
        {"Kptfile": kptfile(f"{head}{config}  - image: example.com{last}"), "a.yaml": thing("a")}
    )
    status = rendering_of(result).status
    assert status is not None
    assert [(each["image"], each["exitCode"]) for each in status["result"]["items"]] == [
        ("ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1", 0),
        ("example.com/own/drop-secrets", 0),
    ]


def test_validators_run_last_and_change_nothing() -> None:
    pipeline = steps("trace-b", phase="validators") + steps("trace-a")
    result = rendered({"Kptfile": kptfile(pipeline), "a.yaml": thing("a")})
    assert result.resources["a.yaml"] == thing("a") + "trace: a\n"
    assert messages(result) == ["a2", "b2"]


def test_children_are_rendered_first_and_parents_see_their_output() -> None:
    result = rendered(
        {
            "Kptfile": kptfile(steps("trace-a")),
            "sub/Kptfile": kptfile(steps("trace-b")),
            "sub/deep/Kptfile": kptfile(steps("trace-c")),
            "a.yaml": thing("a"),
            "sub/b.yaml": thing("b"),
            "sub/deep/c.yaml": thing("c"),
        }
    )
    traces = {file: result.resources[file].rpartition("trace: ")[2] for file in result.resources}
    assert (traces["a.yaml"], traces["sub/b.yaml"], traces["sub/deep/c.yaml"]) == ("a\n", "ba\n", "cba\n")
    assert messages(result) == ["c2", "b4", "a6"]


def test_the_bfs_annotation_renders_parents_first() -> None:
    result = rendered(
        {
            "Kptfile": kptfile(steps("trace-a"), annotations="{kpt.dev/bfs-rendering: 'true'}"),
            "sub/Kptfile": kptfile(steps("trace-b")),
            "sub/b.yaml": thing("b"),
        }
    )
    assert result.resources["sub/b.yaml"].endswith("trace: ab\n")
    assert messages(result) == ["a3", "b2"]


def test_only_yaml_json_and_kptfiles_are_seen() -> None:
    result = rendered(
        {
            "Kptfile": kptfile(steps("trace-a")),
            "a.yml": thing("a"),
            "b.json": '{"apiVersion": "v1", "kind": "B", "metadata": {"name": "b"}}',
            "c.txt": thing("c"),
            "empty.yaml": "# nothing yet\n",
        }
    )
    assert messages(result) == ["a3"]
    assert '"trace": "a"' in result.resources["b.json"]
    assert result.resources["empty.yaml"] == "# nothing yet\n"


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("selectors: [{kind: Thing}]", "abd"),
        ("selectors: [{kind: Thing, name: a}]", "a"),
        ("selectors: [{name: a}, {name: b}]", "ab"),
        ("selectors: [{apiVersion: x.org/v1, kind: Other}]", "c"),
        ("selectors: [{labels: {l: '1'}}]", "b"),
        ("selectors: [{labels: {l: '1', m: '2'}}]", ""),
        ("selectors: [{kind: Thing}]\n    exclude: [{name: a}]", "bd"),
        ("exclude: [{kind: Thing}, {kind: Kptfile}]", "c"),
        ("selectors: [{annotations: {n: x}}]", "c"),
        ("selectors: [{namespace: m}]", "d"),
        ("selectors: [{kind: Thing}]\n    exclude: [{namespace: m}, {labels: {l: '1'}}]", "a"),
        ("selectors: [{kind: Thing}]\n    exclude: [{kind: Thing, name: b}]", "ad"),
        ("selectors: [{}]", "abcd"),
        ("exclude: [{}]", "abcd"),
        ("selectors: [{resourceFileRegexp: '^[ab][.]yaml$'}]", "ab"),
        ("exclude: [{resourceFileRegexp: '[ab][.]yaml'}]", "cd"),
    ],
)
def test_selectors_and_exclude_choose_what_a_function_gets(selection: str, expected: str) -> None:
    resources = {
        "Kptfile": kptfile(f"{steps('trace-a')}    {selection}\n"),
        "a.yaml": thing("a"),
        "b.yaml": thing("b", extra="  labels: {l: '1'}\n"),
        "c.yaml": thing("c", "Other", "  annotations: {n: x}\n"),
        "d.yaml": thing("d", extra="  namespace: m\n"),
    }
    result = rendered(resources)
    touched = [name for name in "abcd" if result.resources[f"{name}.yaml"] != resources[f"{name}.yaml"]]
    assert "".join(touched) == expected


def test_an_object_that_two_selectors_match_is_passed_twice() -> None:
    pipeline = f"{steps('trace-a')}    selectors: [{{kind: Thing}}, {{name: a}}]\n"
    result = rendered({"Kptfile": kptfile(pipeline), "a.yaml": thing("a")})
    assert messages(result) == ["a2"]
    assert len(objects(result.resources)) == 2


def test_only_what_was_selected_can_be_replaced_or_deleted() -> None:
    """A new object is added although the selectors would not select it."""
    selection = "    selectors: [{kind: Secret, name: s}]\n"
    resources = {
        "Kptfile": kptfile(
            steps("drop-secrets") + selection + steps("add-secret").partition("\n")[2] + selection
        ),
        "a.yaml": f"{thing('t', 'Secret')}---\n{thing('s', 'Secret')}",
        "b.yaml": thing("b"),
    }
    result = rendered(resources)
    assert result.resources["a.yaml"] == thing("t", "Secret")
    assert result.resources["b.yaml"] == resources["b.yaml"]
    assert result.resources["secret_new.yaml"].endswith("name: new\n")


def test_deleted_objects_take_their_files_along_and_neighbours_keep_their_bytes() -> None:
    resources = {
        "Kptfile": kptfile(steps("drop-secrets")),
        "a.yaml": thing("s", "Secret"),
        "b.yaml": f"# head\n{thing('a')}---\n{thing('s', 'Secret')}---\n# about b\n{thing('b')}",
    }
    result = rendered(resources)
    assert set(result.resources) == {"Kptfile", "b.yaml"}
    assert result.resources["b.yaml"] == f"# head\n{thing('a')}---\n# about b\n{thing('b')}"


def test_new_objects_get_a_file_in_the_package_that_made_them() -> None:
    result = rendered({"Kptfile": kptfile(), "sub/Kptfile": kptfile(steps("add-secret"))})
    assert result.resources["sub/secret_new.yaml"] == "apiVersion: v1\nkind: Secret\nmetadata:\n  name: new\n"


def test_a_config_file_is_read_again_before_each_mutator() -> None:
    """The first function renames what the second one reads as its configuration."""
    pipeline = "  mutators:\n" + "".join(f"  - {{image: {image}, configPath: {path}}}\n" for image, path in (
        ("apply-replacements", "r.yaml"),
        ("set-namespace", "ns.yaml"),
    ))  # fmt: skip
    result = rendered(
        {
            "Kptfile": kptfile(pipeline),
            "ns.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: ns\ndata:\n  namespace: old\n",
            "s.yaml": thing("fresh", "Source"),
            "n.yaml": "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: x\n",
            "r.yaml": text("""
                apiVersion: fn.kpt.dev/v1alpha1
                kind: ApplyReplacements
                metadata: {name: r}
                replacements:
                - source: {kind: Source}
                  targets: [{select: {kind: ConfigMap}, fieldPaths: [data.namespace]}]
                """),
        }
    )
    assert result.resources["n.yaml"].endswith("name: fresh\n")


def test_a_validator_gets_its_config_file_as_it_was_read() -> None:
    own = "  validators:\n  - {image: config-trace, configPath: c.yaml}\n"
    result = rendered({"Kptfile": kptfile(steps("trace-a") + own), "c.yaml": thing("c")})
    assert messages(result)[-1] == "None"
    assert result.resources["c.yaml"].endswith("trace: a\n")


def test_a_config_map_has_a_name_and_texts_and_without_configuration_there_is_none() -> None:
    pipeline = "  mutators:\n  - image: config\n    configMap: {a: 5, b: true, c: null}\n  - image: config\n"
    given, absent = map(load, messages(rendered({"Kptfile": kptfile(pipeline)})))
    assert given == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "function-input"},
        "data": {"a": "5", "b": "true", "c": ""},
    }
    assert absent is None


def test_a_tag_of_its_own_chooses_the_version() -> None:
    pipeline = "  mutators:\n  - {image: x.io/set-labels, tag: 0.9.0, configMap: {a: b}}\n"
    (note,) = rendered({"Kptfile": kptfile(pipeline)}).notes
    assert note.startswith("x.io/set-labels:0.9.0 runs as version ")


def test_config_map_values_become_text() -> None:
    pipeline = "  mutators:\n  - image: set-annotations\n    configMap: {a: 5, b: true}\n"
    result = rendered({"Kptfile": kptfile(pipeline), "a.yaml": thing("a")})
    assert result.resources["a.yaml"] == thing("a") + '  annotations:\n    a: "5"\n    b: "true"\n'


def failed(resources: dict[str, str], **options: bool) -> RenderResult:
    result = render(resources, registry=REGISTRY, **options)
    assert not result.rendered
    (value,) = (each for each in objects({"Kptfile": result.resources["Kptfile"]}))
    *_, condition = value["status"]["conditions"]  # those of validators come first
    assert condition == {
        "type": "Rendered",
        "status": "False",
        "reason": "RenderFailed",
        "message": result.message,
    }
    return result


@pytest.mark.parametrize(
    "image", ["fail", "docker.io/nephio/none:latest", "set-labels", "add-bad", "same-place"]
)
def test_a_failure_names_image_and_step_and_keeps_the_files(image: str) -> None:
    resources = {"Kptfile": kptfile(steps("trace-a", image, "trace-b")), "a.yaml": thing("a")}
    result = failed(resources)
    assert (result.image, result.step) == (image, "pipeline.mutators[1]")
    assert image in result.message
    assert "pipeline.mutators[1]" in result.message
    assert result.resources["a.yaml"] == resources["a.yaml"]
    assert [report.step for report in result.steps] == ["pipeline.mutators[0]", "pipeline.mutators[1]"]


def test_a_failing_validator_fails_the_render() -> None:
    result = failed({"Kptfile": kptfile(steps("fail", phase="validators")), "a.yaml": thing("a")})
    assert result.step == "pipeline.validators[0]"
    assert "on purpose" in result.message


def test_the_first_failing_validator_ends_the_render() -> None:
    resources = {"Kptfile": kptfile(steps("config", "fail", "trace-a", phase="validators"))}
    result = failed(resources)
    assert result.step == "pipeline.validators[1]"
    assert [report.step for report in result.steps] == ["pipeline.validators[0]", "pipeline.validators[1]"]


def test_an_expression_of_a_selector_that_is_none_fails_its_step() -> None:
    resources = {"Kptfile": kptfile(f"{steps('trace-a')}    selectors: [{{resourceFileRegexp: '('}}]\n")}
    result = failed(resources)
    assert result.step == "pipeline.mutators[0]"
    assert "`resourceFileRegexp` is not an expression" in result.message


def test_a_failure_below_names_the_package() -> None:
    result = failed({"Kptfile": kptfile(), "sub/Kptfile": kptfile(steps("fail"))})
    assert (result.package, result.image) == ("sub", "fail")
    assert result.message.startswith("package sub: pipeline.mutators[0]: fail: ")


@pytest.mark.parametrize("by_annotation", [True, False])
def test_what_was_done_before_a_failure_is_kept_on_request(by_annotation: bool) -> None:
    annotations = "{kpt.dev/save-on-render-failure: 'true'}" if by_annotation else "{}"
    resources = {"Kptfile": kptfile(steps("trace-a", "fail"), annotations=annotations), "a.yaml": thing("a")}
    result = failed(resources, keep_partial=not by_annotation)
    assert result.resources["a.yaml"] == thing("a") + "trace: a\n"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.yaml", "kind: A\nmetadata: {name: a}\n", "a.yaml: resource 0 has no `apiVersion`"),
        ("a.yaml", "apiVersion: v1\nkind: A\n", "a.yaml: resource 0 has no `metadata.name`"),
        (
            "a.yaml",
            f"{thing('a')}---\na: b\n",
            "a.yaml: resource 1 has no `apiVersion`, `kind`, `metadata.name`",
        ),
        (
            "a.yaml",
            f"{thing('a')}---\n- a\n",
            "a.yaml: document 2 is a list, not a Kubernetes object: give it ",
        ),
        ("a.yaml", "some words\n", "a.yaml: document 1 is plain text, not a Kubernetes object"),
        ("a.yaml", "5\n", "a.yaml: document 1 is one value, not a Kubernetes object"),
        (
            "a.yaml",
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n",
            "a.yaml: is a pointer of Git LFS, not the content: pvbus reads git without LFS",
        ),
        ("a.yaml", "a: [\n", "a.yaml: yaml: line"),
        ("x/b.json", "{", "x/b.json: yaml"),
    ],
)
def test_what_is_no_kubernetes_object_fails_with_its_file(file: str, content: str, message: str) -> None:
    """The check is made although the pipeline is empty."""
    result = failed({"Kptfile": kptfile(), file: content})
    assert message in result.message
    assert result.resources[file] == content


@pytest.mark.parametrize(
    "around",
    [
        ("", "---\n"),
        ("", "---\n# kind: ConfigMap\n# metadata: {name: off}\n"),
        ("---\n# Source: chart/templates/a.yaml\n---\n", ""),
        ("# a licence\n---\n", "---\n---\n# b\n"),
        ("---\n...\n---\n", "...\n"),
        ("---\nnull\n---\n", "---\n~\n"),
        ("%YAML 1.1\n---\n", "---\n\n"),
    ],
    ids=["trailing", "switched off", "Helm's header", "comments", "ends", "nulls", "directive"],
)
def test_documents_without_an_object_are_no_concern_of_functions_and_stay(around: tuple[str, str]) -> None:
    """Templates leave them; the functions change the objects between them."""
    before, after = around
    result = rendered({"Kptfile": kptfile(steps("trace-a")), "a.yaml": f"{before}{thing('a')}{after}"})
    assert result.resources["a.yaml"] == f"{before}{thing('a')}trace: a\n{after}"


@pytest.mark.parametrize("text", ["", "\n", "---\n", "# a\n---\n# b\n", "---\n---\n", "null\n"])
def test_a_file_without_any_object_renders_and_keeps_its_bytes(text: str) -> None:
    result = rendered({"Kptfile": kptfile(steps("trace-a")), "a.yaml": text})
    assert result.resources["a.yaml"] == text


def test_a_field_that_a_function_does_not_read_is_among_the_results() -> None:
    config = "{apiVersion: fn.kpt.dev/v1alpha1, kind: SetLabels, metadata: {name: c}, labels: {a: b}, x: 1}\n"
    pipeline = "  mutators:\n  - {image: set-labels, configPath: c.yaml}\n"
    resources = {"Kptfile": kptfile(pipeline), "a.yaml": thing("a"), "c.yaml": config}
    result = render(resources, registry=FunctionRegistry())
    assert result.rendered, result.message
    assert [message.partition(" of its")[0] for message in messages(result)] == [
        "set-labels does not know `x`",
        "set 1 label(s) in total",
    ]


def test_kustomizations_need_no_name() -> None:
    rendered({"Kptfile": kptfile(), "kustomization.yaml": "resources: [a.yaml]\n", "a.yaml": thing("a")})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{}", "exactly one of `image` and `exec`"),
        ("{image: a, exec: b}", "exactly one of `image` and `exec`"),
        ("{image: trace-a, configMap: {a: b}, configPath: c.yaml}", "both `configMap` and `configPath`"),
        ("{image: trace-a, configPath: ../c.yaml}", "must be a path inside the package"),
        ("{image: trace-a, configPath: /c.yaml}", "must be a path inside the package"),
        ("{image: trace-a, configPath: none.yaml}", "must be a file with exactly one object, it has 0"),
        ("{image: trace-a, configPath: two.yaml}", "must be a file with exactly one object, it has 2"),
        ("{exec: cat}", "functions by `exec` are not allowed here"),
        ("{image: [a]}", "Expected `str`"),
        ("null", "Expected `object`"),
    ],
)
def test_an_entry_that_cannot_run_fails_with_its_step(entry: str, message: str) -> None:
    resources = {
        "Kptfile": kptfile(f"  mutators:\n  - {entry}\n"),
        "two.yaml": f"{thing('a')}---\n{thing('b')}",
    }
    result = failed(resources)
    assert message in result.message
    assert result.step == "pipeline.mutators[0]"


def test_a_package_without_kptfile_fails_and_stays() -> None:
    result = render({"a.yaml": thing("a")}, registry=REGISTRY)
    assert not result.rendered
    assert result.resources == {"a.yaml": thing("a")}
    assert "no Kptfile" in result.message


@pytest.mark.parametrize(
    "content", ["", "a: [", "- x\n", "status: 5\n", kptfile() + "status: {conditions: 5}\n"]
)
def test_a_kptfile_that_cannot_be_used_is_no_exception(content: str) -> None:
    result = render({"Kptfile": content}, registry=REGISTRY)
    assert result.resources["Kptfile"] == content or result.rendered


def test_the_digest_is_of_all_inputs_but_the_status() -> None:
    resources = {"Kptfile": kptfile(), "a.yaml": thing("a")}
    digest = input_digest(resources)
    assert input_digest({**resources, "Kptfile": kptfile() + SUCCESS}) == digest
    assert input_digest({**resources, "Kptfile": kptfile() + SUCCESS + "info: {}\n"}) != digest
    assert input_digest({**resources, "a.yaml": thing("b")}) != digest
    assert input_digest({**resources, "b.yaml": ""}) != digest
    assert input_digest({"Kptfile": kptfile(), "a.yam": "l" + thing("a")}) != digest


def test_a_newer_version_of_a_function_is_noted() -> None:
    pipeline = "  mutators:\n  - image: x/set-labels:v0.9\n    configMap: {a: b}\n"
    result = rendered({"Kptfile": kptfile(pipeline)})
    assert result.notes == ("x/set-labels:v0.9 runs as version 0.2.1, the newest one built in",)


@pytest.mark.parametrize("after", ["", "info:\n  description: {0}\n"])
def test_the_digest_of_inputs_is_without_the_status_for_every_name(after: str) -> None:
    """Also where it is made as for two other names of one shape; each name has a digest of its own."""
    head = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: {0}\n"
    status = "status:\n  conditions:\n  - type: Rendered\n    message: {0}\n"
    names = [f"digest-{number}" for number in range(1, 6)]
    bare = [input_digest({"Kptfile": (head + after).format(name)}) for name in names]
    whole = [input_digest({"Kptfile": (head + status + after).format(name)}) for name in names]
    assert whole == bare
    assert len(set(bare)) == len(names)
