"""Working on the page in a browser: who may holds a variant, and who may not reads why."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli.command import Running, pvbus, running
from tests.e2e.cli.small_fleet import CLUSTERS, PACKAGES, write_manifests
from tests.e2e.web.test_page import address
from tests.tools.browser import Browser, BrowserUnavailableError, browser, programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

NAME = f"default/web-edge-asia-{PACKAGES[0]}"
ACTIONS = "[aria-label^='Actions on']"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    try:
        programs()
    except BrowserUnavailableError as exc:
        pytest.skip(f"the page needs a browser: {exc}")
    write_manifests(tmp_path)
    with running("up", "manifests", cwd=tmp_path) as found:
        found.wait_for(f"variants {CLUSTERS}/{CLUSTERS} ready")
        yield found


def token_of(name: str, role: str, folder: Path) -> str:
    made = pvbus("user", "add", name, "--role", role, cwd=folder)
    assert made.code == 0, made.err
    return str(max(re.findall(r"[\w.~-]{16,}", made.out), key=len))


def press(page: Browser, words: str, within: str = "dialog") -> None:
    script = (
        "const all = [...document.querySelectorAll(arguments[0] + ' button')];"
        "const b = all.find((e) => e.textContent === arguments[1]); if (b) b.click(); return Boolean(b)"
    )
    page.until(lambda: page.run(script, within, words), f"a button {words!r} in {within}")


def fill(page: Browser, value: str) -> None:
    page.until(lambda: page.run("return Boolean(document.querySelector('dialog input'))"), "an input")
    page.run("document.querySelector('dialog input').value = arguments[0]", value)


def sign_in(page: Browser, token: str) -> None:
    press(page, "Sign in", "#user")
    fill(page, token)
    press(page, "Sign in")


def test_who_may_works_on_the_page_and_who_may_not_reads_why(tmp_path: Path, up: Running) -> None:
    """Each action asks once, shows its command and its result, and the page then has it."""
    ann, bob = token_of("ann", "editor", tmp_path), token_of("bob", "viewer", tmp_path)
    with browser(tmp_path) as page:
        page.look()
        page.open(address(up))
        page.until_text("Live", "#connection")
        page.run("location.hash = arguments[0]", f"#/variant/{NAME}")
        page.until_text("Hold", ACTIONS)
        sign_in(page, "not-a-token-that-anybody-has")
        page.until_text("does not know this token", "dialog")
        fill(page, bob)
        press(page, "Sign in")
        page.until_text("bob", "#user")
        press(page, "Hold", ACTIONS)
        page.until_text(f"Put PackageVariant {NAME} on hold?", "dialog")
        page.until_text(f"pvbus hold {NAME}", "dialog code")
        press(page, "Do it")
        page.until_text("You may not do this as bob", "dialog")
        page.until_text('User "bob" cannot patch', "dialog")
        press(page, "Close")
        press(page, "Sign out", "#user")
        sign_in(page, ann)
        page.until_text("ann", "#user")
        page.run("location.reload()")
        page.until_text("ann", "#user")
        page.until_text("Hold", ACTIONS)
        press(page, "Hold", ACTIONS)
        fill(page, "fair in town")
        press(page, "Do it")
        page.until_text("is on hold (fair in town)", "dialog")
        page.until_text(f"pvbus hold {NAME} --reason 'fair in town'", "dialog code")
        press(page, "Close")
        page.until_text("on hold", "dl")
        press(page, "Unhold", ACTIONS)
        press(page, "Do it")
        page.until_text("is no longer on hold", "dialog")
        press(page, "Close")
        press(page, "Propose", ACTIONS)
        page.until_text(f"Propose 1 draft of {NAME}?", "dialog")
        press(page, "Do it")
        page.until_text(f"proposed 1 of 1 drafts of {NAME}", "dialog")
        press(page, "Close")
        page.until_text("Proposed", "dl")
        page.until_text(f"edge-asia.{PACKAGES[0]}.packagevariant-1", "[aria-label=Revisions]")
        page.until_text("git -C ", "[aria-label=Revisions]")
        upstream = "[aria-label='Against the upstream']"
        page.until_text(f"edge-asia.{PACKAGES[0]}.packagevariant-1 against blueprints", upstream)
        page.until_text("Kptfile: changed", f"{upstream}")
        page.run("document.querySelector(arguments[0]).open = true", f"{upstream} details")
        page.until_text("upstreamLock", f"{upstream} table, {upstream} pre")
        stored = page.run(
            "const kept = [localStorage, sessionStorage].map(JSON.stringify);"
            "return [document.cookie, location.href, ...kept].join()"
        )
        assert ann not in stored
        assert bob not in stored
        assert [each for each in page.errors() if "403" not in each] == []
    explained = pvbus("explain", NAME, "-o", "json", cwd=tmp_path)
    assert json.loads(explained.out)["known"]
