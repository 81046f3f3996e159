"""API types around the variants: Repository, PackageRevision and PackageRevisionResources.

Same rules as `pvbus.core.api.variants`: frozen Structs, Porch's field names, unknown fields ignored. A
PackageRevision's conditions come from its Kptfile and carry no timestamps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pvbus.core.api.variants import CONFIG_GROUP, PORCH_API, ApiStruct, Condition, ObjectMeta

REPOSITORY_API = f"{CONFIG_GROUP}/v1alpha1"
LATEST_LABEL = "kpt.dev/latest-revision"
PLACEHOLDER_REVISION = -1
PUBLISHED = ("Published", "DeletionProposed")
"""Lifecycles of a published revision: a proposed deletion changes nothing until it is approved."""
CATALOG = "ghcr.io/kptdev/krm-functions-catalog/"
"""The registry of a function's image that names none. Source: Porch, `--default-image-prefix`."""
RENDER_REMARKS = "pvbus.dev/render-remarks"
"""Annotation of a PackageRevision: how functions ran that are not built in, or not in the image's version."""


class SecretRef(ApiStruct, frozen=True, kw_only=True):
    name: str = ""


class GitRepository(ApiStruct, frozen=True, kw_only=True):
    repo: str = ""
    branch: str = ""
    create_branch: bool = False
    directory: str = ""
    secret_ref: SecretRef | None = None
    author: str = ""
    email: str = ""


class OciRepository(ApiStruct, frozen=True, kw_only=True):
    registry: str = ""
    secret_ref: SecretRef | None = None


class RepositorySync(ApiStruct, frozen=True, kw_only=True):
    schedule: str = ""
    run_once_at: str | None = None


class RepositorySpec(ApiStruct, frozen=True, kw_only=True):
    description: str = ""
    deployment: bool = False
    type: str = ""
    content: str = ""
    sync: RepositorySync | None = None
    git: GitRepository | None = None
    oci: OciRepository | None = None


class RepositoryStatus(ApiStruct, frozen=True, kw_only=True):
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0
    last_full_sync_time: str | None = None
    next_full_sync_time: str | None = None
    observed_run_once_at: str | None = None
    package_count: int = 0
    git_commit_hash: str = ""


