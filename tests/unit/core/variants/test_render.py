"""Rendering: from a template and what CEL may see to the spec of a PackageVariant."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import (
    Downstream,
    Function,
    Injector,
    PackageContext,
    PackageVariantSetSpec,
    PackageVariantSpec,
    Pipeline,
    Upstream,
    VariantTemplate,
)
from pvbus.core.cel import compilations
from pvbus.core.kernel.records import Root, TargetRow
from pvbus.core.variants.template import (
    CompiledTemplate,
    RenderError,
    TargetInputs,
    TemplateCache,
    compile_targets,
    render_row,
    unknown_fields,
    variables_of,
)

UPSTREAM = Upstream(repo="up", package="pkg", revision=2)
UPSTREAM_ROOT = Root(
    name="up.pkg.v2", namespace="default", labels={"vendor": "big"}, annotations={"team": "us"}
)
TARGET_ROOT = Root(name="edge-01", namespace="default", labels={"region": "eu", "n": "7"})
REPOSITORIES = {
    "edge-01": Root(name="edge-01", namespace="default", labels={"tier": "gold"}),
    "eu": Root(name="eu", namespace="default", labels={"tier": "silver"}),
}
OBJECT = TargetInputs("edge-01", "pkg", UPSTREAM_ROOT, TARGET_ROOT, list_target=False)
LISTED = TargetInputs("edge-01", "pkg", UPSTREAM_ROOT, Root(repo="edge-01", package="pkg"), list_target=True)


Render = Callable[..., PackageVariantSpec]


@pytest.fixture
def render() -> Render:
    """Render as the two services do together: identity and inputs first, then the row."""

    def rendered(template: dict[str, Any] | None, inputs: TargetInputs = OBJECT) -> PackageVariantSpec:
        typed = msgspec.convert(template, VariantTemplate) if template is not None else None
        downstream, roots = Downstream(repo=inputs.repo_default, package=inputs.package_default), {}
        if typed is not None:
            spec = msgspec.convert({"targets": [{"template": template}]}, PackageVariantSetSpec)
            compiled = compile_targets(spec).targets[0]
            assert compiled is not None
            downstream = compiled.identity(inputs, REPOSITORIES.get)
            roots = dict(compiled.slim_roots(inputs, REPOSITORIES.get(downstream.repo)))
        row = TargetRow(
            state="present",
            set_name="s",
            set_uid="u",
            upstream=UPSTREAM,
            template=typed,
            downstream=downstream,
            repo_default=inputs.repo_default,
            package_default=inputs.package_default,
            list_target=inputs.list_target,
            roots=roots,
        )
        row = msgspec.json.decode(msgspec.json.encode(row), type=TargetRow)
        return render_row(row, TemplateCache())

    return rendered


def test_without_a_template_the_defaults_are_the_whole_spec(render: Render) -> None:
    """No template: upstream as it is and the default downstream, whether or not the Repository exists."""
    inputs = OBJECT._replace(repo_default="nowhere")
    assert render(None, inputs) == PackageVariantSpec(
        upstream=UPSTREAM, downstream=Downstream(repo="nowhere", package="pkg")
    )


def test_an_empty_template_needs_the_repository(render: Render) -> None:
    """A template, even an empty one, is rendered only for a Repository that exists."""
    assert render({}) == PackageVariantSpec(
        upstream=UPSTREAM, downstream=Downstream(repo="edge-01", package="pkg")
    )
    with pytest.raises(RenderError, match=r'^no Repository named "nowhere" in namespace "default"$'):
        render({}, OBJECT._replace(repo_default="nowhere"))


@pytest.mark.parametrize(
    ("downstream", "expected"),
    [
        ({"repo": "eu", "package": "x"}, ("eu", "x")),
        ({"repo": "", "package": ""}, ("edge-01", "pkg")),
        ({"repoExpr": "", "packageExpr": ""}, ("edge-01", "pkg")),
        ({"repoExpr": "target.labels.region", "packageExpr": "repository.labels.tier"}, ("eu", "silver")),
        ({"packageExpr": "packageDefault + '-' + repository.name"}, ("edge-01", "pkg-edge-01")),
    ],
)
def test_downstream(render: Render, downstream: dict[str, str], expected: tuple[str, str]) -> None:
    """Values and expressions replace the defaults, empty ones do not; packageExpr sees the Repository."""
    assert render({"downstream": downstream}).downstream == Downstream(repo=expected[0], package=expected[1])


def test_repo_expr_cannot_see_the_repository(render: Render) -> None:
    """The Repository is found by the result of repoExpr, so it is unbound until then."""
    with pytest.raises(
        RenderError, match=r"^template\.downstream\.repoExpr: no such attribute\(s\): repository$"
    ):
        render({"downstream": {"repoExpr": "repository.name"}})


def test_maps_are_overlaid_in_order(render: Render) -> None:
    """Later entries override earlier ones and static ones; a result that is empty is absent."""
    spec = render(
        {
            "labels": {"a": "1", "b": "2"},
            "labelExprs": [
                {"key": "a", "valueExpr": "target.labels.region"},
                {"keyExpr": "'c'", "value": "3"},
                {"keyExpr": "'c'", "valueExpr": "target.labels.n"},
            ],
            "annotationExprs": [],
            "annotations": {},
        }
    )
    assert spec.labels == {"a": "eu", "b": "2", "c": "7"}
    assert b"annotations" not in msgspec.json.encode(spec)


def test_package_context(render: Render) -> None:
    """Keys to remove are listed once, sorted by their bytes; the context is set even when it is empty."""
    context = {
        "data": {"a": "1"},
        "dataExprs": [{"key": "b", "valueExpr": "upstream.annotations.team"}],
        "removeKeys": ["é", "z", "a"],
        "removeKeyExprs": ["'z'", "target.name", "'😀'", "'\\uffff'"],
    }
    assert render({"packageContext": context}).package_context == PackageContext(
        data={"a": "1", "b": "us"}, remove_keys=("a", "edge-01", "z", "é", "\uffff", "😀")
    )
    assert render({"packageContext": {}}).package_context == PackageContext()


def test_injectors(render: Render) -> None:
    """Group, version and kind are copied, unset ones stay unset; the name is given or evaluated."""
    injectors = [{"group": "", "kind": "K", "name": "x"}, {"version": "v1", "nameExpr": "target.name"}]
    assert render({"injectors": injectors}).injectors == (
        Injector(group="", kind="K", name="x"),
        Injector(version="v1", name="edge-01"),
    )


@pytest.mark.parametrize(
    "injector",
    [
        {"nameExpr": ""},
        {"name": ""},
        {"kind": "K"},
        {"nameExpr": "''"},
        {"nameExpr": "target.labels.region == 'eu' ? '' : 'x'"},
    ],
)
def test_an_injector_without_a_name_fails_the_target(render: Render, injector: dict[str, str]) -> None:
    """It would select nothing, and the PackageVariant would be refused for it."""
    with pytest.raises(RenderError, match=r"^template\.injectors\[1\]: an injector needs a name"):
        render({"injectors": [{"name": "fine"}, injector]})


def test_pipeline(render: Render) -> None:
    """Functions keep all their fields; their maps are overlaid; no function, no pipeline."""
    pipeline = {
        "validators": [{"image": "v", "exec": "e", "tag": "t", "configPath": "c", "name": "n"}],
        "mutators": [
            {
                "image": "m",
                "configMap": {"a": "1", "b": "2"},
                "configMapExprs": [{"key": "a", "valueExpr": "repository.labels.tier"}],
                "selectors": [{"kind": "K"}],
                "exclude": [{"name": "N"}],
            }
        ],
    }
    found = render({"pipeline": pipeline}).pipeline
    assert found is not None
    assert found.validators == (Function(image="v", exec="e", tag="t", config_path="c", name="n"),)
    assert found.mutators[0].config_map == {"a": "gold", "b": "2"}
    assert (found.mutators[0].selectors[0].kind, found.mutators[0].exclude[0].name) == ("K", "N")
    assert isinstance(found, Pipeline)
    assert render({"pipeline": {}}).pipeline is None


def test_policies_are_copied_where_they_are_set(render: Render) -> None:
    """A policy that the template leaves out stays out."""
    spec = render({"adoptionPolicy": "adoptExisting"})
    assert (spec.adoption_policy, spec.deletion_policy) == ("adoptExisting", "")


def test_a_listed_target_has_repo_and_package_only(render: Render) -> None:
    """Of an entry of a list expressions see its two defaults, and nothing of an object."""
    exprs = [{"key": "a", "valueExpr": "target.repo + '/' + target.package"}]
    assert render({"labelExprs": exprs}, LISTED).labels == {"a": "edge-01/pkg"}
    with pytest.raises(RenderError, match=r"labelExprs\[0\]\.valueExpr: no such key: name$"):
        render({"labelExprs": [{"key": "a", "valueExpr": "target.name"}]}, LISTED)
    with pytest.raises(RenderError, match=r"no such key: repo$"):
        render({"labelExprs": [{"key": "a", "valueExpr": "target.repo"}]}, OBJECT)


@pytest.mark.parametrize("path", ["target.spec", "upstream.status", "repository.metadata", "target.data"])
def test_nothing_but_four_fields_can_be_read(render: Render, path: str) -> None:
    """spec, status and data of an object are not there for expressions."""
    with pytest.raises(RenderError, match=f"no such key: {path.partition('.')[2]}$"):
        render({"labelExprs": [{"key": "a", "valueExpr": path}]})
    assert render(
        {"labelExprs": [{"key": "a", "valueExpr": f"string(size({path.partition('.')[0]}))"}]}
    ).labels == {"a": "4"}


BAD = "target.labels.nothing"


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"downstream": {"repoExpr": BAD}}, "template.downstream.repoExpr"),
        ({"downstream": {"packageExpr": BAD}}, "template.downstream.packageExpr"),
        ({"labelExprs": [{"key": "a", "value": "b"}, {"keyExpr": BAD}]}, "template.labelExprs[1].keyExpr"),
        ({"labelExprs": [{"key": "a", "valueExpr": BAD}]}, "template.labelExprs[0].valueExpr"),
        ({"annotationExprs": [{"keyExpr": BAD}]}, "template.annotationExprs[0].keyExpr"),
        (
            {"packageContext": {"dataExprs": [{"valueExpr": BAD}]}},
            "template.packageContext.dataExprs[0].valueExpr",
        ),
        ({"packageContext": {"removeKeyExprs": ["'a'", BAD]}}, "template.packageContext.removeKeyExprs[1]"),
        ({"injectors": [{"name": "a"}, {"nameExpr": BAD}]}, "template.injectors[1].nameExpr"),
        (
            {"pipeline": {"validators": [{"configMapExprs": [{"valueExpr": BAD}]}]}},
            "template.pipeline.validators[0].configMapExprs[0].valueExpr",
        ),
        (
            {"pipeline": {"mutators": [{}, {"configMapExprs": [{}, {"keyExpr": BAD}]}]}},
            "template.pipeline.mutators[1].configMapExprs[1].keyExpr",
        ),
    ],
)
def test_errors_name_the_field(render: Render, template: dict[str, Any], field: str) -> None:
    """An error of evaluation and one of compilation begin with the same path of the field."""
    with pytest.raises(RenderError) as failed:
        render(template)
    assert str(failed.value) == f"{field}: no such key: nothing"
    broken = msgspec.json.decode(msgspec.json.encode(template).replace(BAD.encode(), b"badvar"))
    with pytest.raises(RenderError) as refused:
        render(broken)
    assert str(refused.value).startswith(f"{field}: ERROR: <input>:1:1: undeclared reference to 'badvar'")


@pytest.mark.parametrize("first", range(4))
def test_the_first_field_that_fails_is_told(render: Render, first: int) -> None:
    """Fields are evaluated in Porch's order, so the order of the YAML does not change the reported error."""
    failing: list[tuple[str, Any]] = [
        ("labelExprs", [{"key": "a", "valueExpr": BAD}]),
        ("annotationExprs", [{"key": "a", "valueExpr": BAD}]),
        ("packageContext", {"dataExprs": [{"key": "a", "valueExpr": BAD}]}),
        ("injectors", [{"nameExpr": BAD}]),
    ]
    with pytest.raises(RenderError, match=rf"^template\.{failing[first][0]}"):
        render(dict(reversed(failing[first:])))


