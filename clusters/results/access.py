"""Who sees and changes results: members see those of their appcodes; developers write notes and keep the appcode's view."""

from __future__ import annotations

from django.db.models import Q

from clusters.results.models import ResultsView
from portal.models import Appcode, User


def views_of(user: User, appcode: Appcode, scope: str = "") -> tuple[str, str]:
    """The query of the user's own view of a table and that of the appcode; "" where none is kept. One query."""
    rows = ResultsView.objects.filter(Q(person=user) | Q(person=None), appcode=appcode, scope=scope)
    found: dict[int | None, str] = dict(rows.values_list("person", "query"))
    return found.get(user.pk, ""), found.get(None, "")
