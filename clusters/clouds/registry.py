"""Turns rows of `Cloud` into driver objects, by the names that runs keep.

This is the only place that does. An object is cached as long as its row's connection data stay unchanged, so every process uses
changed credentials from its next call on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from django.apps.registry import Apps, apps
from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet

from clusters.clouds import models
from clusters.clouds.drivers.base import Access, Cloud, CloudError, Gateway, Inspected, KeepsLogs, Mount, RunRef
from clusters.clouds.kinds import DRIVERS, OWN
from clusters.runs.models import Run

_kept: dict[str, tuple[Hashable, Cloud]] = {}


def rows() -> QuerySet[models.Cloud]:
    """Returns every usable cloud; the portal's own machine only if the settings say how to reach it."""
    return models.Cloud.objects.exclude(kind__in=DRIVERS.keys() - _available())


def registered() -> QuerySet[models.Cloud]:
    """Returns the clouds that administrators registered."""
    return models.Cloud.objects.exclude(kind__in=OWN)


def own_kinds() -> list[str]:
    """Returns the kinds of clouds that are part of this portal and available."""
    return sorted(OWN & _available())


def keep_own(apps: Apps = apps, **_: object) -> None:
    """Creates the rows of clouds that are part of the portal. Called after each `migrate`, with the models of that moment."""
    try:
        model: Any = apps.get_model("clusters", "Cloud")
    except LookupError:
        return  # Only other apps were migrated.
    for kind in OWN:
        model.objects.get_or_create(name=kind, defaults={"kind": kind, "title": DRIVERS[kind].title})


def cloud(name: str) -> Cloud:
    """Returns the cloud of that name, an object shared by all threads. Raises CloudError if there is none. At most two queries,
    none for this machine."""
    version = _version(name)
    kept = _kept.get(name)
    if kept is None or kept[0] != version:
        # Two threads may both make one; either works, and the later is kept.
        kept = _kept[name] = (version, connect(_row(name)))
    return kept[1]


def cloud_of(run: Run) -> Cloud:
    """Returns the cloud where the run was made, which is independent of later placements."""
    return cloud(run.cloud)


def run_ref(run: Run) -> RunRef:
    """Returns the cloud's reference to a run. Requires its loaded cluster and appcode."""
    return RunRef(run.pk, run.namespace, run.cluster.appcode.code, run.cluster.name, run.number, run.life)


def cloud_names() -> list[str]:
    """Returns the names of all usable clouds. One query."""
    return list(rows().order_by("name").values_list("name", flat=True))


def followed() -> dict[str, Hashable]:
    """Returns every cloud to watch, with a value that changes with its connection data. One query.

    Includes clouds that were given up: runs that still live there must be ended if such a cloud returns.
    """
    alive = Exists(Run.objects.filter(cloud=OuterRef("name"), gone=False))
    wanted = rows().filter(Q(enabled=True) | Q(given_up_at__isnull=False) | alive).order_by("name")
    return {
        name: (pk, revision, *_environment(DRIVERS[kind]).values())
        for name, kind, pk, revision in wanted.values_list("name", "kind", "pk", "revision")
    }


def driver(name: str) -> type[Cloud]:
    """Returns the driver of a cloud. Raises CloudError if there is none. One query, none for this machine."""
    if name in OWN:
        return DRIVERS[name]
    kind = models.Cloud.objects.filter(name=name).values_list("kind", flat=True).first()
    if kind is None:
        raise _absent(name)
    return DRIVERS[kind]


def gateway_of(name: str) -> Gateway | None:
    """Returns the gateway to the endpoints of a cloud, or None. One query, none for this machine."""
    kind, stored = _stored(name)
    return DRIVERS[kind].gateway(stored) if kind else None


def leads_routers(name: str) -> bool:
    """Returns whether routers of services can reach replicas on a cloud. One query, none for this machine."""
    kind, stored = _stored(name)
    return bool(kind) and DRIVERS[kind].leads_routers(stored)


def places_runs(name: str) -> bool:
    """Returns whether the portal decides on which nodes of a cloud tasks run. One query, none for this machine."""
    kind, stored = _stored(name)
    return bool(kind) and DRIVERS[kind].places_runs(stored)


