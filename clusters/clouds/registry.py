"""Which clouds there are: rows of `Cloud`, by the names that runs keep, and the drivers of their kinds.

The only place where rows become clouds. A cloud object is kept as long as its row says the same of how it is reached, so
changed credentials are used by every running process from its next call on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from django.apps.registry import Apps, apps
from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet

from clusters import models
from clusters.clouds.drivers.base import Access, Cloud, CloudError, Gateway, Inspected, KeepsLogs, Mount, RunRef
from clusters.clouds.kinds import DRIVERS, OWN
from clusters.models import Run

_kept: dict[str, tuple[Hashable, Cloud]] = {}


def rows() -> QuerySet[models.Cloud]:
    """Every cloud that can be asked. The portal's own machine is among them where the settings say how it is reached."""
    return models.Cloud.objects.exclude(kind__in=DRIVERS.keys() - _available())


def registered() -> QuerySet[models.Cloud]:
    """Those that administrators have registered."""
    return models.Cloud.objects.exclude(kind__in=OWN)


def own_kinds() -> list[str]:
    """Kinds of the clouds that are a part of this portal, where one has such."""
    return sorted(OWN & _available())


def keep_own(apps: Apps = apps, **_: object) -> None:
    """Makes the rows of clouds that are a part of the portal; called after each `migrate`, with the models as they are then."""
    try:
        model: Any = apps.get_model("clusters", "Cloud")
    except LookupError:
        return  # Only other apps were migrated.
    for kind in OWN:
        model.objects.get_or_create(name=kind, defaults={"kind": kind, "title": DRIVERS[kind].title})


def cloud(name: str) -> Cloud:
    """The cloud of that name; the object is shared by all threads. Raises CloudError when there is none. At most two queries,
    none for this machine."""
    version = _version(name)
    kept = _kept.get(name)
    if kept is None or kept[0] != version:
        # Two threads may both make one; the later stays, and either works.
        kept = _kept[name] = (version, connect(_row(name)))
    return kept[1]


def cloud_of(run: Run) -> Cloud:
    """Where the run was made: it stays there, whatever is placed elsewhere since."""
    return cloud(run.cloud)


def run_ref(run: Run) -> RunRef:
    """What the cloud calls the run; its cluster and appcode must be there."""
    return RunRef(run.pk, run.namespace, run.cluster.appcode.code, run.cluster.name, run.number)


def cloud_names() -> list[str]:
    """Every cloud that can be asked. One query."""
    return list(rows().order_by("name").values_list("name", flat=True))


def followed() -> dict[str, Hashable]:
    """Every cloud of which news are wanted, with what changes when it is reached in another way. One query.

    One that was given up is among them: what lived there is to be ended should it come back.
    """
    alive = Exists(Run.objects.filter(cloud=OuterRef("name"), gone=False))
    wanted = rows().filter(Q(enabled=True) | Q(given_up_at__isnull=False) | alive).order_by("name")
    return {
        name: (pk, revision, *_environment(DRIVERS[kind]).values())
        for name, kind, pk, revision in wanted.values_list("name", "kind", "pk", "revision")
    }


def driver(name: str) -> type[Cloud]:
    """The driver of the cloud of that name. Raises CloudError when there is none. One query, none for this machine."""
    if name in OWN:
        return DRIVERS[name]
    kind = models.Cloud.objects.filter(name=name).values_list("kind", flat=True).first()
    if kind is None:
        raise _absent(name)
    return DRIVERS[kind]


def gateway_of(name: str) -> Gateway | None:
    """What leads people to the endpoints of a cloud, None where nothing does. One query, none for this machine."""
    kind, stored = _stored(name)
    return DRIVERS[kind].gateway(stored) if kind else None


def leads_fronts(name: str) -> bool:
    """Whether fronts of services reach what replicas of a cloud answer at. One query, none for this machine."""
    kind, stored = _stored(name)
    return bool(kind) and DRIVERS[kind].leads_fronts(stored)


def why_no_environments(name: str) -> str:
    """Why tasks of a cloud cannot start from a saved environment, or "". One query, none for this machine."""
    kind, stored = _stored(name)
    return DRIVERS[kind].why_no_environments(stored) if kind else str(_absent(name))


def why_not_cached(name: str, disk_bytes: int | None) -> str:
    """Why a cloud does not copy an input of that size (None: of no version) once for several runs, or "". One query, none for
    this machine."""
    kind, stored = _stored(name)
    return DRIVERS[kind].why_not_cached(stored, disk_bytes) if kind else str(_absent(name))


def asked(name: str, mounts: Sequence[Mount], sizes: Iterable[tuple[int, int, bool]]) -> list[tuple[int, int]]:
    """How much tasks of these sizes take of their machines with these mounts: as `Cloud.asked`. One query, none for this
    machine."""
    kind, stored = _stored(name)
    return [DRIVERS[kind].asked(stored, mounts, *size) if kind else size[:2] for size in sizes]


def _stored(name: str) -> tuple[str, Mapping[str, Any]]:
    """Kind and settings of a cloud, "" for the kind of none."""
    if name in OWN:
        return name, {}
    return models.Cloud.objects.filter(name=name).values_list("kind", "settings").first() or ("", {})


def keeps_logs(name: str) -> bool:
    """Whether logs there outlive their pods. A cloud that was removed took them along. One query at most."""
    try:
        return issubclass(driver(name), KeepsLogs)
    except CloudError:
        return False


def connect(row: models.Cloud) -> Cloud:
    """A cloud of its own from what a row says. Raises CloudError."""
    kind = DRIVERS[row.kind]
    found = {**row.settings, **_environment(kind)}
    return kind.connect(Access(row.name, row.credentials, found, row.prometheus_token or ""))


def identify(source: Cloud) -> None:
    """Writes down which installation it is that is followed under this name, unless that is known. Raises CloudError."""
    row = models.Cloud.objects.filter(name=source.name, uid="").first()
    if row is not None and isinstance(source, Inspected):
        uid = source.identity()
        models.Cloud.objects.filter(pk=row.pk, revision=row.revision, uid="").update(uid=uid)


def _version(name: str) -> Hashable:
    if name in OWN & _available():
        # Its row says nothing of how it is reached.
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
    """What the settings of the portal say of clouds of a kind."""
    return {name: getattr(settings, key) for name, key in driver.environment.items()}


def _absent(name: str) -> CloudError:
    return CloudError(f"This portal has no cloud “{name}” any more; an administrator can register it again.")
