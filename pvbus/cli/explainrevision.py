"""`pvbus explain` of a PackageRevision: who made it, what it waits for, and who moves it on.

The revision is read from the API server, and what promote and people say of it from the bus. One without a
PackageVariant is proposed if it opts in, and approved by a person.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pvbus.cli.asking import task_lines
from pvbus.core.kernel import gates, tasks
from pvbus.core.kernel.keys import AUTO_LIFECYCLE, Key
from pvbus.core.kernel.objectrows import VARIANT
from pvbus.core.kernel.objects import annotations_of, owner_name
from pvbus.core.variants.revisions import signatures
from pvbus.core.variants.revisions.owning import PUBLISHED, lifecycle_of
from pvbus.ports.cluster import Object
from pvbus.telemetry.terminal import one_line

Document = dict[str, Any]
_NEXT = {"Draft": "Proposed", "Proposed": "Published"}


def document_of(
    key: Key, revision: Object, promotion: Sequence[Document], asked: Sequence[Document]
) -> Document:
    """Return what is known of a revision.

    promotion: what promote decided of the variant's revisions; empty where it does not run
    asked: the tasks of the revision
    """
    spec, annotations = revision["spec"], tasks.kptfile_annotations(revision)
    owner = owner_name(revision, VARIANT.kind)
    signed = signatures.signatures_in(annotations)
    return {
        "revision": str(key),
        "known": True,
        "lifecycle": lifecycle_of(revision),
        "repository": spec.get("repository", ""),
        "package": spec.get("packageName", ""),
        "workspace": spec.get("workspaceName", ""),
        "number": spec.get("revision", 0),
        "variant": str(Key(key.namespace, owner)) if owner else "",
        "conditions": gates.conditions_of(revision),
        "signedBy": {
            type_: signed[type_].by for type_ in sorted(signed) if signed[type_].content and signed[type_].by
        },
        "unmetGates": [unmet._asdict() for unmet in gates.unmet_of(revision)],
        "promotion": [each for each in promotion if each["revision"] == key.name],
        "tasks": list(asked),
        "nextStep": next_step(key, revision, owner),
    }


def next_step(key: Key, revision: Object, owner: str) -> str:
    """Return who moves a revision on, and how; "" for one that is published.

    owner: the name of its PackageVariant, "" without one
    """
    lifecycle = lifecycle_of(revision)
    if lifecycle in PUBLISHED:
        return ""
    if owner:
        command = "propose" if lifecycle == "Draft" else "approve"
        return f"pvbus {command} {Key(key.namespace, owner)}, or promote and a RolloutPolicy: see promotion"
    wanted = _NEXT[lifecycle]
    patch = f'{{"spec": {{"lifecycle": "{wanted}"}}}}'
    resource = "packagerevisions/approval" if wanted == "Published" else "packagerevisions"
    flag = " --subresource approval" if resource.endswith("/approval") else ""
    by_hand = f"kubectl patch packagerevision {key.name} -n {key.namespace}{flag} --type merge -p '{patch}'"
    if lifecycle == "Proposed":
        return f"no PackageVariant has it, so no RolloutPolicy approves it: {by_hand}"
    if annotations_of(revision).get(AUTO_LIFECYCLE) == "true":
        return f"promote proposes it once it is ready, if it runs; or by hand: {by_hand}"
    opt_in = f"kubectl annotate packagerevision {key.name} -n {key.namespace} {AUTO_LIFECYCLE}=true"
    return f"no PackageVariant has it, and it is not opted in: {opt_in}; or by hand: {by_hand}"


def missing(key: Key, note: str) -> Document:
    """Return the document of a revision that was not read. note: why."""
    return {"revision": str(key), "known": False, "liveNote": note}


def revision_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the description of a revision."""
    yield f"PackageRevision {document['revision']}"
    if not document["known"]:
        yield f"  {document['liveNote']}; check namespace and name"
        return
    number = f", revision {document['number']}" if document["number"] else ""
    package = f"package {document['package']} of Repository {document['repository']}"
    yield f"  {document['lifecycle']}: {package}, workspace {document['workspace']}{number}"
    if document["variant"]:
        yield f"  made by: PackageVariant {document['variant']}"
    else:
        yield "  made by: a person or another program; no PackageVariant has it"
    for condition in document["conditions"]:
        yield f"  {_condition_words(condition, document['signedBy'])}"
    for unmet in document["unmetGates"]:
        yield f"  gate not met: {unmet['type']} ({one_line(unmet['why'])})"
    for verdict in document["promotion"]:
        yield f"  promotion: {verdict['reason']}: {one_line(verdict['message'])}"
    yield from task_lines(document["tasks"])
    if document["nextStep"]:
        yield f"  next: {document['nextStep']}"


def _condition_words(condition: Object, signed_by: Mapping[str, str]) -> str:
    words = [f"{one_line(str(condition.get('type', '')))}={condition.get('status', '')}"]
    words += [str(condition[field]) for field in ("reason", "message") if condition.get(field)]
    by = signed_by.get(str(condition.get("type")), "")
    return one_line(" ".join(words)) + (f" (signed by {one_line(by)})" if by else "")
