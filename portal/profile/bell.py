"""What a person is told by the bell: their runs that ended, and what was decided, announced or asked about their appcodes.

Nothing is kept but until when they have read. The list is a query over the events that mails and webhooks come from,
and over what the apps above add (`extension_points.ended`), each newest first and cut.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Q, QuerySet
from django.urls import reverse

from portal import extension_points
from portal.extension_points import News
from portal.models import TOLD_BY_BELL, Event, Membership, User

# Lines of a page, and how far the unread ones are counted.
PAGE, MOST_COUNTED = 50, 99
WAITS = {"appcode.requested", "appcode.changes-requested", "appcode.expiring"}
TITLES = {
    "appcode.requested": "{code} waits for a decision",
    "appcode.approved": "{code}: request approved",
    "appcode.renewed": "{code} is renewed",
    "appcode.refused": "{code}: request refused",
    "appcode.changes-requested": "{code}: change the request and send it again",
    "appcode.disabled": "{code} is disabled",
    "appcode.enabled": "{code} is enabled again",
    "appcode.expiring": "{code} expires soon",
    "appcode.expired": "{code} has expired",
    "budget.told": "{code}: a step of the budget is reached",
    "budget.announced": "{code}: the budget is about to act",
    "budget.acted": "{code}: the budget has acted",
    "budget.taken-back": "{code}: what the budget did is taken back",
    "budget.lifted": "{code}: the budget is lifted",
}


@dataclass(frozen=True)
class Line:
    """`waits`: somebody has to do something. `is_new`: later than what the person has read."""

    news: News
    waits: bool
    is_new: bool


def unread(user: User) -> int:
    """How many things have happened since the person read the list, at most MOST_COUNTED + 1."""
    return min(len(list(_several(user, user.told_until, None, MOST_COUNTED + 1))), MOST_COUNTED + 1)


def lines(user: User, before: dt.datetime | None) -> tuple[list[Line], dt.datetime | None]:
    """The newest PAGE lines before a time, and from where the next page goes on."""
    found = sorted(_several(user, None, before, PAGE + 1), key=lambda one: (one.at, one.key), reverse=True)
    shown = found[:PAGE]
    more = shown[-1].at if len(found) > PAGE else None
    return [Line(one, one.key in WAITS, one.at > user.told_until) for one in shown], more


def read(user: User, until: dt.datetime) -> None:
    """Notes that the person has read everything up to a time. An earlier time changes nothing, so repeating it is harmless."""
    User.objects.filter(pk=user.pk, told_until__lt=until).update(told_until=until)


def _several(user: User, since: dt.datetime | None, before: dt.datetime | None, most: int) -> Iterator[News]:
    for ask in extension_points.ended:
        yield from ask(user, since, before, most)
    rows = _events(user)
    rows = rows.filter(at__gt=since) if since else rows
    rows = rows.filter(at__lt=before) if before else rows
    for event in rows.order_by("-id")[:most]:
        yield _news(event)


def _events(user: User) -> QuerySet[Event]:
    """Those about the person's appcodes by others; requests only for administrators, who decide them."""
    mine = list(Membership.objects.filter(user=user.pk).values_list("appcode__code", flat=True))
    about = Q(appcode__in=mine) & ~Q(verb="appcode.requested")
    if user.is_administrator:
        about |= Q(verb="appcode.requested")
    return Event.objects.filter(about, verb__in=TOLD_BY_BELL).exclude(actor_id=user.pk)


def _news(event: Event) -> News:
    code, verb = event.appcode, event.verb
    if verb == "appcode.requested":
        url = reverse("admin_appcodes")
    elif verb.startswith("budget."):
        url = f"{reverse('budgets')}?appcode={code}"
    else:
        url = reverse("appcode", args=[code])
    return News(verb, event.at, TITLES[verb].format(code=code), event.message, url)
