"""Functions that a PackageVariant puts first in the Kptfile's pipeline.

Their name, `PackageVariant.<variant>.<function>.<index>`, distinguishes them from the package's own.
The variant's name is known, so it may contain dots; a function's name may not (validation), and an
entry whose function part has one is not ours.

Source: Porch v1.5.8, packagevariant_controller.go, ensureKRMFunctions; the dots are our departure.
"""

import re
from typing import Any

import msgspec

from pvbus.core.api.kptfile import FILE
from pvbus.core.api.variants import Function, Pipeline
from pvbus.core.errors import PermanentError
from pvbus.core.yaml import editor

PREFIX = "PackageVariant"
_FUNCTION_AND_INDEX = re.compile(r"[^.]*\.[+-]?[0-9]+")


def function_name(variant: str, function: str, index: int) -> str:
    """Return the name of a variant's function in the Kptfile."""
    return f"{PREFIX}.{variant}.{function}.{index}"


def is_own(entry: Any, variant: str) -> bool:
    """Return whether an entry of a pipeline was put there by this variant."""
    name = entry.get("name") if isinstance(entry, dict) else None
    head = f"{PREFIX}.{variant}."
    return (
        isinstance(name, str)
        and name.startswith(head)
        and _FUNCTION_AND_INDEX.fullmatch(name[len(head) :]) is not None
    )


def with_pipeline(
    resources: dict[str, str], pipeline: Pipeline | None, *, variant: str, where: str
) -> dict[str, str]:
    """Remove the variant's former functions, and put its present ones first, in their order.

    Foreign entries keep their order and their text. An emptied list is removed, and so is an empty
    pipeline. where: namespace/name of the package's files, for messages. Raises: PermanentError.
    """
    if FILE not in resources:
        raise PermanentError(
            f"\"{FILE}\" not found in PackageRevisionResources '{where}'", reason="InvalidPackage"
        )
    pipeline = pipeline or Pipeline()
    try:
        first, *rest = editor.parse(resources[FILE])
        document = _with_functions(first, "mutators", pipeline.mutators, variant)
        document = _with_functions(document, "validators", pipeline.validators, variant)
        if document is not first and editor.get(document.value, ("pipeline",)) == {}:
            document = editor.delete(document, ("pipeline",))
    except editor.YamlError as error:
        raise PermanentError(
            f'failed to parse "{FILE}" of PackageRevisionResources {where}: {error}', reason="InvalidPackage"
        ) from None
    return {**resources, FILE: editor.join((document, *rest))}


def _with_functions(
    document: editor.Document, field: str, functions: tuple[Function, ...], variant: str
) -> editor.Document:
    path = ("pipeline", field)
    present = editor.get(document.value, path) or []
    if not isinstance(present, list):
        raise editor.YamlError(f"pipeline.{field} is not a list")
    own = [index for index, entry in enumerate(present) if is_own(entry, variant)]
    wanted = [_entry(function, variant, index) for index, function in enumerate(functions)]
    if own == list(range(len(wanted))) and editor.same(present[: len(own)], wanted):
        return document
    if len(own) == len(present) and not wanted:
        return editor.delete(document, path)
    for entry in reversed(wanted):
        document = editor.insert(document, path, 0, entry)
    for index in reversed(own):
        document = editor.delete(document, (*path, len(wanted) + index))
    return document


def _entry(function: Function, variant: str, index: int) -> dict[str, Any]:
    """Return the Kptfile's entry: the name first, no empty fields."""
    named = msgspec.structs.replace(function, name=function_name(variant, function.name, index))
    # Via JSON: the YAML writer needs lists, and to_builtins keeps tuples.
    entry: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(named))
    return entry
