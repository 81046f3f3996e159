"""Names that derive from others."""

import pytest

from pvbus.core.kernel.keys import next_workspace


@pytest.mark.parametrize(
    ("workspaces", "expected"),
    [
        ([], 1),
        (["main", "v1"], 1),
        (["packagevariant-2", "packagevariant-10", "packagevariant-9"], 11),
        (["packagevariant-007"], 8),
        (["packagevariant-+5"], 6),
        (["packagevariant--5"], 1),
        (["packagevariant--5", "packagevariant-2"], 3),
        (["packagevariant-", "packagevariant-x", "packagevariant-1x", "packagevariant-1.5"], 1),
        (["packagevariant-++1", "packagevariant-+", "packagevariant-1_000", "packagevariant- 3"], 1),
        (["packagevariant-\u0663", "packagevariant-\u00b2"], 1),
        (["packagevariant-9223372036854775808", "packagevariant-3"], 4),
        (["packagevariant-5\n"], 1),
    ],
)
def test_the_next_workspace_counts_suffixes_as_go_reads_them(workspaces: list[str], expected: int) -> None:
    """strconv.Atoi: a sign, then ASCII digits, within 64 bits; anything else is 0."""
    assert next_workspace(workspaces) == f"packagevariant-{expected}"
