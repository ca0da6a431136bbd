"""What lies now where a run has written, or where the next one will read, listed by the portal itself.

Clouds note what they copy as input, at the moment that they do (observe.py). What a run has written lies in its datastore when it
is gone, on every cloud alike, so the portal lists it then, and no driver has to. Both are digests of one kind
(datastores/listing.py) and may be compared with each other, and with what lies there now.

Nothing lists more than MOST_LOOKED_AT files: of a larger output only that it has more is noted.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from itertools import islice

from clusters.input import input_of
from clusters.models import Cluster, Run
from clusters.spec.folders import output_folder
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

# How long a store may take to list an output.
SECONDS = 60.0


@dataclass(frozen=True)
class Change:
    """Of the input of a cluster, which lies in `folder` of `store`: what run `run` has read, and what the next one would, in
    files and bytes. `versions` of the datastore are what that run has read."""

    store: Datastore
    folder: str
    run: int
    was: tuple[int, int]
    now: tuple[int, int]
    is_changed: bool
    versions: tuple[str, ...]


def note_output(run_id: int) -> None:
    """Once a run is gone that wrote to a datastore (`wrote` is None until then): what lies in its folder. {} where nobody can
    tell. May run twice. One after the other of an appcode, so that a server of theirs that is slow keeps one worker: who is at it
    takes those that come meanwhile."""
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
    """Whether what the definition reads has changed since the last run that noted it. None where that cannot be asked: no run
    has noted it, it is the output of a cluster or a version, or there are too many files. Raises DriverError."""
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
    """Whether what lies in `folder` now is what was noted as `digest`. Raises DriverError, also when the store takes longer."""
    with within(seconds):
        found, is_all = _listed(store, folder)
    return is_all and found.digest == digest


def _listed(store: Datastore, folder: str) -> tuple[Listing, bool]:
    """And whether that is all. Raises DriverError."""
    rows = versions.rows(open_store(store), folder)
    found = listing_of(islice(rows, MOST_LOOKED_AT))
    return found, next(rows, None) is None
