"""What a person is told by the bell: what they started and that ended, was announced or lost its GPUs, and what was decided or
asked about their appcodes.

Nothing is kept but until when they have read. The list is a query over the events that mails and webhooks come from, and over the
rows that the apps above name (`extension_points.told`). One UNION finds a page of them, or how many are unread, in one order.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import BigIntegerField, CharField, DateTimeField, F, Q, QuerySet, Value
from django.db.models.functions import Cast
from django.urls import reverse

from portal import extension_points
from portal.db.keyset import cut, position
from portal.extension_points import News, Told
from portal.models import TOLD_BY_BELL, Event, Membership, User

# Lines of a page, and how far the unread ones are counted.
PAGE, MOST_COUNTED = 50, 99
WAITS = {
    "appcode.requested", "appcode.changes-requested", "appcode.expiring", "run.idle_announced", "run.needed_asked",
}  # fmt: skip
ENDS = {"succeeded", "failed", "stopped"}
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

    @property
    def phase(self) -> str:
        """The phase that something ended in, "" for other news."""
        word = self.news.key.rpartition(".")[2]
        return word.capitalize() if word in ENDS else ""

    @property
    def about(self) -> str:
        """ "Appcode", "Budget", "Run"."""
        return self.news.key.partition(".")[0].capitalize()


@dataclass(frozen=True)
class _Key:
    """The place of a line in the order: newest first."""

    at: dt.datetime
    source: str
    pk: int

    def __str__(self) -> str:
        return f"{self.at.isoformat()}~{self.source}~{self.pk}"


def unread(user: User) -> int:
    """How many things have happened since the person read the list, at most MOST_COUNTED + 1. One query."""
    return len(_keys([_since(rows, user.told_until) for rows in _rows(user).values()], MOST_COUNTED + 1))


def lines(user: User, cursor: str, size: int = PAGE) -> tuple[list[Line], str]:
    """The newest lines after a cursor, and the next cursor ("" at the end). One query, and one for each source of those found.
    Raises ValidationError for what is no cursor."""
    told, after = _rows(user), _read(cursor) if cursor else None
    members = [_after(rows, name, after) if after else rows for name, rows in told.items()]
    found, following = cut(_keys(members, size + 1), size, str)
    news: dict[tuple[str, int], News] = {}
    for source in _sources():
        if pks := [key.pk for key in found if key.source == source.name]:
            news |= {(source.name, row.pk): source.news(row) for row in told[source.name].filter(pk__in=pks)}
    # What was removed meanwhile is left out.
    shown = [news[place] for key in found if (place := (key.source, key.pk)) in news]
    return [Line(one, one.key in WAITS, one.at > user.told_until) for one in shown], following


def read(user: User, until: dt.datetime) -> None:
    """Notes that the person has read everything up to a time. An earlier time changes nothing, so repeating it is harmless."""
    User.objects.filter(pk=user.pk, told_until__lt=until).update(told_until=until)


def _sources() -> list[Told]:
    return [_EVENTS, *extension_points.told]


def _rows(user: User) -> dict[str, QuerySet[Any]]:
    return {
        source.name: source.rows(user)
        .filter(**{f"{source.at}__isnull": False})
        .order_by()
        .annotate(told_at=F(source.at), told_source=Value(source.name, output_field=CharField()))
        for source in _sources()
    }


def _keys(members: Sequence[QuerySet[Any]], most: int) -> list[_Key]:
    cut_off: list[QuerySet[Any, Any]] = [
        rows.order_by("-told_at", "-pk").values_list("told_at", "told_source", Cast("pk", BigIntegerField()))[:most]
        for rows in members
    ]
    union = cut_off[0].union(*cut_off[1:], all=True) if len(cut_off) > 1 else cut_off[0]
    return sorted((_Key(*found) for found in union), key=lambda key: (key.at, key.source, key.pk), reverse=True)[:most]


def _since(rows: QuerySet[Any], since: dt.datetime) -> QuerySet[Any]:
    return rows.filter(told_at__gt=since)


def _read(cursor: str) -> _Key:
    said = cursor.split("~")
    if len(said) != 3:
        raise ValidationError("This is not a cursor.")
    return _Key(position(DateTimeField(), said[0]), said[1], position(BigIntegerField(), said[2]))


def _after(rows: QuerySet[Any], source: str, after: _Key) -> QuerySet[Any]:
    later = Q(told_at__lt=after.at)
    if source < after.source:
        later |= Q(told_at=after.at)
    elif source == after.source:
        later |= Q(told_at=after.at, pk__lt=after.pk)
    return rows.filter(later)


def _events(user: User) -> QuerySet[Event]:
    """Those about the person's appcodes by others; requests only for administrators, who decide them."""
    mine = Membership.objects.filter(user=user.pk).values("appcode__code")
    about = Q(appcode__in=mine) & ~Q(verb="appcode.requested")
    if user.is_administrator:
        about |= Q(verb="appcode.requested")
    # The portal's own have no actor.
    return Event.objects.filter(about, ~Q(actor_id=user.pk) | Q(actor_id=None), verb__in=TOLD_BY_BELL)


def _news(event: Event) -> News:
    code, verb = event.appcode, event.verb
    if verb == "appcode.requested":
        url = reverse("admin_appcodes")
    elif verb.startswith("budget."):
        url = f"{reverse('budgets')}?appcode={code}"
    else:
        url = reverse("appcode", args=[code])
    return News(verb, event.at, TITLES[verb].format(code=code), event.message, url)


_EVENTS = Told("event", _events, "at", _news)
