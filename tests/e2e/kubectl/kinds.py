"""What differs between custom and built-in kinds, and what concerns neither."""

from tests.e2e.kubectl.driver import CONFIG_MAP, WIDGET, Case, Step

KINDS = [
    Case(
        "strategic merge patch of a built-in kind",
        (
            Step("create -f -", "configmap/a created\n", stdin=CONFIG_MAP.manifest()),
            Step("""patch configmap a -p '{"data":{"more":"2"}}'""", "configmap/a patched\n"),
            Step(
                """patch configmap a -p '{"data":{"$patch":"replace","only":"3"}}'""", "configmap/a patched\n"
            ),
        ),
        {".data": [{"only": "3"}]},
    ),
    Case(
        "strategic merge patch of a custom kind is refused",
        (
            Step("create -f -", "widget.example.com/a created\n", stdin=WIDGET.manifest()),
            Step(
                """patch widget a -p '{"spec":{"size":"2"}}'""",
                code=1,
                err="application/strategic-merge-patch.json is not supported by example.com/v1, Kind=Widget",
            ),
        ),
        {".spec.size": ["1"]},
        WIDGET,
    ),
    Case(
        "tables of a custom kind",
        (
            Step(
                "create -f -", "widget.example.com/a created\n", stdin=WIDGET.manifest(data={"color": "red"})
            ),
            Step("get widgets", r"~NAME +SIZE +READY +AGE\na +1 +\d+s\n"),
            Step("get wd -o wide", r"~NAME +SIZE +READY +COLOR +AGE\na +1 +red +\d+s\n"),
            Step("get widget a --show-labels", r"~NAME +SIZE +READY +AGE +LABELS\na +1 +\d+s +<none>\n"),
            Step("get all --no-headers", r"~widget.example.com/a +1 .*\n"),
            Step("get widgets -A --no-headers --field-selector metadata.namespace=$ns", r"~$ns +a +1.*\n"),
            Step("get widgets --sort-by=.spec.size --no-headers", r"~a +1.*\n"),
        ),
        {".spec": [{"size": "1", "color": "red", "shape": "round"}]},
        WIDGET,
    ),
    Case(
        "tables of built-in kinds",
        (
            Step("create configmap a --from-literal=k=v", "configmap/a created\n"),
            Step("get configmaps", r"~NAME +DATA +AGE\na +1 +\d+s\n"),
            Step("create secret generic s --from-literal=k=v", "secret/s created\n"),
            Step("get secrets", r"~NAME +TYPE +DATA +AGE\ns +Opaque +1 +\d+s\n"),
            Step("get secret s -o jsonpath={.data.k}", "dg=="),
            Step("get namespace $ns", r"~NAME +STATUS +AGE\n$ns +Active +\d+s\n"),
            Step("get crd widgets.example.com", r"~NAME +CREATED AT\nwidgets.example.com +20.*Z\n"),
            Step("get packagerevisions", err="No resources found"),
        ),
        {".data": [{"k": "v"}]},
    ),
    Case(
        "the status of a custom kind",
        (
            Step(
                "create -f -",
                "widget.example.com/a created\n",
                stdin=WIDGET.manifest(status={"conditions": [{"type": "Ready", "status": "True"}]}),
            ),
            Step("get widget a -o jsonpath={.status}"),
            Step("wait --for=condition=Ready widget/a --timeout=1s", code=1, err="timed out waiting"),
            Step(
                "patch widget a --subresource=status --type merge "
                """-p '{"spec":{"size":"9"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}'""",
                "widget.example.com/a patched\n",
            ),
            Step("wait --for=condition=Ready widget/a --timeout=10s", "widget.example.com/a condition met\n"),
            Step("get widget a --subresource=status", r"~NAME.*\na +1 +True +\d+s\n"),
            Step("""patch widget a --type merge -p '{"status":null}'""", "~widget.example.com/a patched.*\n"),
        ),
        {".spec.size": ["1"], ".metadata.generation": [1], ".status.conditions[0].status": ["True"]},
        WIDGET,
    ),
    Case(
        "what the schema forbids",
        (
            Step(
                "create -f -",
                code=1,
                err='"a" is invalid: spec.size: Invalid value: "x": spec.size in body should match',
                stdin=WIDGET.manifest(size="x"),
            ),
            Step(
                "create -f -",
                code=1,
                err='unknown field "spec.colour"',
                stdin=WIDGET.manifest(data={"colour": "red"}),
            ),
            Step("create -f -", "widget.example.com/a created\n", stdin=WIDGET.manifest()),
            Step(
                """patch widget a --type merge -p '{"spec":{"color":"blue","size":null}}'""",
                code=1,
                err=r'The Widget "a" is invalid: \n\* spec.size: Required value\n\* spec.color: '
                r'Unsupported value: "blue": supported values: "red", "green"',
            ),
        ),
        {".spec": [{"size": "1", "shape": "round"}]},
        WIDGET,
    ),
    Case(
        "version, api-resources, explain",
        (
            Step("version", r"~Client Version: v1\..*\nServer Version: v1\..*\n"),
            Step(
                "api-resources --no-headers",
                r"~.*configmaps +cm +v1 +true +ConfigMap\n.*widgets +wd +example.com/v1 +true +Widget\n.*"
                r"packagerevisions +porch.kpt.dev/v1alpha1 +true +PackageRevision\n.*",
            ),
            Step("api-resources --api-group=example.com -o name", "widgets.example.com\n"),
            Step(
                "api-resources --categories=all -o name",
                "services\ndeployments.apps\njobs.batch\nwidgets.example.com\n",
            ),
            Step("api-versions", r"~.*example.com/v1\n.*v1\n"),
            Step(
                "explain widgets",
                r"~GROUP: +example.com\nKIND: +Widget\n.*Widget is something.*spec\t<Object>.*",
            ),
            Step("explain widget.spec.size", r"~.*FIELD: size <string>.*How large it is.*"),
            Step(
                "explain wd --recursive",
                r"~.*  spec\t<Object>.*    shape\t<string>.*    size\t<string> -required-.*",
            ),
            Step("explain configmaps", r"~KIND: +ConfigMap\nVERSION: +v1\n.*data\t<map\[string\]string>.*"),
            Step("explain cm.metadata.ownerReferences.uid", r"~.*FIELD: uid <string>.*"),
            Step("explain packagerevision.spec.lifecycle", r"~.*FIELD: lifecycle <string>.*Draft.*"),
            Step("explain widgets.spec.nope", "~.*", code=1, err='field "nope" does not exist'),
        ),
        None,
    ),
    Case(
        "who may",
        (
            Step("auth can-i create widgets", "yes\n"),
            Step("--token=wrong get widgets", code=1, err="You must be logged in to the server"),
            Step("get --raw /readyz", "ok"),
        ),
        None,
    ),
    Case(
        "a kind that is not served",
        (
            Step(
                "apply -f -",
                code=1,
                err='no matches for kind "Gadget" in version "example.com/v1".*ensure CRDs are installed',
                stdin="apiVersion: example.com/v1\nkind: Gadget\nmetadata: {name: a}\n",
            ),
            Step(
                "create -f -",
                code=1,
                err='no matches for kind "Thing" in version "nowhere.com/v1"',
                stdin="apiVersion: nowhere.com/v1\nkind: Thing\nmetadata: {name: a}\n",
            ),
        ),
        None,
    ),
    Case(
        "diff",
        (
            Step("create -f -", "configmap/a created\n", stdin=CONFIG_MAP.manifest()),
            Step(
                "diff -f -",
                '~.*-  size: "1"\n\\+  size: "2"\n.*',
                code=1,
                stdin=CONFIG_MAP.manifest(size="2"),
            ),
            Step("diff -f -", stdin=CONFIG_MAP.manifest()),
        ),
        {".data.size": ["1"]},
    ),
]
