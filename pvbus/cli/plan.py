"""`pvbus plan`: what would be created, updated, deleted or held, from files alone.

The evaluation is a preview (`pvbus.runtime.preview`): the services themselves, over the given
objects and nothing else. With `-o json` stdout is one document and nothing else.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from pvbus.cli.manifests import Manifest, read_manifests
from pvbus.contracts import crds
from pvbus.core.expressions import Engine, default_engine, engine_named
from pvbus.embedded.apiserver.structural import Schema, compile_schema
from pvbus.errors import UsageError
from pvbus.ports.cluster import Object
from pvbus.runtime.preview import Only, Preview, preview

PACKAGE_KINDS = ("PackageRevision", "PackageRevisionResources")


def admitted(manifests: Iterable[Manifest]) -> tuple[list[Object], list[str]]:
    """Return the objects as an API server would store them, and what it would refuse.

    PackageVariants, sets and Repositories are defaulted, pruned and validated by our own
    CustomResourceDefinitions; other kinds are taken as they are.
    """
    schemas: dict[tuple[str, str], Schema] = {}
    for crd in crds():
        spec = crd["spec"]
        for version in spec["versions"]:
            kind = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            schemas[kind] = compile_schema(version["schema"]["openAPIV3Schema"])
    objects, errors = [], []
    for manifest in manifests:
        obj = manifest.object
        schema = schemas.get((obj["apiVersion"], obj["kind"]))
        if schema is not None:
            obj, _ = schema.pruned(schema.defaulted(obj))
            name = f"{obj['kind']} {obj['metadata']['name']}"
            errors += [f"{manifest.place}: {name}: {e.path}: {e.message}" for e in schema.validate(obj)]
        objects.append(obj)
    return objects, errors


def evaluate(manifests: Sequence[Manifest], engine: Engine, only: Only | None) -> dict[str, Any]:
    """Return the document of `-o json`."""
    objects, errors = admitted(manifests)
    if errors:
        return {**_document(Preview([], objects)), "errors": errors}
    return _document(preview(objects, engine=engine, only=only))


def _document(result: Preview) -> dict[str, Any]:
    actions = []
    for write in result.writes:
        if write.subresource == "status":
            continue
        action: dict[str, Any] = {
            "verb": write.verb,
            "kind": write.kind,
            "namespace": write.namespace,
            "name": write.name,
        }
        if write.object is not None:
            action["object"] = write.object
        actions.append(action)
    conditions = {}
    packages = {}
    for obj in result.objects:
        meta = obj["metadata"]
        namespace = meta.get("namespace", "")
        if obj["kind"] == "PackageRevisionResources":
            packages[f"{namespace}/{meta['name']}"] = (obj.get("spec") or {}).get("resources") or {}
        elif (obj.get("status") or {}).get("conditions"):
            conditions[f"{obj['kind']}/{namespace}/{meta['name']}"] = obj["status"]["conditions"]
    return {"actions": actions, "objects": result.objects, "conditions": conditions, "packages": packages}


def troubles(document: dict[str, Any]) -> list[str]:
    """Return what is stalled, held or failed, in words: what `--check` fails for."""
    found = list(document.get("errors", ()))
    for key, conditions in document["conditions"].items():
        if key.startswith("PackageRevision/"):
            continue
        for condition in conditions:
            bad = (condition["type"], condition["status"]) in (("Stalled", "True"), ("DeletionHeld", "True"))
            if bad or (condition["type"], condition["status"]) == ("Ready", "False"):
                found.append(f"{key}: {condition['type']}={condition['status']}: {condition['message']}")
    return found


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Name the fields in which two objects differ, with old and new value."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in sorted({*before, *after}):
            found += differences(before.get(key), after.get(key), f"{path}.{key}" if path else key)
        return found
    if before == after or (not before and not after):
        return []
    return [f"{path}: {_short(before)} -> {_short(after)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _print_text(document: dict[str, Any], given: dict[tuple[str, str, str], Object]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    marks = {"create": "[green]+[/]", "delete": "[red]-[/]"}
    for action in document["actions"]:
        name = f"{action['namespace']}/{action['name']}"
        console.print(f"{marks.get(action['verb'], '[yellow]~[/]')} {action['verb']} {action['kind']} {name}")
        before = given.get((action["kind"], action["namespace"], action["name"]))
        if action["verb"] == "update" and before is not None:
            for line in differences(before.get("spec"), action["object"].get("spec"), "spec"):
                console.print(f"    {escape(line)}")
    for trouble in troubles(document):
        console.print(f"[red]![/] {escape(trouble)}")
    tally: dict[str, int] = {}
    for action in document["actions"]:
        tally[action["verb"]] = tally.get(action["verb"], 0) + 1
    summary = ", ".join(f"{number} to {verb}" for verb, number in tally.items())
    console.print(f"Plan: {summary or 'no changes'}.")


@click.command(
    short_help="Preview every write of some manifests.",
    epilog="""\b
Examples:
  pvbus plan -f manifests/               what a folder of manifests would lead to
  pvbus plan -f fleet.yaml --check       the same in CI: exit code 1 if anything is stalled or held
  pvbus plan -f fleet.yaml -o json       every write, object and condition as one JSON document
""",
)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="Manifests: a file or a folder; they are the whole cluster. Repeatable.",
)
@click.option("--only", type=click.Choice(["sets", "variants"]), help="Run one controller, once.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--check", is_flag=True, help="Exit with 1 when anything is Stalled, held or failed.")
@click.option("--render", is_flag=True, help="Also run the packages' pipelines (built-in functions only).")
@click.option("--engine", metavar="NAME", help="CEL engine; by default the fastest that is installed.")
def plan(
    files: tuple[Path, ...], only: Only | None, output: str, check: bool, render: bool, engine: str | None
) -> None:
    """Preview every write that the given manifests would lead to, with reasons.

    Nothing is written and no cluster is asked: the manifests are the whole cluster. Give the target
    objects, Repositories and PackageRevisions (with PackageRevisionResources) along with the sets.
    """
    try:
        chosen = engine_named(engine) if engine else default_engine()
    except LookupError as exc:
        raise UsageError(str(exc)) from exc
    manifests = read_manifests(files)
    document = evaluate(manifests, chosen, only)
    if render:
        render_packages(document)
    if output == "json":
        json.dump(document, sys.stdout, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        given = {}
        for manifest in manifests:
            meta = manifest.object["metadata"]
            given[manifest.object["kind"], meta.get("namespace", "default"), meta["name"]] = manifest.object
        _print_text(document, given)
    if document.get("errors") or (check and troubles(document)):
        sys.exit(1)


def render_packages(document: dict[str, Any]) -> None:
    """Run the pipelines of the drafts that the plan would write, and tell which cannot run."""
    from pvbus.embedded.packages.functions.registry import FunctionRegistry
    from pvbus.embedded.packages.render import render as run_pipeline

    written = {a["name"]: a["namespace"] for a in document["actions"] if a["kind"] in PACKAGE_KINDS}
    for name, namespace in written.items():
        key = f"{namespace}/{name}"
        if key not in document["packages"]:
            continue
        result = run_pipeline(document["packages"][key], registry=FunctionRegistry({}))
        document["packages"][key] = dict(result.resources)
        if not result.rendered:
            document.setdefault("errors", []).append(
                f"PackageRevision/{key}: {result.step}: {result.message}"
            )
