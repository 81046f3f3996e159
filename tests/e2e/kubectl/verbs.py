"""The verbs, on any kind: what kubectl says, how it ends, and what is stored afterwards."""

from tests.e2e.kubectl.driver import WIDGET, Case, Step, Subject

NOT_FOUND = r'Error from server \(NotFound\): .*\S+ "a" not found'
SIZE = "{.$holder.size}"


def verbs(subject: Subject) -> list[Case]:
    """Return the cases, with the manifests of this subject."""
    manifest = subject.manifest()
    two = subject.manifest(size="2")
    labelled = subject.manifest(metadata={"labels": {"app": "x"}})
    size = f".{subject.holder}.size"
    creating = Step("create -f -", "$full created\n", stdin=manifest)
    return [
        Case(
            "create",
            (
                creating,
                Step("create -f -", code=1, err=r'AlreadyExists.*"a" already exists', stdin=two),
            ),
            {
                size: ["1"],
                ".metadata.namespace": ["$ns"],
                ".metadata.managedFields[*].manager": ["kubectl-create"],
            },
        ),
        Case(
            "create --dry-run=server",
            (Step("create -f - --dry-run=server", "$full created (server dry run)\n", stdin=manifest),),
            None,
        ),
        Case(
            "create: unknown fields are refused",
            (
                Step(
                    "create -f -",
                    code=1,
                    err=r'BadRequest.*strict decoding error: unknown field "extra"',
                    stdin=manifest + "extra: 1\n",
                ),
            ),
            None,
        ),
        Case(
            "create --validate=warn",
            (
                Step(
                    "create -f - --validate=warn",
                    "$full created\n",
                    err='Warning: unknown field "extra"',
                    stdin=manifest + "extra: 1\n",
                ),
            ),
            {size: ["1"], ".extra": []},
        ),
        Case(
            "create --validate=ignore",
            (Step("create -f - --validate=ignore", "$full created\n", stdin=manifest + "extra: 1\n"),),
            {size: ["1"], ".extra": []},
        ),
        Case(
            "create: a name that is none",
            (
                Step(
                    "create -f -",
                    code=1,
                    err=r'"A_B" is invalid: metadata.name: Invalid value: "A_B": a lowercase RFC 1123',
                    stdin=subject.manifest(name="A_B"),
                ),
            ),
            None,
        ),
        Case(
            "apply",
            (
                Step("apply -f -", "$full created\n", stdin=labelled),
                Step("apply -f -", "$full unchanged\n", stdin=labelled),
                Step("apply -f -", "$full configured\n", stdin=two),
            ),
            {size: ["2"], ".metadata.labels.app": []},
        ),
        Case(
            "apply over what create made",
            (
                creating,
                Step("apply -f -", "$full configured\n", err="missing the kubectl.kubernetes.io", stdin=two),
                Step("apply -f -", "$full unchanged\n", stdin=two),
            ),
            {size: ["2"]},
        ),
        Case(
            "apply --server-side",
            (
                Step("apply --server-side -f -", "$full serverside-applied\n", stdin=manifest),
                Step("apply --server-side -f -", "$full serverside-applied\n", stdin=two),
            ),
            {size: ["2"], ".metadata.managedFields[*].manager": ["kubectl"]},
        ),
        Case(
            "replace",
            (
                Step("replace -f -", code=1, err=NOT_FOUND, stdin=manifest),
                Step("create -f -", "$full created\n", stdin=labelled),
                Step("replace -f -", "$full replaced\n", stdin=two),
            ),
            {size: ["2"], ".metadata.labels.app": []},
        ),
        Case(
            "replace with a stale resourceVersion",
            (
                creating,
                Step(
                    "replace -f -",
                    code=1,
                    err="Conflict.*has been modified; please apply your changes to the latest version",
                    stdin=subject.manifest(size="2", metadata={"resourceVersion": "1"}),
                ),
            ),
            {size: ["1"]},
        ),
        Case(
            "replace --force",
            (creating, Step("replace --force -f -", "~.*$full replaced\n", stdin=two)),
            {size: ["2"]},
        ),
        Case(
            "patch --type merge",
            (
                creating,
                Step("""patch $r a --type merge -p '{"$holder":{"size":"2"}}'""", "$full patched\n"),
                Step(
                    """patch $r a --type merge -p '{"$holder":{"size":"2"}}'""", "$full patched (no change)\n"
                ),
                Step(
                    """patch $r b --type merge -p '{"$holder":{"size":"2"}}'""", code=1, err='"b" not found'
                ),
            ),
            {size: ["2"]},
        ),
        Case(
            "patch --type json",
            (
                creating,
                Step(
                    """patch $r a --type json -p '[{"op":"replace","path":"/$holder/size","value":"3"}]'""",
                    "$full patched\n",
                ),
                Step(
                    """patch $r a --type json -p '[{"op":"test","path":"/$holder/size","value":"4"}]'""",
                    code=1,
                    err="The request is invalid: .*test failed",
                ),
            ),
            {size: ["3"]},
        ),
        Case(
            "edit",
            (
                creating,
                Step("edit $r a", "$full edited\n"),
                Step("edit $r a", err="Edit cancelled, no changes made."),
            ),
            {size: ["7"]},
        ),
        Case(
            "label",
            (
                creating,
                Step("label $r a app=x tier=y", "$full labeled\n"),
                Step("label $r a app=z", code=1, err="already has a value .x., and --overwrite is false"),
                Step("label $r a app=z --overwrite", "$full labeled\n"),
                Step("label $r a app=z --overwrite", "$full not labeled\n"),
                Step("label $r a tier-", "$full unlabeled\n"),
                Step("label $r a app=-", code=1, err="a valid label must be an empty string or consist of"),
            ),
            {".metadata.labels": [{"app": "z"}]},
        ),
        Case(
            "annotate",
            (
                creating,
                Step("annotate $r a example.com/note='a b' other=1", "$full annotated\n"),
                Step("annotate $r a other-", "$full annotated\n"),
            ),
            {".metadata.annotations": [{"example.com/note": "a b"}]},
        ),
        Case(
            "get -o yaml, json, name, jsonpath, custom-columns",
            (
                creating,
                Step(
                    "get $r a -o yaml",
                    r"~apiVersion: .*kind: \w+\nmetadata:\n  creationTimestamp: .*uid: .*size: \"1\"\n",
                )
                if subject is WIDGET
                else Step(
                    "get $r a -o yaml", r'~apiVersion: v1\ndata:\n  size: "1"\nkind: ConfigMap\n.*uid: .*'
                ),
                Step("get $r a -o name", "$full\n"),
                Step("get $r a -o jsonpath='" + SIZE + "'", "1"),
                Step("get $r -o custom-columns=N:.metadata.name,S:.$holder.size", r"~N +S\na +1\n"),
                Step("get $r -o json", r'~.*"name": "a".*"kind": "List".*'),
            ),
            {size: ["1"]},
        ),
        Case(
            "get what is not there",
            (
                Step("get $r", err="No resources found in $ns namespace."),
                Step("get $r a", code=1, err=NOT_FOUND),
                Step("get $r a --ignore-not-found"),
                Step("get nothings", code=1, err='the server doesn\'t have a resource type "nothings"'),
            ),
            None,
        ),
        Case(
            "get -l, every operator",
            (
                Step("create -f -", "$full created\n", stdin=labelled),
                Step(
                    "create -f -",
                    "$printed/b created\n",
                    stdin=subject.manifest(name="b", metadata={"labels": {"app": "w", "num": "5"}}),
                ),
                Step("create -f -", "$printed/c created\n", stdin=subject.manifest(name="c")),
                *(
                    Step(f"get $r -o name -l '{selector}'", "".join(f"$printed/{name}\n" for name in names))
                    for selector, names in (
                        ("app=x", "a"),
                        ("app==w", "b"),
                        ("app!=x", "bc"),
                        ("app in (x,w)", "ab"),
                        ("app notin (x)", "bc"),
                        ("app", "ab"),
                        ("!app", "c"),
                        ("num>4", "b"),
                        ("num<5", ""),
                        ("app=w,num=5", "b"),
                    )
                ),
                Step(
                    "get $r -l 'app in x'",
                    code=1,
                    err="unable to parse requirement: found 'x', expected: '\\('",
                ),
            ),
            {".metadata.labels.app": ["x"]},
        ),
        Case(
            "get --field-selector",
            (
                creating,
                Step("create -f -", "$printed/b created\n", stdin=subject.manifest(name="b")),
                Step("get $r -o name --field-selector metadata.name=b", "$printed/b\n"),
                Step("get $r -o name --field-selector metadata.name!=b", "$full\n"),
                Step("get $r -o name -A --field-selector metadata.namespace=$ns", "$full\n$printed/b\n"),
                Step(
                    "get $r --field-selector $holder.size=1",
                    code=1,
                    err="field label not supported: $holder.size",
                ),
            ),
            {size: ["1"]},
        ),
        Case(
            "get --chunk-size",
            (
                *(
                    Step("create -f -", f"$printed/{name} created\n", stdin=subject.manifest(name=name))
                    for name in "cab"
                ),
                Step("get $r --chunk-size=1 -o name", "$full\n$printed/b\n$printed/c\n"),
                Step("get $r --chunk-size=2 --no-headers", r"~a .*\nb .*\nc .*\n"),
                Step("get $r --chunk-size=0 -o name", "$full\n$printed/b\n$printed/c\n"),
            ),
            {size: ["1"]},
        ),
        Case(
            "delete",
            (
                creating,
                Step("delete $r a", r'~$printed "a" deleted.*\n'),
                Step("delete $r a", code=1, err=NOT_FOUND),
                Step("delete $r a --ignore-not-found"),
            ),
            None,
        ),
        Case(
            "delete --all, -l and -f",
            (
                creating,
                Step("delete $r -l app=x", "No resources found\n"),
                Step("create -f -", "$printed/b created\n", stdin=subject.manifest(name="b")),
                Step("delete -f -", r'~$printed "b" deleted.*\n', stdin=subject.manifest(name="b")),
                Step("delete $r --all", r'~$printed "a" deleted.*\n'),
            ),
            None,
        ),
        Case(
            "delete waits for finalizers",
            (
                Step(
                    "create -f -",
                    "$full created\n",
                    stdin=subject.manifest(metadata={"finalizers": ["example.com/hold"]}),
                ),
                Step("delete $r a --wait=false", r'~$printed "a" deleted.*\n'),
                Step(
                    "delete $r a --timeout=1s", r'~$printed "a" deleted.*\n', code=1, err="timed out waiting"
                ),
                Step("wait --for=delete $full --timeout=1s", code=1, err="timed out waiting"),
                Step("get $r a -o jsonpath={.metadata.deletionGracePeriodSeconds}", "0"),
                Step("""patch $r a --type merge -p '{"metadata":{"finalizers":null}}'""", "$full patched\n"),
                Step("wait --for=delete $full --timeout=10s"),
            ),
            None,
        ),
        Case(
            "wait for a value",
            (
                creating,
                Step(f"wait --for=jsonpath='{SIZE}'=1 $full --timeout=10s", "$full condition met\n"),
                Step(f"wait --for=jsonpath='{SIZE}'=2 $full --timeout=1s", code=1, err="timed out waiting"),
            ),
            {size: ["1"]},
        ),
        Case(
            "describe and events",
            (
                creating,
                Step("describe $r a", "~Name: +a\nNamespace: +$ns\nLabels: +<none>\n.*Events: +<none>\n"),
                Step("create -f -", "event/made created\n", stdin=_event(subject)),
                Step(
                    "events --for $r/a",
                    r"~LAST SEEN +TYPE +REASON +OBJECT +MESSAGE\n\S+ +Normal +Made +\w+/a +It was made\n",
                ),
                Step("get events --field-selector involvedObject.name=a -o name", "event/made\n"),
                Step("get events --field-selector reason!=Made -o name"),
                Step(
                    "get events",
                    r"~LAST SEEN +TYPE +REASON +OBJECT +MESSAGE\n\S+ +Normal +Made +\w+/a +It was.*",
                ),
                Step("get events.v1.events.k8s.io made -o jsonpath={.note}", "It was made"),
            ),
            {size: ["1"]},
        ),
    ]


def _event(subject: Subject) -> str:
    return f"""
apiVersion: v1
kind: Event
metadata: {{name: made}}
involvedObject: {{kind: {subject.kind.kind}, apiVersion: {subject.api_version}, name: a, namespace: $ns}}
reason: Made
message: It was made
type: Normal
source: {{component: tester}}
firstTimestamp: "2026-01-01T00:00:00Z"
lastTimestamp: "2026-01-01T00:00:00Z"
count: 1
"""
