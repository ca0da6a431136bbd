"""Stops what nobody needs, after announcing it: rows → runs/idle_policy.py → what it decides, in one transaction a run.

Whether a run works is told by its cloud (`observe`), and when somebody was let in by the gateway; each run has a column that says
when it is to be looked at next, so that thousands that work cost nothing. What is stopped ends as if somebody had disabled it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce, Greatest, Least, Now
from django.utils import timezone

from clusters.access import clusters_for
from clusters.clouds.drivers.base import ActivitySeen
from clusters.clouds.health import SILENT
from clusters.clouds.models import LOCAL, CloudState
from clusters.events import run_event
from clusters.frameworks import FRAMEWORKS
from clusters.gateway.models import Origin
from clusters.runs.ending import end_by_portal, span
from clusters.runs.idle_policy import Life, Step, step
from clusters.runs.models import Cluster, Run
from clusters.runs.status.notifications import url_of
from portal import extension_points
from portal.events import record_all
from portal.models import User
from portal.text.words import readable

REASON = "Idle"
# Runs checked in one turn; the recheck interval while the cloud is silent, or where only visits count as use.
PORTION, AGAIN = 500, dt.timedelta(seconds=15)
# Activity counts as unknown after this many missed polling rounds.
ASKED = 4
UNASKED = "Nobody has asked yet whether it works."
RESUMES = "Its files are kept, and Re-Deploy resumes it."
# Columns written here.
COLUMNS = ["activity", "activity_since", "activity_why", "kept_at", "idle_announced_at", "idle_stops_at",
           "end_announced_at", "needed_asked_at", "look_at"]  # fmt: skip


def note(run: Run, item: ActivitySeen, now: dt.datetime) -> None:
    """Writes the activity that a cloud reported to a locked run. An idle period starts no earlier than the previous state did
    (or now, without one): machine clocks differ, and idle time from before that does not count."""
    before = run.activity_since if run.activity else now
    since = now if item.state != "idle" else min(now, max(item.since, before or now))
    if item.state == run.activity and (item.state != "idle" or before is None or since <= before):
        return
    run.activity, run.activity_since, run.activity_why = item.state, since, readable(item.why, 300)
    run.look_at = now


def turn(now: dt.datetime) -> int:
    """Checks the runs that are due. Returns their number. May run twice or concurrently."""
    due = Run.objects.filter(look_at__lte=now, desired=Run.Desired.RUNNING, verdict="", gone=False)
    ids = list(due.order_by("look_at").values_list("pk", flat=True)[:PORTION])
    for run_id in ids:
        _look(run_id, now)
    return len(ids)


@transaction.atomic
def _look(run_id: int, now: dt.datetime) -> None:
    rows = Run.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
    run = rows.select_related("cluster__appcode", "cluster__created_by", "created_by").filter(pk=run_id).first()
    if run is None or run.desired != Run.Desired.RUNNING or run.verdict or run.gone:
        return
    run.look_at = None
    while True:
        life = life_of(run)
        what, due = step(life, now)
        if not what:
            break
        _do(run, what, life, now)
        if what == "stop":
            return
    soon = now + AGAIN if not life.is_heard or (life.signal == "use" and run.idle_announced_at) else None
    run.look_at = min(filter(None, (due, soon)), default=None)
    run.save(update_fields=COLUMNS)


def life_of(run: Run) -> Life:
    """The facts about a run with its cluster. One query, plus one where visits count as use."""
    signal = FRAMEWORKS[run.spec["framework"]].idle_signal
    idle = run.spec.get("idle") or {"policy": "never", "after": 0}
    counts = run.spec["mode"] == "service" and run.phase == Run.Phase.RUNNING
    return Life(
        signal=signal,
        policy=idle["policy"],
        after=dt.timedelta(seconds=idle["after"]),
        running_since=run.started_at if counts and not run.verdict else None,
        idle_since=run.activity_since if run.activity == "idle" else None,
        used_at=used_at(run.cluster) if signal == "use" else None,
        is_heard=_is_heard(run.cloud, signal) if counts else True,
        kept_at=run.kept_at,
        announced_at=run.idle_announced_at,
        deadline=run.deadline,
        end_announced_at=run.end_announced_at,
        asked_at=run.needed_asked_at,
    )


@dataclass(frozen=True)
class Outlook:
    """What users see: since when a run has been idle, when it stops if it stays idle, and whether that was announced.
    `is_last`: the end by its time limit was announced. Times are None while the run works or its activity is unknown; where
    visits count as use, also until the announcement."""

    since: dt.datetime | None = None
    stops_at: dt.datetime | None = None
    announced: bool = False
    is_last: bool = False


def outlook(run: Run) -> Outlook:
    """Needs no query."""
    if run.phase != Run.Phase.RUNNING or run.verdict or run.desired != Run.Desired.RUNNING:
        return Outlook()
    if run.end_announced_at and run.deadline and (run.idle_stops_at is None or run.deadline <= run.idle_stops_at):
        return Outlook(stops_at=run.deadline, announced=True, is_last=True)
    since = run.activity_since if run.activity == "idle" else None
    if run.idle_announced_at:
        return Outlook(since, run.idle_stops_at, True)
    idle = run.spec.get("idle")
    if since is None or not idle or idle["policy"] != "stop":
        return Outlook(since)
    return Outlook(since, max(since, run.kept_at or since) + dt.timedelta(seconds=idle["after"]))


def used_at(cluster: Cluster) -> dt.datetime | None:
    """When the gateway last let a user in at any of its endpoints, accurate to about a minute."""
    known = Origin.objects.filter(label__in=cluster.origins.values(), used_at__isnull=False)
    return max((at for at in known.values_list("used_at", flat=True) if at), default=None)


def _is_heard(cloud: str, signal: str) -> bool:
    """Whether its runs' activity is current: the cloud reports news, and where the portal polls runs, did so recently."""
    state, now = CloudState.objects.filter(name=cloud, trouble="").only("heard_at", "asked_at").first(), timezone.now()
    if state is None or state.heard_at is None or now - state.heard_at > SILENT:
        return False
    if cloud == LOCAL or signal != "work":
        return True
    return state.asked_at is not None and now - state.asked_at <= dt.timedelta(
        seconds=ASKED * settings.ACTIVITY_SECONDS
    )


