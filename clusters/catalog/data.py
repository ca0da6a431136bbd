"""Datastores, versions and runs that a manifest names → rows, and why one of them cannot be mounted by its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.db.models import Q

from clusters.catalog.folders import output_folder
from clusters.clouds.placement import Place, title_of
from clusters.clouds.registry import why_not_cached
from clusters.manifest.cluster import ClusterSpec
from clusters.manifest.input import WHOLE
from clusters.runs.models import Cluster, Run
from clusters.volumes import lifecycle
from datastores.access import readable_by
from datastores.models import Datastore, Version
from datastores.sources import SourceError, source_for
from datastores.storage.place import CLOSED_TO_PODS, is_own
from portal.errors import FieldError
from portal.models import Appcode
from portal.network.outgoing import is_loopback

# Final phases of a run whose output no other run reads.
HOPELESS = (Run.Phase.FAILED, Run.Phase.STOPPED)


@dataclass(frozen=True)
class Shown:
    """A run whose output another run shows, and the datastore of that output."""

    run: Run
    store: Datastore

    @property
    def name(self) -> str:
        return f"{self.run.cluster.name}/{self.run.number}"


@dataclass(frozen=True)
class Input:
    """What a run reads: `folder` of `store`, "" for all of it. `run` is the run that wrote it, None for data that is not a
    run's output. `version` is the version that must be there, None for any content."""

    store: Datastore
    folder: str
    run: Run | None
    version: Version | None = None


def source_named(spec: ClusterSpec, appcode: Appcode, errors: list[FieldError]) -> Run | None:
    """The run whose output a new run of `spec` reads: a cluster's run under way, else its last success. Adds an error if none."""
    if spec.input is None or spec.input.from_ is None:
        return None
    name, _, number = spec.input.from_.partition("/")
    runs = Run.objects.filter(cluster__appcode=appcode, cluster__name=name, cluster__deleted_at=None)
    always = spec.input.when == "always"
    if number:
        runs = runs.filter(number=int(number))
    elif not always:
        runs = runs.exclude(phase__in=HOPELESS)
    found = runs.select_related("cluster").order_by("-number").first()
    if found is None and number:
        sentence = f"{appcode.code} has no run {spec.input.from_}."
    elif found is None:
        there = Cluster.objects.filter(appcode=appcode, name=name, deleted_at=None).exists()
        sentence = (
            f"No run of {name} has succeeded, and none is under way; deploy it first."
            if there and not always
            else f"{name} has never been deployed."
            if there
            else f"{appcode.code} has no cluster “{name}”."
        )
    else:
        sentence = why_not_read(found, always=always)
    if sentence:
        errors.append(FieldError(("spec", "input", "from"), sentence))
    return None if sentence else found


def why_not_read(run: Run, *, always: bool = False) -> str:
    """Why no run will ever be able to read the output of `run`, or "". The run may still be under way. With `always` the output
    is read whether the run succeeded or not."""
    name = f"{run.cluster.name}/{run.number}"
    if not run.spec["output"]:
        return f"Run {name} has no output datastore, so nothing that it writes is kept."
    if always and run.is_terminal:
        return ""
    if run.phase in HOPELESS:
        return f"Run {name}, which is to be read, has {'failed' if run.phase == Run.Phase.FAILED else 'been stopped'}."
    if run.spec["mode"] == "service" and run.phase != Run.Phase.SUCCEEDED:
        return f"Run {name} is a service, which goes on until it is stopped: its output is never complete."
    return ""


