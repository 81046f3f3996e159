"""What is refused, and how: bodies, types, schemas, metadata, unknown and duplicate fields."""

from typing import Any

import pytest

from pvbus.controlplane.apiserver.bodies import BODY_BYTES_MAX
from pvbus.core.api.crds import crds
from tests.integration.apiserver.client import CORE, CRDS, WIDGETS, Api, config_map, owner, widget


async def test_schema_problems_are_named_by_path(api: Api) -> None:
    """422 with one cause per problem: wrong type, missing and unsupported values."""
    reply = await api.call("POST", WIDGETS, widget("a", size="big"))
    assert (reply.code, reply.body["reason"]) == (422, "Invalid")
    assert reply.body["message"] == (
        'Widget.example.com "a" is invalid: spec.size: Invalid value: "string": spec.size in body must be '
        'of type integer: "string"'
    )
    missing = widget("a", spec={"color": "green"})
    del missing["spec"]["size"]
    reply = await api.call("POST", WIDGETS, missing)
    causes = {cause["field"]: cause["reason"] for cause in reply.body["details"]["causes"]}
    assert causes == {"spec.size": "FieldValueRequired", "spec.color": "FieldValueNotSupported"}


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"name": "Upper"}, "metadata.name"),
        ({"name": "a_b"}, "metadata.name"),
        ({"name": "a" * 254}, "metadata.name"),
        ({}, "metadata.name"),
        ({"name": "a", "labels": {"bad key": "x"}}, "metadata.labels"),
        ({"name": "a", "labels": {"k": "bad value"}}, "metadata.labels"),
        ({"name": "a", "labels": {"k": "x" * 64}}, "metadata.labels"),
        ({"name": "a", "labels": {"Not.A.Domain/k": "x"}}, "metadata.labels"),
        ({"name": "a", "annotations": {"a b": "x"}}, "metadata.annotations"),
        ({"name": "a", "annotations": {"a": "x" * 300_000}}, "metadata.annotations"),
        ({"name": "a", "finalizers": ["two words"]}, "metadata.finalizers[0]"),
        (
            {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": ""}]},
            "metadata.ownerReferences.uid",
        ),
    ],
)
async def test_metadata_is_checked(api: Api, metadata: dict[str, Any], field: str) -> None:
    """Names, label syntax, annotation size, finalizers and owners follow Kubernetes' rules."""
    reply = await api.call("POST", WIDGETS, {**widget(), "metadata": metadata})
    assert reply.code == 422, reply.body
    assert field in {cause["field"] for cause in reply.body["details"]["causes"]}


async def test_two_controllers_are_refused(api: Api) -> None:
    """Only one ownerReference may be the controller."""
    one = owner(await api.create(WIDGETS, widget("one")))
    two = owner(await api.create(WIDGETS, widget("two")))
    owners = [{**one, "controller": True}, {**two, "controller": True}]
    reply = await api.call("POST", WIDGETS, widget("a", ownerReferences=owners))
    assert reply.code == 422


@pytest.mark.parametrize("metadata", [{"labels": {"a": 1}}, {"labels": []}, {"name": 5}, {"finalizers": [1]}])
async def test_metadata_of_a_wrong_type_cannot_be_decoded(api: Api, metadata: dict[str, Any]) -> None:
    """400, as for Go's decoder."""
    reply = await api.call("POST", WIDGETS, {**widget(), "metadata": {"name": "a", **metadata}})
    assert (reply.code, reply.body["reason"]) == (400, "BadRequest")
    assert "cannot unmarshal" in reply.body["message"]


async def test_unknown_fields(api: Api) -> None:
    """Strict refuses, Warn (the default) prunes and says so in a header, Ignore prunes."""
    body = widget("a", spec={"extra": 1}, strange="x")
    strict = await api.call("POST", f"{WIDGETS}?fieldValidation=Strict", body)
    assert strict.code == 400
    assert (
        'strict decoding error: unknown field "metadata.strange", unknown field "spec.extra"'
        in (strict.body["message"])
    )
    warned = await api.call("POST", f"{WIDGETS}?dryRun=All", body)
    assert warned.warnings == (
        '299 - "unknown field \\"metadata.strange\\""',
        '299 - "unknown field \\"spec.extra\\""',
    )
    ignored = await api.call("POST", f"{WIDGETS}?fieldValidation=Ignore", body)
    assert (ignored.code, ignored.warnings) == (201, ())
    assert "extra" not in ignored.body["spec"]
    assert "strange" not in ignored.body["metadata"]
    assert (await api.call("POST", f"{WIDGETS}?fieldValidation=Other", widget("b"))).code == 422


