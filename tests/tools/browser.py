"""Chromium without a window, driven over the WebDriver protocol (https://www.w3.org/TR/webdriver2/).

chromedriver speaks JSON over HTTP, so the standard library is enough. Everything blocks: an event loop runs
it in a thread.
"""

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.tools.ports import free_ports

SECONDS_MAX = 60.0
"""For what an idle machine does in one: the others that run tests on this one take their share."""

KEYS = {"tab": "\ue004", "enter": "\ue007", "right": "\ue014", "down": "\ue015", "left": "\ue012"}


class BrowserUnavailableError(Exception):
    """Chromium or its driver is not on this machine."""


class Browser:
    def __init__(self, driver: str, session: str) -> None:
        self._url = f"{driver}/session/{session}"

    def open(self, url: str) -> None:
        self._post("url", url=url)

    def back(self) -> None:
        """Go back to the page before, which the browser may have kept as it was."""
        self._post("back")

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page, with `arguments`; return what it returns."""
        return self._post("execute/sync", script=script, args=list(arguments))

    def run_async(self, script: str, *arguments: Any) -> Any:
        """Run a function's body that calls its last argument with the result; return that."""
        return self._post("execute/async", script=script, args=list(arguments))

    def press(self, *keys: str) -> None:
        """Press keys, by the names of KEYS or as characters."""
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self._post("actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def text(self, selector: str = "body") -> str:
        """Return the text that a person sees, "" without such an element."""
        return str(
            self.run("const e = document.querySelector(arguments[0]); return e ? e.innerText : ''", selector)
        )

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)

    def until(self, is_true: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds; return its value."""
        deadline = time.monotonic() + SECONDS_MAX
        while not (found := is_true()):
            assert time.monotonic() < deadline, (
                f"not within {SECONDS_MAX} s: {what}; the page:\n{self.text()}"
            )
            time.sleep(0.05)
        return found

    def until_text(self, words: str, selector: str = "body") -> None:
        self.until(lambda: words in self.text(selector), f"{words!r} in {selector}")

    def tool(self, command: str, **parameters: Any) -> Any:
        """Send a command of the developer tools (https://chromedevtools.github.io/devtools-protocol/)."""
        return self._post("goog/cdp/execute", cmd=command, params=parameters)

    def look(self, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Set the size of the page and the colour scheme."""
        self.tool(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tool("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        """Return what is in the window, as PNG."""
        return base64.b64decode(_request(f"{self._url}/screenshot"))

    def errors(self) -> list[str]:
        """Return what the page logged as an error since the last call."""
        entries = self._post("se/log", type="browser")
        return [str(each["message"]) for each in entries if each["level"] == "SEVERE"]

    def close(self) -> None:
        _request(self._url, method="DELETE")

    def _post(self, path: str, **body: Any) -> Any:
        return _request(f"{self._url}/{path}", body, method="POST")


def _request(url: str, body: dict[str, Any] | None = None, method: str = "GET") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as exc:
        raise AssertionError(f"{url}: {exc.read().decode(errors='replace')[:2000]}") from exc


def programs() -> tuple[str, str]:
    """Return the paths of Chromium and its driver. Raises BrowserUnavailableError."""
    found = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if found[0] is None or found[1] is None:
        raise BrowserUnavailableError(
            "chromium and chromedriver are not on PATH (Debian: apt install chromium chromium-driver)"
        )
    return found[0], found[1]


@contextmanager
def browser(folder: Path, *arguments: str) -> Iterator[Browser]:
    """Run a browser with a profile in this folder. Raises BrowserUnavailableError."""
    chromium, chromedriver = programs()
    (port,) = free_ports(1)
    with (folder / "chromedriver.log").open("w") as log:
        process = subprocess.Popen([chromedriver, f"--port={port}"], stdout=log, stderr=subprocess.STDOUT)
    try:
        driver = f"http://127.0.0.1:{port}"
        _wait(driver, process)
        found = _session(driver, chromium, folder, arguments)
        try:
            yield found
        finally:
            found.close()
    finally:
        process.terminate()
        process.wait(SECONDS_MAX)


def _session(driver: str, chromium: str, folder: Path, arguments: Sequence[str]) -> Browser:
    options = {
        "binary": chromium,
        # no sandbox: tests run as root in containers, and the browser sees our own page only
        "args": [
            *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--hide-scrollbars", "--force-device-scale-factor=1"),
            *(f"--user-data-dir={folder / 'profile'}", *arguments),
        ],
    }
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    body = {"capabilities": {"alwaysMatch": wanted}}
    return Browser(driver, _request(f"{driver}/session", body, method="POST")["sessionId"])


def _wait(driver: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        assert process.poll() is None, f"chromedriver ended with {process.returncode}"
        try:
            if _request(f"{driver}/status")["ready"]:
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"chromedriver was not ready within {SECONDS_MAX} s")
