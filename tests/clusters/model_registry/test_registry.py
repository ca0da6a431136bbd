"""The registry over REST, with models saved by TensorFlow on a real S3 server; and models that hooks register from real runs."""

import datetime as dt
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from clusters import tasks
from clusters.cluster import actions as clusters
from clusters.hooks.models import HookRun
from clusters.model_registry import actions
from clusters.model_registry import loop as registry
from clusters.model_registry.models import ModelAlias, ModelVersion, RegisteredModel
from clusters.runs.models import Cluster
from clusters.runs.status.hook_status import hooks_of
from datastores.drivers.base import DriverError
from datastores.drivers.local import Local
from datastores.models import AllowedFolder, Datastore
from portal.errors import Invalid
from portal.models import Event
from tests.api.client import api_of

pytestmark = pytest.mark.django_db(transaction=True)

MODELS = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
class Digits(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((None, 64), tf.float32, name="images")])
    def probabilities(self, images):
        return {"probabilities": tf.nn.softmax(images), "digit": tf.argmax(images, axis=1)}
digits = Digits()
tf.saved_model.save(digits, sys.argv[1] + "/saved/model", signatures=digits.probabilities)
inputs = tf.keras.Input((8, 8, 1), name="image")
tf.keras.Model(inputs, tf.keras.layers.Flatten()(inputs)).save(sys.argv[1] + "/keras/digits.keras")
"""


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    """A folder with saved/model/ and keras/digits.keras."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "keras").mkdir()
    subprocess.run([sys.executable, "-c", MODELS, str(folder)], check=True, stderr=subprocess.DEVNULL)
    return folder


@pytest.fixture
def results(people, s3, bucket):
    spec = {"server": s3.url, "bucket": bucket, "prefix": "", "access_key": s3.access_key, "region": "us-east-1"}
    return Datastore.objects.create(appcode=people.ops, name="results", kind="s3", spec=spec, secret=s3.secret_key)


@pytest.fixture
def put(s3, bucket, written):
    """put("saved", "train/1") uploads that folder; returns its files by key."""

    def upload(folder, to):
        files = {
            f"{to}/{path.relative_to(written / folder)}": path
            for path in (written / folder).rglob("*")
            if path.is_file()
        }
        for key, path in files.items():
            s3.client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
        return files

    return upload


@pytest.fixture
def bob_api(people):
    return api_of(people.bob)


BASE = "/appcodes/ops-demo/models"
DIGITS = f"{BASE}/digits"


def registered(api, **spec):
    """A version of the model digits whose files have been read."""
    status, made = api.post(f"{DIGITS}/versions", {"kind": "modelVersion", "spec": spec})
    assert status == 201, made
    assert made["status"]["state"] == "Pending"
    registry.advance(RegisteredModel.objects.get(name="digits").appcode_id)
    return api.get(f"{DIGITS}/versions/{made['metadata']['number']}")[1]


