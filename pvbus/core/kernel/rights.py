"""What each service may do on the API server: the only definition of pvbus's RBAC.

The roles of an installation, the table in the documents and the checks of `pvbus doctor` come from it. A
service asks for nothing else but discovery, which Kubernetes grants to every account. `unroll` asks for
nothing at all.

Which kinds ingest observes depends on the sets: those that a target selects, and those that a package
injects. They are in no role of ours, as RBAC cannot restrict a right to metadata: the right to list Secrets
is the right to read them. A ClusterRole with the label OBSERVED_LABEL grants them, with OBSERVED_VERBS.

An installation that is limited to some namespaces (PVBUS_NAMESPACES) has a Role for each service in each of
them, and nothing at the cluster scope.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP
from pvbus.core.kernel.packagekinds import CROSSPLANE_GROUP as PKG_GROUP

OBSERVED_LABEL = "pvbus.dev/observed"
"""A ClusterRole with this label and the value "true" adds its rules to the role of ingest."""
OBSERVED_VERBS = ("get", "list", "watch")
"""What ingest needs on a kind that a set selects or a package injects."""


class Right(NamedTuple):
    """Verbs on a resource.

    resource: its plural name, with a subresource as in `sets/status`
    is_namespaced: whether a Role can grant it; if not, a service limited to some namespaces does without it
    is_needed: whether the service needs it; if not, it does all its work without it, too
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    is_namespaced: bool = True
    is_needed: bool = True

    @property
    def title(self) -> str:
        """The resource in kubectl's form: `packagerevisions.porch.kpt.dev`, `deployments.apps/scale`."""
        plural, slash, subresource = self.resource.partition("/")
        return f"{plural}{'.' if self.group else ''}{self.group}{slash}{subresource}"


class Request(NamedTuple):
    """One request as the authorizer of an API server sees it. namespace: "" for all namespaces."""

    verb: str
    group: str
    resource: str
    namespace: str = ""


_EVENTS = Right(
    "events.k8s.io",
    "events",
    ("create", "patch"),
    "tell people in Events what happened, as kubectl describe shows it",
    is_needed=False,
)

_BESIDE = {
    plural: Right(CONFIG_GROUP, plural, ("list", "watch"), "see whether Porch's controllers write, too")
    for plural in ("packagevariants", "packagevariantsets")
}

RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "ingest": (
        Right(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            ("list", "watch"),
            "know when a kind begins or ends to be served",
            is_namespaced=False,
        ),
        Right(
            CONFIG_GROUP,
            "repositories",
            ("get", "list", "watch"),
            "mirror them; read one again before a removal",
        ),
        Right(CONFIG_GROUP, "packagevariants", ("list", "watch"), "mirror them"),
        Right(
            CONFIG_GROUP,
            "packagevariantsets",
            ("get", "list", "watch"),
            "mirror them; read one again before a removal",
        ),
        Right(
            PORCH_GROUP,
            "packagerevisions",
            ("get", "list", "watch"),
            "mirror them; read one that a list omits, and one again before a removal",
        ),
    ),
    "unroll": (),
    "render": (
        Right(
            CONFIG_GROUP,
            "packagevariants",
            ("list", "watch", "create", "update", "delete"),
            "make, change and remove the variants of sets; see whether Porch's controllers write, too",
        ),
        Right(
            CONFIG_GROUP,
            "packagevariantsets",
            ("get", "list", "watch"),
            "check the set before a variant is deleted; see whether Porch's controllers write, too",
        ),
    ),
    "inject": (
        Right(
            PORCH_GROUP,
            "packagerevisions",
            ("get", "list", "create", "update", "delete"),
            "make, adopt and release the drafts of variants; delete drafts, propose to delete the rest",
        ),
        Right(PORCH_GROUP, "packagerevisionresources", ("get", "update"), "read and save their files"),
        Right(
            CONFIG_GROUP,
            "packagevariants",
            ("get", "list", "watch", "update"),
            "check the owner; set the finalizer; see whether Porch's controllers write, too",
        ),
        _BESIDE["packagevariantsets"],
    ),
    "conditions": (
        Right(CONFIG_GROUP, "packagevariants/status", ("update",), "report conditions"),
        Right(CONFIG_GROUP, "packagevariantsets/status", ("update",), "report conditions"),
        Right(
            "apps",
            "controllerrevisions",
            ("list", "create", "delete"),
            "keep the former specs of sets, for pvbus history and pvbus undo",
            is_needed=False,
        ),
        _EVENTS,
        _BESIDE["packagevariants"],
        Right(
            CONFIG_GROUP,
            "packagevariantsets",
            ("get", "list", "watch"),
            "read who changed a spec; see whether Porch's controllers write, too",
        ),
    ),
}

