"""The embedded control plane in a child process.

Who starts one imports neither API server nor package store, so that `pvbus up` starts sooner.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pvbus.cli.children import ChildProcess
from pvbus.runtime.process.settings import LogLevel


class Address(NamedTuple):
    """Where the control plane is served.

    url: the address of the API server
    kubeconfig: the file with the administrator's login
    """

    url: str
    kubeconfig: Path


class ControlPlaneProcess(ChildProcess):
    """`pvbus apiserver` as a child: it uses another core while the services run in this process."""

    def __init__(
        self,
        data: Path,
        port: int,
        log_level: LogLevel = "warning",
        settings: Mapping[str, str] | None = None,
        namespaces: str = "",
    ) -> None:
        """Prepare the process; the context starts it.

        settings: environment variables to add to this process's own
        namespaces: the namespaces that the services are limited to, separated by commas; "" for all
        """
        arguments = ("apiserver", "--data", str(data), "--port", str(port), "--namespaces", namespaces)
        own = {**(settings or {}), "PVBUS_LOG_LEVEL": log_level}
        super().__init__("the API server's process", *arguments, settings=own)

    @property
    def address(self) -> Address:
        return Address(self.reported["url"], Path(self.reported["kubeconfig"]))
