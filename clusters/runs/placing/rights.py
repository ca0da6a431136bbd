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
from clusters.admission.taking import Holding
from clusters.runs.models import Cluster, Run, Task
from clusters.runs.placing.known import ALIVE, Terms, Waiting, amounts, full_minute, to_end, without

SPARE, URGENT = Q(priority_class="spare"), Q(priority_class="urgent")
# GPUs of runs that are not spare, of those that are, and of urgent ones.
NOTHING = (0, 0, 0)
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
# Nobody knows when a run wrote its last checkpoint; one that writes none must not be safe for ever.
MOST_LOST = 4 * 3600


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
    """By appcode, named by its id. `over`: the runs of those that borrow, on all clouds, with their levels."""

    shares: Mapping[str, Share] = field(default_factory=dict)
    over: Mapping[str, Sequence[tuple[Held, Level]]] = field(default_factory=dict)


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
    counted = [run.cluster.appcode for run in here if run.priority_class != "spare"]
    quotas = {str(appcode.pk): appcode.gpu_quota for appcode in counted if appcode.gpu_borrow}
    level_of = {run.run: level for several in _borrowing(quotas).values() for run, level in several} if quotas else {}
    found = {}
    for run in here:
        level = Level.SPARE if run.priority_class == "spare" else level_of.get(run.pk, Level.QUOTA)
        since = _since(run.whole_at, run.placed_at, run.created_at)
        found[run.pk] = Right(NAMES[level], None if level == Level.QUOTA else since + PROTECTED[level])
    return found


def is_sliced(run: Run) -> bool:
    """Whether it asks for slices of GPUs alone."""
    return not run.gpus and any(asked["gpus"] for asked in run.resources.values())


def unborrowed(appcode: int, quota: int, but: Cluster | None = None) -> int:
    """GPUs that an appcode may still start without borrowing, once the runs of `but` are over. One query."""
    return quota - _inside(levels([*_rows(Q(cluster__appcode=appcode) & ~SPARE & without(but))], quota))


def rights(waiting: Sequence[Waiting], at: dt.datetime, also: Mapping[str, Terms] | None = None) -> Rights:
    """The shares of appcodes that hold GPUs or wait for some; `also`: of these. Three queries at most."""
    terms = {each.appcode: each.terms for each in waiting} | dict(also or {})
    appcode = "cluster__appcode"
    sums = Run.objects.filter(HOLDS).order_by().values_list(
        appcode, "created_by", f"{appcode}__gpu_quota", f"{appcode}__gpu_borrow", f"{appcode}__weight"
    ).annotate(
        line=Max("namespace"), normal=Sum("gpus", filter=~SPARE, default=0), spare=Sum("gpus", filter=SPARE, default=0),
        urgent=Sum("gpus", filter=URGENT, default=0),
    )  # fmt: skip
    held, people = dict[str, tuple[int, int, int]](), dict[str, list[tuple[str, int]]]()
    for pk, person, quota, borrow, weight, line, normal, spare, urgent in sums:
        more = held.get(str(pk), NOTHING)
        held[str(pk)] = more[0] + normal, more[1] + spare, more[2] + urgent
        people.setdefault(str(pk), []).append((str(person or ""), normal + spare))
        terms.setdefault(str(pk), Terms(line, quota, borrow, weight))
    quotas = {
        each: terms[each].quota
        for each, (normal, *_) in held.items()
        if terms[each].borrow and normal > terms[each].quota
    }
    over = _borrowing(quotas) if quotas else {}
    used = decayed_use(at, [int(each) for each in terms])
    shares = {}
    for name, of in terms.items():
        normal, spare, urgent = held.get(name, NOTHING)
        inside = _inside(over[name]) if name in over else normal
        shares[name] = Share(
            of.quota, inside, normal - inside, spare, of.line, of.quota + of.borrow, of.weight, used.get(int(name), 0),
            tuple(sorted(people.get(name, ()))), urgent,
        )  # fmt: skip
    return Rights(shares, over)


