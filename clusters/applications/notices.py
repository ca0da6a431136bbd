"""Notices that the portal shows inside an open application: an announced end, and the answer to keeping it."""

from __future__ import annotations

from typing import Any

from clusters.cluster import actions
from clusters.runs.idle import outlook
from clusters.runs.models import Cluster
from portal.access import OPERATE, may
from portal.errors import Conflict
from portal.models import User


def say(cluster: Cluster, username: str, keeps: bool) -> tuple[int, dict[str, Any]]:
    """HTTP status and body for the gateway."""
    if not keeps:
        return 200, announced(cluster, username)
    status, sentence = keep(cluster, username)
    return status, {"sentence": sentence}


def announced(cluster: Cluster, username: str) -> dict[str, Any]:
    """`announced` identifies the announcement, "" for none; `sentence` is its text."""
    run = cluster.current_run
    quiet = outlook(run) if run else None
    if run is None or quiet is None or not quiet.announced:
        return {"announced": "", "sentence": "", "mayKeep": False}
    at = f" at {quiet.stops_at:%H:%M} UTC" if quiet.stops_at else ""
    if quiet.is_last:
        sentence = f"This application reaches its time limit{at} and is ended then. Its files are kept."
    elif at:
        sentence = (
            f"This application does nothing and will be stopped{at}. Its files are kept, what is in memory is lost."
        )
    else:
        sentence = "This application does nothing. Do you still need it?"
    user = User.objects.filter(username=username, is_active=True).first()
    keeps = not quiet.is_last and user is not None and may(user, cluster.appcode, OPERATE)
    return {
        "announced": f"{run.number} {run.idle_announced_at or run.deadline}",
        "sentence": sentence,
        "mayKeep": keeps,
    }


def keep(cluster: Cluster, username: str) -> tuple[int, str]:
    """HTTP status and a sentence."""
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None or not may(user, cluster.appcode, OPERATE):
        return 403, "Developers and owners of its appcode may keep it."
    try:
        actions.keep(cluster, acting_user=user)
    except Conflict as conflict:
        return 409, str(conflict)
    return 200, "It is kept; its idle time begins anew."
