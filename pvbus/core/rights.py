"""What each service may do on the API server: the only definition of pvbus's RBAC.

The roles of an installation, the table in the documents and the checks of `pvbus doctor` come from it. A
service asks for nothing else but discovery, which Kubernetes grants to every account. `unroll` asks for
nothing at all.

Which kinds ingest observes depends on the sets: those that a target selects, and those that a package
injects. They are in no role of ours, as RBAC cannot restrict a right to metadata: the right to list Secrets
is the right to read them. A ClusterRole with the label OBSERVED_LABEL grants them, with OBSERVED_VERBS.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP

OBSERVED_LABEL = "pvbus.dev/observed"
"""A ClusterRole with this label and the value "true" adds its rules to the role of ingest."""
OBSERVED_VERBS = ("get", "list", "watch")
"""What ingest needs on a kind that a set selects or a package injects."""


class Right(NamedTuple):
    """Verbs on a resource. resource: its plural name, with the subresource if it is one: `sets/status`."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str

    @property
    def title(self) -> str:
        """The resource in kubectl's form: `packagerevisions.porch.kpt.dev`, `deployments.apps/scale`."""
        plural, slash, subresource = self.resource.partition("/")
        return f"{plural}{'.' if self.group else ''}{self.group}{slash}{subresource}"


class Request(NamedTuple):
    """One request as the authorizer of an API server sees it."""

    verb: str
    group: str
    resource: str


RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "ingest": (
        Right(
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            ("list", "watch"),
            "know when a kind begins or ends to be served",
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
            ("create", "update", "delete"),
            "make, change and remove the variants of sets",
        ),
        Right(CONFIG_GROUP, "packagevariantsets", ("get",), "check the set before a variant is deleted"),
    ),
    "inject": (
        Right(
            PORCH_GROUP,
            "packagerevisions",
            ("get", "list", "create", "update", "delete"),
            "make, adopt and release the drafts of variants; delete drafts, propose to delete the rest",
        ),
        Right(PORCH_GROUP, "packagerevisionresources", ("get", "update"), "read and save their files"),
        Right(CONFIG_GROUP, "packagevariants", ("get", "update"), "check the owner; set the finalizer"),
    ),
    "conditions": (
        Right(CONFIG_GROUP, "packagevariants/status", ("update",), "report conditions"),
        Right(CONFIG_GROUP, "packagevariantsets/status", ("update",), "report conditions"),
    ),
}


def requests_of(right: Right) -> list[Request]:
    """Return every request that a right permits."""
    return [Request(verb, right.group, right.resource) for verb in right.verbs]