def _borrowing(quotas: Mapping[str, int]) -> dict[str, list[tuple[Held, Level]]]:
    """The runs of those of these appcodes that hold more than their quotas, with their levels. One query."""
    normal = Run.objects.filter(HOLDS & ~SPARE, cluster__appcode__in=[int(each) for each in quotas])
    sums = normal.values("cluster__appcode").order_by()
    more = sums.annotate(held=Sum("gpus"), quota=Max("cluster__appcode__gpu_quota")).filter(held__gt=F("quota"))
    own: dict[str, list[Held]] = {}
    for each in _rows(Q(cluster__appcode__in=more.values("cluster__appcode"))):
        own.setdefault(each.appcode, []).append(each)
    return {appcode: levels(several, quotas[appcode]) for appcode, several in own.items()}


def _inside(runs: Iterable[tuple[Held, Level]]) -> int:
    """The GPUs of those that are inside the quota."""
    return sum(run.gpus for run, level in runs if level == Level.QUOTA)


def holdings(cloud: str, rights: Rights, waiting: Sequence[Waiting], at: dt.datetime) -> tuple[Holding, ...]:
    """Runs of a cloud that may have to give their GPUs back: spare ones, those of appcodes beyond their quota, and those of
    appcodes of which an urgent run waits. Three queries at most."""
    here = {run.run: (run, level) for own in rights.over.values() for run, level in own if run.cloud == cloud}
    pressed = {int(each.appcode) for each in waiting if each.priority_class == "urgent"}
    # No share counts slices, so whether spare runs hold some is only known by looking.
    sliced = any(each.gpus > each.whole_gpus for run in waiting for each in run.tasks)
    if pressed or sliced or any(share.spare for share in rights.shares.values()):
        # Of an appcode within its quota all runs are inside.
        for run in _rows(Q(cloud=cloud) & (SPARE | Q(cluster__appcode__in=pressed)), HOLDS_ANY):
            here.setdefault(run.run, (run, Level.SPARE if run.priority_class == "spare" else Level.QUOTA))
    if not here:
        return ()
    placed = Run.objects.filter(ALIVE, pk__in=here, placed_at__isnull=False).values_list("pk", flat=True)
    nodes = _nodes(here)
    held = {pk: here[pk][0].gpus or sum(sizes.units for sizes in of.values()) for pk, of in nodes.items()}
    return tuple(
        Holding(
            str(run.run),
            run.appcode,
            held[run.run],
            nodes[run.run],
            level,
            run.priority_class,
            held[run.run] * min(MOST_LOST, run.unsaved(at)),
            at < (until := run.since + PROTECTED[level]),
            int(until.timestamp()),
            full_minute(to_end(at, run.grace)),
        )
        for run, level in (here[pk] for pk in sorted(placed))
        if run.run in nodes
    )


def held_by(run: Run) -> Held:
    """What a row says of a run that holds GPUs."""
    return Held(
        run.pk, str(run.cluster.appcode_id), run.gpus, run.priority_class, run.cloud,
        _since(run.whole_at, run.placed_at, run.created_at), run.checkpoint_at,
    )  # fmt: skip


def _rows(which: Q, holds: Q = HOLDS) -> Iterable[Held]:
    rows: QuerySet[
        Run,
        tuple[
            int, int, int, PriorityClass, str, dt.datetime | None, dt.datetime | None, dt.datetime, dt.datetime | None,
            str | None,
        ],
    ]  # fmt: skip
    rows = Run.objects.filter(holds, which).order_by("pk").values_list(
        "pk", "cluster__appcode", "gpus", "priority_class", "cloud", "whole_at", "placed_at", "created_at", "checkpoint_at",
        KT("spec__terminationGracePeriod"),
    )  # fmt: skip
    for pk, appcode, gpus, priority_class, cloud, whole_at, placed_at, created_at, saved, grace in rows:
        since = _since(whole_at, placed_at, created_at)
        yield Held(pk, str(appcode), gpus, priority_class, cloud, since, saved, int(grace or 0))


def _since(whole_at: dt.datetime | None, placed_at: dt.datetime | None, created_at: dt.datetime) -> dt.datetime:
    return whole_at or placed_at or created_at


def _nodes(runs: Collection[int]) -> dict[int, dict[str, Sizes]]:
    """What tasks of these runs hold on each node. One query."""
    tasks = Task.objects.filter(run__in=runs, phase__in=["Pending", "Running"]).exclude(node="")
    found: dict[int, dict[str, Sizes]] = {}
    for run, node, sizes in amounts(tasks, "run", "node"):
        here = found.setdefault(run, {})
        here[node] = here.get(node, Sizes()) + sizes
    return found
