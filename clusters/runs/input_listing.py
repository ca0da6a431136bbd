"""Lists the files that a run wrote, or that the next one will read.

Clouds note what they copy as input when they copy it (status/observe.py). A run's output is in its datastore once the run is
gone, on every cloud, so the portal lists it then and drivers need not. Both digests are of the same kind
(datastores/listing.py), and may be compared with each other and with the files there now.

Nothing lists more than MOST_LOOKED_AT files: of a larger output it only notes that there is more.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from itertools import islice

from clusters.catalog.folders import output_folder
from clusters.manifest.input import input_of
from clusters.runs.models import Cluster, Run
from datastores.access import readable_by
from datastores.actions import open_store
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from datastores.files import versions
from datastores.files.contents import MOST_LOOKED_AT
from datastores.listing import Listing, listing_of
from datastores.models import Datastore
from portal.db.advisory_lock import Lock, advisory_lock

log = logging.getLogger(__name__)

# Maximum seconds for a store to list an output.
SECONDS = 60.0


@dataclass(frozen=True)
class Change:
    """How the input of a cluster in `folder` of `store` differs from what run `run` read: files and bytes then (`was`) and
    `now`. `versions` are the datastore's versions that equal what the run read."""

    store: Datastore
    folder: str
    run: int
    was: tuple[int, int]
    now: tuple[int, int]
    is_changed: bool
    versions: tuple[str, ...]


def note_output(run_id: int) -> None:
    """Lists the output folder of a run that is gone (its `wrote` is None until then) and stores the digest; {} if it cannot be
    listed. May run twice. An appcode's outputs are listed one at a time, so that their slow server occupies one worker: the
    worker with the lock also takes the runs that arrive meanwhile."""
    appcode = Run.objects.filter(pk=run_id).values_list("cluster__appcode", flat=True).first()
    waiting = (
        Run.objects.filter(cluster__appcode=appcode, wrote__isnull=True).order_by("pk").values_list("pk", flat=True)
    )
    found, until = appcode and run_id, time.monotonic() + SECONDS
    with advisory_lock(Lock.OUTPUTS, str(appcode)) as is_mine:
        while is_mine and found and time.monotonic() < until:
            _note(found)
            found = waiting.first()


def _note(run_id: int) -> None:
    waiting = Run.objects.filter(pk=run_id, wrote__isnull=True)
    run = waiting.select_related("cluster__appcode").first()
    if run is None:
        return
    store = (
        Datastore.objects.select_related("appcode")
        .filter(appcode=run.cluster.appcode_id, name=run.spec["output"])
        .first()
    )
    wrote: dict[str, object] = {}
    folder = output_folder(run.spec["outputPath"], name=run.cluster.name, run=run.number)
    try:
        if store:
            with within(SECONDS):
                found, is_all = _listed(store, folder)
            digest = found.digest if is_all else None
            wrote = {"digest": digest, "files": found.files, "bytes": found.size, "complete": is_all}
    except DriverError as error:
        log.info("run %s: what it has written cannot be listed: %s", run_id, error)
    waiting.update(wrote=wrote)


def input_change(cluster: Cluster) -> Change | None:
    """How the cluster's input has changed since the last run that noted it. None if unknown: no run has noted it, it is another
    cluster's output or a version, or there are too many files. Raises DriverError."""
    said = input_of(cluster.spec)
    if said is None or said.datastore is None or said.version:
        return None
    run = cluster.runs.filter(spec__input=cluster.spec["input"]).exclude(read={}).order_by("-number").first()
    owner, shared, name = said.datastore.rpartition("/")
    stores = readable_by(cluster.appcode).filter(appcode__code=owner if shared else cluster.appcode.code, name=name)
    store = stores.first()
    if run is None or store is None:
        return None
    found, is_all = _listed(store, said.path)
    if not is_all:
        return None
    same = store.versions.filter(folder=said.path, digest=run.read["digest"]).order_by("-pk")
    return Change(
        store,
        said.path,
        run.number,
        (run.read["files"], run.read["bytes"]),
        (found.files, found.size),
        found.digest != run.read["digest"],
        tuple(same.values_list("name", flat=True)),
    )


def lies_there(store: Datastore, folder: str, digest: str, seconds: float) -> bool:
    """Whether `folder` now has the files that `digest` was made of. Raises DriverError, also if the store takes longer."""
    with within(seconds):
        found, is_all = _listed(store, folder)
    return is_all and found.digest == digest


def _listed(store: Datastore, folder: str) -> tuple[Listing, bool]:
    """The listing, and whether it is complete. Raises DriverError."""
    rows = versions.rows(open_store(store), folder)
    found = listing_of(islice(rows, MOST_LOOKED_AT))
    return found, next(rows, None) is None
