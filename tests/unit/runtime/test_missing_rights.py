"""Which rights a process says that its services lack."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from pvbus.adapters.kubernetes.access import IMPERSONATE, Refusals
from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.rights import PLATFORM_RIGHTS, RIGHTS, Request, requests_of
from pvbus.ports.cluster import Resource
from pvbus.runtime.process.rights import FORGET_SECONDS, LOOK_SECONDS, MissingRights
from tests.kit.processes import run_simulated

SECRETS = Request("list", "", "secrets")
RENDER = {request for right in RIGHTS["render"] for request in requests_of(right)}
INGEST = {request for right in RIGHTS["ingest"] for request in requests_of(right)}
CREATE = Request("create", "config.porch.kpt.dev", "packagevariants")


class Server:
    """An API server that answers access reviews. granted: what is permitted."""

    def __init__(self) -> None:
        self.refusals = Refusals()
        self.granted: set[Request] = set()
        self.reviews = 0
        self.trouble: Exception | None = None

    async def create(self, resource: Resource, obj: dict[str, Any]) -> dict[str, Any]:
        assert resource.kind == "SelfSubjectAccessReview"
        self.reviews += 1
        if self.trouble is not None:
            raise self.trouble
        asked = obj["spec"]["resourceAttributes"]
        name = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        request = Request(asked["verb"], asked["group"], name, asked.get("namespace", ""))
        return {"status": {"allowed": request in self.granted}}

    def refuse(self, service: str, request: Request) -> None:
        method = {"create": "POST"}.get(request.verb, "GET")
        root = f"/apis/{request.group}" if request.group else "/api"
        self.refusals.note(f"pvbus-{service}", method, f"{root}/v1/{request.resource}")


def simulated(
    scenario: Callable[[Server, MissingRights], Awaitable[None]],
    *services: str,
    namespaces: tuple[str, ...] = (),
) -> list[tuple[str, str, Any]]:
    """Run a scenario beside the look at rights, and return the lines of the log."""

    async def main() -> None:
        server = Server()
        clock = SimulatedClock()
        rights = MissingRights(dict.fromkeys(services, server), clock, namespaces)  # type: ignore[arg-type]  # what is used
        running = asyncio.create_task(rights.run())
        await asyncio.sleep(0.5)
        await scenario(server, rights)
        assert not running.done()
        running.cancel()

    with capture_logs() as lines:
        run_simulated(main())
    return [(line["log_level"], line["event"], line.get("may_not", line.get("may"))) for line in lines]


def metric(name: str, service: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"service": service})


def test_one_refusal_shows_everything_that_is_missing_until_it_is_granted() -> None:
    """However often it is refused, the log has one line for each right, and one when it is granted."""

    async def scenario(server: Server, rights: MissingRights) -> None:
        server.granted = RENDER - {CREATE, Request("delete", *CREATE[1:])}
        for _ in range(20):
            server.refuse("render", CREATE)
            await asyncio.sleep(LOOK_SECONDS)
        assert rights.lines("render") == [
            "may not create, delete packagevariants.config.porch.kpt.dev; bind the ClusterRole pvbus-render: "
            "`pvbus doctor` prints the command"
        ]
        assert metric("pvbus_missing_rights", "render") == 2
        assert not rights.is_useless("render")
        server.granted = RENDER
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert (rights.lines("render"), metric("pvbus_missing_rights", "render")) == ([], 0)
        reviews = server.reviews
        await asyncio.sleep(100)
        assert server.reviews == reviews

    name = "packagevariants.config.porch.kpt.dev"
    assert simulated(scenario, "render") == [
        (level, event, f"{verb} {name}")
        for level, event in (("error", "a right is missing"), ("info", "a right was granted"))
        for verb in ("create", "delete")
    ]


def test_a_service_without_any_right_is_useless_and_the_others_are_not() -> None:
    """As when the role of one is not bound."""

    async def scenario(server: Server, rights: MissingRights) -> None:
        server.granted = INGEST - RENDER
        server.refuse("render", CREATE)
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert rights.is_useless("render")
        assert not rights.is_useless("ingest")
        assert not rights.is_useless("unroll")
        assert rights.lines("ingest") == []
        assert rights.lines("render")[0] == "not ready: it has none of its rights"
        assert len(rights.lines("render")) == 1 + len(RIGHTS["render"])

    simulated(scenario, "ingest", "unroll", "render")


def test_a_kind_of_a_set_is_listed_and_does_not_count() -> None:
    """Its right is in no role of ours: the line names the label that grants it."""

    async def scenario(server: Server, rights: MissingRights) -> None:
        server.granted = INGEST
        server.refuse("ingest", SECRETS)
        await asyncio.sleep(3 * LOOK_SECONDS)
        (line,) = rights.lines("ingest")
        assert line.startswith("may not list secrets; grant it by the label pvbus.dev/observed=true")
        assert not rights.is_useless("ingest")
        for _ in range(10):  # it is asked for each minute
            server.refuse("ingest", SECRETS)
            await asyncio.sleep(60)
            assert rights.lines("ingest") == [line]
        await asyncio.sleep(FORGET_SECONDS)  # the set is gone
        assert (rights.lines("ingest"), metric("pvbus_missing_rights", "ingest")) == ([], 0)

    assert simulated(scenario, "ingest") == [("error", "a right is missing", "list secrets")]


def test_a_kind_that_another_service_reads_is_granted_to_its_account() -> None:
    """The label counts for ingest alone."""

    async def scenario(server: Server, rights: MissingRights) -> None:
        server.granted = RENDER
        server.refuse("render", SECRETS)
        await asyncio.sleep(3 * LOOK_SECONDS)
        wanted = "may not list secrets; bind a ClusterRole that grants it to the account pvbus-render"
        assert rights.lines("render") == [wanted]

    simulated(scenario, "render")


@pytest.mark.parametrize("trouble", [None, PermanentError("no reviews", reason="NotFound")])
def test_a_refusal_for_another_reason_is_no_missing_right(trouble: Exception | None) -> None:
    """A policy refuses one object, and the review says yes; or there are no reviews, and nobody knows."""

    async def scenario(server: Server, rights: MissingRights) -> None:
        server.granted, server.trouble = RENDER, trouble
        server.refuse("render", CREATE)
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert server.reviews
        assert (rights.lines("render"), rights.is_useless("render")) == ([], False)

    simulated(scenario, "render")


def test_a_server_that_starts_and_refuses_everything_is_given_time() -> None:
    """It has no roles yet: a second later it has, and nothing was ever missing."""

    async def scenario(server: Server, rights: MissingRights) -> None:
        await asyncio.sleep(LOOK_SECONDS - 1)  # as late as can be before the next interval
        server.refuse("render", CREATE)
        await asyncio.sleep(3)
        server.granted = RENDER
        await asyncio.sleep(3 * LOOK_SECONDS)

    assert simulated(scenario, "render") == []


def test_rights_are_looked_at_in_each_namespace_of_the_list() -> None:
    """A role in one of two namespaces: the line names the other; with none in any, the service is useless."""

    async def scenario(server: Server, rights: MissingRights) -> None:
        wanted = {each._replace(namespace=name) for each in RENDER for name in ("blue", "red")}
        server.granted = {each for each in wanted if each.namespace == "red"}
        server.refuse("render", CREATE)
        await asyncio.sleep(3 * LOOK_SECONDS)
        lines = rights.lines("render")
        assert len(lines) == len(RIGHTS["render"])
        assert lines[0] == (
            "may not create, delete, list, update, watch packagevariants.config.porch.kpt.dev in blue; bind "
            "the Role pvbus-render in blue: `pvbus doctor` prints the command"
        )
        assert not rights.is_useless("render")
        server.granted = set()
        await asyncio.sleep(2 * LOOK_SECONDS)
        server.refuse("render", CREATE)
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert rights.is_useless("render")
        server.granted = wanted
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert (rights.lines("render"), rights.is_useless("render")) == ([], False)

    simulated(scenario, "render", namespaces=("blue", "red"))


ACCOUNT = "system:serviceaccount:shop:installer"
ESTABLISH = {request for right in PLATFORM_RIGHTS["establish"] for request in requests_of(right)}
MAPS = "/api/v1/namespaces/shop/configmaps/one"


@pytest.mark.parametrize("may_impersonate", [True, False])
def test_what_an_account_lacks_is_logged_with_its_name_and_once(may_impersonate: bool) -> None:
    """Not as a right of the service, which has no need of it; unless it may not act for the account."""

    async def scenario(server: Server, rights: MissingRights) -> None:
        server.granted = ESTABLISH if may_impersonate else ESTABLISH - {IMPERSONATE}
        for _ in range(5):  # each minute, as long as the install cannot be deleted
            server.refusals.note("pvbus-establish", "GET", MAPS, user=ACCOUNT)
            await asyncio.sleep(60)
        assert (rights.lines("establish") == []) == may_impersonate

    wanted = (
        ("error", "an account lacks a right", f"get configmaps in shop as {ACCOUNT}")
        if may_impersonate
        else ("error", "a right is missing", "impersonate serviceaccounts")
    )
    assert simulated(scenario, "establish") == [wanted]
