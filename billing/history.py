"""Some weeks of generated usage, so that a portal's dashboards show something from the first minute: made by the real path and
clearly labelled, and removable without a trace in the sums.

Sightings of pods that never were go through `metering.record`, segments and posting like all others, and belong to appcodes that
are made for them: disabled, called "example-…" and noted as generated (`GeneratedAppcode`), with GPU models that no machine has
("H200 (example)") and a cloud that no cloud can be called. That note is what makes removal safe: it can only be made before
anything was observed of an appcode, the tables that only ever grow let rows go only while their appcode is being removed, and an
observation only when it is of that cloud. So nothing that was real can be lost, whatever calls `remove`.

`plan` is pure: the same day gives the same history.
"""

from __future__ import annotations

import datetime as dt
import heapq
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from django.db import connection, transaction
from django.db.models import Min, ProtectedError

from billing.budgets import figures, steps
from billing.budgets.models import Budget, BudgetStep
from billing.dashboards.models import GeneratedAppcode
from billing.efficiency import capacity, measured, waste
from billing.efficiency.models import CapacityRecord, MeasuredDay, MeasuredHour, Outcome, Waste
from billing.invoices import closing
from billing.invoices.models import Closing, Invoice
from billing.ledger import posting
from billing.ledger.models import LedgerEntry, MonthlyUsage
from billing.metering import record as metering_record
from billing.metering.models import Observation, UsageSegment
from billing.metering.segments import PodState, floor
from billing.periods import DAY
from billing.prices.models import Discount, Ownership, Price
from billing.sums.models import GpuCounter
from portal.errors import Conflict
from portal.events import record
from portal.models import Appcode, Membership, OrgNode, User, Webhook

# The migration dashboard_guards knows this name, too.
CLOUD = "generated example"
DAYS = 63
NOTE = "Generated example data; nothing of it was ever run."
ROOT = ("generated-examples", "Generated examples", None)
LINES = (
    ("generated-examples.search", "Example: Search", "example-search"),
    ("generated-examples.maps", "Example: Maps", "example-maps"),
    ("generated-examples.speech", "Example: Speech", "example-speech"),
)
H200, A100, L4 = "H200 (example)", "A100 (example)", "L4 (example)"
PER_HOUR = {H200: Decimal("4.2"), A100: Decimal("2.4"), L4: Decimal("0.8")}
# GPUs by model, from the beginning and from the day on which more came.
POOL = {H200: (16, 16), A100: (16, 24), L4: (16, 16)}
MORE_AFTER = 35
LAUNCH = dt.timedelta(seconds=4)


@dataclass(frozen=True)
class Team:
    """One appcode of the example: what it usually runs, and how often on a working day."""

    code: str
    line: str
    users: tuple[str, ...]
    model: str
    framework: str
    jobs: tuple[str, ...]
    daily: float
    parameter_servers: bool = False


TEAMS = (
    Team("example-ranking", LINES[0][0], ("example-ana", "example-chen"), H200, "tensorflow", ("ranker", "embeddings"), 4, True),
    Team("example-ads", LINES[0][0], ("example-dara",), A100, "tensorflow", ("click-model", "bids"), 3, True),
    Team("example-vision", LINES[1][0], ("example-ben", "example-emi"), A100, "pytorch", ("segmentation", "lanes"), 4),
    Team("example-routing", LINES[1][0], ("example-femi",), L4, "tensorflow", ("travel-time",), 2),
    Team("example-asr", LINES[2][0], ("example-gita", "example-hugo"), H200, "pytorch", ("acoustic", "decoder"), 3),
)  # fmt: skip
# What runs all the time: appcode, cluster, framework, model, GPUs.
SERVICES = (
    ("example-ads", "example-ads-serving", "serving", L4, 4),
    ("example-asr", "example-asr-serving", "serving", A100, 2),
)


@dataclass(frozen=True)
class Pod:
    """A pod that never was; `reserved` is when it was given its GPUs, before its image had come."""

    role: str
    index: int
    gpus: int
    cores: int
    reserved: dt.datetime
    started: dt.datetime
    ended: dt.datetime
    phase: str = "Succeeded"
    estimated: bool = False


