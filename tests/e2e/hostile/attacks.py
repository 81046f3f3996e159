"""Hostile requests, made from a seed: bodies, patches, expressions, patterns, selectors, tokens, packages."""

import base64
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

JSON, YAML = "application/json", "application/yaml"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
STEPS, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Request(NamedTuple):
    family: str
    method: str
    path: str
    body: bytes = b""
    media: str = JSON


class Attacker:
    """Makes the requests of one identity. namespace: where it has its rights."""

    def __init__(self, name: str, namespace: str) -> None:
        self._random = random.Random(f"hostile {name}")
        self._number = 0
        core, porch = (
            f"/api/v1/namespaces/{namespace}",
            f"/apis/porch.kpt.dev/v1alpha1/namespaces/{namespace}",
        )
        self._namespace = namespace
        self._maps = f"{core}/configmaps"
        self._sets = f"/apis/config.porch.kpt.dev/v1alpha2/namespaces/{namespace}/packagevariantsets"
        self._revisions, self._files = f"{porch}/packagerevisions", f"{porch}/packagerevisionresources"

    def requests(self, count: int) -> Iterator[Request]:
        """Yield requests of all families in turn, each time of another size and form."""
        families = (
            self._yaml,
            self._json,
            self._apply,
            self._patch,
            self._binary,
            self._expression,
            self._definition,
            self._list,
            self._package,
            self._clone,
        )
        for self._number in range(count):
            yield families[self._number % len(families)]()

    def _choose(self, *makers: Callable[[int], Any]) -> Any:
        """Call one of the makers in turn, with a size that grows and shrinks."""
        size = self._random.choice((1_000, 20_000, 100_000, 300_000))
        return makers[self._number // 10 % len(makers)](size)

    def _yaml(self) -> Request:
        text = self._choose(
            lambda size: "a: " + "1:" * size + "1",
            lambda size: "a: " + "1:" * size + "1.5",
            lambda size: "a: [" + "1, " * size + "1]",
            lambda size: "a: " + "[" * size + "]" * size,
            lambda size: (
                "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
            ),
            lambda size: "".join(f"k{n}: {{a: 1}}\n" for n in range(size // 4)),
            lambda size: "a: " + "0x" + "f" * size,
            lambda size: "? " * min(size, 5_000) + "a",
            lambda size: "a: !!python/object/apply:os.system [id]\n",
            lambda size: "a: |\n" + "  x\n" * size,
            lambda size: "a: " + "9" * size + "e999999999",
            lambda size: "- " * min(size, 100_000) + "a",
        )
        return Request("yaml", "POST", REVIEW if self._number % 20 else self._maps, text.encode(), YAML)

    def _json(self) -> Request:
        text = self._choose(
            lambda size: '{"a":' * size + "1" + "}" * size,
            lambda size: "[" * size,
            lambda size: '{"a":1e' + "9" * min(size, 400) + "}",
            lambda size: '{"a":' + "9" * size + "}",
            lambda size: json.dumps({f"k{n}": n for n in range(size)}),
            lambda size: json.dumps(
                {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "\0" * (size // 6)}}
            ),
            lambda size: '{"a":"\\ud800"}',
            lambda size: '{"kind":"ConfigMap","kind":"ConfigMap"' + ',"a":1' * size + "}",
        )
        return Request("json", "POST", self._maps if self._number % 20 else REVIEW, text.encode())

    def _apply(self) -> Request:
        size = self._random.choice((100, 5_000, 40_000))
        obj = self._map({f"k{n}": "v" for n in range(size)}, f"apply-{self._number % 3}")
        path = f"{self._maps}/apply-{self._number % 3}?fieldManager=m{self._number}&force=true"
        return Request("apply", "PATCH", path, json.dumps(obj).encode(), APPLY)

    def _patch(self) -> Request:
        copies = [{"op": "add", "path": "/data", "value": {"a": "x" * 1000}}]
        copies += [{"op": "copy", "from": "/data", "path": f"/data/c{n}"} for n in range(40)]
        media, body = self._choose(
            lambda size: (STEPS, copies),
            lambda size: (STEPS, [{"op": "test", "path": "/a" * (size // 10), "value": 1}] * 50),
            lambda size: (MERGE, {"data": {f"k{n}": "v" for n in range(size // 4)}}),
            lambda size: (
                STRATEGIC,
                {"metadata": {"finalizers": [f"e.example/{n}" for n in range(size // 10)]}},
            ),
            lambda size: (
                STRATEGIC,
                {"metadata": {"ownerReferences": [{"uid": str(n)} for n in range(2_000)]}},
            ),
            lambda size: (MERGE, {"metadata": {"annotations": {"a": "b" * size}}}),
        )
        return Request("patch", "PATCH", f"{self._maps}/apply-0", json.dumps(body).encode(), media)

    def _binary(self) -> Request:
        body, media = self._bytes()
        return Request("binary", "POST", self._maps, body, media)

    def _bytes(self) -> tuple[bytes, str]:
        made: tuple[bytes, str] = self._choose(
            lambda size: (b"k8s\0" + self._random.randbytes(min(size, 50_000)), PROTOBUF),
            lambda size: (b"k8s\0" + b"\x0a\xff\xff\xff\xff\x0f", PROTOBUF),
            lambda size: (json.dumps(self._map({}, "u")).encode("utf-16"), JSON),
            lambda size: (b"\0" * size, YAML),
            lambda size: (b"\xff\xfe" * (size // 2), YAML),
            lambda size: (json.dumps(self._map({"a": "b"}, "\u202egnp\0")).encode(), JSON),
        )
        return made

    def _map(self, data: dict[str, str], name: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}

    def _expression(self) -> Request:
        expression = self._choose(
            lambda size: "target.annotations.big.matches('(a?){1000}bN') ? 'x' : 'y'",
            lambda size: "'" + "a" * min(size, 50_000) + "'.matches('(a+)+$') ? 'x' : 'y'",
            lambda size: "(" * min(size, 20_000) + "1" + ")" * min(size, 20_000),
            lambda size: "[1,2,3,4,5,6,7,8,9].all(a, " * 8 + "true" + ")" * 8 + " ? 'x' : 'y'",
            lambda size: "'a' + " * min(size, 10_000) + "'a'",
            lambda size: "target.labels.region.replace('', target.labels.region)",
            lambda size: "9223372036854775807 + 1 > 0 ? 'x' : 'y'",
        )
        template = {
            "downstream": {"repo": "edge-asia", "packageExpr": f"'h{self._number}-' + target.name"},
            "labelExprs": [{"key": f"k{n}", "valueExpr": expression} for n in range(20)],
        }
        selector = {
            "apiVersion": "fleet.example.dev/v1",
            "kind": "Cluster",
            "matchLabels": {"stage": "production"},
        }
        made = {
            "apiVersion": "config.porch.kpt.dev/v1alpha2",
            "kind": "PackageVariantSet",
            "metadata": {"name": f"hostile-{self._number}"},
            "spec": {
                "upstream": {"repo": "blueprints", "package": "web", "revision": 1},
                "targets": [{"objectSelector": selector, "template": template}],
            },
        }
        return Request("expression", "POST", self._sets, json.dumps(made).encode())

    def _definition(self) -> Request:
        spec = self._choose(
            lambda size: {"type": "string", "pattern": "(a+)+$"},
            lambda size: {"type": "string", "pattern": "(a{1000}){1000}"},
            lambda size: {
                "type": "string",
                "x-kubernetes-validations": [{"rule": "!self.matches('(a?){1000}b')"}],
            },
            lambda size: {
                "type": "object",
                "properties": {f"p{n}": {"type": "string"} for n in range(size // 10)},
            },
        )
        schema = {"type": "object", "properties": {"spec": spec}}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": f"h{self._number}s", "kind": f"H{self._number}"}
        made = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{names['plural']}.hostile.example"},
            "spec": {
                "group": "hostile.example",
                "scope": "Namespaced",
                "names": names,
                "versions": [version],
            },
        }
        return Request("definition", "POST", CRDS, json.dumps(made).encode())

    def _list(self) -> Request:
        token = base64.urlsafe_b64encode(b'{"rv":999999999999,"start":["default","a"]}').decode().rstrip("=")
        query = self._choose(
            lambda size: f"limit=1&continue={token}",
            lambda size: "labelSelector=a+in+(" + ",".join(map(str, range(8_000))) + ")",
            lambda size: "labelSelector=" + "!" * 10_000,
            lambda size: "fieldSelector=" + "metadata.name%3Da," * 2_000 + "metadata.name%3Da",
            lambda size: "limit=99999999999999999999999999",
            lambda size: f"continue={'A' * 30_000}",
            lambda size: "resourceVersion=" + "9" * 4_000,
            lambda size: "watch=1&timeoutSeconds=1&resourceVersion=-1",
            lambda size: "%00%ff=%00",
            lambda size: "fieldSelector=spec.data.x%3D1&labelSelector=%E2%80%AE",
        )
        return Request("list", "GET", f"{self._maps}?{query}")

    def _package(self) -> Request:
        files = self._choose(
            lambda size: {"a.yaml": "a: " + "1:" * size + "1"},
            lambda size: {"a.yaml": "[" * size},
            lambda size: {"../../etc/passwd": "x"},
            lambda size: {".git/config": "[core]\n\tfsmonitor = id\n"},
            lambda size: {f"f{n}.yaml": "a: b\n" for n in range(size // 50)},
            lambda size: {"Kptfile": "a: &a [" + "*a, " * 1000 + "]"},
            lambda size: {"a.yaml": "a: &a x\nb: [" + "*a, " * size + "]"},
            lambda size: {"a\0.yaml": "x", "A.yaml": "x", "a.yaml": "x"},
        )
        name = "edge-asia.asia-01-web.packagevariant-1"
        made = {
            "apiVersion": "porch.kpt.dev/v1alpha1",
            "kind": "PackageRevisionResources",
            "metadata": {"name": name, "namespace": self._namespace},
            "spec": {"packageName": "asia-01-web", "repository": "edge-asia", "resources": files},
        }
        return Request("package", "PUT", f"{self._files}/{name}", json.dumps(made).encode())

    def _clone(self) -> Request:
        address = self._choose(
            lambda size: "file:///etc",
            lambda size: "ext::sh -c id",
            lambda size: "http://169.254.169.254/x.git",
            lambda size: "--upload-pack=id",
            lambda size: "/root",
            lambda size: "http://127.0.0.1:1/x.git",
            lambda size: "ssh://-oProxyCommand=id/x.git",
            lambda size: "https://a\nb/x.git",
            lambda size: "a" * min(size, 100_000),
        )
        source = {"type": "git", "git": {"repo": address, "ref": "main", "directory": "a"}}
        name = f"clone-{self._number}"
        made = {
            "apiVersion": "porch.kpt.dev/v1alpha1",
            "kind": "PackageRevision",
            "metadata": {"namespace": self._namespace},
            "spec": {
                "packageName": name,
                "repository": "edge-asia",
                "workspaceName": "w",
                "tasks": [{"type": "clone", "clone": {"upstreamRef": source}}],
            },
        }
        return Request("clone", "POST", self._revisions, json.dumps(made).encode())
