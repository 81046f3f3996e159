"""Descriptions of the API types and of every field, for people: what `kubectl explain` prints.

Keyed by Struct and field; "" is the Struct itself. A Struct inherits the entries of its bases.
"""

from collections.abc import Mapping

from pvbus.core.api import packages as p
from pvbus.core.api import promotion as r
from pvbus.core.api import v1alpha1 as old
from pvbus.core.api import variants as m

OBJECT_FIELDS: Mapping[str, str] = {
    "api_version": "Group and version of this object's schema.",
    "kind": "Kind of this object. It cannot be changed.",
    "metadata": "Name, namespace, labels, annotations and what else every Kubernetes object has.",
    "spec": "The wanted state, as written by the user.",
    "status": "The observed state, as written by the controller.",
}

_LABEL_SELECTOR = {
    "match_labels": "Labels that an object must have with exactly these values.",
    "match_expressions": "Requirements on labels, which must all hold.",
}
_MAP_EXPR_LIST = "Entries that are computed; they override static entries of the same key."
_POLICIES = {
    "adoption_policy": "What happens to package revisions that exist already in the place of a variant: "
    "`adoptNone` leaves them alone, `adoptExisting` takes them over. The default is `adoptNone`.",
    "deletion_policy": "What happens to the downstream package revisions when a variant is deleted: "
    "`delete` removes drafts and proposes the deletion of published ones, `orphan` lets go of them. "
    "The default is `delete`.",
}
_LOCK = "Git location of the content, down to the commit."

