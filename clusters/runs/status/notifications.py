"""Notifies the user who started a run when it reaches a phase, or has its GPUs taken back, if they chose so
(portal/profile/notifications.py): by mail and by their webhook, both written with the change itself, and by their browsers, which
poll for news.

Former members of the appcode are not notified, and parts (a trial, a stage) notify nobody: their whole sends one mail at its end.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db.models import Q, QuerySet
from django.urls import reverse

from clusters.access import clusters_for
from clusters.admission.codes import Code
from clusters.frameworks import FRAMEWORKS
from clusters.runs.models import Decision, Run
from clusters.runs.status import history
from clusters.runs.status.phase import TERMINAL
from portal import extension_points
from portal.models import Delivery, Event, Membership, User, Webhook
from portal.pages.charts import number
from portal.profile.notifications import PHASES
from portal.templatetags.portal import gpu_hours

TAKEN = "taken_back"
LOST = (Code.TAKEN_BACK, Code.GIVEN_BACK)


def url_of(run: Run) -> str:
    page = "application" if FRAMEWORKS[run.spec["framework"]].is_application else "cluster"
    return reverse(page, args=[run.cluster.appcode.code, run.cluster.name])


def tell(moved: Sequence[tuple[Run, Event]]) -> None:
    """Queues mails and webhook deliveries for runs whose phase has just changed, or that were taken back, each with its event, in
    that transaction. At most four queries, plus one for each mail."""
    moved = [(run, event) for run, event in moved if not run.cluster.part_of and _word(event) in PHASES]
    told = {run.created_by_id for run, _ in moved if run.created_by_id}
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
        if user.email and _word(event) in user.mail_phases:
            _mail(run, user, _word(event))
        if (webhook := webhooks.get(user.pk)) and event.verb in webhook.kinds:
            deliveries.append(Delivery(webhook=webhook, event=event, kind=event.verb))
    Delivery.objects.bulk_create(deliveries)


@dataclass(frozen=True)
class Whole:
    """A sweep or pipeline run that ended in this transaction. `key` is unique to each such end, `name` is for display
    ("ops-demo/nightly"), `url` a path. GPU-seconds and cost are of all its parts so far."""

    key: str
    appcode_id: int
    name: str
    url: str
    phase: str
    sentence: str
    gpu_seconds: int
    cost: Decimal


def tell_whole(whole: Whole, user: User | None) -> None:
    """Mails `user`, who started it, if they chose mails for that phase. At most one query, plus one for the mail."""
    if user is None or not (user.is_active and user.email and whole.phase.lower() in user.mail_phases):
        return
    if user.is_superuser or Membership.objects.filter(user=user, appcode=whole.appcode_id).exists():
        used = f"{gpu_hours(whole.gpu_seconds)} GPU-hours, {whole.cost:,.2f} {settings.CURRENCY} so far."
        text = "\n".join(filter(None, (whole.sentence, used)))
        _send(whole.key, whole.appcode_id, f"{whole.name}: {whole.phase}", text, whole.url, user)


def _word(event: Event) -> str:
    """ "failed" of run.failed."""
    return event.verb.removeprefix("run.")


def _mail(run: Run, user: User, word: str) -> None:
    key, (title, text) = f"run {run.pk} {run.phase}", _words(run)
    if word == TAKEN:
        key, (title, text) = f"run {run.pk} {word} {run.times_given_back}", _words_of_taken(run, run.wait_message)
    _send(key, run.cluster.appcode_id, title, text, url_of(run), user)


def _send(key: str, appcode_id: int, title: str, text: str, url: str, user: User) -> None:
    body = f"{text}\n\n{settings.PORTAL_ORIGIN}{url}\n\n{_why()}\n"
    for tell_by_mail in extension_points.mail:
        tell_by_mail(key, appcode_id, title, body, [user.email])


def news(user: User, phases: Collection[str], since: dt.datetime) -> list[extension_points.News]:
    """News for `portal.extension_points`, in order. Two queries, plus one if there is much."""
    both = [_of_phases(user, phases, since), _of_taken(user, since) if TAKEN in phases else []]
    # What is later than the end of a list that was cut is told the next time.
    ends = [each[-1].at for each in both if len(each) >= extension_points.NEWS_AT_ONCE]
    found = [one for each in both for one in each if not ends or one.at <= min(ends)]
    return sorted(found, key=lambda one: one.at)


def _mine(user: User) -> QuerySet[Run]:
    mine = Run.objects.filter(created_by=user, cluster__in=clusters_for(user).filter(part_of=""))
    return mine.select_related("cluster__appcode")


def _taken(user: User) -> QuerySet[Decision]:
    """Given back counts only if the run was whole: one that could not take its places has lost nothing."""
    mine = clusters_for(user).filter(part_of="")
    lost = Q(code=Code.TAKEN_BACK) | Q(code=Code.GIVEN_BACK) & ~Q(values__whole=0)
    rows = Decision.objects.filter(lost, code__in=LOST, run__created_by=user, run__cluster__in=mine)
    return rows.select_related("run__cluster__appcode")


def _end(run: Run) -> extension_points.News:
    return extension_points.News(f"run.{run.phase.lower()}", run.phase_since, *_brief(run), url_of(run))


def _loss(row: Decision) -> extension_points.News:
    key = "run.taken_back" if row.code == Code.TAKEN_BACK else "run.given_back"
    return extension_points.News(key, row.at, *_words_of_taken(row.run, history.line(row).sentence), url_of(row.run))


def told_whole(name: str, rows: Callable[[User], QuerySet[Any]], url: Callable[[Any], str]) -> extension_points.Told:
    """Ends of sweeps and the like, for the bell."""

    def news(row: Any) -> extension_points.News:
        verb, text = f"{name}.{row.phase.lower()}", row.message.partition("\n")[0]
        return extension_points.News(verb, row.finished_at, f"{row}: {row.phase}", text, url(row))

    return extension_points.Told(name, rows, "finished_at", news)


# What the bell tells of runs, for `portal.extension_points`.
ENDS = extension_points.Told("run", lambda user: _mine(user).filter(phase__in=TERMINAL), "phase_since", _end)
LOSSES = extension_points.Told("taken", _taken, "at", _loss)


def _of_phases(user: User, phases: Collection[str], since: dt.datetime) -> list[extension_points.News]:
    wanted = [phase.capitalize() for phase in phases]
    runs = Run.objects.filter(
        created_by=user, phase_since__gt=since, phase__in=wanted, cluster__in=clusters_for(user).filter(part_of="")
    )
    in_order = runs.select_related("cluster__appcode").order_by("phase_since", "pk")
    found = list(in_order[: extension_points.NEWS_AT_ONCE])
    if len(found) == extension_points.NEWS_AT_ONCE:
        # Many runs can change at the same moment, and the next request asks only for later ones.
        last = found[-1]
        found += in_order.filter(phase_since=last.phase_since, pk__gt=last.pk)[: extension_points.NEWS_OF_A_MOMENT]
    return [extension_points.News(f"{run.pk} {run.phase}", run.phase_since, *_brief(run), url_of(run)) for run in found]


def _of_taken(user: User, since: dt.datetime) -> list[extension_points.News]:
    mine = clusters_for(user).filter(part_of="")
    rows = Decision.objects.filter(code=Code.TAKEN_BACK, at__gt=since, run__created_by=user, run__cluster__in=mine)
    rows = rows.select_related("run__cluster__appcode").order_by("at", "pk")[: extension_points.NEWS_AT_ONCE]
    return [
        extension_points.News(
            f"{row.run_id} {TAKEN} {row.number}",
            row.at,
            *_words_of_taken(row.run, history.line(row).sentence),
            url_of(row.run),
        )
        for row in rows
    ]


def _words(run: Run) -> tuple[str, str]:
    """A title and a sentence or two. The cost is only on the run's page: part of it may not be known yet."""
    return f"{run.cluster}: {run.phase}", f"Run {run.number}. {run.message}".strip()


def _brief(run: Run) -> tuple[str, str]:
    """As `_words`, for a list: without the lines of a log, and with the numbers of a run that succeeded."""
    title, text = _words(run)
    told = ", ".join(f"{name} {value if isinstance(value, str) else number(value)}" for name, value in run.headline)
    is_good = run.phase == Run.Phase.SUCCEEDED and told
    return title, f"Run {run.number}. {told}" if is_good else text.partition("\n")[0]


def _words_of_taken(run: Run, why: str) -> tuple[str, str]:
    return f"{run.cluster}: GPUs taken back", f"Run {run.number}. {why}"


def _why() -> str:
    return f"You chose to be told: {settings.PORTAL_ORIGIN}{reverse('profile')}#notifications"