def test_a_result_that_is_no_string_is_told_by_type(render: Render) -> None:
    """There is no silent conversion to text."""
    with pytest.raises(RenderError, match=r"valueExpr: unsupported type conversion from 'int' to string$"):
        render({"labelExprs": [{"key": "a", "valueExpr": "1"}]})


def test_an_empty_expression_of_a_map_is_compiled_and_fails(render: Render) -> None:
    """Only downstream and injectors take an empty expression for an absent one."""
    with pytest.raises(RenderError, match=r"^template\.labelExprs\[0\]\.valueExpr: ERROR: "):
        render({"labelExprs": [{"key": "a", "valueExpr": ""}]})
    assert render({"injectors": [{"name": "a", "nameExpr": ""}]}).injectors[0].name == "a"


def test_compile_errors_of_a_set_are_told_once() -> None:
    """Targets that share a broken template share its error."""
    template = {"labelExprs": [{"key": "a", "valueExpr": "badvar"}, {"keyExpr": "1 +", "value": "x"}]}
    spec = msgspec.convert(
        {"targets": [{"template": template}, {}, {"template": template}]}, PackageVariantSetSpec
    )
    errors = compile_targets(spec).errors()
    assert [error.partition(":")[0] for error in errors] == [
        "template.labelExprs[0].valueExpr",
        "template.labelExprs[1].keyExpr",
    ]


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        (
            "target.lables['a']",
            {},
            "target has no field lables: it has name, namespace, labels and annotations",
        ),
        ("target['spec'].x", {}, "target has no field spec: it has name, namespace, labels and annotations"),
        ("upstream.spec", {}, "upstream has no field spec: it has name, namespace, labels and annotations"),
        ("repository.url", {}, "repository has no field url: it has name, namespace, labels and annotations"),
        (
            "target.name",
            {"repositories": [{"name": "r"}]},
            "target has no field name: it has repo and package",
        ),
        (
            "['a'].map(x, target.nam)[0]",
            {},
            "target has no field nam: it has name, namespace, labels and annotations",
        ),
        ("target.repo", {"repositories": [{"name": "r"}]}, ""),
        ("target.labels.region + upstream.name + repository.annotations['a']", {}, ""),
        ("has(target.lables) ? target.lables.a : 'none'", {}, ""),
        ("['a'].map(target, target)[0]", {}, ""),
        ("[{'b': 'c'}].map(target, target.b)[0]", {}, ""),
    ],
)
def test_a_field_that_no_object_has_is_named(text: str, target: dict[str, Any], expected: str) -> None:
    template = {"labelExprs": [{"key": "a", "valueExpr": text}]}
    spec = msgspec.convert({"targets": [{}, {**target, "template": template}]}, PackageVariantSetSpec)
    wanted = [("spec.targets[1].template.labelExprs[0].valueExpr", expected)] if expected else []
    assert [*unknown_fields(spec)] == wanted


