"""Finding clusters: words, filters and keyset pages, for the list page and for REST alike.

A page costs one query however many clusters there are, because "after cluster 4711" is a place in an index while "page 300"
is a count. Filters are plain text from an address; one that matches nothing finds nothing and is never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlencode

from django.db.models import Model, Q, QuerySet

from clusters.models import Cluster, Run

M = TypeVar("M", bound=Model)

MAX_WORDS = 8
MAX_LENGTH = 200
# What fits into PostgreSQL's bigint, so that a made-up cursor finds nothing instead of failing.
MAX_ID = 2**63 - 1


@dataclass(frozen=True)
class Search:
    """What a person looks for. Every word must be in the name, the appcode or the owner's name; empty fields match all."""

    text: str = ""
    phase: str = ""
    appcode: str = ""
    owner: str = ""
    cursor: str = ""

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> Search:
        """From an address: `?search=&phase=&appcode=&owner=&cursor=`."""

        def get(name: str) -> str:
            return parameters.get(name, "").replace("\0", "").strip()[:MAX_LENGTH]

        return cls(get("search"), get("phase"), get("appcode"), get("owner"), get("cursor"))

    @property
    def is_filtered(self) -> bool:
        return bool(self.text or self.phase or self.appcode or self.owner)

    def url(self, **changes: str) -> str:
        """The query string of this search with `changes`, "" when nothing is left of it.

        Changing a filter starts at the first page.
        """
        changed = replace(self, **({"cursor": ""} | changes))
        pairs = (
            ("search", changed.text), ("phase", changed.phase), ("appcode", changed.appcode),
            ("owner", changed.owner), ("cursor", changed.cursor),
        )  # fmt: skip
        text = urlencode([pair for pair in pairs if pair[1]])
        return f"?{text}" if text else ""

    def narrow(self, clusters: QuerySet[Cluster]) -> QuerySet[Cluster]:
        """`clusters` without what does not match. `phase` may name several, divided by commas."""
        for word in self.text.split()[:MAX_WORDS]:
            clusters = clusters.filter(
                Q(name__icontains=word) | Q(appcode__code__icontains=word) | Q(created_by__username__icontains=word)
            )
        if self.phase:
            wanted = {phase.strip().lower() for phase in self.phase.split(",")}
            clusters = clusters.filter(current_run__phase__in=[p for p in Run.Phase.values if p.lower() in wanted])
        if self.appcode:
            clusters = clusters.filter(appcode__code=self.appcode)
        if self.owner:
            clusters = clusters.filter(created_by__username=self.owner)
        return clusters


def page(rows: QuerySet[M], cursor: str, size: int) -> tuple[list[M], str]:
    """The `size` newest of `rows` after `cursor` ("" for the first page), and the cursor of the next page ("" at the end).

    A cursor is the id of the last row that was shown, so rows that come or go meanwhile neither repeat nor hide others.
    """
    if cursor:
        after = int(cursor) if cursor.isdecimal() and cursor.isascii() else 0
        rows = rows.filter(pk__lt=min(after, MAX_ID))
    found = list(rows.order_by("-pk")[: size + 1])
    return found[:size], str(found[size - 1].pk) if len(found) > size else ""
