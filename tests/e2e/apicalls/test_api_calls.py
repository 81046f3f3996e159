"""Random API calls: the embedded API server answers as kube-apiserver does."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from docs.apidifferences import KNOWN
from tests.e2e.apicalls.calls import Answer, Call, Server
from tests.e2e.apicalls.campaign import Campaign, Difference, explained, run
from tests.e2e.apicalls.generator import VERBS, calls_of
from tests.e2e.apicalls.normal import differences
from tests.e2e.apicalls.servers import both
from tests.tools.clusterprograms import ClusterUnavailableError

CALLS = int(os.environ.get("PVBUS_API_CALLS", "1500"))
"""By default half a minute on two busy cores; `make api-calls` sends 20,000."""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    try:
        with both() as made:
            yield made
    except ClusterUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.mark.cluster
@pytest.mark.timeout(600, func_only=True)
def test_random_calls_are_answered_alike(servers: tuple[Server, Server]) -> None:
    """Code, reason, causes and body agree, and so does what is stored; all else is in the table."""
    campaign = Campaign(*servers)
    found = run(campaign, seed=1, calls=CALLS, report=print)
    assert not found.unexplained, found.unexplained[0].shown()
    assert found.calls >= CALLS


def test_a_seed_gives_the_same_calls_again() -> None:
    """A difference is repeated by its seed alone; other seeds give other calls."""
    assert calls_of("1/1", 50) == calls_of("1/1", 50) != calls_of("1/2", 50)


def test_all_verbs_are_sent() -> None:
    """A campaign has each method and each type of patch, and watches."""
    calls = [call for number in range(40) for call in calls_of(f"s/{number}", 100)]
    sent = Counter(call.media if call.method == "PATCH" else call.method for call in calls)
    assert {"GET", "POST", "PUT", "DELETE"} < sent.keys()
    kinds = {"json-patch", "merge-patch", "strategic-merge-patch", "apply-patch"}
    assert kinds <= {name.partition("/")[2].rpartition("+")[0] for name in sent}
    assert any(call.until for call in calls)
    assert len(VERBS) == 13


def test_a_difference_is_found_and_explained_line_by_line() -> None:
    """One line without an entry is enough for the whole answer not to be explained."""
    real = {"items": [{"metadata": {"name": "a"}}]}
    ours = {"items": [{"metadata": {"name": "a"}, "kind": "ConfigMap"}]}
    listed = Call("GET", "/api/v1/namespaces/{ns}/configmaps")
    lines = tuple(differences(real, ours))
    answers = Answer(200, real), Answer(200, ours)
    assert [known.name for known in explained(Difference(listed, *answers, lines))] == ["types of items"]
    assert not explained(Difference(listed, *answers, (*lines, ".items[0].data: 1 / 2")))


def test_each_entry_has_a_name_of_its_own() -> None:
    """Counts are by name."""
    assert len({known.name for known in KNOWN}) == len(KNOWN)