PROMOTION_RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "promote": (
        Right(
            PORCH_GROUP,
            "packagerevisionresources",
            ("get",),
            "compare a draft with what was proposed before, and know which content is up for approval",
        ),
    ),
    "rollout": (
        Right(PROMOTION_GROUP, "rolloutpolicies/status", ("update",), "report how each rollout goes"),
        Right(
            PORCH_GROUP,
            "packagerevisionresources",
            ("get",),
            "see whether a later commit, which a cluster reports, has the same package",
        ),
        Right(PROMOTION_GROUP, "quarantines", ("get", "create"), "keep what failed from going out again"),
        Right(PROMOTION_GROUP, "rolloutpolicies", ("get",), "read who changed a spec"),
        Right(
            "apps",
            "controllerrevisions",
            ("list", "create", "delete"),
            "keep the former specs of policies, for pvbus history",
            is_needed=False,
        ),
    ),
    "release": (
        Right(
            PORCH_GROUP,
            "packagerevisions",
            ("get", "list", "create", "update"),
            "propose drafts, and take proposals back; publish former content again in a rollback",
        ),
        Right(PORCH_GROUP, "packagerevisions/approval", ("update",), "approve what a RolloutPolicy orders"),
        Right(PROMOTION_GROUP, "rolloutstops/status", ("patch",), "confirm that it keeps a stop"),
        Right(
            PORCH_GROUP,
            "packagerevisionresources",
            ("get",),
            "note which content was proposed, and compare it with what is to be approved",
        ),
    ),
}
"""Of the services that may be left out."""

PROMOTION_KINDS = (
    Right(PROMOTION_GROUP, "packagespecializers", ("list", "watch"), "mirror them for promote"),
    Right(PROMOTION_GROUP, "rolloutpolicies", ("list", "watch"), "mirror them for promote and rollout"),
    Right(PROMOTION_GROUP, "quarantines", ("list", "watch"), "mirror them for promote and release"),
    Right(PROMOTION_GROUP, "rolloutstops", ("list", "watch"), "mirror them for rollout and release"),
)
"""What ingest needs beside its own rights while promote runs."""

_INSTALLS = ("configurations", "functions", "packages", "providers")
_REVISIONS = tuple(f"{name.removesuffix('s')}revisions" for name in _INSTALLS)
_PULL_SECRETS = Right("", "secrets", ("get",), "read the pull secrets that installs name")

PLATFORM_RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "resolve": (
        _PULL_SECRETS,
        Right(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            ("get",),
            "see whether an API has the fields that a dependency needs",
            is_namespaced=False,
        ),
    ),
    "establish": (
        *(
            Right(
                PKG_GROUP,
                name,
                ("get", "create", "update", "delete"),
                "make, move and remove installs that others need; set the finalizer",
                is_namespaced=False,
            )
            for name in _INSTALLS
        ),
        *(
            Right(PKG_GROUP, f"{name}/status", ("update",), "report how far it is", is_namespaced=False)
            for name in (*_INSTALLS, *_REVISIONS)
        ),
        *(
            Right(
                PKG_GROUP,
                name,
                ("get", "list", "create", "update", "delete"),
                "keep the revisions that the lock says",
                is_namespaced=False,
            )
            for name in _REVISIONS
        ),
        Right(
            PKG_GROUP,
            "packagelocks",
            ("get", "list", "create", "update", "delete"),
            "show the lock",
            is_namespaced=False,
        ),
        Right(PKG_GROUP, "packagelocks/status", ("update",), "show the lock", is_namespaced=False),
        Right(
            "packaging.carvel.dev",
            "packageinstalls",
            ("get", "create", "update", "delete"),
            "make, move and remove installs that others need",
        ),
        Right("packaging.carvel.dev", "packageinstalls/status", ("update",), "report dependencies"),
        Right("kappctrl.k14s.io", "apps", ("get", "create", "update"), "show what each install does"),
        Right("kappctrl.k14s.io", "apps/status", ("update",), "show what each install does"),
        Right("packaging.carvel.dev", "packagerepositories", ("get", "update"), "set the finalizer"),
        Right("packaging.carvel.dev", "packagerepositories/status", ("update",), "report what each brings"),
        *(
            Right(
                "data.packaging.carvel.dev",
                name,
                ("list", "create", "update", "delete"),
                "make what PackageRepositories bring available",
            )
            for name in ("packages", "packagemetadatas")
        ),
        _EVENTS,
        Right("", "namespaces", ("get",), "let a PackageInstall go whose namespace is being deleted"),
        _PULL_SECRETS,
        *(
            Right(
                group,
                plural,
                ("get", "create", "update", "delete"),
                "write the definitions that packages bring",
                is_namespaced=False,
            )
            for group, plural in (
                ("apiextensions.k8s.io", "customresourcedefinitions"),
                ("apiextensions.crossplane.io", "compositeresourcedefinitions"),
                ("apiextensions.crossplane.io", "compositions"),
            )
        ),
        Right(
            "apps", "deployments", ("get", "create", "update", "delete"), "run the controllers of packages"
        ),
        Right(
            "", "serviceaccounts", ("get", "create", "update", "delete"), "give them accounts of their own"
        ),
        Right("", "services", ("get", "create", "update", "delete"), "let them be called"),
        Right("", "secrets", ("create", "update", "delete"), "give them certificates, and an authority"),
        Right(
            "",
            "serviceaccounts",
            ("impersonate",),
            "write the objects of a PackageInstall as the account that it names",
        ),
        *(
            Right(
                "rbac.authorization.k8s.io",
                plural,
                ("get", "create", "update", "delete"),
                "give these accounts the rights that their packages need",
                is_namespaced=False,
            )
            for plural in ("clusterroles", "clusterrolebindings")
        ),
    ),
}
"""Of the services that install packages. The API server lets establish grant no right that it has not itself.
A ClusterRole with the label INSTALLED_LABEL adds what packages bring and controllers need beyond this."""

