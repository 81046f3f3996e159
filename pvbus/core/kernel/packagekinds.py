"""The kinds of both families that ingest mirrors for resolve and establish."""

from pvbus.core.kernel.kinds import Kind

CROSSPLANE_GROUP = "pkg.crossplane.io"
CROSSPLANE_INSTALLS = tuple(
    Kind(CROSSPLANE_GROUP, name) for name in ("Configuration", "Function", "Package", "Provider")
)
CROSSPLANE_REVISIONS = tuple(Kind(kind.group, f"{kind.kind}Revision") for kind in CROSSPLANE_INSTALLS)
IMAGE_CONFIG = Kind(CROSSPLANE_GROUP, "ImageConfig")
RUNTIME_CONFIG = Kind(CROSSPLANE_GROUP, "DeploymentRuntimeConfig")
CARVEL_INSTALL = Kind("packaging.carvel.dev", "PackageInstall")
CARVEL_PACKAGE = Kind("data.packaging.carvel.dev", "Package")
CARVEL_REPOSITORY = Kind("packaging.carvel.dev", "PackageRepository")
DEPLOYMENT = Kind("apps", "Deployment")
CRD = Kind("apiextensions.k8s.io", "CustomResourceDefinition")

INSTALLS = frozenset({*CROSSPLANE_INSTALLS, CARVEL_INSTALL})
CLUSTER_SCOPED = frozenset({*CROSSPLANE_INSTALLS, *CROSSPLANE_REVISIONS})
"""Those whose objects have no namespace."""
REPORTING = (*CROSSPLANE_INSTALLS, *CROSSPLANE_REVISIONS, CARVEL_INSTALL)
"""Those that have public events of their conditions."""
MIRRORED = (
    *CROSSPLANE_INSTALLS,
    *CROSSPLANE_REVISIONS,
    IMAGE_CONFIG,
    RUNTIME_CONFIG,
    CARVEL_INSTALL,
    CARVEL_PACKAGE,
    CARVEL_REPOSITORY,
    CRD,
)
"""In `pvbus.installs`, while a service asks for them. So are Deployments that run packages; no
decision waits for these."""