def datastores_named(
    spec: ClusterSpec, appcode: Appcode, place: Place, source: Run | None, errors: list[FieldError]
) -> dict[str, Datastore]:
    """The datastores that `spec` names, by name. Adds an error for each that cannot be used."""
    wanted = (("input", _read_from(spec, source)), ("output", spec.output), ("home", spec.home))
    names = {path: name for path, name in wanted if name}
    if not names:
        return {}
    own = Datastore.objects.filter(appcode=appcode, name__in=names.values()).select_related("appcode", "volume")
    stores = {store.name: store for store in own}
    owner, shared, name = names.get("input", "").partition("/")
    if shared and (other := readable_by(appcode).filter(appcode__code=owner, name=name).first()):
        stores[f"{owner}/{name}"] = other
    tasks = sum(role.count for role in spec.active_roles.values())
    for path, name in names.items():
        if name not in stores and "/" in name and path == "input":
            sentence = f"There is no datastore “{name}” that {appcode.code} may read."
        elif name not in stores:
            sentence = f"{appcode.code} has no datastore “{name}”."
        else:
            store = stores[name]
            sentence = why_not_mounted(store, place, writing=path != "input")
            if path == "input" and (not_so := _why_not_so(spec, store, name, place)):
                errors.append(not_so)
                continue
            if path == "home" and store.kind == Datastore.Kind.S3:
                sentence = f"“{name}” has objects and no files of its own; choose a volume, NFS or a folder."
            if path == "input" and not sentence and (wrong := _why_no_version(store, spec)):
                errors.append(FieldError(("spec", "input", "version"), wrong))
            if store.kind == Datastore.Kind.VOLUME:
                sentence = sentence or lifecycle.why_not(store, place.cloud, place.namespace, tasks)
        if sentence:
            errors.append(FieldError(("spec", path), sentence))
    return stores


def _read_from(spec: ClusterSpec, source: Run | None) -> str | None:
    """The name of the datastore with the input."""
    if source:
        return str(source.spec["output"])
    return spec.input.datastore if spec.input else None


def data_of(
    spec: ClusterSpec, stores: Mapping[str, Datastore], source: Run | None
) -> tuple[Input | None, Datastore | None, Datastore | None]:
    """Its input, output and home."""
    found = None
    if spec.input and (store := stores.get(_read_from(spec, source) or "")):
        folder = output_folder(source.spec["outputPath"], name=source.cluster.name, run=source.number) if source else ""
        version = _version(store, spec)
        inside = version.folder if version else spec.input.path
        found = Input(store, "/".join(part for part in (folder, inside) if part), source, version)
    return found, stores.get(spec.output or ""), stores.get(spec.home or "")


def why_frozen(store: Datastore | None, folder: str) -> str:
    """Why no run may write into this folder, or "": it may belong to a version, which must not change."""
    if store is None:
        return ""
    found = next((version for version in store.versions.all() if version.holds(folder)), None)
    return f"{found} is kept as it is; choose another output folder than {folder}." if found else ""


def _why_not_so(spec: ClusterSpec, store: Datastore, name: str, place: Place) -> FieldError | None:
    """Why the input cannot be provided in the mode that `spec` asks for; None if it can."""
    said = spec.input
    if said is None or (said.mode in WHOLE and not said.folds):
        return None
    field = ("spec", "input", "folds" if said.mode in WHOLE else "mode")
    if store.kind != Datastore.Kind.S3 and said.mode in ("cache", "stream"):
        done = {"cache": "cached", "stream": "streamed"}[said.mode]
        return FieldError(field, f"“{name}” is mounted as it is; only what lies in S3 is {done}.")
    if said.mode == "cache":
        version = _version(store, spec)
        if said.version and not version:
            return None  # reported at its own field
        if why := why_not_cached(place.cloud, version.disk_bytes if version else None):
            return FieldError(field, f"Input cannot be cached on {title_of(place.cloud)}: {why}")
    if said.mode == "stream" and not place.driver.streams:
        return FieldError(field, f"Input cannot be streamed on {title_of(place.cloud)}; copy it.")
    return None


def _version(store: Datastore, spec: ClusterSpec) -> Version | None:
    return store.versions.filter(name=spec.input.version).first() if spec.input and spec.input.version else None


