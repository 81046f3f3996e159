"""The three-way merge of packages: old upstream, local, new upstream, as kpt's `resource-merge` does it."""
