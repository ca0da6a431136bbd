"""Rows → by which right runs hold their GPUs: what each appcode holds of its quota and beyond it, and which runs of a cloud may
have to give theirs back. Calls no cloud.

What fits the quota in order of class and age is inside it, whatever the cloud. Nothing of this is stored, so a larger quota
counts at once. Where nothing may be borrowed, nothing is: who holds more than the quota held it before the quota was lowered, and
keeps it. Only appcodes that borrow are read run by run.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from django.db.models import BooleanField, F, Func, Max, Q, QuerySet, Sum
from django.db.models.fields.json import KT

from billing.sums.decayed_use import decayed_use
from clusters.admission.order import Level, PriorityClass, Share, levels
from clusters.admission.packing import Sizes
from clusters.admission.taking import MOST_LOST, Holding
from clusters.runs.models import Cluster, Run, Task
from clusters.runs.placing.known import ALIVE, Waiting, amounts, class_of, full_minute, to_end, without
from portal.models import Appcode

# A row of an older release has no class, and is not spare.
SPARE = Q(spec__contains={"priorityClass": "spare"})
# Runs that have GPUs, or places for them.
HOLDS = Q(gone=False, gpus__gt=0) & (Q(placed_at__isnull=False) | Q(applied_at__isnull=False))
# And those that have places on nodes with GPUs, or slices of GPUs, which no quota counts.
HAS = Func(
    F("resources"), template="jsonb_path_exists(%(expressions)s, '$.*.gpus ? (@ > 0)')", output_field=BooleanField()
)
HOLDS_ANY = Q(HAS, gone=False) & (Q(placed_at__isnull=False) | Q(applied_at__isnull=False))
# How long a run is left alone from its beginning.
PROTECTED: Mapping[Level, dt.timedelta] = {
    Level.SPARE: dt.timedelta(minutes=1),
    Level.BORROWED: dt.timedelta(minutes=10),
    Level.QUOTA: dt.timedelta(minutes=10),
}


@dataclass(frozen=True)
class Held:
    """A run that holds GPUs. `since`: when it was whole, or got its places. `saved`: when its newest checkpoint was stored.
    `grace`: the seconds that its programs have to end."""

    run: int
    appcode: str
    gpus: int
    priority_class: PriorityClass
    cloud: str
    since: dt.datetime
    saved: dt.datetime | None = None
    grace: int = 0

    @property
    def is_saved(self) -> bool:
        """Whether it has a checkpoint of what it computed since then."""
        return self.saved is not None and self.saved > self.since

    def unsaved(self, at: dt.datetime) -> int:
        """The seconds of work that it would lose."""
        return max(0, int((at - (self.saved if self.saved and self.is_saved else self.since)).total_seconds()))


@dataclass(frozen=True)
class Rights:
    """`shares` by appcode, named by its id; `over`: runs of those that hold more than their quota, on all clouds."""

    shares: Mapping[str, Share] = field(default_factory=dict)
    over: Sequence[Held] = ()


RightName = Literal["quota", "borrowed", "spare"]


@dataclass(frozen=True)
class Right:
    """By which right a run holds its GPUs. `until`: until when it is left alone; None inside the quota, where no other appcode
    takes them."""

    name: RightName
    until: dt.datetime | None

    def may_be_taken(self, at: dt.datetime) -> bool:
        return self.until is not None and self.until <= at


NAMES: Mapping[Level, RightName] = {Level.SPARE: "spare", Level.BORROWED: "borrowed", Level.QUOTA: "quota"}


def rights_of(runs: Iterable[Run]) -> dict[int, Right]:
    """By which right these runs hold their GPUs, for those that the portal has placed. They have their appcodes. At most one
    query, however many runs there are."""
    here = [
        run
        for run in runs
        if (run.gpus or is_sliced(run)) and run.placed_at and not (run.gone or run.given_back_at or run.is_terminal)
    ]
    classes = {run.pk: class_of(run.spec.get("priorityClass")) for run in here}
    counted = [run.cluster.appcode for run in here if classes[run.pk] != "spare"]
    quotas = {appcode.pk: appcode.gpu_quota for appcode in counted if appcode.gpu_borrow}
    level_of = _beyond(quotas) if quotas else {}
    found = {}
    for run in here:
        level = Level.SPARE if classes[run.pk] == "spare" else level_of.get(run.pk, Level.QUOTA)
        since = _since(run.whole_at, run.placed_at, run.created_at)
        found[run.pk] = Right(NAMES[level], None if level == Level.QUOTA else since + PROTECTED[level])
    return found


def is_sliced(run: Run) -> bool:
    """Whether it asks for slices of GPUs alone."""
    return not run.gpus and any(asked["gpus"] for asked in run.resources.values())


def unborrowed(appcode: int, quota: int, but: Cluster | None = None) -> int:
    """GPUs that an appcode may still start without borrowing, once the runs of `but` are over. One query."""
    inside = levels([*_rows(Q(cluster__appcode=appcode) & ~SPARE & without(but))], quota)
    return quota - sum(run.gpus for run, level in inside if level == Level.QUOTA)


def _beyond(quotas: Mapping[int, int]) -> dict[int, Level]:
    """Levels of the runs of those of these appcodes that borrow."""
    mine = Run.objects.filter(HOLDS & ~SPARE, cluster__appcode__in=quotas, cluster__appcode__gpu_borrow__gt=0)
    sums = mine.values("cluster__appcode").order_by()
    more = sums.annotate(held=Sum("gpus"), quota=Max("cluster__appcode__gpu_quota")).filter(held__gt=F("quota"))
    own: dict[int, list[Held]] = {}
    for each in _rows(~SPARE & Q(cluster__appcode__in=more.values("cluster__appcode"))):
        own.setdefault(int(each.appcode), []).append(each)
    return {run.run: level for appcode, several in own.items() for run, level in levels(several, quotas[appcode])}


def rights(waiting: Sequence[Waiting], at: dt.datetime, also: Mapping[str, str] | None = None) -> Rights:
    """The shares of appcodes that hold GPUs or wait for some; `also`: of these, with their lines. Four queries at most."""
    lines = {each.appcode: each.line for each in waiting} | dict(also or {})
    sums = Run.objects.filter(HOLDS).values("cluster__appcode", "created_by").order_by().annotate(
        line=Max("namespace"), normal=Sum("gpus", filter=~SPARE, default=0), spare=Sum("gpus", filter=SPARE, default=0)
    )  # fmt: skip
    held, people = dict[str, tuple[int, int]](), dict[str, list[tuple[str, int]]]()
    columns = ("cluster__appcode", "created_by", "line", "normal", "spare")
    for appcode, person, line, normal, spare in sums.values_list(*columns):
        more = held.get(str(appcode), (0, 0))
        held[str(appcode)] = more[0] + normal, more[1] + spare
        people.setdefault(str(appcode), []).append((str(person or ""), normal + spare))
        lines.setdefault(str(appcode), line)
    terms = Appcode.objects.filter(pk__in=map(int, lines)).values_list("pk", "gpu_quota", "gpu_borrow", "weight")
    found = {str(pk): rest for pk, *rest in terms}
    exceeding = [
        int(each)
        for each, (normal, _) in held.items()
        for quota, borrow, _ in [found.get(each, (normal, 0, 0))]
        if borrow and normal > quota
    ]
    over = list(_rows(Q(cluster__appcode__in=exceeding))) if exceeding else []
    own: dict[str, list[Held]] = {}
    for run in over:
        own.setdefault(run.appcode, []).append(run)
    used = decayed_use(at, [int(each) for each in found])
    shares = {}
    for name, (quota, borrow, weight) in found.items():
        normal, spare = held.get(name, (0, 0))
        inside = normal
        if borrow and normal > quota:
            inside = sum(run.gpus for run, level in levels(own[name], quota) if level == Level.QUOTA)
        shares[name] = Share(
            quota,
            inside,
            normal - inside,
            spare,
            lines[name],
            quota + borrow,
            weight,
            used.get(int(name), 0),
            tuple(sorted(people.get(name, ()))),
        )
    return Rights(shares, over)


def holdings(cloud: str, rights: Rights, waiting: Sequence[Waiting], at: dt.datetime) -> tuple[Holding, ...]:
    """Runs of a cloud that may have to give their GPUs back: spare ones, those of appcodes beyond their quota, and those of
    appcodes of which an urgent run waits. Two queries."""
    pressed = {int(each.appcode) for each in waiting if each.priority_class == "urgent"}
    others = _rows(Q(cloud=cloud) & (SPARE | Q(cluster__appcode__in=pressed)), HOLDS_ANY)
    own: dict[str, dict[int, Held]] = {}
    for each in [*rights.over, *others]:
        own.setdefault(each.appcode, {})[each.run] = each
    level_of: dict[int, Level] = {}
    for appcode, runs in own.items():
        share = rights.shares.get(appcode)
        # Of an appcode within its quota not all runs are known, and all are inside.
        quota = share.quota if share and share.borrowed else sum(each.gpus for each in runs.values())
        level_of |= {run.run: level for run, level in levels(sorted(runs.values(), key=lambda run: run.run), quota)}
    here = {run.run: run for runs in own.values() for run in runs.values() if run.cloud == cloud}
    placed = Run.objects.filter(ALIVE, pk__in=here, placed_at__isnull=False).values_list("pk", flat=True)
    nodes = _nodes(here)
    held = {run: here[run].gpus or sum(sizes.units for sizes in of.values()) for run, of in nodes.items()}
    return tuple(
        Holding(
            str(run.run),
            run.appcode,
            held[run.run],
            nodes[run.run],
            level_of[run.run],
            run.priority_class,
            held[run.run] * min(MOST_LOST, run.unsaved(at)),
            at < (until := run.since + PROTECTED[level_of[run.run]]),
            int(until.timestamp()),
            full_minute(to_end(at, run.grace)),
        )
        for run in (here[pk] for pk in sorted(placed))
        if run.run in nodes
    )


def held_by(run: Run) -> Held:
    """What a row says of a run that holds GPUs."""
    return Held(
        run.pk, str(run.cluster.appcode_id), run.gpus, class_of(run.spec.get("priorityClass")), run.cloud,
        _since(run.whole_at, run.placed_at, run.created_at), run.checkpoint_at,
    )  # fmt: skip


def _rows(which: Q, holds: Q = HOLDS) -> Iterable[Held]:
    rows: QuerySet[
        Run,
        tuple[
            int, int, int, str | None, str, dt.datetime | None, dt.datetime | None, dt.datetime, dt.datetime | None,
            str | None,
        ],
    ]  # fmt: skip
    rows = Run.objects.filter(holds, which).order_by("pk").values_list(
        "pk", "cluster__appcode", "gpus", KT("spec__priorityClass"), "cloud", "whole_at", "placed_at", "created_at",
        "checkpoint_at", KT("spec__terminationGracePeriod"),
    )  # fmt: skip
    for pk, appcode, gpus, priority_class, cloud, whole_at, placed_at, created_at, saved, grace in rows:
        since = _since(whole_at, placed_at, created_at)
        yield Held(pk, str(appcode), gpus, class_of(priority_class), cloud, since, saved, int(grace or 0))


def _since(whole_at: dt.datetime | None, placed_at: dt.datetime | None, created_at: dt.datetime) -> dt.datetime:
    return whole_at or placed_at or created_at


def _nodes(runs: Collection[int]) -> dict[int, dict[str, Sizes]]:
    """What tasks of these runs hold on each node. One query."""
    tasks = Task.objects.filter(run__in=runs, phase__in=["Pending", "Running"]).exclude(node="")
    found: dict[int, dict[str, Sizes]] = {}
    for run, node, sizes in amounts(tasks, "run", "node"):
        found.setdefault(run, {})[node] = sizes
    return found
