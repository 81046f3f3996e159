"""Crossplane's ImageConfigs: what they say of the images that they match, by prefix.

Each concern has its own match: of the configs that say something of it, the one with the longest prefix that
fits counts, and of two of one length the first by name. A prefix is compared with the reference as it is
written: no default registry is added. A rewritten address is not rewritten again; it is what pull secrets and
runtimes are for, and signatures beside the written one. Source: Crossplane, internal/xpkg/config.go.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Effect, Get, KindRef
from pvbus.core.kernel.objects import mapping, text

SECRET = KindRef("", "Secret", "v1")
APPLIED = "appliedImageConfigRefs"
"""The field of a status with the configs that were used."""
NOWHERE = "-"
"""The address of a source that ImageConfigs keep from being read."""
REWRITES, AUTHENTICATES = "RewriteImage", "SetImagePullSecret"
"""What a config was applied for. Source: Crossplane, apis/pkg/v1, ImageConfigRefReason."""


class ImageConfig(NamedTuple):
    """What one ImageConfig says.

    prefixes: of the references that it matches
    is_verifying: whether it demands signatures, in whatever way
    secret: the name of its pull secret, "" without one
    rewrite: what stands in place of the prefix, "" if that is missing; None if it rewrites nothing
    runtime: the name of the DeploymentRuntimeConfig of its packages, "" without one
    """

    name: str
    prefixes: tuple[str, ...] = ()
    is_verifying: bool = False
    secret: str = ""
    rewrite: str | None = None
    runtime: str = ""


class Chosen(NamedTuple):
    """The DeploymentRuntimeConfig of a package.

    name: "" if nothing names one
    field: the one that names it, in words
    """

    name: str
    field: str


class Access(NamedTuple):
    """How a source of packages is read.

    address: where; the source itself if no config rewrites it, NOWHERE if it is not read
    secrets: keys `<namespace>/<name>` of pull secrets, in the order in which they are tried
    required: the last of them if a config names it: it has to be there
    applied: name of a config and what it was applied for
    problem: why the source is not read, "" if it is
    """

    address: str
    secrets: tuple[str, ...] = ()
    required: str = ""
    applied: tuple[tuple[str, str], ...] = ()
    problem: str = ""

    @property
    def note(self) -> str:
        """What the configs change, for a message on a failure; "" without a config."""
        words = {
            REWRITES: f"rewrites it to {self.address}",
            AUTHENTICATES: f"names the pull secret {self.required}",
        }
        return "; ".join(f"ImageConfig {name} {words[reason]}" for name, reason in self.applied)

    def resolved(self, image: str, source: str) -> str:
        """Return an image of the source as it is at the address."""
        return image if self.address == NOWHERE else f"{self.address}{image.removeprefix(source)}"

    @property
    def references(self) -> dict[str, Any]:
        """The field of a status with the configs, {} without one."""
        named = [{"name": name, "reason": reason} for name, reason in self.applied]
        return {APPLIED: named} if named else {}


Accesses = Callable[[str], Access]
"""Returns how a source is read."""


def image_config_of(obj: Mapping[str, Any]) -> ImageConfig:
    """Read an ImageConfig; what is not as its schema says has no effect, but for a demand of signatures."""
    spec = mapping(obj.get("spec"))
    items = spec.get("matchImages")
    prefixes = [mapping(item).get("prefix") for item in items] if isinstance(items, list) else []
    authentication = mapping(mapping(spec.get("registry")).get("authentication"))
    rewrite = spec.get("rewriteImage")
    return ImageConfig(
        name=str(mapping(obj.get("metadata")).get("name", "")),
        prefixes=tuple(prefix for prefix in prefixes if isinstance(prefix, str) and prefix),
        is_verifying=spec.get("verification") is not None,
        secret=text(mapping(authentication.get("pullSecretRef")).get("name")),
        rewrite=None if rewrite is None else text(mapping(rewrite).get("prefix")),
        runtime=text(mapping(mapping(spec.get("runtime")).get("configRef")).get("name")),
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


def access_of(configs: Iterable[ImageConfig], source: str, secrets: Iterable[str], namespace: str) -> Access:
    """Return how a source is read.

    secrets: the pull secrets of its installs, which are tried first
    namespace: of the pull secrets that configs name
    """
    known, own = tuple(configs), tuple(secrets)
    applied: list[tuple[str, str]] = []
    address, problem = source, _partial(known, (source,))
    rewriting = best_match((each for each in known if each.rewrite is not None), (source,))
    if rewriting is not None:
        prefix = max((each for each in rewriting.prefixes if source.startswith(each)), key=len)
        address = f"{rewriting.rewrite}{source.removeprefix(prefix)}"
        applied.append((rewriting.name, REWRITES))
        if not rewriting.rewrite:
            problem = f"ImageConfig {rewriting.name}: spec.rewriteImage.prefix is empty: say where to read"
    problem = problem or _partial(known, (address,))
    if problem:
        return Access(NOWHERE, own, problem=problem)
    required = ""
    authenticating = best_match((each for each in known if each.secret), (address,))
    if authenticating is not None:
        required = f"{namespace}/{authenticating.secret}"
        applied.append((authenticating.name, AUTHENTICATES))
        own = tuple(dict.fromkeys((*own, required)))
    return Access(address, own, required, tuple(applied))


def _partial(configs: Iterable[ImageConfig], sources: Iterable[str]) -> str:
    """Return why a source cannot be read as a config says: it says so of single versions only. Else ""."""
    for source in sources:
        for config in sorted(configs, key=lambda each: each.name):
            for prefix in config.prefixes:
                is_partial = prefix.startswith((f"{source}:", f"{source}@"))
                if is_partial and (config.secret or config.rewrite is not None):
                    return (
                        f"ImageConfig {config.name} has a pull secret or an address for {prefix} alone, and "
                        f"all versions of {source} are read in one way: name {source} in its spec.matchImages"
                    )
    return ""


def check_access(access: Access) -> Generator[Effect, Any, None]:
    """Check that a source may be read, and that the pull secret is there that a config names.

    Raises PermanentError that names what is missing, and TransientError.
    """
    if access.problem:
        raise PermanentError(access.problem, reason="NotSet")
    if not access.required:
        return
    namespace, _, name = access.required.partition("/")
    try:
        secret = yield Get(SECRET, namespace, name)
    except PermanentError as error:
        raise PermanentError(f"{error} ({access.note})", reason=error.reason) from error
    if secret is None:
        raise PermanentError(
            f"the pull secret {access.required} does not exist: create it, or change the config "
            f"({access.note})",
            reason="NotSet",
        )


def unread_words(why: str) -> str:
    """Return what to do while the ImageConfigs cannot be read. why: in the API's words"""
    return (
        f"it is not known whether an ImageConfig demands a verified signature, as ingest cannot list them "
        f"({why}): pvbus doctor says what it lacks"
    )