@dataclass(frozen=True)
class Job:
    """A run that never was."""

    team: str
    cluster: str
    number: int
    user: str
    framework: str
    model: str
    outcome: str
    pods: tuple[Pod, ...] = field(default=())

    @property
    def consumer(self) -> str:
        return f"{self.cluster} {self.number}"[-40:]

    @property
    def ended(self) -> dt.datetime:
        return max(pod.ended for pod in self.pods)

    def uid(self, pod: Pod) -> str:
        return f"{self.cluster}-{self.number}-{pod.role}-{pod.index}"[-80:]

    def uses(self) -> Iterator[measured.Use]:
        """How busy its GPUs would have been, hour by hour: services rest at night, and some tasks wait for nothing."""
        chance = random.Random(self.consumer)  # noqa: S311  the same history every time
        serves, asleep = self.framework == "serving", chance.random() < 0.08
        usual = chance.uniform(0.55, 0.93)
        for pod in self.pods:
            at = pod.started if pod.gpus else pod.ended
            while at < pod.ended:
                until = min(at.replace(minute=0, second=0) + dt.timedelta(hours=1), pod.ended)
                if serves:
                    busy = 0.02 if at.hour < 5 else 0.35 + 0.3 * chance.random()
                else:
                    busy = 0.01 if asleep else min(0.99, max(0.06, chance.gauss(usual, 0.06)))
                # Now and then nobody looked.
                looked = (until - at).total_seconds() * (1 if chance.random() < 0.9 else 0.5)
                yield measured.Use(self.uid(pod), at, until, looked, round(busy, 4), int(20_000 + 50_000 * usual))
                at = until

    def states(self, appcode_id: int) -> Iterator[PodState]:
        """What a cloud would have told: that a pod runs, and how it ended."""
        for pod in self.pods:
            running = PodState(
                uid=self.uid(pod),
                cloud=CLOUD,
                appcode_id=appcode_id,
                consumer=self.consumer,
                labels={
                    "cluster": self.cluster, "run": str(self.number), "role": pod.role, "index": str(pod.index), "attempt": "0",
                    "framework": self.framework, "user": self.user, **({"serves": "yes"} if pod.role == "ps" else {}),
                },
                phase="Running",
                gpus=pod.gpus,
                gpu_model=self.model if pod.gpus else "",
                cpu_milli=pod.cores * 1000,
                memory_mb=pod.cores * 4096,
                scheduled_at=pod.reserved,
                started_at=pod.started,
            )  # fmt: skip
            yield running
            yield replace(running, phase=pod.phase, finished_at=pod.ended, estimated=pod.estimated)


def begins(now: dt.datetime) -> dt.datetime:
    """The first second of the history that is made now."""
    return floor(now).replace(hour=0, minute=0, second=0) - DAYS * DAY


def ends(now: dt.datetime) -> dt.datetime:
    """The history ends with the last hour that is over."""
    return floor(now).replace(minute=0, second=0)


def plan(now: dt.datetime) -> list[Job]:
    """All runs of the history, none of which lasts beyond `ends`. A run waits until the pool has room for it."""
    first, last = begins(now), ends(now)
    chance = random.Random(f"{first:%F}")  # noqa: S311  the same history every time
    room = _Room(first)
    jobs = [_service(place, first, last, chance) for place in SERVICES]
    for _, _, _, model, gpus in SERVICES:
        room.take(model, gpus, last)
    wanted = sorted(_wanted(first, last, chance), key=lambda each: (each[0], each[1].code))
    numbers: dict[str, int] = {}
    for asked_at, team in wanted:
        job = _job(team, asked_at, last, numbers, room, chance)
        if job is not None:
            jobs.append(job)
    return jobs


class _Room:
    """The GPUs of the pool over time: who comes waits for those who were there before."""

    def __init__(self, first: dt.datetime) -> None:
        self.more = first + MORE_AFTER * DAY
        self.held: dict[str, list[tuple[dt.datetime, int]]] = {model: [] for model in POOL}
        self.since: dict[str, dt.datetime] = dict.fromkeys(POOL, first)

    def take(self, model: str, gpus: int, until: dt.datetime) -> None:
        heapq.heappush(self.held[model], (until, gpus))

    def when(self, model: str, gpus: int, asked_at: dt.datetime) -> dt.datetime:
        """When so many are free, in the order in which they are asked for."""
        at = max(asked_at, self.since[model])
        held = self.held[model]
        while True:
            while held and held[0][0] <= at:
                heapq.heappop(held)
            if sum(count for _, count in held) + gpus <= POOL[model][at >= self.more]:
                self.since[model] = at
                return at
            at = held[0][0]


