"""The tab Shares of the page Queue: which part of each cloud every business line and appcode has, and what it deserves."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from clusters.runs.queries.shares import Tree, trees
from portal.access import roles_of
from portal.lending import promised
from portal.models import Appcode
from portal.pages.appcodes import person


@require_safe
def shares(request: HttpRequest) -> HttpResponse:
    roles = roles_of(person(request))
    found = trees(None if roles is None else list(roles))
    shown = [(each, promised(each.quotas, each.gpus)) for each in found]
    return render(request, "clusters/cluster/shares.html", {"shares": shown, "mine": _mine(found, roles)})


def _mine(found: list[Tree], roles: dict[int, str] | None) -> set[str]:
    """Codes of appcodes whose pages the reader may open."""
    codes = {code for tree in found for line in tree.lines for code in line.appcodes}
    if roles is None:
        return codes
    return set(Appcode.objects.filter(pk__in=list(roles), code__in=codes).values_list("code", flat=True))
