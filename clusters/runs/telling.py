"""Who started a run is told when it comes to a phase that they have chosen (portal/profile/notifications.py): by a mail and a
delivery to their webhook, which are written with the phase itself, and by their browsers, which ask for what is new.

Who is a member of the appcode no more is told nothing, and of parts (a trial, a stage) nobody is: whoever made the whole has one
mail when that has ended.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal

from django.conf import settings
from django.db.models import Q
from django.urls import reverse

from clusters.access import clusters_for
from clusters.frameworks import FRAMEWORKS
from clusters.models import Run
from portal import hooks
from portal.models import Delivery, Event, Membership, User, Webhook
from portal.profile.notifications import PHASES
from portal.templatetags.portal import gpu_hours


def url_of(run: Run) -> str:
    page = "application" if FRAMEWORKS[run.spec["framework"]].is_application else "cluster"
    return reverse(page, args=[run.cluster.appcode.code, run.cluster.name])


def tell(moved: Sequence[tuple[Run, Event]]) -> None:
    """Of runs whose phase has just changed, each with the event that says so, in that transaction: at most four queries and one
    for each mail."""
    moved = [(run, event) for run, event in moved if not run.cluster.part_of]
    told = {run.created_by_id for run, _ in moved if run.created_by_id and run.phase.lower() in PHASES}
    chosen = Webhook.objects.filter(person__in=told, person__is_active=True, enabled=True, deleted_at=None)
    webhooks = {webhook.person_id: webhook for webhook in chosen.defer("url", "secret", "old_secret")}
    by_mail = Q(mail_phases__len__gt=0) & ~Q(email="")
    people = User.objects.filter(by_mail | Q(pk__in=webhooks), pk__in=told, is_active=True).in_bulk()
    if not people:
        return
    members = set(Membership.objects.filter(user__in=people).values_list("user_id", "appcode_id"))
    deliveries = []
    for run, event in moved:
        user = people.get(run.created_by_id or 0)
        if user is None or not (user.is_superuser or (user.pk, run.cluster.appcode_id) in members):
            continue
        if user.email and run.phase.lower() in user.mail_phases:
            _mail(run, user)
        if (webhook := webhooks.get(user.pk)) and event.verb in webhook.kinds:
            deliveries.append(Delivery(webhook=webhook, event=event, kind=event.verb))
    Delivery.objects.bulk_create(deliveries)


@dataclass(frozen=True)
class Whole:
    """A sweep or a run of a pipeline that has come to its end in this transaction. `key` is another one each time that it does,
    `name` is for people ("ops-demo/nightly"), `url` a path; GPU-seconds and cost are of all its parts so far."""

    key: str
    appcode_id: int
    name: str
    url: str
    phase: str
    sentence: str
    gpu_seconds: int
    cost: Decimal


def tell_whole(whole: Whole, user: User | None) -> None:
    """By one mail to `user`, who made it, as they have chosen for their runs. One query at most, and one for the mail."""
    if user is None or not (user.is_active and user.email and whole.phase.lower() in user.mail_phases):
        return
    if user.is_superuser or Membership.objects.filter(user=user, appcode=whole.appcode_id).exists():
        used = f"{gpu_hours(whole.gpu_seconds)} GPU-hours, {whole.cost:,.2f} {settings.CURRENCY} so far."
        text = "\n".join(filter(None, (whole.sentence, used)))
        _send(whole.key, whole.appcode_id, f"{whole.name}: {whole.phase}", text, whole.url, user)


def _mail(run: Run, user: User) -> None:
    title, text = _words(run)
    _send(f"run {run.pk} {run.phase}", run.cluster.appcode_id, title, text, url_of(run), user)


def _send(key: str, appcode_id: int, title: str, text: str, url: str, user: User) -> None:
    body = f"{text}\n\n{settings.PORTAL_ORIGIN}{url}\n\n{_why()}\n"
    for tell_by_mail in hooks.mail:
        tell_by_mail(key, appcode_id, title, body, [user.email])


def news(user: User, phases: Collection[str], since: dt.datetime) -> list[hooks.News]:
    """For `portal.hooks`; one query, and one more where there is much."""
    wanted = [phase.capitalize() for phase in phases]
    runs = Run.objects.filter(
        created_by=user, phase_since__gt=since, phase__in=wanted, cluster__in=clusters_for(user).filter(part_of="")
    )
    in_order = runs.select_related("cluster__appcode").order_by("phase_since", "pk")
    found = list(in_order[: hooks.NEWS_AT_ONCE])
    if len(found) == hooks.NEWS_AT_ONCE:
        # Many come to a phase at one moment, and who asks next asks for what is behind it.
        last = found[-1]
        found += in_order.filter(phase_since=last.phase_since, pk__gt=last.pk)[: hooks.NEWS_OF_A_MOMENT]
    return [hooks.News(f"{run.pk} {run.phase}", run.phase_since, *_words(run), url_of(run)) for run in found]


def _words(run: Run) -> tuple[str, str]:
    """A title and a sentence or two. What it cost stands on its page: some of it may not be known yet."""
    return f"{run.cluster}: {run.phase}", f"Run {run.number}. {run.message}".strip()


def _why() -> str:
    return f"You chose to be told: {settings.PORTAL_ORIGIN}{reverse('profile')}#notifications"