def unverified_words(configs: Iterable[ImageConfig], source: str, version: str, digest: str) -> str:
    """Return why an image must not be installed: its signature is demanded, and not checked here. Else "".

    A signature is demanded of an image by its written and by its rewritten address.
    """
    known = tuple(configs)
    address = access_of(known, source, (), "").address
    references = (*references_of(source, version, digest), *references_of(address, version, digest))
    config = best_match((each for each in known if each.is_verifying), references)
    if config is None:
        return ""
    image = f"{source}:{version}" if version else f"{source}@{digest}"
    return (
        f"ImageConfig {config.name} demands a verified signature of {image}, and pvbus verifies none: "
        f"verify it, and take the image out of spec.matchImages of ImageConfig {config.name}, or have "
        "Crossplane install packages (PVBUS_INSTALLER=others)"
    )


class ImageConfigs:
    """The configs of a cluster.

    hidden: why they cannot be listed, in the API's words, "" if they can
    """

    def __init__(self, namespace: str) -> None:
        """Know no config. namespace: of the pull secrets that they name."""
        self.hidden = ""
        self._namespace = namespace
        self._configs: dict[str, ImageConfig] = {}

    def observe(self, okey: str, obj: Mapping[str, Any] | None) -> bool:
        """Apply a config's object, None for a deleted one; return whether it says something else now."""
        before, after = self._configs.pop(okey, None), image_config_of(obj) if obj is not None else None
        if after is not None:
            self._configs[okey] = after
        return before != after

    def access(self, source: str, secrets: Iterable[str]) -> Access:
        return access_of(self._configs.values(), source, secrets, self._namespace)

    def runtime(self, own: str, address: str, version: str, digest: str) -> Chosen:
        """Return which DeploymentRuntimeConfig a package has: that of an ImageConfig goes before its own.

        own: the one that its install names, "" for none
        address: where its image is read
        """
        naming = (each for each in self._configs.values() if each.runtime)
        config = best_match(naming, references_of(address, version, digest))
        if config is None:
            return Chosen(own, "spec.runtimeConfigRef")
        return Chosen(config.runtime, f"spec.runtime of ImageConfig {config.name}")

    def unverified(self, source: str, version: str, digest: str) -> str:
        """Return why an image must not be installed unless its signature is verified, "" if it may be."""
        if self.hidden:
            return unread_words(self.hidden)
        return unverified_words(self._configs.values(), source, version, digest)
