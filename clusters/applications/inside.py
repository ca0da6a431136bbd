"""What the portal says inside an application, to who has it open: that its end is announced; and that they keep it."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from clusters import actions
from clusters.models import Cluster
from clusters.runs.idle import outlook
from portal.access import OPERATE, may
from portal.errors import Conflict
from portal.models import User


def say(cluster: Cluster, username: str, keeps: bool) -> tuple[int, dict[str, Any]]:
    """For the gateway: a status of HTTP, and what is told."""
    if not keeps:
        return 200, announced(cluster, username)
    status, sentence = keep(cluster, username)
    return status, {"sentence": sentence}


def announced(cluster: Cluster, username: str) -> dict[str, Any]:
    """`announced` changes with what is announced, "" for nothing; `sentence` says it."""
    run = cluster.current_run
    quiet = outlook(run, timezone.now()) if run else None
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
    """A status of HTTP and a sentence."""
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None or not may(user, cluster.appcode, OPERATE):
        return 403, "Developers and owners of its appcode may keep it."
    try:
        actions.keep(cluster, acting_user=user)
    except Conflict as conflict:
        return 409, str(conflict)
    return 200, "It is kept; its idle time begins anew."