def takes_spare(name: str) -> bool:
    """Returns whether runs of a cloud may be urgent or spare. One query, none for this machine."""
    return name in OWN or places_runs(name)


def gang(name: str) -> str:
    """Returns how a cloud gives all tasks of a run their places at once, as `Cloud.gang`. One query, none for this machine."""
    found = (
        None if name in OWN else models.Cloud.objects.filter(name=name).values_list("kind", "settings", "test").first()
    )
    return DRIVERS[found[0]].gang(found[1], found[2]) if found else ""


def all_placing() -> set[str]:
    """Returns the clouds on whose nodes the portal places runs. One query."""
    found = models.Cloud.objects.values_list("name", "kind", "settings")
    return {name for name, kind, stored in found if DRIVERS[kind].places_runs(stored)}


def adds_nodes(name: str) -> bool:
    """Returns whether a cloud adds nodes when tasks wait. One query, none for this machine."""
    kind, stored = _stored(name)
    return bool(kind) and DRIVERS[kind].adds_nodes(stored)


def why_no_environments(name: str) -> str:
    """Returns why tasks of a cloud cannot start from a saved environment, or "". One query, none for this machine."""
    kind, stored = _stored(name)
    return DRIVERS[kind].why_no_environments(stored) if kind else str(_absent(name))


def why_not_cached(name: str, disk_bytes: int | None) -> str:
    """Returns why a cloud cannot cache an input of that size for several runs (None: it has no version), or "". One query, none
    for this machine."""
    kind, stored = _stored(name)
    return DRIVERS[kind].why_not_cached(stored, disk_bytes) if kind else str(_absent(name))


def asked(name: str, mounts: Sequence[Mount], sizes: Iterable[tuple[int, int, bool]]) -> list[tuple[int, int]]:
    """Returns what tasks of these sizes take, as `Cloud.asked`. One query, none for this machine."""
    kind, stored = _stored(name)
    return [DRIVERS[kind].asked(stored, mounts, *size) if kind else size[:2] for size in sizes]


def _stored(name: str) -> tuple[str, Mapping[str, Any]]:
    """Returns kind and settings of a cloud; the kind is "" if there is none."""
    if name in OWN:
        return name, {}
    return models.Cloud.objects.filter(name=name).values_list("kind", "settings").first() or ("", {})


def keeps_logs(name: str) -> bool:
    """Returns whether logs outlive their pods on a cloud; false for a removed cloud. At most one query."""
    try:
        return issubclass(driver(name), KeepsLogs)
    except CloudError:
        return False


def connect(row: models.Cloud) -> Cloud:
    """Returns a new driver object for a row. Raises CloudError."""
    kind = DRIVERS[row.kind]
    found = {**row.settings, **_environment(kind)}
    return kind.connect(Access(row.name, row.credentials, found, row.prometheus_token or ""))


def identify(source: Cloud) -> None:
    """Stores the identity of the installation followed under this name, unless it is known. Raises CloudError."""
    row = models.Cloud.objects.filter(name=source.name, uid="").first()
    if row is not None and isinstance(source, Inspected):
        uid = source.identity()
        models.Cloud.objects.filter(pk=row.pk, revision=row.revision, uid="").update(uid=uid)


def _version(name: str) -> Hashable:
    if name in OWN & _available():
        # The row has no connection data; the settings do.
        return tuple(_environment(DRIVERS[name]).values())
    version = rows().filter(name=name).values_list("pk", "revision").first()
    if version is None:
        raise _absent(name)
    return version


def _row(name: str) -> models.Cloud:
    row = models.Cloud(name=name, kind=name) if name in OWN else rows().filter(name=name).first()
    if row is None:
        raise _absent(name)
    return row


def _available() -> set[str]:
    return {kind for kind, each in DRIVERS.items() if all(_environment(each).values())}


def _environment(driver: type[Cloud]) -> Mapping[str, str]:
    """Returns the portal's settings for clouds of a kind."""
    return {name: getattr(settings, key) for name, key in driver.environment.items()}


def _absent(name: str) -> CloudError:
    return CloudError(f"This portal has no cloud “{name}” any more; an administrator can register it again.")
