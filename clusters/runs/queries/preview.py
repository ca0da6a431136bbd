"""What would happen if a manifest were submitted now: tasks, GPUs, whether they fit and why not, and the cost.

Uses the capacity that the controller last saw and today's prices; calls no cloud. The quota is judged again after submit,
in the same words. What a run waits for in its cloud is only known from the cloud.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from django.utils import timezone

from billing.metering.segments import Resources, gpu_class
from billing.prices.book import price_book
from billing.prices.rates import Prices, hourly, planned
from clusters.admission.codes import Code, code_of
from clusters.admission.demand import GPU
from clusters.admission.judgement import Fits, Judgement, worst
from clusters.admission.packing import Tasks, asking
from clusters.catalog.admission import judge_quota
from clusters.catalog.hook_lookup import judge_hook_names
from clusters.catalog.lookup import Resolved, name_taken, over_quota, resolve, usable_appcode
from clusters.catalog.models import Flavor
from clusters.clouds.drivers.base import Capacity, Mount, S3Source
from clusters.clouds.health import silences
from clusters.clouds.placement import Place, gpu_limit
from clusters.clouds.registry import asked
from clusters.frameworks import FRAMEWORKS
from clusters.manifest.cluster import ClusterManifest, ClusterSpec
from clusters.manifest.hook_spec import TIME_LIMIT
from clusters.runs.models import Cluster
from clusters.runs.placing import room
from clusters.runs.placing.known import capacity_of, lasts
from clusters.runs.placing.rights import unborrowed
from clusters.runs.plan import INPUT_PATH, OUTPUT_PATH, RUNS_PATH, model_folder
from clusters.runs.queries.offers import Offered, offered
from clusters.runs.quota import UNHOOKED, ahead, held, limits, why_unread
from datastores.models import Datastore
from portal.errors import Invalid
from portal.models import Appcode, User

NOTHING_TO_SAY = Judgement("now", "", "")
# More room than this is shown as this number of tasks.
MOST_SHOWN = 999


@dataclass(frozen=True)
class Cost:
    """In settings.CURRENCY, unrounded. `per_hour` is the cost of an hour at today's prices, `limit` the maximum until the time
    limit at the prices known for that time (None without a time limit). A task that takes any GPU is billed by the model it
    gets: `per_hour` assumes the dearest that its cloud has, `per_hour_low` the cheapest. `hooks` is the maximum for all hooks
    of a run, by their time limits; it is not part of the others."""

    per_hour_low: Decimal
    per_hour: Decimal
    limit: Decimal | None
    hooks: Decimal = Decimal(0)

    def __add__(self, other: Cost) -> Cost:
        """The sum; without a limit if either has none."""
        limit = None if self.limit is None or other.limit is None else self.limit + other.limit
        return Cost(
            self.per_hour_low + other.per_hour_low, self.per_hour + other.per_hour, limit, self.hooks + other.hooks
        )


NOTHING = Cost(Decimal(0), Decimal(0), Decimal(0))


@dataclass(frozen=True)
class Preview:
    """`place` is where the run would run, `notice` a sentence while that cloud is unreachable. `code` says for programs why it
    waits or can never start. `larger_quota` is the GPU quota with which it could start without waiting for other runs of its
    appcode; None if that is not what is in the way. `offers`: what would start sooner. `must_add`: if nothing would, a
    sentence on what the cloud lacks."""

    place: Place
    notice: str
    tasks: int
    gpus: int
    fits: Fits
    code: Code
    sentence: str
    cost: Cost
    larger_quota: int | None = None
    offers: Sequence[Offered] = ()
    must_add: str = ""


def preview(
    manifest: ClusterManifest,
    *,
    acting_user: User,
    instead_of: Cluster | None = None,
    by_routers: bool = False,
    with_offers: bool = False,
    within_quota: bool = True,
) -> Preview:
    """Raises Invalid and PermissionDenied exactly where `actions.create_cluster` would, with all that it would refuse one after
    the other. `instead_of` is the existing cluster whose next run this is; None for a new cluster. `by_routers`: it is a replica
    of a service. `with_offers`: also what would start sooner. Without `within_quota`, a run beyond the quota is priced, too: it
    can never start."""
    appcode = usable_appcode(manifest.metadata.appcode, acting_user)
    spec, name = manifest.spec, manifest.metadata.name
    taken = instead_of is None and Cluster.objects.filter(appcode=appcode, name=name, deleted_at=None).exists()
    refused = name_taken(appcode.code, name).errors if taken else []
    try:
        resolved = resolve(spec, appcode, by_routers=by_routers, within_quota=within_quota)
        judge_hook_names(spec, appcode, name)
    except Invalid as invalid:
        refused = [*refused, *invalid.errors]
    if refused:
        raise Invalid(refused)
    capacity = capacity_of(resolved.place.cloud)
    notice = silences(timezone.now()).get(resolved.place.cloud, "")
    most = gpu_limit(appcode, resolved.place.cloud)
    queue = ahead(appcode.pk, most, priority_class=spec.priority_class, but=instead_of, person=acting_user.pk)
    in_use = held(appcode.pk, instead_of)
    counted = 0 if spec.priority_class == "spare" else resolved.gpus
    beyond = over_quota(resolved, appcode)
    by_quota = (
        Judgement("never", "QuotaExceeded", beyond.message)
        if beyond
        else judge_quota(counted, limits(appcode, most, in_use, queue))
    )
    source = resolved.input.run if resolved.input else None
    always = bool(spec.input and spec.input.when == "always")
    unread = why_unread(source, always=always) if source else ("", "")
    before = next((each.name for each in resolved.hooks if each.is_before), "")
    here = _here(resolved, capacity, appcode, instead_of, acting_user)
    judgements = (
        Judgement("waits", *unread) if unread[0] else NOTHING_TO_SAY,
        by_quota,
        by_room := _room(resolved, here),
        Judgement("waits", "CloudUnreachable", notice) if notice else NOTHING_TO_SAY,
        Judgement("waits", UNHOOKED, f"It waits for its hook {before}.") if before else NOTHING_TO_SAY,
    )
    scheduled = _scheduled(spec) if instead_of is None else NOTHING_TO_SAY
    judgement = worst(*judgements, scheduled)
    others = (each for each in (*judgements, scheduled) if each not in (by_quota, by_room))
    may_offer = with_offers and judgement.fits != "now" and all(each.fits == "now" for each in others)
    offers = (
        _offers(resolved, here, appcode, capacity, (0 if queue else max(0, most - in_use.gpus), most))
        if may_offer
        else []
    )
    said = [each.message for each in (judgements if judgement.fits == "now" else [judgement])]
    if judgement.fits == "now" and counted and most > appcode.gpu_quota:
        left = unborrowed(appcode.pk, appcode.gpu_quota, instead_of)
        said.append(_of_quota(appcode, left, counted))
    if scheduled.fits == "now":
        said.append(scheduled.message)
    return Preview(
        place=resolved.place,
        notice=notice,
        tasks=sum(each.count for each in spec.active_roles.values()),
        gpus=resolved.gpus,
        fits=judgement.fits,
        code=code_of(judgement.reason, judgement.fits),
        sentence=" ".join(filter(None, said)),
        cost=_cost(spec, resolved, appcode, capacity),
        larger_quota=_larger(resolved.gpus, by_quota, in_use.gpus + sum(queue)) if judgement is by_quota else None,
        offers=offers,
        must_add=here.must_add if may_offer and judgement.fits == "never" and not offers else "",
    )


def _larger(gpus: int, by_quota: Judgement, before: int) -> int | None:
    """The quota with which a run of that many GPUs could start, or would not wait for the `before` GPUs of others."""
    return {"never": gpus, "waits": before + gpus}.get(by_quota.fits)


def _of_quota(appcode: Appcode, left: int, gpus: int) -> str:
    """What a run of that many GPUs leaves of the quota, or what one may have at most that borrows nothing."""
    quota = f"{left} of the {appcode.gpu_quota} GPUs of the quota of {appcode.code}"
    if gpus <= left:
        return f"It is inside the quota: it leaves {left - gpus} of the {appcode.gpu_quota} GPUs of {appcode.code}."
    return (
        f"{quota} {'is' if left == 1 else 'are'} left: with no more than that it would borrow none."
        if left
        else (f"Of the quota of {appcode.code} nothing is left.")
    )


@dataclass(frozen=True)
class Size:
    """A flavor, how many of its tasks would fit now, and one's hourly cost from the cheapest to the dearest possible GPU
    model."""

    flavor: Flavor
    room: int
    cost: Cost


def sizes(flavors: Iterable[Flavor], cloud: str, appcode_id: int, *, gpu_class: str = "") -> list[Size]:
    """One Size for each flavor. Eight queries, and the price book."""
    capacity, prices, now = capacity_of(cloud), price_book(), timezone.now()
    tasks, found = {flavor: _one_of(flavor) for flavor in flavors}, []
    rooms = room.rooms(cloud, capacity, tasks.values())
    for flavor, task in tasks.items():
        rates = [hourly(prices, now, [size], appcode_id) for size in _held(prices, task, capacity, gpu_class=gpu_class)]
        found.append(Size(flavor, min(rooms(task), MOST_SHOWN), Cost(min(rates), max(rates), None)))
    return found


def _one_of(flavor: Flavor) -> Tasks:
    return asking("", 1, flavor.gpus, flavor.gpu_model, flavor.cpu_milli, flavor.memory_mb, flavor.demand)


def _held(prices: Prices, tasks: Tasks, capacity: Capacity, *, gpu_class: str = "") -> list[Resources]:
    """Total resources of these tasks, for each GPU model that they may get. `gpu_class`: spare, urgent or ""."""
    models, n = [tasks.gpu_model], tasks.count
    if tasks.gpus and not tasks.gpu_model and tasks.resource == GPU:
        # If no known machine has that many GPUs: every model with a price, and models without one.
        had = {node.gpu_model for node in capacity.nodes if node.gpus >= tasks.gpus}
        models = sorted(had or prices.gpu_models | {""})
    cpu, memory = tasks.cpu_milli * n, tasks.memory_mb * n
    return [Resources(tasks.gpus * n, model, cpu, memory, gpu_class=gpu_class) for model in models]


def _scheduled(spec: ClusterSpec) -> Judgement:
    """Whether it waits for its start time. Only a cluster's first run does."""
    at, now = spec.schedule_after, timezone.now()
    if at is None:
        return NOTHING_TO_SAY
    if at > now:
        return Judgement("waits", "Scheduled", f"It starts at {at:%Y-%m-%d %H:%M} UTC, as was asked for.")
    return Judgement("now", "", f"The time to start at is past ({at:%Y-%m-%d %H:%M} UTC): nothing waits for it.")


