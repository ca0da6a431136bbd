"""What a window does to runs on its nodes: they are told when it is made and half an hour before, and given back when it begins.
When one begins that repeats, the next one is made, so runs that are placed meanwhile know of it.

Each step is one transaction under the lock of the cloud's places, and may be repeated: it looks for runs that are there and may
not be, so a process may die anywhere. The sweep finds what is due within its five seconds. Nothing is done at the end of a
window: the next pass sees nodes that are open again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from clusters.admission.codes import Code
from clusters.admission.windows import clock, named
from clusters.clouds.models import Window
from clusters.events import run_event
from clusters.runs.models import Run
from clusters.runs.placing.places import LOST, pause_of, take_off
from clusters.runs.placing.windows import closed, open_at, others_on, will_be_taken
from clusters.runs.status.history import MOST_SAID
from clusters.runs.status.notifications import url_of
from clusters.runs.status.phase_update import refresh
from portal import extension_points
from portal.db.advisory_lock import Lock, lock_until_commit
from portal.events import record, record_all
from portal.models import Event

# How long before a window those are told again whose runs it takes.
NOTICE = dt.timedelta(minutes=30)
EVERY = {Window.Repeat.DAILY: dt.timedelta(days=1), Window.Repeat.WEEKLY: dt.timedelta(days=7)}


def due(at: dt.datetime) -> set[str]:
    """Clouds with a window that is to be announced again, to begin, or to be followed by the next. One query."""
    soon = Q(ends_at__gt=at) & (Q(told_at=None, starts_at__lte=at + NOTICE) | Q(begun_at=None, starts_at__lte=at))
    rows = Window.objects.filter(soon | _repeats(at), cancelled_at=None, cloud__given_up_at=None)
    return set(rows.order_by().values_list("cloud__name", flat=True))


def _repeats(at: dt.datetime) -> Q:
    """Those that have begun, or ended while the portal was down, and are not followed by the next one yet."""
    return ~Q(repeat="") & Q(starts_at__lte=at)


def turn(cloud: str) -> None:
    """Does what is due on a cloud. Two queries where nothing is."""
    at = timezone.now()
    for pk in Window.objects.filter(_repeats(at), cancelled_at=None, cloud__name=cloud).values_list("pk", flat=True):
        _repeat(pk, cloud)
    rows = open_at(at).filter(cloud__name=cloud, starts_at__lte=at + NOTICE)
    for pk, begins in rows.values_list("pk", "starts_at"):
        if begins <= at:
            _take(pk, cloud)
        else:
            _tell_again(pk, cloud)


@transaction.atomic
def _repeat(pk: int, cloud: str) -> None:
    """Makes the next window after one that has begun. Runs there are told half an hour before it, like those that came since a
    window was made: a series is no news."""
    lock_until_commit(Lock.PLACES, cloud)
    at = timezone.now()
    row = Window.objects.filter(_repeats(at), cancelled_at=None, pk=pk).select_for_update(no_key=True).first()
    if row is None:
        return
    every = EVERY[Window.Repeat(row.repeat)]
    later = ((at - row.starts_at) // every + 1) * every
    Window.objects.create(
        cloud_id=row.cloud_id, nodes=row.nodes, starts_at=row.starts_at + later, ends_at=row.ends_at + later,
        appcode_id=row.appcode_id, reason=row.reason, created_by_id=row.created_by_id, repeat=row.repeat,
    )  # fmt: skip
    row.repeat = Window.Repeat.NEVER
    row.save(update_fields=["repeat"])


@transaction.atomic
def _take(pk: int, cloud: str) -> None:
    """Gives back the runs on the nodes that may not be there. Also later, for a run whose tasks came there since."""
    lock_until_commit(Lock.PLACES, cloud)
    at = timezone.now()
    row = _locked(pk, at)
    if row is None or row.starts_at > at:
        return
    rows = others_on(closed(row), cloud).select_for_update(of=("self",), no_key=True)
    runs = list(rows.select_related("cluster__appcode"))
    record_all([_give_back(run, row, at) for run in runs])
    refresh(runs, at, unsaved=LOST)
    if row.begun_at is None:
        row.begun_at = at
        row.told_at = row.told_at or at
        row.save(update_fields=["begun_at", "told_at"])
        taken = f" {_count(len(runs))} there {'was' if len(runs) == 1 else 'were'} given back." if runs else ""
        record("window.begun", actor=None, object=f"window {row}", message=f"{words(row)}.{taken}", runs=len(runs))


def _give_back(run: Run, row: Window, at: dt.datetime) -> Event:
    """Has a run taken off its cloud. It waits again, in its old place, as soon as nothing of it is left there."""
    # Its cloud has put it there, as nodes are not chosen for runs with volumes. It may do so again.
    pause = dt.timedelta(0) if row.begun_at is None else pause_of(run)
    event = take_off(run, at, "run.given_back", f"{words(row)}.", pause, window=row.pk)
    run.wait_code, run.wait_values = Code.GIVEN_BACK, {"said": run.wait_message[:MOST_SAID]}
    return event


@transaction.atomic
def _tell_again(pk: int, cloud: str) -> None:
    at = timezone.now()
    row = _locked(pk, at)
    if row is not None and row.told_at is None:
        announce(row, cloud, at)


def announce(row: Window, cloud: str, at: dt.datetime) -> list[Run]:
    """Tells of runs on its nodes that they will be given back: by event, webhook and mail. In a transaction. Returns the runs."""
    runs = will_be_taken(closed(row), cloud)
    then = "It is taken off its nodes then, and waits again in its old place. What its programs have not saved is lost."
    subject = f"loses its nodes at {clock(row.starts_at)}"
    _tell(runs, row, "run.window_announced", subject, f"{words(row)}. {then}", at)
    if row.starts_at <= at + NOTICE:
        row.told_at = at
        row.save(update_fields=["told_at"])
    return runs


def withdraw(row: Window, runs: Sequence[Run], at: dt.datetime) -> None:
    """Tells of these runs that what was announced will not happen. In a transaction."""
    _tell(
        runs,
        row,
        "run.window_withdrawn",
        "keeps its nodes",
        f"{words(row)}. This is cancelled: it keeps its nodes.",
        at,
    )


def _tell(runs: Sequence[Run], row: Window, verb: str, subject: str, said: str, at: dt.datetime) -> None:
    """By event and webhook, and by mail to who deployed it; without an address of theirs, to the notification addresses of the
    appcode. Parts of a whole get no mail."""
    record_all([run_event(verb, run, said, window=row.pk) for run in runs])
    for run in runs:
        cluster, text = run.cluster, f"{run.cluster}: {said}\n\n{settings.PORTAL_ORIGIN}{url_of(run)}\n"
        for tell in () if cluster.part_of else extension_points.mail:
            key = f"run {run.pk} window {row.pk} {at:%Y-%m-%dT%H:%M:%S.%f}"
            tell(key, cluster.appcode_id, f"{cluster}: {subject}", text, told(run))


def told(run: Run) -> list[str]:
    """The address of who deployed a run."""
    owner = run.created_by or run.cluster.created_by
    return [owner.email] if owner and owner.is_active and owner.email else []


def words(row: Window) -> str:
    """ "Maintenance of n1 and n2 from … to … by Root: new disks"."""
    by = f" by {row.created_by.display_name}" if row.created_by else ""
    when = (
        f"until {clock(row.ends_at)}"
        if row.begun_at or row.starts_at <= timezone.now()
        else f"from {clock(row.starts_at)} to {clock(row.ends_at)}"
    )
    what = "Reservation for another appcode" if row.appcode_id else "Maintenance"
    return f"{what} of {named(row.nodes)} {when}{by}: {row.reason.rstrip('.')}"


def _locked(pk: int, at: dt.datetime) -> Window | None:
    return open_at(at).select_for_update(of=("self",), no_key=True).select_related("created_by").filter(pk=pk).first()


def _count(runs: int) -> str:
    return f"{runs} run{'' if runs == 1 else 's'}"