def _why_no_version(store: Datastore, spec: ClusterSpec) -> str:
    """Why the datastore has not the version that `spec` reads, or it cannot be used; "" if all is well."""
    if spec.input is None or not spec.input.version:
        return ""
    found = _version(store, spec)
    if found is None:
        return f"“{store.name}” has no version {spec.input.version}."
    if store.kind != Datastore.Kind.S3:
        return f"“{store.name}” is mounted as it is, and no version of it is compared; name a folder instead."
    if spec.input.path not in ("", found.folder):
        return f"{found} is of {f'the folder {found.folder}' if found.folder else 'all of it'}; leave the folder out."
    return ""


def shown_named(spec: ClusterSpec, appcode: Appcode, place: Place, errors: list[FieldError]) -> tuple[Shown, ...]:
    """The runs that `spec` shows, in its order. Adds an error if one of them cannot be shown. At most two queries."""
    if not spec.runs:
        return ()
    found = runs_named(spec.runs, appcode)
    outputs = {run.spec["output"] for run in found.values()} - {None}
    stores = Datastore.objects.filter(appcode=appcode, name__in=outputs).select_related("appcode", "volume")
    by_name = {store.name: store for store in stores}
    shown = []
    for name in spec.runs:
        run = found.get(name)
        store = by_name.get(run.spec["output"] or "") if run else None
        sentence = f"{appcode.code} has no run {name}." if run is None else why_not_shown(run, store, place)
        if sentence:
            errors.append(FieldError(("spec", "runs"), sentence))
            break
        assert run is not None
        assert store is not None
        shown.append(Shown(run, store))
    return tuple(shown)


def runs_named(names: Iterable[str], appcode: Appcode) -> dict[str, Run]:
    """The runs of the appcode with these names (`train/3`), by name. Missing ones are left out."""
    named = Q(pk=None)
    for name in names:
        cluster, _, number = name.partition("/")
        named |= Q(cluster__name=cluster, number=int(number))
    runs = Run.objects.filter(named, cluster__appcode=appcode, cluster__deleted_at=None).select_related("cluster")
    return {f"{run.cluster.name}/{run.number}": run for run in runs}


def why_not_shown(run: Run, store: Datastore | None, place: Place) -> str:
    """Why another run at `place` cannot show the output of `run`, or "". `store` is the datastore with the output."""
    name = f"{run.cluster.name}/{run.number}"
    if not run.spec["output"]:
        return f"Run {name} has no output datastore, so nothing that it wrote is kept."
    if store is None:
        return f"The datastore “{run.spec['output']}” of run {name} does not exist any more."
    if run.started_at is None:
        return f"Run {name} has not begun to run{'' if run.is_terminal else ' yet'}."
    sentence = why_not_mounted(store, place, writing=False)
    if store.kind == Datastore.Kind.VOLUME:
        sentence = sentence or lifecycle.why_not(store, place.cloud, place.namespace, 1)
    return sentence


def why_not_mounted(store: Datastore, place: Place, *, writing: bool) -> str:
    """Why tasks at `place` cannot mount `store`, or ""."""
    if store.kind not in place.driver.mounts:
        kinds = " or ".join(label for kind, label in Datastore.Kind.choices if kind in place.driver.mounts)
        return (
            f"“{store.name}” is of kind {store.get_kind_display()}, which {title_of(place.cloud)} cannot reach; choose a "
            f"datastore of kind {kinds}."
        )
    if place.driver.is_remote and is_loopback(_host(store)):
        sentence = f"“{store.name}” lies on the portal's own machine ({store.where}), which {title_of(place.cloud)} cannot reach."
        return f"{sentence} {CLOSED_TO_PODS}" if is_own(store.spec.get("server", "")) else sentence
    try:
        source = source_for(store)
    except SourceError as error:
        return str(error)
    if writing and source.read_only:
        return f"The folder of “{store.name}” may only be read; choose another datastore for output."
    return ""


def _host(store: Datastore) -> str:
    server = store.spec.get("server", "")
    return (urlsplit(server).hostname or "") if store.kind == Datastore.Kind.S3 else server
