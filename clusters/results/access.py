"""Who sees and changes results: members see those of their appcodes; developers write notes and keep the appcode's view."""

from __future__ import annotations

from typing import NamedTuple

from django.db.models import Q

from clusters.results.models import ResultsView
from portal.models import Appcode, User


class Views(NamedTuple):
    """Queries of the views of a table: the user's own one, that with which others begin, and those with names; "" where none is
    kept."""

    own: str
    common: str
    named: dict[str, str]


def views_of(user: User, appcode: Appcode, scope: str = "") -> Views:
    """One query."""
    rows = ResultsView.objects.filter(Q(person=user) | Q(person=None), appcode=appcode, scope=scope).order_by("name")
    own, of_appcode = "", dict[str, str]()
    for person, name, query in rows.values_list("person", "name", "query"):
        if person is None:
            of_appcode[name] = query
        else:
            own = query
    return Views(own, of_appcode.pop("", ""), of_appcode)
