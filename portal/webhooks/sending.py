"""The sender: takes what is due, posts it side by side outside any transaction, writes down how it went.

Every delivery is held by a claim before it is sent, so that two senders never send the same at one time; who is killed with
one in hand loses it after a while, and it is sent again under the same id. Only a few go to one host, and to the receivers of
one appcode, at one time, so that a slow receiver delays its own deliveries. An advisory lock lets one sender at a time use the
threads of a worker; the claims alone keep two from each other's work should it be lost.
"""

from __future__ import annotations

import datetime as dt
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from portal import events, hooks, wakeups
from portal.db.advisory_lock import Lock, advisory_lock
from portal.models import Appcode, Delivery, Event, Membership, Webhook
from portal.webhooks import specs
from portal.webhooks.posting import Answer, Way, post

log = logging.getLogger(__name__)

THREADS = 32
PER_HOST, PER_APPCODE = 4, 8
# Longer than the slowest attempt, looking up its name included.
HOLD = dt.timedelta(minutes=2)
# Seconds: between two looks at what became due while others are on their way, and of one call in all.
LOOK, LONGEST = 0.25, 60.0
# What a busy receiver may ask for.
LONGEST_ASKED = dt.timedelta(hours=1)
PORTION = 5000
LEFT = "You may not see this appcode any more."
UNREADABLE = "The portal can no longer read or use the webhook's URL. Enter it again, then send this again."


@dataclass(frozen=True)
class Job:
    """One attempt, with all that it needs without the database."""

    delivery: int
    webhook: int
    claim: uuid.UUID
    message: str
    target: specs.Target
    secrets: tuple[str, ...]
    host: str
    appcode: int
    facts: dict[str, object]
    attempts: int
    first_at: dt.datetime


@dataclass(frozen=True)
class Attempt:
    """How it went."""

    job: Job
    sent_at: dt.datetime
    headers: dict[str, str]
    answer: Answer


def way() -> Way:
    """Networks that are closed to tasks of a Kubernetes cluster are closed to webhooks, too. One query."""
    closed = dict.fromkeys(network for found in hooks.closed_networks for network in found())
    return Way(settings.OUTGOING.closing(closed), settings.WEBHOOK_AUTHORITIES)


def send_due() -> int:
    """Sends what is due until nothing is, for a minute at most; says how many attempts it made."""
    # From here on a commit wakes another one.
    wakeups.heard(wakeups.WEBHOOKS)
    made, end = 0, time.monotonic() + LONGEST
    flying: dict[Future[Attempt], Job] = {}
    with ThreadPoolExecutor(THREADS, thread_name_prefix="webhooks") as pool:
        try:
            # Whoever was woken while this held the lock has gone again: what it came for is looked for after the lock is
            # given up.
            while not flying and time.monotonic() < end and _due(timezone.now()).exists():
                with advisory_lock(Lock.WEBHOOKS) as alone:
                    if not alone:
                        break
                    sent = _send(pool, flying, end)
                made += sent
                if not sent and not flying:
                    # Another transaction has hold of them; the beat looks again.
                    break
            if flying:
                # The next one need not wait for the slowest of this one.
                wakeups.wake_webhooks()
        except (DatabaseError, InterfaceError):
            # What was posted is written down all the same, with a new connection where this one is lost.
            connection.close_if_unusable_or_obsolete()
            raise
        finally:
            while flying:
                made += _land(flying)
    return made


def _send(pool: ThreadPoolExecutor, flying: dict[Future[Attempt], Job], end: float) -> int:
    """Claims and posts until nothing is on its way, or until `end`; then some are still `flying`."""
    made, by = 0, way()
    while time.monotonic() < end:
        for job in claim(THREADS - len(flying), flying.values()):
            flying[pool.submit(attempt, job, by)] = job
        if not flying:
            break
        made += _land(flying)
    return made


def _land(flying: dict[Future[Attempt], Job]) -> int:
    """Writes down those that are over, after waiting a moment for one; says how many."""
    done, _ = wait(flying, timeout=LOOK, return_when=FIRST_COMPLETED)
    for each in done:
        job = flying.pop(each)
        if error := each.exception():
            # A mistake of ours. It stays held for a while and stops nothing else.
            log.error("delivery %s could not be sent", job.delivery, exc_info=error)
            continue
        try:
            record(each.result())
        except (DatabaseError, InterfaceError):
            # It goes out again when its claim has run out; what became of the others is written down.
            log.exception("how delivery %s went could not be written down", job.delivery)
            connection.close_if_unusable_or_obsolete()
    return len(done)


