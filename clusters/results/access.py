"""Who sees and changes results: members see those of their appcodes; developers write notes and keep the appcode's view."""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Q

from clusters.results.models import ResultsView
from portal.models import Appcode, User


class Views(NamedTuple):
    """Queries of the views of a table: the user's own one, that with which others begin, and those with names; "" where none is
    kept. And the texts of those with names."""

    own: str
    common: str
    named: dict[str, str]
    texts: dict[str, str]


def views_of(user: User, appcode: Appcode, scope: str = "") -> Views:
    """One query."""
    rows = ResultsView.objects.filter(Q(person=user) | Q(person=None), appcode=appcode, scope=scope).order_by("name")
    found = list(rows)
    named = {each.name: each.query for each in found if each.person_id is None}
    own = next((each.query for each in found if each.person_id is not None), "")
    return Views(own, named.pop("", ""), named, {each.name: each.text for each in found})
