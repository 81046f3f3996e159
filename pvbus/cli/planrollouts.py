"""What the rollouts make of a plan: the waves, gates and windows that its changes pass, and what holds them.

The rollouts are rehearsed from where they are, after the plan's changes, as `pvbus rollout plan` does. New
variants of a set are in no rehearsal: they join the next attempt.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.markup import escape

from pvbus.cli.live import connect_live
from pvbus.cli.plandocument import Document
from pvbus.cli.planfile import PlanInputs
from pvbus.cli.rolloutdocument import POLICY, QUARANTINE, document_of
from pvbus.cli.rolloutmoves import identity_of, laid_over
from pvbus.cli.rolloutrows import Rows, rows_of
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objectrows import STOP
from pvbus.ports.cluster import Object

KINDS = (POLICY, QUARANTINE, STOP)


def rollouts_after(inputs: PlanInputs, data: str | None, kubeconfig: str | None) -> list[Document]:
    """Return the rehearsals of all policies that have targets to approve, or that something holds.

    data, kubeconfig: of the live system, None for an export
    """
    return asyncio.run(rollouts_of(inputs, data, kubeconfig))


async def rollouts_of(inputs: PlanInputs, data: str | None, kubeconfig: str | None) -> list[Document]:
    """Do the work of `rollouts_after` in a running loop."""
    promotion = await _read_promotion(data, kubeconfig) if data or kubeconfig else []
    objects = laid_over([*inputs.export.items, *promotion], inputs.objects)
    policies = [identity_of(obj)[2:] for obj in objects if obj["kind"] == POLICY.kind]
    if not policies:
        return []
    rows: dict[Key, Rows | str] = {}
    for namespace, name in policies if data or kubeconfig else ():
        rows[Key(namespace, name)] = await rows_of(data, kubeconfig, None, Key(namespace, name))
    document = document_of(objects, time.time(), rows=rows)
    return [
        {**each, "stops": document["stops"]}
        for each in document["policies"]
        if any(each.get(field) for field in ("problems", "targets", "leftOut", "evidence", "waitsFor"))
    ]


async def _read_promotion(data: str | None, kubeconfig: str | None) -> list[Object]:
    found: list[Object] = []
    async with connect_live(data, kubeconfig) as cluster:
        for kind in KINDS:
            resource = await cluster.resource(kind)
            listing = (await cluster.list(resource)).items if resource is not None else ()
            found += [{"apiVersion": f"{kind.group}/v1alpha1", "kind": kind.kind, **obj} for obj in listing]
    return found


def rollout_lines(rollouts: Sequence[Document]) -> Iterator[str]:
    """Yield a few lines for each rollout, with rich markup."""
    for stops in dict.fromkeys(each["stops"] for each in rollouts if each["stops"]):
        yield f"[red]![/] {escape(stops)}"
    for each in rollouts:
        name = escape(f"{each['namespace']}/{each['name']}")
        if each["problems"]:
            yield f"[red]![/] rollout {name} approves nothing: {escape(each['problems'][0])}"
            continue
        yield f"[bold]rollout {name}[/]: {escape(_waves(each))}"
        if each["missing"]:
            yield (
                "  as if no attempt were under way, and nothing stayed as planned (onNewRevision: Finish): "
                f"{escape(each['missing'])}"
            )
        for words in (*each["waitsFor"], *_pauses(each)):
            yield f"  waits for {escape(words)}"
        for words in each["evidence"]:
            yield f"  evidence {escape(words)}"
        for reason, count in sorted(Counter(out["reason"] for out in each["leftOut"]).items()):
            example = next(out for out in each["leftOut"] if out["reason"] == reason)
            words = f"{count} {reason}, such as {example['target']}: {example['message']}"
            yield f"  left out: {escape(words)}"


def _waves(policy: Document) -> str:
    """Return in words what an attempt passes."""
    waves = [wave for wave in policy["waves"] if wave["targets"]]
    if not waves:
        return "approves nothing of this"
    sizes = ", ".join(str(len(wave["targets"])) for wave in waves)
    gates = [f"hold {wave['hold']}" for wave in waves if wave["hold"]]
    gates += [f"check {check['name']}" for wave in waves for check in wave["checks"]]
    gates += [f"only {window}" for window in dict.fromkeys(w for wave in waves for w in wave["windows"])]
    gates += ["a person"] if policy["needsStart"] or any(wave["needsPerson"] for wave in waves) else []
    passes = f"; it passes {', '.join(dict.fromkeys(gates))}" if gates else ""
    end = policy["end"]
    why = f" ({end['message']})" if end["message"] else ""
    return (
        f"{policy['targets']} targets in waves of {sizes}{passes}; ends {end['state']}{why}; "
        f"all of it: pvbus rollout plan {policy['namespace']}/{policy['name']}"
    )


def _pauses(policy: Document) -> Iterator[str]:
    if policy["paused"]:
        yield f"a person, as it is paused: pvbus rollout resume {policy['namespace']}/{policy['name']}"
