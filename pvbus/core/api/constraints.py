"""Limits of the API types' schemas: required fields, formats, enums, defaults, patterns and CEL rules.

Those of Porch's kinds are Porch's, no more and no less: an object that Porch accepts is accepted here. A
field that Porch lacks has its own.
`SHAPES` is keyed by Struct and field, `TYPE_SHAPES` by Struct. A Struct inherits the fields' entries of its
bases.
"""

from collections.abc import Mapping
from typing import Any

from pvbus.core.api import packages as p
from pvbus.core.api import promotion as r
from pvbus.core.api import variants as m

_TIME = {"format": "date-time"}
_OPEN = {"x-kubernetes-preserve-unknown-fields": True}
_ATOMIC_LIST = {"x-kubernetes-list-type": "atomic"}
_LIFECYCLES = ["Draft", "Proposed", "Published", "DeletionProposed"]

_CONDITION_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)

SHAPES: Mapping[type, Mapping[str, Mapping[str, Any]]] = {
    m.Condition: {
        "last_transition_time": _TIME,
        "message": {"maxLength": 32768},
        "observed_generation": {"format": "int64", "minimum": 0},
        "reason": {"minLength": 1, "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        "status": {"enum": ["True", "False", "Unknown"]},
        "type": {
            "maxLength": 316,
            "pattern": _CONDITION_TYPE,
        },
    },
    m.LabelSelector: {"match_expressions": _ATOMIC_LIST},
    m.LabelSelectorRequirement: {"values": _ATOMIC_LIST},
    m.ObjectSelector: {"match_expressions": _ATOMIC_LIST},
    p.GitRepository: {"branch": {"default": "main", "minLength": 1}},
    p.RepositorySync: {"run_once_at": _TIME},
    p.RepositorySpec: {
        "content": {
            "default": "Package",
            "x-kubernetes-validations": [
                {
                    "rule": "self == '' || self == 'Package'",
                    "message": "spec.content is deprecated; leave it out or set it to 'Package'",
                }
            ],
        },
    },
    p.RepositoryStatus: {
        "observed_generation": {"format": "int64"},
        "last_full_sync_time": _TIME,
        "next_full_sync_time": _TIME,
        "observed_run_once_at": _TIME,
    },
    p.PackageRevSpec: {"package_revision": _OPEN, "change": _OPEN},
    p.Task: {"type": {"enum": ["init", "clone", "edit", "upgrade"]}},
    p.UpgradeTask: {
        "strategy": {"enum": ["resource-merge", "fast-forward", "force-delete-replace", "copy-merge"]},
    },
    p.PackageRevisionSpec: {"lifecycle": {"enum": _LIFECYCLES}},
    p.PackageRevisionStatus: {"publish_timestamp": _TIME},
    p.PackageCondition: {"status": {"enum": ["True", "False", "Unknown"]}},
    r.PackageSpecializerSpec: {
        "condition_types": {
            "items": {"type": "string", "maxLength": 316, "pattern": _CONDITION_TYPE},
            "maxItems": 64,
            "x-kubernetes-list-type": "set",
        },
        "deadline_seconds": {
            "default": r.DEADLINE_SECONDS,
            "minimum": 1,
            "maximum": 2_592_000,
        },
        "after_deadline": {"default": r.CLOSED, "enum": [r.OPEN, r.CLOSED]},
    },
}


def _required(*names: str) -> Mapping[str, Any]:
    return {"required": sorted(names)}


def _immutable(path: str) -> Mapping[str, str]:
    """Return a rule of the whole object: the field (at least two names deep) keeps its value.

    Every step of the path is tested for presence, as CEL reports an absent one as an error.
    """
    names = path.split(".")
    steps = [".".join(names[:depth]) for depth in range(2, len(names) + 1)]
    absent = " || ".join(f"!has(oldSelf.{step})" for step in steps)
    return {"rule": f"{absent} || self.{path} == oldSelf.{path}", "message": f"{path} is immutable"}


TYPE_SHAPES: Mapping[type, Mapping[str, Any]] = {
    m.Condition: _required("lastTransitionTime", "message", "reason", "status", "type"),
    m.Injector: _required("name"),
    m.LabelSelector: {"x-kubernetes-map-type": "atomic"},
    m.LabelSelectorRequirement: _required("key", "operator"),
    m.ObjectSelector: {"x-kubernetes-map-type": "atomic"},
    m.RepositoryTarget: _required("name"),
    p.SecretRef: _required("name"),
    p.GitRepository: _required("repo"),
    p.OciRepository: _required("registry"),
    p.FunctionResult: _required("exitCode"),
    p.ResultList: _required("exitCode"),
    p.RenderStatus: _required("error"),
    p.PackageCondition: _required("status", "type"),
    p.Repository: {
        "x-kubernetes-validations": [
            {
                "rule": "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
                "message": "metadata.name must be an RFC 1123 label: lower-case letters, digits and '-'",
            },
            {
                "rule": "size(self.metadata.name) <= 63",
                "message": "metadata.name must be at most 63 characters",
            },
            _immutable("spec.type"),
            _immutable("spec.git.repo"),
            _immutable("spec.git.branch"),
            _immutable("spec.git.directory"),
            _immutable("spec.oci.registry"),
        ],
    },
    r.PackageSpecializer: {
        **_required("spec"),
        "x-kubernetes-validations": [
            {
                "rule": f"size(self.metadata.name) <= {r.SPECIALIZER_NAME_CHARACTERS_MAX}",
                "message": f"metadata.name must be at most {r.SPECIALIZER_NAME_CHARACTERS_MAX} characters: "
                "it is part of the name of an annotation",
            },
        ],
    },
}
