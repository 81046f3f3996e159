"""ensure-name-substring v0.2.0."""

import pytest

from pvbus.controlplane.packages.functions.ensure_name_substring import ensure_name_substring
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import after, config, config_map, items, text


def named(kind: str, name: str, more: str = "", *, group: str = "", namespace: str = "") -> str:
    head = f"apiVersion: {group}/v1\n" if group else "apiVersion: v1\n"
    scope = f"  namespace: {namespace}\n" if namespace else ""
    return f"{head}kind: {kind}\nmetadata:\n  name: {name}\n{scope}{more}"


def names(configuration: dict[str, str], *texts: str) -> list[str]:
    return [item.name for item in ensure_name_substring(items(*texts), config_map(**configuration)).items]


@pytest.mark.parametrize(
    ("reason", "mode", "before", "expected"),
    [
        ("before the name", {"prepend": "dev-"}, named("Secret", "a"), "dev-a"),
        ("behind the name", {"append": "-dev"}, named("Secret", "a"), "a-dev"),
        ("already there", {"prepend": "dev-"}, named("Secret", "my-dev-a"), "my-dev-a"),
        ("a definition", {"prepend": "dev-"}, named("CustomResourceDefinition", "a"), "a"),
        (
            "an APIService",
            {"prepend": "dev-"},
            named("APIService", "a", group="apiregistration.k8s.io"),
            "a",
        ),
        ("an APIService of others", {"prepend": "dev-"}, named("APIService", "a", group="x.org"), "dev-a"),
        ("a namespace", {"prepend": "dev-"}, named("Namespace", "a"), "a"),
        ("the Kptfile", {"prepend": "dev-"}, named("Kptfile", "a", group="kpt.dev"), "a"),
        (
            "an object for the package itself",
            {"prepend": "dev-"},
            named("Secret", "a", "  annotations: {config.kubernetes.io/local-config: 'true'}\n"),
            "dev-a",
        ),
    ],
)
def test_names(reason: str, mode: dict[str, str], before: str, expected: str) -> None:
    assert names(mode, before) == [expected], reason


def test_a_name_keeps_its_quotes_and_comment() -> None:
    assert after(ensure_name_substring, config_map(prepend="dev-"), named("Secret", "'a' # why")) == [
        named("Secret", "'dev-a' # why")
    ]


@pytest.mark.parametrize("field", ["additionalNameFields", "fieldSpecs"])
def test_more_fields_can_be_named(field: str) -> None:
    own = config(f"""
        apiVersion: fn.kpt.dev/v1alpha1
        kind: EnsureNameSubstring
        substring: -x
        editMode: append
        {field}:
        - {{kind: Thing, path: "spec/parts[]/name"}}
        - {{kind: Thing, path: spec/new, create: true}}
        - {{kind: Thing, path: spec/none}}
        """)
    before = named("Thing", "a", "spec:\n  parts:\n  - name: p # c\n  - name: p-x\n", group="x.org")
    assert after(ensure_name_substring, own, before) == [
        named(
            "Thing", "a-x", 'spec:\n  parts:\n  - name: p-x # c\n  - name: p-x\n  new: "-x"\n', group="x.org"
        )
    ]


@pytest.mark.parametrize(
    ("dependency", "expected"),
    [
        ("apps/namespaces/default/StatefulSet/db", "apps/namespaces/default/StatefulSet/dev-db"),
        ("/Node/n", "/Node/dev-n"),
        ("apps/namespaces/default/StatefulSet/other", "apps/namespaces/default/StatefulSet/other"),
        ("x/apps/namespaces/default/StatefulSet/db", "x/apps/namespaces/default/StatefulSet/db"),
        ("apps/namespaces/default/StatefulSet/db/x", "apps/namespaces/default/StatefulSet/db/x"),
    ],
)
def test_dependencies_on_objects_of_the_package_follow(dependency: str, expected: str) -> None:
    annotation = "  annotations:\n    config.kubernetes.io/depends-on: {}\n"
    texts = after(
        ensure_name_substring,
        config_map(prepend="dev-"),
        named("Secret", "a", annotation.format(dependency)),
        named("StatefulSet", "db", group="apps"),
        named("Node", "n"),
    )
    assert texts[0] == named("Secret", "dev-a", annotation.format(expected))


POD = "spec:\n  template:\n    spec:\n"


