"""set-namespace v0.4.1."""

import pytest

from pvbus.controlplane.packages.functions.set_namespace import set_namespace
from pvbus.core.errors import PermanentError
from tests.unit.packages.support import after, config, config_map, items, text


@pytest.mark.parametrize(
    ("reason", "before", "expected"),
    [
        (
            "a Namespace is renamed",
            "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: old # c\n",
            "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: new # c\n",
        ),
        (
            "a built-in namespaced kind gets a namespace it did not have",
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\nspec: {}\n",
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  namespace: new\nspec: {}\n",
        ),
        (
            "a custom kind keeps being without one",
            "apiVersion: x.org/v1\nkind: Thing\nmetadata:\n  name: a\n",
            "apiVersion: x.org/v1\nkind: Thing\nmetadata:\n  name: a\n",
        ),
        (
            "a custom kind that has one moves",
            "apiVersion: x.org/v1\nkind: Thing\nmetadata:\n  namespace: 'old'\n  name: a\n",
            "apiVersion: x.org/v1\nkind: Thing\nmetadata:\n  namespace: 'new'\n  name: a\n",
        ),
        (
            "a cluster-scoped kind stays without one",
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: a\n",
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: a\n",
        ),
        (
            "an object for the package alone is skipped",
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  namespace: old\n"
            "  annotations: {config.kubernetes.io/local-config: 'true'}\n",
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  namespace: old\n"
            "  annotations: {config.kubernetes.io/local-config: 'true'}\n",
        ),
        (
            "local-config false is as none",
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  namespace: old\n"
            "  annotations: {config.kubernetes.io/local-config: 'false'}\n",
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  namespace: new\n"
            "  annotations: {config.kubernetes.io/local-config: 'false'}\n",
        ),
        (
            "subjects that name a namespace are moved, whatever it was",
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata:\n  name: a\n"
            "subjects:\n- kind: ServiceAccount\n  namespace: other\n- kind: User\n",
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata:\n  name: a\n"
            "subjects:\n- kind: ServiceAccount\n  namespace: new\n- kind: User\n",
        ),
        (
            "an APIService's service moves",
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata:\n  name: a\n"
            "spec:\n  service:\n    namespace: old\n",
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata:\n  name: a\n"
            "spec:\n  service:\n    namespace: new\n",
        ),
        (
            "a conversion webhook's service moves",
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: a\n"
            "spec:\n  conversion:\n    webhook:\n      clientConfig:\n        service: {namespace: old}\n",
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: a\n"
            "spec:\n  conversion:\n    webhook:\n      clientConfig:\n        service: {namespace: new}\n",
        ),
    ],
    ids=lambda value: value if " " in value and "\n" not in value else "",
)
def test_where_a_namespace_is_written(reason: str, before: str, expected: str) -> None:
    assert after(set_namespace, config_map(namespace="new"), before) == [expected], reason


def test_a_dependency_inside_the_package_follows_the_move_and_another_does_not() -> None:
    before = """
        apiVersion: v1
        kind: Secret
        metadata:
          name: a
          namespace: old
          annotations:
            config.kubernetes.io/depends-on: {}
        """
    inside = text(before).format("apps/namespaces/old/Deployment/d")
    outside = text(before).format("apps/namespaces/old/Deployment/elsewhere").replace("name: a", "name: b")
    settled = text(before).format("apps/namespaces/third/Deployment/d").replace("name: a", "name: c")
    target = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: d\n  namespace: old\n"
    given = (inside, outside, settled, target)
    followed, stayed, elsewhere, _ = after(set_namespace, config_map(namespace="new"), *given)
    assert "depends-on: apps/namespaces/third/Deployment/d" in elsewhere
    assert "depends-on: apps/namespaces/new/Deployment/d" in followed
    assert "depends-on: apps/namespaces/old/Deployment/elsewhere" in stayed


def test_the_package_context_gives_the_package_name_as_namespace() -> None:
    context = config("""
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: kptfile.kpt.dev}
        data: {name: edge01}
        """)
    (moved,) = after(set_namespace, context, "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: x\n")
    assert "name: edge01" in moved


def test_its_own_config_kind_is_read() -> None:
    own = {"apiVersion": "fn.kpt.dev/v1alpha1", "kind": "SetNamespace", "namespace": "new"}
    (moved,) = after(set_namespace, own, "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: x\n")
    assert "name: new" in moved


@pytest.mark.parametrize(
    "configuration",
    [
        None,
        config_map(other="x"),
        config_map(namespace=""),
        {"apiVersion": "v1", "kind": "Secret", "data": {"namespace": "x"}},
        {"apiVersion": "fn.kpt.dev/v1alpha1", "kind": "SetNamespace"},
    ],
)
def test_without_a_namespace_it_fails(configuration: dict[str, object] | None) -> None:
    with pytest.raises(PermanentError):
        set_namespace((), configuration)


def test_the_result_names_old_and_new_and_counts() -> None:
    namespaces = ["a", "b", "new"]
    given = items(*(f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n" for name in namespaces))
    output = set_namespace(given, config_map(namespace="new"))
    assert 'namespace "a","b" updated to "new", 2 value(s) changed' in [r.message for r in output.results]


def test_objects_that_became_one_are_an_error_result_of_a_function_that_succeeds() -> None:
    given = items(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  namespace: one\n",
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  namespace: two\n",
    )
    output = set_namespace(given, config_map(namespace="new"))
    assert output.error is None
    assert [result.severity for result in output.results] == ["error", "info"]
