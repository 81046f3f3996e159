"""The page of the fleet: with `pvbus up`, in its process, and as `pvbus run web`."""

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from pvbus.adapters.files import own_file, reason_of, write_private
from pvbus.adapters.servingtls import ServingFiles, ServingTls
from pvbus.cli.datafolder import DataPaths
from pvbus.cli.explain import bus_document
from pvbus.cli.explain_text import set_lines, variant_lines
from pvbus.cli.pageusers import PageUsers
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.keys import Key
from pvbus.ports.bus import Bus
from pvbus.runtime.process.assembly import partition_count
from pvbus.runtime.process.begin import configure_process
from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.hosting import in_time
from pvbus.runtime.process.settings import ServiceConfig, WebConfig, host_names
from pvbus.runtime.process.signals import stop_on_signals
from pvbus.runtime.web.feed import Feed
from pvbus.runtime.web.gate import is_loopback
from pvbus.runtime.web.server import Address, Hints, PageServer

TOKEN_CHARACTERS_MIN = 16
READ_ONLY = "read-only"
Say = Callable[[str], None]


class _Retained(msgspec.Struct):
    """What a data folder keeps of its page, so that an address works after a restart, too."""

    token: str
    port: int


@asynccontextmanager
async def page_of(
    folder: DataPaths, bus: Bus, config: WebConfig | None, hints: Hints, say: Say
) -> AsyncIterator[None]:
    """Serve the page of a data folder within the block, and print its address.

    The bus is read once somebody opens the page.

    config: the settings of the page, None for no page
    """
    if config is None:
        yield
        return
    retained = _retained(folder.web)
    token = _token(config, retained.token if retained is not None else "")
    feed = Feed(bus, partition_count())
    hints = hints._replace(tokens=_folder_tokens(folder, hints))
    users = PageUsers(folder.kubeconfig, None, bus, feed, hints) if config.web_mode != READ_ONLY else None
    async with contextlib.AsyncExitStack() as stack:
        ports = [config.web_port] if config.web_port or retained is None else [retained.port, 0]
        server = await _start(stack, feed, bus, token, config, ports, hints, users)
        if retained != (now := _Retained(token, server.port)) and not config.web_token_file:
            with own_file(folder.web, "remove what is there: the page gets another token and port"):
                write_private(folder.web, msgspec.json.encode(now))
        say(f"web page: {server.url}")
        reading = asyncio.create_task(feed.run(), name="web page")
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.wait({reading})


async def serve_web(services: ServiceConfig, config: WebConfig, say: Say) -> None:
    """Serve the page of a bus until a signal ends it, for `pvbus run web`. Raises UsageError."""
    configure_process(config)
    token = _token(config, "")
    stop = asyncio.Event()
    with stop_on_signals(stop) as begun:
        bus = await in_time(services, lambda: open_bus(services, create=False))
        try:
            async with contextlib.AsyncExitStack() as stack:
                feed = Feed(bus, partition_count())
                feed.start()
                is_default = services.bus == ServiceConfig().bus
                option = "" if is_default else f" --bus {shlex.quote(services.bus)}"
                hints, users = _users_of(services, config, bus, feed, option)
                server = await _start(stack, feed, bus, token, config, [config.web_port], hints, users)
                say(f"web page: {server.url}")
                begun()
                async with asyncio.TaskGroup() as tasks:
                    reading = tasks.create_task(feed.run())
                    await stop.wait()
                    reading.cancel()
        finally:
            await bus.close()