@pytest.mark.parametrize(
    ("reason", "referrer", "expected", "others"),
    [
        (
            "a ConfigMap in a volume",
            named(
                "Deployment", "w", f"{POD}      volumes:\n      - configMap: {{name: c}} # c\n", group="apps"
            ),
            "configMap: {name: dev-c} # c",
            [named("ConfigMap", "c")],
        ),
        (
            "a Secret in the environment of an init container",
            named(
                "CronJob",
                "w",
                "spec: {jobTemplate: {spec: {template: {spec: {initContainers: "
                "[{envFrom: [{secretRef: {name: c}}]}]}}}}}\n",
                group="batch",
            ),
            "secretRef: {name: dev-c}",
            [named("Secret", "c")],
        ),
        (
            "a kind with the same name that is no target",
            named("Deployment", "w", f"{POD}      volumes:\n      - configMap: {{name: c}}\n", group="apps"),
            "configMap: {name: c}",
            [named("Secret", "c")],
        ),
        (
            "an object that is not in the package",
            named("Deployment", "w", f"{POD}      serviceAccountName: c\n", group="apps"),
            "serviceAccountName: c",
            [],
        ),
        (
            "an object in another namespace",
            named("Deployment", "w", f"{POD}      serviceAccountName: c\n", group="apps", namespace="n"),
            "serviceAccountName: c",
            [named("ServiceAccount", "c")],
        ),
        (
            "the namespace default is the empty one",
            named(
                "Deployment", "w", f"{POD}      serviceAccountName: c\n", group="apps", namespace="default"
            ),
            "serviceAccountName: dev-c",
            [named("ServiceAccount", "c")],
        ),
        (
            "an autoscaler",
            named(
                "HorizontalPodAutoscaler", "w", "spec:\n  scaleTargetRef:\n    name: c\n", group="autoscaling"
            ),
            "    name: dev-c",
            [named("StatefulSet", "c", group="apps")],
        ),
        (
            "an annotation with a slash",
            named(
                "Ingress",
                "w",
                "  annotations:\n    nginx.ingress.kubernetes.io/auth-secret: c\n",
                group="networking.k8s.io",
            ),
            "auth-secret: dev-c",
            [named("Secret", "c")],
        ),
        (
            "names in a list",
            named("Role", "w", "rules:\n- resourceNames: [c, d]\n", group="rbac.authorization.k8s.io"),
            "resourceNames: [dev-c, d]",
            [named("Secret", "c")],
        ),
        (
            "a cluster-scoped target",
            named("PersistentVolumeClaim", "w", "spec:\n  volumeName: c\n", namespace="n"),
            "volumeName: dev-c",
            [named("PersistentVolume", "c")],
        ),
        (
            "the kind of a role is looked at",
            named(
                "RoleBinding",
                "w",
                "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: c}\n",
                group="rbac.authorization.k8s.io",
            ),
            "name: c}",
            [named("ClusterRole", "c", group="rbac.authorization.k8s.io")],
        ),
        (
            "a subject in another namespace",
            named(
                "RoleBinding",
                "w",
                "subjects:\n- {kind: ServiceAccount, name: c, namespace: n}\n",
                group="rbac.authorization.k8s.io",
                namespace="m",
            ),
            "name: dev-c, namespace: n",
            [named("ServiceAccount", "c", namespace="n"), named("ServiceAccount", "c", namespace="m")],
        ),
        (
            "only accounts are reached in another namespace",
            named(
                "RoleBinding",
                "w",
                "roleRef: {name: c}\nsubjects:\n- {kind: ServiceAccount, name: d, namespace: n}\n",
                group="rbac.authorization.k8s.io",
                namespace="m",
            ),
            "roleRef: {name: c}",
            [named("Role", "c", group="rbac.authorization.k8s.io", namespace="n")],
        ),
        (
            "a subject without namespace gets that of the account",
            named(
                "ClusterRoleBinding",
                "w",
                "subjects:\n- kind: ServiceAccount\n  name: c\n",
                group="rbac.authorization.k8s.io",
            ),
            '  name: dev-c\n  namespace: "n"',
            [named("ServiceAccount", "c", namespace="n")],
        ),
        (
            "a webhook's service",
            named(
                "ValidatingWebhookConfiguration",
                "w",
                "webhooks:\n- clientConfig:\n    service: {name: c, namespace: n}\n",
                group="admissionregistration.k8s.io",
            ),
            "{name: dev-c, namespace: n}",
            [named("Service", "c", namespace="n")],
        ),
    ],
)
def test_references_to_renamed_objects_follow(
    reason: str, referrer: str, expected: str, others: list[str]
) -> None:
    written = after(ensure_name_substring, config_map(prepend="dev-"), referrer, *others)
    assert expected in written[0], reason
    assert "name: dev-w" in written[0]


def test_a_reference_that_can_mean_two_objects_is_refused() -> None:
    binding = named("ClusterRoleBinding", "w", "subjects:\n- {name: c}\n", group="rbac.authorization.k8s.io")
    accounts = [named("ServiceAccount", "c", namespace=each) for each in ("m", "n")]
    with pytest.raises(PermanentError, match="found multiple possible referrals for `subjects`"):
        names({"prepend": "dev-"}, binding, *accounts)


def test_a_referrer_that_keeps_its_name_chooses_none_of_two() -> None:
    binding = named(
        "ClusterRoleBinding", "dev-w", "subjects:\n- {name: c}\n", group="rbac.authorization.k8s.io"
    )
    accounts = [named("ServiceAccount", "c", namespace=each) for each in ("m", "n")]
    assert after(ensure_name_substring, config_map(prepend="dev-"), binding, *accounts)[0] == binding


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ("{apiVersion: v1, kind: ConfigMap}", "only 1 entry is allowed in the ConfigMap, but got: 0"),
        ("{apiVersion: v1, kind: ConfigMap, data: {prepend: a, append: b}}", "but got: 2"),
        (
            "{apiVersion: v1, kind: ConfigMap, data: {before: a}}",
            "unknown editMode: before, only prepend and",
        ),
        ("{apiVersion: v1, kind: ConfigMap, data: {append: ''}}", "substring must not be empty"),
        ("{apiVersion: fn.kpt.dev/v1alpha1, kind: EnsureNameSubstring}", "substring must not be empty"),
        (
            "{apiVersion: fn.kpt.dev/v1alpha1, kind: EnsureNameSubstring, substring: a, "
            "additionalNameFields: [{path: a}], fieldSpecs: [{path: a}]}",
            "`fieldSpecs` has been deprecated, please rename it to `additionalNameFields`",
        ),
        ("{apiVersion: v1, kind: Secret}", "functionConfig is Secret, expected `EnsureNameSubstring`"),
    ],
)
def test_a_configuration_it_cannot_use_fails(own: str, problem: str) -> None:
    with pytest.raises(PermanentError, match=problem):
        ensure_name_substring(items(text(named("Secret", "a"))), config(own))
