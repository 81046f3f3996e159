"""Crossplane's ImageConfigs: what they say of the images that they match, by prefix.

Each concern has its own match: of the configs that say something of it, the one with the longest prefix that
fits counts, and of two of one length the first by name. A prefix is compared with the reference as it is
written: no default registry is added. Source: Crossplane, internal/xpkg/config.go.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class ImageConfig(NamedTuple):
    """What one ImageConfig says.

    prefixes: of the references that it matches
    is_verifying: whether it demands signatures, in whatever way
    """

    name: str
    prefixes: tuple[str, ...] = ()
    is_verifying: bool = False


def image_config_of(obj: Mapping[str, Any]) -> ImageConfig:
    """Read an ImageConfig; what is not as its schema says has no effect, but for a demand of signatures."""
    spec = _mapping(obj.get("spec"))
    items = spec.get("matchImages")
    prefixes = [_mapping(item).get("prefix") for item in items] if isinstance(items, list) else []
    return ImageConfig(
        name=str(_mapping(obj.get("metadata")).get("name", "")),
        prefixes=tuple(prefix for prefix in prefixes if isinstance(prefix, str) and prefix),
        is_verifying=spec.get("verification") is not None,
    )


def best_match(configs: Iterable[ImageConfig], references: Iterable[str]) -> ImageConfig | None:
    """Return the config with the longest prefix of one of the references, None if none matches.

    references: the ways to write one image
    """
    ways = tuple(references)
    matches = [
        (-len(prefix), config.name, config)
        for config in configs
        for prefix in config.prefixes
        if any(way.startswith(prefix) for way in ways)
    ]
    return min(matches)[2] if matches else None


def references_of(source: str, version: str, digest: str) -> tuple[str, ...]:
    """Return the ways to write an image. version, digest: "" if it is not known."""
    tagged = f"{source}:{version}" if version else source
    return (f"{tagged}@{digest}", f"{source}@{digest}") if digest else (tagged,)


def unread_words(why: str) -> str:
    """Return what to do while the ImageConfigs cannot be read. why: in the API's words"""
    return (
        f"it is not known whether an ImageConfig demands a verified signature, as ingest cannot list them "
        f"({why}): pvbus doctor says what it lacks"
    )


def unverified_words(configs: Iterable[ImageConfig], source: str, version: str, digest: str) -> str:
    """Return why an image must not be installed: its signature is demanded, and not checked here. Else ""."""
    demanding = (config for config in configs if config.is_verifying)
    config = best_match(demanding, references_of(source, version, digest))
    if config is None:
        return ""
    image = f"{source}:{version}" if version else f"{source}@{digest}"
    return (
        f"ImageConfig {config.name} demands a verified signature of {image}, and pvbus verifies none: "
        f"verify it, and take the image out of spec.matchImages of ImageConfig {config.name}, or have "
        "Crossplane install packages (PVBUS_INSTALLER=others)"
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
