"""Previews a deployment: GPUs that must be free, the time until it answers, and the choices if no GPU is free. Uses the
capacity that the controller last saw; calls no cloud.

A new replica starts beside the old ones, so a rollout needs room for one more; the next ones take the rooms that old ones leave.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from django.db.models import F

from clusters.admission.judgement import Fits, worst
from clusters.catalog.admission import Quota, judge_quota
from clusters.catalog.lookup import Resolved, require_active, usable_appcode
from clusters.clouds.placement import gpu_limit
from clusters.model_registry.models import ModelVersion
from clusters.runs.placing.known import capacity_of
from clusters.runs.placing.room import Wish, judge, rooms
from clusters.runs.queries.preview import Cost, cost_of, placed
from clusters.runs.quota import ahead, held
from clusters.services import checks, revisions
from clusters.services.manifest import DeploySpec, ServiceManifest, ServiceSpec
from clusters.services.models import Replica, Service
from portal.access import OPERATE, require
from portal.models import Appcode, User

# Number of earlier starts; their median is the expected time of a start.
STARTS = 20


@dataclass(frozen=True)
class Choice:
    """A value of `rollout.whenFull`. `chosen`: the service's definition has it."""

    when_full: str
    sentence: str
    chosen: bool


@dataclass(frozen=True)
class Preview:
    """`gpus` are needed besides those in use, `gpus_free` are available now. `seconds` is the expected time until a new replica
    answers, None without earlier starts. `cost` covers all replicas."""

    version: ModelVersion
    replicas: int
    gpus: int
    gpus_free: int
    seconds: int | None
    fits: Fits
    sentence: str
    choices: Sequence[Choice]
    cost: Cost


def preview_service(manifest: ServiceManifest, *, acting_user: User) -> Preview:
    """Previews a new service, or an existing one with a new definition. Raises what the action would raise."""
    appcode = usable_appcode(manifest.metadata.appcode, acting_user)
    name, spec = manifest.metadata.name, manifest.spec
    found = Service.objects.filter(appcode=appcode, name=name, deleted_at=None).first()
    version = checks.judge(name, spec, appcode)
    return _of(spec, version, appcode, found)


def preview_deploy(service: Service, asked: DeploySpec, *, acting_user: User) -> Preview:
    """Raises what `actions.deploy` would raise."""
    require(acting_user, service.appcode, OPERATE)
    require_active(service.appcode)
    spec = ServiceSpec.stored(service.spec)
    version = checks.version_of(service, spec, asked.version)
    return _of(spec, version, service.appcode, service)


def _of(spec: ServiceSpec, version: ModelVersion, appcode: Appcode, service: Service | None) -> Preview:
    resolved = checks.resolved_as(spec, f"{version.model.name}/{version.number}", appcode)
    serving = service.replicas.filter(state=Replica.State.SERVING).count() if service else 0
    old = revisions.answering(service) if service else None
    replicas = revisions.replicas_of(spec, old, "rolling", 100)
    # Beside answering replicas, new ones start one after the other; without any, all at once.
    count = 1 if serving else replicas
    capacity = capacity_of(resolved.place.cloud)
    tasks = [replace(each, count=count) for each in placed(resolved)]
    free_for = rooms(resolved.place.cloud, capacity)
    room = min((free_for(each) for each in tasks), default=0)
    in_use = held(appcode.pk)
    most = gpu_limit(appcode, resolved.place.cloud)
    queue = ahead(appcode.pk, most)
    gpus = resolved.gpus * count
    here = judge(tasks, capacity, resolved.place.cloud, Wish(appcode, resolved.place.namespace, is_endless=True))
    judgement = worst(judge_quota(gpus, Quota(appcode.code, most, in_use, queue)), here)
    left = max(0, most - in_use.gpus)
    free = min(room * resolved.gpus, left)
    seconds = _start_seconds(service, appcode)
    fits = judgement.fits
    if serving and fits == "never":
        fits = "waits"  # an old one may end first
    return Preview(
        version=version,
        replicas=replicas,
        gpus=gpus,
        gpus_free=free,
        seconds=seconds,
        fits=fits,
        sentence=_sentence(gpus, free, seconds, judgement.message),
        choices=_choices(spec, resolved, serving, seconds) if gpus and serving else (),
        cost=_times(cost_of(resolved.spec, appcode), replicas),
    )


def _sentence(gpus: int, free: int, seconds: int | None, message: str) -> str:
    lasts = f" It answers after about {seconds} s, as those before it did." if seconds is not None else ""
    if not gpus:
        return f"It needs no GPU. {message}".strip() + lasts
    few = "" if gpus == 1 else "s"
    more = f"It needs {gpus} GPU{few} beside what it has; {free} {'is' if free == 1 else 'are'} free."
    return f"{more} {message if free < gpus else ''}".strip() + lasts


def _choices(spec: ServiceSpec, resolved: Resolved, serving: int, seconds: int | None) -> list[Choice]:
    lasts = f"about {seconds} s" if seconds is not None else "as long as a start takes"
    if serving == 1:
        replaced = f"The only replica ends first, and nobody answers for {lasts}."
    else:
        replaced = f"One of {serving} replicas ends first, and the others answer alone for {lasts}."
    flavor = spec.rollout.cpu_flavor
    cpu = f"New replicas answer on “{flavor}”" if flavor else "With a cpuFlavor new replicas would answer on that"
    said = {
        "wait": "It waits until a GPU is free; the old replicas answer meanwhile.",
        "replace": replaced,
        "cpu": f"{cpu}, without a GPU; that is slower.",
    }
    return [Choice(each, sentence, each == spec.rollout.when_full) for each, sentence in said.items()]


def _start_seconds(service: Service | None, appcode: Appcode) -> int | None:
    """Median start of the service's own replicas, or of its appcode's if it had none."""
    rows = Replica.objects.exclude(served_at=None).annotate(took=F("served_at") - F("created_at")).order_by("-id")
    own = list(rows.filter(service=service).values_list("took", flat=True)[:STARTS]) if service else []
    took = own or list(rows.filter(service__appcode=appcode).values_list("took", flat=True)[:STARTS])
    return round(median(each / dt.timedelta(seconds=1) for each in took)) if took else None


def _times(cost: Cost, count: int) -> Cost:
    limit = None if cost.limit is None else cost.limit * count
    return Cost(cost.per_hour_low * count, cost.per_hour * count, limit, cost.hooks * count)
