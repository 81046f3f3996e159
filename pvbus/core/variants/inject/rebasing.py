"""Merges a new upstream, or a later published revision, into an open draft.

The new upstream is merged as the upgrade task merges it into a published package.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pvbus.core.errors import PermanentError
from pvbus.core.variants.inject.locks import OPEN_REFS
from pvbus.core.variants.merge import MergeError, copies
from pvbus.core.variants.merge.packages import RESOURCE_MERGE, PackageMerge, Texts
from pvbus.core.yaml.editor import YamlError

_NO_TEXT = "\ufffd"
"""Stands in the API for bytes that are no text; to write it would destroy them."""


def rebase(
    name: str, old: Texts, local: Texts, new: Texts, lock: Mapping[str, Any], *, deployment: bool
) -> PackageMerge:
    """Merge the files of a draft with a new upstream.

    Raises: PermanentError if the files cannot be merged.

    name: the name of the draft, for messages
    lock: the `selfLock` of the new upstream
    deployment: whether the package context of the draft is generated
    """
    git = lock.get("git") or {}
    if missing := [key for key in ("repo", "directory", "ref", "commit") if not git.get(key)]:
        raise _refusal(name, f"its status.selfLock has no {', '.join(missing)}")
    olds, news = copies.upstream_texts(old), copies.upstream_texts(new)

    def merge() -> PackageMerge:
        return copies.upgraded(olds, local, news, lock, RESOURCE_MERGE, deployment=deployment)

    return _checked(local, merge, lambda why: _refusal(name, why, git["ref"]))


def with_edit(name: str, base: Texts, edited: Texts, local: Texts) -> PackageMerge:
    """Merge a published edit into a draft: what both changed gets the draft's value, as if the draft had
    been made from the edit. base: what both were made from. Raises: PermanentError as `rebase`."""

    def refusal(why: str) -> PermanentError:
        message = (
            f'the later published revision cannot be merged into the draft "{name}": {why}; delete the draft '
            "to have it made anew"
        )
        return PermanentError(message, reason="NotMergeable")

    return _checked(local, lambda: copies.rejoined(base, edited, local), refusal)


def _checked(
    local: Texts, merge: Callable[[], PackageMerge], refusal: Callable[[str], PermanentError]
) -> PackageMerge:
    try:
        merged = merge()
    except (MergeError, YamlError) as error:
        raise refusal(str(error)) from error
    for path, text in merged.texts.items():
        if _NO_TEXT in text and text != local.get(path):
            raise refusal(f"{path} is no text")
    return merged


def _refusal(name: str, why: str, ref: str = "") -> PermanentError:
    """Return the error for a draft that cannot be merged.

    ref: the ref of the new upstream; while that is a draft or proposal, it has to be published first
    """
    publish = "publish the upstream, and then it," if ref.startswith(OPEN_REFS) else "publish it"
    message = (
        f'the changed upstream cannot be merged into the draft "{name}": {why}; {publish} to have the '
        "package store merge it, or delete it to have it made anew"
    )
    return PermanentError(message, reason="NotMergeable")
