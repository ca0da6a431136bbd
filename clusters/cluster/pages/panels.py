"""How a person likes the charts of Metrics: which stand first, and in how many columns. One choice for all clusters of an
appcode, because their programs mostly report the same names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from clusters.cluster.pages.cluster import page_of
from clusters.results.access import views_of
from clusters.results.actions import keep_query
from portal.models import Appcode, User
from portal.pages.appcodes import person, safe_next

# Where the choice is kept, among the views of results.
SCOPE = "metrics"
# Columns that are offered; without a choice there are as many as fit.
COLUMNS, MAX_PINS, MAX_NAME = ("1", "2", "3"), 20, 500


@dataclass(frozen=True)
class Panels:
    """`pins`: names of metrics whose charts stand first, in this order. `columns`: one of COLUMNS, or ""."""

    pins: tuple[str, ...] = ()
    columns: str = ""

    @classmethod
    def of_query(cls, query: str) -> Panels:
        said = parse_qs(query)
        return cls(tuple(said.get("pin", ())), said.get("columns", [""])[-1])

    @property
    def query(self) -> str:
        return urlencode(
            [*(("pin", name) for name in self.pins), *([("columns", self.columns)] if self.columns else [])]
        )

    def pinned(self, name: str) -> Panels:
        """With this name at the end of the pins, or without, if it is there."""
        rest = tuple(each for each in self.pins if each != name)
        return replace(self, pins=rest if len(rest) < len(self.pins) else (*self.pins, name)[-MAX_PINS:])

    def ordered(self, names: Iterable[str]) -> list[str]:
        """The names with the pinned ones first."""
        places = {name: place for place, name in enumerate(self.pins)}
        return sorted(names, key=lambda name: places.get(name, len(places)))


def panels_of(user: User, appcode: Appcode) -> Panels:
    """One query."""
    return Panels.of_query(views_of(user, appcode, SCOPE).own)


@require_POST
def choose(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Pins or unpins a chart (`pin`), or sets the number of columns (`columns`, "" for as many as fit)."""
    shown, user = page_of(request, appcode, name), person(request)
    panels = panels_of(user, shown.cluster.appcode)
    if pin := request.POST.get("pin", "").replace("\0", "")[:MAX_NAME]:
        panels = panels.pinned(pin)
    if (columns := request.POST.get("columns")) in (*COLUMNS, ""):
        panels = replace(panels, columns=columns)
    keep_query(shown.cluster.appcode, SCOPE, panels.query, user=user)
    if request.headers.get("HX-Request"):
        return HttpResponse(status=204, headers={"HX-Trigger": "acted"})
    return redirect(safe_next(request, f"{shown.url}/metrics"))