def attempt(job: Job, by: Way) -> Attempt:
    """Signs and sends; knows no database, for many run side by side."""
    at = dt.datetime.now(dt.UTC)
    content = specs.body(job.facts)
    headers = specs.headers(job.message, job.secrets, content, at)
    return Attempt(job, at, headers, post(job.target, content, headers, by))


def _due(now: dt.datetime) -> QuerySet[Delivery]:
    return Delivery.objects.filter(
        state=Delivery.State.WAITING, next_at__lte=now, webhook__enabled=True, webhook__deleted_at=None
    )


@transaction.atomic
def claim(room: int, flying: Collection[Job]) -> list[Job]:
    """Takes up to `room` deliveries that are due and that nobody else takes, beside those that are `flying`. What a host or an
    appcode with many on their way has waiting is passed over. One whose URL leads nowhere, or whose person may not know of it any
    more, has failed and stops no other."""
    now, jobs = timezone.now(), list[Job]()
    hosts, appcodes = Counter(job.host for job in flying), Counter(job.appcode for job in flying if job.appcode)
    due = _due(now).exclude(webhook__host__in=[host for host, count in hosts.items() if count >= PER_HOST])
    due = due.exclude(webhook__appcode__in=[appcode for appcode, count in appcodes.items() if count >= PER_APPCODE])
    found = due.select_related("webhook__person", "event").select_for_update(skip_locked=True, of=("self",))
    # A portion of which nothing could be sent has failed as a whole, so the next one is another.
    while not jobs and (rows := list(found.order_by("next_at")[:room])):
        lost = _lost(rows)
        for row in rows:
            if row.pk in lost:
                _fail(row, LEFT)
                continue
            host, appcode = row.webhook.host, row.webhook.appcode_id or 0
            if hosts[host] < PER_HOST and appcodes[appcode] < PER_APPCODE and (job := _take(row, now)):
                hosts[host] += 1
                appcodes[appcode] += bool(appcode)
                jobs.append(job)
    return jobs


def _take(row: Delivery, now: dt.datetime) -> Job | None:
    """Claims a delivery that is locked; None when the URL of its webhook leads nowhere, and it has failed."""
    hook = row.webhook
    try:
        target = specs.target(hook.url)
    except ValueError:
        # Never the URL itself: it may be what is left of one that was encrypted by another key.
        _fail(row, UNREADABLE)
        log.error("delivery %s has failed: the URL of webhook %s cannot be read or used", row.pk, hook.pk)
        return None
    row.attempts, row.claim, row.next_at = row.attempts + 1, uuid.uuid4(), now + HOLD
    row.first_at = row.first_at or now
    row.save(update_fields=["attempts", "claim", "next_at", "first_at"])
    return Job(
        row.pk, hook.pk, row.claim, row.message_id, target, tuple(hook.secrets_at(now)), hook.host, hook.appcode_id or 0,
        facts(row.event), row.attempts, row.first_at,
    )  # fmt: skip


def _fail(row: Delivery, why: str) -> None:
    row.state, row.claim, row.error = Delivery.State.FAILED, None, why
    row.save(update_fields=["state", "claim", "error"])


def _lost(rows: Collection[Delivery]) -> set[int]:
    """Those for a person who may not know of it any more: they have left the appcode, or were deactivated, since it happened.
    One query at most."""
    own = [(row, person, row.event.appcode) for row in rows if (person := row.webhook.person)]
    asked = [(person.pk, code) for _, person, code in own if code and not person.is_administrator]
    members = set[tuple[int, str]]()
    if asked:
        found = Membership.objects.filter(
            user__in={pk for pk, _ in asked}, appcode__code__in={code for _, code in asked}
        )
        members = set(found.values_list("user_id", "appcode__code"))
    return {
        row.pk
        for row, person, code in own
        if not person.is_active or (code and not person.is_superuser and (person.pk, code) not in members)
    }


def facts(event: Event) -> dict[str, object]:
    """What is told of an event: what its appcode's members read on the pages, and nothing else."""
    return {
        "id": event.pk, "at": event.at, "kind": event.verb, "actor": event.actor_name, "appcode": event.appcode or None,
        "object": event.object, "message": event.message, "details": event.data,
    }  # fmt: skip


