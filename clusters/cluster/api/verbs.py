"""REST: the verbs of clusters and applications."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter

from clusters.cluster import actions
from portal.api.verbs import Verb

VERBS = (
    Verb(
        "deploy", actions.deploy, "Start the next run", "409 while a run is alive.",
        flags=(OpenApiParameter(
            "newest", bool,
            description="Of code in Git: from the commit that its ref has by now, not from that of the run before.",
        ),),
    ),
    Verb(
        "disable", actions.disable, "End the run and give its GPUs back",
        "Its output is stored first, and its files stay. Repeating it changes nothing.",
    ),
    Verb("cancel", actions.cancel, "End a run that has not begun to run", "409 once it has."),
    Verb(
        "keep", actions.keep, "Say that it is still needed",
        "What was announced for its idleness is withdrawn, and its clock begins anew. 409 when it does not run.",
    ),
)  # fmt: skip