@pytest.mark.parametrize("media", ["application/json", "application/yaml"])
async def test_duplicate_fields(api: Api, media: str) -> None:
    """They are treated like unknown ones, by their path; the last value counts."""
    if media == "application/json":
        text = (
            '{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, '
            '"spec": {"size": 1, "size": 2}}'
        )
    else:
        text = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a}\nspec:\n  size: 1\n  size: 2\n"
    strict = await api.call("POST", f"{WIDGETS}?fieldValidation=Strict", text, media=media)
    assert strict.code == 400
    assert 'strict decoding error: duplicate field "spec.size"' in strict.body["message"]
    warned = await api.call("POST", WIDGETS, text, media=media)
    assert warned.warnings == ('299 - "duplicate field \\"spec.size\\""',)
    assert warned.body["spec"]["size"] == 2


async def test_yaml_bodies_hold_json_types(api: Api) -> None:
    """A date in YAML stays text; PUT takes YAML as well."""
    text = (
        "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a}\nspec: {size: 1, note: 2026-01-01}\n"
    )
    created = await api.call("POST", WIDGETS, text, media="application/yaml")
    assert created.body["spec"]["note"] == "2026-01-01"
    version = created.body["metadata"]["resourceVersion"]
    text = text.replace("{name: a}", f'{{name: a, resourceVersion: "{version}"}}').replace(
        "size: 1", "size: 2"
    )
    assert (await api.call("PUT", f"{WIDGETS}/a", text, media="application/yaml")).body["spec"]["size"] == 2


@pytest.mark.parametrize(
    ("body", "media", "code"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"kind":"Widget"}', "application/json", 400),
        (b'{"apiVersion":"example.com/v2","kind":"Widget"}', "application/json", 400),
        (b'{"apiVersion":"example.com/v1","kind":"Gadget"}', "application/json", 422),
        (b"a: [", "application/yaml", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"k8s\x00", "application/vnd.kubernetes.protobuf", 415),
        (b"<x/>", "application/xml", 415),
    ],
)
async def test_bodies_that_cannot_be_read(api: Api, body: bytes, media: str, code: int) -> None:
    """400 for what is not an object of this kind, 415 for another format, always as a Status."""
    reply = await api.call("POST", WIDGETS, body, media=media)
    assert (reply.code, reply.body["kind"], reply.body["code"]) == (code, "Status", code)


async def test_large_bodies_are_refused(api: Api) -> None:
    """413 above 3 MiB, and the server goes on."""
    body = widget("a", spec={"note": "x" * BODY_BYTES_MAX})
    reply = await api.call("POST", WIDGETS, body)
    assert (reply.code, reply.body["reason"]) == (413, "RequestEntityTooLarge")
    await api.create(WIDGETS, widget("a", spec={"note": "x" * 1_000_000}))


@pytest.mark.parametrize(
    "path",
    [
        "/apis/example.com/v1/namespaces/default/gadgets",
        "/apis/example.com/v2/namespaces/default/widgets",
        "/apis/none/v1/widgets",
        f"{CORE}/namespaces/default/namespaces",
        "/apis/example.com/v1/widgets/a",
        "/apis/example.com/v1/namespaces/default/widgets/a/scale",
        "/nothing",
    ],
)
async def test_unknown_paths(api: Api, path: str) -> None:
    """404 as a Status."""
    reply = await api.call("GET", path)
    assert (reply.code, reply.body["reason"]) == (404, "NotFound")