class Repository(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = REPOSITORY_API
    kind: str = "Repository"
    metadata: ObjectMeta = ObjectMeta()
    spec: RepositorySpec = RepositorySpec()
    status: RepositoryStatus = RepositoryStatus()


class PackageRevSpec(ApiStruct, frozen=True, kw_only=True):
    package_revision: Mapping[str, Any] | None = None
    change: Mapping[str, Any] | None = None
    withdrawn: bool = False


class PackageRevStatus(ApiStruct, frozen=True, kw_only=True):
    pass


class PackageRev(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = REPOSITORY_API
    kind: str = "PackageRev"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageRevSpec = PackageRevSpec()
    status: PackageRevStatus = PackageRevStatus()


class RevisionRef(ApiStruct, frozen=True, kw_only=True):
    """A PackageRevision of the same namespace."""

    name: str = ""


class GitPackage(ApiStruct, frozen=True, kw_only=True):
    repo: str = ""
    ref: str = ""
    directory: str = ""
    secret_ref: SecretRef | None = None


class OciPackage(ApiStruct, frozen=True, kw_only=True):
    image: str = ""


class UpstreamPackage(ApiStruct, frozen=True, kw_only=True):
    """Where a clone comes from: a registered PackageRevision by name, or a location."""

    type: str = ""
    git: GitPackage | None = None
    oci: OciPackage | None = None
    upstream_ref: RevisionRef | None = None


class InitTask(ApiStruct, frozen=True, kw_only=True):
    subpackage: str = ""
    description: str = ""
    keywords: tuple[str, ...] = ()
    site: str = ""


class CloneTask(ApiStruct, frozen=True, kw_only=True):
    upstream_ref: UpstreamPackage = UpstreamPackage()


class EditTask(ApiStruct, frozen=True, kw_only=True):
    source_ref: RevisionRef | None = None


class UpgradeTask(ApiStruct, frozen=True, kw_only=True):
    old_upstream_ref: RevisionRef = RevisionRef()
    new_upstream_ref: RevisionRef = RevisionRef()
    local_package_revision_ref: RevisionRef = RevisionRef()
    strategy: str = ""


class Task(ApiStruct, frozen=True, kw_only=True):
    """How a revision came to be; the field that `type` names is set."""

    type: str = ""
    init: InitTask | None = None
    clone: CloneTask | None = None
    edit: EditTask | None = None
    upgrade: UpgradeTask | None = None


class ReadinessGate(ApiStruct, frozen=True, kw_only=True):
    condition_type: str = ""


class PackageMetadata(ApiStruct, frozen=True, kw_only=True):
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class PackageRevisionSpec(ApiStruct, frozen=True, kw_only=True):
    package_name: str = ""
    repository: str = ""
    workspace_name: str = ""
    revision: int = 0
    parent: RevisionRef | None = None
    lifecycle: str = ""
    tasks: tuple[Task, ...] = ()
    readiness_gates: tuple[ReadinessGate, ...] = ()
    package_metadata: PackageMetadata | None = None


class GitLock(ApiStruct, frozen=True, kw_only=True):
    repo: str = ""
    directory: str = ""
    ref: str = ""
    commit: str = ""


class Locator(ApiStruct, frozen=True, kw_only=True):
    type: str = ""
    git: GitLock | None = None


class PackageCondition(ApiStruct, frozen=True, kw_only=True):
    """A condition of the Kptfile: no timestamps."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PackageRevisionStatus(ApiStruct, frozen=True, kw_only=True):
    upstream_lock: Locator | None = None
    self_lock: Locator | None = None
    published_by: str = ""
    publish_timestamp: str | None = None
    deployment: bool = False
    conditions: tuple[PackageCondition, ...] = ()


class PackageRevision(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PORCH_API
    kind: str = "PackageRevision"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageRevisionSpec = PackageRevisionSpec()
    status: PackageRevisionStatus = PackageRevisionStatus()


class ResultResource(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""


class ResultField(ApiStruct, frozen=True, kw_only=True):
    path: str = ""
    current_value: str = ""
    proposed_value: str = ""


class ResultFile(ApiStruct, frozen=True, kw_only=True):
    path: str = ""
    index: int = 0


class ResultItem(ApiStruct, frozen=True, kw_only=True):
    """One finding of a function."""

    message: str = ""
    severity: str = ""
    resource_ref: ResultResource | None = None
    field: ResultField | None = None
    file: ResultFile | None = None
    tags: Mapping[str, str] = {}


class FunctionResult(ApiStruct, frozen=True, kw_only=True):
    image: str = ""
    exec: str = ""
    stderr: str = ""
    exit_code: int
    results: tuple[ResultItem, ...] = ()


class ResultList(ApiStruct, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    metadata: Mapping[str, Any] = {}
    exit_code: int
    items: tuple[FunctionResult, ...] = ()


class RenderStatus(ApiStruct, frozen=True, kw_only=True):
    """`error` and `result.exitCode` are always written: the schema requires them."""

    result: ResultList | None = None
    error: str


class PackageRevisionResourcesSpec(ApiStruct, frozen=True, kw_only=True):
    """`resources`: path relative to the package's root -> text of the file."""

    package_name: str = ""
    repository: str = ""
    workspace_name: str = ""
    revision: int = 0
    resources: Mapping[str, str] = {}


class PackageRevisionResourcesStatus(ApiStruct, frozen=True, kw_only=True):
    render_status: RenderStatus | None = None


class PackageRevisionResources(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = PORCH_API
    kind: str = "PackageRevisionResources"
    metadata: ObjectMeta = ObjectMeta()
    spec: PackageRevisionResourcesSpec = PackageRevisionResourcesSpec()
    status: PackageRevisionResourcesStatus = PackageRevisionResourcesStatus()


def qualified(image: str) -> str:
    """Return the image of a function with its registry: kpt's catalog, if it names none."""
    return image if "/" in image else f"{CATALOG}{image}"


def function_item(
    exit_code: int, image: str, error: str, results: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the result of one function, as an item of `renderStatus.result.items`."""
    item: dict[str, Any] = {"exitCode": exit_code}
    item |= {"image": qualified(image)} if image else {}
    item |= {"stderr": error} if error else {}
    return item | ({"results": results} if results else {})


def function_results(error: str, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the renderStatus of a run. error: why it failed, "" if it did not."""
    result: dict[str, Any] = {
        "apiVersion": "kpt.dev/v1",
        "kind": "FunctionResultList",
        "metadata": {"name": "fnresults"},
        "exitCode": 1 if error else 0,
    }
    return {"error": error, "result": result | ({"items": items} if items else {})}
