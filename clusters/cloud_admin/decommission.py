"""Gives up a cluster that is lost for good: ends in the books what lived there, since news of its end will never come.

Unseen time is not billed: usage ends, as an estimate, when the cloud was last heard. Every step is a transaction that may be
repeated, so after a crash the command starts over. The cloud is still followed: if it comes back, what is left there is found
and ended like any run that is over (`observe._found_again`), and the reported ends replace the estimates.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from billing.efficiency.capacity import record as record_gpus
from clusters.clouds import registry
from clusters.clouds.drivers.base import CloudError, Inspected, KeepsVolumes, Unanswered
from clusters.clouds.health import age
from clusters.clouds.kinds import DRIVERS
from clusters.clouds.models import Cloud, CloudState
from clusters.events import run_event
from clusters.runs.models import Run, Task
from clusters.runs.status import task_status
from clusters.runs.status.phase_update import refresh
from clusters.volumes import metering
from clusters.volumes.lifecycle import ref
from datastores.models import Volume
from portal.access import require_administrator
from portal.db.bulk_update import update_rows
from portal.errors import Conflict
from portal.events import record, record_all
from portal.models import User
from portal.text.words import readable

# A cloud heard within this time may be cut off only for a moment.
HEARD = dt.timedelta(minutes=5)
INSTEAD = (
    "An administrator gives new credentials under Clouds. If it is certain that it is lost, an operator gives it up with "
    "give_up_cloud --force."
)
# Number of runs ended in one transaction.
PORTION = 100
# Columns of a run that is given up, besides those that `refresh` writes.
ENDED = [
    "gone", "stored", "gone_message", "wait_reason", "wait_message", "blocked_reason", "blocked_message", "claim_token",
    "claimed_until",
]  # fmt: skip


@dataclass(frozen=True)
class Loss:
    """What ends when a cloud is given up. Nothing is billed from `heard_at` on; None if the cloud was never heard."""

    title: str
    runs: int
    gpus: int
    volumes: int
    heard_at: dt.datetime | None

    def __bool__(self) -> bool:
        return bool(self.runs or self.volumes)

    def __str__(self) -> str:
        heard = f"was heard last at {_moment(self.heard_at)}" if self.heard_at else "was never heard"
        if not self:
            return f"{self.title} {heard}; it has no run or volume of ours."
        told = f"{self.title} {heard}. {_count(self.runs, 'run')} with {_count(self.gpus, 'GPU')} and "
        return f"{told}{_count(self.volumes, 'volume')} with all data end there; what they cost ends at that moment."


def loss_of(row: Cloud) -> Loss:
    """Three queries."""
    runs = Run.objects.filter(cloud=row.name, gone=False)
    return Loss(
        title=row.title,
        runs=runs.count(),
        gpus=runs.filter(admitted_at__isnull=False).aggregate(gpus=Sum("gpus"))["gpus"] or 0,
        volumes=Volume.objects.filter(cloud=row.name).count(),
        heard_at=_heard_at(row.name),
    )


def is_silent(heard_at: dt.datetime | None) -> bool:
    """Whether a cloud last heard at `heard_at` (None for never) may be lost."""
    return heard_at is None or timezone.now() - heard_at > HEARD


def why_not(row: Cloud) -> str:
    """A sentence on why a cloud may not be given up now, by the database alone; "" if it may. One query."""
    heard_at = _heard_at(row.name)
    if heard_at is None or is_silent(heard_at):
        return ""
    return (
        f"{row.title} was heard {age(timezone.now() - heard_at)} ago. Only what was silent for {age(HEARD)} can be given "
        "up; to end what runs there, disable its clusters."
    )


def give_up(row: Cloud, *, acting_user: User | None, who: str = "", force: bool = False) -> Loss:
    """Ends all runs and volumes on a lost cluster in the books. Raises Conflict while it answers, or if it does meanwhile.

    `acting_user` None is an operator at the portal's own machine, called `who`. `force` ignores answers that do not show
    whether this is the cluster. A repeated call ends what has come since.
    """
    if acting_user is not None:
        require_administrator(acting_user)
    by = f" by {acting_user.display_name}" if acting_user else f" by {who} at the portal's machine" if who else ""
    if sentence := why_not(row) or _why_alive(row, force):
        raise Conflict(sentence)
    loss = _begin(row, by, acting_user)
    while _end_runs(row, loss, by, acting_user):
        pass
    for volume in Volume.objects.filter(cloud=row.name).order_by("pk"):
        _lose(row, loss, volume, by, acting_user)
    _forget_capacity(row, loss)
    return loss


def _why_alive(row: Cloud, force: bool) -> str:
    """Connects to the cluster once: the controller may be what is silent, or only our credentials may have expired."""
    try:
        source = registry.connect(row)
    except CloudError as error:
        return "" if force else f"{row.title} cannot be asked whether it is lost: {_ended(error)} {INSTEAD}"
    if not isinstance(source, Inspected):
        return ""
    try:
        uid = source.identity()
    except Unanswered:
        return ""
    except CloudError as error:
        return "" if force else f"{row.title} answers, but does not accept the portal: {_ended(error)} {INSTEAD}"
    if row.uid and row.uid != uid:
        return ""  # Another one answers where it was.
    return f"{row.title} answers. If nothing is heard of it, see whether the controller runs."


def _ended(error: CloudError) -> str:
    return f"{readable(str(error)).rstrip('.')}."


@transaction.atomic
def _begin(row: Cloud, by: str, acting_user: User | None) -> Loss:
    """From here on nothing new is created there, and its follower starts with a listing."""
    # FOR UPDATE without NO KEY, because `placement.hold` has to wait, too.
    now = Cloud.objects.select_for_update().filter(pk=row.pk).first()
    if now is None:
        raise Conflict(f"Somebody else has removed {row.name} meanwhile.")
    if sentence := why_not(now):
        raise Conflict(sentence)
    loss = loss_of(now)
    if now.given_up_at is None or loss:
        default = " It was the default, and there is none now." if now.is_default else ""
        message = f"Given up{by}. {loss}{default}"
        record(
            f"{now.kind}.given_up",
            actor=acting_user,
            object=f"{now.kind} {now.name}",
            message=message,
            runs=loss.runs,
            volumes=loss.volumes,
            heard_at=_moment(loss.heard_at),
        )
        now.enabled, now.is_default, now.given_up_at = False, False, timezone.now()
        now.revision += 1
        now.save(update_fields=["enabled", "is_default", "given_up_at", "revision", "changed_at"])
        CloudState.objects.filter(name=now.name).update(position="")
    return loss


@transaction.atomic
def _end_runs(row: Cloud, loss: Loss, by: str, acting_user: User | None) -> bool:
    """Ends a portion of the runs. False when there are none."""
    # The lock order that every other transaction uses.
    rows = Run.objects.filter(cloud=row.name, gone=False).order_by("pk").select_for_update(of=("self",), no_key=True)
    runs = {run.pk: run for run in rows.select_related("cluster__appcode", "created_by")[:PORTION]}
    if not runs:
        return False
    _require_silence(row, loss)
    at = timezone.now()
    sentence = f"{row.title} is lost and was given up{by}."
    alive = Task.objects.filter(run__in=runs, phase__in=["Pending", "Running"]).order_by("pk")
    message = f"{sentence} Nobody saw its end."
    ends = [replace(task_status.lost(task, _until(row, loss)), message=message) for task in alive]
    task_status.write(row.name, runs, ends, at)
    # `write` marked their logs as due, but there is nothing left to copy them from.
    due = Task.objects.filter(run__in=runs, log_state__in=[Task.LogState.DUE, Task.LogState.OPEN])
    due.update(log_state=Task.LogState.LOST, log_message=sentence, log_claimed_until=None)
    for run in runs.values():
        _end(run, sentence)
    update_rows(runs.values(), ENDED)
    record_all(
        [
            run_event("run.given_up", run, f"Run {run.number} was on it: {sentence}", actor=acting_user)
            for run in runs.values()
        ]
    )
    refresh(list(runs.values()), at)
    return True


def _end(run: Run, sentence: str) -> None:
    """Keeps an existing verdict: a run that users already see as ending has ended."""
    if not run.verdict:
        run.verdict, run.verdict_reason, run.verdict_message = Run.Phase.FAILED, "Lost", sentence
        run.roles = {role: {**facts, "ready": 0} for role, facts in run.roles.items()}
    elif run.spec.get("output") and run.storage_state != "stored" and not run.is_terminal:
        run.stored, run.gone_message = False, f"{sentence} Nobody can tell what was stored."
    run.gone = True
    run.wait_reason = run.wait_message = run.blocked_reason = run.blocked_message = ""
    # Revokes the claim of a worker that holds it now.
    run.claim_token = run.claimed_until = None


@transaction.atomic
def _lose(row: Cloud, loss: Loss, volume: Volume, by: str, acting_user: User | None) -> None:
    """Deletes the volume, with an estimated end. Its datastore gets a new one when a run needs it."""
    _require_silence(row, loss)
    metering.meter(volume.pk, "", _until(row, loss), estimated=True)
    deleted, _ = Volume.objects.filter(pk=volume.pk).delete()
    if not deleted:
        return
    kind = DRIVERS[row.kind]
    there = (
        f" Should the cluster come back, it is {kind.volume_there(ref(volume))}."
        if issubclass(kind, KeepsVolumes)
        else ""
    )
    after = " A run that needs it gets a new, empty one." if volume.datastore_id else ""
    record(
        "datastore.volume_lost",
        actor=acting_user,
        appcode=volume.appcode,
        object=f"datastore {volume.appcode}/{volume.name}",
        message=f"{row.title} is lost and was given up{by}, and with it the volume with all data.{after}{there}",
    )


@transaction.atomic
def _forget_capacity(row: Cloud, loss: Loss) -> None:
    _require_silence(row, loss)
    CloudState.objects.filter(name=row.name).update(capacity={}, simulated=0, notes=[])
    record_gpus(row.name, {}, timezone.now())


def _require_silence(row: Cloud, loss: Loss) -> None:
    """Called with the rows locked, so that all earlier news has been seen. Raises Conflict if the cloud was heard again."""
    if _heard_at(row.name) != loss.heard_at:
        raise Conflict(
            f"{row.title} was heard again meanwhile. What had been ended by then is ended there, too; the rest goes on. Enable "
            "it when it is well."
        )


def _until(row: Cloud, loss: Loss) -> dt.datetime:
    return loss.heard_at or row.created_at


def _heard_at(name: str) -> dt.datetime | None:
    return CloudState.objects.filter(name=name).values_list("heard_at", flat=True).first()


def _moment(at: dt.datetime | None) -> str | None:
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC" if at else None


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
