"""Processes versions after they were requested: reads their files, and registers versions that hooks reported.

A version is Pending until all its files were read. After a crash, files that were read stay read, and the resync finds the
rest. The files are compared with the frozen listing before and after reading, so digests match that listing. When a check is
requested, the same loop reads the files again and reports those that changed.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import time
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Count, Q
from django.utils import timezone
from pydantic import ValidationError

from clusters import wakeups
from clusters.catalog.folders import output_folder
from clusters.clouds.drivers.base import CloudError
from clusters.hooks.facts import metrics_of
from clusters.hooks.models import HookRun
from clusters.model_registry.actions import ROOM, Source, output_of, register_from
from clusters.model_registry.manifest import SAID, Said
from clusters.model_registry.models import ModelVersion
from clusters.model_registry.signature import read_signature
from datastores.actions import open_store
from datastores.drivers.base import Driver, DriverError, NotThere
from datastores.drivers.patience import within
from datastores.files.contents import Busy
from datastores.files.versions import rows
from datastores.listing import listing_of
from datastores.models import Datastore
from portal.access import OPERATE, may
from portal.api.problems import Unavailable
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict, Invalid
from portal.models import User
from portal.text.words import readable
from portal.web.limits import refuse_nul

log = logging.getLogger(__name__)

State = ModelVersion.State
# How long unreadable files are retried, and the interval.
PATIENCE, AGAIN = dt.timedelta(minutes=10), dt.timedelta(seconds=20)
# Seconds after which a turn starts no more files; maximum seconds for one file, and for a listing.
TURN_SECONDS, FILE_SECONDS, LIST_SECONDS = 60.0, 900.0, 30.0
MAX_SAID = 256 * 1024
RESYNC_LIMIT = 500
TOLD = Q(did__phase__in=("Succeeded", "Failed", "Stopped"), message="", run__cluster__deleted_at=None) & ~Q(model="")


def advance(appcode_id: int, _: str = "") -> None:
    """Registers versions reported by an appcode's hooks, and reads Pending ones. One worker at a time handles an appcode, so
    that its slow server does not block more."""
    until = time.monotonic() + TURN_SECONDS
    with advisory_lock(Lock.MODELS, str(appcode_id)) as is_mine:
        if not is_mine:
            return
        told = HookRun.objects.filter(TOLD, run__cluster__appcode=appcode_id).order_by("pk")
        for row in told.select_related("run__cluster__appcode", "run__created_by", "did__cluster__appcode")[
            :RESYNC_LIMIT
        ]:
            if time.monotonic() < until:
                _register(row)
        while time.monotonic() < until and (version := _due().filter(model__appcode=appcode_id).first()):
            _read(version, until)


def resync() -> None:
    """Finds lost wake-ups and due retries. One wake-up for each appcode."""
    told = HookRun.objects.filter(TOLD).values_list("run__cluster__appcode").annotate(count=Count("pk"))
    due = _due().order_by().values_list("model__appcode").annotate(count=Count("pk"))
    for appcode_id in {pk for pk, _ in (*told[:RESYNC_LIMIT], *due[:RESYNC_LIMIT])}:
        wakeups.wake_whole(appcode_id, ROOM)


def _due() -> Any:
    waited = Q(tried_at=None) | Q(tried_at__lt=timezone.now() - AGAIN)
    found = ModelVersion.objects.filter(waited, state=State.PENDING, deleted_at=None).order_by("asked_at", "pk")
    return found.select_related("model__appcode", "frozen__datastore__appcode", "run__cluster__appcode")


def _read(version: ModelVersion, until: float) -> None:
    mine = ModelVersion.objects.filter(pk=version.pk, state=State.PENDING, asked_at=version.asked_at, deleted_at=None)
    mine.update(tried_at=timezone.now())
    is_late = timezone.now() - version.asked_at > PATIENCE
    try:
        found = _looked(version, until, is_late=is_late)
    except NotThere as error:
        found = {"state": State.CHANGED, "message": str(error)}
    except (DriverError, CloudError) as error:
        log.info("version %s cannot be read: %s", version.pk, error)
        found = {"message": str(error)} | ({"state": State.FAILED} if is_late else {})
    mine.update(**found)


def _looked(version: ModelVersion, until: float, *, is_late: bool) -> dict[str, Any]:
    """The columns to update. Raises DriverError and CloudError."""
    assert version.frozen is not None
    driver = open_store(version.frozen.datastore)
    if why := _why_other(version, driver):
        return {"state": State.CHANGED, "message": why}
    if version.checked_at is None:
        files, is_all = _digests(version, driver, until)
        if not is_all:
            # What was read is kept; the rest is read in the next turn, at once.
            return {"files": files, "tried_at": None}
        found = {"files": files} | _told(version, driver, is_late=is_late)
    else:
        files, other, is_all = _again(version, driver, until)
        if other:
            return {"state": State.CHANGED, "message": f"{other}: other bytes than when it was registered."}
        if not is_all:
            return {"files": files, "tried_at": None}
        found = {"files": [{key: each[key] for key in ("path", "size", "sha256")} for each in files]}
    if why := _why_other(version, driver):
        return {"state": State.CHANGED, "message": why}
    return found | {"state": State.READY, "message": "", "checked_at": timezone.now()}


def _digests(version: ModelVersion, driver: Driver, until: float) -> tuple[list[dict[str, Any]], bool]:
    """The files, with digests of those read so far (at least one more), and whether all are read."""
    files = [dict(each) for each in version.files]
    for each in files:
        if not each["sha256"]:
            each["sha256"] = _sha256(driver, _joined(version.folder, each["path"]))
            if time.monotonic() >= until:
                break
    return files, all(each["sha256"] for each in files)


def _again(version: ModelVersion, driver: Driver, until: float) -> tuple[list[dict[str, Any]], str, bool]:
    """The files, marked by this check if read so far (at least one more); the first changed one, or ""; whether all are read."""
    files, check = [dict(each) for each in version.files], version.asked_at.isoformat()
    for each in files:
        if each.get("again") != check:
            if _sha256(driver, _joined(version.folder, each["path"])) != each["sha256"]:
                return files, each["path"], False
            each["again"] = check
            if time.monotonic() >= until:
                break
    return files, "", all(each.get("again") == check for each in files)


def _told(version: ModelVersion, driver: Driver, *, is_late: bool) -> dict[str, Any]:
    """Signature and metrics, unless they were given."""
    found: dict[str, Any] = {}
    if version.signature is None:
        sizes = [(each["path"], each["size"]) for each in version.files]
        with within(LIST_SECONDS):
            signature = read_signature(driver, version.folder, sizes, version.format)
        found["signature"] = signature.model_dump(mode="json", by_alias=True) if signature else None
    if not version.metrics and version.run:
        try:
            found["metrics"] = metrics_of(version.run)
        except (DriverError, CloudError) as error:
            if not is_late:
                raise
            log.warning("version %s: the metrics of its run cannot be read: %s", version.pk, error)
    return found


def _why_other(version: ModelVersion, driver: Driver) -> str:
    """How the files now differ by name, size or time from the frozen listing, or ""."""
    assert version.frozen is not None
    with within(LIST_SECONDS):
        lies = []
        for row in rows(driver, version.folder):
            lies.append(row)
            if len(lies) > version.frozen.files:
                break
    if listing_of(lies).digest == version.frozen.digest:
        return ""
    sizes = {path: size for path, size, _ in lies}
    for each in version.files:
        if each["path"] not in sizes:
            return f"{each['path']} is not there any more: somebody has removed it in the store itself."
        if sizes[each["path"]] != each["size"]:
            return f"{each['path']} has another size than when it was registered."
    if added := sorted(set(sizes) - {each["path"] for each in version.files}):
        return f"{added[0]} has come since it was registered."
    return "Its files were written anew since it was registered."


def _sha256(driver: Driver, path: str) -> str:
    digest = hashlib.sha256()
    with within(FILE_SECONDS):
        for chunk in driver.open(path).chunks:
            digest.update(chunk)
    return digest.hexdigest()


def _joined(folder: str, path: str) -> str:
    return f"{folder}/{path}" if folder else path


def _register(row: HookRun) -> None:
    """Creates the version that a hook reported, or stores why that failed or has to wait. A failed hook creates none. After a
    crash between the two, it is created again, which returns the same version."""
    found = {"model": ""}
    assert row.did is not None
    try:
        if row.did.phase == "Succeeded":
            _make(row)
    except Invalid as invalid:
        found = _refused(" ".join(f"{each.path[-1]}: {each.message}" for each in invalid.errors))
    except (Conflict, PermissionDenied, DriverError, Unavailable) as error:
        passes = isinstance(error, Busy | DriverError | Unavailable) and not isinstance(error, NotThere)
        if passes and timezone.now() - row.did.phase_since < PATIENCE:
            log.info("hook run %s: its version cannot be made now: %s", row.pk, error)
            found = {"waits": f"Its version is not registered yet and is tried again: {readable(str(error))}"}
        else:
            found = _refused(str(error))
    HookRun.objects.filter(pk=row.pk).update(**{"waits": "", **found})


def _refused(why: str) -> dict[str, str]:
    return {"message": f"No version was registered: {readable(why)}"}


def _make(row: HookRun) -> None:
    """Raises what `register_from` raises."""
    user = _acting(row)
    said, its_own = _said(row)
    source = its_own if said.output == "hook" else output_of(row.run)
    source = Source(source.store, source.folder, row.run, row)
    register_from(row.run.cluster.appcode, row.model, source, said, acting_user=user, create=True)


def _acting(row: HookRun) -> User:
    user, appcode = row.run.created_by, row.run.cluster.appcode
    if user is None or not may(user, appcode, OPERATE):
        raise PermissionDenied(f"who started the run may change nothing in {appcode.code} any more.")
    return user


def _said(row: HookRun) -> tuple[Said, Source]:
    """The hook's model-version.json, and the folder of its output."""
    assert row.did is not None
    spec, cluster = row.did.spec, row.did.cluster
    if not spec["output"]:
        raise Conflict(f"the hook has no output, where {SAID} would lie.")
    store = Datastore.objects.select_related("appcode").filter(appcode=cluster.appcode_id, name=spec["output"]).first()
    if store is None:
        raise Conflict(f"the datastore “{spec['output']}” does not exist any more.")
    folder = output_folder(spec["outputPath"], name=cluster.name, run=row.did.number)
    try:
        with within(LIST_SECONDS):
            data = open_store(store).read_range(_joined(folder, SAID), 0, MAX_SAID + 1)
    except NotThere:
        raise Conflict(f"the hook has written no {SAID} into {folder} of {store.name}.") from None
    if len(data) > MAX_SAID:
        raise Conflict(f"{SAID} has more than {MAX_SAID // 1024} KiB.")
    try:
        said = Said.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise Conflict(f"{SAID}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    refuse_nul(said.model_dump())
    return said, Source(store, folder)
