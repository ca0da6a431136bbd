"""Webhooks in a real browser: from the form to an accepted delivery, on a desktop and a phone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from portal.models import Delivery, Webhook
from portal.webhooks import posting, sending
from tests.browser import SOON, assert_fits, chromium, give_session
from tests.portal.receiver import receiving, say

pytestmark = pytest.mark.django_db(transaction=True)
OPS = "/appcodes/ops-demo/webhooks"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def sign_in(
    browser: Browser, live_server: Any, people: Any, settings: Any, monkeypatch: Any
) -> Iterator[Callable[..., Page]]:
    """sign_in("alice", path, width=390, color_scheme="dark") → a page. Console errors fail the test."""
    settings.WEBHOOK_HTTP = True
    monkeypatch.setattr(posting, "ANSWER", 60.0)
    complaints: list[str] = []
    contexts = []

    def opened(user: str, path: str, *, width: int = 1440, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, base_url=live_server.url, **options)
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
    # htmx reports a live request that navigation aborts.
    assert [said for said in complaints if not said.startswith(("htmx:afterRequest", "htmx:sendAbort"))] == []


def look(page: Page, name: str) -> None:
    """Saves a screenshot if PORTAL_SCREENSHOTS names a folder."""
    if folder := os.environ.get("PORTAL_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_from_the_form_to_a_delivery_and_again(sign_in: Callable[..., Page]) -> None:
    with receiving() as receiver:
        page = sign_in("alice", "/appcodes/ops-demo")
        page.click("text=Webhooks")
        page.click("text=New webhook >> nth=0")
        page.fill("#id_name", "Team chat")
        page.fill("#id_url", receiver.url)
        page.get_by_label("invoice.*").check()
        page.fill("#id_kinds", "budget.blocked")
        look(page, "form")
        page.click("text=Create webhook")
        expect(page.locator("#id_name")).to_be_focused()
        expect(page.locator("#id_name_error")).to_contain_text("lower-case")
        look(page, "form-error")
        page.fill("#id_name", "team-chat")
        page.click("text=Create webhook")
        secret = page.locator(".secret code").inner_text()
        assert secret == Webhook.objects.get().secret
        look(page, "secret")
        with page.expect_navigation():
            page.click("text=Done")
        assert secret not in page.content()
        page.click("text=Send a test")
        expect(page.locator("h1")).to_contain_text("webhook.test")
        look(page, "delivery-waiting")
        receiver.answer = lambda handler, n: (
            say(handler, 503, b"come back later") if n == 1 else say(handler, 200, b"thanks")
        )
        assert sending.send_due() == 1
        page.reload()
        expect(page.locator(".notice-error")).to_have_text("It answered 503 Service Unavailable.")
        look(page, "delivery-failed")
        with page.expect_navigation():
            page.click("text=Deliver again")
        assert sending.send_due() == 1
        page.reload()
        expect(page.locator("h1")).to_contain_text("Delivered")
        expect(page.locator("pre >> nth=0")).to_have_text("thanks")
        expect(page.locator("#headers")).to_contain_text("webhook-signature: v1,")
        look(page, "delivery")
        assert len(receiver.got) == 2
        page.click("nav[aria-label] >> text=team-chat")
        page.fill("#rows >> xpath=.. >> input[name=search]", "nothing like it")
        expect(page.locator("#rows")).to_contain_text("Nothing found")
        page.goto(f"{OPS}/team-chat?state=delivered")
        expect(page.locator("#rows tbody tr")).to_have_count(1)
        look(page, "webhook")
        page.click("summary[aria-label='More actions']")
        page.click("text=New secret…")
        page.click("#confirm button[value=yes]")
        expect(page.locator("h1")).to_contain_text("A new secret")
        assert page.locator(".secret code").inner_text() != secret


def test_no_page_is_wider_than_the_screen(sign_in: Callable[..., Page], people: Any) -> None:
    from portal import events
    from portal.webhooks import actions
    from portal.webhooks.specs import WebhookManifest

    spec = {
        "url": "https://hooks.a-rather-long-name.example.com/services/T00000000/B00000000/" + "X" * 60,
        "events": ["*"],
    }
    read = WebhookManifest.model_validate({"metadata": {"name": "team-chat"}, "spec": spec})
    actions.create_webhook(read, appcode=people.ops, acting_user=people.alice)
    actions.create_webhook(read, appcode=None, acting_user=people.root)
    from django.db import transaction

    with transaction.atomic():
        events.record(
            "run.failed", actor=None, appcode="ops-demo", object="cluster ops-demo/show1", message="x" * 400, run=3
        )
    row = Delivery.objects.filter(webhook__appcode=people.ops).latest("pk")
    Delivery.objects.update(
        sent_at=row.created_at, attempts=3, status=500, error="It answered 500 Internal Server Error.", answer="y" * 1000,
        duration_ms=1234, headers={"webhook-signature": "v1," + "z" * 88},
    )  # fmt: skip
    page = sign_in("root", OPS)
    for path in (OPS, f"{OPS}/new", f"{OPS}/team-chat", f"{OPS}/team-chat/change", f"{OPS}/team-chat/deliveries/{row.uid}",
                 "/admin/webhooks", "/admin/webhooks/new", "/admin/webhooks/team-chat"):  # fmt: skip
        page.goto(path)
        assert_fits(page, path.replace(str(row.uid), "one").strip("/").replace("/", "-"))
