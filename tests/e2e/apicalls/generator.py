"""Random calls of a round, from a seed. A round has a namespace of its own, and three names of each kind."""

from random import Random
from typing import Any

from tests.e2e.apicalls.calls import Call
from tests.e2e.apicalls.objects import KINDS, NAMES, STATUSES, WEIGHTS, KindOf, some, word

Json = Any

AGENTS = ("kubectl/v1.36.3 (linux/amd64)", "controller-manager", "tester/1.0")
APPLIERS = ("alice", "bob", "kubectl", "kustomize-controller")
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

VERBS = {
    "create": 12,
    "update": 12,
    "merge": 9,
    "json_patch": 6,
    "strategic": 6,
    "apply": 20,
    "status": 7,
    "get": 6,
    "list": 9,
    "delete": 6,
    "delete_collection": 1,
    "watch": 1,
    "bad": 2,
}


def calls_of(seed: str, count: int) -> list[Call]:
    """Return the calls of a round."""
    made = Generator(Random(seed))
    found: list[Call] = []
    while len(found) < count:
        found += made.next()
    return found


class Generator:
    """Makes one call after another; it knows nothing of the answers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._markers = 0
        self._made = 0

    def next(self) -> list[Call]:
        kind = self._random.choices(KINDS, WEIGHTS)[0]
        verb = self._random.choices(list(VERBS), list(VERBS.values()))[0]
        made: list[Call] | Call = getattr(self, f"_{verb}")(kind)
        return made if isinstance(made, list) else [made]

    def _happens(self, share: float) -> bool:
        return self._random.random() < share

    def _name(self, kind: KindOf) -> str:
        return self._random.choice(kind.names())

    def _agent(self) -> str:
        return self._random.choice(AGENTS)

    # ------------------------------------------------------------ objects

    def _metadata(self, kind: KindOf, name: str) -> dict[str, Json]:
        random = self._random
        labels = {"app": word(random)} | some(random, {"tier": word, "example.com/x": word}, 0.3)
        metadata: dict[str, Json] = {"name": name}
        if self._happens(0.5):
            metadata["labels"] = labels
        if self._happens(0.3):
            metadata["annotations"] = {f"example.com/{word(random)}": word(random)}
        if self._happens(0.05):
            metadata["finalizers"] = random.sample(
                ["example.com/hold", "example.com/wait"], random.randint(1, 2)
            )
        if self._happens(0.04):
            owner = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": "owner",
                "uid": "<uid:configmaps/owner>",
            }
            metadata["ownerReferences"] = [owner | some(random, {"controller": lambda _: True}, 0.3)]
        if self._happens(0.04):
            metadata |= self._bad_metadata()
        if kind.namespaced and self._happens(0.1):
            metadata["namespace"] = "{ns}"
        return metadata

    def _bad_metadata(self) -> dict[str, Json]:
        return self._random.choice(
            [
                {"labels": {"bad key!": "x"}},
                {"labels": {"app": "not a value"}},
                {"labels": {"app": 1}},
                {"annotations": {"bad key!": "x"}},
                {"finalizers": ["no-domain"]},
                {"namespace": "elsewhere"},
                {"name": "Bad_Name"},
                {"uid": "<uid:none>"},
                {"resourceVersion": "1"},
                {"generation": 7},
                {"creationTimestamp": "2020-01-01T00:00:00Z"},
                {"managedFields": []},
                {"managedFields": [{}]},
                {"managedFields": [{"manager": "x", "operation": "Bad"}]},
                {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}]},
                {"unknown": 1},
                {"labels": None},
            ]
        )

    def _object(self, kind: KindOf, name: str) -> dict[str, Json]:
        made: dict[str, Json] = {"apiVersion": kind.api_version, "kind": kind.kind}
        made["metadata"] = self._metadata(kind, name)
        made |= kind.fields(self._random)
        if self._happens(0.02):
            made |= self._random.choice([{"kind": "Other"}, {"apiVersion": "v2"}, {"metadata": None}])
        return made

    def _written(self, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        """Return the options of a write."""
        query = list(more)
        if self._happens(0.3):
            query.append(("fieldManager", self._random.choice(["carol", "dave", "alice"])))
        if self._happens(0.08):
            query.append(("dryRun", "All"))
        if self._happens(0.1):
            query.append(("fieldValidation", self._random.choice(["Strict", "Warn", "Ignore"])))
        if not query and self._happens(0.02):
            query.append(
                self._random.choice([("dryRun", "Some"), ("fieldValidation", "No"), ("force", "true")])
            )
        return tuple(query)

    # ------------------------------------------------------------ writes

    def _create(self, kind: KindOf) -> Call:
        obj = self._object(kind, self._name(kind))
        if self._happens(0.15) and isinstance(obj["metadata"], dict):
            self._made += 1
            obj["metadata"].pop("name", None)
            prefix = "" if kind.namespaced else "{ns}-"
            obj["metadata"]["generateName"] = f"{prefix}made-{100 + self._made}-"
        return Call("POST", kind.root, self._written(), obj, agent=self._agent())

    def _update(self, kind: KindOf) -> Call:
        name = self._name(kind)
        obj = self._object(kind, name)
        if self._happens(0.75) and isinstance(obj["metadata"], dict):
            obj["metadata"].setdefault("resourceVersion", f"<rv:{kind.plural}/{name}>")
        return Call("PUT", f"{kind.root}/{name}", self._written(), obj, agent=self._agent())

    def _change(self, kind: KindOf) -> dict[str, Json]:
        """Return the body of a merge patch."""
        obj = self._object(kind, "x")
        metadata = obj.pop("metadata", None)
        obj.pop("apiVersion")
        obj.pop("kind")
        if isinstance(metadata, dict) and self._happens(0.5):
            metadata.pop("name", None)
            obj["metadata"] = metadata
        if self._happens(0.2):
            obj |= self._random.choice([{"spec": None}, {"data": None}, {"metadata": {"labels": None}}, {}])
        return obj

    def _merge(self, kind: KindOf) -> Call:
        body = self._change(kind)
        return self._patch(kind, MERGE, body)

    def _strategic(self, kind: KindOf) -> Call:
        return self._patch(kind, STRATEGIC, self._change(kind))

    def _patch(self, kind: KindOf, media: str, body: Json) -> Call:
        path = f"{kind.root}/{self._name(kind)}"
        return Call("PATCH", path, self._written(), body, media, self._agent())

    def _json_patch(self, kind: KindOf) -> Call:
        random = self._random
        steps: list[Json] = []
        for _ in range(random.randint(1, 3)):
            value = self._random.choice([word(random), 1, {"one": word(random)}, ["one"], None])
            path = random.choice(
                [
                    "/metadata/labels/app",
                    "/metadata/labels",
                    "/metadata/annotations",
                    "/data/one",
                    "/data",
                    "/spec/size",
                    "/spec/tags/0",
                    "/spec/tags/-",
                    "/spec/ports/0/port",
                    "/spec/deep/inner/one",
                    "/spec/nothing",
                    "/metadata/managedFields",
                ]
            )
            step: dict[str, Json] = {
                "op": random.choice(["add", "add", "replace", "remove", "test"]),
                "path": path,
            }
            if step["op"] != "remove":
                step["value"] = value
            steps.append(step)
        if self._happens(0.05):
            steps = [
                random.choice([{"op": "jump", "path": "/x"}, {"op": "add"}, {"op": "copy", "path": "/x"}])
            ]
        return self._patch(kind, JSON_PATCH, steps)

    def _apply(self, kind: KindOf) -> Call:
        name = self._name(kind)
        config = self._object(kind, name)
        metadata = config["metadata"]
        if isinstance(metadata, dict) and self._happens(0.02):
            metadata["resourceVersion"] = f"<rv:{kind.plural}/{name}>"
        query: list[tuple[str, str]] = []
        if not self._happens(0.02):
            query.append(("fieldManager", self._random.choice(APPLIERS)))
        if self._happens(0.4):
            query.append(("force", "true"))
        if self._happens(0.08):
            query.append(("dryRun", "All"))
        if self._happens(0.05):
            query.append(("fieldValidation", self._random.choice(["Strict", "Ignore"])))
        suffix = ""
        if kind.plural in STATUSES and self._happens(0.15):
            suffix = "/status"
            config["status"] = STATUSES[kind.plural](self._random)
        path = f"{kind.root}/{name}{suffix}"
        return Call("PATCH", path, tuple(query), config, APPLY, self._agent())

    def _status(self, kind: KindOf) -> Call:
        make = STATUSES.get(kind.plural)
        if make is None:
            return self._update(kind)
        name = self._name(kind)
        path = f"{kind.root}/{name}/status"
        if self._happens(0.5):
            body = {"status": make(self._random)}
            if self._happens(0.2):
                body |= {"metadata": {"labels": {"app": "status"}}, "spec": {"size": 3}}
            return Call("PATCH", path, self._written(), body, MERGE, self._agent())
        obj = self._object(kind, name) | {"status": make(self._random)}
        if isinstance(obj["metadata"], dict):
            obj["metadata"].setdefault("resourceVersion", f"<rv:{kind.plural}/{name}>")
        return Call("PUT", path, self._written(), obj, agent=self._agent())

    # ------------------------------------------------------------ reads

    def _get(self, kind: KindOf) -> Call:
        suffix = "/status" if kind.has_status and self._happens(0.1) else ""
        return Call("GET", f"{kind.root}/{self._name(kind)}{suffix}")

    def _selected(self, kind: KindOf) -> list[tuple[str, str]]:
        random = self._random
        query = []
        if self._happens(0.5):
            labels = [
                "app=one",
                "app!=one",
                "app in (one,two)",
                "app notin (one)",
                "app",
                "!app",
                "tier=two,app",
                "app==",
            ]
            query.append(("labelSelector", random.choice([*labels, "app in", "=x"])))
        if self._happens(0.3):
            fields = [
                f"metadata.name={self._name(kind)}",
                f"metadata.name!={self._name(kind)}",
                "spec.size=3",
                "bad",
            ]
            query.append(("fieldSelector", random.choice([*fields, "metadata.namespace={ns}"])))
        return query

    def _list(self, kind: KindOf) -> Call:
        query = self._selected(kind)
        random = self._random
        if not kind.namespaced:
            query = [("labelSelector", "kubernetes.io/metadata.name in ({ns}-a,{ns}-b)")]
        if self._happens(0.4):
            query.append(("limit", random.choice(["1", "2", "0", "x"])))
        if self._happens(0.2):
            query.append(("continue", random.choice([f"<continue:{kind.plural}>", "bad"])))
        if self._happens(0.15):
            query.append(("resourceVersion", random.choice(["0", f"<rv:{kind.plural}>", "x"])))
        if self._happens(0.1):
            query.append(("resourceVersionMatch", random.choice(["Exact", "NotOlderThan", "No"])))
        return Call("GET", kind.root, tuple(query))

    def _watch(self, kind: KindOf) -> list[Call]:
        """List, write, and watch from the list on, until the last write is there."""
        if not kind.namespaced:
            return [self._list(kind)]
        self._markers += 1
        name = f"marker-{self._markers}"
        marker: dict[str, Json] = {"apiVersion": kind.api_version, "kind": kind.kind}
        marker |= {"metadata": {"name": name, "labels": {"app": "one"}}, **_least(kind)}
        query = [("watch", "true"), ("resourceVersion", f"<rv:{kind.plural}>")]
        if self._happens(0.5):
            query.append(("labelSelector", "app=one"))
        return [
            Call("GET", kind.root),
            self._create(kind),
            self._merge(kind),
            self._delete(kind)[0],
            Call("POST", kind.root, (), marker),
            Call("GET", kind.root, tuple(query), until=name),
        ]

    # ------------------------------------------------------------ deletes

    def _delete(self, kind: KindOf) -> list[Call]:
        if not kind.namespaced:
            return [self._get(kind)]
        random = self._random
        name = random.choice([*NAMES, "<made:0>"])
        options: dict[str, Json] = {}
        if self._happens(0.3):
            options["preconditions"] = random.choice(
                [
                    {"uid": f"<uid:{kind.plural}/{name}>"},
                    {"resourceVersion": f"<rv:{kind.plural}/{name}>"},
                    {"uid": "<uid:none>"},
                    {"resourceVersion": "1"},
                ]
            )
        if self._happens(0.1):
            options["propagationPolicy"] = random.choice(["Background", "No"])
        # With a body, kube-apiserver takes no options from the query: there a dry run would delete.
        query = (("dryRun", "All"),) if self._happens(0.1) and not options else ()
        if options and self._happens(0.1):
            options["dryRun"] = ["All"]
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options} if options else None
        return [Call("DELETE", f"{kind.root}/{name}", query, body)]

    def _delete_collection(self, kind: KindOf) -> Call:
        if not kind.namespaced or kind.plural == "configmaps":
            return self._list(kind)
        query = [("labelSelector", self._random.choice(["app=one", "app!=one", "app"]))]
        return Call("DELETE", kind.root, tuple(query))

    # ------------------------------------------------------------ bad requests

    def _bad(self, kind: KindOf) -> Call:
        path = f"{kind.root}/{self._name(kind)}"
        return self._random.choice(
            [
                Call("POST", kind.root, (), "{"),
                Call("POST", kind.root, (), "[]"),
                Call("POST", kind.root, (), ""),
                Call("POST", path, (), {}),
                Call("PUT", path, (), "no json"),
                Call("PATCH", path, (), "{", MERGE),
                Call("PATCH", path, (), "[]", MERGE),
                Call("PATCH", path, (), "{}", JSON_PATCH),
                Call("PATCH", path, (("fieldManager", "x"),), "[", APPLY),
                Call("PATCH", path, (("fieldManager", "x"),), "[]", APPLY),
                Call("PATCH", path, (("fieldManager", "x"),), "{}", APPLY),
                Call("PATCH", path, (), "{}", "text/plain"),
                Call("PATCH", kind.root, (), "{}", MERGE),
                Call("GET", f"{path}/none"),
                Call("PUT", kind.root, (), {}),
                Call("PATCH", path, (("fieldManager", "\x07"),), "{}", MERGE),
                Call("PATCH", path, (("fieldManager", "x" * 129),), "{}", MERGE),
                Call("DELETE", path, (), {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": 1}),
            ]
        )


def _least(kind: KindOf) -> dict[str, Json]:
    """Return the fields that every object of a kind needs."""
    if kind.kind == "PackageVariant":
        return {"spec": {"upstream": {"repo": "r", "package": "p"}, "downstream": {"repo": "r"}}}
    if kind.kind == "Event":
        return {"involvedObject": {"namespace": "{ns}", "name": "x"}}
    return {}
