"""Export to MLflow's format, read by MLflow itself, and registration from that format."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from clusters.model_registry import loop as registry
from clusters.model_registry import mlflow
from datastores.models import AllowedFolder, Datastore
from tests.api.client import api_of
from tests.mlflow.reader import read

OWN = """
class Model:
    def __init__(self, folder):
        self.bias = float((folder / "bias.txt").read_text())

    def predict(self, inputs):
        return {"sum": inputs["x"].sum(axis=1) + self.bias}
"""
X = {"name": "x", "dtype": "float32", "shape": [None, 2]}


@pytest.mark.django_db(transaction=True)
def test_a_version_goes_to_mlflow_and_comes_back_as_it_was(people, tmp_path) -> None:
    AllowedFolder.objects.create(path=str(tmp_path))
    home = tmp_path / "home"
    (home / "own").mkdir(parents=True)
    (home / "own" / "model.py").write_text(OWN)
    (home / "own" / "bias.txt").write_text("1")
    Datastore.objects.create(appcode=people.ops, name="here", kind="local", spec={"path": str(home)})
    api = api_of(people.bob)
    api.post("/appcodes/ops-demo/models", {"metadata": {"name": "sums"}})
    base = "/appcodes/ops-demo/models/sums/versions"
    spec = {
        "datastore": "here", "path": "own", "format": "python", "sample": {"inputs": {"x": [[1, 2], [3, 4]]}},
        "signature": {"inputs": [X], "outputs": [{"name": "sum", "dtype": "float64", "shape": [None]}]},
    }  # fmt: skip
    status, said = api.post(base, {"spec": spec})
    assert status == 201, said
    assert api.get(f"{base}/1/mlflow")[0] == 409
    registry.advance(people.ops.pk)
    _, first = api.get(f"{base}/1")

    _, answer = api.get(f"{base}/1/mlflow")
    packed = b"".join(answer.streaming_content)
    assert int(answer["Content-Length"]) == len(packed)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(home / "back")
    said = read(home / "back")
    assert said["flavors"] == ["python_function"]
    assert said["example"] == {"x": [[1, 2], [3, 4]]}
    assert said["answer"] == {"sum": [4, 8]}
    tensor = json.loads(said["signature"]["inputs"])[0]["tensor-spec"]
    assert tensor == {"dtype": "float32", "shape": [-1, 2]}
    assert said["metadata"]["portal"]["sha256"]["bias.txt"] == first["status"]["files"][0]["sha256"]

    status, again = api.post(base, {"spec": {"datastore": "here", "path": "back"}})
    assert status == 201, again
    registry.advance(people.ops.pk)
    _, second = api.get(f"{base}/2")
    assert (second["spec"]["format"], second["spec"]["path"]) == ("python", "back/data")
    assert (second["spec"]["signature"], second["spec"]["sample"]) == (spec["signature"], spec["sample"])
    assert second["status"]["files"] == first["status"]["files"]
    assert second["status"]["lineage"]["told"]["model"] == "sums/1"
    assert api_of(people.mallory).get(f"{base}/1/mlflow")[0] == 404


@pytest.mark.parametrize(
    ("format_", "path", "flavor"),
    [
        ("saved-model", "saved_model.pb", "tensorflow"),
        ("keras", "m.keras", "keras"),
        ("onnx", "m.onnx", "onnx"),
        ("sklearn", "m.skops", "sklearn"),
    ],
)
def test_each_format_has_its_flavor_and_is_found_by_it(tmp_path: Path, format_: str, path: str, flavor: str) -> None:
    made = mlflow.files(
        "m", 3, format_=format_, paths=[path], signature={"inputs": [X], "outputs": None}, digests={},
        sample={"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]},
        lineage={"run": "train/3", "code": {"commit": "abc"}}, created="2026-05-03 14:02:00",
    )  # fmt: skip
    for name, data in made.items():
        (tmp_path / name).write_bytes(data)
    said = read(tmp_path)
    assert (said["flavors"], said["run"]) == (sorted([flavor, "python_function"]), "train/3")
    assert said["example"] == {"x": [[1, 2]]}
    told = mlflow.told(made["MLmodel"])
    assert (told.folder, told.format, told.origin["code"]) == ("data", format_, "abc")
    assert told.signature is not None
    assert told.signature.inputs[0].shape == [None, 2]
    assert mlflow.sample(made[told.example]) == {"inputs": {"x": [[1, 2]]}}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("[", "no YAML"), ("a: &x [1]\nb: *x", "refers to another place"), ("a: 1", "names no flavors"),
        ("flavors: {onnx: {data: ../m.onnx}}", "a folder that is none"), (" " * 300_000, "more than 256 KiB"),
        ("!!python/object/apply:os.system [ls]", "no YAML"),
    ],
)  # fmt: skip
def test_an_mlmodel_may_say_anything(said: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        mlflow.told(said.encode())


def test_of_a_flavor_that_is_none_of_ours_no_format_is_known() -> None:
    found: Any = mlflow.told(b"flavors: {sklearn: {pickled_model: model.pkl, serialization_format: cloudpickle}}")
    assert (found.format, found.signature, found.example) == (None, None, "")
