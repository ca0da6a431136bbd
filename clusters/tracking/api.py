"""MLflow's REST for the tasks of runs, so that its client and everything that builds on it records without a change.

Only what these clients call exists. Names, bodies and errors are MLflow's (mlflow/protos/service.proto, mlflow_artifacts.proto).
Models are in the portal's own registry. Tasks reach it through a door that forwards nothing but these addresses
(clouds/drivers/local/network/packages.py), with a token of their run: it reads what its appcode recorded, and writes to what its
own run records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods, require_safe

from clusters.catalog.folders import output_folder
from clusters.runs.models import Run
from clusters.runs.plan import OUTPUT_PATH
from clusters.runs.tracking_token import run_id_of
from clusters.tracking import reading, store
from clusters.tracking.messages import (
    MAX_NAME,
    MAX_PARAM,
    MAX_TAG,
    Record,
    Refused,
    metric_of,
    number_out,
    pair_of,
    record_of,
    tags_of,
    text,
    whole,
    wrong,
)
from clusters.tracking.models import Experiment, TrackedMetric, TrackedRun
from datastores.actions import open_store
from datastores.drivers.base import Driver, DriverError, NotThere
from datastores.drivers.patience import within
from datastores.models import Datastore
from datastores.specs import relative_path
from portal.api.problems import Unavailable
from portal.models import Appcode
from portal.web.limits import LOOKS, TRANSFERS, Sending, counted

log = logging.getLogger(__name__)

# In the output of a run: a folder for each run that it recorded.
FOLDER = "mlflow"
# Seconds that a request may wait for a datastore, and files of one answer.
SECONDS, MAX_FILES = 20, 1000
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Caller:
    """The run whose token came with a request."""

    run: Run

    @property
    def appcode(self) -> Appcode:
        return self.run.cluster.appcode


@login_not_required
@csrf_exempt
@require_http_methods(["GET", "HEAD", "POST"])
def call(request: HttpRequest, name: str) -> HttpResponse:
    """One of MLflow's calls, such as `runs/log-batch`."""
    try:
        caller = _caller(request)
        does = (CHANGES if request.method == "POST" else {}).get(name) or READS.get(name)
        if does is None:
            raise Refused("ENDPOINT_NOT_FOUND", f"The portal does not keep MLflow's “{name[:80]}”.")
        return HttpResponse(orjson.dumps(does(caller, _said(request))), content_type="application/json")
    except Refused as refused:
        return _refused(refused)


@login_not_required
@csrf_exempt
@require_http_methods(["GET", "HEAD", "PUT"])
def artifacts(request: HttpRequest, path: str = "") -> HttpResponseBase:
    """The files of what another run recorded: a folder with `?path=`, or one file. Tasks write their own into their output."""
    try:
        caller = _caller(request)
        if request.method == "PUT":
            raise wrong("Artifacts are kept in the output of a run, and this one has none: choose an output for it.")
        tracked_id, _, inside = (path or request.GET.get("path", "")).partition("/")
        tracked = reading.tracked_for(caller.appcode, tracked_id)
        if path:
            return _file(caller, tracked, inside)
        return HttpResponse(orjson.dumps({"files": _files(caller, tracked, inside)}), content_type="application/json")
    except Refused as refused:
        return _refused(refused)
    except NotThere:
        return _refused(Refused("RESOURCE_DOES_NOT_EXIST", "There is no such artifact."))
    except (DriverError, Unavailable) as error:
        return _refused(Refused("TEMPORARILY_UNAVAILABLE", str(error)))


@login_not_required
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """MLflow's answer to whether a server is there."""
    return HttpResponse("OK", content_type="text/plain")


def _caller(request: HttpRequest) -> Caller:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    run_id = run_id_of(token.strip()) if scheme.lower() == "bearer" else None
    rows = Run.objects.select_related("cluster__appcode").filter(gone=False)
    run = rows.filter(pk=run_id).first() if run_id is not None else None
    if run is None:
        raise Refused("UNAUTHENTICATED", "This needs the MLFLOW_TRACKING_TOKEN of a living run.")
    if not counted(f"tracking:{run.pk}"):
        raise Refused(
            "REQUEST_LIMIT_EXCEEDED", "This run sends too many requests: record less often, or several numbers at once."
        )
    return Caller(run)