def tasks_of(resolved: Resolved) -> list[Tasks]:
    """The tasks that a run would place on machines."""
    return [
        asking(role, each.together, held.gpus, held.gpu_model, held.cpu_milli, held.memory_mb, held.demand)
        for role, each in resolved.spec.active_roles.items()
        for held in (resolved.resources[role],)
    ]


def _here(
    resolved: Resolved, capacity: Capacity, appcode: Appcode, instead_of: Cluster | None, person: User
) -> room.Here:
    spec, place = resolved.spec, resolved.place
    seconds = lasts(spec.time_limit, spec.termination_grace_period)
    wish = room.Wish(appcode, place.namespace, spec.priority_class, seconds, person=str(person.pk))
    return room.Here.read(place.cloud, capacity, wish, but=instead_of)


def _room(resolved: Resolved, here: room.Here) -> Judgement:
    tasks = placed(resolved)
    found = here.judge(tasks)
    if found.fits == "now" or tasks == tasks_of(resolved):
        return found
    return replace(
        found, message=f"{found.message} That counts what copies and stores data or lets people in beside each task."
    )


def _offers(
    resolved: Resolved, here: room.Here, appcode: Appcode, capacity: Capacity, quota: tuple[int, int]
) -> list[Offered]:
    """What would start sooner. At most four queries."""
    prices, now = price_book(), timezone.now()
    flavors = Flavor.objects.filter(enabled=True, gpus__gt=0)

    def price(changed: Resolved) -> Decimal:
        return _per_hour(changed, prices, now, appcode, capacity)[1]

    return offered(resolved, here, flavors, quota, several_placed, price)


