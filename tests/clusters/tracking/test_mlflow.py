"""MLflow's own client records to the portal and reads from it, through the door that tasks have."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from clusters.clouds.drivers.local.network import packages
from clusters.cluster import actions as clusters
from clusters.results import numbers
from clusters.runs.models import Run
from clusters.runs.tracking_token import token_for
from clusters.scalars.reading import scalars_of
from clusters.tracking import store
from clusters.tracking.messages import Metric, Record, Refused
from clusters.tracking.models import TrackedMetric, TrackedRun
from datastores.models import AllowedFolder, Datastore
from tests.environments import installed
from tests.mlflow.reader import REQUIREMENTS

# Written as MLflow's documentation writes it.
TRAIN = """
import json, sys
import mlflow
from mlflow.exceptions import MlflowException

said = {}
mlflow.set_experiment("digits")
with mlflow.start_run(run_name="parent") as parent:
    mlflow.log_params({"lr": 0.1, "optimizer": "adam"})
    mlflow.set_tag("team", "vision")
    for step in range(40):
        mlflow.log_metric("loss", 4 / (step + 1), step=step)
    mlflow.log_metrics({"acc": 0.9, "bad": float("nan"), "worse": float("inf")}, step=39)
    said["uri"] = mlflow.get_artifact_uri()
    try:
        mlflow.log_param("lr", 0.2)
    except MlflowException as error:
        said["again"] = str(error)
    for n in range(2):
        with mlflow.start_run(run_name=f"child-{n}", nested=True):
            mlflow.log_param("depth", n)
            mlflow.log_metric("loss", 10.0 + n, step=1)
client = mlflow.MlflowClient()
run = client.get_run(parent.info.run_id)
said["run"] = run.to_dictionary()
said["history"] = [(each.step, each.value) for each in client.get_metric_history(parent.info.run_id, "loss")]
experiment = client.get_experiment_by_name("digits").experiment_id
def names(words, *order):
    found = client.search_runs([experiment], words, order_by=list(order))
    return [each.info.run_name for each in found]
