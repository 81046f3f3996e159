"""Runs the credential plugin of a kubeconfig (`exec`), as kubectl does.

Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from pvbus.adapters.files import reason_of
from pvbus.adapters.kubernetes.credentials import Credential, Issued
from pvbus.core.errors import TransientError, UsageError

PLUGIN_SECONDS = 60.0  # the slowest cloud's takes some 10 s; requests wait for it
END_SECONDS = 1.0  # until a killed process is gone
INTERACTIVE_SECONDS = 300.0  # a person types a password or signs in with a browser
OUTPUT_BYTES_MAX = 1_000_000  # a credential with a certificate has some 10 kB
QUOTED_CHARACTERS_MAX = 300  # of the plugin's messages

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class PluginConfig(msgspec.Struct, frozen=True, rename="camel"):
    """`users[].user.exec` of a kubeconfig.

    command: the program
    api_version: the version of the protocol
    args: its arguments
    env: variables to add to this process's own
    install_hint: the advice to print if the program is missing
    interactive_mode: whether the program may ask a person
    provide_cluster_info: whether the program gets to know the cluster
    """

    command: str
    api_version: str
    args: tuple[str, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    install_hint: str | None = None
    interactive_mode: Literal["Never", "IfAvailable", "Always"] | None = None
    provide_cluster_info: bool = False


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    kind: Literal["ExecCredential"]
    api_version: str
    status: _Status


class Plugin:
    """One plugin, ready to run. `issue` returns a new credential."""

    def __init__(self, config: PluginConfig, folder: Path, cluster: Mapping[str, Any]) -> None:
        """Prepare the plugin; `issue` runs it.

        folder: the folder of the kubeconfig, where a relative command starts
        cluster: what a plugin that asks for it gets to know of the cluster
        Raises UsageError if the plugin cannot work at all.
        """
        self._config = config
        self._cluster = cluster
        self._about = f'credential plugin "{config.command}"'
        if config.api_version not in API_VERSIONS:
            raise UsageError(
                f"{self._about}: apiVersion {config.api_version} is not supported, only "
                f"{' and '.join(API_VERSIONS)}: write the kubeconfig again with your provider's current tool"
            )
        command = config.command
        path = str(folder / command) if os.sep in command else command
        self._command = shutil.which(path)
        if self._command is None:
            raise UsageError(
                f"{self._about} is not installed where this process runs: install it, put it into the PATH, "
                f"or use a kubeconfig with a token or a service account{self._hint}"
            )

    @property
    def _hint(self) -> str:
        return f" ({' '.join(self._config.install_hint.split())})" if self._config.install_hint else ""

    async def issue(self) -> Issued:
        """Run the plugin. Raises TransientError that names the command, what is wrong and what to do."""
        is_interactive = self._is_interactive()
        seconds = INTERACTIVE_SECONDS if is_interactive else PLUGIN_SECONDS
        process = await self._start(is_interactive)
        try:
            code, output, messages = await _answer(process, seconds, has_group=not is_interactive)
        except TimeoutError as exc:
            text = f"{self._about} gave no answer within {seconds:g} s and was stopped; {_BY_HAND}"
            raise TransientError(text) from exc
        if code != 0:
            raise TransientError(self._failure(code, messages))
        return self._issued(output)

    def _is_interactive(self) -> bool:
        mode = self._config.interactive_mode or "IfAvailable"
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not is_terminal:
            raise TransientError(
                f"{self._about} needs a terminal (interactiveMode: Always), and this process has none; "
                "use a kubeconfig with a token, a service account, or another plugin"
            )
        return mode != "Never" and is_terminal

    async def _start(self, is_interactive: bool) -> Process:
        """Start the plugin in a session of its own, so that its children can be ended with it."""
        config, command = self._config, self._command
        assert command is not None
        try:
            return await asyncio.create_subprocess_exec(
                command,
                *(config.args or ()),
                env=self._environment(is_interactive),
                stdin=None if is_interactive else DEVNULL,
                stdout=PIPE,
                stderr=None if is_interactive else PIPE,
                start_new_session=not is_interactive,
            )
        except (OSError, ValueError) as exc:
            raise TransientError(
                f"{self._about} cannot be started ({reason_of(exc)}); check that it is installed "
                f"and executable{self._hint}"
            ) from exc

    def _environment(self, is_interactive: bool) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": is_interactive}
        if self._config.provide_cluster_info:
            spec["cluster"] = dict(self._cluster)
        info = {"apiVersion": self._config.api_version, "kind": "ExecCredential", "spec": spec}
        given = {variable.name: variable.value for variable in self._config.env or ()}
        return {**os.environ, **given, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}

    def _failure(self, code: int, messages: bytes) -> str:
        how = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        text = " ".join(messages.decode(errors="replace").split())[-QUOTED_CHARACTERS_MAX:]
        return f"{self._about} {how}: {text or 'it printed no reason'}; {_BY_HAND}"

    def _issued(self, output: bytes) -> Issued:
        """Decode the answer. Its text is not quoted: it may contain a token."""
        wrong = f"{self._about} printed no usable ExecCredential"
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise TransientError(f"{wrong} ({exc}); {_BY_HAND}") from exc
        status, problem = answer.status, ""
        if len(output) > OUTPUT_BYTES_MAX:
            problem = f"it has more than {OUTPUT_BYTES_MAX} bytes"
        elif answer.api_version != self._config.api_version:
            problem = f"its apiVersion is {answer.api_version}, not {self._config.api_version}"
        elif bool(status.client_certificate_data) != bool(status.client_key_data):
            problem = "it has a client certificate without its key, or a key without its certificate"
        elif not status.token and not status.client_certificate_data:
            problem = "it has neither a token nor a client certificate"
        elif not (status.token.isascii() and status.token.isprintable()):
            problem = "its token has characters that no token has"
        if problem:
            raise TransientError(f"{wrong} ({problem}); {_BY_HAND}")
        pem = "\n".join(filter(None, (status.client_certificate_data, status.client_key_data)))
        expiry = status.expiration_timestamp
        authorization = f"Bearer {status.token}" if status.token else ""
        return Issued(Credential(authorization, pem), expiry.timestamp() if expiry is not None else None)


_BY_HAND = "run it by hand on this machine, as this user, to see why (you may have to sign in again)"


async def _tail(stream: asyncio.StreamReader | None) -> bytes:
    """Read to the end, and return the last part, longer than allowed by one byte if more was cut off."""
    tail = b""
    while stream is not None and (chunk := await stream.read(65_536)):
        tail = (tail + chunk)[-OUTPUT_BYTES_MAX - 1 :]
    return tail


async def _answer(process: Process, seconds: float, *, has_group: bool) -> tuple[int, bytes, bytes]:
    """Wait for a plugin; return its exit code and its output. Ends it if it takes too long."""
    try:
        async with asyncio.timeout(seconds):
            output, messages = await asyncio.gather(_tail(process.stdout), _tail(process.stderr))
            return await process.wait(), output, messages
    except (TimeoutError, asyncio.CancelledError):
        await _end(process, has_group=has_group)
        raise


async def _end(process: Process, *, has_group: bool) -> None:
    """Kill a plugin, with the children that it started."""
    with suppress(ProcessLookupError, PermissionError):
        if has_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with suppress(TimeoutError):  # a child elsewhere may hold its output open
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