async def _start(
    stack: contextlib.AsyncExitStack,
    feed: Feed,
    bus: Bus,
    token: str,
    config: WebConfig,
    ports: list[int],
    hints: Hints,
    users: PageUsers | None,
) -> PageServer:
    """Serve at the first of the ports that is free. Raises PermanentError if none is."""

    async def explain(key: Key, is_set: bool) -> dict[str, Any]:
        document = await bus_document(bus, key, is_set=is_set, hints=hints.cluster)
        lines = set_lines(document) if is_set else variant_lines(document)
        return {
            "known": document["known"],
            "lines": list(lines),
            "conditions": document["conditions"],
            "command": f"pvbus explain {'--set ' if is_set else ''}{key}{hints.bus}",
        }

    sign_in = users.sign_in if users is not None else None
    names = host_names(config.web_names)
    if not is_loopback(config.web_host) and not names:
        raise UsageError(
            f"PVBUS_WEB_HOST={config.web_host} is not loopback: name in PVBUS_WEB_NAMES the hosts that "
            "browsers use; requests with another Host are refused. Without PVBUS_WEB_CERTIFICATE_FILE the "
            "page is plain HTTP: have a proxy with TLS before it, or leave it on loopback and use ssh -L, or "
            "kubectl port-forward"
        )
    tls = _tls(config)
    for port in ports[:-1]:
        with contextlib.suppress(PermanentError):  # another program has it now
            address = Address(config.web_host, port, names, tls)
            server = PageServer(feed, explain, token, address, hints, sign_in)
            return await stack.enter_async_context(server)
    address = Address(config.web_host, ports[-1], names, tls)
    return await stack.enter_async_context(PageServer(feed, explain, token, address, hints, sign_in))


def _folder_tokens(folder: DataPaths, hints: Hints) -> tuple[str, ...]:
    """Return commands that print a token of the API server of a data folder."""
    own = f"kubectl --kubeconfig {shlex.quote(str(folder.kubeconfig))} config view --raw -o "
    return (f"pvbus user add NAME --role approver{hints.cluster}", own + "'jsonpath={.users[0].user.token}'")


def _users_of(
    services: ServiceConfig, config: WebConfig, bus: Bus, feed: Feed, option: str
) -> tuple[Hints, PageUsers | None]:
    """Return the options of commands, and who signs people in; None for a page that only shows.

    option: of commands that read the bus
    """
    given = f" --kubeconfig {shlex.quote(services.kubeconfig)}" if services.kubeconfig else ""
    is_open = config.web_mode == "work" or (config.web_mode == "auto" and bool(services.kubeconfig))
    if not is_open:
        return Hints(bus=option), None
    hints = Hints(option + given, given, (f"kubectl create token SERVICEACCOUNT{given}",))
    kubeconfig = Path(services.kubeconfig) if services.kubeconfig else None
    return hints, PageUsers(kubeconfig, services.context or None, bus, feed, hints)


def _tls(config: WebConfig) -> ServingTls | None:
    """Return what serves the configured certificate, None without one. Raises UsageError."""
    certificate, key = config.web_certificate_file, config.web_key_file
    if bool(certificate) != bool(key):
        raise UsageError(
            "PVBUS_WEB_CERTIFICATE_FILE and PVBUS_WEB_KEY_FILE belong together: set both, or none"
        )
    if not certificate:
        return None
    try:
        return ServingTls(ServingFiles(Path(certificate), Path(key)))
    except UsageError as exc:
        raise UsageError(f"PVBUS_WEB_CERTIFICATE_FILE, PVBUS_WEB_KEY_FILE: {exc}") from exc


def _token(config: WebConfig, retained: str) -> str:
    """Return the configured token, or the one that was retained, or a new one. Raises UsageError."""
    if not config.web_token_file:
        return retained or secrets.token_urlsafe(24)
    file = config.web_token_file
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"PVBUS_WEB_TOKEN_FILE: cannot read {file}: {reason_of(exc)}") from exc
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"PVBUS_WEB_TOKEN_FILE: {file} must have a token of at least "
            f"{TOKEN_CHARACTERS_MIN} printable ASCII characters"
        )
    return token


def _retained(file: Path) -> _Retained | None:
    """Read the token and port of the last page in a data folder, None if the file is missing or damaged."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_Retained)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if len(found.token) >= TOKEN_CHARACTERS_MIN and 0 < found.port < 1 << 16 else None