def _said(request: HttpRequest) -> Mapping[str, Any]:
    if request.method != "POST":
        return request.GET.dict() | {
            key: request.GET.getlist(key) for key in ("experiment_ids", "order_by") if key in request.GET
        }
    if int(request.headers.get("Content-Length") or 0) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
        raise wrong(f"A request has at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE // 1024} KiB.")
    try:
        body = orjson.loads(request.body or b"{}")
    except orjson.JSONDecodeError as error:
        raise wrong(f"The body is not JSON: {error.msg}.") from error
    if not isinstance(body, dict):
        raise wrong("The body has to be a JSON object.")
    return body


def _refused(refused: Refused) -> HttpResponse:
    body = orjson.dumps({"error_code": refused.code, "message": str(refused)})
    return HttpResponse(body, status=refused.status, content_type="application/json")


# --- Experiments


def _experiment(caller: Caller, said: Mapping[str, Any]) -> Experiment:
    """The one of `experiment_id`; 0 is the one for runs that name none."""
    wanted = str(said.get("experiment_id", store.DEFAULT_ID) or store.DEFAULT_ID)
    if wanted == store.DEFAULT_ID:
        return store.experiment_called(caller.appcode, store.DEFAULT)
    rows = Experiment.objects.filter(appcode=caller.appcode)
    found = (
        rows.filter(pk=int(wanted)).first() if wanted.isascii() and wanted.isdecimal() and len(wanted) < 19 else None
    )
    if found is None:
        raise Refused("RESOURCE_DOES_NOT_EXIST", f"{caller.appcode.code} has no experiment {wanted[:40]}.")
    return found


def _named(caller: Caller, said: Mapping[str, Any]) -> Answer:
    name = text(said, "experiment_name", 256)
    found = Experiment.objects.filter(appcode=caller.appcode, name=name).first()
    if found is None:
        raise Refused("RESOURCE_DOES_NOT_EXIST", f"{caller.appcode.code} has no experiment “{name}”.")
    return {"experiment": _experiment_out(found)}


def _found(caller: Caller, said: Mapping[str, Any]) -> Answer:
    return {"experiment": _experiment_out(_experiment(caller, said))}


def _all(caller: Caller, said: Mapping[str, Any]) -> Answer:
    if said.get("filter"):
        raise wrong("Experiments are not searched by a filter here; there are few.")
    rows = Experiment.objects.filter(appcode=caller.appcode).order_by("-pk")[: store.MAX_EXPERIMENTS]
    return {"experiments": [_experiment_out(each) for each in rows]}


def _new(caller: Caller, said: Mapping[str, Any]) -> Answer:
    return {"experiment_id": str(store.new_experiment(caller.appcode, text(said, "name", 256)).pk)}


def _experiment_out(found: Experiment) -> Answer:
    at = int(found.created_at.timestamp() * 1000)
    return {
        "experiment_id": str(found.pk),
        "name": found.name,
        "artifact_location": f"mlflow-artifacts:/{found.pk}",
        "lifecycle_stage": "active",
        "creation_time": at,
        "last_update_time": at,
        "tags": [],
    }


# --- Runs


def _create(caller: Caller, said: Mapping[str, Any]) -> Answer:
    made = store.create(
        caller.run,
        _experiment(caller, said),
        name=text(said, "run_name", 256, default=""),
        started_at=whole(said, "start_time", store.now_ms()),
        tags=tags_of(said),
    )
    return {"run": _run_out(caller, made, [])}


def _update(caller: Caller, said: Mapping[str, Any]) -> Answer:
    ended_at = whole(said, "end_time") if said.get("end_time") is not None else None
    name = text(said, "run_name", 256, default="")
    changed = store.update(
        caller.run, _id(said), status=text(said, "status", 40, default=""), ended_at=ended_at, name=name
    )
    return {"run_info": _info(caller, changed)}


