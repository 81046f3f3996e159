"""Git servers of a test: git's own `http-backend` behind HTTP or HTTPS with a password, and OpenSSH."""

import base64
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

from tests.tools.ports import free_ports

PROGRAM = ["git", "http-backend"]


class GitServer(ThreadingHTTPServer):
    """Serves a folder of bare repositories to a user, or to all without a password. Paths are in `asked`,
    what came as Authorization in `logins`. redirect: an address to which every request is redirected."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0, keystore: Path | None = None) -> None:
        self.folder = folder
        self.user, self.password = "joe", "right-password"
        self.asked: list[str] = []
        self.logins: list[str] = []
        self.redirect = ""
        super().__init__(("127.0.0.1", port), _Handler)
        self.scheme = "https" if keystore else "http"
        if keystore is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(keystore)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def url(self, name: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/{name}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up."""


S = TypeVar("S", bound=GitServer)


class _Handler(BaseHTTPRequestHandler):
    server: GitServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        body = self._body()
        self.server.asked.append(self.path)
        self.server.logins.append(self.headers.get("Authorization", ""))
        if self.server.redirect:
            self._answer(302, [("Location", self.server.redirect + self.path)], b"")
            return
        token = base64.b64encode(f"{self.server.user}:{self.server.password}".encode()).decode()
        if self.server.password and self.headers.get("Authorization") != f"Basic {token}":
            self._answer(401, [("WWW-Authenticate", 'Basic realm="git"')], b"")
            return
        environment = {
            "GIT_PROJECT_ROOT": str(self.server.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": self.server.user,  # enables pushes
            "PATH_INFO": path.replace("%20", " "),
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        }
        done = subprocess.run(PROGRAM, env=environment, input=body, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n") if line]
        code = next((int(value.split()[0]) for key, value in headers if key == "Status"), 200)
        self._answer(code, [(key, value) for key, value in headers if key != "Status"], content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self, code: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(code)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is inherited
        """Say nothing."""


@contextmanager
def serving(server: S) -> Iterator[S]:
    """Run a server in a thread of its own."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def git_server(
    folder: Path, port: int = 0, keystore: Path | None = None
) -> AbstractContextManager[GitServer]:
    """Run a server. port: 0 for a free one; keystore: certificate and key, for HTTPS."""
    return serving(GitServer(folder, port, keystore))


SSHD = shutil.which("sshd") or next(iter(map(str, Path("/usr/sbin").glob("sshd"))), None)


@contextmanager
def ssh_server(folder: Path) -> Iterator[tuple[int, str]]:
    """Run an sshd for the user of this process; yield its port and the ssh command that logs in."""
    assert SSHD is not None
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    (port,) = free_ports(1)
    (folder / "user.pub").rename(folder / "authorized_keys")
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": "none",
        "UsePAM": "no",
        "StrictModes": "no",
        "PasswordAuthentication": "no",
    }
    file = folder / "sshd_config"
    file.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    known = folder / "known_hosts"
    key = (folder / "host.pub").read_text()
    known.write_text(f"[127.0.0.1]:{port} {key}")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where the superuser's sshd confines its children
    with subprocess.Popen([SSHD, "-D", "-e", "-f", str(file)], stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            while b"listening" not in (line := process.stderr.readline().lower()):
                assert line, "sshd ended at its start"
            yield (
                port,
                f"ssh -F none -i {folder / 'user'} -o UserKnownHostsFile={known} -o IdentitiesOnly=yes",
            )
        finally:
            process.kill()
