"""Crossplane's packages among manifests: they are read in place of their sources.

Such a manifest is the file `crossplane.yaml` of a version, with the annotations that `pvbus resolve` reads.
It has none of the objects that the package brings. Apart from `compare`: it stands in for the network,
and knows no installs.
"""

from collections.abc import Iterable

import msgspec

from pvbus.cli.resolvefiles import DIGEST, SOURCE, VERSION
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Content, Observation, Observe, Pull
from pvbus.core.kernel.objects import annotation
from pvbus.core.platform.packaging.archives import FOLDER_FILE
from pvbus.core.platform.packaging.references import digest_of
from pvbus.core.platform.packaging.xpkg import META_GROUP
from pvbus.ports.cluster import Object

_encoder = msgspec.json.Encoder(order="sorted")


class PublishedFiles:
    """What manifests say of sources."""

    def __init__(self, objects: Iterable[Object]) -> None:
        self._tags: dict[str, dict[str, str]] = {}
        self._contents: dict[tuple[str, str], bytes] = {}
        for obj in objects:
            if str(obj["apiVersion"]).partition("/")[0] == META_GROUP:
                self._add(obj)

    def _add(self, obj: Object) -> None:
        source, version = annotation(obj, SOURCE), annotation(obj, VERSION)
        if not source or not version:
            return
        data = _encoder.encode(obj)
        digest = annotation(obj, DIGEST) or digest_of(data)
        self._tags.setdefault(source, {})[version] = digest
        self._contents[source, digest] = data

    def __contains__(self, source: str) -> bool:
        return source in self._tags

    def read(self, effect: Observe | Pull) -> Observation | Content:
        """Answer an effect on a source that is here. Raises PermanentError for a content that is not."""
        if isinstance(effect, Observe):
            tags = self._tags[effect.source]
            return Observation(tuple(tags), {tag: tags[tag] for tag in effect.tags if tag in tags})
        data = self._contents.get((effect.source, effect.digest))
        if data is None:
            text = f"no manifest of {effect.source} has the digest {effect.digest}"
            raise PermanentError(text, reason="NotFound")
        return Content(effect.digest, {FOLDER_FILE: data})
