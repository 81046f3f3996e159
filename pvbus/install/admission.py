"""The ValidatingAdmissionPolicy that protects PackageInstalls which were created for others.

It says in CEL what `pvbus.core.platform.packaging.protection` says in Python. How often a package may
be installed cannot be said in it, as a policy sees one object only: the lock refuses what is one too many.
"""

from collections.abc import Iterator

from pvbus.core.platform.packaging.reading import INSTALL_GROUP, OWNER
from pvbus.install.objects import Object, Options, new

POLICY = "pvbus-created-installs"


def _annotation(obj: str) -> str:
    annotations = f"{obj}.metadata.annotations"
    return f"has({annotations}) && '{OWNER}' in {annotations} ? {annotations}['{OWNER}'] : ''"


def created_installs(options: Options) -> Iterator[Object]:
    """Yield the policy and its binding."""
    policy = new("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", POLICY)
    policy["spec"] = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [INSTALL_GROUP],
                    "apiVersions": ["*"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": ["packageinstalls"],
                }
            ]
        },
        "matchConditions": [{"name": "not-a-writer", "expression": f"!({_is_writer(options.namespace)})"}],
        "variables": [
            {"name": "before", "expression": f"oldObject == null ? '' : ({_annotation('oldObject')})"},
            {"name": "after", "expression": _annotation("object")},
        ],
        "validations": [
            {
                "expression": "variables.after == '' || variables.after == variables.before",
                "message": f"the annotation {OWNER} is set by pvbus only: remove it",
                "reason": "Forbidden",
            },
            {
                "expression": (
                    "variables.before == '' || (has(object.spec) == has(oldObject.spec)"
                    " && (!has(object.spec) || object.spec == oldObject.spec))"
                ),
                "messageExpression": (
                    "'it was created for ' + variables.before + ', and only pvbus changes its spec: change '"
                    " + 'what ' + variables.before + ' says of its dependencies, or remove the annotation "
                    f"{OWNER} first, to take it over'"
                ),
                "reason": "Forbidden",
            },
        ],
    }
    binding = new("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", POLICY)
    binding["spec"] = {"policyName": POLICY, "validationActions": ["Deny"]}
    yield policy
    yield binding


def _is_writer(namespace: str) -> str:
    users = (
        f"system:serviceaccount:{namespace}:pvbus-establish",
        "system:serviceaccount:kapp-controller:kapp-controller-sa",
        "system:serviceaccount:kube-system:generic-garbage-collector",
        "system:serviceaccount:kube-system:namespace-controller",
    )
    return f"request.userInfo.username in [{', '.join(repr(user) for user in users)}]"
