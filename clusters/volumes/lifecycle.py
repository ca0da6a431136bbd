"""Volumes of datastores: created for the run that first mounts one, enlarged on request, deleted with their datastore.

A row of `datastores.Volume` is written before the cloud is called and deleted after that, so a crash in between leaks nothing.
A volume stays where it was created: a business line that is placed elsewhere later cannot reach it.
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import cast

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from clusters.clouds.bulkhead import PutOff, lane
from clusters.clouds.drivers.base import (
    AccessMode,
    CloudError,
    CloudRefused,
    KeepsVolumes,
    Plan,
    VolumeRef,
    VolumeSource,
)
from clusters.clouds.models import Cloud
from clusters.clouds.placement import place_of, title_of
from clusters.clouds.registry import cloud, cloud_names
from clusters.runs.models import Run
from clusters.volumes import metering
from datastores.models import Datastore, Volume
from datastores.sources import SourceError
from datastores.specs import DatastoreSpec
from datastores.storage.place import is_own
from portal.errors import FieldError, Invalid
from portal.models import Appcode
from portal.text.words import readable

log = logging.getLogger(__name__)

# Interval between two tries of a cloud that failed.
TRY_AGAIN = dt.timedelta(seconds=30)
TOLD = Q(told_at__isnull=False)
LARGER = TOLD & ~Q(size=F("told_size")) & ~Q(size=F("refused_size"))
# Volumes created before volumes were metered are billed from the next sweep on.
UNSETTLED = Q(datastore=None) | LARGER | TOLD & Q(metered_mb=0)


@transaction.atomic
def source_for_run(run: Run, store: Datastore, folder: str) -> VolumeSource:
    """The source that `run` mounts. From now on the volume is where the run is; `told` starts its metering. Raises SourceError
    if it is elsewhere, and CloudError while another run holds a volume that only one may mount."""
    # The lock keeps the datastore from being deleted, and other runs from creating its volume.
    locked = Datastore.objects.select_for_update(of=("self",)).select_related("appcode").filter(pk=store.pk).first()
    if locked is None:
        raise SourceError(f"Datastore {store.name} is deleted.")
    volume, _ = Volume.objects.get_or_create(
        datastore=locked,
        defaults={
            "cloud": run.cloud,
            "namespace": run.namespace,
            "appcode": locked.appcode.code,
            "name": locked.name,
            "storage_class": locked.spec["storage_class"],
            "access_mode": locked.spec["access_mode"],
            "size": locked.size,
            "told_size": locked.size,
        },
    )
    if sentence := why_not_there(volume, run.cloud, run.namespace):
        raise SourceError(sentence)
    if volume.told_at is None and volume.told_size != volume.size:
        # It was enlarged before it existed.
        volume.told_size = volume.size
        volume.save(update_fields=["told_size"])
    if volume.access_mode == "ReadWriteOnce" and volume.holder != run.pk:
        living = Run.objects.filter(gone=False).select_related("cluster")
        if volume.holder and (other := living.filter(pk=volume.holder).first()):
            raise CloudError(
                f"The volume of {store.name} is mounted by one task at a time, and {other.cluster.name} has it."
            )
        volume.holder = run.pk
        volume.save(update_fields=["holder"])
    return _source(volume, volume.told_size, folder)


def told(plan: Plan) -> None:
    """Starts metering the volumes of a plan that the cloud has accepted, and so created. Repeated, it changes nothing."""
    for mount in plan.mounts:
        if isinstance(mount.source, VolumeSource):
            with transaction.atomic():
                at = timezone.now()
                metering.meter(mount.source.volume.id, mount.source.size, at)
                Volume.objects.filter(pk=mount.source.volume.id, told_at=None).update(told_at=at)


def _source(volume: Volume, size: str, folder: str = "") -> VolumeSource:
    return VolumeSource(ref(volume), volume.storage_class, size, cast("AccessMode", volume.access_mode), folder)


def ref(volume: Volume) -> VolumeRef:
    return VolumeRef(volume.pk, volume.namespace, volume.appcode, volume.name)


def why_not_there(volume: Volume, cloud_name: str, namespace: str) -> str:
    """Why tasks in `namespace` on a cloud cannot mount the volume, or ""."""
    if (volume.cloud, volume.namespace) == (cloud_name, namespace):
        return ""
    return (
        f"The volume of “{volume.name}” lies on {title_of(volume.cloud)} in namespace {volume.namespace}, where this does not "
        "run; choose another datastore."
    )


def why_not(store: Datastore, cloud_name: str, namespace: str, tasks: int) -> str:
    """Why a run with this many tasks cannot mount the volume of `store`, or ""."""
    if store.made and (sentence := why_not_there(store.made, cloud_name, namespace)):
        return sentence
    if tasks < 2 or store.spec["access_mode"] != "ReadWriteOnce":
        return ""
    return (
        f"The volume of “{store.name}” is mounted by one task at a time (ReadWriteOnce), and this has {tasks}; choose one that "
        "many tasks mount (ReadWriteMany), or another kind of datastore."
    )


def judge(appcode: Appcode, spec: DatastoreSpec) -> list[FieldError]:
    """Errors of a datastore on the cloud where `appcode` runs now; see `datastores.placing`."""
    wanted = spec.volume
    if wanted is None and spec.s3 is None:
        return []
    try:
        place = place_of(appcode)
    except Invalid:
        return []  # it has no place yet; the error is reported when something is to run
    stored = Cloud.objects.values_list("settings", flat=True).get(name=place.cloud)
    if wanted is None:
        closed = spec.s3 and not is_own(spec.s3.server) and place.driver.why_closed(stored, spec.s3.server)
        return [FieldError(("spec", "s3", "server"), closed)] if closed else []
    if not issubclass(place.driver, KeepsVolumes):
        kinds = " or ".join(label for kind, label in Datastore.Kind.choices if kind in place.driver.mounts)
        sentence = f"{appcode.code} runs on {place.title}, which has no volumes; choose a datastore of kind {kinds}."
        return [FieldError(("metadata", "appcode"), sentence)]
    wrong = place.driver.judge_volume(stored, place.title, wanted.storage_class, wanted.size)
    return [FieldError(("spec", "volume", field), sentence) for field, sentence in wrong.items()]


def unsettled(at: dt.datetime) -> QuerySet[Volume]:
    """Volumes whose desired state was not sent to their cloud yet, least recently tried first."""
    due = Q(tried_at=None) | Q(tried_at__lt=at - TRY_AGAIN)
    return Volume.objects.filter(UNSETTLED, due).order_by(F("tried_at").asc(nulls_first=True), "pk")


def settle(volume_id: int) -> None:
    """Sends the desired state of one volume to its cloud. May run twice or concurrently: repeated calls change nothing."""
    volume = Volume.objects.filter(UNSETTLED, pk=volume_id).first()
    if volume is None:
        return
    rows = Volume.objects.filter(pk=volume_id)
    rows.update(tried_at=timezone.now())
    try:
        if volume.datastore_id is None:
            _delete(volume)
        else:
            metering.meter(volume.pk, volume.told_size, timezone.now())
            if volume.size not in (volume.told_size, volume.refused_size):
                _grow(volume)
    except PutOff as error:
        # Keep a more specific message. `tried_at` is set all the same, so that a silent cloud's volumes do not hold up others.
        rows.filter(trouble="").update(trouble=readable(str(error)))
    except CloudError as error:
        log.warning("volume %s: its cloud cannot do it now: %s", volume, error)
        rows.update(trouble=readable(str(error)))


def _delete(volume: Volume) -> None:
    # The volumes of a cloud that was removed are gone with it.
    if volume.cloud in cloud_names():
        with lane(volume.cloud):
            _keeper(volume).delete_volume(ref(volume))
    with transaction.atomic():
        metering.meter(volume.pk, "", timezone.now())
        Volume.objects.filter(pk=volume.pk).delete()
    log.info("volume %s: its cloud was told to delete it", volume)


def _grow(volume: Volume) -> None:
    # Only if the size is still the requested one: another user may have asked for more meanwhile.
    rows = Volume.objects.filter(pk=volume.pk, size=volume.size)
    try:
        with lane(volume.cloud):
            _keeper(volume).apply_volume(_source(volume, volume.size))
    except CloudRefused as refusal:
        rows.update(refused_size=volume.size, trouble=readable(str(refusal)))
    else:
        with transaction.atomic():
            metering.meter(volume.pk, volume.size, timezone.now())
            rows.update(told_size=volume.size, trouble="")
        log.info("volume %s: its cloud was told to let it grow to %s", volume, volume.size)


def _keeper(volume: Volume) -> KeepsVolumes:
    found = cloud(volume.cloud)
    if not isinstance(found, KeepsVolumes):
        raise CloudRefused(f"{title_of(volume.cloud)} has no volumes.")
    return found