@pytest.mark.trains
def test_versions_keep_files_and_aliases_remember_what_they_named(
    people, results, put, bob_api, s3, bucket, monkeypatch
):
    files = put("saved", "train/1")
    put("keras", "train/2")
    api = bob_api
    assert api.post(BASE, {"kind": "model", "metadata": {"name": "digits", "description": "Reads digits"}})[0] == 201
    first = registered(api, datastore="results", path="train/1", metrics={"accuracy": 0.9, "loss": None})
    assert (first["status"]["state"], first["spec"]["format"], first["spec"]["path"]) == (
        "Ready",
        "saved-model",
        "train/1/model",
    )
    assert {f"train/1/model/{each['path']}": each["sha256"] for each in first["status"]["files"]} == {
        key: hashlib.sha256(path.read_bytes()).hexdigest() for key, path in files.items()
    }
    assert first["spec"]["signature"] == {
        "inputs": [{"name": "images", "dtype": "float32", "shape": [None, 64]}],
        "outputs": [
            {"name": "digit", "dtype": "int64", "shape": [None]},
            {"name": "probabilities", "dtype": "float32", "shape": [None, 64]},
        ],
    }
    second = registered(api, datastore="results", path="train/2", metrics={"accuracy": 0.95})
    assert (second["spec"]["format"], second["spec"]["signature"]) == (
        "keras",
        {"inputs": [{"name": "image", "dtype": "float32", "shape": [None, 8, 8, 1]}], "outputs": None},
    )

    # Frozen files can't be changed through the files API, by deleting their datastore version, or by deleting the datastore.
    store = "/appcodes/ops-demo/datastores/results"
    assert api("PUT", f"{store}/files/train/1/model/more.txt", raw=b"x", content_type="text/plain")[0] == 409
    assert api.delete(f"{store}/versions/digits.1")[1]["detail"].startswith(
        "results@digits.1 has the files of version 1"
    )
    assert "the model digits" in api.delete(store)[1]["detail"]

    # An alias keeps its history, also for two moves at the same time and when the clock goes backwards.
    champion = f"{DIGITS}/aliases/champion"
    now = timezone.now()
    monkeypatch.setattr(actions.timezone, "now", lambda: now)
    assert api.put(champion, {"version": 1})[1]["version"] == 1
    assert api.put(champion, {"version": 2, "reason": "Better"})[1]["version"] == 2
    monkeypatch.setattr(actions.timezone, "now", lambda: now - dt.timedelta(hours=1))
    assert api.put(champion, {"version": 1, "reason": "Rolled back"})[1]["version"] == 1
    monkeypatch.undo()
    assert api.put(champion, {"version": 1, "reason": "Again"})[0] == 200
    history = api.get(f"{DIGITS}/history?alias=champion")[1]["items"]
    assert [(row["version"], row["reason"], row["movedBy"]) for row in history] == [
        (1, "Rolled back", "bob"), (2, "Better", "bob"), (1, "", "bob"),
    ]  # fmt: skip
    assert [row["until"] for row in history] == [None, history[0]["since"], history[1]["since"]]
    for row in history:
        assert api.get(f"{champion}?at={row['since']}")[1]["version"] == row["version"]
    before = (now - dt.timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert api.get(f"{champion}?at={before}")[0] == 404
    for odd in ("lunch", "9999-12-31T23:59-10:00"):
        assert api.get(f"{champion}?at={odd}")[0] == 422
    assert api.delete(f"{DIGITS}/versions/1")[1]["detail"].startswith("champion of digits names version 1")
    assert api.delete(DIGITS)[0] == 409
    row = ModelAlias.objects.get(until=None)
    with pytest.raises(IntegrityError), transaction.atomic():
        ModelAlias.objects.create(model=row.model, name="champion", version=row.version, since=timezone.now())

    # Someone with the store's keys changes a file: verification detects it, and no alias can name that version any more.
    key = "train/2/digits.keras"
    body = s3.client.get_object(Bucket=bucket, Key=key)["Body"].read()
    s3.client.put_object(Bucket=bucket, Key=key, Body=body[:-1] + b"!")
    assert api.post(f"{DIGITS}/versions/2/verify")[0] == 202
    registry.advance(people.ops.pk)
    changed = api.get(f"{DIGITS}/versions/2")[1]["status"]
    assert (changed["state"], changed["files"]) == ("Changed", second["status"]["files"])
    assert api.put(champion, {"version": 2})[0] == 409
    s3.client.delete_object(Bucket=bucket, Key=key)
    api.post(f"{DIGITS}/versions/2/verify")
    registry.advance(people.ops.pk)
    assert api.get(f"{DIGITS}/versions/2")[1]["status"]["message"].startswith("digits.keras is not there any more")
    assert api.delete(f"{DIGITS}/versions/2")[0] == 204

    # A removed alias names nothing. A model created again has its history back, and numbering continues.
    assert api.delete(f"{champion}?reason=Over")[0] == 204
    assert (api.get(champion)[0], api.delete(champion)[0]) == (404, 404)
    assert api.get(f"{champion}?at={history[0]['since']}")[1]["version"] == 1
    assert api.delete(DIGITS)[0] == 204
    assert api.get(DIGITS)[0] == 404
    assert not results.versions.exists()
    assert api.post(BASE, {"kind": "model", "metadata": {"name": "digits"}})[0] == 201
    assert registered(api, datastore="results", path="train/1/model")["metadata"]["number"] == 3
    assert [row["version"] for row in api.get(f"{DIGITS}/history")[1]["items"]] == [None, 1, 2, 1]
    assert {"model.created", "model.registered", "model.alias-moved", "model.alias-removed", "model.deleted"} <= set(
        Event.objects.filter(object="model ops-demo/digits").values_list("verb", flat=True)
    )


def test_what_cannot_be_registered_says_why_and_leaves_nothing(people, results, bob_api, s3, bucket):
    api = bob_api
    for key in ("one/a.keras", "two/b.onnx", "checkpoints/1.keras", "checkpoints/2.keras", "data.csv"):
        s3.client.put_object(Bucket=bucket, Key=key, Body=b"not a model")
    Datastore.objects.create(
        appcode=people.ops,
        name="disk",
        kind="volume",
        spec={"size": "1Gi", "storage_class": "", "access_mode": "ReadWriteOnce"},
    )
    api.post(BASE, {"kind": "model", "metadata": {"name": "digits"}})

    def refused(**spec):
        status, body = api.post(f"{DIGITS}/versions", {"kind": "modelVersion", "spec": spec})
        return status, body.get("errors", [{}])[0].get("message", body.get("detail"))

    assert refused(datastore="results", path="nowhere") == (422, "nowhere: Nothing lies there.")
    assert refused(datastore="results")[1] == "results: Several models lie there: one, two. Name one."
    assert refused(datastore="results", path="checkpoints")[1].startswith("checkpoints: No model is found there")
    assert refused(datastore="disk")[1].startswith("Only tasks see the files of disk")
    assert refused(run="train/1")[1] == "ops-demo has no run train/1."
    assert refused(run="train")[1].startswith("Name a cluster and the number of its run")
    assert refused(run="train/1", datastore="results")[1].startswith("Name a run or a datastore")
    assert (
        refused(datastore="results", path="one", sample={"x": "y" * 70_000})[1]
        == "A sample request has at most 64 KiB."
    )
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    assert refused(datastore="results", path="one", sample=deep)[1].startswith("This cannot be kept as JSON")
    takes = {"inputs": [{"name": "x", "dtype": "float32", "shape": [1e30]}], "outputs": None}
    assert refused(datastore="results", path="one", signature=takes)[0] == 422
    assert not ModelVersion.objects.exists()
    assert not results.versions.exists()
    # A file that is no model is registered with the format given, without a signature.
    odd = registered(api, datastore="results", path="one", format="keras")
    assert (odd["status"]["state"], odd["spec"]["signature"]) == ("Ready", None)
    assert api.put(f"{DIGITS}/aliases/Not one", {"version": 1})[0] in (404, 422)
    assert api.put(f"{DIGITS}/aliases/9lives", {"version": 1})[0] == 422
    # Digests are saved file by file, so they survive a worker's death.
    version = ModelVersion.objects.get()
    assert version.checked_at is not None


def test_while_a_store_is_away_a_version_waits_and_what_takes_long_is_read_in_turns(
    people, results, bob_api, s3, bucket, monkeypatch
):
    for name in ("a.keras", "b.txt", "c.txt"):
        s3.client.put_object(Bucket=bucket, Key=f"one/{name}", Body=name.encode())
    bob_api.post(BASE, {"kind": "model", "metadata": {"name": "digits"}})
    digest = registry._sha256
    read = []

    def away(driver, path):
        raise DriverError("The store is away.")

    def counted(driver, path):
        read.append(path)
        return digest(driver, path)

    def turn():
        ModelVersion.objects.update(tried_at=None)
        registry.advance(people.ops.pk)
        return ModelVersion.objects.values_list("state", "message").get()

    monkeypatch.setattr(registry, "_sha256", away)
    assert registered(bob_api, datastore="results", path="one")["status"]["state"] == "Pending"
    assert turn() == ("Pending", "The store is away.")
    ModelVersion.objects.update(asked_at=timezone.now() - registry.PATIENCE * 2)
    assert turn() == ("Failed", "The store is away.")
    # A turn without time left still reads one more file, and keeps its digest.
    monkeypatch.setattr(registry, "_sha256", counted)
    bob_api.post(f"{DIGITS}/versions/1/verify")
    for _ in range(2):
        registry._read(registry._due().get(), until=0)
    assert turn() == ("Ready", "")
    assert read == ["one/a.keras", "one/b.txt", "one/c.txt"]
    # Verification reads in turns, too.
    bob_api.post(f"{DIGITS}/versions/1/verify")
    for _ in range(2):
        registry._read(registry._due().get(), until=0)
    assert len(read) == 5
    assert turn() == ("Ready", "")
    assert read[3:] == read[:3]
    assert {*ModelVersion.objects.get().files[0]} == {"path", "size", "sha256"}


def keras(name: str) -> bytes:
    config = {
        "layers": [{"class_name": "InputLayer", "config": {"name": name, "dtype": "float32", "batch_shape": [2]}}]
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", json.dumps({"config": config}))
    return file.getvalue()


def broken(data: bytes) -> bytes:
    at = data.index(b"config.json") + len("config.json")
    return data[:at] + b"\xff" * 20 + data[at + 20 :]


def long_list() -> bytes:
    """A zip file whose list of files claims 20 MB, more than the portal reads for a signature."""
    size = 20_000_000
    end = b"PK\5\6" + bytes(4) + (1).to_bytes(2, "little") * 2 + size.to_bytes(4, "little") + bytes(6)
    return b"PK\1\2" + bytes(size - 4) + end


@pytest.mark.parametrize("data", [broken(keras("x")), keras("a\0b"), long_list()], ids=["broken", "nul", "long"])
def test_whatever_a_file_says_of_itself_its_version_comes_to_an_end(people, bob_api, tmp_path, data, monkeypatch):
    (tmp_path / "a.keras").write_bytes(data)
    AllowedFolder.objects.create(path=str(tmp_path))
    Datastore.objects.create(appcode=people.ops, name="disk", kind="local", spec={"path": str(tmp_path)})
    bob_api.post(BASE, {"kind": "model", "metadata": {"name": "digits"}})
    asked, really = [], Local.read_range

    def counted(driver, path, start, length):
        asked.append(length)
        return really(driver, path, start, length)

    monkeypatch.setattr(Local, "read_range", counted)
    made = registered(bob_api, datastore="disk")
    assert (made["status"]["state"], made["spec"]["signature"]) == ("Ready", None)
    assert sum(asked) < 13 * 2**20


def test_a_folder_of_this_machine_is_kept_too_and_no_run_writes_there(people, bob_api, manifest, catalogue, tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "a.keras").write_bytes(b"not a model")
    AllowedFolder.objects.create(path=str(tmp_path))
    disk = Datastore.objects.create(appcode=people.ops, name="disk", kind="local", spec={"path": str(tmp_path)})
    bob_api.post(BASE, {"kind": "model", "metadata": {"name": "digits"}})
    made = registered(bob_api, datastore="disk")
    assert (made["status"]["state"], made["spec"]["path"]) == ("Ready", "best")
    with pytest.raises(Invalid) as caught:
        clusters.create_cluster(manifest("train", output="disk", outputPath="best"), acting_user=people.bob)
    assert "disk@digits.1 is kept as it is" in str(caught.value)
    with pytest.raises(Invalid) as caught:
        read = {"datastore": "disk", "version": "digits.1"}
        clusters.create_cluster(manifest("train", input=read), acting_user=people.bob)
    assert "is mounted as it is" in str(caught.value)
    assert disk.versions.count() == 1
    # A version that a cluster or a live run uses can't be deleted, and neither can its model.
    batch = clusters.create_cluster(manifest("batch", model="digits/1"), acting_user=people.bob)
    for address in (f"{DIGITS}/versions/1", DIGITS):
        assert "is used by batch" in bob_api.delete(address)[1]["detail"]
    Cluster.objects.filter(pk=batch.pk).update(spec=batch.spec | {"model": None})
    assert "is used by batch" in bob_api.delete(DIGITS)[1]["detail"]


SAVE = """echo '{"sample": {"instances": [[0]]}, "description": "By a hook"}' > /elearn/output/model-version.json"""
# PostgreSQL does not accept NUL characters, not even in JSON.
ODD = r"""echo '{"sample": {"a": "\u0000"}}' > /elearn/output/model-version.json"""
TRAIN = "mkdir /elearn/output/model && echo graph > /elearn/output/model/saved_model.pb && echo step 3: loss = 0.25"


def test_a_hook_registers_what_its_run_wrote_once(loop, people, manifest, results, bob_api):
    hooks = [
        {"name": "save", "model": "digits", "command": SAVE},
        {"name": "odd", "model": "odd", "command": ODD},
        {"name": "nothing", "model": "other", "command": "true"},
    ]
    results.removals.create(path="train/1/model/old", is_folder=False, remote="x")
    cluster = clusters.create_cluster(manifest("train", TRAIN, output="results", hooks=hooks), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert run.phase == "Succeeded", run.message

    def is_over():
        tasks.advance(people.ops.pk, "hooks/train")
        tasks.advance(people.ops.pk, "hooks/train")
        said = dict(HookRun.objects.values_list("name", "message"))
        if said["nothing"] and results.removals.exists():
            # Its obstacle, a pending removal, is temporary, so the registration is retried.
            assert said["save"] == ""
            (note,) = (each.note for each in hooks_of(run) if each.name == "save")
            # Keep the obstacle until the note reports it; until then no version becomes ready.
            if note.startswith("Its version is not registered yet and is tried again: "):
                results.removals.all().delete()
        return said["nothing"] and ModelVersion.objects.filter(state="Ready").exists()

    loop.until(is_over)
    version = bob_api.get(f"{DIGITS}/versions/1")[1]
    assert version["spec"]["metrics"] == {"loss": 0.25}
    assert version["spec"] | {"metrics": 0} == {
        "datastore": "results", "path": "train/1/model", "format": "saved-model", "description": "By a hook", "metrics": 0,
        "signature": None, "sample": {"instances": [[0]]},
    }  # fmt: skip
    lineage = version["status"]["lineage"]
    assert (lineage["run"], lineage["startedBy"], version["status"]["createdBy"]) == ("train/1", "bob", "bob")
    assert HookRun.objects.get(name="nothing").message.startswith(
        "No version was registered: the hook has written no model-version.json"
    )
    assert "NUL characters" in HookRun.objects.get(name="odd").message
    assert not RegisteredModel.objects.exclude(name="digits").exists()
    assert ModelVersion.objects.count() == 1
    assert [each.note for each in hooks_of(run) if each.name == "save"] == [""]


def test_on_pages_a_version_is_registered_an_alias_moved_rolled_back_and_versions_compared(
    people, results, client, s3, bucket, django_assert_max_num_queries
):
    s3.client.put_object(Bucket=bucket, Key="one/model.onnx", Body=b"graph")
    client.force_login(people.bob)

    def register(**typed):
        form = {"appcode": "ops-demo", "model": "digits", "datastore": "results", **typed}
        return client.post("/models/register", form, follow=True)

    blank = client.get("/models/register", {"appcode": "ops-demo", "run": f"{'digits-' * 5}again/3"}).content.decode()
    assert 'name="model" value="digits-digits-digits-digits-di"' in blank, "named like the cluster"
    page = register(path="nowhere").content.decode()
    assert "nowhere: Nothing lies there." in page
    assert not RegisteredModel.objects.exists()
    assert "Name a run or a datastore" in register(datastore="").content.decode()
    assert register(appcode="a\0b").status_code == 200
    for _ in range(2):
        assert register(path="one").status_code == 200
    registry.advance(people.ops.pk)
    for number, loss in ((1, 0.5), (2, 0.25)):
        ModelVersion.objects.filter(number=number).update(metrics={"loss": loss})

    def move(version, reason=""):
        typed = {"alias": "champion", "version": version, "reason": reason}
        return client.post("/models/ops-demo/digits/move", typed, follow=True).content.decode()

    move(1)
    page = move(2, "Better")
    assert "Back to 1" in page
    assert "Back to 2" in move(1, "Rolled back from version 2")
    assert "There is no" not in page
    assert "digits has no version 7." in move(7)
    with django_assert_max_num_queries(14):
        page = client.get("/models/ops-demo/digits").content.decode()
    assert ("0.25" in page, "champion" in page) == (True, True)
    page = client.get("/models/ops-demo/digits/compare?version=1&version=2&version=x").content.decode()
    assert "<strong>0.25</strong>" in page
    page = client.get("/models/ops-demo/digits/history").content.decode()
    assert page.count("Rolled back from version 2") == 1
    client.force_login(people.victor)
    page = client.get("/models/ops-demo/digits").content.decode()
    assert "Back to" not in page