def placed(resolved: Resolved) -> list[Tasks]:
    """`tasks_of` plus the unbilled helpers beside each task that copy, serve and store data and take room, too. One query."""
    return several_placed([resolved])[0]


def several_placed(several: Sequence[Resolved]) -> list[list[Tasks]]:
    """`placed` for definitions of one run that differ in their roles. One query."""
    first = several[0]
    mounts, framework = _copied(first), FRAMEWORKS[first.spec.framework]
    tasks = [
        (each, role, bool(framework.endpoints(each.spec, role.role))) for each in several for role in tasks_of(each)
    ]
    if not mounts and not any(serves for _, _, serves in tasks):
        return [tasks_of(each) for each in several]
    wanted = [(role.cpu_milli, role.memory_mb, serves) for _, role, serves in tasks]
    found: dict[int, list[Tasks]] = {id(each): [] for each in several}
    for (each, role, _), (cpu, memory) in zip(tasks, asked(first.place.cloud, mounts, wanted), strict=True):
        found[id(each)].append(replace(role, cpu_milli=cpu, memory_mb=memory))
    return [found[id(each)] for each in several]


def resources_of(resolved: Resolved) -> dict[str, dict[str, object]]:
    """The resources by role as a run stores them, as JSON. One query."""
    found = dict(resolved.resources)
    for task in placed(resolved):
        held = found[task.role]
        found[task.role] = replace(
            held, beside_cpu_milli=task.cpu_milli - held.cpu_milli, beside_memory_mb=task.memory_mb - held.memory_mb
        )
    return {role: each.json_value() for role, each in found.items()}


