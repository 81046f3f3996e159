"""set-image as of v0.1.4."""

import pytest

from pvbus.controlplane.packages.functions.set_image import set_image
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import after, config, config_map, items, text

POD = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n  - name: c\n    image: {}\n"
DIGEST = "sha256:0123abcd"


def image_after(present: str, **given: str) -> str:
    (changed,) = after(set_image, config_map(**given), POD.format(present))
    return changed.splitlines()[-1].removeprefix("    image: ")


@pytest.mark.parametrize(
    ("reason", "present", "given", "expected"),
    [
        ("a tag", "nginx:1.0", {"newTag": "2"}, "nginx:2"),
        ("no tag yet", "nginx", {"newTag": "2"}, "nginx:2"),
        ("the name alone keeps the tag", "nginx:1.0", {"newName": "x.io/y"}, "x.io/y:1.0"),
        ("the name alone keeps the digest", f"nginx@{DIGEST}", {"newName": "y"}, f"y@{DIGEST}"),
        ("the name alone keeps both", f"nginx:1@{DIGEST}", {"newName": "y"}, f"y:1@{DIGEST}"),
        ("a digest instead of a tag", "nginx:1.0", {"digest": DIGEST}, f"nginx@{DIGEST}"),
        ("a tag instead of a digest", f"nginx@{DIGEST}", {"newTag": "2"}, "nginx:2"),
        ("tag and digest", "nginx", {"newTag": "2", "digest": DIGEST}, f"nginx:2@{DIGEST}"),
        ("name and tag", "nginx:1", {"newName": "b/n", "newTag": "2"}, "b/n:2"),
        ("another image", "my-nginx:1", {"newTag": "2"}, "my-nginx:1"),
        ("another registry", "x.io/nginx:1", {"newTag": "2"}, "x.io/nginx:1"),
        ("a registry with a port", "l:5000/n:1", {"name": "l:5000/n", "newTag": "2"}, "l:5000/n:2"),
        ("a port is no tag", "l:5000/n", {"name": "l:5000/n", "newTag": "2"}, "l:5000/n:2"),
        ("the name is an expression", "x.io/nginx:1", {"name": ".*/nginx", "newTag": "2"}, "x.io/nginx:2"),
        ("a name with its tag", "nginx:1", {"name": "nginx:1", "newName": "y", "newTag": "2"}, "y:2"),
        ("quotes and comment stay", "'nginx:1' # why", {"newTag": "2"}, "'nginx:2' # why"),
        ("braces of Bazel", "nginx:{v}", {"newTag": "2"}, "nginx:2"),
    ],
)
def test_images(reason: str, present: str, given: dict[str, str], expected: str) -> None:
    assert image_after(present, **{"name": "nginx", **given}) == expected, reason


@pytest.mark.parametrize(
    ("head", "spec", "changes"),
    [
        ("v1, kind: Pod", "initContainers: [{image: n}]", True),
        ("v1, kind: Pod", "ephemeralContainers: [{image: n}]", False),
        ("apps/v1, kind: Deployment", "template: {spec: {initContainers: [{image: n}]}}", True),
        ("apps/v1, kind: StatefulSet", "template: {spec: {containers: [{image: n}]}}", True),
        ("apps/v1, kind: ReplicaSet", "template: {spec: {containers: [{image: n}]}}", True),
        ("apps/v1, kind: DaemonSet", "template: {spec: {containers: [{image: n}]}}", True),
        ("extensions/v1beta1, kind: Deployment", "template: {spec: {containers: [{image: n}]}}", False),
        ("batch/v1, kind: Job", "template: {spec: {containers: [{image: n}]}}", False),
        ("apps/v1, kind: Deployment", "template: {spec: null}", False),
        ("apps/v1, kind: Deployment", "template: {spec: {containers: [{name: x}]}}", False),
    ],
)
def test_where_images_are(head: str, spec: str, changes: bool) -> None:
    """Only the kinds that the catalog lists: no Job and no CronJob."""
    before = f"{{apiVersion: {head}, metadata: {{name: a}}, spec: {{{spec}}}}}\n"
    expected = before.replace("image: n", 'image: "n:2"') if changes else before
    assert after(set_image, config_map(name="n", newTag="2"), before)[0].replace('"', "") == expected.replace(
        '"', ""
    )


def test_more_fields_can_be_named() -> None:
    own = config("""
        apiVersion: fn.kpt.dev/v1alpha1
        kind: SetImage
        unknown: field
        image: {name: n, newTag: "2", unknown: field}
        additionalImageFields:
        - {group: x.org, version: v1, kind: Thing, path: "spec/images[]/image", create: true}
        - {kind: Thing, path: spec/lists/image}
        """)
    thing = text("""
        apiVersion: x.org/v1
        kind: Thing
        metadata:
          name: a
        spec:
          images: # first
          - image: n:1 # one
          - other: n:1
          lists:
          - - image: n
        """)
    assert after(set_image, own, thing, thing.replace("x.org", "y.org")) == [
        thing.replace("image: n:1", "image: n:2").replace("image: n\n", "image: n:2\n"),
        thing.replace("x.org", "y.org").replace("image: n\n", "image: n:2\n"),
    ]


def test_the_result_counts_images_that_fit_also_those_with_the_tag_already() -> None:
    given = items(POD.format("n:2"), POD.format("n:1").replace("name: a", "name: b"))
    (summary,) = set_image(given, config_map(name="n", newTag="2")).results
    assert summary.message == "summary: updated a total of 2 image(s)"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "must specify `name`"),
        ({"name": "n"}, "must specify one of `newName`, `newTag`, or `digest`"),
        ({"name": "n", "tag": "2"}, "ConfigMap has wrong field name tag"),
        ({"name": "(", "newTag": "2"}, "`name` is not an expression"),
    ],
)
def test_a_configuration_it_cannot_use_fails(given: dict[str, str], problem: str) -> None:
    with pytest.raises(PermanentError, match=problem.replace("(", r"\(")):
        set_image((), config_map(**given))


def test_an_image_that_is_no_string_is_refused_with_its_place() -> None:
    with pytest.raises(PermanentError, match=r"v1 Pod a: `spec/containers/0/image` is a list"):
        after(set_image, config_map(name="n", newTag="2"), POD.format("[n]"))
