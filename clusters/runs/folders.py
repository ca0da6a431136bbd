"""The folders of a datastore that runs read and write, for its retention rules (datastores/files/retention.py)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from django.db.models import Q
from django.urls import reverse

from clusters.catalog.data import runs_named
from clusters.catalog.folders import output_folder
from clusters.manifest.input import input_of
from clusters.runs.models import Run
from datastores.extension_points import Use
from datastores.files.retention import Held, Output
from datastores.models import Datastore

# Parts of a path in which the number of a run is looked for.
MOST_PARTS = 8


def outputs(store: Datastore) -> Iterator[Output]:
    """Output folders of all runs that the appcode ever had, from one query read row by row. A run counts as failed only once it
    has failed and is gone, from the time of its failure."""
    rows = Run.objects.filter(cluster__appcode=store.appcode_id, spec__output=store.name).order_by()
    facts = rows.values_list(
        "cluster__name", "number", "spec__outputPath", "phase", "gone", "finished_at", "phase_since"
    )
    for name, number, path, phase, gone, finished_at, since in facts.iterator():
        failed = (finished_at or since) if gone and phase == Run.Phase.FAILED else None
        yield Output(output_folder(path, name=name, run=number), f"{name}/{number}", failed)


def written_by(store: Datastore, folder: str) -> Use | None:
    """The run that has this folder, or one above it, as its output. A query for each part of the path that may be its number."""
    parts = folder.split("/")[:MOST_PARTS]
    for name, number in pairwise(parts):
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            continue
        own = Run.objects.filter(cluster__appcode=store.appcode_id, cluster__name=name, cluster__deleted_at=None)
        run = own.filter(number=number, spec__output=store.name).select_related("cluster__appcode").first()
        if run and f"{folder}/".startswith(f"{_folder(run)}/"):
            page = reverse("cluster", args=[run.cluster.appcode.code, name])
            return Use(f"{name}/{number}", f"{page}?run={number}", writes=True)
    return None


def in_use(store: Datastore) -> list[Held]:
    """What live runs of any appcode read and write in this datastore. Two queries, plus one if runs are shown."""
    named = Q(spec__input=str(store)) | Q(spec__input__datastore=str(store))
    rows = Run.objects.filter(Q(cluster__appcode=store.appcode_id) | named, gone=False).order_by("pk")
    living = list(rows.select_related("cluster__appcode", "source__cluster"))
    versions = dict(store.versions.values_list("name", "folder"))
    own = [run for run in living if run.cluster.appcode_id == store.appcode_id]
    shown = runs_named({name for run in own for name in run.spec.get("runs", ())}, store.appcode)
    return [held for run in living for held in _held(run, store, versions, shown)]


def _held(run: Run, store: Datastore, versions: dict[str, str], shown: dict[str, Run]) -> Iterator[Held]:
    is_own = run.cluster.appcode_id == store.appcode_id
    who = f"run {run.cluster.name if is_own else run.cluster}/{run.number}"
    said = input_of(run.spec)
    if said and said.datastore in ({str(store), store.name} if is_own else {str(store)}):
        yield Held(versions.get(said.version, "") if said.version else said.path, f"{who} reads it")
    if not is_own:
        return
    if said and run.source and run.source.spec["output"] == store.name:
        yield Held(_joined(_folder(run.source), said.path), f"{who} reads it")
    for other in (shown[name] for name in run.spec.get("runs", ()) if name in shown):
        if other.spec["output"] == store.name:
            yield Held(_folder(other), f"{who} shows it")
    if run.spec["output"] == store.name:
        yield Held(_folder(run), f"{who} writes there")
    if run.spec.get("home") == store.name:
        yield Held("", f"{who} has it as its home folder")


def _folder(run: Run) -> str:
    spec: dict[str, Any] = run.spec
    return output_folder(spec["outputPath"], name=run.cluster.name, run=run.number)


def _joined(*folders: str) -> str:
    return "/".join(folder for folder in folders if folder)
