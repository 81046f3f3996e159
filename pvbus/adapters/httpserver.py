"""What all HTTP servers share: connections that end quietly, and the check of the Host header.

A client that goes away is no error of ours. The answer to a request that is not valid HTTP has only the kind
of its fault: the parser quotes the line, which may hold a token.
"""

import re
import ssl
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, InvalidURLError
from aiohttp.web_protocol import RequestHandler

from pvbus.core.errors import PermanentError
from pvbus.telemetry.structured import structlog

HOST_MAX = 300
"""A DNS name has at most 253 characters; a port follows."""

LOCAL_NAMES = frozenset(("localhost",))

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:/@?#\\]+))(?::[0-9]{0,5})?")
_QUOTED = re.compile(r"\n|:\s|\s\w*\(?b?['\"]")
_DUPLICATE = re.compile(r"Duplicate '[\w-]{1,64}' header found\.")
_CODE = re.compile(r"^\d{3}, message:\s*")

_log = structlog.get_logger(__name__)


@lru_cache(256)
def host_name(host: str) -> str:
    """Return the name or address in a Host header, in lower case and without port; "" if invalid."""
    match = _HOST.fullmatch(host) if len(host) <= HOST_MAX else None
    return (match[1] or match[2]).lower().rstrip(".") if match is not None else ""


def is_own_host(host: str, names: frozenset[str]) -> bool:
    """Return whether a Host header names this server: by one of its names in lower case, or by any address.

    A page of another site can resolve its own name to our address (DNS rebinding), and read what a browser
    here gets. That needs a name, so addresses are fine.
    """
    name = host_name(host)
    return name in names or _is_address(name)


@lru_cache(256)
def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def fault_of(error: Exception) -> str:
    """Return the kind of fault that makes a request or an answer invalid HTTP.

    The text that the parser quotes is left out: it may hold a token.
    """
    if isinstance(error, InvalidURLError):
        return "the target of the request is not a URL"
    text = _CODE.sub("", error.message if isinstance(error, HttpProcessingError) else str(error)).strip()
    return text if _DUPLICATE.fullmatch(text) else _QUOTED.split(text)[0].rstrip(" :.")[:200]


class QuietConnection(RequestHandler):
    """Neither logs clients that went away, nor repeats what is invalid in a request."""

    __slots__ = ()

    def refuse(self, fault: str) -> web.Response:
        """Return the answer to a request that is not valid HTTP."""
        return web.Response(status=400, text=f"the request is not valid HTTP: {fault}\n")

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):
            _log.debug("client gone", error=type(exc).__name__)
            raise ConnectionResetError  # the one way to have aiohttp close a connection without a log entry
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        response = self.refuse(fault_of(exc))
        response.force_close()
        return response

    def log_exception(self, *words: Any, **options: Any) -> None:
        """Log an error of ours. An invalid body that no handler reads is an error of its sender."""
        error = options.get("exc_info")
        if isinstance(error, web.RequestPayloadError | HttpProcessingError | ConnectionError):
            _log.debug("body broken off", error=fault_of(error))
        else:
            super().log_exception(*words, **options)


class QuietServer(web.Server):
    """aiohttp's server with such connections."""

    connection = QuietConnection

    def __call__(self) -> RequestHandler:
        return self.connection(self, loop=self._loop, **self._kwargs)


class QuietRunner(web.AppRunner):
    """aiohttp's runner of an application with such connections, and without an access log."""

    def __init__(self, application: web.Application, *, shutdown_timeout: float) -> None:
        self._options: dict[str, Any] = {"access_log": None, "auto_decompress": False}
        super().__init__(application, shutdown_timeout=shutdown_timeout, **self._options)

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return QuietServer(server.request_handler, request_factory=server.request_factory, **self._options)

    async def listen(
        self, host: str, port: int, *, serves: str, setting: str, tls: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Serve the application, and return the address and the port.

        port: 0 takes any free one
        serves: what it is for, in words
        setting: the setting of the port
        Raises PermanentError: port in use. Then nothing is left to clean up.
        """
        await self.setup()
        try:
            await web.TCPSite(self, host, port, ssl_context=tls).start()
        except OSError as exc:
            await self.cleanup()
            raise PermanentError(
                f"cannot bind port {port} on {host} for {serves}: {exc.strerror}; choose another one with "
                f"{setting} (0 takes any free one)",
                reason="PortInUse",
            ) from exc
        address = self.addresses[0]
        return address[0], address[1]
