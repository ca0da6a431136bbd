"""The first page: all that lives in the user's appcodes, whatever its kind, and the numbers that people check every morning.

Every browser with the page open polls its rows. They take the same queries however many objects there are, and those of a kind
only where a row of it is shown; one, while nothing can have changed. The ETag is compared before anything is rendered.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotModified
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from clusters.cluster.pages import list as listing
from clusters.cluster.pages.living import Thing, Things, kinds
from clusters.cluster.pages.verbs import SEVERAL
from clusters.cluster.search import Search
from clusters.home.kinds import SORTS, Key, counted, keys
from clusters.runs.models import Run
from portal.access import OPERATE, roles_of
from portal.models import Event, User
from portal.pages.appcodes import person
from portal.pages.layout import selected_appcode, words

ROWS = 50
COUNT_SECONDS = 5
# Rows are made again that often even though nothing happened, because usage may be corrected late. An event younger than that may
# have been overtaken by an older one that is not committed yet.
QUIET_SECONDS, SETTLED = 60, dt.timedelta(seconds=10)


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    user, context = person(request), _context(request)
    may_begin = context["may_create"] and not user.is_administrator
    # In an appcode without anything, the empty list says how to begin.
    context["is_new"] = context["rows"] and may_begin and not Run.objects.filter(created_by=user).exists()
    return render(request, "clusters/home/home.html", context)


@require_safe
def rows(request: HttpRequest) -> HttpResponseBase:
    """The live part of the page. Answers 304 while it is unchanged.

    Where no run lives, nothing changes before something happens, and all that happens writes an Event. So the newest event of all
    says whether what the browser has still holds."""
    newest, at = Event.objects.order_by("-id").values_list("id", "at").first() or (
        0,
        dt.datetime.min.replace(tzinfo=dt.UTC),
    )
    known = request.headers.get("If-None-Match", "")
    if known and cache.get(_quiet(request, known)) == newest:
        return HttpResponseNotModified(headers={"ETag": known})
    context = _context(request)
    response = listing.live(request, context, "clusters/home/_rows.html")
    if context["is_quiet"] and timezone.now() - at > SETTLED:
        cache.set(_quiet(request, response["ETag"]), newest, QUIET_SECONDS)
    return response


def _quiet(request: HttpRequest, etag: str) -> str:
    asked = repr((person(request).pk, selected_appcode(request), request.GET.urlencode(), etag))
    return f"home.quiet.{hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()}"


def _context(request: HttpRequest) -> dict[str, Any]:
    user = person(request)
    roles = roles_of(user)
    search = replace(Search.read(request.GET), appcode=selected_appcode(request))
    sort = chosen if (chosen := words(request, "sort")) in SORTS else ""
    found, following = keys(roles, search, sort, ROWS)
    counts, fresh = _counts(user, roles, search)
    morning = listing.morning(user, roles, search.appcode)
    by_kind = {
        kind.name: sum(n for (name, phase), n in counts.items() if name == kind.name and _fits(phase, search))
        for kind in kinds
    }
    by_phase = {phase: sum(n for (_, said), n in counts.items() if said == phase) for phase in Run.Phase.values}
    return {
        "rows": _rows(found, user, roles),
        "kinds": [(kind.title, reverse(kind.route), by_kind[kind.name]) for kind in kinds],
        "counts": list(by_phase.items()),
        "all": sum(by_kind.values()),
        "search": search,
        "next_cursor": following,
        "several": SEVERAL,
        "may_create": roles is None or any(role in OPERATE.value for role in roles.values()),
        "query": request.GET.urlencode(),
        "morning": morning,
        # Counts of seconds ago may lack what just happened.
        "is_quiet": fresh and not morning.lives,
    }


def _fits(phase: str, search: Search) -> bool:
    return not search.phase or phase.lower() in [each.strip().lower() for each in search.phase.split(",")]


def _counts(user: User, roles: Mapping[int, str] | None, search: Search) -> tuple[dict[tuple[str, str], int], bool]:
    """`counted`, cached for COUNT_SECONDS, and whether it was counted now."""
    asked = repr((user.pk, replace(search, phase="", cursor="")))
    key = f"home.counts.{hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()}"
    kept: list[tuple[str, str, int]] | None = cache.get(key)
    if kept is not None:
        return {(kind, phase): count for kind, phase, count in kept}, False
    found = counted(roles, search)
    cache.set(key, [(*place, count) for place, count in found.items()], COUNT_SECONDS)
    return found, True


def _rows(found: Collection[Key], user: User, roles: Mapping[int, str] | None) -> list[listing.Row | Thing]:
    """The rows in this order. What was deleted meanwhile is left out."""
    of_kind = {kind.name: kind.things for kind in kinds}
    # Clusters and applications are read together.
    asked: dict[Things, list[Key]] = {}
    for key in found:
        asked.setdefault(of_kind[key.kind], []).append(key)
    rows: dict[Key, listing.Row | Thing] = {}
    for things, some in asked.items():
        read = things([key.pk for key in some], user, roles)
        rows |= {key: read[key.pk] for key in some if key.pk in read}
    return [rows[key] for key in found if key in rows]
