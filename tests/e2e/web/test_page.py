"""The page in a browser: what a person sees of a fleet, with the mouse, the keyboard and a screen reader."""

import re
import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.core.kernel.records import LATEST, RESULTS, SETS, UNROLL, VARIANTS, ChildState, ResultRow
from tests.e2e.cli.command import Running, running
from tests.tools.axe import violations
from tests.tools.browser import Browser, BrowserUnavailableError, browser, programs
from tests.tools.bustables import Row, write_tables
from tests.tools.fleetrows import (
    REGIONS,
    VARIANT,
    child,
    event,
    fleet,
    markers,
    ready,
    retained_draft,
    rollout,
    task,
    variant,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

COUNT = 400
STALLED = "default/web-edge-europe-europe-00003"
HOSTILE = "</script><img src=x onerror=alert(1)>"


class Shown:
    """A server with a fleet's rows, and a browser with its page."""

    def __init__(self, folder: Path, page: Browser, server: Running) -> None:
        self.folder = folder
        self.page = page
        self.url = address(server)

    def write(self, *rows: Row) -> None:
        write(self.folder, *rows)

    def view(self, path: str = "/") -> None:
        self.page.run("location.hash = arguments[0]", f"#{path}")


def address(server: Running) -> str:
    return server.wait_for("web page: ").partition("web page: ")[2]


def write(folder: Path, *rows: Row) -> None:
    """Write to the bus that `run web` reads in this folder if it is not told another one."""
    (folder / ".pvbus").mkdir(exist_ok=True)
    write_tables(folder / ".pvbus" / "bus.db", rows)


def serve(folder: Path, **variables: str) -> Any:
    return running("run", "web", cwd=folder, **variables)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        programs()
    except BrowserUnavailableError as exc:
        pytest.skip(f"the page needs a browser: {exc}")
    folder = tmp_path_factory.mktemp("browser")
    with browser(folder) as found:
        yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shown(tmp_path: Path, page: Browser) -> Iterator[Shown]:
    write(tmp_path, *fleet(COUNT))
    with serve(tmp_path) as server:
        found = Shown(tmp_path, page, server)
        page.look()
        page.open(found.url)
        page.until_text("400 variants")
        page.until_text("Live", "#connection")
        page.errors()  # forget those of earlier tests
        yield found
        assert page.errors() == []


def check_width(page: Browser, name: str) -> None:
    """Look at the page when narrow, and when wide again: nothing is wider than the window."""
    for width in (380, 1280):
        page.look(width=width)
        # The page draws its groups anew in the frame after the one in which it learns its width.
        page.until(
            partial(page.run, f"return document.documentElement.scrollWidth <= {width}"),
            f"{name} is not wider than {width}",
        )


def counts(page: Browser) -> dict[str, int]:
    """Return the number on each state's button."""
    texts = page.run("return [...document.querySelectorAll('.legend button')].map((e) => e.textContent)")
    return {
        state: int(number.replace(",", "")) for state, _, number in (text.rpartition(" ") for text in texts)
    }


def test_the_fleet(shown: Shown) -> None:
    """States with their counts, sets, groups by a label, a filter; the token is not in the address."""
    page = shown.page
    assert "token" not in page.run("return location.href")
    assert page.run("return document.cookie") == ""
    before = counts(page)
    assert sum(before.values()) == COUNT
    assert min(before.values()) > 0
    assert "default/web" in page.text("table")
    page.run(
        "const s = document.querySelector('select'); s.value = 'label region';"
        "s.dispatchEvent(new Event('change'))"
    )
    page.until_text("region=asia")
    groups = page.run("return [...document.querySelectorAll('.group h3')].map((e) => e.textContent)")
    assert groups == ["region=africa", "region=america", "region=asia", "region=europe"]
    page.run(
        "const i = document.querySelector('input'); i.value = 'region=asia stage=canary edge';"
        "i.dispatchEvent(new Event('input'))"
    )
    page.until_text("of 400")
    assert page.run("return document.querySelectorAll('.group').length") in (0, 1)
    page.run("const i = document.querySelector('input'); i.value = ''; i.dispatchEvent(new Event('input'))")
    page.click(".legend button")  # only what is stalled
    page.until_text(f"{before['stalled']} variants of 400")
    page.click("button[aria-pressed=false]:not(.legend button)")
    page.until_text("NoMatch", "#main")
    page.click(".legend button")
    page.click("button[aria-pressed=true]")
    page.until_text("region=africa")
    page.run(
        "const s = document.querySelector('select'); s.value = 'set'; s.dispatchEvent(new Event('change'))"
    )
    page.until_text("default/cache", ".group")
    check_width(page, "fleet")


def test_the_view_is_in_the_address(shown: Shown) -> None:
    """Filter, states, grouping and list: another browser opens the same, and back goes one step."""
    page = shown.page
    typed = "const i = document.querySelector('input'); i.value = arguments[0];"
    typed += "i.dispatchEvent(new Event('input'))"
    for text in ("r", "re", "region=asia"):
        page.run(typed, text)
    page.until_text("100 variants of 400", "#main")
    page.run(
        "[...document.querySelectorAll('.legend button')].find((e) => /ready/.test(e.textContent)).click()"
    )
    page.run(
        "const s = document.querySelector('select'); s.value = 'label stage';"
        "s.dispatchEvent(new Event('change'))"
    )
    page.until_text("stage=production", ".group")
    found = page.text("#main [role=status]")
    address = page.run("return location.href")
    assert address.endswith("#/?filter=region%3Dasia&state=ready&group=label+stage")
    page.open("about:blank")
    page.open(address)
    page.until_text(found, "#main")
    assert page.run("return document.querySelector('input').value") == "region=asia"
    page.until_text("stage=production", ".group")
    page.run(
        "[...document.querySelectorAll('.legend button')].find((e) => /stalled/.test(e.textContent)).click()"
    )
    page.run(typed, "asia")
    page.run(typed, "asia-")
    page.until(lambda: page.run("return location.hash.includes('asia-')"), "the address has the letters")
    page.back()
    page.until(
        lambda: page.run("return document.querySelector('input').value") == "region=asia", "one step back"
    )
    page.back()
    page.until_text(found, "#main")
    page.run("document.body.focus()")
    page.press("/")
    assert page.run("return document.activeElement.type") == "search"


def test_what_needs_a_person_is_on_top(shown: Shown) -> None:
    """Conflicts, rejected, stranded, removals, tasks, quarantined, stopped, stalled; each goes by itself."""
    page = shown.page
    names = [f"default/web-edge-{region}-{region}-{n:05}" for n, region in enumerate(REGIONS)]
    key, spec = "promotion.pvbus.dev/Quarantine|default|q", {"upstreams": [{"revision": "blueprints/web@v6"}]}
    quarantine = {
        "metadata": {"namespace": "default", "name": "q"},
        "spec": {**spec, "message": "it crashed"},
    }
    stop = {
        "metadata": {"namespace": "default", "name": "fleet"},
        "spec": {"entries": [{"name": "1", "by": "ann", "reason": "payments are down"}]},
    }
    reasons = ("UpgradeConflict", "DraftRejected", "RollbackStranded")
    shown.write(
        *(
            event(VARIANT, name, "AttentionNeeded", "True", reason, since="2026-01-01T08:00:00Z")
            for name, reason in zip(names, reasons, strict=False)
        ),
        ask(names[3], "draft", "Is it licensed?"),
        rollout("default/web", "Stopped", 2, {"total": 9, "failing": 2}),
        ("pvbus.policies", key, msgspec.json.encode(quarantine)),
        ("pvbus.policies", "stop|default|fleet", msgspec.json.encode(stop)),
    )
    page.until_text("Quarantined: 1", "#needs")
    page.click("#needs a")
    titles = "return [...document.querySelectorAll('#main h3')].map((e) => e.textContent.split(' (')[0])"
    page.until_text("Stalled variants", "#main")
    wanted = [
        "All rollouts are stopped",
        "Conflicts of upgrades",
        "Rejected drafts",
        "Stranded by a rollback",
        "Held removals",
        "Open tasks",
    ]
    wanted += ["Quarantined", "Rollouts that wait for a person", "Stalled variants"]
    page.until(lambda: page.run(titles) == wanted, str(wanted))
    page.until_text("pvbus rollout release default/q --reason TEXT", "#main")
    page.until_text("it crashed", "#main")
    page.until_text("ann: payments are down", "#main")
    page.until_text("pvbus rollout lift default/fleet 1 --reason TEXT", "#main")
    assert re.search(r"\d+ d", page.text("time[data-since]"))
    shown.write((LATEST, f"{VARIANT}|{names[1]}|AttentionNeeded", None), ("pvbus.policies", key, None))
    page.until(
        lambda: "Rejected" not in page.text("#main") and "Quarantined" not in page.text("#main"), "they go"
    )


def test_a_change_shows_by_itself(shown: Shown) -> None:
    """A variant that stalls, one that is new and one that goes are seen without a reload."""
    page = shown.page
    before = counts(page)["stalled"]
    name = "default/web-edge-africa-africa-00000"
    shown.write(
        event(VARIANT, name, "Stalled", "True", "NoMatch"), variant("default/zz-new"), ready("default/zz-new")
    )
    page.until(lambda: counts(page)["stalled"] == before + 1, "one more is stalled")
    page.until_text("401 variants")
    shown.write((VARIANTS, "default/zz-new", None))
    page.until_text("400 variants")


def test_a_page_that_is_left_holds_no_connection(shown: Shown) -> None:
    """The browser keeps it for the way back, and has six connections for a server; back on it, it goes on."""
    page = shown.page
    before = counts(page)["stalled"]
    page.run("addEventListener('pagehide', () => { window.leftOpen = connection.source !== null; })")
    page.open("about:blank")
    page.back()
    page.until(lambda: page.run("return window.leftOpen === false"), "the page is back as it was left")
    shown.write(event(VARIANT, "default/web-edge-africa-africa-00000", "Stalled", "True", "NoMatch"))
    page.until(lambda: counts(page)["stalled"] == before + 1, "one more is stalled")


def test_one_variant(shown: Shown) -> None:
    """Its conditions and explanation, which change with it; an unknown one is said to be none."""
    page = shown.page
    shown.view(f"/variant/{STALLED}")
    page.until_text("no package revision web v9 in repository blueprints", "table")
    page.until_text("made by: set default/web", "pre")
    assert f"Variant {STALLED}" in page.run("return document.title")
    check_width(page, "variant")
    shown.write(event(VARIANT, STALLED, "Stalled", "False", "Valid"), ready(STALLED))
    page.until_text("Ready=True", "pre")
    shown.view("/set/default/web")
    page.until_text("PackageVariantSet default/web", "pre")
    shown.view("/variant/default/nothing")
    page.until_text("no such PackageVariant", "pre")


def test_held_removals(shown: Shown) -> None:
    """Each set's command to confirm can be copied; when nothing is held any more, the page says so."""
    page = shown.page
    shown.view("/removals")
    page.until_text("pvbus confirm default/web --show")
    page.until_text("pvbus.dev/confirm-deletion=3-8f21c04e")
    labels = page.run("return [...document.querySelectorAll('.command button')].map((e) => e.ariaLabel)")
    assert all(label.startswith("Copy: ") for label in labels)
    page.click(".command button")
    page.until(lambda: page.text(".command button") in ("Copied", "Selected"), "the button answers")
    check_width(page, "removals")
    held = page.run(
        "return [...fleet.variants.values()].filter((v) => v.state === 'removal held').map((v) => v.name)"
    )
    names = [name.partition("/")[2] for name in held]
    shown.write(*(child("default/web", name) for name in names), ("pvbus.setresults", "default/web", None))
    page.until_text("No removal is held")


def test_rollouts(shown: Shown) -> None:
    """How each stands, as its status says; one that goes on, and one that goes, show by themselves."""
    page = shown.page
    shown.view("/rollouts")
    page.until_text("There is no RolloutPolicy")
    counts = {"total": 200, "proven": 20, "failing": 2, "waiting": 178}
    shown.write(rollout("default/web", "Stopped", 2, counts, message="2 targets fail, 1 may"))
    page.until_text("Attempt 3 is Stopped in wave 2 of 3.")
    page.until_text("200 targets: 20 proven, 2 failing, 178 wait")
    page.until_text("Progressing is False (TooManyFailing): 2 targets fail, 1 may")
    page.until_text("a person, as it stopped: pvbus rollout resume, abort or roll-back default/web")
    page.until_text("Rollouts (1)", "nav")
    page.click("summary")
    page.until_text("pvbus rollout roll-back default/web", "details")
    page.until_text("TooManyFailing: 1 target fails", "details table")
    check_width(page, "rollouts")
    shown.write(rollout("default/web", "Rolling", 3, {**counts, "proven": 100, "inFlight": 5, "waiting": 93}))
    page.until_text("Attempt 3 is Rolling in wave 3 of 3.")
    page.until_text("5 in flight to prove good")
    assert page.run("return document.querySelector('details').open"), "what was opened stays open"
    shown.write(("pvbus.policies", "default/web", None))
    page.until_text("There is no RolloutPolicy")


def test_warnings(shown: Shown) -> None:
    """A set and a variant with a warning have it beside their reason, and in words; one that ends goes."""
    page = shown.page
    page.until_text("VariantsNotReady \u26a0 ExpressionDisputed", "table")
    page.click("a[href='#/set/default/cache']")
    page.until_text("ExpressionDisputed: see the conditions", "dl")
    page.until_text("gives other results than pvbus", "table")
    shown.write((LATEST, "PackageVariantSet|default/cache|ExpressionDisputed", None))
    page.until(lambda: "ExpressionDisputed" not in page.text("#main"), "the warning is gone")
    shown.view()
    page.run(
        "const i = document.querySelector('input'); i.value = 'fieldsdropped';"
        "i.dispatchEvent(new Event('input'))"
    )
    page.until_text("7 variants of 400")
    page.click("button[aria-pressed=false]:not(.legend button)")
    page.until_text("Reconciled \u26a0 FieldsDropped", ".group, #main")


def test_kept_drafts(shown: Shown) -> None:
    """Which drafts stayed, of which variant, and who edited them; one that is taken up again goes."""
    page = shown.page
    shown.view("/kept")
    page.until_text("No draft was kept")
    draft = "edge-asia.gone.packagevariant-1"
    shown.write(retained_draft("default/web-gone", draft, "ann, bob"))
    page.until_text("Kept drafts (1)", "nav")
    page.until_text(f"default/{draft}", "#main")
    page.until_text("edited by ann, bob", "#main")
    page.until_text("pvbus explain default/web-gone", "#main")
    page.click("a[href='#/variant/default/web-gone']")
    page.until_text("edited by ann, bob", "dl")
    shown.write((LATEST, f"PackageRevision|default/{draft}|Kept", None))
    page.until_text("Kept drafts (0)", "nav")


def ask(name: str, revision: str, question: str, **fields: Any) -> Row:
    return task(name, revision, "Licensed", question, **fields)


def test_tasks(shown: Shown) -> None:
    """What is asked of whom, the overdue in words; an answered one goes, here and from its variant."""
    page = shown.page
    shown.view("/tasks")
    page.until_text("No task is open")
    names = [f"default/web-edge-{region}-{region}-{n:05}" for n, region in enumerate(REGIONS)]
    drafts = [f"edge-{region}.site-{n}.packagevariant-2" for n, region in enumerate(REGIONS)]
    late = ask(
        names[1],
        drafts[1],
        "Is the site in America licensed?",
        owner="ann",
        ticket="NET-42",
        due="2026-01-15",
    )
    shown.write(
        late,
        ask(names[0], drafts[0], "Who pays for the link?", owner="bob", due="2999-12-01"),
        ask(names[2], drafts[2], "Is the site in Asia licensed?", blocks=("Licensed", "Deployed")),
    )
    page.until_text("Tasks (3, 1 overdue)", "nav")
    page.until_text("3 open tasks; 1 overdue")
    check_width(page, "tasks")
    shown.write(
        ask(
            names[3],
            drafts[3],
            "May it go live?",
            owner="cy",
            reason="InputsChanged",
            state="proposed",
            message="it was True before this upgrade, which changed the package",
        ),
    )
    page.until_text("Tasks (4, 1 overdue)", "nav")
    rows = page.run("return [...document.querySelectorAll('.tasks tbody')].map((e) => e.innerText)")
    assert "\u26a0 overdue" in rows[0]
    assert "Is the site in America licensed?" in rows[0]
    assert "2999-12-01" in rows[1]
    assert not any("overdue" in row for row in rows[1:])
    assert f"pvbus task answer default/{drafts[1]} Licensed --status True" in rows[0]
    assert "readiness gates Licensed, Deployed" in rows[2]
    assert "it was True before this upgrade" in rows[3]
    assert "reject it first" in rows[3]
    page.run("document.querySelector('input').focus()")
    page.press("tab", "enter")
    page.until_text("1 open task of 4; 1 overdue")
    page.press("enter")
    page.until_text("4 open tasks; 1 overdue")
    page.press("tab")
    assert page.run("return document.activeElement.textContent") == names[1], (
        "then to the variants and commands"
    )
    page.run("document.querySelector('.tasks tbody:nth-of-type(2) .command button').focus()")
    shown.write(ask(names[1], drafts[1], "Is the site in America licensed?", state="answered", status="True"))
    page.until_text("Tasks (3)", "nav")
    assert "Who pays" in page.run("return document.activeElement.closest('tbody').innerText"), (
        "the focus stays"
    )
    page.run(
        "const i = document.querySelector('input'); i.value = 'owner=bob pays';"
        "i.dispatchEvent(new Event('input'))"
    )
    page.until_text("1 open task of 3")
    shown.write((RESULTS, names[0], ResultRow(uid="u", revisions=(drafts[0],))))
    page.click(f"a[href='#/variant/{names[0]}']")
    page.until_text("Who pays for the link?", "section[aria-label='Open tasks']")
    page.until_text("asks bob: Who pays for the link? (due 2999-12-01)", "pre")
    shown.write(ask(names[0], drafts[0], "Who pays for the link?", state="answered", status="True"))
    page.until_text("Licensed of default/edge-africa.site-0.packagevariant-2: answered True", "pre")
    assert page.run("return document.querySelector('.tasks')") is None
    page.click("nav a[href='#/tasks']")
    page.until_text("2 open tasks", "#main")
    shown.write((LATEST, f"PackageRevision|default/{drafts[2]}|Licensed", None))
    page.until_text("Tasks (1)", "nav")


def test_a_task_becomes_overdue_while_the_page_is_open(shown: Shown) -> None:
    """By the clock alone: no event says that a due time has passed."""
    page = shown.page
    shown.view("/tasks")
    due = datetime.now(UTC) + timedelta(seconds=3)
    shown.write(ask(STALLED, "draft", "Is it?", due=due.isoformat()))
    page.until_text("1 open task; 0 overdue")
    page.until_text("1 open task; 1 overdue")
    page.until_text("Tasks (1, 1 overdue)", "nav")


def test_the_keyboard_alone(shown: Shown) -> None:
    """Tab reaches the map, arrows go through its variants with their names said, Enter opens one."""
    page = shown.page
    described = (
        "const e = document.activeElement; const id = e.getAttribute('aria-activedescendant');"
        "return id ? document.getElementById(id).textContent : ''"
    )
    page.run("document.body.focus()")

    def next_stop() -> Any:
        page.press("tab")
        return page.run(described)

    page.until(next_stop, "Tab reaches a group")
    first = page.run(described)
    page.press("right", "down", "left")
    assert page.run(described) != first
    page.press("left")
    name = page.run(described).partition(" \u00b7 ")[0]
    page.press("enter")
    page.until_text(f"Variant {name}", "h2")
    assert page.run("return document.activeElement.id") == "main"


def test_other_views_are_for_everybody_and_states_differ(shown: Shown) -> None:
    """axe finds nothing in views that the working day lacks; each state has a shape, and enough contrast."""
    page = shown.page
    shown.write(ask(STALLED, "draft", "Is it?", due="2020-01-01"))
    for view, words in (("/set/default/web", "Explanation"), ("/removals", "removals"), ("/tasks", "Is it?")):
        shown.view(view)
        page.until_text(words, "#main")
        page.look(width=390)
        assert violations(page) == [], view
        page.look()
    shapes = page.run(
        "for (const s of STATES) colours[s] = '#000'; colours.back = '#fff';"
        "const found = STATES.map((s) => glyph(s).toDataURL()); readColours(); return found"
    )
    assert len(set(shapes)) == len(shapes) == 7  # in black and white, too
    for dark in (False, True):
        page.look(dark=dark)
        style = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()"
        back = page.run(style, "--back")
        for state in page.run("return STATES"):
            colour = page.run(style, f"--{state.replace(' ', '-')}")
            assert contrast(colour, back) >= 4.5, (state, dark)


def contrast(one: str, other: str) -> float:
    """Return the ratio of two colours `#rrggbb` (WCAG 2.2, relative luminance)."""
    lights = sorted((_luminance(one), _luminance(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_from_the_cluster_is_only_text(shown: Shown) -> None:
    """Markup in names, labels, reasons and messages is shown as it is, and runs nothing."""
    page = shown.page
    name = "default/<b>bold"
    shown.write(
        variant(name, {"<i>key": HOSTILE, "__proto__": "polluted"}),
        event(VARIANT, name, "Ready", "False", HOSTILE, message=HOSTILE),
        child("default/<u>set", "<b>bold", ChildState.HELD),
        rollout("default/<u>policy", "<b>Stopped", 1, {"total": 1, "proven": 1}, message=HOSTILE),
    )
    page.until_text("401 variants")
    page.click("button[aria-pressed=false]:not(.legend button)")
    page.run(
        "const i = document.querySelector('input'); i.value = 'bold'; i.dispatchEvent(new Event('input'))"
    )
    page.until_text(HOSTILE, "#main")
    shown.view("/variant/default/%3Cb%3Ebold")
    page.until_text(HOSTILE, "#main table")
    shown.view("/removals")
    page.until_text(name)
    shown.view("/rollouts")
    page.until_text(HOSTILE, "#main")
    words = {"owner": HOSTILE, "ticket": "javascript:alert(1)", "due": HOSTILE, "since": HOSTILE}
    asked = task(
        name, "<s>draft", f"<s>{HOSTILE}", HOSTILE, **words, reason="R", message=HOSTILE, blocks=(HOSTILE,)
    )
    shown.write(asked)
    for view in ("/tasks", "/variant/default/%3Cb%3Ebold"):
        shown.view(view)
        page.until_text(HOSTILE, ".tasks tbody th")
        found = page.run(
            "return document.querySelectorAll('.tasks s, .tasks img, .tasks a[href^=javascript]').length"
        )
        assert found == 0
        assert HOSTILE in page.text(".tasks code"), "within quotes of the shell"
    assert page.run("return document.querySelectorAll('#main b, #main i, #main u, #main img').length") == 0
    assert page.run("return ({}).polluted") is None


def test_a_text_cannot_look_like_another_or_fill_the_page(shown: Shown) -> None:
    """Marks of direction and invisible characters are seen as escapes; a long text is cut, and wraps."""
    page = shown.page
    name, hidden, seen = "default/big", "a\u202egnp\u200b\u2066", r"a\u202egnp\u200b\u2066"
    markup = "\"'><svg onload=window.ran=1>{{7*7}}javascript:window.ran=1"
    long = f"{hidden}{markup}{'x' * 900_000}"
    shown.write(
        variant(name, {"onclick": "window.ran=1", "href": "javascript:window.ran=1", hidden: hidden}),
        event(VARIANT, name, "Ready", "False", hidden, message=long),
        rollout("default/policy", hidden, 1, {"total": 1, "proven": 1}, message=long),
        task(name, "draft", hidden, long[:30_000], owner=hidden, ticket=markup, due=hidden, message=long),
    )
    page.until_text("401 variants")
    for view, words in (
        ("/", "401 variants"),
        (f"/variant/{name}", f"{seen}{markup}"),
        ("/rollouts", f"{seen}{markup}"),
        ("/tasks", f"{seen}{markup}"),
        (f"/set/default/{markup}{hidden}", seen),
        ("/variant/%E0%A4%A", ""),
        ("//evil.example/javascript:window.ran=1", ""),
    ):
        shown.view(view)
        page.until_text(words)
        text = page.text()
        assert "\u202e" not in text, view
        assert len(text) < 400_000, view
        assert page.run("return document.documentElement.scrollWidth") <= 1280, view
        assert page.run("return document.querySelectorAll('svg, img, iframe, script:not([src])').length") == 0
        links = page.run("return [...document.querySelectorAll('a')].map((e) => e.getAttribute('href'))")
        assert all(href.startswith("#") for href in links), view
        handlers = "return [...document.querySelectorAll('*')].some((e) => e.getAttributeNames().some((n) => "
        assert not page.run(f"{handlers}n.startsWith('on')))"), view
    assert page.run("return window.ran") is None
    assert page.run("return location.host") in shown.url


def test_a_page_that_lost_its_server_says_so(tmp_path: Path, page: Browser) -> None:
    """Since when; after the server's return, with what was missed; and when it is signed out."""
    (tmp_path / "token").write_text("a-token-of-the-test-0123456789")
    write(tmp_path, *markers(), variant("default/a"), ready("default/a"))
    settings = {"PVBUS_WEB_TOKEN_FILE": str(tmp_path / "token")}
    with serve(tmp_path, **settings) as server:
        url = address(server)
        settings["PVBUS_WEB_PORT"] = re.findall(r":(\d+)/", url)[0]
        page.open(url)
        page.until_text("1 variant", "#main")
        page.until_text("Live", "#connection")
        assert server.end(signal.SIGKILL) != 0
        page.until_text("Stale since", "#connection")
        assert "(stale)" in page.run("return document.title")
        assert "1 variant" in page.text("#main")  # what was known is still there
    write(tmp_path, variant("default/b"))
    with serve(tmp_path, **settings):
        page.until_text("Live", "#connection")
        page.until_text("2 variants", "#main")
        assert "(stale)" not in page.run("return document.title")
    (tmp_path / "token").write_text("another-token-of-the-test-0123")
    with serve(tmp_path, **settings):
        page.until_text("signed out: open the address with the token again", "#connection")


def test_an_empty_fleet_and_one_that_is_not_listed(tmp_path: Path, page: Browser) -> None:
    """An empty fleet says how to begin; before the lists are complete the page says what may be missing."""
    write(tmp_path, *markers("syncing"), (UNROLL, "a/b|c", None))
    with serve(tmp_path) as server:
        page.open(address(server))
        page.until_text("The fleet is empty")
        page.until_text("pvbus up --example fleet")
        page.until_text("PackageVariantSets may be missing here (syncing)", "#notice")
        write(tmp_path, *markers(), (SETS, "default/web", b'{"metadata":{"generation":1}}'))
        page.until(lambda: not page.text("#notice"), "the notice goes")
        page.until_text("default/web", "table")