def compiled_target(*templates: dict[str, Any] | None, number: int = 0) -> CompiledTemplate:
    targets = [{} if template is None else {"template": template} for template in templates]
    found = compile_targets(msgspec.convert({"targets": targets}, PackageVariantSetSpec))
    assert len(found.targets) == len(templates)
    compiled = found.targets[number]
    assert compiled is not None
    return compiled


def test_a_template_that_does_not_compile_fails_its_own_target() -> None:
    """The others of the set are evaluated, and one without a template has nothing to compile."""
    bad = {"downstream": {"packageExpr": "badvar"}}
    templates = (
        {"labels": {"a": "b"}},
        bad,
        None,
        {"labelExprs": [{"key": "a", "valueExpr": "target.name"}]},
    )
    targets = [{} if template is None else {"template": template} for template in templates]
    found = compile_targets(msgspec.convert({"targets": targets}, PackageVariantSetSpec))
    first, second, third, fourth = found.targets
    assert third is None
    for compiled in (first, fourth):
        assert compiled is not None
        assert compiled.errors == ()
        assert compiled.identity(OBJECT, REPOSITORIES.get).repo == "edge-01"
    assert second is not None
    with pytest.raises(RenderError, match=r"^template\.downstream\.packageExpr: ERROR: .*badvar"):
        second.identity(OBJECT, REPOSITORIES.get)
    assert found.errors() == list(second.errors)