said["lossy"] = names("metrics.loss > 5", "metrics.loss DESC")
said["adam"] = names("params.optimizer = 'adam' and tags.team LIKE 'vis%'")
said["children"] = names(f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'", "params.depth ASC")
said["ended"] = names("attributes.status = 'FINISHED'", "start_time ASC")
said["none"] = names("params.optimizer != 'adam'")
said["experiments"] = sorted(each.name for each in client.search_experiments())
try:
    names("metrics.loss or 1")
except MlflowException as error:
    said["wrong"] = str(error)
with mlflow.start_run(run_id=parent.info.run_id):
    mlflow.log_metric("loss", 0.01, step=40)
said["resumed"] = client.get_run(parent.info.run_id).data.metrics["loss"]
print(json.dumps(said, default=str))
"""
READ = """
import json, sys
import mlflow
from mlflow.exceptions import MlflowException
client = mlflow.MlflowClient()
run_id, said = sys.argv[1], {}
try:
    said["name"] = client.get_run(run_id).info.run_name
    said["files"] = sorted((each.path, each.is_dir, each.file_size) for each in client.list_artifacts(run_id))
    said["text"] = open(mlflow.artifacts.download_artifacts(run_id=run_id, artifact_path="notes/a b.txt")).read()
except MlflowException as error:
    said["refused"] = str(error)
try:
    client.log_metric(run_id, "loss", 1.0)
except MlflowException as error:
    said["written"] = str(error)
print(json.dumps(said))
"""


@pytest.fixture
def door(live_server: Any) -> Iterator[str]:
    with packages.Server(0, None, packages.Portal(live_server.url)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def mlflow(door: str, token: str, program: str, *words: str) -> dict[str, Any]:
    python = installed("mlflow", REQUIREMENTS) / "bin" / "python"
    env = {
        **os.environ,
        "MLFLOW_TRACKING_URI": door,
        "MLFLOW_TRACKING_TOKEN": token,
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    done = subprocess.run(
        [python, "-W", "ignore", "-c", program, *words], capture_output=True, text=True, timeout=120, env=env
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def token(run: Run) -> str:
    return token_for(run.pk, {})


@pytest.fixture
def run(people: Any, catalogue: Any, manifest: Any) -> Run:
    return clusters.create_cluster(manifest("train"), acting_user=people.bob).current_run


def test_mlflow_records_and_reads_and_charts_show_it(run: Run, door: str) -> None:
    said = mlflow(door, token(run), TRAIN)
    data = said["run"]["data"]
    assert data["params"] == {"lr": "0.1", "optimizer": "adam"}
    assert data["tags"]["team"] == "vision"
    assert data["metrics"]["loss"] == 0.1
    assert str(data["metrics"]["bad"]) == "nan"
    assert data["metrics"]["worse"] == float("inf")
    assert said["run"]["info"]["status"] == "FINISHED"
    assert said["history"] == [[step, 4 / (step + 1)] for step in range(40)]
    assert "never changes" in said["again"]
    assert said["lossy"] == ["child-1", "child-0"]
    assert said["adam"] == ["parent"]
    assert said["children"] == ["child-0", "child-1"]
    assert said["ended"] == ["parent", "child-0", "child-1"]
    assert said["none"] == []
    assert said["experiments"] == ["digits"]
    assert "is no term like" in said["wrong"]
    assert said["resumed"] == 0.01
    assert said["uri"].startswith("mlflow-artifacts:/")

    numbers.keep(run, scalars_of(run), timezone.now())
    run.refresh_from_db()
    assert run.parameters == {"lr": "0.1", "optimizer": "adam", "team": "vision"}
    losses = {each.folder: each.points for each in scalars_of(run).curves if each.tag == "loss"}
    assert losses.keys() == {"mlflow/parent", "mlflow/child-0", "mlflow/child-1"}
    assert [(each.step, each.value) for each in losses["mlflow/parent"]][-2:] == [(39, 0.1), (40, 0.01)]
    assert [(each.step, each.value) for each in losses["mlflow/child-1"]] == [(1, 11.0)]


def test_another_run_of_the_appcode_reads_and_downloads_but_does_not_write(
    people: Any, catalogue: Any, manifest: Any, door: str, tmp_path: Path
) -> None:
    AllowedFolder.objects.create(path=str(tmp_path))
    Datastore.objects.create(appcode=people.ops, name="results", kind="local", spec={"path": str(tmp_path)})
    mine = clusters.create_cluster(manifest("train", output="results"), acting_user=people.bob).current_run
    other = clusters.create_cluster(manifest("look"), acting_user=people.bob).current_run
    experiment = store.experiment_called(people.ops, store.DEFAULT)
    tracked = store.create(mine, experiment, name="first", started_at=0, tags={})
    folder = tmp_path / mine.spec["outputPath"].replace("{name}", "train").replace("{run}", "1").strip("/")
    (folder / "mlflow" / tracked.pk.hex / "notes").mkdir(parents=True)
    (folder / "mlflow" / tracked.pk.hex / "notes" / "a b.txt").write_text("kept")
    (folder / "secret.txt").write_text("beside it")
    said = mlflow(door, token(other), READ, tracked.pk.hex)
    assert said["name"] == "first"
    assert said["files"] == [["notes", True, None]]
    assert said["text"] == "kept"
    assert "only that run writes to it" in said["written"]
    for path in ("..%2f..%2fsecret.txt", "../secret.txt", "notes/../../../secret.txt"):
        assert status(door, token(other), f"/api/2.0/mlflow-artifacts/artifacts/{tracked.pk.hex}/{path}") == 404
    assert TrackedMetric.objects.count() == 0


def test_another_appcode_and_forged_tokens_see_nothing(run: Run, people: Any, manifest: Any, door: str) -> None:
    tracked = store.create(run, store.experiment_called(people.ops, "a"), name="first", started_at=0, tags={})
    theirs = clusters.create_cluster(manifest("train", appcode="flight-demo"), acting_user=people.mallory).current_run
    said = mlflow(door, token(theirs), READ, tracked.pk.hex)
    assert "There is no run" in said["refused"]
    assert "There is no run" in said["written"]
    absent = "0" * 32
    for path in ("/api/2.0/mlflow/runs/get?run_id={}", "/api/2.0/mlflow-artifacts/artifacts?path={}"):
        assert (
            status(door, token(theirs), path.format(tracked.pk.hex))
            == status(door, token(theirs), path.format(absent))
            == 404
        )
    here = f"/api/2.0/mlflow/runs/get?run_id={tracked.pk.hex}"
    assert status(door, token(run), here) == 200
    assert status(door, f"{run.pk}:forged", here) == status(door, "", here) == 401
    Run.objects.filter(pk=run.pk).update(gone=True)
    assert status(door, token(run), here) == 401


def test_the_door_leads_nowhere_else(run: Run, door: str) -> None:
    for path in (
        "/",
        "/api/v1/clusters",
        "/accounts/login/",
        "/api/2.0/mlflow/../../v1/clusters",
        "/api/2.0/mlflow/%2e%2e/%2E%2e/v1/clusters",
        "/api/2.0/mlflowx",
        "/simple/pip/",
    ):
        assert status(door, token(run), path) == 404, path
    large = http.client.HTTPConnection(door.removeprefix("http://"), timeout=10)
    large.request("POST", "/api/2.0/mlflow/runs/log-batch", headers={"Content-Length": str(2**20 + 1)})
    assert large.getresponse().status == 413
    assert status(door, token(run), "/api/2.0/mlflow/runs/log-batch", b"[]") == 400


def status(door: str, token: str, path: str, body: bytes | None = None) -> int:
    asked = urllib.request.Request(door + path, body, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_an_own_tracking_server_gets_no_token_of_ours(run: Run) -> None:
    assert token_for(run.pk, {"MLFLOW_TRACKING_URI": "https://mlflow.example.com"}) == ""


def test_points_are_thinned_and_requests_cost_the_same_however_many_there_are(
    run: Run, people: Any, django_assert_num_queries: Any
) -> None:
    tracked = store.create(run, store.experiment_called(people.ops, "a"), name="", started_at=0, tags={})

    def told(step: int, names: int) -> Record:
        return Record(tuple(Metric(f"m{n}", step + n, step, step) for n in range(names)))

    store.record(run, tracked.pk.hex, told(0, 50))
    with django_assert_num_queries(5):  # savepoint or BEGIN, lock, read, update, end
        store.record(run, tracked.pk.hex, told(1, 50))
    for at in range(2, 5000, 100):
        several = [Metric("m0", step, step, step) for step in range(at, at + 100)]
        store.record(run, tracked.pk.hex, Record(tuple(several)))
        store.record(run, tracked.pk.hex, Record(tuple(several[-3:])))  # sent again: nothing changes
    row = TrackedMetric.objects.get(name="m0")
    steps = [point.step for point in store.series_of(row).all]
    assert [point.value for point in store.series_of(row).extremes] == [0, 5001]
    assert 1000 <= len(steps) <= 2001
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1], row.last) == (0, 5001, 5001)
    assert len(row.recent) <= store.MOST_RECENT * 24


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (Record(params={"a": "x" * 70_000, "b": "x" * 70_000}), "RESOURCE_LIMIT_EXCEEDED"),
        (Record(metrics=tuple(Metric(f"m{n}", 1.0, 0, 0) for n in range(1001))), "RESOURCE_LIMIT_EXCEEDED"),
    ],
    ids=["parameters", "metrics"],
)
def test_limits_hold_and_nothing_is_kept_of_what_exceeds_them(run: Run, people: Any, said: Record, code: str) -> None:
    tracked = store.create(run, store.experiment_called(people.ops, "a"), name="", started_at=0, tags={})
    with pytest.raises(Refused) as refused:
        store.record(run, tracked.pk.hex, said)
    assert refused.value.code == code
    assert (TrackedMetric.objects.count(), TrackedRun.objects.get().params) == (0, {})