def _wanted(first: dt.datetime, last: dt.datetime, chance: random.Random) -> Iterator[tuple[dt.datetime, Team]]:
    """When which team asks for a run: less at weekends, more from week to week, mostly in the daytime."""
    for day in range(DAYS + 1):
        midnight = first + day * DAY
        usual = (0.35 if midnight.weekday() >= 5 else 1.0) * (0.75 + 0.5 * day / DAYS)
        for team in TEAMS:
            for _ in range(int(team.daily * usual + chance.random())):
                at = midnight + dt.timedelta(hours=min(max(chance.gauss(13, 4.5), 0), 23.9))
                if at < last:
                    yield floor(at), team


def _service(
    place: tuple[str, str, str, str, int], first: dt.datetime, last: dt.datetime, chance: random.Random
) -> Job:
    code, cluster, framework, model, gpus = place
    user = next(team for team in TEAMS if team.code == code).users[0]
    started = first + dt.timedelta(seconds=chance.randrange(20, 60))
    pods = tuple(Pod("server", n, 1, 2, first, started, last) for n in range(gpus))
    return Job(code, cluster, 1, user, framework, model, "Stopped", pods)


def _job(
    team: Team, asked_at: dt.datetime, last: dt.datetime, numbers: dict[str, int], room: _Room, chance: random.Random
) -> Job | None:
    """One run, unless it would begin after the end. What lasts until then is stopped there."""
    workers, each = chance.choice([(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (2, 4), (1, 8)])
    begun = room.when(team.model, workers * each, asked_at)
    fetch = chance.randrange(180, 900) if chance.random() < 0.12 else chance.randrange(4, 25)
    started = begun + dt.timedelta(seconds=fetch)
    if started + dt.timedelta(hours=1) > last:
        return None
    length = dt.timedelta(seconds=int(min(max(chance.lognormvariate(9.9, 0.9), 400), 80_000)))
    failed, lost, forgotten = chance.random() < 0.09, chance.random() < 0.012, chance.random() < 0.07
    wanted = floor(started + length * (0.4 if failed else 1))
    ended = min(wanted, last)
    stopped = wanted > last
    room.take(team.model, workers * each, ended)
    cluster = f"{team.code}-{chance.choice(team.jobs)}"
    numbers[cluster] = number = numbers.get(cluster, 0) + 1
    bad = (failed or lost) and not stopped
    pods = [
        Pod(
            "worker", n, each, 4 * each, begun, started + n * LAUNCH / 4, ended - dt.timedelta(seconds=chance.randrange(20)),
            "Failed" if stopped or (bad and (lost or n == 0)) else "Succeeded", estimated=lost and not stopped,
        )
        for n in range(workers)
    ]  # fmt: skip
    if team.parameter_servers and workers > 1:
        # Some were started by hand as services of their own, and forgotten.
        late = chance.randrange(2 * 3600, 11 * 3600) if forgotten else 12
        until = min(ended + dt.timedelta(seconds=late), last)
        pods += [Pod("ps", n, 0, 8, begun, started, until) for n in range(2)]
    outcome = "Stopped" if stopped else "Failed" if bad else "Succeeded"
    return Job(team.code, cluster, number, chance.choice(team.users), team.framework, team.model, outcome, tuple(pods))


def is_there() -> bool:
    return GeneratedAppcode.objects.exists()


def codes() -> set[int]:
    """The numbers of the appcodes whose usage was generated."""
    return set(GeneratedAppcode.objects.values_list("appcode_id", flat=True))


def is_generated(appcode: Appcode) -> bool:
    return GeneratedAppcode.objects.filter(appcode=appcode).exists()


@transaction.atomic
def make(now: dt.datetime, *, owner: User) -> int:
    """Makes the history of the weeks before `now` and says how many runs it has. Raises Conflict when there is one."""
    if is_there():
        raise Conflict("There is generated example data already; remove it first.")
    taken = OrgNode.objects.filter(path__in=[ROOT[0], *(path for path, _, _ in LINES)]).first()
    if taken or Appcode.objects.filter(code__in=[team.code for team in TEAMS]).exists():
        raise Conflict("Something here has the name of an example already; nothing was made.")
    for path, title, namespace in (ROOT, *LINES):
        OrgNode.objects.create(path=path, title=title, namespace=namespace)
    jobs, first, last = plan(now), begins(now), ends(now)
    appcodes = {team.code: _appcode(team, owner) for team in TEAMS}
    _prices(jobs, appcodes, first)
    for at, place in ((first, 0), (first + MORE_AFTER * DAY, 1)):
        capacity.record(CLOUD, {model: (counts[place], 0) for model, counts in POOL.items()}, at)
    capacity.record(CLOUD, {}, last)
    metering_record.record([state for job in jobs for state in job.states(appcodes[job.team].pk)], seen_at=now)
    measured.add([use for job in jobs for use in job.uses()])
    Outcome.objects.bulk_create(
        Outcome(
            consumer=job.consumer, appcode=appcodes[job.team], word=job.outcome, ended_at=job.ended,
            reason="NonZeroExit" if job.outcome == "Failed" else "",
        )
        for job in jobs
    )  # fmt: skip
    posting.post(now)
    _correct(jobs, appcodes, now)
    posting.post(now)
    waste.look()
    _budgets(list(appcodes.values()), now, owner)
    record("history.generated", actor=None, message=f"{len(jobs)} runs of example data were generated.")
    return len(jobs)


def _appcode(team: Team, owner: User) -> Appcode:
    """Disabled from the beginning, so that nothing real is ever run in it."""
    made = Appcode.objects.create(
        code=team.code, name=f"Example: {team.code.removeprefix('example-')}", org_node=OrgNode.objects.get(path=team.line),
        emails=[f"{team.code}@example.com"], remark="Generated example data.", state=Appcode.State.DISABLED, note=NOTE,
    )  # fmt: skip
    Membership.objects.create(user=owner, appcode=made, role=Membership.Role.OWNER)
    GeneratedAppcode.objects.create(appcode=made)
    return made


def _prices(jobs: Iterable[Job], appcodes: dict[str, Appcode], first: dt.datetime) -> None:
    """Of their own, because a price for everybody would reach into the past of real usage."""
    used = sorted({(job.team, job.model) for job in jobs})
    for code, model in used:
        sku = f"gpu:{model}"
        Price.objects.create(sku=sku, per_hour=PER_HOUR[model], valid_from=first, appcode=appcodes[code])


def _correct(jobs: Sequence[Job], appcodes: dict[str, Appcode], now: dt.datetime) -> None:
    """What comes in late: the true ends of some pods, after an estimated one was charged. The ledger reverses and posts anew."""
    late = [job for job in jobs if any(pod.estimated for pod in job.pods)][::2]
    told = []
    for job in late:
        known = replace(
            job,
            pods=tuple(replace(pod, ended=pod.ended - dt.timedelta(minutes=9), estimated=False) for pod in job.pods),
        )
        told += [state for state in known.states(appcodes[job.team].pk) if state.phase != "Running"]
    if told:
        metering_record.record(told, seen_at=now)


def _budgets(appcodes: Sequence[Appcode], now: dt.datetime, owner: User) -> None:
    """One that is on track, one that will not last, and one that is used up; the loop leaves them alone."""
    found, _ = figures.of_appcodes([appcode.pk for appcode in appcodes], (), now)
    dearest = sorted(appcodes, key=lambda appcode: (-found[appcode.pk].spent, appcode.code))
    for n, (appcode, policy) in enumerate(zip(dearest, ("block", "stop_services", "notify"), strict=False)):
        spent, expected = found[appcode.pk].spent, found[appcode.pk].forecast
        wanted = (expected * Decimal("1.2"), spent * Decimal("1.15"), spent * Decimal("0.9"))[n]
        # As people set them: in hundreds.
        amount = max(1, round(wanted / 100)) * Decimal(100)
        budget = Budget.objects.create(appcode=appcode, amount=amount, policy=policy, set_by=owner, set_at=now)
        terms = replace(budget.terms(now), policy="notify")
        for change in steps.next_steps(terms, spent, [], floor(now)):
            step = change.step
            BudgetStep.objects.create(
                budget=budget, month=figures.month_of(now), kind=step.kind, announced_at=step.announced_at,
                due_at=step.due_at, done_at=step.done_at,
            )  # fmt: skip


@transaction.atomic
def remove(*, acting_user: User | None) -> int:
    """Removes all generated appcodes with everything of theirs and says how many those were; none is no mistake. Raises Conflict
    when something real has come to depend on one: then nothing is removed."""
    metering_record.keep_others_out()
    posting.keep_others_out()
    # Whoever makes invoices at this moment holds the closing of their month.
    list(Closing.objects.select_for_update())
    generated = list(GeneratedAppcode.objects.select_for_update().values_list("appcode_id", flat=True))
    if not generated:
        return 0
    if Observation.objects.filter(appcode__in=generated).exclude(cloud=CLOUD).exists():
        raise Conflict("An appcode of the example has been used for something real; nothing was removed.")
    GeneratedAppcode.objects.filter(appcode__in=generated).update(removing=True)
    of_example = {"appcode_id__in": generated}
    closing.forget(generated)
    # There are many hours, and they are found by their pods.
    pods = UsageSegment.objects.filter(**of_example).values("uid")
    hours = MeasuredHour.objects.filter(uid__in=pods)
    hours._raw_delete(hours.db)
    for model in (MeasuredDay, Waste, Outcome, LedgerEntry, UsageSegment, Observation):
        rows = model._default_manager.filter(**of_example)
        rows._raw_delete(rows.db)
    CapacityRecord.objects.filter(cloud=CLOUD).delete()
    with connection.cursor() as cursor:
        for table in ("billing_dailyusage", "billing_monthlyusage", "billing_monthlyspending", "billing_gputotal"):
            cursor.execute(f"DELETE FROM {table} WHERE appcode_id = ANY(%s)", [generated])  # noqa: S608
    # Whoever uses these codes next begins at nothing. In the order in which a scrape holds them.
    told = GpuCounter.objects.filter(code__in=Appcode.objects.filter(pk__in=generated).values("code"))
    list(told.order_by("code", "business_line", "gpu_model").select_for_update())
    told.delete()
    _closings()
    for terms in (Price, Discount):
        terms._default_manager.filter(**of_example).delete()
        terms._default_manager.filter(business_line__in=_own_lines(generated)).delete()
    Webhook.objects.filter(**of_example).delete()
    Ownership.objects.filter(**of_example).delete()
    GeneratedAppcode.objects.filter(**of_example).delete()
    try:
        Appcode.objects.filter(pk__in=generated).delete()
        OrgNode.objects.filter(path__in=[path for path, _, _ in (*LINES, ROOT)]).delete()
    except ProtectedError as error:
        kept = sorted({f"{type(each)._meta.verbose_name} {each}" for each in error.protected_objects})[:3]
        raise Conflict(f"Something real depends on the example ({', '.join(kept)}); nothing was removed.") from error
    record("history.removed", actor=acting_user, message=f"The example data of {len(generated)} appcodes was removed.")
    return len(generated)


def _own_lines(generated: Sequence[int]) -> set[str]:
    """Business lines of the example to which nothing else ever belonged; what was priced by those of others keeps its price."""
    lines = {path for path, _, _ in LINES}
    others = Ownership.objects.filter(business_line__in=lines).exclude(appcode_id__in=generated)
    return lines - set(others.values_list("business_line", flat=True))


def _closings() -> None:
    """As if the example had never been: months are closed from the first one on in which anything was used. To be called when
    its invoices and sums are gone."""
    kept = [model._default_manager.aggregate(first=Min("month"))["first"] for model in (Invoice, MonthlyUsage)]
    first = min(filter(None, kept), default=None)
    before = Closing.objects.all() if first is None else Closing.objects.filter(month__lt=first)
    before.delete()