def _do(run: Run, what: Step, life: Life, now: dt.datetime) -> None:
    after = span(int(life.after.total_seconds()))
    if what == "announce":
        run.idle_announced_at = now
        if life.policy == "stop":
            at = run.idle_stops_at = max((life.quiet_since or now) + life.after, now + life.notice)
            subject = f"will be stopped at {_clock(at)}: it does nothing"
            said = f"It has done nothing since {_clock(life.quiet_since or now)} and will be stopped at {_clock(at)}. {RESUMES} "
            said += "What its programs hold in memory is lost. Do you still need it as it is? Keep it with one click:"
        else:
            subject = f"has done nothing for {after}"
            said = (
                f"It has done nothing since {_clock(life.quiet_since or now)}. Nobody stops it; do you still need it?"
            )
        record_all([run_event("run.idle_announced", run, said.partition(" Do you")[0])])
        _mail(run, f"idle {now:%Y-%m-%dT%H:%M:%S}", subject, said)
    elif what == "withdraw":
        run.idle_announced_at = run.idle_stops_at = None
        record_all([run_event("run.idle_withdrawn", run, "It works again or is wanted: it goes on.")])
    elif what == "stop":
        run.save(update_fields=COLUMNS)
        end_by_portal(run, REASON, f"Stopped after {after} without work. {RESUMES}")
    elif what == "announce_end" and run.deadline:
        run.end_announced_at = now
        said = (
            f"It reaches its time limit of {span(run.spec['timeLimit'])} at {_clock(run.deadline)} and is ended then. "
        )
        said = f"{said}{RESUMES}"
        record_all([run_event("run.end_announced", run, said)])
        _mail(run, "end", f"reaches its time limit at {_clock(run.deadline)}", said)
    elif what == "ask" and run.started_at:
        run.needed_asked_at = now
        cost = f"{run.cost_at(now):,.2f} {settings.CURRENCY}"
        said = f"It has run since {run.started_at.astimezone(dt.UTC):%Y-%m-%d}, costs go on ({cost} so far), and it has no end. "
        said += "Nothing is stopped. Stop it yourself when it is done; if it is needed, say so with one click (Keep):"
        record_all(
            [run_event("run.needed_asked", run, f"Its owner was asked whether it is still needed: {cost} so far.")]
        )
        _mail(run, f"needed {now:%Y-%m-%d}", f"is it still needed? {cost} so far", said)