async def test_methods_that_do_not_exist(api: Api) -> None:
    """As kube-apiserver: 400 for PUT of a collection of a custom kind, 405 of a built-in one; 405 for POST of
    an object."""
    await api.create(WIDGETS, widget("a"))
    assert (await api.call("PUT", WIDGETS, widget("a"))).code == 400
    assert (await api.call("PUT", "/api/v1/namespaces/default/configmaps", {})).code == 405
    assert (await api.call("POST", f"{WIDGETS}/a", widget("a"))).code == 405


async def test_a_finalizer_needs_a_domain_on_kinds_of_the_core_group_only(api: Api) -> None:
    """Custom kinds and package revisions take any qualified name, as a real API server does."""
    await api.create(WIDGETS, widget("a", finalizers=["cleanup"]))
    revisions = "/apis/porch.kpt.dev/v1alpha1/namespaces/default/packagerevisions"
    revision = {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"name": "r.p.w", "finalizers": ["cleanup"]},
        "spec": {"packageName": "p", "repository": "r", "workspaceName": "w"},
    }
    assert (await api.create(revisions, revision))["metadata"]["finalizers"] == ["cleanup"]
    maps = f"{CORE}/namespaces/default/configmaps"
    reply = await api.call("POST", maps, config_map("a", finalizers=["cleanup"]))
    assert (reply.code, "fully qualified" in reply.body["message"]) == (422, True)


def _set(name: str, **exprs: str) -> dict[str, Any]:
    entries = [{"key": key, "valueExpr": text} for key, text in exprs.items()]
    target = {"objectSelector": {"apiVersion": "v1", "kind": "Site"}, "template": {"labelExprs": entries}}
    upstream = {"repo": "r", "package": "p", "revision": 1}
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha2",
        "kind": "PackageVariantSet",
        "metadata": {"name": name},
        "spec": {"upstream": upstream, "targets": [target]},
    }


SETS = "/apis/config.porch.kpt.dev/v1alpha2/namespaces/default/packagevariantsets"
LABELS = "spec.targets[0].template.labelExprs"
HAS = "it has name, namespace, labels and annotations"


async def test_a_set_whose_expression_reads_a_field_that_no_object_has_is_stored_with_a_warning(
    api: Api,
) -> None:
    """Each write of the spec says so, in each way of writing; one of the status does not, nor a right set."""
    definition = next(crd for crd in crds() if crd["spec"]["names"]["kind"] == "PackageVariantSet")
    await api.create(CRDS, definition)
    wrong = f'299 - "{LABELS}[1].valueExpr: target has no field lables: {HAS}"'
    body = _set("a", a="target.name", b="target.lables.a", c="'x'")
    created = await api.call("POST", SETS, body)
    assert (created.code, created.warnings) == (201, (wrong,))
    assert (await api.call("POST", SETS, _set("b", a="target.labels.a"))).warnings == ()
    path = f"{SETS}/a"
    advised = f'299 - "{LABELS}[0].valueExpr: upstream has no field spec: {HAS}"'
    for method, media, changed in (
        ("PUT", "application/json", {**created.body, "spec": _set("a", a="upstream.spec.x")["spec"]}),
        ("PATCH", "application/merge-patch+json", {"spec": _set("a", b="upstream.spec.y")["spec"]}),
        ("PATCH", "application/apply-patch+yaml", _set("a", c="upstream.spec.z")),
    ):
        query = "?fieldManager=t&force=true" if "apply" in media else ""
        reply = await api.call(method, path + query, changed, media=media)
        assert (reply.code, reply.warnings) == (200, (advised,))
    status: dict[str, Any] = {"status": {"conditions": []}}
    patched = await api.call("PATCH", f"{path}/status", status, media="application/merge-patch+json")
    assert (patched.code, patched.warnings) == (200, ())


async def test_warnings_about_expressions_end_where_compiling_them_takes_long(api: Api) -> None:
    definition = next(crd for crd in crds() if crd["spec"]["names"]["kind"] == "PackageVariantSet")
    await api.create(CRDS, definition)
    long = "'" + "x" * 4_090 + "'"
    reply = await api.call("POST", SETS, _set("a", a="target.lables", b=long, c=long, d="target.lables"))
    assert [warning.partition("valueExpr: ")[2][:30] for warning in reply.warnings] == [
        "target has no field lables: it",
        "from here on fields are not ch",
    ]
