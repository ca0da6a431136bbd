"""Accessibility: axe-core judges the page of every template in Chromium, half on a desktop in light and half on a phone in dark.

There is no web server: what Chromium asks for is answered by Django's test client, with the objects of world.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context, copy_context
from functools import cache
from importlib.resources import files as packaged
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.staticfiles import finders
from django.test import Client
from playwright.sync_api import Browser, Page, Route

from tests.access.people import browser as client_of
from tests.access.table import filled
from tests.access.test_pages import ROWS
from tests.browser import chromium

pytestmark = [pytest.mark.django_db, pytest.mark.xdist_group("access-axe")]
# The host of Django's test client.
ORIGIN = "http://testserver"
AXE = (packaged("axe_playwright_python") / "axe.min.js").read_text()
# Of every node that breaks a rule: the rule, the node, and what would mend it. The two rules are off in axe by default.
# The frame, which is the same everywhere, is judged once for each look. Contrast costs more than all else and depends on few
# colours (portal/test_theme.py), so half of the pages are enough.
JUDGED = """([whole, contrast]) => axe.run(whole ? document : {exclude: ['.top', '.side']}, {
    resultTypes: ['violations'], rules: {
        'target-size': {enabled: true}, 'label-content-name-mismatch': {enabled: true}, 'color-contrast': {enabled: contrast}},
}).then(found => found.violations.flatMap(broken => broken.nodes.map(node =>
    `${broken.id}: ${node.html.slice(0, 300)}\\n    ${node.failureSummary.replace(/\\s+/g, ' ').slice(0, 300)}`)))"""
# What is replaced every few seconds is said anew each time if it is a live region; `data-announce` says what is new in it.
CHATTER = """() => [...document.querySelectorAll(
    '[data-live] :is([role=status], [role=alert], [aria-live]:not([aria-live=off]))')]
    .map(node => `a live region in a polled part: ${node.outerHTML.slice(0, 300)}`)"""
# A rule for something else that has the same class may stretch a part of a chart.
STRETCHED = """() => [...document.querySelectorAll('.plot svg rect')].filter(rect =>
    rect.getBoundingClientRect().right > rect.ownerSVGElement.getBoundingClientRect().right + 2
).map(rect => `it is wider than its chart: ${rect.outerHTML.slice(0, 200)}`)"""
# A phone, and a desktop that enlarges twice: looked at from the desktop.
NARROW = (390, 720)
# Low ones, because what is painted costs and what is judged is all of a page.
LOOKS = ((1440, "light"), (390, "dark"))
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


# Autouse, so that it starts before the world is made: while Playwright's event loop runs, Django has another connection.
@pytest.fixture(scope="module", autouse=True)
def chrome() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@cache
def static(path: str) -> tuple[bytes, str]:
    found = finders.find(path)
    assert isinstance(found, str), path
    return Path(found).read_bytes(), TYPES.get(found.rpartition(".")[2], "application/octet-stream")


class Portal:
    """The portal as a browser sees it, for one person. Nothing in the world changes, so each address is asked once."""

    def __init__(self, client: Client) -> None:
        self.client = client
        # Playwright calls `answer` in a context of its own, where Django would open a second connection, without the world.
        self.here: Context = copy_context()
        self.answers: dict[tuple[str, bool], Any] = {}

    def get(self, path: str, headers: dict[str, str]) -> Any:
        key = (path, bool(headers))
        if key not in self.answers:
            self.answers[key] = self.client.get(path, headers=headers)
        return self.answers[key]

    def template(self, path: str) -> str:
        """The template of a whole page; "" for a part of one, or a file."""
        answer = self.get(path, {})
        if not answer.get("Content-Type", "").startswith("text/html") or b"<html" not in answer.getvalue():
            return ""
        return answer.templates[0].name or path

    def answer(self, route: Route) -> None:
        asked = urlsplit(route.request.url)
        if asked.path.startswith("/static/"):
            body, kind = static(asked.path.removeprefix("/static/"))
            route.fulfill(body=body, content_type=kind)
            return
        path = asked.path + (f"?{asked.query}" if asked.query else "")
        headers = {name: value for name, value in route.request.headers.items() if name.startswith("hx-")}
        found = self.here.run(self.get, path, headers)
        route.fulfill(status=found.status_code, headers=dict(found.items()), body=found.getvalue())


def opened(chrome: Browser, portal: Portal, width: int, scheme: Any) -> Page:
    context = chrome.new_context(
        base_url=ORIGIN, viewport={"width": width, "height": 400}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.route("**/*", portal.answer)
    context.add_init_script(AXE)
    return context.new_page()


def too_wide(page: Page) -> list[str]:
    usual, found = page.viewport_size, []
    assert usual
    for width in {usual["width"], *(NARROW if usual["width"] > max(NARROW) else ())}:
        page.set_viewport_size({"width": width, "height": usual["height"]})
        if (over := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
            found.append(f"it is wider than {width} by {over}")
    page.set_viewport_size(usual)
    return found


@pytest.mark.parametrize("person", ["alice", "root"])
def test_axe_finds_nothing(world: Any, chrome: Browser, person: str) -> None:
    portal = Portal(client_of(world, person))
    pages = [opened(chrome, portal, *look) for look in LOOKS]
    findings: dict[str, str] = {}
    seen: set[str] = set()
    for row in ROWS:
        # Home has the frame of everybody; of the rest, the administrator looks at what an owner cannot open.
        if row.method != "GET" or row.of(person) != 200 or (person == "root" and row.of("alice") == 200 and seen):
            continue
        path = filled(row.address, world.values) + (f"?{filled(row.sent, world.values)}" if row.sent else "")
        template = portal.template(path)
        if template and template not in seen:
            page = pages[len(seen) % len(pages)]
            page.goto(path)
            page.wait_for_selector(".htmx-request", state="detached")
            whole, contrast = len(seen) < len(pages), len(seen) % 4 < len(pages)
            judged = page.evaluate(JUDGED, [whole, contrast])
            for finding in [*judged, *page.evaluate(CHATTER), *page.evaluate(STRETCHED), *too_wide(page)]:
                findings.setdefault(finding, page.url)
            seen.add(template)
    for page in pages:
        page.context.close()
    assert len(seen) > 20, "It has judged hardly a page."
    assert not findings, "\n".join(f"{url} {finding}" for finding, url in findings.items())