@transaction.atomic
def record(done: Attempt) -> None:
    """Writes down how an attempt went and when the next one is. Of a claim that was lost nothing is written."""
    job, answer, now = done.job, done.answer, timezone.now()
    changes: dict[str, object] = {
        "claim": None, "sent_at": done.sent_at, "headers": done.headers, "status": answer.status, "error": answer.error,
        "answer": answer.excerpt, "duration_ms": int(answer.seconds * 1000),
    }  # fmt: skip
    if not answer.error:
        changes |= {"state": Delivery.State.DELIVERED, "delivered_at": now}
    else:
        pause = specs.wait(job.attempts, random.random())  # noqa: S311  spreads retries, guards nothing
        next_at = now + max(pause, min(LONGEST_ASKED, dt.timedelta(seconds=answer.after)))
        gone = answer.status == 410
        if gone or next_at > job.first_at + specs.TRY_FOR:
            changes["state"] = Delivery.State.FAILED
        changes["next_at"] = next_at
    hook = Webhook.objects.filter(pk=job.webhook)
    if not answer.error:
        # To the minute, so that a busy webhook's row is not written at every delivery.
        hook = hook.exclude(last_ok_at__gt=now - dt.timedelta(minutes=1))
    # Whoever changes a webhook holds its row before those of its deliveries; who comes the other way would meet them.
    held = "state" in changes and hook.select_for_update(no_key=True).exists()
    if not Delivery.objects.filter(pk=job.delivery, claim=job.claim).update(**changes) or not held:
        return
    if answer.error:
        _given_up(done)
    else:
        Webhook.objects.filter(pk=job.webhook).update(last_ok_at=now)


def _given_up(done: Attempt) -> None:
    """Disables a webhook whose receiver said that it is gone, or took nothing since the given-up delivery's first attempt.

    Not one that somebody has changed meanwhile: it was another receiver that did so.
    """
    job, answer = done.job, done.answer
    if answer.status == 410:
        reason = "Its receiver answered 410 Gone."
    else:
        reason = f"Nothing was accepted for {specs.TRY_FOR.days} days. The last error: {answer.error}"
    rows = Webhook.objects.filter(pk=job.webhook, enabled=True, deleted_at=None)
    if answer.status == 410:
        rows = rows.filter(changed_at__lt=done.sent_at)
    else:
        rows = rows.filter(changed_at__lt=job.first_at).exclude(last_ok_at__gte=job.first_at)
    if not rows.update(enabled=False, disabled_reason=reason[:300], changed_at=timezone.now()):
        return
    hook = Webhook.objects.select_related("appcode", "person").get(pk=job.webhook)
    code = hook.appcode.code if hook.appcode else ""
    said = f"Disabled by the portal. {reason}"
    event = events.record(
        "webhook.disabled", actor=None, object=f"webhook {hook}", appcode=code, message=said, host=hook.host
    )
    told, page, to = hook.appcode, f"/appcodes/{code}/webhooks/{hook.name}", list[str]()
    if hook.person:
        # By the appcode in which it happened; a test has none, and who sent it sees what became of it.
        told, page = Appcode.objects.filter(code=job.facts["appcode"] or "").first(), "/profile#notifications"
        to = [hook.person.email] if hook.person.email else []
    if told and (to or not hook.person):
        subject = "Your webhook is disabled" if hook.person else f"Webhook {hook} is disabled"
        text = f"{subject}: {reason}\n\nWhat it did not get waits there until you enable it:\n{settings.PORTAL_ORIGIN}{page}\n"
        for tell in hooks.mail:
            tell(f"webhook disabled {event.pk}", told.pk, subject, text, to)


def forget(now: dt.datetime | None = None) -> int:
    """Removes deliveries that are older than people can look up, and then the webhooks that were deleted with theirs gone."""
    until, removed = (now or timezone.now()) - settings.WEBHOOK_MEMORY, 0
    while True:
        some = Delivery.objects.filter(created_at__lt=until).order_by("created_at").values("pk")[:PORTION]
        count, _ = Delivery.objects.filter(pk__in=some).delete()
        removed += count
        if count < PORTION:
            break
    Webhook.objects.filter(deleted_at__lt=until, deliveries=None).delete()
    return removed
