"""Which replica has written a PackageRev last, as far as it matters for what git says."""

from pvbus.controlplane.aggregated.ownwrites import OwnWrites

KEY, OTHER = ("fleet", "edge.app.v1"), ("fleet", "edge.app.v2")


def test_own_writes_in_a_row_count_as_what_the_first_one_replaced() -> None:
    writes = OwnWrites()
    writes.add(KEY, 5, 8)
    writes.add(KEY, 8, 9)
    assert writes.last_of_others(KEY, 9) == 5
    assert writes.last_of_others(OTHER, 9) == 9


def test_anothers_write_counts_itself_also_below_a_later_own_one() -> None:
    writes = OwnWrites()
    writes.add(KEY, 5, 8)
    assert writes.last_of_others(KEY, 11) == 11
    writes.add(KEY, 11, 12)
    assert writes.last_of_others(KEY, 12) == 11


def test_what_is_forgotten_counts_as_anothers() -> None:
    writes = OwnWrites()
    writes.add(KEY, 5, 8)
    writes.forget(KEY)
    assert writes.last_of_others(KEY, 8) == 8
    writes.add(KEY, 8, 9)
    assert writes.last_of_others(KEY, 9) == 8
