"""Sends webhooks: claims due deliveries, posts them in parallel outside any transaction, and records the results.

Every delivery is leased by a claim before it is sent, so that two senders never send the same one at once. If a sender
is killed, its claims expire and the deliveries are sent again under the same id. Only a few go to one host and to the
receivers of one appcode at a time, so a slow receiver delays only itself. An advisory lock lets one sender at a time
use a worker's threads; should the lock be lost, the claims alone keep senders apart.
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

from portal import events, extension_points, wakeups
from portal.db.advisory_lock import Lock, advisory_lock
from portal.models import Appcode, Delivery, Event, Membership, Webhook
from portal.webhooks import specs
from portal.webhooks.posting import Answer, Way, post

log = logging.getLogger(__name__)

THREADS = 32
PER_HOST, PER_APPCODE = 4, 8
# Longer than the slowest attempt, name resolution included.
HOLD = dt.timedelta(minutes=2)
# Seconds between two checks for due deliveries while others are being sent, and of one call in all.
LOOK, LONGEST = 0.25, 60.0
# The longest Retry-After that is honoured.
LONGEST_ASKED = dt.timedelta(hours=1)
PORTION = 5000
LEFT = "You may not see this appcode any more."
UNREADABLE = "The portal can no longer read or use the webhook's URL. Enter it again, then send this again."


@dataclass(frozen=True)
class Job:
    """One attempt, with everything that it needs without the database."""

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
    """The result of a job."""

    job: Job
    sent_at: dt.datetime
    headers: dict[str, str]
    answer: Answer


def way() -> Way:
    """Networks that are closed to tasks of a Kubernetes cluster are closed to webhooks, too. One query."""
    closed = dict.fromkeys(network for found in extension_points.closed_networks for network in found())
    return Way(settings.OUTGOING.closing(closed), settings.WEBHOOK_AUTHORITIES)


def send_due() -> int:
    """Sends due deliveries until there are none, for LONGEST seconds at most; returns the number of attempts."""
    # From here on a commit wakes another sender.
    wakeups.heard(wakeups.WEBHOOKS)
    made, end = 0, time.monotonic() + LONGEST
    flying: dict[Future[Attempt], Job] = {}
    with ThreadPoolExecutor(THREADS, thread_name_prefix="webhooks") as pool:
        try:
            # A sender that was woken while this one held the lock has returned without work: check again after
            # releasing the lock.
            while not flying and time.monotonic() < end and _due(timezone.now()).exists():
                with advisory_lock(Lock.WEBHOOKS) as alone:
                    if not alone:
                        break
                    sent = _send(pool, flying, end)
                made += sent
                if not sent and not flying:
                    # Another transaction has locked them; beat will retry.
                    break
            if flying:
                # The next sender need not wait for this one's slowest attempt.
                wakeups.wake_webhooks()
        except (DatabaseError, InterfaceError):
            # Results of posted deliveries are recorded all the same, with a new connection if this one is lost.
            connection.close_if_unusable_or_obsolete()
            raise
        finally:
            while flying:
                made += _land(flying)
    return made


def _send(pool: ThreadPoolExecutor, flying: dict[Future[Attempt], Job], end: float) -> int:
    """Claims and posts until nothing is in flight, or until `end`; then some are still `flying`."""
    made, by = 0, way()
    while time.monotonic() < end:
        for job in claim(THREADS - len(flying), flying.values()):
            flying[pool.submit(attempt, job, by)] = job
        if not flying:
            break
        made += _land(flying)
    return made


def _land(flying: dict[Future[Attempt], Job]) -> int:
    """Records finished attempts, after waiting up to LOOK seconds for one; returns how many."""
    done, _ = wait(flying, timeout=LOOK, return_when=FIRST_COMPLETED)
    for each in done:
        job = flying.pop(each)
        if error := each.exception():
            # A bug of ours. The delivery stays claimed for a while, and the others go on.
            log.error("delivery %s could not be sent", job.delivery, exc_info=error)
            continue
        try:
            record(each.result())
        except (DatabaseError, InterfaceError):
            # It is sent again when its claim expires; the other results are still recorded.
            log.exception("how delivery %s went could not be written down", job.delivery)
            connection.close_if_unusable_or_obsolete()
    return len(done)


def attempt(job: Job, by: Way) -> Attempt:
    """Signs and sends. It must not use the database, because many run in parallel."""
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
    """Claims up to `room` due deliveries that no other sender has, besides those `flying`. It skips hosts and appcodes
    with too many in flight. A delivery with an unusable URL, or for a user who may no longer see its appcode, fails
    without stopping the others."""
    now, jobs = timezone.now(), list[Job]()
    hosts, appcodes = Counter(job.host for job in flying), Counter(job.appcode for job in flying if job.appcode)
    due = _due(now).exclude(webhook__host__in=[host for host, count in hosts.items() if count >= PER_HOST])
    due = due.exclude(webhook__appcode__in=[appcode for appcode, count in appcodes.items() if count >= PER_APPCODE])
    found = due.select_related("webhook__person", "event").select_for_update(skip_locked=True, of=("self",))
    # If nothing of a portion could be sent, all of it has failed, so the next portion differs.
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
    """Claims a locked delivery; if its webhook's URL is unusable, marks it as failed and returns None."""
    hook = row.webhook
    try:
        target = specs.target(hook.url)
    except ValueError:
        # Never log the URL: it may be the decrypted garbage of one that was encrypted with another key.
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
    """Deliveries to users who may no longer see them: since the event they left the appcode or were deactivated. One
    query at most."""
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
    """The payload of an event: what members of its appcode see on pages, and nothing else."""
    return {
        "id": event.pk, "at": event.at, "kind": event.verb, "actor": event.actor_name, "appcode": event.appcode or None,
        "object": event.object, "message": event.message, "details": event.data,
    }  # fmt: skip


