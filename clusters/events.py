"""Event-log entries of clusters and runs (portal/events.py)."""

from __future__ import annotations

from typing import Any

from clusters.runs.models import Cluster, Run
from portal.events import entry
from portal.models import Event, User


def cluster_event(verb: str, cluster: Cluster, actor: User | None, message: str, **data: Any) -> Event:
    """An event of a user, or of the portal (None), for `record_all`. `part_of` goes into its data: webhooks get only
    the events of the whole (portal/sql/rules.sql)."""
    if cluster.part_of:
        data["part_of"] = cluster.part_of
    return entry(verb, actor=actor, appcode=cluster.appcode.code, object=f"cluster {cluster}", message=message, **data)


def run_event(verb: str, run: Run, message: str, *, actor: User | None = None, **data: Any) -> Event:
    return cluster_event(verb, run.cluster, actor, message, run=run.number, **data)
