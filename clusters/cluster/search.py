"""Search words and filters for clusters, for the list page and REST.

Values are plain text from the URL. One that matches nothing finds nothing and is never an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from django.db.models import Q, QuerySet

from clusters.runs.models import Cluster, Run

MAX_WORDS = 8
MAX_LENGTH = 200


@dataclass(frozen=True)
class Search:
    """Every word must be in the name, the appcode or the owner's name. Empty fields match all, except that parts of a whole
    (`Cluster.part_of`) are only found by the whole's name."""

    text: str = ""
    phase: str = ""
    appcode: str = ""
    owner: str = ""
    part_of: str = ""
    cursor: str = ""

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> Search:
        """From the parameters `search`, `phase`, `appcode`, `owner`, `partOf` and `cursor` of a URL."""

        def get(name: str) -> str:
            return parameters.get(name, "").replace("\0", "").strip()[:MAX_LENGTH]

        return cls(get("search"), get("phase"), get("appcode"), get("owner"), get("partOf"), get("cursor"))

    def url(self, **changes: str) -> str:
        """The query string of this search with `changes`, "" if empty. Changing a filter returns to the first page."""
        changed = replace(self, **({"cursor": ""} | changes))
        pairs = (
            ("search", changed.text), ("phase", changed.phase), ("appcode", changed.appcode),
            ("owner", changed.owner), ("partOf", changed.part_of), ("cursor", changed.cursor),
        )  # fmt: skip
        text = urlencode([pair for pair in pairs if pair[1]])
        return f"?{text}" if text else ""

    def narrow(self, clusters: QuerySet[Cluster]) -> QuerySet[Cluster]:
        """The `clusters` that match. `phase` may name several, separated by commas."""
        clusters = clusters.filter(part_of=self.part_of)
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
