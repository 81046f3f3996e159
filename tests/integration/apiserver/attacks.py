"""Hostile requests, as bytes on the wire, and what must be said to each."""

import gzip
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.integration.apiserver.client import CORE, CRDS, WIDGETS, crd, widget

HOST = "127.0.0.1"
MAPS = f"{CORE}/namespaces/default/configmaps"
REVISIONS = "/apis/porch.kpt.dev/v1alpha1/namespaces/default/packagerevisions"
FREE = "/apis/example.com/v1/namespaces/default/frees"
JSON = "application/json"
YAML = "application/yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
STEPS = "application/json-patch+json"


class Attack(NamedTuple):
    """A request and its answer. with_token False: the token is left out.

    says: part of the answer's text. body: bytes as they are, a function that makes it, other values as JSON.
    """

    name: str
    method: str
    path: str
    code: int
    says: str
    body: Any = None
    media: str = JSON
    headers: Mapping[str, str] = {}  # never changed
    with_token: bool = True

    def content(self) -> bytes:
        made = self.body() if callable(self.body) else self.body
        if made is None or isinstance(made, bytes):
            return made or b""
        return made.encode() if isinstance(made, str) else json.dumps(made).encode()


def nested(depth: int, open_: str = '{"a":', close: str = "}", inside: str = "1") -> str:
    return open_ * depth + inside + close * depth


def free(value: str, name: str = "deep") -> str:
    """Return an object of a kind that takes any field, with a value that is JSON already."""
    head = '{"apiVersion":"example.com/v1","kind":"Free","metadata":{"name":"' + name + '"},"spec":'
    return head + value + "}"


def free_crd() -> dict[str, Any]:
    made = crd("frees", "Free")
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = {"x-kubernetes-preserve-unknown-fields": True}
    return made


def schema_crd(spec: Any) -> Any:
    made = crd("gadgets", "Gadget")
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec
    return made


def config(data: Any, **metadata: Any) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "m", **metadata},
        "data": data,
    }


def revision(**spec: Any) -> Any:
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"name": "r.p.w", "namespace": "default"},
        "spec": {"packageName": "p", "repository": "r", "workspaceName": "w", **spec},
    }


def with_dates(text: str) -> Any:
    about = {"kind": "ConfigMap", "name": "a", "namespace": "default"}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": about}
    return {**event, "lastTimestamp": text, "firstTimestamp": text}


def put(method: str, name: str, code: int, says: str, body: Any, **more: Any) -> Attack:
    return Attack(name, method, more.pop("path", FREE), code, says, body, **more)


