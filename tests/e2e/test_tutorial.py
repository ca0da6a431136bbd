"""The steps of docs/tutorial.md in a browser. Its steps 1 and 2 are the fixtures, and `test_browser.py` goes step 4."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import signed_in
from tests.running import Portal

pytestmark = pytest.mark.e2e
# Milliseconds, on a machine that other tests share.
LONG = 240_000


def go(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_role("link", name=name, exact=True).first.click()


def tab(page: Page, name: str) -> None:
    page.locator("nav.tabs").get_by_role("link", name=name).click()


def test_the_first_hour_goes_as_the_tutorial_says(browser: Browser, portal_up: Portal) -> None:
    with signed_in(browser, portal_up, "alice") as page:
        head = page.locator("#head")
        # 3. Train a model with one click.
        go(page, "New cluster")
        page.get_by_text("Start from a template or an example").click()
        page.get_by_role("button", name="Run Hello GPU").click()
        page.wait_for_url("**/clusters/ops-demo/hello-gpu*")
        hello = page.url
        name = hello.rpartition("/")[2]
        expect(head).to_contain_text("Succeeded", timeout=LONG)
        tab(page, "Logs")
        expect(page.locator("#log")).to_contain_text(re.compile(r"loss = "))
        tab(page, "Metrics")
        expect(page.locator(".chart", has_text="loss").first).to_be_visible()

        # 4. Its last step.
        first = int(re.findall(r"Run (\d+)", head.inner_text())[0])
        page.get_by_label(f"Actions for {name}").click()
        go(page, "Re-Deploy with changes…")
        page.get_by_label("Command", exact=True).fill("echo loss = 1")
        page.get_by_role("button", name="Re-Deploy").click()
        expect(head).to_contain_text(f"Run {first + 1} · succeeded", timeout=LONG)
        tab(page, "Runs")
        for number in (first, first + 1):
            page.get_by_label(f"Select {name}/{number}").check()
        page.get_by_role("button", name="Compare", exact=True).click()
        expect(page.get_by_role("heading", name="Compare runs")).to_be_visible()

        # 5. Open a notebook.
        go(page, "Clusters", "New cluster")
        page.get_by_text("Start from a template or an example").click()
        page.get_by_role("listitem").filter(has_text="Notebook").get_by_role("link", name="Set up").click()
        # The page says "lab", which other tests of this portal use.
        page.get_by_label("Name", exact=True).fill("tutorial")
        next_step = page.get_by_role("button", name="Next")
        next_step.click()
        expect(page.get_by_label("Flavor")).to_be_visible()
        next_step.click()
        page.get_by_role("button", name="Deploy").click()
        expect(head).to_contain_text("Running", timeout=LONG)
        lab = page.url
        with page.context.expect_page() as opened:
            page.get_by_role("link", name="Open ▸").first.click()
        opened.value.wait_for_url(re.compile(r"//notebook-tutorial-ops-demo\.apps\.localhost"), timeout=LONG)
        opened.value.close()

        # 6. Read the bill.
        go(page, "Costs", "Spending", "Invoices", "Budgets")
        page.goto(hello)
        tab(page, "Usage")
        expect(page.locator("tbody").first.locator("tr")).to_have_count(1)

        # 7. Give it back.
        page.goto(lab)
        page.get_by_role("button", name="Stop").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        expect(head).to_contain_text("Stopped", timeout=LONG)
        page.get_by_label("Actions for tutorial").click()
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("heading", name="Applications", exact=True)).to_be_visible()
        go(page, "Datastores", "tutorial-home")
        page.get_by_label("More actions").click()
        go(page, "Delete…")
        page.get_by_label("Type “tutorial-home” to delete it").fill("tutorial-home")
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("heading", name="Datastores")).to_be_visible()
        expect(page.get_by_role("link", name="tutorial-home")).to_have_count(0)