def _copied(resolved: Resolved) -> list[Mount]:
    """Its mounts of S3 datastores, which a helper beside each task copies or serves; without keys."""
    spec, source = resolved.spec, S3Source("", "", "", "", "")
    mode = spec.input.mode if spec.input else ""
    follow = FRAMEWORKS[spec.framework].shows_runs == "events"
    wanted = [
        (
            resolved.input and resolved.input.store,
            Mount(INPUT_PATH, True, source, stream_key="stream" if mode == "stream" else ""),
        ),
        (
            resolved.model and resolved.model.frozen and resolved.model.frozen.datastore,
            Mount(model_folder(spec), True, source, beside=resolved.input is not None),
        ),
        (resolved.output, Mount(OUTPUT_PATH, False, source)),
        *((shown.store, Mount(f"{RUNS_PATH}/{shown.name}", True, source, follow=follow)) for shown in resolved.runs),
    ]
    return [mount for store, mount in wanted if store and store.kind == Datastore.Kind.S3]


def cost_of(spec: ClusterSpec, appcode: Appcode) -> Cost:
    """Cost of a run of `spec`. Raises Invalid if it cannot run as it is."""
    resolved = resolve(spec, appcode)
    return _cost(spec, resolved, appcode, capacity_of(resolved.place.cloud))


def _cost(spec: ClusterSpec, resolved: Resolved, appcode: Appcode, capacity: Capacity) -> Cost:
    prices, now = price_book(), timezone.now()
    low, high = _per_hour(resolved, prices, now, appcode, capacity)
    limit = Decimal(0)
    for tasks in tasks_of(resolved):
        held = _held(prices, tasks, capacity, gpu_class=gpu_class({"class": spec.priority_class}))
        limit += max(planned(prices, now, spec.time_limit or 0, [size], appcode.pk) for size in held)
    return Cost(low, high, limit if spec.time_limit else None, _cost_of_hooks(resolved, appcode, capacity))


def _per_hour(
    resolved: Resolved, prices: Prices, at: dt.datetime, appcode: Appcode, capacity: Capacity
) -> tuple[Decimal, Decimal]:
    """The hourly cost with the cheapest and with the dearest GPU models that the tasks may get."""
    low = high = Decimal(0)
    for tasks in tasks_of(resolved):
        held = _held(prices, tasks, capacity, gpu_class=gpu_class({"class": resolved.spec.priority_class}))
        rates = [hourly(prices, at, [size], appcode.pk) for size in held]
        low, high = low + min(rates), high + max(rates)
    return low, high


def _cost_of_hooks(resolved: Resolved, appcode: Appcode, capacity: Capacity) -> Decimal:
    """Maximum cost of all hooks. One query if there are any."""
    if not resolved.hooks:
        return Decimal(0)
    prices, now = price_book(), timezone.now()
    flavors = list(Flavor.objects.filter(enabled=True))
    found = Decimal(0)
    for hook in resolved.hooks:
        size = next((each for each in flavors if hook.flavor in (None, each.name)), None)
        if size:
            task = _one_of(size)
            seconds = hook.time_limit or TIME_LIMIT
            found += max(planned(prices, now, seconds, [each], appcode.pk) for each in _held(prices, task, capacity))
    return found