def _get(caller: Caller, said: Mapping[str, Any]) -> Answer:
    found = reading.tracked_for(caller.appcode, _id(said))
    return {"run": _run_out(caller, found, reading.lasts([found])[found.pk])}


def _search(caller: Caller, said: Mapping[str, Any]) -> Answer:
    ids, order = said.get("experiment_ids") or [], said.get("order_by") or []
    if not all(isinstance(each, str) for each in (*ids, *order)):
        raise wrong("“experiment_ids” and “order_by” have to be lists of texts.")
    experiments = {_experiment(caller, {"experiment_id": each}).pk for each in ids[:100]}
    start = whole(said, "page_token") if said.get("page_token") else 0
    most = min(max(1, whole(said, "max_results", reading.PAGE)), reading.PAGE)
    words = text(said, "filter", 4000, default="")
    is_deleted = said.get("run_view_type") == "DELETED_ONLY"
    found = [] if is_deleted else reading.search(caller.appcode, experiments, words, order, start, most + 1)
    metrics = reading.lasts(found[:most])
    answer = {"runs": [_run_out(caller, each, metrics[each.pk]) for each in found[:most]]}
    return answer | ({"next_page_token": str(start + most)} if len(found) > most else {})


def _metric(caller: Caller, said: Mapping[str, Any]) -> Answer:
    store.record(caller.run, _id(said), Record(metrics=(metric_of(said, store.now_ms()),)))
    return {}


def _param(caller: Caller, said: Mapping[str, Any]) -> Answer:
    store.record(caller.run, _id(said), Record(params=dict([pair_of(said, MAX_PARAM)])))
    return {}


def _tag(caller: Caller, said: Mapping[str, Any]) -> Answer:
    store.record(caller.run, _id(said), Record(tags=dict([pair_of(said, MAX_TAG)])))
    return {}


def _untag(caller: Caller, said: Mapping[str, Any]) -> Answer:
    store.delete_tag(caller.run, _id(said), text(said, "key", MAX_NAME))
    return {}


def _batch(caller: Caller, said: Mapping[str, Any]) -> Answer:
    store.record(caller.run, _id(said), record_of(said, store.now_ms()))
    return {}


def _history(caller: Caller, said: Mapping[str, Any]) -> Answer:
    tracked, name = reading.tracked_for(caller.appcode, _id(said)), text(said, "metric_key", MAX_NAME)
    metric = TrackedMetric.objects.filter(tracked=tracked, name=name).first()
    points = store.series_of(metric).all if metric else []
    return {
        "metrics": [
            {"key": name, "value": number_out(each.value), "timestamp": round(each.wall_time * 1000), "step": each.step}
            for each in points
        ]
    }


def _list(caller: Caller, said: Mapping[str, Any]) -> Answer:
    tracked = reading.tracked_for(caller.appcode, _id(said))
    try:
        files = _files(caller, tracked, text(said, "path", 1024, default=""))
    except (DriverError, Unavailable) as error:
        raise Refused("TEMPORARILY_UNAVAILABLE", str(error)) from error
    return {"root_uri": _artifact_uri(caller, tracked), "files": files}


def _id(said: Mapping[str, Any]) -> str:
    return text(said, "run_id" if "run_id" in said else "run_uuid", 64)


def _run_out(caller: Caller, tracked: TrackedRun, metrics: list[TrackedMetric]) -> Answer:
    pairs = {
        what: [{"key": key, "value": value} for key, value in found.items()]
        for what, found in (("params", tracked.params), ("tags", tracked.tags))
    }
    last = [
        {"key": each.name, "value": number_out(each.last), "timestamp": each.last_at, "step": each.last_step}
        for each in metrics
    ]
    return {"info": _info(caller, tracked), "data": {"metrics": last, **pairs}, "inputs": {}}


def _info(caller: Caller, tracked: TrackedRun) -> Answer:
    said = {
        "run_id": tracked.pk.hex,
        "run_uuid": tracked.pk.hex,
        "run_name": tracked.name,
        "experiment_id": str(tracked.experiment_id),
        "user_id": tracked.tags.get("mlflow.user", ""),
        "status": _status(tracked),
        "start_time": tracked.started_at,
        "artifact_uri": _artifact_uri(caller, tracked),
        "lifecycle_stage": "active",
    }
    return said | ({"end_time": tracked.ended_at} if tracked.ended_at is not None else {})


