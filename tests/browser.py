"""Chromium for tests of pages in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip
SOON = 30_000
# Playwright's default of 5 s is too short on a busy machine.
expect.set_options(timeout=SOON)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Starts the Chromium of the Linux distribution."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.fail("These tests need Chromium; `make test` installs it.")
    # Playwright's own event loop runs in this thread; the ORM is used between its steps, never inside them.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS, timeout=4 * SOON)
        yield browser
        browser.close()


def give_session(context: BrowserContext, url: str, person: str) -> None:
    """Signs a user in without the login form. `url` is the address of the live server, which uses the tests' database."""
    from django.conf import settings
    from django.test import Client

    from portal.models import User

    client = Client()
    client.force_login(User.objects.get(username=person))
    value = client.cookies[settings.SESSION_COOKIE_NAME].value
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": value, "url": url}])


CONTROLS = "[...document.querySelectorAll('input:not([type=hidden]), select, textarea')]"


def assert_fits(page: Page, shot: str = "") -> None:
    """Asserts that the page fits the width of a desktop and a phone, and that every control has a label.

    If PORTAL_SHOTS names a folder, saves a screenshot of each width there, named after `shot`.
    """
    bare = page.evaluate(CONTROLS + ".filter(e => !e.labels.length && !e.ariaLabel).map(e => e.outerHTML)")
    assert bare == [], f"{page.url}: controls without a label"
    before = page.viewport_size
    for width, scheme in ((1440, "light"), (390, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert over <= 0, f"{page.url} is wider than {width} by {over}"
        if shot and (folder := os.environ.get("PORTAL_SHOTS")):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=f"{folder}/{shot}-{width}-{scheme}.png", full_page=True, animations="disabled")
    if before:
        page.set_viewport_size(before)


@contextmanager
def signed_in(
    browser: Browser, portal: Any, person: str, *, expected: tuple[str, ...] = (), **options: Any
) -> Iterator[Page]:
    """Yields the first page of a running portal (tests/running.py) after a demonstration user has signed in by the form.

    Fails the test if the browser console shows an error or warning that starts with none of `expected`.
    """
    complaints: list[str] = []
    options = {"viewport": {"width": 1280, "height": 900}, **options}
    context = browser.new_context(base_url=portal.origin, **options)
    page = context.new_page()
    page.set_default_timeout(SOON)
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto("/")
    page.fill("#id_login", person)
    page.fill("#id_password", portal.credentials["users"][person]["password"])
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Home", exact=True).wait_for()
    yield page
    context.close()
    # Leaving a page aborts live updates that are still loading; htmx reports these as errors.
    if said := [said for said in complaints if not said.startswith(("htmx:afterRequest", "htmx:sendAbort", *expected))]:
        pytest.fail("The console complains:\n" + "\n".join(said))