@pytest.mark.parametrize("part", ["repoExpr", "packageExpr"])
def test_a_downstream_that_does_not_compile_is_no_default(part: str) -> None:
    """An identity that could not be evaluated must not become the default one."""
    compiled = compiled_target({"downstream": {part: "1 +"}})
    with pytest.raises(RenderError, match=rf"^template\.downstream\.{part}: ERROR: "):
        compiled.identity(OBJECT, REPOSITORIES.get)


def test_a_label_that_does_not_compile_leaves_the_downstream_known() -> None:
    """As with one whose evaluation fails: the child is known, and its spec is what fails."""
    template = {
        "downstream": {"packageExpr": "'p-' + target.name"},
        "labelExprs": [
            {"key": "a", "valueExpr": "badvar"},
            {"key": "b", "valueExpr": "target.labels.region"},
        ],
        "annotationExprs": [{"keyExpr": "1 +", "value": "x"}],
    }
    compiled = compiled_target(None, template, number=1)
    downstream = compiled.identity(OBJECT, REPOSITORIES.get)
    assert downstream == Downstream(repo="edge-01", package="p-edge-01")
    assert compiled.slim_roots(OBJECT, None) == {"target": Root(labels={"region": "eu"})}
    with pytest.raises(RenderError) as failed:
        compiled.spec(UPSTREAM, downstream, variables_of(OBJECT, None))
    first, second = str(failed.value).split("; template.")
    assert first.startswith("template.labelExprs[0].valueExpr: ERROR: ")
    assert second.startswith("annotationExprs[0].keyExpr: ERROR: ")


