"""A newcomer's first hour, by keyboard only: from sign-in, in an appcode without data, to a chart from their own code.

The test neither clicks nor types a URL. It reaches every control with Tab, as a user who does not know the page would, and checks
that the focus is visible.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import assert_fits
from tests.gitserver import git_server
from tests.running import Client, Portal, eventually

pytestmark = pytest.mark.e2e
TRAIN = """
import math
for step in range(1, 41):
    print(f"step {step}: loss = {math.exp(-step / 12):.4f}", flush=True)
"""
# More than the tab stops of any page here.
MOST_STOPS = 120
# Describes the focused element: its accessible name, whether it is in the viewport, and what marks the focus.
FOCUSED = """() => {
  const e = document.activeElement;
  const words = e.labels && e.labels.length ? e.labels[0].textContent : e.ariaLabel || e.textContent;
  const box = e.getBoundingClientRect(), look = getComputedStyle(e);
  return {
    name: words.trim().replace(/\\s+/g, " "), tag: e.tagName.toLowerCase(),
    there: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth && box.width > 0,
    shown: (look.outlineStyle !== "none" && parseFloat(look.outlineWidth) > 0) || look.boxShadow !== "none",
  };
}"""


def tab_to(page: Page, name: str, tag: str = "") -> None:
    """Presses Tab until the focused element has this name."""
    stops = []
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        # Smooth scrolling takes a moment to bring it into the viewport.
        eventually(lambda: page.evaluate(FOCUSED)["there"], 2)
        stop = page.evaluate(FOCUSED)
        if stop["tag"] == "body":
            continue
        assert stop["there"], f"{page.url}: {stop} has the focus outside of the window"
        assert stop["shown"], f"{page.url}: {stop} does not show that it has the focus"
        stops.append(stop["name"])
        if re.fullmatch(name, stop["name"]) and stop["tag"] == (tag or stop["tag"]):
            return
    pytest.fail(f"{page.url}: Tab does not come to {name!r}, only to {stops}")


def press(page: Page, name: str, tag: str = "") -> None:
    tab_to(page, name, tag)
    page.keyboard.press("Enter")


def write(page: Page, name: str, text: str) -> None:
    tab_to(page, name)
    page.keyboard.type(text)


def test_from_sign_in_to_a_chart_of_ones_own_code_by_keyboard(
    browser: Browser, portal_up: Portal, tmp_path: Path
) -> None:
    """At the width of a phone, where less of a page is in the window. `test_browser.py` goes by keyboard at a desktop."""
    name, mallory = "first", Client(portal_up, "mallory")
    assert eventually(lambda: any(each["nodes"] for each in mallory.call("GET", "/queue")["items"]), 120)
    context = browser.new_context(
        base_url=portal_up.origin, viewport={"width": 390, "height": 844}, color_scheme="dark"
    )
    page = context.new_page()
    with git_server(tmp_path) as server:
        repository = server.repository()
        commit = repository.commit({"train.py": TRAIN})

        page.goto("/")
        assert_fits(page, "walk-1-sign-in")
        expect(page.get_by_label("User name or e-mail")).to_be_focused()
        page.keyboard.type("mallory")
        write(page, "Password.*", portal_up.credentials["users"]["mallory"]["password"])
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Home", exact=True)).to_be_visible()
        assert_fits(page, "walk-2-clusters")

        press(page, "New cluster", "a")
        expect(page.get_by_role("heading", name="New cluster", exact=True)).to_be_visible()
        assert_fits(page, "walk-3-new")
        write(page, "Name", name)
        write(page, "Command", "python train.py")
        page.locator("summary", has_text="Git repository").click()
        write(page, "Git repository.*", repository.url)
        expect(page.locator("#preview")).to_contain_text("Starts now")
        assert_fits(page, "walk-4-filled")
        press(page, "Create cluster", "button")
        page.wait_for_url(f"**/clusters/flight-demo/{name}")
        assert_fits(page, "walk-5-cluster")
        expect(page.locator("#head")).to_contain_text("Succeeded", timeout=120_000)

        press(page, "Metrics", "a")
        chart = page.locator(".chart", has_text="loss").first.locator("svg path").first
        expect(chart).to_have_attribute("d", re.compile("^M.*L"))
        assert_fits(page, "walk-6-metrics")
    status = mallory.call("GET", f"/appcodes/flight-demo/clusters/{name}")["status"]
    assert status["code"]["commit"] == commit
    context.close()