INSTALLED_LABEL = "pvbus.dev/installed"
"""A ClusterRole with this label and the value "true" adds its rules to the role of establish."""

PLATFORM_KINDS = (
    *(
        Right(
            PKG_GROUP, name, ("list", "watch"), "mirror them for resolve and establish", is_namespaced=False
        )
        for name in (*_INSTALLS, *_REVISIONS, "imageconfigs", "deploymentruntimeconfigs")
    ),
    Right(
        "packaging.carvel.dev", "packageinstalls", ("list", "watch"), "mirror them for resolve and establish"
    ),
    Right("data.packaging.carvel.dev", "packages", ("list", "watch"), "mirror them for resolve"),
    Right("apps", "deployments", ("list", "watch"), "see whether what runs packages is available"),
    Right("packaging.carvel.dev", "packagerepositories", ("list", "watch"), "mirror them for establish"),
)
"""What ingest needs beside its own rights while resolve runs."""


PACKAGES = "packages"
"""The package store as a service of its own. It is no part of the bus, and Porch's server may be there
instead."""

STORE_SECRETS = Right("", "secrets", ("get",), "read the credentials that a Repository names")
STORE_RIGHTS: tuple[Right, ...] = (
    Right(CONFIG_GROUP, "repositories", ("get", "list", "watch"), "know which repositories there are"),
    Right(CONFIG_GROUP, "repositories/status", ("update",), "report whether each can be read"),
    Right(
        CONFIG_GROUP,
        "packagerevs",
        ("get", "list", "watch", "create", "update", "delete"),
        "store what git cannot: labels, annotations, owners, finalizers",
    ),
    Right("", "namespaces", ("get", "list", "watch"), "refuse packages in a namespace that goes"),
    STORE_SECRETS,
    Right("authentication.k8s.io", "tokenreviews", ("create",), "know who sends a request"),
    Right("authorization.k8s.io", "subjectaccessreviews", ("create",), "ask what they can do"),
)
"""What the package store may do; with namespaces, an installation has STORE_SECRETS in these alone.

It also reads one ConfigMap of kube-system, for which Kubernetes has the Role
extension-apiserver-authentication-reader, and its APIService, if it has to write its authority there."""

SERVICE_RIGHTS: Mapping[str, tuple[Right, ...]] = {**RIGHTS, **PROMOTION_RIGHTS, **PLATFORM_RIGHTS}
ALL_RIGHTS: Mapping[str, tuple[Right, ...]] = {**SERVICE_RIGHTS, PACKAGES: STORE_RIGHTS}


def rights_of(service: str, *, namespaced: bool) -> tuple[Right, ...]:
    """Return the rights of a service. namespaced: whether it is limited to some namespaces."""
    return tuple(right for right in ALL_RIGHTS[service] if right.is_namespaced or not namespaced)


def requests_of(right: Right, namespaces: tuple[str, ...] = ()) -> list[Request]:
    """Return every request that a right permits. namespaces: where; () for all at once."""
    where = namespaces or ("",)
    return [Request(verb, right.group, right.resource, name) for name in where for verb in right.verbs]
