"""Requests for content are shared by the variants of a lease, and go with the last of them."""

from pvbus.core.kernel.keys import watch_key
from pvbus.core.kernel.records import WATCHES, WatchRequest
from pvbus.core.variants.inject.requests import Requests


def request(name: str) -> WatchRequest:
    return WatchRequest(
        group="", kind="ConfigMap", requester="inject-0", content=True, namespace="default", name=name
    )


def wanted(*names: str) -> dict[str, WatchRequest]:
    return {watch_key(request(name)): request(name) for name in names}


def test_a_request_is_withdrawn_with_the_last_variant_that_needs_it() -> None:
    requests = Requests()
    (first,) = requests.change(0, "default/a", wanted("x"))
    assert (first.topic, first.row) == (WATCHES, request("x"))
    assert requests.change(0, "default/b", wanted("x", "y"))[0].row == request("y")
    assert requests.change(0, "default/a", {}) == [], "b needs it still"
    gone = requests.change(0, "default/b", wanted("y"))
    assert [(put.key, put.row) for put in gone] == [(watch_key(request("x")), None)]
    assert requests.of(0, "default/b") == (watch_key(request("y")),)