def _status(tracked: TrackedRun) -> str:
    """A program that was killed says no end: then that of its run counts."""
    if tracked.status != TrackedRun.Status.RUNNING or not tracked.run.is_terminal:
        return tracked.status
    ends = {Run.Phase.SUCCEEDED: TrackedRun.Status.FINISHED, Run.Phase.FAILED: TrackedRun.Status.FAILED}
    return ends.get(Run.Phase(tracked.run.phase), TrackedRun.Status.KILLED)


# --- Artifacts


def _artifact_uri(caller: Caller, tracked: TrackedRun) -> str:
    """A task writes its own artifacts as files of its output, by MLflow's own means; those of other runs come from here."""
    if tracked.run_id == caller.run.pk and caller.run.spec["output"]:
        return f"{OUTPUT_PATH}/{FOLDER}/{tracked.pk.hex}"
    return f"mlflow-artifacts:/{tracked.pk.hex}"


def _place(caller: Caller, tracked: TrackedRun, inside: str) -> tuple[Datastore, str, str]:
    """The datastore, the folder of its artifacts, and a path below that."""
    run = tracked.run
    store_ = Datastore.objects.select_related("appcode").filter(appcode=caller.appcode, name=run.spec["output"]).first()
    if store_ is None:
        raise Refused("RESOURCE_DOES_NOT_EXIST", "The run has no output, and so no artifacts.")
    try:
        path = relative_path(inside)
    except ValueError:
        raise Refused("RESOURCE_DOES_NOT_EXIST", "There is no such artifact.") from None
    root = output_folder(run.spec["outputPath"], name=run.cluster.name, run=run.number)
    return store_, "/".join(filter(None, (root, FOLDER, tracked.pk.hex))), path


def _files(caller: Caller, tracked: TrackedRun, inside: str) -> list[Answer]:
    try:
        store_, root, path = _place(caller, tracked, inside)
    except Refused:
        return []
    with LOOKS.enter(caller.run.created_by_id or 0), within(SECONDS):
        driver, whole_path = open_store(store_), "/".join(filter(None, (root, path)))
        if path and _is_file(driver, whole_path):  # Clients ask so whether it is a folder.
            return []
        found = driver.list(whole_path, limit=MAX_FILES)
    return [
        {
            "path": each.path.removeprefix(f"{root}/"),
            "is_dir": each.is_folder,
            **({} if each.is_folder else {"file_size": each.size}),
        }
        for each in found.entries
    ]


def _is_file(driver: Driver, path: str) -> bool:
    try:
        driver.look(path)
    except NotThere:
        return False
    return True


def _file(caller: Caller, tracked: TrackedRun, inside: str) -> HttpResponseBase:
    store_, root, path = _place(caller, tracked, inside)
    place = TRANSFERS.enter(caller.run.created_by_id or 0)
    try:
        content = open_store(store_).open(f"{root}/{path}")
    except BaseException:
        place.release()
        raise
    response = StreamingHttpResponse(Sending(content.chunks, place.release), content_type="application/octet-stream")
    response["Content-Length"] = str(content.size)
    return response


READS: Mapping[str, Callable[[Caller, Mapping[str, Any]], Answer]] = {
    "experiments/get-by-name": _named,
    "experiments/get": _found,
    "experiments/search": _all,
    "runs/get": _get,
    "runs/search": _search,
    "metrics/get-history": _history,
    "artifacts/list": _list,
}
CHANGES: Mapping[str, Callable[[Caller, Mapping[str, Any]], Answer]] = {
    "experiments/create": _new,
    "runs/create": _create,
    "runs/update": _update,
    "runs/log-metric": _metric,
    "runs/log-parameter": _param,
    "runs/log-batch": _batch,
    "runs/set-tag": _tag,
    "runs/delete-tag": _untag,
}
