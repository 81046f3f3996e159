"""The page at work, on the example fleet: as whom one acts, what one sees, and for everybody's eyes."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.ports.cluster import Kind
from tests.e2e.cli.command import REPOSITORY, pvbus, running
from tests.e2e.cli.small_fleet import Client
from tests.e2e.web.test_page import address
from tests.e2e.web.working_day import CLUSTERS, IN_CONFLICT, POLICY, SIZE, begin, revision_of, variant_of
from tests.tools.axe import violations
from tests.tools.browser import Browser, BrowserUnavailableError, browser, programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

CLUSTER = "africa-01"
NAME = variant_of(CLUSTER)
ACTIONS = "[aria-label^='Actions on']"
PICTURES = "PVBUS_TEST_PICTURES"
"""A folder of this repository to which the pictures of all views are written: docs for the documents."""
PICTURE_BYTES_MAX = 150_000


class Day(NamedTuple):
    """A fleet that runs, and a browser with its page.

    folder: where `pvbus up` runs
    token: of eve, who may edit
    """

    folder: Path
    page: Browser
    token: str


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    try:
        programs()
    except BrowserUnavailableError as exc:
        pytest.skip(f"the page needs a browser: {exc}")
    folder = tmp_path_factory.mktemp("day")
    words = ("up", "--example", "fleet", "--clusters", str(CLUSTERS), "--promote")
    with running(*words, cwd=folder) as up, browser(folder) as page:
        up.wait_for(f"variants {SIZE}/{SIZE} ready")
        asyncio.run(begin(folder))
        page.look()
        page.open(address(up))
        page.until_text("Live", "#connection")
        yield Day(folder, page, token_of("eve", "editor", folder))


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


def test_who_may_works_on_the_page_and_who_may_not_reads_why(day: Day) -> None:
    """Each action asks once, shows its command and its result, and the page then has it."""
    ann, bob = token_of("ann", "editor", day.folder), token_of("bob", "viewer", day.folder)
    page = day.page
    sign_out(page)
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
    page.until(lambda: "on hold" not in page.text("dl"), "the variant is off hold")
    press(page, "Propose", ACTIONS)
    page.until_text(f"Propose 1 draft of {NAME}?", "dialog")
    press(page, "Do it")
    page.until_text(f"proposed 1 of 1 drafts of {NAME}", "dialog")
    press(page, "Close")
    page.until_text("Proposed", "dl")
    page.until_text(revision_of(CLUSTER, 2), "[aria-label=Revisions]")
    page.until_text("git -C ", "[aria-label=Revisions]")
    upstream = "[aria-label='Against the upstream']"
    page.until_text(f"{revision_of(CLUSTER, 2)} against blueprints", upstream)
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
    explained = pvbus("explain", NAME, "-o", "json", cwd=day.folder)
    assert json.loads(explained.out)["known"]


def test_the_filter_knows_the_labels_that_real_variants_have(day: Day) -> None:
    """The example in the empty field finds the variants of asia; a label groups them."""
    page = day.page
    page.run("location.hash = '#/'")
    page.until_text(f"{SIZE} variants", "main")
    example = page.run("return document.querySelector('main input[type=search]').placeholder")
    assert example == "web region=asia"
    page.run("location.hash = arguments[0]", f"#/?filter={example}&group=label region")
    page.until_text(f"{CLUSTERS} variants of {SIZE}", "main")
    page.until_text("region=asia", "main h3")
    page.run("location.hash = '#/'")
    page.until_text(f"{SIZE} variants", "main")


def sign_out(page: Browser) -> None:
    if "Sign out" in page.text("#user"):
        press(page, "Sign out", "#user")
        page.until_text("Sign in", "#user")


def test_one_decision_settles_equal_conflicts_and_is_taken_back(day: Day) -> None:
    """From the inbox: both sides are shown first, and what was settled is listed with its way back."""
    page = day.page
    as_eve(day)
    page.run("location.hash = '#/conflicts'")
    press(page, "Take local", "main")
    page.until_text("2 x local 'registry.example.dev/web:1.0.1'", "dialog")
    press(page, "Do it")
    page.until_text("2 of 2 drafts changed", "dialog")
    press(page, "Close")
    page.until_text("Conflicts (0)", "nav")
    press(page, "Show what was settled", "main")
    page.until_text("2 drafts took local", "[aria-label=Settled]")
    press(page, "Undo", "[aria-label=Settled]")
    page.until_text("Open the conflicts of 2 drafts again?", "dialog")
    page.until_text("has 'registry.example.dev/web:1.0.1', would have", "dialog .said")
    page.until_text(variant_of(IN_CONFLICT[1]), "dialog .said")
    press(page, "Do it")
    page.until_text("2 of 2 drafts changed; their conflicts are open again", "dialog")
    press(page, "Close")
    page.until_text("Conflicts (2)", "nav")
    page.until_text("No draft records a decision", "[aria-label=Settled]")


def test_who_changed_a_policy_a_set_and_a_variant_is_on_the_page(day: Day) -> None:
    """And on the command line, in the same words."""
    page = day.page
    as_eve(day)
    patch = '{"metadata":{"annotations":{"kubernetes.io/change-cause":"asia first"}},"spec":{"settle":"2s"}}'
    asyncio.run(change_policy(day.folder, json.loads(patch)))
    page.run("location.hash = '#/rollouts'")
    history = "[aria-label='Rollout default/web'] details.history"
    page.until_text("Who changed the policy", history)
    change = "spec.settle: 1s -> 2s"
    page.until(lambda: change in pvbus("history", "rolloutpolicy/web", cwd=day.folder).out, "the change")
    page.run("document.querySelector(arguments[0]).open = true", history)
    page.until_text(change, history)
    page.until_text("asia first", history)
    assert violations(page) == []
    page.run("location.hash = '#/set/default/web'")
    page.until_text("spec.upstream.revision: 1 -> 2", "[aria-label='History of default/web']")
    page.run("location.hash = arguments[0]", f"#/variant/{NAME}")
    page.until_text("upgrade", "[aria-label=Revisions]")
    listed = pvbus("history", f"pv/{NAME}", cwd=day.folder)
    assert revision_of(CLUSTER, 2) in listed.out
    assert "DraftCreated" in listed.out


async def change_policy(folder: Path, patch: dict[str, Any]) -> None:
    cluster = await HttpCluster.connect(folder / ".pvbus" / "kubeconfig")
    try:
        await Client(cluster).edit(POLICY, "web", lambda found: merge(found, patch))
    finally:
        await cluster.close()


def merge(found: dict[str, Any], patch: dict[str, Any]) -> None:
    found["spec"].update(patch["spec"])
    found["metadata"].setdefault("annotations", {}).update(patch["metadata"]["annotations"])


SELECTED = "[aria-label='Selected variants']"


def select_all_of(page: Browser, region: str) -> None:
    page.run("location.hash = arguments[0]", f"#/?filter=region={region}&list=")
    page.until_text(f"{CLUSTERS} variants of {SIZE}", "main")
    press(page, f"Select all {CLUSTERS}", SELECTED)
    page.until_text(f"{CLUSTERS} variants selected", SELECTED)


def test_one_confirmation_is_for_all_that_is_selected(day: Day) -> None:
    """All that the filter shows: refused one by one to a viewer, done one by one for an editor."""
    page = day.page
    sign_out(page)
    select_all_of(page, "america")
    press(page, "Hold 1", SELECTED)  # the other is on hold
    fill(page, token_of("ida", "viewer", day.folder))  # an action asks who one is
    press(page, "Sign in")
    page.until_text("Hold 1 variant?", "dialog")
    page.until_text(f'for name in {variant_of("america-01")}; do pvbus hold "$name"', "dialog code")
    assert violations(page) == []
    press(page, "Do it")
    page.until_text("0 of 1 variant done", "dialog")
    page.until_text("You may not do this as ida", "dialog .refused")
    page.until_text('User "ida" cannot patch', "dialog .refused")
    assert violations(page) == []
    press(page, "Close")
    as_eve(day)
    press(page, "Hold 1", SELECTED)
    fill(page, "fair in town")
    press(page, "Do it")
    page.until_text("Done: 1 variant", "dialog")
    press(page, "Close")
    press(page, f"Unhold {CLUSTERS}", SELECTED)
    press(page, "Do it")
    page.until_text(f"Done: {CLUSTERS} variants", "dialog")
    for cluster in ("america-01", "america-02"):
        page.until_text(f"{variant_of(cluster)} is no longer on hold", "dialog .done")
    press(page, "Close")
    reason = ("--reason", "fair in town until Sunday")  # as it was
    assert pvbus("hold", variant_of("america-02"), *reason, cwd=day.folder).code == 0


def test_what_is_refused_of_a_selection_leaves_the_others(day: Day) -> None:
    """Selected by the keyboard, in the list and on the map: drafts in conflict are refused, one goes on."""
    page = day.page
    as_eve(day)
    names = [*map(variant_of, IN_CONFLICT), NAME]
    assert pvbus("reject", f"pv/{NAME}", cwd=day.folder).code == 0  # another test may have proposed it
    page.run("location.reload()")  # nothing is selected
    page.until_text("eve", "#user")
    page.run("location.hash = '#/?list='")
    page.until(
        lambda: page.run("return document.querySelectorAll('main [data-name]').length") == SIZE, "a list"
    )
    for name in names[:2]:
        page.run("document.querySelector(`input[data-name='${arguments[0]}']`).focus()", name)
        page.press(" ")
        page.until_text(f"{names.index(name) + 1} variant", SELECTED)
        has_focus = "return document.activeElement.dataset.name === arguments[0]"
        page.until(partial(page.run, has_focus, name), "the focus stays on the box")
    page.run("location.hash = arguments[0]", f"#/?filter={names[2]}")
    page.until_text("2 of them not shown by the filter", SELECTED)
    page.run("document.querySelector('main .cells').focus()")
    page.press(" ")
    page.until_text("3 variants selected", SELECTED)
    selected = "return document.querySelector('main [role=option]').getAttribute('aria-selected')"
    assert page.run(selected) == "true"
    press(page, "Propose 3", SELECTED)
    page.until_text("Propose 1 variant?", "dialog")
    page.until_text("2 variants refused", "dialog .refused")
    page.until_text("conflict", "dialog .refused")
    press(page, "Do it")
    page.until_text("Done: 1 variant", "dialog")
    press(page, "Close")
    page.until_text("Reject 1", SELECTED)
    press(page, "Reject 1", SELECTED)
    press(page, "Do it")
    page.until_text('User "eve" cannot update resource "packagerevisions/approval"', "dialog .refused")
    press(page, "Close")
    assert pvbus("reject", f"pv/{names[2]}", cwd=day.folder).code == 0


def test_selected_conflicts_are_settled_at_once_and_taken_back(day: Day) -> None:
    page, selected = day.page, "[aria-label='Selected conflicts']"
    as_eve(day)
    page.run("location.hash = '#/conflicts'")
    page.until_text("Select all 1", selected)
    page.run("document.querySelector('main section input[type=checkbox]').focus()")
    page.press(" ")
    page.until_text("1 conflict selected", selected)
    assert violations(page) == []
    press(page, "Take upstream 1", selected)
    page.until_text("Take upstream for 1 conflict?", "dialog")
    press(page, "Do it")
    page.until_text("2 of 2 drafts changed", "dialog .done")
    press(page, "Undo")
    page.until_text("Undo 1 decision?", "dialog")
    press(page, "Do it")
    page.until_text("their conflicts are open again", "dialog")
    press(page, "Close")
    page.until_text("Conflicts (2)", "nav")


def test_who_may_ends_what_keeps_proposals(day: Day) -> None:
    """A stop is lifted, one proposal goes out in spite of it, and a quarantine ends: by approvers alone."""
    page, target = day.page, variant_of("africa-02")
    for words in (f"propose pv/{target}", "rollout stop --all --reason maintenance"):
        done = pvbus(*words.split(), cwd=day.folder)
        assert done.code == 0, done.err
    asyncio.run(quarantine(day.folder))
    page.run("location.hash = '#/rollouts'")
    stop, bad, one = (
        "[aria-label^='Lift default/fleet']",
        "[aria-label='End default/bad']",
        f"Approve {target}",
    )
    page.until_text("blueprints/web@v9", "[aria-label=Quarantined]")
    page.until_text(target, "[aria-label='Proposals that these may keep']")
    sign_out(page)
    sign_in(page, token_of("hal", "viewer", day.folder))
    page.until_text("hal", "#user")
    refusals = ((stop, "Lift"), (bad, "Release"), (f"[aria-label='{one}']", "Approve all the same"))
    for selector, button in refusals:
        press(page, button, selector)
        fill(page, "I want to")
        press(page, "Do it")
        page.until_text('User "hal" cannot', "dialog")
        press(page, "Close")
    sign_out(page)
    sign_in(page, token_of("fay", "approver", day.folder))
    page.until_text("fay", "#user")
    assert violations(page) == []
    press(page, "Approve all the same", f"[aria-label='{one}']")
    page.until_text("all rollouts are stopped", "dialog .said")
    fill(page, "the site is down")
    press(page, "Do it")
    page.until_text(f"approved 1 of 1 proposals of {target}", "dialog")
    page.until_text("--override 'the site is down'", "dialog code")
    press(page, "Close")
    page.until(lambda: target not in page.text("main"), "it is no proposal any more")
    for selector, button, words in (
        (stop, "Lift", "lifted; rollouts go on"),
        (bad, "Release", "is released"),
    ):
        press(page, button, selector)
        fill(page, "it is over")
        press(page, "Do it")
        page.until_text(words, "dialog")
        press(page, "Close")
        page.until(partial(is_gone, page, selector), f"{selector} is gone")


def is_gone(page: Browser, selector: str) -> bool:
    return not page.run("return Boolean(document.querySelector(arguments[0]))", selector)


async def quarantine(folder: Path) -> None:
    """Quarantine a revision that nobody has."""
    cluster = await HttpCluster.connect(folder / ".pvbus" / "kubeconfig")
    try:
        kind = Kind(PROMOTION_GROUP, "Quarantine")
        spec = {"upstreams": [{"revision": "blueprints/web@v9"}], "message": "it leaks"}
        await Client(cluster).create(kind, "bad", spec=spec)
    finally:
        await cluster.close()


def as_eve(day: Day) -> None:
    """Be signed in as a user who may edit."""
    page = day.page
    if page.text("#user").startswith("eve"):
        return
    sign_out(page)
    sign_in(page, day.token)
    page.until_text("eve", "#user")


# ------------------------------------------------------------ what everybody sees

VIEWS = {
    "fleet": ("/", f"{SIZE} variants"),
    "person": ("/person", "Conflicts of upgrades (2)"),
    "variant": (f"/variant/{variant_of(IN_CONFLICT[0])}", "Events"),
    "conflicts": ("/conflicts", "web:1.0.1"),
    "rollouts": ("/rollouts", "It waits for:"),
}
"""The path of each view, and what it shows once it is whole."""
WIDTH = "return document.documentElement.scrollWidth"


ABOUT_THE_DRAFT = (
    "const is = (e) => e.firstChild.textContent.startsWith('deployment.yaml');"
    "for (const e of document.querySelectorAll('main details')) e.open = is(e);"
    "document.querySelector('[aria-label^=\"Conflicts of\"]').scrollIntoView()"
)
"""Shows the conflict and what the draft changes in one file, for the picture."""


def is_within(page: Browser, width: int) -> bool:
    return int(page.run(WIDTH)) <= width


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_for_everybody(day: Day, view: str) -> None:
    """WCAG 2 A and AA by axe, and no wider than the window, at 390 and 1280 px, light and dark."""
    page, (path, words) = day.page, VIEWS[view]
    as_eve(day)
    page.run("location.hash = arguments[0]", f"#{path}")
    page.until_text(words, "main")
    for dark in (True, False):
        for width in (390, 1280):
            page.look(width=width, dark=dark)
            page.until(partial(is_within, page, width), f"{view} is not wider than {width}")
            page.until_text(words, "main")
            assert violations(page) == [], (view, width, dark)
            if view == "variant":
                page.run(ABOUT_THE_DRAFT)
            is_shown = width == 1280 and not dark  # in the documents
            look = f"-{width}-{'dark' if dark else 'light'}"
            keep_picture(page, f"web-{view}{'' if is_shown else look}")


def keep_picture(page: Browser, name: str) -> None:
    if folder := os.environ.get(PICTURES):
        content = page.picture()
        assert len(content) < PICTURE_BYTES_MAX, name
        (REPOSITORY / folder / f"{name}.png").write_bytes(content)
