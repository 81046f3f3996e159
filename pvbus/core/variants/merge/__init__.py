"""The three-way merge of packages: old upstream, local, new upstream, as kpt's `resource-merge` does it."""


class MergeError(ValueError):
    """These packages cannot be merged. The message says where and why."""