DESCRIPTIONS: Mapping[type, Mapping[str, str]] = {
    r.PackageSpecializer: {
        "": "A program that works on drafts before they are proposed. A draft that it selects is not "
        "proposed before the program has acknowledged it, or the deadline has passed.",
    },
    r.PackageSpecializerSpec: {
        "": "Which drafts the program works on, and how long they wait for it.",
        "selector": "Labels of the drafts, those of the PackageVariant and over them those of the "
        "PackageRevision. Without it, every draft of the namespace is selected.",
        "condition_types": "Types of the conditions that the program reports. A readiness gate of another "
        "type is said to be reported by nobody.",
        "deadline_seconds": "Seconds from the creation of a revision until it no longer waits to be "
        "acknowledged. The default is 600.",
        "after_deadline": "What happens after the deadline: `Open` proposes the draft without, `Closed` "
        "keeps it until it is acknowledged. The default is `Closed`.",
    },
    m.Condition: {
        "": "One aspect of the state of an object.",
        "type": "Name of the condition in CamelCase, with a DNS prefix where it is not a common one.",
        "status": "Whether the condition holds: True, False or Unknown.",
        "reason": "Why the condition has this status, as one CamelCase word that programs may compare.",
        "message": "What happened and what to do about it, for people. It may be empty.",
        "last_transition_time": "When the status last changed from one value to another.",
        "observed_generation": "The metadata.generation that this condition speaks of. When it is lower than "
        "the current one, the condition is out of date.",
    },
    m.Upstream: {
        "": "The package that is followed.",
        "repo": "Name of the Repository of the upstream package, in the same namespace.",
        "package": "Name of the upstream package, with its path inside the repository.",
        "revision": "Number of the published revision to follow. 0, or none, leaves it to workspaceName.",
        "workspace_name": "Workspace of the revision to follow, or a range of versions such as `^1.4` or "
        "`>=1.2 <2`: the highest published one is followed. Without it, and without a revision, the "
        "workspace is `main`, the branch itself.",
    },
    m.Downstream: {
        "": "The place where the variant lives.",
        "repo": "Name of the Repository that receives the variant, in the same namespace.",
        "package": "Name of the downstream package, with its path inside the repository.",
    },
    m.PackageContext: {
        "": "Changes to the ConfigMap `kptfile.kpt.dev` in the package.",
        "data": "Keys and values to set. The keys `name` and `package-path` are reserved.",
        "remove_keys": "Keys to remove.",
    },
    m.FunctionSelector: {
        "": "Resources for which every given field is equal.",
        "api_version": "Group and version that a resource must have.",
        "kind": "Kind that a resource must have.",
        "name": "Name that a resource must have.",
        "namespace": "Namespace that a resource must have.",
        "labels": "Labels that a resource must have with these values.",
        "annotations": "Annotations that a resource must have with these values.",
    },
    m.Function: {
        "": "One function of a package's pipeline.",
        "name": "Name of the entry. It tells entries apart when pipelines are merged, and has no dots.",
        "image": "Container image of the function, with or without a registry.",
        "tag": "Tag of the image, or a range of versions, which takes the place of a tag in `image`.",
        "exec": "Program to run instead of an image: a path, or a name to be found in PATH.",
        "config_path": "Path of a file of the package that holds the function's configuration, relative to "
        "the package and with slashes. That resource is not given to the functions as input.",
        "config_map": "The function's configuration, as the data of a ConfigMap.",
        "selectors": "Resources that the function sees; all of them where there is no selector.",
        "exclude": "Resources that the function does not see, although a selector takes them.",
    },
    m.Pipeline: {
        "": "Functions that are put before those of the package's own pipeline.",
        "validators": "Functions that check the resources and must not change them.",
        "mutators": "Functions that change the resources, run in this order.",
    },
    m.Injector: {
        "": "Selects the object of the cluster that fills the injection points it fits.",
        "group": "API group of the injection point. Unset fits any; an empty string only the core group.",
        "version": "API version of the injection point. Unset fits any.",
        "kind": "Kind of the injection point. Unset fits any.",
        "name": "Name of the object in the namespace of the variant whose content is injected.",
    },
    m.PackageVariantSpec: {
        "upstream": "The package that this variant is made from.",
        "downstream": "Where this variant lives.",
        **_POLICIES,
        "labels": "Labels of the package revisions that are created or adopted.",
        "annotations": "Annotations of the package revisions that are created or adopted.",
        "package_context": "Changes to the package's context.",
        "pipeline": "Functions to put before the package's own pipeline.",
        "injectors": "Selectors of objects to inject, tried in this order; the first that fits is used.",
    },
    m.DownstreamTarget: {
        "": "One package revision of the variant.",
        "name": "Name of the PackageRevision.",
        "render_status": "What the package's pipeline said when the content was last written.",
    },
    m.PackageVariantStatus: {
        "conditions": "The state of the variant: Stalled and Ready.",
        "downstream_targets": "The package revisions that are the variant now.",
    },
    m.PackageVariant: {
        "": "A package that is kept in step with an upstream package and with the objects of the cluster "
        "that are injected into it.",
    },
    m.LabelSelectorRequirement: {
        "": "A requirement on one label.",
        "key": "Key of the label.",
        "operator": "How the label relates to the values: In, NotIn, Exists or DoesNotExist.",
        "values": "Values to compare with: at least one for In and NotIn, none for Exists and DoesNotExist.",
    },
    m.LabelSelector: {"": "Selects objects by their labels. An empty selector takes all.", **_LABEL_SELECTOR},
    m.ObjectSelector: {
        "": "Selects objects of one kind in the namespace of the set.",
        "api_version": "Group and version of the objects.",
        "kind": "Kind of the objects.",
        "name": "Name of the one object to select. Unset selects by labels only.",
        **_LABEL_SELECTOR,
    },
    m.RepositoryTarget: {
        "": "A Repository and the packages to make in it.",
        "name": "Name of the Repository, in the namespace of the set.",
        "package_names": "Names of the packages to make. Without any it is the name of the upstream package.",
    },
    m.MapExpr: {
        "": "One computed entry of a map. It has one form of the key and one of the value.",
        "key": "The key, as it is.",
        "value": "The value, as it is.",
        "key_expr": "CEL expression that gives the key.",
        "value_expr": "CEL expression that gives the value.",
    },
    m.DownstreamTemplate: {
        "": "Where the variants of this target live.",
        "repo": "Name of the Repository. The default depends on the target.",
        "package": "Name of the package. The default depends on the target.",
        "repo_expr": "CEL expression that gives the Repository. `repository` is not known in it.",
        "package_expr": "CEL expression that gives the package.",
    },
    m.PackageContextTemplate: {
        "": "Changes to the package's context.",
        "data": "Keys and values to set.",
        "remove_keys": "Keys to remove.",
        "data_exprs": _MAP_EXPR_LIST,
        "remove_key_exprs": "CEL expressions that give further keys to remove.",
    },
    m.InjectorTemplate: {
        "": "One injector of the variants. It has a name or an expression for it.",
        "group": "API group of the injection point. Unset fits any; an empty string only the core group.",
        "version": "API version of the injection point. Unset fits any.",
        "kind": "Kind of the injection point. Unset fits any.",
        "name": "Name of the object to inject.",
        "name_expr": "CEL expression that gives the name of the object to inject.",
    },
    m.FunctionTemplate: {
        "": "One function of the variants' pipelines.",
        "config_map_exprs": _MAP_EXPR_LIST,
    },
    m.PipelineTemplate: {
        "": "Functions that are put before those of the package's own pipeline.",
        "validators": "Functions that check the resources and must not change them.",
        "mutators": "Functions that change the resources, run in this order.",
    },
    m.VariantTemplate: {
        "": "How the variant of each selected place is made.",
        "downstream": "Where the variants live.",
        **_POLICIES,
        "labels": "Labels of the package revisions.",
        "label_exprs": _MAP_EXPR_LIST,
        "annotations": "Annotations of the package revisions.",
        "annotation_exprs": _MAP_EXPR_LIST,
        "package_context": "Changes to the package's context.",
        "pipeline": "Functions to put before the package's own pipeline.",
        "injectors": "Selectors of objects to inject, in order.",
    },
    m.Target: {
        "": "A selection of places: one of repositories, repositorySelector and objectSelector is given.",
        "repositories": "Repositories and packages by name.",
        "repository_selector": "Repositories by label; one variant for each.",
        "object_selector": "Objects of any kind by label; one variant for each.",
        "template": "How the variants are made. Without it they have only an upstream and a downstream.",
    },
    m.PackageVariantSetSpec: {
        "upstream": "The package that all variants of the set are made from.",
        "targets": "The places where the package is wanted.",
    },
    m.PackageVariantSetStatus: {
        "": "The observed state of the set.",
        "conditions": "The state of the set: Stalled and Ready, and its counts in a message.",
    },
    m.PackageVariantSet: {
        "": "One upstream package and the places where variants of it are wanted: a PackageVariant is made "
        "and kept for each of them.",
    },
    p.SecretRef: {
        "": "Refers to a Secret with credentials.",
        "name": "Name of the Secret, in the namespace of the object that refers to it.",
    },
    p.GitRepository: {
        "": "A git repository.",
        "repo": "Address of the git repository: a URL, or a path. It cannot be changed.",
        "branch": "Branch that holds the packages and receives the published ones. It cannot be changed.",
        "create_branch": "Whether the branch is created when it does not exist.",
        "directory": "Folder that holds the packages; the root of the repository where it is not given. It "
        "cannot be changed.",
        "secret_ref": "Secret with the credentials of the repository.",
        "author": "Name of the author of commits.",
        "email": "Mail address of the author of commits.",
    },
    p.OciRepository: {
        "": "A registry of OCI images.",
        "registry": "Address of the registry. It cannot be changed.",
        "secret_ref": "Secret with the credentials of the registry.",
    },
    p.RepositorySync: {
        "": "When the repository is read again.",
        "schedule": "Cron expression, in UTC, of the times at which the whole repository is read again.",
        "run_once_at": "A time at which the repository is read again once, whatever the schedule says.",
    },
    p.RepositorySpec: {
        "description": "What the repository is for, in the words of its users.",
        "deployment": "Whether packages published in this repository are ready to be deployed.",
        "type": "Type of the repository: git or oci.",
        "content": "Deprecated. The only content is `Package`.",
        "sync": "When the repository is read again.",
        "git": "The git repository. Required where the type is git.",
        "oci": "The OCI registry. Required where the type is oci.",
    },
    p.RepositoryStatus: {
        "conditions": "The state of the repository: Ready.",
        "observed_generation": "The generation of the spec that was last acted upon.",
        "last_full_sync_time": "When the whole repository was last read with success.",
        "next_full_sync_time": "When the whole repository will be read next.",
        "observed_run_once_at": "The value of spec.sync.runOnceAt that was last acted upon.",
        "package_count": "Number of package revisions that were found.",
        "git_commit_hash": "Commit of the branch that was last read; empty for a registry.",
    },
    p.Repository: {"": "A place that holds packages."},
    p.PackageRevSpec: {
        "": "What git does not have of a PackageRevision. Only the package store writes it.",
        "package_revision": "The PackageRevision as every replica of the package store shows it.",
        "change": "A change that a replica has begun, and with which metadata it ends.",
        "withdrawn": "Whether the Repository is gone: the metadata is kept for one of the same name.",
    },
    p.PackageRevStatus: {"": "Not used by pvbus."},
    p.PackageRev: {
        "": "Where the package store keeps the metadata of the PackageRevision with the same name."
    },
    p.RevisionRef: {
        "": "Refers to a PackageRevision.",
        "name": "Name of the PackageRevision, in the same namespace.",
    },
    p.GitPackage: {
        "": "A package in a git repository that is not registered.",
        "repo": "Address of the git repository.",
        "ref": "Branch, tag or commit.",
        "directory": "Folder of the package.",
        "secret_ref": "Secret with the credentials of the repository.",
    },
    p.OciPackage: {"": "A package in an OCI image.", "image": "The image, with its registry."},
    p.UpstreamPackage: {
        "": "Where the content comes from.",
        "type": "Type of the location, git or oci, where the upstream is not a registered revision.",
        "git": "Location in git.",
        "oci": "Location in a registry.",
        "upstream_ref": "The registered PackageRevision.",
    },
    p.InitTask: {
        "": "Starts an empty package.",
        "subpackage": "Folder of the package below the package's name.",
        "description": "What the package is for.",
        "keywords": "Words to find the package by.",
        "site": "Address of the package's home page.",
    },
    p.CloneTask: {"": "Starts from a copy of an upstream package.", "upstream_ref": "What is copied."},
    p.EditTask: {"": "Starts from an earlier revision.", "source_ref": "The revision to start from."},
    p.UpgradeTask: {
        "": "Starts from a local revision, and merges in what changed between two upstream revisions.",
        "old_upstream_ref": "The upstream revision that the local one was made from.",
        "new_upstream_ref": "The upstream revision that is wanted.",
        "local_package_revision_ref": "The local revision.",
        "strategy": "How differences are merged.",
    },
    p.Task: {
        "": "How the first content of the revision is made.",
        "type": "The kind of task: init, clone, edit or upgrade. The field of that name is given.",
        "init": "Starts an empty package.",
        "clone": "Starts from a copy of an upstream package.",
        "edit": "Starts from an earlier revision of the same package.",
        "upgrade": "Starts from a local revision and merges an upstream change into it.",
    },
    p.ReadinessGate: {
        "": "A condition that must be true before the revision can be proposed.",
        "condition_type": "Type of the condition.",
    },
    p.PackageMetadata: {
        "": "Metadata of the package itself, kept in its Kptfile.",
        "labels": "Labels of the Kptfile.",
        "annotations": "Annotations of the Kptfile.",
    },
    p.PackageRevisionSpec: {
        "package_name": "Name of the package, with its path inside the repository.",
        "repository": "Name of the Repository that holds the package.",
        "workspace_name": "Name of the workspace; no two revisions of a package share one.",
        "revision": "Number of the revision: 0 before it is published, -1 for the branch itself.",
        "parent": "Deprecated: the revision that this one stands under.",
        "lifecycle": "Stage of the revision. Without one it is a Draft.",
        "tasks": "How the content came to be; at most one task.",
        "readiness_gates": "Conditions that must be true before the revision can be proposed.",
        "package_metadata": "Metadata of the package, kept in its Kptfile.",
    },
    p.GitLock: {
        "": "An exact place in git.",
        "repo": "Address of the git repository.",
        "directory": "Folder of the package.",
        "ref": "Branch or tag.",
        "commit": "Commit hash.",
    },
    p.Locator: {"": "Where content was taken from.", "type": "Type of the location: git.", "git": _LOCK},
    p.PackageCondition: {
        "": "A condition of the package, kept in its Kptfile.",
        "type": "Name of the condition.",
        "status": "Whether it holds: True, False or Unknown.",
        "reason": "Why, as one word.",
        "message": "What happened, for people.",
    },
    p.PackageRevisionStatus: {
        "upstream_lock": "The upstream content that this revision holds; absent without an upstream.",
        "self_lock": "Where this revision itself is kept.",
        "published_by": "Who published the revision.",
        "publish_timestamp": "When the revision was published.",
        "deployment": "Whether the Repository is one of deployable packages.",
        "conditions": "The conditions of the package.",
    },
    p.PackageRevision: {
        "": "One revision of a package. Its content is the PackageRevisionResources of its name."
    },
    p.ResultResource: {
        "": "The resource that a finding is about.",
        "api_version": "Group and version of the resource.",
        "kind": "Kind of the resource.",
        "name": "Name of the resource.",
        "namespace": "Namespace of the resource.",
    },
    p.ResultField: {
        "": "The field that a finding is about.",
        "path": "Path of the field.",
        "current_value": "Value of the field.",
        "proposed_value": "Value that the function proposes.",
    },
    p.ResultFile: {
        "": "The file that a finding is about.",
        "path": "Path of the file, relative to the package.",
        "index": "Position of the resource among the documents of the file, from 0.",
    },
    p.ResultItem: {
        "": "One finding of a function.",
        "message": "The finding, for people.",
        "severity": "How serious it is: error, warning or info.",
        "resource_ref": "The resource that the finding is about.",
        "field": "The field that the finding is about.",
        "file": "The file that the finding is about.",
        "tags": "Anything else that the function tells.",
    },
    p.FunctionResult: {
        "": "What one function did.",
        "image": "Image of the function.",
        "exec": "Program of the function, where it has no image.",
        "stderr": "What the function wrote to its error output.",
        "exit_code": "Exit code of the function; 0 is success.",
        "results": "Findings of the function.",
    },
    p.ResultList: {
        "": "What the functions of a pipeline did.",
        "api_version": "Group and version of the list.",
        "kind": "Kind of the list.",
        "metadata": "Metadata of the list, which is empty.",
        "exit_code": "Exit code of the pipeline; 0 is success.",
        "items": "The functions that ran, in order.",
    },
    p.RenderStatus: {
        "": "How the last run of a package's pipeline ended.",
        "result": "What the functions did.",
        "error": "Why the run failed; empty when it did not.",
    },
    p.PackageRevisionResourcesSpec: {
        "package_name": "Name of the package.",
        "repository": "Name of the Repository that holds the package.",
        "workspace_name": "Name of the workspace.",
        "revision": "Number of the revision.",
        "resources": "Text of every file, by its path relative to the package.",
    },
    p.PackageRevisionResourcesStatus: {
        "render_status": "How the run of the pipeline that this write caused ended.",
    },
    p.PackageRevisionResources: {"": "The files of the PackageRevision with the same name."},
    old.OldPackage: {
        "": "A package by name.",
        "repo": "Name of the Repository.",
        "name": "Name of the package.",
    },
    old.OldUpstream: {
        "": "The package that is followed.",
        "package": "The upstream package.",
        "revision": "Number of the published revision.",
        "ref": "Tag of the upstream package.",
    },
    old.ValueOrField: {
        "": "A text, or the field to take it from.",
        "value": "The text.",
        "from_field": "Path of a field of the selected object.",
    },
    old.OldSelector: {
        "": "Selects objects.",
        "api_version": "Group and version of the objects.",
        "kind": "Kind of the objects.",
        "name": "Name of the objects.",
        "namespace": "Namespace of the objects.",
        "label_selector": "Labels of the objects.",
        "annotations": "Annotations of the objects.",
    },
    old.OldObjects: {
        "": "A selection of objects of any kind.",
        "selectors": "Selectors of the objects.",
        "repo_name": "How the Repository follows from an object.",
    },
    old.OldPackageName: {
        "": "How the name of a package is put together.",
        "base_name": "The middle of the name.",
        "name_suffix": "The end of the name.",
        "name_prefix": "The start of the name.",
    },
    old.OldTarget: {
        "": "A selection of places.",
        "package": "One package by name.",
        "repositories": "Repositories by label.",
        "objects": "Objects of any kind.",
        "package_name": "How package names are put together for selected places.",
    },
    old.OldPackageVariantSetSpec: {
        "upstream": "The package that all variants are made from.",
        "targets": "The places where the package is wanted.",
        **_POLICIES,
        "labels": "Labels of the package revisions.",
        "annotations": "Annotations of the package revisions.",
    },
    old.OldPackageVariantSet: {
        "": "The first form of PackageVariantSet. It is listed, but never served: use v1alpha2.",
    },
}
