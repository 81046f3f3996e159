"""The shared conformance cases of set validation and rendering, applied to the pure functions."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pvbus.core.api.selectors import matches, requirements_of
from pvbus.core.api.variants import Downstream, PackageVariantSet
from pvbus.core.kernel.keys import variant_name
from pvbus.core.kernel.records import Root, TargetRow
from pvbus.core.variants.template import RenderError, TargetInputs, TemplateCache, compile_targets, render_row
from pvbus.core.variants.unroll.validation import validate_set

SHARED = Path(__file__).parents[4] / ".." / "shared" / "conformance" / "cases"
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not SHARED.is_dir(), reason="no shared folder beside the checkout"),
]
VALIDATE = sorted(SHARED.glob("pvs-validate/*.yaml"))
RENDER = sorted(SHARED.glob("pvs-render/*.yaml"))


def load(path: Path) -> tuple[PackageVariantSet, list[dict[str, Any]], dict[str, Any]]:
    """Return the set, all given objects, and what is expected of pvbus."""
    case = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    given = case["given"]
    chosen = next(obj for obj in given if obj["kind"] == "PackageVariantSet")
    expect = {**case["expect"], **case.get("pvbus", {}).get("expect", {})}
    return msgspec.convert(chosen, PackageVariantSet, strict=False), given, expect


def says(error: dict[str, Any], text: str) -> bool:
    """The rule by which the cases are compared: words and field, where the original tells a field."""
    low, field = text.lower(), (error["field"] or "").lower()
    return all(word.lower() in low for word in error["contains"]) and (
        field not in error["message"].lower() or field in low
    )


def root(obj: dict[str, Any]) -> Root:
    meta = obj["metadata"]
    return Root(
        name=meta["name"],
        namespace=meta.get("namespace", ""),
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
    )


@pytest.mark.parametrize("path", VALIDATE, ids=[path.stem for path in VALIDATE])
def test_validation_says_what_the_case_says(path: Path) -> None:
    """As many problems as expected, in the same words and order."""
    chosen, _, expect = load(path)
    found = validate_set(chosen.spec)
    assert found == [error["message"] for error in expect["errors"]]


def contexts(chosen: PackageVariantSet, given: list[dict[str, Any]]) -> list[tuple[int, TargetInputs]]:
    """Unroll lists and repository selectors, the kinds of targets these cases have."""
    upstream_ref = chosen.spec.upstream
    assert upstream_ref is not None
    upstream = root(next(obj for obj in given if obj["kind"] == "PackageRevision"))
    found = []
    for index, target in enumerate(chosen.spec.targets):
        for listed in target.repositories or ():
            for package in listed.package_names or (upstream_ref.package,):
                seen = Root(repo=listed.name, package=package)
                found.append((index, TargetInputs(listed.name, package, upstream, seen, list_target=True)))
        if target.repository_selector is not None:
            for obj in (obj for obj in given if obj["kind"] == "Repository"):
                if matches(requirements_of(target.repository_selector), obj["metadata"].get("labels") or {}):
                    inputs = TargetInputs(
                        obj["metadata"]["name"], upstream_ref.package, upstream, root(obj), list_target=False
                    )
                    found.append((index, inputs))
    return found


def rendered(chosen: PackageVariantSet, given: list[dict[str, Any]]) -> dict[str, Any]:
    repositories = {obj["metadata"]["name"]: root(obj) for obj in given if obj["kind"] == "Repository"}
    compiled, cache, made = compile_targets(chosen.spec), TemplateCache(), {}
    for index, inputs in contexts(chosen, given):
        template = compiled.targets[index]
        downstream = Downstream(repo=inputs.repo_default, package=inputs.package_default)
        if template is not None:
            downstream = template.identity(inputs, repositories.get)
        row = TargetRow(
            state="present",
            set_name=chosen.metadata.name,
            set_uid=chosen.metadata.uid,
            upstream=chosen.spec.upstream,
            template=chosen.spec.targets[index].template,
            downstream=downstream,
            repo_default=inputs.repo_default,
            package_default=inputs.package_default,
            list_target=inputs.list_target,
            roots={} if template is None else template.slim_roots(inputs, repositories.get(downstream.repo)),
        )
        name = variant_name(chosen.metadata.name, downstream.repo, downstream.package)
        made[name] = msgspec.json.decode(msgspec.json.encode(render_row(row, cache)))
    return made


@pytest.mark.parametrize("path", RENDER, ids=[path.stem for path in RENDER])
def test_rendering_gives_what_the_case_gives(path: Path) -> None:
    """The specs of all PackageVariants, or an error with the exact text (that of a syntax error is free)."""
    chosen, given, expect = load(path)
    assert validate_set(chosen.spec) == []
    if not expect["errors"]:
        wanted = {obj["metadata"]["name"]: obj["spec"] for obj in expect["packageVariants"]}
        assert rendered(chosen, given) == wanted
        return
    with pytest.raises(RenderError) as failed:
        rendered(chosen, given)
    (error,) = expect["errors"]
    assert says(error, str(failed.value))
    if "Syntax error" not in error["message"]:
        assert str(failed.value) == error["message"]


def test_there_are_cases() -> None:
    """The folder holds both suites, so the tests above are not empty."""
    assert len(VALIDATE) >= 11
    assert len(RENDER) >= 23
