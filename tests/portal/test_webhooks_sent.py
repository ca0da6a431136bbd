"""Webhook delivery: at least once and without loss, whatever receivers and networks do. Real servers and timeouts."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.conf import settings as global_settings
from django.core import mail
from django.db import OperationalError, connection, transaction
from django.utils import timezone
from standardwebhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from portal import events, wakeups
from portal.models import Delivery, Event, Webhook
from portal.network.breaker import Breaker
from portal.network.outgoing import Closed, check_literal
from portal.up import services
from portal.webhooks import actions, posting, sending, specs
from portal.webhooks.posting import Way
from portal.webhooks.specs import WebhookManifest
from tests import ports
from tests.portal.receiver import Receiver, certificate, receiving, say

pytestmark = pytest.mark.django_db(transaction=True)
WAY = Way(global_settings.OUTGOING)


@pytest.fixture(autouse=True)
def allowed(settings: Any, monkeypatch: Any) -> None:
    settings.WEBHOOK_HTTP = True
    # On a busy machine a receiver may be slow; only some tests check silence.
    monkeypatch.setattr(posting, "ANSWER", 90.0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def hook(appcode: Any, person: Any, url: str, *kinds: str, name: str = "hook") -> tuple[Webhook, str]:
    spec = {"url": url, "events": list(kinds or ["*"])}
    manifest = WebhookManifest.model_validate({"metadata": {"name": name}, "spec": spec})
    webhook, secret = actions.create_webhook(manifest, appcode=appcode, acting_user=person)
    Delivery.objects.all().delete()
    return webhook, secret


def happen(verb: str = "run.succeeded", appcode: str = "ops-demo", **data: Any) -> Event:
    with transaction.atomic():
        return events.record(
            verb, actor=None, appcode=appcode, object=f"cluster {appcode}/show1", message="So.", **data
        )


def due_now() -> None:
    Delivery.objects.filter(state="waiting").update(next_at=timezone.now())


def only() -> Delivery:
    return Delivery.objects.get()


# What is sent


def test_a_message_is_verified_by_the_library_of_the_specification(people: Any, receiver: Receiver) -> None:
    webhook, secret = hook(people.ops, people.alice, receiver.url)
    event = happen(run=3, gpu_seconds=7200, cost="3.00")
    assert sending.send_due() == 1
    [(headers, body)] = receiver.got
    assert Verifier(secret).verify(body, headers) == {
        "type": "run.succeeded",
        "timestamp": event.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "data": {
            "id": event.pk, "actor": "portal", "appcode": "ops-demo", "object": "cluster ops-demo/show1", "message": "So.",
            "details": {"run": 3, "gpu_seconds": 7200, "cost": "3.00"},
        },
    }  # fmt: skip
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    row = only()
    assert (row.state, row.status, row.attempts, row.error) == ("delivered", 204, 1, "")
    assert row.message_id == headers["webhook-id"]
    assert row.headers["webhook-signature"] == headers["webhook-signature"]
    webhook.refresh_from_db()
    assert webhook.last_ok_at is not None
    with pytest.raises(WebhookVerificationError):
        Verifier(secret).verify(body.replace(b"So.", b"No."), headers)


def test_both_secrets_sign_for_a_day(people: Any, receiver: Receiver) -> None:
    webhook, old = hook(people.ops, people.alice, receiver.url, "run.*")
    new = actions.rotate_secret(webhook, acting_user=people.alice)
    happen()
    sending.send_due()
    Webhook.objects.update(old_secret_until=timezone.now())
    happen()
    sending.send_due()
    (first, body), (second, later) = receiver.got
    for secret in (old, new):
        Verifier(secret).verify(body, first)
    Verifier(new).verify(later, second)
    with pytest.raises(WebhookVerificationError):
        Verifier(old).verify(later, second)


def test_events_go_where_they_were_asked_for(people: Any, receiver: Receiver) -> None:
    hook(people.ops, people.alice, receiver.url, "run.*", "invoice.closed", name="some")
    hook(people.flight, people.mallory, receiver.url, "*", name="theirs")
    hook(None, people.root, receiver.url, "*", name="all")
    disabled, _ = hook(people.ops, people.alice, receiver.url, "*", name="disabled")
    Webhook.objects.filter(pk=disabled.pk).update(enabled=False)
    for verb in ("run.failed", "runner.failed", "invoice.closed", "invoice.credit-note"):
        happen(verb)
    happen("month.closed", appcode="")
    found = Counter(Delivery.objects.values_list("webhook__name", "kind"))
    assert found == Counter(
        [("some", "run.failed"), ("some", "invoice.closed")]
        + [
            ("all", verb)
            for verb in ("run.failed", "runner.failed", "invoice.closed", "invoice.credit-note", "month.closed")
        ]
    )


def test_an_event_that_is_taken_back_is_never_sent(people: Any, receiver: Receiver) -> None:
    hook(people.ops, people.alice, receiver.url)
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        events.record("run.failed", actor=None, appcode="ops-demo")
        raise ZeroDivisionError
    assert sending.send_due() == 0
    assert receiver.got == []


def test_transactions_that_commit_out_of_order_lose_nothing(people: Any, receiver: Receiver) -> None:
    """The earlier event commits after the later one was delivered."""
    hook(people.ops, people.alice, receiver.url)
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        with transaction.atomic():
            events.record("run.queued", actor=None, appcode="ops-demo")
            begun.set()
            go_on.wait(120)
        connection.close()

    thread = threading.Thread(target=slowly)
    thread.start()
    assert begun.wait(60)
    happen("run.running")
    assert sending.send_due() == 1
    go_on.set()
    thread.join()
    assert sending.send_due() == 1
    assert [json.loads(body)["type"] for _, body in receiver.got] == ["run.running", "run.queued"]


def test_a_commit_wakes_the_sender_once(people: Any, receiver: Receiver, monkeypatch: Any) -> None:
    from celery import current_app
    from django.core.cache import cache

    hook(people.ops, people.alice, receiver.url)
    with current_app.connection_for_read() as broker:
        queue = broker.SimpleQueue("celery")
        queue.clear()
        cache.delete("webhooks:woken")
        monkeypatch.setattr(wakeups, "_broker", Breaker(wakeups._broker._answered))
        monkeypatch.setattr(wakeups, "ONE_FOR_ALL", 60)
        happen()
        message = queue.get(timeout=60)
        message.ack()
        for _ in range(20):
            happen()
        with pytest.raises(Empty):
            queue.get(block=False)
        assert message.headers["task"] == "portal.tasks.send_webhooks"
        # One wake-up sends everything due; what commits later causes another.
        assert sending.send_due() == 21
        happen()
        queue.get(timeout=60).ack()
        cache.delete("webhooks:woken")


def test_the_program_of_the_documentation_understands_it(people: Any) -> None:
    text = Path("docs/webhooks.md").read_text()
    program = text.partition("```python\n")[2].partition("```")[0]
    port = ports.free()
    webhook, secret = hook(people.ops, people.alice, f"http://127.0.0.1:{port}/", "run.succeeded")
    env = {**os.environ, "WEBHOOK_SECRET": secret, "PORT": str(port)}
    with subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True) as receiver:
        try:
            while not services.ask(port, b"GET / HTTP/1.0\r\n\r\n"):
                assert receiver.poll() is None
            happen(cost="3.00")
            for _ in range(2):
                sending.send_due()
                assert only().state == "delivered"
                actions.deliver_again(only(), acting_user=people.alice)
            actions.rotate_secret(webhook, acting_user=people.alice)
            Webhook.objects.update(old_secret_until=timezone.now())
            sending.send_due()
            assert only().status == 401
        finally:
            receiver.kill()
        assert receiver.stdout
        assert receiver.stdout.read() == "run.succeeded cluster ops-demo/show1 3.00\n", "and only once"


# Failures


def test_it_is_tried_again_until_it_works(people: Any, receiver: Receiver) -> None:
    hook(people.ops, people.alice, receiver.url)
    receiver.answer = lambda handler, n: say(handler, 500 if n < 3 else 200, b"\0 not \xff now")
    happen()
    for number in (1, 2):
        before = timezone.now()
        assert sending.send_due() == 1
        row = only()
        assert (row.state, row.status, row.attempts) == ("waiting", 500, number)
        assert row.error == "It answered 500 Internal Server Error."
        assert row.answer == "� not � now"
        nominal = 5 * 4 ** (number - 1)
        assert 0.8 * nominal <= (row.next_at - before).total_seconds()
        assert (row.next_at - timezone.now()).total_seconds() <= 1.2 * nominal
        Delivery.objects.update(next_at=timezone.now() + dt.timedelta(hours=1))
        assert sending.send_due() == 0, "not before its time"
        due_now()
    assert sending.send_due() == 1
    assert (only().state, only().attempts) == ("delivered", 3)
    assert len(set(receiver.ids)) == 1
    assert len({body for _, body in receiver.got}) == 1


def test_waits_grow_to_half_a_day_and_all_end_after_three_days() -> None:
    at, waits = dt.timedelta(0), []
    while at < specs.TRY_FOR:
        waits.append(specs.wait(len(waits) + 1, 0.5))
        at += waits[-1]
    assert [wait.total_seconds() for wait in waits[:4]] == [5, 20, 80, 320]
    assert max(waits) == dt.timedelta(hours=12)
    assert 10 <= len(waits) <= 16


def test_a_busy_receiver_says_how_long_to_wait(people: Any, receiver: Receiver) -> None:
    hook(people.ops, people.alice, receiver.url)
    receiver.answer = lambda handler, n: say(handler, 429, retry_after="600" if n == 1 else "99999999")
    happen()
    sending.send_due()
    assert 500 < (only().next_at - timezone.now()).total_seconds() <= 600
    due_now()
    sending.send_due()
    assert (only().next_at - timezone.now()).total_seconds() < 30, "nonsense is not believed"


def test_a_redirect_is_not_followed(people: Any, receiver: Receiver) -> None:
    hook(people.ops, people.alice, receiver.url)
    receiver.answer = lambda handler, n: say(handler, 302, location=receiver.url)
    happen()
    sending.send_due()
    assert len(receiver.got) == 1
    assert (only().state, only().status) == ("waiting", 302)
    assert "redirects are not followed" in only().error


def test_gone_disables_and_tells(people: Any, receiver: Receiver, settings: Any) -> None:
    from billing import mails

    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    webhook, _ = hook(people.ops, people.alice, receiver.url)
    receiver.answer = lambda handler, n: say(handler, 410)
    happen()
    sending.send_due()
    assert Delivery.objects.get(kind="run.succeeded").state == "failed"
    webhook.refresh_from_db()
    assert (webhook.enabled, webhook.disabled_reason) == (False, "Its receiver answered 410 Gone.")
    told = Event.objects.get(verb="webhook.disabled")
    assert (told.actor, told.appcode, told.object) == (None, "ops-demo", "webhook ops-demo/hook")
    mails.send_due()
    [letter] = mail.outbox
    assert letter.to == ["ops-demo@example.com"]
    assert letter.subject == "Webhook ops-demo/hook is disabled"
    assert "/appcodes/ops-demo/webhooks/hook" in letter.body
    assert "in-the-url" not in letter.body
    happen()
    assert sending.send_due() == 0
    # Waiting deliveries resume once the webhook is repaired.
    receiver.answer = None
    manifest = {"metadata": {"name": "hook"}, "spec": {"url": receiver.url, "events": ["*"], "enabled": True}}
    actions.change_webhook(webhook, WebhookManifest.model_validate(manifest), acting_user=people.alice)
    sending.send_due()
    assert [json.loads(body)["type"] for _, body in receiver.got[1:]] == ["webhook.changed"]


def test_after_three_days_without_any_success_it_is_disabled(people: Any, receiver: Receiver) -> None:
    webhook, _ = hook(people.ops, people.alice, receiver.url)
    receiver.answer = lambda handler, n: say(handler, 503)
    long_ago = timezone.now() - specs.TRY_FOR
    for last_ok, enabled in ((timezone.now(), True), (long_ago - dt.timedelta(hours=1), False)):
        happen()
        Webhook.objects.update(last_ok_at=last_ok, changed_at=long_ago - dt.timedelta(days=1))
        Delivery.objects.filter(state="waiting").update(first_at=long_ago, attempts=12, next_at=timezone.now())
        sending.send_due()
        webhook.refresh_from_db()
        assert webhook.enabled is enabled, "it takes others, so this one alone is given up"
        assert not Delivery.objects.filter(state="waiting", kind="run.succeeded").exists()
    assert Event.objects.filter(verb="webhook.disabled").count() == 1


def test_a_receiver_that_was_replaced_meanwhile_disables_nothing(people: Any, receiver: Receiver) -> None:
    webhook, _ = hook(people.ops, people.alice, receiver.url)
    receiver.answer = lambda handler, n: say(handler, 410 if n == 1 else 503)
    happen()
    [job] = sending.claim(8, [])
    done = sending.attempt(job, WAY)
    spec = {"url": receiver.url + "2", "events": ["*"]}
    changed = WebhookManifest.model_validate({"metadata": {"name": "hook"}, "spec": spec})
    actions.change_webhook(webhook, changed, acting_user=people.alice)
    sending.record(done)
    # The same if it was repaired shortly before its three days were over.
    long_ago = timezone.now() - specs.TRY_FOR
    Delivery.objects.filter(state="waiting").update(first_at=long_ago, attempts=12, next_at=timezone.now())
    sending.send_due()
    assert set(Delivery.objects.values_list("state", flat=True)) == {"failed"}
    webhook.refresh_from_db()
    assert webhook.enabled


def test_what_waited_while_it_was_disabled_has_three_days_again(people: Any, receiver: Receiver) -> None:
    webhook, _ = hook(people.ops, people.alice, receiver.url, "run.*")
    happen()
    Delivery.objects.update(first_at=timezone.now() - 2 * specs.TRY_FOR, attempts=12)
    Webhook.objects.update(enabled=False)
    assert sending.send_due() == 0
    receiver.answer = lambda handler, n: say(handler, 503 if n == 1 else 204)
    manifest = {"metadata": {"name": "hook"}, "spec": {"url": receiver.url, "events": ["run.*"]}}
    actions.change_webhook(webhook, WebhookManifest.model_validate(manifest), acting_user=people.alice)
    assert sending.send_due() == 1
    assert (only().state, only().attempts) == ("waiting", 1)
    due_now()
    sending.send_due()
    assert only().state == "delivered"


def test_who_is_killed_between_sending_and_writing_it_down_sends_it_twice_under_one_id(
    people: Any, receiver: Receiver, tmp_path: Any
) -> None:
    hook(people.ops, people.alice, receiver.url)
    happen()
    program = "import os, django; django.setup();from portal.webhooks import sending; sending.send_due()"
    address = {
        key: str(value) for key, value in connection.settings_dict.items() if key in ("NAME", "HOST", "PORT", "USER")
    }
    url = os.environ["DATABASE_URL"].partition("?")
    database = url[0].rsplit("/", 1)[0] + f"/{address['NAME']}" + url[1] + url[2]
    sender: list[subprocess.Popen[bytes]] = []

    def kill_it(handler: Any, n: int) -> None:
        if n == 1:
            sender[0].send_signal(signal.SIGKILL)
            sender[0].wait()
        say(handler, 204)

    receiver.answer = kill_it
    env = {**os.environ, "DATABASE_URL": database, "DJANGO_SETTINGS_MODULE": "portal.settings"}
    sender.append(subprocess.Popen([sys.executable, "-c", program], env=env))
    assert sender[0].wait(120) == -signal.SIGKILL
    assert (only().state, only().attempts) == ("waiting", 1)
    assert sending.send_due() == 0, "it is still held"
    due_now()
    assert sending.send_due() == 1
    assert only().state == "delivered"
    assert len(receiver.got) == 2
    assert len(set(receiver.ids)) == 1


def test_two_senders_at_once_send_nothing_twice(people: Any, receiver: Receiver) -> None:
    """Holds even without the lock that admits one sender at a time."""
    hook(people.ops, people.alice, receiver.url)
    hook(None, people.root, receiver.url, name="all")
    for _ in range(30):
        happen()
    by, done = sending.way(), []

    def send() -> None:
        while jobs := sending.claim(8, []):
            for job in jobs:
                attempt = sending.attempt(job, by)
                sending.record(attempt)
                done.append(job.message)
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while Delivery.objects.filter(state="waiting").exists():
        sending.send_due()
    assert len(receiver.ids) == len(set(receiver.ids)) == 60
    assert set(Delivery.objects.values_list("attempts", flat=True)) == {1}


def test_a_claim_that_was_lost_changes_nothing(people: Any, receiver: Receiver) -> None:
    hook(people.ops, people.alice, receiver.url)
    happen()
    [first] = sending.claim(8, [])
    due_now()
    [second] = sending.claim(8, [])
    sending.record(sending.attempt(second, WAY))
    receiver.answer = lambda handler, n: say(handler, 500)
    sending.record(sending.attempt(first, WAY))
    assert (only().state, only().status) == ("delivered", 204)


def test_one_slow_receiver_does_not_hold_up_others(
    people: Any, receiver: Receiver, monkeypatch: Any, make_appcode: Any
) -> None:
    monkeypatch.setattr(posting, "ANSWER", 45.0)
    free = threading.Event()
    with receiving() as slow:
        slow.answer = lambda handler, n: free.wait(120)
        hook(people.flight, people.mallory, slow.url, name="slow")
        hook(people.ops, people.alice, receiver.url)
        for _ in range(40):
            happen(appcode="flight-demo")
        for _ in range(20):
            happen(appcode="ops-demo")
        began = time.monotonic()
        sender = threading.Thread(target=lambda: (sending.send_due(), connection.close()))
        sender.start()
        while len(receiver.got) < 20 and time.monotonic() < began + posting.ANSWER:
            time.sleep(0.02)
        took = time.monotonic() - began
        assert len(receiver.got) == 20
        assert took < posting.ANSWER, "all of them before the first slow one was over"
        Webhook.objects.filter(name="slow").update(enabled=False)
        free.set()
        sender.join()
        assert slow.most_at_one_time <= sending.PER_HOST


def test_what_waits_for_a_full_host_is_passed_over(people: Any) -> None:
    """Holds for any number of waiting deliveries, however long they have been due."""
    hook(people.flight, people.mallory, "http://127.0.0.1:9/flight")
    for _ in range(40):
        happen(appcode="flight-demo")
    first = sending.claim(32, [])
    assert len(first) == sending.PER_HOST
    assert sending.claim(32, first) == []
    hook_of_ops, _ = hook_beside(people)
    Webhook.objects.filter(pk=hook_of_ops.pk).update(host="other.example")
    happen()
    [following] = sending.claim(32, first)
    assert following.webhook == hook_of_ops.pk
    assert [job.host for job in sending.claim(32, [*first[1:], following])] == ["127.0.0.1:9"]


def test_what_somebody_has_hold_of_is_looked_at_now_and_then(people: Any, receiver: Receiver, monkeypatch: Any) -> None:
    monkeypatch.setattr(sending, "LONGEST", 1.0)
    looks, claim = [], sending.claim
    monkeypatch.setattr(sending, "claim", lambda *given: looks.append(given) or claim(*given))
    hook(people.ops, people.alice, receiver.url)
    happen()
    with transaction.atomic():
        Delivery.objects.select_for_update().get()
        sender = threading.Thread(target=lambda: (sending.send_due(), connection.close()))
        sender.start()
        sender.join(60)
    assert 0 < len(looks) <= 1 + 1.0 / sending.LOOK
    assert sending.send_due() == 1


def test_the_receivers_of_one_appcode_share_eight(people: Any) -> None:
    for n in range(4):
        hook(people.flight, people.mallory, f"http://127.0.0.1:{ports.free()}/", name=f"hook-{n}")
    hook(None, people.root, "http://127.0.0.1:9/", name="all")
    for _ in range(4):
        happen(appcode="flight-demo")
    first = sending.claim(32, [])
    assert Counter(job.appcode for job in first) == {people.flight.pk: sending.PER_APPCODE, 0: sending.PER_HOST}
    assert sending.claim(32, first) == []
    assert len(sending.claim(32, first[:4])) > 0


def hook_beside(people: Any) -> tuple[Webhook, str]:
    spec = {"url": "http://127.0.0.1:9/ops", "events": ["run.*"]}
    manifest = WebhookManifest.model_validate({"metadata": {"name": "hook"}, "spec": spec})
    return actions.create_webhook(manifest, appcode=people.ops, acting_user=people.alice)


def test_a_webhook_that_cannot_be_read_any_more_stops_no_other(people: Any, receiver: Receiver, client: Any) -> None:
    broken, _ = hook(people.flight, people.mallory, receiver.url)
    hook(people.ops, people.alice, receiver.url)
    foreign = Fernet(Fernet.generate_key()).encrypt(receiver.url.encode()).decode()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE portal_webhook SET url = %s WHERE id = %s", [foreign, broken.pk])
    happen(appcode="flight-demo")
    happen()
    assert sending.send_due() == 1
    assert Delivery.objects.get(kind="run.succeeded", webhook__appcode=people.ops).state == "delivered"
    row = Delivery.objects.get(webhook=broken)
    assert (row.state, row.claim, row.attempts, row.error) == ("failed", None, 0, sending.UNREADABLE)
    client.force_login(people.root)
    assert len(client.get("/api/v1/webhooks").json()["items"]) == 2, "which is where one finds it"
    spec = {"url": receiver.url, "events": ["run.*"]}
    again = WebhookManifest.model_validate({"metadata": {"name": "hook"}, "spec": spec})
    actions.change_webhook(broken, again, acting_user=people.mallory)
    actions.deliver_again(row, acting_user=people.mallory)
    sending.send_due()
    row.refresh_from_db()
    assert (row.state, row.error) == ("delivered", "")


def test_one_that_cannot_be_written_down_takes_no_other_along(people: Any, receiver: Receiver, caplog: Any) -> None:
    hook(people.ops, people.alice, receiver.url)
    for _ in range(4):
        happen()
    over = threading.Event()

    def hold_the_first(handler: Any, n: int) -> None:
        if n > 1:
            say(handler, 204)
            return
        with transaction.atomic():
            row = Delivery.objects.select_for_update().get(uid=handler.headers["webhook-id"].removeprefix("msg_"))
            say(handler, 204)
            handler.wfile.flush()
            over.wait(120)
            assert row.claim
        connection.close()

    receiver.answer = hold_the_first
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '300ms'")
    try:
        assert sending.send_due() == 4
    finally:
        over.set()
        connection.close()
    assert len(receiver.got) == 4
    assert "could not be written down" in caplog.text
    row = Delivery.objects.exclude(state="delivered").get()
    assert (row.state, row.message_id) == ("waiting", receiver.ids[0])
    assert row.claim is not None, "it goes out again when this has run out"


def test_what_was_posted_is_written_down_though_the_connection_was_lost(people: Any, receiver: Receiver) -> None:
    hook(people.ops, people.alice, receiver.url)
    for _ in range(4):
        happen()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        [pid] = cursor.fetchone()
    all_there = threading.Barrier(4, timeout=60)

    def cut_it(handler: Any, n: int) -> None:
        if all_there.wait() == 0:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
            connection.close()
        all_there.wait()
        say(handler, 204)

    receiver.answer = cut_it
    with contextlib.suppress(OperationalError):
        sending.send_due()
    assert len(receiver.got) == 4
    assert Delivery.objects.filter(state="delivered").count() >= 3, "the first may have noticed it"


@pytest.mark.parametrize("status", [204, 410])
def test_who_changes_a_webhook_and_who_writes_down_do_not_block_each_other(
    people: Any, receiver: Receiver, status: int
) -> None:
    webhook, _ = hook(people.ops, people.alice, receiver.url)
    receiver.answer = lambda handler, n: say(handler, status)
    happen()
    [job] = sending.claim(8, [])
    done, errors = sending.attempt(job, WAY), list[Exception]()

    def write_down() -> None:
        try:
            sending.record(done)
        except OperationalError as error:
            errors.append(error)
        connection.close()

    with transaction.atomic():
        Webhook.objects.select_for_update(no_key=True).get(pk=webhook.pk)
        thread = threading.Thread(target=write_down)
        thread.start()
        waiting, end = 0, time.monotonic() + 60
        while not waiting and time.monotonic() < end:
            with connection.cursor() as cursor:
                # Only locks that block this connection: other tests may use the same server.
                cursor.execute("SELECT count(*) FROM pg_locks WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))")
                [waiting] = cursor.fetchone()
        assert waiting
        actions.deliver_again(only(), acting_user=people.alice)
    thread.join()
    assert errors == []
    assert Delivery.objects.get(kind="run.succeeded").state == "waiting", "its claim was lost"
    webhook.refresh_from_db()
    assert webhook.enabled


def test_webhooks_with_nothing_to_send_cost_nothing(people: Any) -> None:
    def pages() -> int:
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE portal_webhook, portal_delivery")
        due = sending._due(timezone.now()).select_related("webhook", "event").order_by("next_at")[:32]
        [plan] = json.loads(due.explain(format="json", analyze=True, buffers=True))
        return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]

    hook_beside(people)
    Delivery.objects.all().delete()
    Webhook.objects.bulk_create(
        Webhook(
            appcode=people.ops, name=f"idle-{n}", url="http://a.example/", host="a.example", kinds=["*"], secret="-"
        )
        for n in range(1000)
    )
    nothing = pages()
    last = Webhook.objects.latest("pk")
    event = Event.objects.latest("pk")
    Delivery.objects.create(webhook=last, event=event, kind=event.verb)
    assert sending._due(timezone.now()).get().webhook == last
    assert max(nothing, pages()) < 50


def test_a_mistake_of_ours_with_one_stops_nothing_else(people: Any, receiver: Receiver, caplog: Any) -> None:
    hook(people.ops, people.alice, receiver.url)
    with transaction.atomic():
        events.record("run.failed", actor=None, appcode="ops-demo", number=2**70)
    happen()
    assert sending.send_due() == 2
    assert Delivery.objects.get(kind="run.succeeded").state == "delivered"
    assert Delivery.objects.get(kind="run.failed").state == "waiting"
    assert "could not be sent" in caplog.text


def test_the_next_sender_does_not_wait_for_the_slowest_of_the_last(
    people: Any, receiver: Receiver, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sending, "LONGEST", 1.0)
    free, taken = threading.Event(), threading.Event()

    def slowly(handler: Any, n: int) -> None:
        taken.set()
        free.wait(120)
        say(handler, 204)

    with receiving() as slow:
        slow.answer = slowly
        hook(people.flight, people.mallory, slow.url)
        happen(appcode="flight-demo")
        first = threading.Thread(target=lambda: (sending.send_due(), connection.close()))
        first.start()
        assert taken.wait(60)
        hook_beside(people)
        Webhook.objects.filter(appcode=people.ops).update(url=receiver.url, host="other")
        happen()
        end = time.monotonic() + 60
        while not receiver.got and time.monotonic() < end:
            sending.send_due()
            time.sleep(0.05)
        assert receiver.got
        assert first.is_alive()
        free.set()
        first.join()
    assert not Delivery.objects.exclude(state="delivered").exists()


# Misbehaving receivers


def post(url: str, way: Way = WAY) -> posting.Answer:
    return posting.post(specs.target(url), b"{}", {"content-type": "application/json"}, way)


def test_silence_ends(receiver: Receiver, monkeypatch: Any) -> None:
    monkeypatch.setattr(posting, "ANSWER", 0.5)
    free = threading.Event()
    receiver.answer = lambda handler, n: free.wait(120)
    answer = post(receiver.url)
    free.set()
    assert answer.status is None
    assert answer.error.startswith("No answer within")
    assert answer.seconds < 40


def test_a_byte_a_moment_ends_too(receiver: Receiver, monkeypatch: Any) -> None:
    """Each byte arrives within the timeout, but the answer never ends."""
    monkeypatch.setattr(posting, "ANSWER", 0.6)

    def drip(handler: Any, n: int) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(1200):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)

    receiver.answer = drip
    answer = post(receiver.url)
    assert answer.status is None
    assert answer.error.startswith("No answer within")
    assert answer.seconds < 40


def test_an_endless_answer_is_cut(receiver: Receiver) -> None:
    sent = Counter[str]()

    def endless(handler: Any, n: int) -> None:
        handler.send_response(200)
        handler.end_headers()
        while sent["bytes"] < 200 * 2**20:
            handler.wfile.write(b"x" * 65536)
            sent["bytes"] += 65536

    receiver.answer = endless
    answer = post(receiver.url)
    assert (answer.status, answer.error, answer.excerpt) == (200, "", "x" * specs.MAX_EXCERPT)
    assert sent["bytes"] < 50 * 2**20


def test_what_is_no_http_is_told(monkeypatch: Any) -> None:
    with socket.create_server(("127.0.0.1", ports.free())) as server:
        port = server.getsockname()[1]

        def babble() -> None:
            client, _ = server.accept()
            with client:
                asked = b""
                # Read the whole request: closing with unread data would discard the answer.
                while not asked.endswith(b"{}") and (part := client.recv(65536)):
                    asked += part
                client.sendall(b"220 mail.example ESMTP\0\x1b[31m\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        answer = post(f"http://127.0.0.1:{port}/")
        thread.join()
    assert answer.status is None
    assert answer.error.startswith("The connection failed: 220 mail.example")
    assert answer.error.isprintable()
    assert post(f"http://127.0.0.1:{port}/").error.startswith("The connection failed:")


def test_tls_is_verified_by_name_on_the_checked_address(tmp_path: Any, monkeypatch: Any) -> None:
    public, key = certificate(tmp_path, "hooks.example", "127.0.0.1")
    resolve_to(monkeypatch, {"hooks.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]})
    trusting = Way(WAY.rules, str(public))
    with receiving((public, key)) as receiver:
        assert post(f"https://hooks.example:{receiver.port}/", trusting).status == 204
        assert receiver.got[0][0]["host"] == f"hooks.example:{receiver.port}"
        assert post(receiver.url, trusting).status == 204
        assert "certificate is not accepted" in post(f"https://other.example:{receiver.port}/", trusting).error
        assert "certificate is not accepted" in post(f"https://hooks.example:{receiver.port}/").error
        assert len(receiver.got) == 2


# Allowed addresses


def resolve_to(monkeypatch: Any, names: dict[str, list[str]]) -> Counter[str]:
    """Makes the resolver return these addresses for these names. Returns the number of look-ups per name."""
    asked, real = Counter[str](), socket.getaddrinfo

    def resolve(host: str, port: int, *args: Any, **options: Any) -> Any:
        asked[host] += 1
        if host not in names:
            return real(host, port, *args, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in names[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


def test_what_is_closed_to_tasks_is_closed_to_webhooks(people: Any) -> None:
    from clusters.clouds.models import Cloud

    Cloud.objects.create(kind="kubernetes", name="k", title="K", settings={"closed_networks": ["93.184.0.0/16"]})
    with pytest.raises(Closed, match=r"93\.184\.0\.0/16"):
        check_literal("93.184.215.14", 443, sending.way().rules)
    check_literal("8.8.8.8", 443, sending.way().rules)


def test_a_name_that_leads_inside_is_refused_when_it_is_sent(receiver: Receiver, monkeypatch: Any) -> None:
    resolve_to(monkeypatch, {"inside.example": ["127.0.0.1"]})
    answer = post(f"http://inside.example:{receiver.port}/", Way())
    assert answer.status is None
    assert "it is a port of the portal's own machine" in answer.error
    assert post(f"http://localhost:{receiver.port}/", Way()).status is None
    assert post(f"http://0x7f.1:{receiver.port}/", Way()).status is None
    assert post(f"http://2130706433:{receiver.port}/", Way()).status is None
    assert receiver.got == []


def test_of_several_addresses_only_those_are_used_that_may_be(receiver: Receiver, monkeypatch: Any) -> None:
    resolve_to(monkeypatch, {"both.example": ["10.0.0.1", "127.0.0.1"]})
    assert post(f"http://both.example:{receiver.port}/", WAY).status == 204
    assert post(f"http://both.example:{receiver.port}/", Way()).status is None


def test_a_name_that_is_not_there_is_told() -> None:
    assert "was not found" in post("https://nothing.invalid/").error


# Retention


def test_old_deliveries_are_forgotten_and_deleted_webhooks_with_them(
    people: Any, receiver: Receiver, settings: Any
) -> None:
    webhook, _ = hook(people.ops, people.alice, receiver.url)
    happen()
    happen()
    sending.send_due()
    first = Delivery.objects.earliest("pk")
    Delivery.objects.filter(pk=first.pk).update(
        created_at=timezone.now() - settings.WEBHOOK_MEMORY - dt.timedelta(minutes=1)
    )
    assert sending.forget() == 1
    actions.delete_webhook(webhook, acting_user=people.alice)
    assert sending.forget() == 0
    assert Webhook.objects.get().secret == Webhook.objects.get().url == "-"
    sending.forget(timezone.now() + settings.WEBHOOK_MEMORY + dt.timedelta(minutes=1))
    assert not Webhook.objects.exists()
    assert Event.objects.filter(verb="run.succeeded").count() == 2
