"""The package context: keys that a PackageVariant sets in `package-context.yaml`.

Each mutation is a module. Source: Porch v1.5.8, packagevariant_controller.go, ensurePackageContext.
"""

from pvbus.core.api.variants import PackageContext
from pvbus.core.errors import PermanentError
from pvbus.core.yaml import editor

FILE = "package-context.yaml"
KIND = "ConfigMap"
NAME = "kptfile.kpt.dev"


def with_context(resources: dict[str, str], context: PackageContext | None, *, where: str) -> dict[str, str]:
    """Set the keys of `data`, then delete those of `removeKeys`: removal wins.

    where: namespace/name of the package's files, for messages. Raises: PermanentError.
    """
    if context is None or not (context.data or context.remove_keys):
        return resources
    documents, index = _documents(resources, where)
    document = documents[index]
    for key in sorted(context.data):
        document = editor.assign(document, ("data", key), context.data[key])
    for key in context.remove_keys:
        document = editor.delete(document, ("data", key))
    return {**resources, FILE: editor.join((*documents[:index], document, *documents[index + 1 :]))}


def _documents(resources: dict[str, str], where: str) -> tuple[tuple[editor.Document, ...], int]:
    """Check the file; return its documents and the index of the package context."""
    if FILE not in resources:
        raise _invalid(f"\"{FILE}\" not found in PackageRevisionResources '{where}'")
    try:
        documents = editor.parse(resources[FILE])
        filled = [index for index, one in enumerate(documents) if one.value is not None]
        if len(filled) != 1 or not isinstance(documents[filled[0]].value, dict):
            raise editor.YamlError(f"expected exactly one object, got {len(filled)}")
    except editor.YamlError as error:
        raise _invalid(f'failed to parse "{FILE}" of PackageRevisionResources {where}: {error}') from None
    document = documents[filled[0]]
    if document.value.get("kind") != KIND:
        raise _invalid(f'"{FILE}" does not contain kind "{KIND}" in PackageRevisionResources \'{where}\'')
    if editor.get(document.value, ("metadata", "name")) != NAME:
        raise _invalid(
            f'"{FILE}" does not contain resource named "{NAME}" in PackageRevisionResources \'{where}\''
        )
    if not isinstance(document.value.get("data"), dict):
        raise _invalid(f"PackageRevisionResources {where} PackageContext no data field found")
    return documents, filled[0]


def _invalid(message: str) -> PermanentError:
    return PermanentError(message, reason="InvalidPackage")