@pytest.mark.parametrize(("count", "fine"), [(64, True), (65, False)])
def test_a_template_has_at_most_64_expressions(count: int, fine: bool) -> None:
    """The 65th expression is refused by its field."""
    exprs = [{"key": f"k{n}", "valueExpr": "target.name"} for n in range(count)]
    template = CompiledTemplate(msgspec.convert({"labelExprs": exprs}, VariantTemplate))
    expected = (
        () if fine else ("template.labelExprs[64].valueExpr: ERROR: a template has at most 64 expressions",)
    )
    assert template.errors == expected


def test_slim_roots_hold_what_is_read_and_no_more() -> None:
    """Labels that no expression names do not reach the row; what only identity reads does not either."""
    template = {
        "downstream": {"repoExpr": "target.name"},
        "labelExprs": [{"key": "a", "valueExpr": "target.labels.region + upstream.annotations['team']"}],
    }
    compiled = CompiledTemplate(msgspec.convert(template, VariantTemplate))
    assert compiled.slim_roots(OBJECT, REPOSITORIES["eu"]) == {
        "target": Root(labels={"region": "eu"}),
        "upstream": Root(annotations={"team": "us"}),
    }


def test_a_set_is_compiled_once() -> None:
    """However many targets are rendered, and by both services, an expression is compiled once."""
    text = "target.labels.region + 'compiled once here'"
    template = msgspec.convert({"labelExprs": [{"key": "a", "valueExpr": text}]}, VariantTemplate)
    before = compilations()
    cache = TemplateCache()
    for n in range(100):
        compiled = CompiledTemplate(template)
        row = TargetRow(
            state="present",
            set_name="s",
            set_uid="u",
            template=msgspec.structs.replace(template),
            roots={"target": Root(labels={"region": f"r{n}"})},
        )
        assert render_row(row, cache).labels["a"].startswith(f"r{n}")
        compiled.spec(None, Downstream(), variables_of(OBJECT, None))
    assert compilations() == before + 1


def test_a_broken_template_in_a_row_is_an_error_of_the_target() -> None:
    """A row of an older release may not compile any more; this is reported, not raised as a bug."""
    template = msgspec.convert({"labelExprs": [{"key": "a", "valueExpr": "badvar"}]}, VariantTemplate)
    row = TargetRow(state="present", set_name="s", set_uid="u", template=template)
    with pytest.raises(RenderError, match=r"^template\.labelExprs\[0\]\.valueExpr: ERROR: "):
        render_row(row, TemplateCache())