def deep_schema(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


LAUGHS = (
    "apiVersion: example.com/v1\nkind: Free\nmetadata: {name: laughs}\nspec:\n"
    + "  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
)
YAML_HEAD = "apiVersion: example.com/v1\nkind: Free\nmetadata: {name: free}\nspec: "
DOUBLED_DEEP = '{"b":1,"b":2,"c":' + nested(900) + "}"

TRANSPORT = (
    Attack("no token", "GET", CORE, 401, "Unauthorized", with_token=False),
    Attack("empty token", "GET", CORE, 401, "Unauthorized", with_token=False, headers={"Authorization": ""}),
    Attack(
        "wrong token",
        "GET",
        CORE,
        401,
        "Unauthorized",
        with_token=False,
        headers={"Authorization": "Bearer " + "A" * 43},
    ),
    Attack(
        "token that is no text",
        "GET",
        CORE,
        401,
        "Unauthorized",
        with_token=False,
        headers={"Authorization": "Bearer \xff\xfe"},
    ),
    Attack("token in the query", "GET", f"{CORE}?access_token=$TOKEN", 401, "Unauthorized", with_token=False),
    Attack("method that does not exist", "BREW", MAPS, 400, "not valid HTTP"),
    Attack("doubled slashes", "GET", "//api//v1//pods", 404, "could not find"),
    Attack("dots", "GET", f"{MAPS}/../../../../etc/passwd", 404, "could not find"),
    Attack("encoded dots", "GET", f"{MAPS}/%2e%2e", 404, ""),
    Attack("encoded slashes", "GET", f"{MAPS}/..%2F..%2Fetc%2Fpasswd", 404, ""),
    Attack("NUL in the path", "GET", f"{MAPS}/a%00b", 400, "control character"),
    Attack("NUL in the namespace", "GET", f"{CORE}/namespaces/a%00/configmaps", 400, "control character"),
    Attack("line feed in the path", "GET", f"{MAPS}/a%0ab", 400, "control character"),
    Attack("NUL in the query", "GET", f"{MAPS}?labelSelector=a%00", 400, "control character"),
    Attack("raw bytes in the path", "GET", f"{MAPS}/\xff\xfe", 400, "not valid HTTP"),
    Attack("raw bytes in the query", "GET", f"{MAPS}?includeObject=\xff", 400, "not valid HTTP"),
    Attack("percent-encoded bytes that are no text", "GET", f"{MAPS}/%ff%fe", 404, "not found"),
    Attack("URL of 60 kB", "GET", f"{MAPS}/{'a' * 60_000}", 404, "not found"),
    Attack("URL of 100 kB", "GET", f"{MAPS}/{'a' * 100_000}", 400, ""),
    Attack("header of 100 kB", "GET", MAPS, 400, "", headers={"X-Large": "a" * 100_000}),
    Attack("1,000 headers", "GET", MAPS, 400, "", headers={f"X-{n}": "a" for n in range(1000)}),
    Attack("foreign Host", "GET", MAPS, 403, "Host", headers={"Host": "evil.example:80"}),
    Attack(
        "foreign Host, no token",
        "GET",
        "/api",
        403,
        "Host",
        with_token=False,
        headers={"Host": "evil.example"},
    ),
    Attack("no Host", "GET", MAPS, 400, "Host", headers={"Host": ""}),
    Attack("foreign Origin", "GET", MAPS, 403, "Origin", headers={"Origin": "https://evil.example"}),
    Attack("Origin null", "GET", MAPS, 403, "Origin", headers={"Origin": "null"}),
    Attack("Accept that is unknown", "GET", MAPS, 406, "media types", headers={"Accept": "image/png"}),
    Attack("Accept of 60 kB", "GET", MAPS, 406, "media types", headers={"Accept": "a/b," * 15_000}),
)

QUERIES = (
    Attack("limit below zero", "GET", f"{MAPS}?limit=-1", 400, "number"),
    Attack("limit of 30 digits", "GET", f"{MAPS}?limit={'9' * 30}", 400, "number"),
    Attack("continue token of nobody", "GET", f"{MAPS}?continue=%7B%7D", 400, "continue key"),
    Attack("version of nobody", "GET", f"{MAPS}?resourceVersion=abc", 400, "number"),
    Attack("version of the future", "GET", f"{MAPS}?resourceVersion=99999999999999", 504, "Too large"),
    Attack("selector that is none", "GET", f"{MAPS}?labelSelector=a=b=c,,(", 400, "unable to parse"),
    Attack(
        "selector with 20,000 requirements",
        "GET",
        f"{MAPS}?labelSelector=" + ",".join(f"!k{n}" for n in range(9_000)),
        400,
        "at most 1000",
    ),
    Attack(
        "field selector with 9,000 requirements",
        "GET",
        f"{MAPS}?fieldSelector=" + ",".join(["metadata.name!=a"] * 3_000),
        400,
        "at most 1000",
    ),
    Attack(
        "number of 60 digits in a selector",
        "GET",
        f"{MAPS}?labelSelector=a%3E{'9' * 60}",
        400,
        "must be an integer",
    ),
    Attack("selector of a label of 10 kB", "GET", f"{MAPS}?labelSelector={'a' * 10_000}", 400, "63"),
    Attack("field that does not exist", "GET", f"{MAPS}?fieldSelector=a.b=c", 400, "not supported"),
    Attack("dryRun that does not exist", "DELETE", f"{MAPS}/a?dryRun=Some", 422, "Unsupported value"),
)

BODIES = (
    put("POST", "JSON 100,000 levels deep", 400, "deep", lambda: nested(100_000)),
    put("POST", "JSON 990 levels deep", 400, "deep", lambda: free(nested(990))),
    put("POST", "JSON 500 levels deep", 400, "deep", lambda: free(nested(500))),
    put("POST", "lists 500 levels deep", 400, "deep", lambda: free(nested(500, "[", "]"))),
    put("POST", "JSON that does not end", 400, "deep", "[" * 100_000),
    put(
        "POST",
        "doubled keys, deep",
        400,
        "deep",
        lambda: free(DOUBLED_DEEP),
        path=f"{FREE}?fieldValidation=Strict",
    ),
    put(
        "POST",
        "doubled keys",
        400,
        'duplicate field "spec.a"',
        free('{"a":1,"a":2}'),
        path=f"{FREE}?fieldValidation=Strict",
    ),
    put("PATCH", "merge patch, deep", 400, "deep", lambda: nested(900), path=f"{FREE}/a", media=MERGE),
    put(
        "PATCH", "strategic patch, deep", 400, "deep", lambda: nested(900), path=f"{MAPS}/a", media=STRATEGIC
    ),
    put(
        "PATCH",
        "JSON patch, deep value",
        400,
        "deep",
        lambda: [{"op": "add", "path": "/spec", "value": json.loads(nested(900))}],
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put("POST", "YAML, deep", 400, "deep", lambda: YAML_HEAD + nested(400, "[", "]"), media=YAML),
    put("POST", "YAML, very deep", 400, "", lambda: YAML_HEAD + "[" * 200_000, media=YAML),
    put("POST", "YAML, deep by dashes", 400, "", lambda: YAML_HEAD + "\n" + "- " * 20_000 + "a", media=YAML),
    put("POST", "YAML, a billion laughs", 400, "alias", LAUGHS, media=YAML),
    put("POST", "YAML that contains itself", 400, "", YAML_HEAD + "&a [*a]", media=YAML),
    put("POST", "YAML, lists as keys", 400, "key", YAML_HEAD + "{[a]: b}", media=YAML),
    put("POST", "YAML, not a number", 400, "number", YAML_HEAD + ".nan", media=YAML),
    put(
        "POST",
        "YAML, a number of 5,000 digits",
        400,
        "no !!int",
        YAML_HEAD + "!!int " + "9" * 5000,
        media=YAML,
    ),
    put(
        "POST",
        "YAML, base 60",
        400,
        "not a number",
        YAML_HEAD + "[" + "1:" * 700_000 + "1.5, .inf]",
        media=YAML,
    ),
    put("POST", "YAML, half of a character", 400, "", YAML_HEAD + '"\\ud800"', media=YAML),
    put(
        "POST",
        "YAML, Python objects",  # kubectl ignores tags that YAML does not define: it is a list of one text
        201,
        "",
        YAML_HEAD + "!!python/object/apply:os.system [id]",
        media=YAML,
    ),
    put("POST", "NaN", 400, "JSON", free("NaN")),
    put("POST", "Infinity", 400, "JSON", free("-Infinity")),
    put("POST", "number out of range", 400, "JSON", free("1e999")),
    put("POST", "number of 5,000 digits", 400, "JSON", free("9" * 5000)),
    put("POST", "invalid UTF-8", 400, "JSON", b'{"kind":"\xff\xfe"}'),
    put("POST", "half of a character", 400, "JSON", free('"\\ud800"')),
    put("POST", "not JSON", 400, "JSON", b"\x00\x01\x02"),
    put("POST", "empty body", 400, "", b""),
    put("POST", "a list", 400, "object", "[]"),
    put("POST", "media type that is unknown", 415, "unknown format", "{}", media="image/png"),
    put(
        "POST",
        "charset that is unknown",
        415,
        "charset",
        free("1"),
        media="application/json; charset=foo-bar",
    ),
    put(
        "POST", "gzip that is none", 415, "Content-Encoding", free("1"), headers={"Content-Encoding": "gzip"}
    ),
    put(
        "POST",
        "a bomb of gzip",
        415,
        "Content-Encoding",
        lambda: gzip.compress(b"[" * 50_000_000),
        headers={"Content-Encoding": "gzip"},
    ),
    put("POST", "deflate", 415, "Content-Encoding", b"x", headers={"Content-Encoding": "deflate, br"}),
    put("POST", "4 MB", 413, "too large", lambda: free('"' + "a" * 4_000_000 + '"')),
    put("POST", "a length that is a lie", 413, "too large", b"", headers={"Content-Length": "99999999999"}),
    put("POST", "a length that is no number", 400, "", b"", headers={"Content-Length": "-5"}),
    put(
        "POST",
        "two lengths",
        400,
        "",
        b"GET / HTTP/1.1\r\n\r\n",
        headers={"Content-Length": "5", "content-length": "18"},
    ),
    put(
        "POST",
        "length and chunks",
        400,
        "",
        b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        headers={"Content-Length": "5", "Transfer-Encoding": "chunked"},
    ),
    put("POST", "name with NUL", 422, "metadata.name", free("1", "a\\u0000b")),
    put("POST", "name with a slash", 422, "metadata.name", free("1", "a/b")),
    put("POST", "name with dots", 422, "metadata.name", free("1", "..")),
    put("POST", "name with control characters", 422, "metadata.name", free("1", "a\\u001b[2J")),
    put("POST", "name in other letters", 422, "metadata.name", free("1", "ﬁle")),
    put("POST", "name of 1 MB", 422, "253", lambda: free("1", "a" * 1_000_000)),
    put(
        "POST", "package name with NUL", 400, "spec.packageName", revision(packageName="a\0b"), path=REVISIONS
    ),
    put("POST", "repository with NUL", 400, "spec.repository", revision(repository="a\0b"), path=REVISIONS),
    put(
        "POST",
        "ref with NUL",
        400,
        "ref",
        revision(tasks=[{"type": "clone", "clone": {"upstreamRef": {"git": {"ref": "v1\0"}}}}]),
        path=REVISIONS,
    ),
    put(
        "POST",
        "key with NUL",
        400,
        "spec.packageMetadata.labels",
        revision(packageMetadata={"labels": {"a\0b": "c"}}),
        path=REVISIONS,
    ),
    put(
        "POST",
        "date in the year 10000",
        422,
        "date-time",
        lambda: with_dates("10000-01-01T00:00:00Z"),
        path=f"{CORE}/namespaces/default/events",
    ),
    put(
        "POST",
        "date below zero",
        422,
        "date-time",
        lambda: with_dates("-3166904"),
        path=f"{CORE}/namespaces/default/events",
    ),
    put(
        "POST",
        "metadata that is no object",
        400,
        "metadata",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": "a"},
        path=MAPS,
    ),
    put("POST", "data that is no object", 400, "data", config(["a"]), path=MAPS),
    put("POST", "labels that are no texts", 400, "labels", config({}, labels={"a": {"b": "c"}}), path=MAPS),
    put(
        "POST",
        "owner that is no object",
        400,
        "ownerReferences",
        config({}, ownerReferences=["a"]),
        path=MAPS,
    ),
    put("POST", "label of 1 MB", 422, "63", lambda: config({}, labels={"a": "b" * 1_000_000}), path=MAPS),
    put(
        "POST",
        "annotations of 1 MB",
        422,
        "Too long",
        lambda: config({}, annotations={"a": "b" * 1_000_000}),
        path=MAPS,
    ),
    put(
        "POST",
        "100,000 labels that are wrong",
        422,
        "more",
        lambda: config({}, labels={f"a b{n}": "" for n in range(100_000)}),
        path=MAPS,
    ),
    put(
        "POST",
        "100,000 fields that are unknown",
        400,
        "more",
        lambda: widget("w", spec={f"x{n}": 1 for n in range(100_000)}),
        path=f"{WIDGETS}?fieldValidation=Strict",
    ),
    put(
        "POST",
        "secret with numbers",
        400,
        "stringData",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": 1}},
        path=f"{CORE}/namespaces/default/secrets",
    ),
    put(
        "POST",
        "secret with a list",
        400,
        "stringData",
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": ["a"]},
        path=f"{CORE}/namespaces/default/secrets",
    ),
    put("DELETE", "options that are a list", 400, "object", [], path=f"{MAPS}/a"),
    put(
        "DELETE",
        "preconditions that are a text",
        400,
        "preconditions",
        {"preconditions": "x"},
        path=f"{MAPS}/a",
    ),
    put("DELETE", "uid that is a number", 400, "uid", {"preconditions": {"uid": 5}}, path=f"{MAPS}/a"),
    put("DELETE", "dryRun that is a number", 400, "dryRun", {"dryRun": 5}, path=f"{MAPS}/a"),
    put(
        "DELETE",
        "policy that is a list",
        400,
        "propagationPolicy",
        {"propagationPolicy": []},
        path=f"{MAPS}/a",
    ),
    put(
        "POST",
        "review, deep",
        400,
        "deep",
        lambda: nested(900),
        path="/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    ),
    put(
        "POST",
        "review of 5 MB",
        413,
        "too large",
        lambda: nested(1, inside='"' + "a" * 5_000_000 + '"'),
        path="/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    ),
)

PATCHES = (
    put(
        "PATCH",
        "100,000 operations",
        413,
        "maximum operations",
        lambda: (
            [{"op": "test", "path": "/a", "value": 1}] * 100_000
            if False
            else b"[" + b",".join([b'{"op":"test","path":"/a"}'] * 100_000) + b"]"
        ),
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put(
        "PATCH",
        "an object copied into itself 1,000 times",
        422,
        "copy",
        lambda: [{"op": "copy", "from": "/spec", "path": "/spec/a"}] * 1000,
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put(
        "PATCH",
        "a list copied into itself 1,000 times",
        422,
        "copy",
        lambda: [{"op": "copy", "from": "/spec/list", "path": "/spec/list/-"}] * 1000,
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put(
        "PATCH",
        "an object moved deeper 1,000 times",
        422,
        "deep",
        lambda: [
            step
            for _ in range(1000)
            for step in (
                {"op": "add", "path": "/x", "value": {}},
                {"op": "move", "from": "/spec", "path": "/x/a"},
                {"op": "move", "from": "/x", "path": "/spec"},
            )
        ],
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put(
        "PATCH",
        "a long list moved 10,000 times",
        422,
        "list",
        lambda: (
            b'[{"op":"add","path":"/spec/list","value":['
            + b",".join([b"1"] * 1_000_000)
            + b"]},"
            + b",".join([b'{"op":"add","path":"/spec/list/0","value":1}'] * 9_000)
            + b"]"
        ),
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put(
        "PATCH",
        "pointer of 100,000 steps",
        422,
        "",
        lambda: [{"op": "add", "path": "/a" * 100_000, "value": 1}],
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put(
        "PATCH",
        "pointer that is a number",
        422,
        "path",
        [{"op": "add", "path": 5, "value": 1}],
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put(
        "PATCH",
        "operation that is a list",
        422,
        "operation",
        [{"op": [], "path": "/a", "value": 1}],
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put(
        "PATCH",
        "index of 5,000 digits",
        422,
        "index",
        [{"op": "add", "path": "/spec/list/" + "9" * 5000, "value": 1}],
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put(
        "PATCH",
        "index in other digits",
        422,
        "index",
        [{"op": "replace", "path": "/spec/list/²", "value": 1}],
        path=f"{FREE}/a",
        media=STEPS,
    ),
    put(
        "PATCH",
        "order that is a number",
        400,
        "",
        {"metadata": {"$setElementOrder/finalizers": 5}},
        path=f"{MAPS}/a",
        media=STRATEGIC,
    ),
    put(
        "PATCH",
        "drops that are a number",
        400,
        "",
        {"metadata": {"$deleteFromPrimitiveList/finalizers": 5}},
        path=f"{MAPS}/a",
        media=STRATEGIC,
    ),
    put(
        "PATCH",
        "retained keys that are a number",
        400,
        "",
        {"$retainKeys": 5},
        path=f"{MAPS}/a",
        media=STRATEGIC,
    ),
    put(
        "PATCH",
        "lists as members of a set",
        400,
        "",
        {"metadata": {"finalizers": [["a"]]}},
        path=f"{MAPS}/a",
        media=STRATEGIC,
    ),
    put(
        "PATCH",
        "metadata that becomes a text",
        400,
        "metadata",
        {"metadata": "a"},
        path=f"{MAPS}/a",
        media=MERGE,
    ),
    put(
        "PATCH",
        "apply 300 levels deep",
        400,
        "deep",
        lambda: b'{"a":' * 300 + b"1" + b"}" * 300,
        path=f"{MAPS}/a?fieldManager=x",
        media="application/apply-patch+yaml",
    ),
)

DEFINITIONS = (
    put("POST", "schema 300 levels deep", 400, "deep", lambda: schema_crd(deep_schema(300)), path=CRDS),
    put(
        "POST",
        "schema with $ref",
        422,
        "$ref is not supported",
        schema_crd({"$ref": "#/definitions/x"}),
        path=CRDS,
    ),
    put(
        "POST",
        "schema with 60,000 fields",
        422,
        "at most",
        lambda: schema_crd(
            {"type": "object", "properties": {f"f{n}": {"type": "string"} for n in range(60_000)}}
        ),
        path=CRDS,
    ),
    put(
        "POST",
        "schema with 2,000 rules",
        422,
        "at most",
        lambda: schema_crd(
            {
                "type": "string",
                "x-kubernetes-validations": [{"rule": f"self != 'a{n}'"} for n in range(2_000)],
            }
        ),
        path=CRDS,
    ),
    put(
        "POST",
        "300 rules of 4 kB",
        422,
        "shorten or remove some",
        lambda: schema_crd(
            {
                "type": "integer",
                "x-kubernetes-validations": [
                    {"rule": f"self != {n} && " + "self > 1 && " * 330 + "true"} for n in range(300)
                ],
            }
        ),
        path=CRDS,
    ),
    put(
        "POST",
        "rule of 100 kB",
        422,
        "rule",
        lambda: schema_crd(
            {"type": "string", "x-kubernetes-validations": [{"rule": "self == " + "'a' + " * 20_000 + "'a'"}]}
        ),
        path=CRDS,
    ),
    put(
        "POST",
        "rule that is 5,000 brackets",
        422,
        "rule",
        lambda: schema_crd(
            {
                "type": "string",
                "x-kubernetes-validations": [{"rule": "(" * 1_500 + "self" + ")" * 1_500 + " == 'a'"}],
            }
        ),
        path=CRDS,
    ),
    put(
        "POST",
        "pattern that is none",
        422,
        "regular expression",
        schema_crd({"type": "string", "pattern": "("}),
        path=CRDS,
    ),
    put(
        "POST",
        "pattern with a look back",
        422,
        "regular expression",
        schema_crd({"type": "string", "pattern": "(a)\\1"}),
        path=CRDS,
    ),
    put(
        "POST",
        "pattern that is huge",
        422,
        "pattern",
        schema_crd({"type": "string", "pattern": "((a{1,100}){1,100}){1,100}"}),
        path=CRDS,
    ),
    put(
        "POST",
        "pattern of 100 kB",
        422,
        "pattern",
        lambda: schema_crd({"type": "string", "pattern": "a?" * 50_000}),
        path=CRDS,
    ),
    put(
        "POST",
        "group of 100 kB",
        422,
        "spec.group",
        lambda: crd("gadgets", "Gadget", group="a" * 100_000 + "!"),
        path=CRDS,
    ),
    put(
        "POST",
        "webhook conversion",
        422,
        "conversion",
        crd("gadgets", "Gadget", conversion={"strategy": "Webhook"}),
        path=CRDS,
    ),
    put(
        "POST",
        "versions that are texts",
        400,
        "versions",
        crd("gadgets", "Gadget", versions=["v1"]),
        path=CRDS,
    ),
    put("POST", "names that are a text", 400, "names", crd("gadgets", "Gadget", names="x"), path=CRDS),
    put(
        "POST",
        "spec that is a list",
        400,
        "spec",
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "a.b.c"},
            "spec": [],
        },
        path=CRDS,
    ),
    put(
        "POST",
        "no spec",
        422,
        "spec",
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "a.b.c"},
        },
        path=CRDS,
    ),
    put(
        "POST",
        "properties that are a list",
        400,
        "properties",
        schema_crd({"type": "object", "properties": ["a"]}),
        path=CRDS,
    ),
    put(
        "POST",
        "a property that is a text",
        400,
        "properties",
        schema_crd({"type": "object", "properties": {"a": "b"}}),
        path=CRDS,
    ),
    put("POST", "type that is a list", 400, "type", schema_crd({"type": ["string"]}), path=CRDS),
    put(
        "POST",
        "pattern that is a number",
        400,
        "pattern",
        schema_crd({"type": "string", "pattern": 5}),
        path=CRDS,
    ),
    put(
        "POST",
        "minimum that is a text",
        400,
        "minimum",
        schema_crd({"type": "integer", "minimum": "a"}),
        path=CRDS,
    ),
    put(
        "POST",
        "required that is a text",
        400,
        "required",
        schema_crd({"type": "object", "required": "a"}),
        path=CRDS,
    ),
    put(
        "POST",
        "rules that are a text",
        400,
        "x-kubernetes-validations",
        schema_crd({"type": "string", "x-kubernetes-validations": "a"}),
        path=CRDS,
    ),
    put(
        "POST",
        "columns that are texts",
        400,
        "additionalPrinterColumns",
        lambda: with_columns(["a"]),
        path=CRDS,
    ),
    put(
        "POST",
        "column path that takes for ever",
        201,
        "gadgets",
        lambda: with_columns([{"name": "A", "type": "string", "jsonPath": ".a[" + '""' * 60}]),
        path=CRDS,
    ),
    put(
        "POST",
        "column path of 100 kB",
        422,
        "jsonPath",
        lambda: with_columns([{"name": "A", "type": "string", "jsonPath": ".a" * 50_000}]),
        path=CRDS,
    ),
)


def with_columns(columns: Any) -> Any:
    made = crd("gadgets", "Gadget")
    made["spec"]["versions"][0]["additionalPrinterColumns"] = columns
    return made


ALL: tuple[Attack, ...] = (*TRANSPORT, *QUERIES, *BODIES, *PATCHES, *DEFINITIONS)
