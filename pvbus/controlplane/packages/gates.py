"""Readiness gates at the package store: who may propose or approve a package revision that is not ready.

In a deployment repository this takes the right `update` of `packagerevisions/override`, whatever the client.
The user says why, in an annotation of the request; the store writes the reason into git and the log, and
removes the annotation. Other repositories are exempt, as with Porch's server, which enforces no gates at all.

A refusal is 422, as is every other change of a lifecycle that Porch's server refuses: what is wrong is in the
object. 409 would make clients send the same request again at once; 403 would say that somebody else may.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver import audit
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.identity import Asked, current
from pvbus.controlplane.packages import answers, layout
from pvbus.controlplane.packages.revisions import Revision, conditions_of
from pvbus.core.kernel import tasks
from pvbus.core.kernel.gates import Step, Unmet, gates_for, unmet_gates, words
from pvbus.core.kernel.keys import OVERRIDE_GATES

RIGHT = "override"
"""The subresource whose `update` is the right to override. It is not served: only its right is asked for."""

_GUARDED: Mapping[tuple[str, str], Step] = {
    (layout.DRAFT, layout.PROPOSED): "propose",
    (layout.PROPOSED, layout.PUBLISHED): "approve",
}


class Move(NamedTuple):
    """A wanted change of lifecycle.

    name: the name of the PackageRevision
    before: the lifecycle now
    after: the wanted lifecycle
    reason: why unmet gates are overridden, None if no override is asked for
    """

    name: str
    before: str
    after: str
    reason: str | None


def unmet_of(revision: Revision, step: Step) -> list[Unmet]:
    """Return the gates for a step that are not met, of the same conditions as the API shows."""
    annotations = revision.kptfile.annotations
    gates = gates_for(step, (gate["conditionType"] for gate in revision.kptfile.gates), annotations)
    return unmet_gates(gates, conditions_of(revision), tasks.questions(annotations))


async def require_gates(move: Move, revision: Revision, *, deployment: bool) -> tuple[str, ...]:
    """Return the lines for git about an override, () if none was needed. Raises: StatusError (403, 422)."""
    step = _GUARDED.get((move.before, move.after))
    if not deployment or step is None:
        return ()
    unmet = unmet_of(revision, step)
    if not unmet:
        return ()
    if move.reason is None:
        raise _refused(move.name, unmet)
    reason = layout.one_line(move.reason)
    if not reason:
        field = f"metadata.annotations[{OVERRIDE_GATES}]"
        raise answers.invalid(move.name, field, f"say why the gates are overridden; {words(unmet)}")
    asked = current()
    await _authorize(asked, move.name, unmet)
    types = ", ".join(gate.type for gate in unmet)
    audit.note(override=reason, unmet_gates=types)
    return layout.override_lines(asked.user.name, types, reason)


async def _authorize(asked: Asked, name: str, unmet: list[Unmet]) -> None:
    if asked.authorizer is None:
        return
    wanted = asked.attributes._replace(verb="update", subresource=RIGHT)
    try:
        await asked.authorizer.authorize(asked.user, wanted)
    except StatusError as exc:
        if exc.code != 403:
            raise
        why = f"{words(unmet)}; to override them takes a right of its own: {exc.message}"
        raise answers.forbidden(name, why) from exc


def _refused(name: str, unmet: list[Unmet]) -> StatusError:
    """Return the error with one cause for each gate, which is what kubectl prints."""
    causes = tuple(
        ("spec.readinessGates", "FieldValueInvalid", f"unmet readiness gate: {gate}") for gate in unmet
    )
    text = answers.invalid(name, "spec.lifecycle", words(unmet)).message
    details = {"group": "porch.kpt.dev", "kind": "PackageRevision", "name": name}
    return StatusError(422, "Invalid", text, causes=causes, details=details)


def without_override(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without the annotation that asks for an override: it is for one change."""
    annotations = metadata.get("annotations") or {}
    if OVERRIDE_GATES not in annotations:
        return dict(metadata)
    others = {key: value for key, value in annotations.items() if key != OVERRIDE_GATES}
    retained = {key: value for key, value in metadata.items() if key != "annotations"}
    return {**retained, "annotations": others} if others else retained
