"""The frame in a real browser: live parts and what survives their updates, keyboard, themes, phones, pages without JavaScript."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect

from portal import events
from portal.models import Appcode, Event
from tests.browser import SOON, assert_fits, chromium, give_session
from tests.portal.live_page import State

pytestmark = pytest.mark.django_db(transaction=True)
PORTAL_PAGES = (
    "/appcodes",
    "/appcodes/new",
    "/appcodes/ops-demo",
    "/appcodes/ops-demo/change",
    "/appcodes/ops-demo/request",
    "/appcodes/ops-demo/webhooks",
    "/appcodes/ops-demo/webhooks/new",
    "/profile",
    "/search?q=demo",
    "/admin/appcodes",
    "/admin/orgs",
    "/admin/orgs/new",
    "/admin/people",
    "/admin/people/new",
    "/admin/people/alice",
    "/admin/webhooks",
    "/admin/webhooks/new",
    "/admin/audit",
    "/accounts/password/change/",
    "/accounts/logout/",
)

# What the browser and htmx report of refusals that a test provokes.
REFUSALS = ("Failed to load resource", "Response Status Error Code", "htmx:")

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser, live_server: Any, people: Any) -> Iterator[Open]:
    """open_page("/appcodes", user="alice", width=390, …) → a page. Console errors fail the test."""
    complaints: list[str] = []
    contexts = []

    def opened(path: str, *, user: str = "alice", width: int = 1280, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800}, base_url=live_server.url, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SOON)
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        give_session(context, live_server.url, user)
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [said for said in complaints if not said.startswith(REFUSALS)] == []


@pytest.fixture
def live(open_page: Open, settings: Any) -> Page:
    settings.ROOT_URLCONF = "tests.portal.live_page"
    State.text, State.posted = "first", 0
    return open_page("/live")


def test_a_live_part_follows_and_is_not_sent_again_while_unchanged(live: Page) -> None:
    answers: list[int] = []
    live.on("response", lambda answer: answers.append(answer.status) if "/live/rows" in answer.url else None)
    expect(live.locator("#text")).to_have_text("first")
    expect(live.locator("#announced"), "a screen reader reads the page anyway").to_have_text("")
    State.text = "second"
    expect(live.locator("#text")).to_have_text("second")
    expect(live.locator("#announced"), "a change nobody else would tell it").to_have_text("second")
    with live.expect_response(lambda answer: "/live/rows" in answer.url and answer.status == 304):
        pass
    expect(live.locator("#text")).to_have_text("second")


def test_an_open_menu_a_selection_and_typing_hold_the_live_part_still(live: Page) -> None:
    live.click("#rows summary")
    State.text = "while the menu is open"
    with live.expect_response(lambda answer: "/live/rows" in answer.url and answer.status == 200):
        pass
    expect(live.locator("#rows details")).to_have_attribute("open", "")
    expect(live.locator("#text")).to_have_text("first")
    live.keyboard.press("Escape")
    expect(live.locator("#text")).to_have_text("while the menu is open")
    live.fill("#rows [name=note]", "half a sen")
    State.text = "while somebody types"
    with live.expect_response(lambda answer: "/live/rows" in answer.url and answer.status == 200):
        pass
    assert live.input_value("#rows [name=note]") == "half a sen"


def test_focus_ticks_and_scroll_survive_a_live_update(live: Page) -> None:
    live.check("#rows [name=pick]")
    live.evaluate("document.querySelector('#wide').scrollLeft = 300")
    live.focus("#rows a[href='#here']")
    State.text = "moved on"
    expect(live.locator("#text")).to_have_text("moved on")
    expect(live.locator("#rows [name=pick]")).to_be_checked()
    assert live.evaluate("document.querySelector('#wide').scrollLeft") == 300
    assert live.evaluate("document.activeElement.getAttribute('href')") == "#here"


def test_a_hidden_tab_asks_nothing(live: Page) -> None:
    hide = """hidden => {
        Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    asked: list[str] = []
    live.on("request", lambda request: asked.append(request.url) if "/live/rows" in request.url else None)
    live.evaluate(hide, True)
    asked.clear()
    # Five times the polling interval.
    live.wait_for_timeout(1000)
    assert asked == []
    State.text = "seen at once"
    live.evaluate(hide, False)
    expect(live.locator("#text")).to_have_text("seen at once")


def test_a_portal_that_is_away_is_told_and_forgotten_when_it_is_back(live: Page) -> None:
    live.route("**/live/rows", lambda route: route.abort())
    expect(live.locator("#offline")).to_contain_text("does not answer")
    expect(live.locator("#text")).to_have_text("first")
    live.unroute("**/live/rows")
    expect(live.locator("#offline")).to_have_count(0)


def test_a_part_that_fails_is_told_while_others_answer_and_forgotten_with_its_next_answer(live: Page) -> None:
    live.evaluate("""() => {
        const part = document.createElement('p');
        part.id = 'other';
        part.dataset.live = '';
        part.setAttribute('hx-get', '/live/other');
        part.setAttribute('hx-trigger', 'every 100ms');
        document.querySelector('#rows').after(part);
        window.htmx.process(part);
    }""")
    live.route("**/live/other", lambda route: route.fulfill(status=500))
    line = live.locator("#offline")
    expect(line).to_have_text("Not updating: the portal has an error (500). Trying again…×")
    State.text = "moved on"
    expect(live.locator("#text")).to_have_text("moved on")
    expect(line).to_have_count(1)
    line.get_by_role("button").click()
    with live.expect_response("**/live/other"):
        pass
    expect(line).to_have_count(0)
    live.unroute("**/live/other")
    live.route("**/live/other", lambda route: route.fulfill(body="well"))
    expect(live.locator("#other")).to_have_text("well")
    live.unroute("**/live/other")
    live.route("**/live/other", lambda route: route.abort())
    expect(line).to_contain_text("Not updating: the portal does not answer.")
    # What is no longer on the page is not missed.
    live.evaluate("document.querySelector('#other').remove()")
    expect(line).to_have_count(0)


def test_data_goes_only_after_its_name_has_been_typed(live: Page) -> None:
    live.click("#danger")
    yes = live.locator("#confirm button[value=yes]")
    expect(live.locator("#confirm")).to_contain_text("All of it.")
    expect(yes).to_be_disabled()
    live.keyboard.press("Escape")
    live.click("#danger")
    expect(live.locator("#confirm-typed input")).to_be_focused()
    live.keyboard.type("show1")
    expect(yes).to_be_enabled()
    with live.expect_navigation():
        yes.click()
    assert State.posted == 1


def test_the_keyboard_reaches_search_menus_and_answers(open_page: Open) -> None:
    page = open_page("/appcodes")
    page.keyboard.press("/")
    words = page.locator("#palette input")
    expect(words).to_be_focused()
    expect(page.locator("#palette [aria-selected=true]")).to_have_text("New cluster")
    page.keyboard.type("que")
    page.keyboard.press("Escape")
    expect(words).to_be_hidden()
    page.keyboard.press("Control+k")
    # Enter at once: it waits for the results of what was typed last.
    page.keyboard.type("ops-dem")
    page.keyboard.press("Enter")
    page.wait_for_url("**/appcodes/ops-demo")
    page.keyboard.press("Control+k")
    page.keyboard.type("theme")
    expect(page.locator("#palette [role=option]")).to_have_count(4)
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    expect(words).to_have_attribute("aria-activedescendant", "option-1")
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-scheme", "dark")
    expect(words).to_be_hidden()
    page.focus("summary[aria-label='Actions for bob']")
    page.keyboard.press("ArrowDown")
    expect(page.locator("details[open] button").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("summary[aria-label='Actions for bob']")).to_be_focused()


def test_what_was_typed_comes_back_after_the_session_ran_out(open_page: Open) -> None:
    page = open_page("/appcodes/new")
    page.fill("#id_code", "kept-code")
    page.fill("#id_emails", "a@example.com\nb@example.com")
    page.select_option("#id_org_node", "qunarcorp.ops")
    page.context.clear_cookies(name="sessionid")
    page.click("text=Send request")
    page.fill("#id_login", "alice")
    page.fill("#id_password", "alice-password")
    page.click("#login-form button")
    expect(page.locator("#id_code")).to_have_value("kept-code")
    expect(page.locator("#id_emails")).to_have_value("a@example.com\nb@example.com")
    expect(page.locator("#id_org_node")).to_have_value("qunarcorp.ops")
    page.click("text=Send request")
    page.wait_for_url("**/appcodes/kept-code")
    page.goto("/appcodes/new")
    assert page.input_value("#id_code") == "", "what has been sent is not kept"


def test_the_first_wrong_field_has_the_focus(open_page: Open) -> None:
    page = open_page("/appcodes/new")
    page.select_option("#id_org_node", "qunarcorp.ops")
    page.fill("#id_code", "Not good")
    page.click("text=Send request")
    expect(page.locator("#id_code")).to_be_focused()
    expect(page.locator("#id_code")).to_have_value("Not good")
    expect(page.locator("#id_code_error")).to_contain_text("lower-case")


def test_searching_as_one_types_is_followed_by_the_address(open_page: Open) -> None:
    page = open_page("/appcodes", user="root")
    page.fill(".filter-search input", "flight")
    page.wait_for_url("**/appcodes?search=flight")
    expect(page.locator("#rows tbody tr")).to_have_count(1)
    expect(page.locator("#chips a").first).to_have_attribute("href", "?search=flight&state=requested")
    page.go_back()
    expect(page.locator("#rows tbody tr")).to_have_count(2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_auto_follows_the_system_and_a_choice_is_kept(open_page: Open, scheme: Any) -> None:
    page = open_page("/profile", color_scheme=scheme)
    root, other = page.locator("html"), "light" if scheme == "dark" else "dark"
    expect(root).to_have_attribute("data-scheme", scheme)
    page.click(".themes summary")
    page.click(f".themes [data-theme-choice={other}]")
    expect(root).to_have_attribute("data-scheme", other)
    page.reload()
    expect(root).to_have_attribute("data-scheme", other)
    # The browser's own controls, such as the track of a slider, have the same theme.
    expect(root).to_have_css("color-scheme", other)


def test_the_navigation_of_a_phone_opens_and_closes(open_page: Open) -> None:
    page = open_page("/appcodes", width=390)
    side = page.locator("#navigation")
    expect(side).to_be_hidden()
    page.click(".top-nav")
    expect(side).to_be_visible()
    page.keyboard.press("Escape")
    expect(side).to_be_hidden()
    # All that a large pool writes into the bar has room beside the rest.
    page.wait_for_selector(".htmx-request", state="detached")
    page.evaluate("document.querySelector('.gpus').innerHTML = '<span><strong>1,285</strong> of 2,048</span>'")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_no_page_is_wider_than_the_screen(open_page: Open, people: Any) -> None:
    page = open_page("/appcodes", user="root")
    for path in PORTAL_PAGES:
        page.goto(path)
        assert_fits(page)


def test_everything_works_without_javascript(open_page: Open, people: Any) -> None:
    page = open_page("/appcodes/ops-demo", java_script_enabled=False)
    page.click("summary[aria-label='Actions for bob']")
    page.click("details[open] >> text=Make viewer")
    expect(page.locator("#toasts")).to_contain_text("bob is viewer now.")
    page.click(".person summary")
    with page.expect_navigation():
        page.click("text=Sign out")
    page.goto("/appcodes")
    assert "/accounts/login/" in page.url


def test_a_request_goes_its_way_in_a_browser(open_page: Open, people: Any) -> None:
    owner = open_page("/appcodes/ops-demo/request")
    owner.fill("#id_gpus", "16")
    owner.fill("#id_storage", "4096")
    owner.fill("#id_budget", "750")
    owner.fill("#id_expires", "2001-01-01")
    owner.fill("#id_reason", "Two models for the autumn sale train at the same time.")
    owner.click("text=Send request")
    expect(owner.locator(".field-wrong #id_expires")).to_be_focused()
    assert_fits(owner, "request-wrong")
    owner.fill("#id_expires", (timezone.now() + dt.timedelta(days=200)).date().isoformat())
    owner.click("text=Send request")
    expect(owner.locator("#toasts")).to_contain_text("Your request is sent")
    assert_fits(owner, "request-waiting")
    root = open_page("/admin/appcodes", user="root")
    expect(root.locator(".side .count")).to_have_text("1")
    root.click("text=Request changes")
    expect(root.locator(".field-wrong textarea")).to_be_focused()
    assert_fits(root, "decision-wrong")
    root.fill("textarea", "12 GPUs are enough for two of them.")
    root.click("text=Request changes")
    expect(root.locator(".empty")).to_contain_text("Nothing waits for you")
    owner.reload()
    expect(owner.locator("h2 .state")).to_have_text("Changes requested")
    assert_fits(owner, "request-changes")
    owner.click("text=Change and send again")
    owner.fill("#id_gpus", "12")
    assert_fits(owner, "request-again")
    owner.click("text=Send again")
    root.goto("/appcodes/ops-demo")
    assert_fits(root, "decision")
    root.click("button:text-is('Approve')")
    expect(root.locator("#toasts")).to_contain_text("ops-demo is approved")
    assert_fits(root, "decided")
    owner.reload()
    expect(owner.locator(".facts").first).to_contain_text("12 at one time")


def test_an_appcode_that_expires_says_so_everywhere(open_page: Open, people: Any) -> None:
    Appcode.objects.filter(pk=people.ops.pk).update(expires_on=timezone.now().date() + dt.timedelta(days=3))
    page = open_page("/appcodes/ops-demo")
    expect(page.locator(".notice-warn")).to_contain_text("ops-demo expires in 3 days")
    assert_fits(page, "expiring")
    Appcode.objects.filter(pk=people.ops.pk).update(expires_on=timezone.now().date() - dt.timedelta(days=1))
    page.goto("/")
    expect(page.locator("#expiry-notices")).to_contain_text("ops-demo has expired")
    assert_fits(page, "expired-clusters")
    page.click("text=Request renewal")
    later = (timezone.now() + dt.timedelta(days=365)).date().isoformat()
    expect(page.locator("#id_expires")).to_have_value(later)
    page.goto("/appcodes")
    assert_fits(page, "appcodes")
    page.goto("/appcodes/new")
    assert_fits(page, "new-appcode")
    page.select_option("#id_org_node", "qunarcorp.ops")
    page.fill("#id_code", "npe_ix_test_gpu")
    page.fill("#id_budget", "500")
    page.click("text=Send request")
    expect(page.locator("h1 .state")).to_have_text("Requested")
    assert_fits(page, "new-requested")
    root = open_page("/admin/appcodes", user="root")
    expect(root.locator("table").first).to_contain_text("500.00")
    expect(root.locator("table").last).to_contain_text("ops-demo")
    assert_fits(root, "requests-ending")


def test_times_are_those_of_the_reader_with_utc_in_the_tooltip(open_page: Open, people: Any) -> None:
    with transaction.atomic():
        events.record("person.created", actor=people.root, object="person somebody", message="")
    at = Event.objects.latest("id").at
    page = open_page("/admin/audit", user="root", timezone_id="Asia/Shanghai")
    shown = page.locator("time[data-moment]").first
    expect(shown).to_have_text(f"{at + dt.timedelta(hours=8):%Y-%m-%d %H:%M:%S} UTC+8")
    expect(shown).to_have_attribute("title", f"{at:%Y-%m-%d %H:%M:%S} UTC")
    page.goto("/profile")
    page.fill("[name=time_zone]", "kolkata")
    page.click("form[action='/profile/zone'] button")
    page.goto("/admin/audit")
    expect(shown).to_have_text(f"{at + dt.timedelta(hours=5, minutes=30):%Y-%m-%d %H:%M:%S} UTC+5:30")
