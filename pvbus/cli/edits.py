"""Lists the drafts that people have edited, of the variants of a set and of variants that are gone."""

from collections.abc import Iterable, Iterator
from typing import Any

from pvbus.cli.fleet import existing, members_of, variants_of
from pvbus.cli.output import counted
from pvbus.cli.progress import SET
from pvbus.core.kernel.keys import EDITED_BY, KEPT_FOR, Key, maker_of
from pvbus.core.kernel.objects import annotation
from pvbus.core.variants.revisions.owning import PUBLISHED, lifecycle_of
from pvbus.ports.cluster import Cluster, Object

Document = dict[str, Any]


async def edits_of(cluster: Cluster, key: Key) -> Document:
    """Return the open revisions of a set that people edited: they stay when it is deleted."""
    variants = await variants_of(cluster, await existing(cluster, SET, key))
    members = await members_of(cluster, key.namespace, variants)
    drafts = [each for each in members if lifecycle_of(each.revision) not in PUBLISHED]
    found = [
        {
            "variant": str(each.key),
            "draft": each.name,
            "lifecycle": lifecycle_of(each.revision),
            "editors": editors,
        }
        for each in drafts
        if (editors := annotation(each.revision, EDITED_BY))
    ]
    return {"set": str(key), "drafts": len(drafts), "edited": found}


def edit_lines(document: Document) -> Iterator[str]:
    count, edited = document["drafts"], document["edited"]
    drafts = counted(count, "draft")
    if not edited:
        yield f"PackageVariantSet {document['set']}: {drafts}, none with edits of people"
        return
    yield (
        f"PackageVariantSet {document['set']}: {len(edited)} of {drafts} with edits of people; if the set is "
        "deleted, these stay:"
    )
    for each in edited:
        yield f"  {each['draft']} ({each['lifecycle']}) of {each['variant']}: edited by {each['editors']}"
    yield f"to see one: pvbus diff {edited[0]['variant']}"


def kept_for(revisions: Iterable[Object], key: Key, *, is_set: bool) -> list[Document]:
    """Return the drafts that stayed when a variant, or the variants of a set, went."""
    found = []
    for revision in revisions:
        set_name, variant = maker_of(annotation(revision, KEPT_FOR))
        if key.name == (set_name if is_set else variant) and not revision["metadata"].get("ownerReferences"):
            found.append(
                {
                    "revision": revision["metadata"]["name"],
                    "lifecycle": lifecycle_of(revision),
                    "variant": f"{key.namespace}/{variant}",
                    "editors": annotation(revision, EDITED_BY),
                }
            )
    return sorted(found, key=lambda each: str(each["revision"]))


def kept_lines(drafts: Iterable[Document]) -> Iterator[str]:
    for each in drafts:
        yield (
            f"  kept: {each['revision']} ({each['lifecycle']}) of {each['variant']}, which has left it; "
            f"edited by {each['editors'] or 'somebody'}; applied again, the variant has it back"
        )