@transaction.atomic
def record(done: Attempt) -> None:
    """Records the result of an attempt and schedules the next one. If its claim was lost, nothing is written."""
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
        # At most once a minute, so that a busy webhook's row is not written at every delivery.
        hook = hook.exclude(last_ok_at__gt=now - dt.timedelta(minutes=1))
    # Lock order: changes of a webhook lock its row before those of its deliveries, so this must too, or it could deadlock.
    held = "state" in changes and hook.select_for_update(no_key=True).exists()
    if not Delivery.objects.filter(pk=job.delivery, claim=job.claim).update(**changes) or not held:
        return
    if answer.error:
        _given_up(done)
    else:
        Webhook.objects.filter(pk=job.webhook).update(last_ok_at=now)


def _given_up(done: Attempt) -> None:
    """Disables a webhook whose receiver answered 410, or accepted nothing since the first attempt of the delivery given
    up. It keeps one that was changed meanwhile, because then another receiver failed."""
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
        # Mail needs an appcode: use the event's. A test has none, and its sender sees the result anyway.
        told, page = Appcode.objects.filter(code=job.facts["appcode"] or "").first(), "/profile#notifications"
        to = [hook.person.email] if hook.person.email else []
    if told and (to or not hook.person):
        subject = "Your webhook is disabled" if hook.person else f"Webhook {hook} is disabled"
        text = f"{subject}: {reason}\n\nWhat it did not get waits there until you enable it:\n{settings.PORTAL_ORIGIN}{page}\n"
        for tell in extension_points.mail:
            tell(f"webhook disabled {event.pk}", told.pk, subject, text, to)


def forget(now: dt.datetime | None = None) -> int:
    """Deletes deliveries older than settings.WEBHOOK_MEMORY, then deleted webhooks without deliveries; returns the
    number of deliveries."""
    until, removed = (now or timezone.now()) - settings.WEBHOOK_MEMORY, 0
    while True:
        some = Delivery.objects.filter(created_at__lt=until).order_by("created_at").values("pk")[:PORTION]
        count, _ = Delivery.objects.filter(pk__in=some).delete()
        removed += count
        if count < PORTION:
            break
    Webhook.objects.filter(deleted_at__lt=until, deliveries=None).delete()
    return removed