def _noticed(user: User) -> QuerySet[Run]:
    """Runs of a person of which a notice holds. One that is withdrawn, or followed by the end, is told no more."""
    runs = Run.objects.filter(
        created_by=user, gone=False, phase=Run.Phase.RUNNING, verdict="", desired=Run.Desired.RUNNING,
        cluster__in=clusters_for(user).filter(part_of=""),
    )  # fmt: skip
    # The greatest of those that are not NULL.
    newest = Greatest("idle_announced_at", "end_announced_at", "needed_asked_at")
    return runs.annotate(noticed_at=newest).select_related("cluster__appcode")


def _notice(run: Run) -> extension_points.News:
    at = max(filter(None, (run.idle_announced_at, run.end_announced_at, run.needed_asked_at)))
    if at == run.end_announced_at and run.deadline:
        verb, title, text = (
            "run.end_announced",
            "reaches its time limit",
            f"It is ended at {_clock(run.deadline)}. {RESUMES}",
        )
    elif at == run.idle_announced_at:
        verb, title = "run.idle_announced", "does nothing"
        text = "Nobody stops it; do you still need it?"
        if run.idle_stops_at:
            text = (
                f"It is stopped at {_clock(run.idle_stops_at)}, unless it works again or somebody keeps it. {RESUMES}"
            )
    else:
        verb, title, text = "run.needed_asked", "is it still needed?", "It has no end, and its costs go on."
    return extension_points.News(verb, at, f"{run.cluster}: {title}", f"Run {run.number}. {text}", url_of(run))


# What the bell tells of them.
TOLD = extension_points.Told("notice", _noticed, "noticed_at", _notice)


def _mail(run: Run, about: str, subject: str, text: str) -> None:
    """Mails the user who deployed it; without an address of theirs, the notification addresses of the appcode."""
    cluster = run.cluster
    owner = run.created_by or cluster.created_by
    to = [owner.email] if owner and owner.is_active and owner.email else []
    link = f"{settings.PORTAL_ORIGIN}{url_of(run)}"
    for tell in extension_points.mail:
        tell(f"run {run.pk} {about}", cluster.appcode_id, f"{cluster}: {subject}", f"{cluster}: {text}\n\n{link}\n", to)


def _clock(at: dt.datetime) -> str:
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"


def saved(clusters: QuerySet[Any, Any] | Collection[Cluster], since: dt.datetime) -> int:
    """GPU-seconds since `since` that idle stops freed: each stopped run's GPUs from its end to the cluster's next deployment,
    its deletion, or now. One query."""
    following = Run.objects.filter(cluster=OuterRef("cluster"), number__gt=OuterRef("number")).order_by("number")
    again = Subquery(following.values("created_at")[:1], output_field=DateTimeField())
    until = Least(Coalesce(again, Now()), Coalesce("cluster__deleted_at", Now()), Now())
    stops = Run.objects.filter(stop_reason=REASON, finished_at__isnull=False, gpus__gt=0, cluster__in=clusters)
    free = stops.annotate(until=until, begin=Greatest("finished_at", since, output_field=DateTimeField()))
    held = ExpressionWrapper(F("gpus") * (F("until") - F("begin")), output_field=DurationField())
    found = free.filter(until__gt=F("begin")).aggregate(held=Sum(held))
    return int(found["held"].total_seconds()) if found["held"] else 0
