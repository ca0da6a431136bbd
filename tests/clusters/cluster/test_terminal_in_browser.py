"""A terminal page in Chromium, through the gateway: from the task's row to a shell, and how it ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import assert_fits, chromium, signed_in
from tests.running import Client, eventually


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def cluster(portal_up: Any) -> str:
    bob = Client(portal_up, "bob")
    path = bob.create(
        "ops-demo", "shell", image="tensorflow-2-21", command="exec sleep 3600", roles={"master": {"flavor": "small"}}
    )
    assert eventually(lambda: bob.call("GET", f"{path}/runs/1/tasks")["items"][0:1] and _phase(bob, path) == "Running")
    return path


def _phase(bob: Client, path: str) -> str:
    return str(bob.call("GET", f"{path}/runs/1/tasks")["items"][0]["phase"])


def shows(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.locator(".xterm-rows")).to_contain_text(text)


def enter(page: Page, line: str) -> None:
    page.keyboard.type(line)
    page.keyboard.press("Enter")


def test_from_the_row_of_a_task_to_a_shell_and_a_new_one_when_it_is_lost(
    browser: Browser, portal_up: Any, cluster: str
) -> None:
    with signed_in(browser, portal_up, "bob") as front:
        front.goto("/clusters/ops-demo/shell")
        with front.context.expect_page() as opened:
            front.get_by_role("link", name="Terminal").click()
        page = opened.value
        complaints: list[str] = []
        page.on("console", lambda said: complaints.append(said.text) if "Security" in said.text else None)
        page.wait_for_url("**/terminal")  # a new tab first shows an empty page
        page.reload()
        state = page.locator("#terminal-state > :not([hidden])")
        expect(state).to_have_text("connected")
        expect(page.get_by_label("Terminal", exact=True)).to_be_focused()
        enter(page, "echo $((6*7)) $PORTAL_ROLE")
        shows(page, "42 master")
        assert_fits(page, "terminal")

        page.set_viewport_size({"width": 1000, "height": 600})
        enter(page, "clear; old=$(stty size); echo re''ady")
        shows(page, "ready")
        page.set_viewport_size({"width": 1400, "height": 900})
        enter(page, 'until [ "$(stty size)" != "$old" ]; do sleep 0.1; done; echo res""ized')
        shows(page, "resized")

        # Colours work only if the style rules of xterm.js are loaded.
        enter(page, "printf '\\033[31mred\\033[0m\\n'")
        red = page.locator(".xterm-rows span", has_text=re.compile("^red$")).last
        plain = page.locator(".xterm-rows").evaluate("rows => getComputedStyle(rows).color")
        expect(red).not_to_have_css("color", plain)
        size = page.locator(".xterm-rows").evaluate("rows => getComputedStyle(rows).fontSize")
        assert size == "13px"

        [web] = [pid for pid, line in portal_up.programs().items() if "gunicorn" in line]
        # The master process starts new workers at once.
        for worker in psutil.Process(web).children():
            worker.kill()
        shows(page, "Connection lost")
        shows(page, "This is a new shell")
        expect(state).to_have_text("connected")
        enter(page, "echo ag''ain")
        shows(page, "again")
        assert_fits(page, "terminal-lost")
        enter(page, "exit 5")
        shows(page, "The shell ended with code 5")
        expect(state).to_have_text("ended")
        page.get_by_role("button", name="New shell").click()
        expect(state).to_have_text("connected")
        enter(page, "echo th''ird")
        shows(page, "third")

        # When the task ends, so does the terminal.
        bob = Client(portal_up, "bob")
        bob.call("POST", f"{cluster}/disable")
        expect(state).to_have_text("ended")
        assert eventually(lambda: _phase(bob, cluster) != "Running")
        page.get_by_role("button", name="New shell").click()
        shows(page, "master-0 of run 1 does not run")
        front.reload()
        expect(front.get_by_role("link", name="Terminal")).to_have_count(0)
        expect(front.get_by_title("master-0 does not run.")).to_be_visible()
        assert complaints == []
