"""A service's requests for kinds are written once per lease, and again where they may be lost."""

import msgspec

from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.requests import KindRequests

SITES, ROOMS = Kind("example.org", "Site"), Kind("example.org", "Room")


def requests_of(service: str = "promote") -> KindRequests:
    return KindRequests(service, (SITES, ROOMS))


def read_back(requests: KindRequests, puts: tuple[Put, ...]) -> None:
    for put in puts:
        requests.load(put.key, msgspec.json.encode(put.row))


def test_each_lease_requests_each_kind_once() -> None:
    """A second decision of a lease repeats nothing, whether the rows are read yet or not."""
    requests = requests_of()
    puts = requests.take(3)
    assert [put.key for put in puts] == ["example.org/Site|promote-3", "example.org/Room|promote-3"]
    assert requests.take(3) == ()
    read_back(requests, puts)
    assert requests.take(3) == ()
    assert [put.key for put in requests.take(4)] == [
        "example.org/Site|promote-4",
        "example.org/Room|promote-4",
    ]


def test_what_may_not_have_been_written_is_sent_again() -> None:
    """Forgetting concerns one lease's rows that were not read back, not lease 13's for lease 3's."""
    requests = requests_of()
    puts, others = requests.take(3), requests.take(13)
    read_back(requests, puts[:1])
    requests.forget(3)
    assert requests.take(3) == puts[1:]
    assert requests.take(13) == ()
    assert len(others) == 2


def test_a_request_that_was_withdrawn_is_sent_again() -> None:
    """Who deletes the row, by hand or by a reset of the topic, gets it back with the next decision."""
    requests = requests_of()
    puts = requests.take(3)
    read_back(requests, puts)
    requests.load(puts[0].key, None)
    assert requests.take(3) == puts[:1]


def test_the_requests_of_other_services_do_not_count() -> None:
    """A kind that another service has requested is requested by this one, too: requests never merge."""
    requests = requests_of()
    read_back(requests, requests_of("resolve").take(3))
    assert len(requests.take(3)) == 2
