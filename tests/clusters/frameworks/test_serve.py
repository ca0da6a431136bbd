"""The program that serves a model: both protocols as pure functions, and the program in a task with every format it supports."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from clusters.frameworks.inside import serve_drift, serve_formats, serve_protocols
from clusters.frameworks.inside.serve_tensors import TYPES, Model, Tensor, Wrong
from clusters.frameworks.serving import FORMATS, SERVE
from clusters.model_registry import drift

OWN = """
import time
import numpy as np

class Model:
    inputs = [("x", "FP32", (-1, 2))]
    outputs = [("sum", "FP32", (-1,))]

    def __init__(self, folder):
        self.bias = float((folder / "bias.txt").read_text())

    def predict(self, inputs):
        x = inputs["x"]
        if (x < 0).any():
            raise ValueError("below zero\\nand more")
        if (x == 7).any():
            time.sleep(1.5)
        if (x == 9).any():
            return {"sum": x[:, 0] / 0 * np.float32(0)}
        return {"sum": x.sum(axis=1) + np.float32(self.bias)}
"""


def model(*tensors: Tensor) -> Model:
    return Model("test", tensors, (), lambda given_: given_)


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.just(3)), elements=st.floats(-1e6, 1e6, width=32)))
def test_both_protocols_say_the_same_tensor(value: Any) -> None:
    known = model(Tensor("x", "FP32", (-1, 3)))
    rows, by_rows = serve_protocols.of_v1({"instances": value.tolist()}, known)
    named, _ = serve_protocols.of_v1({"instances": [{"x": row} for row in value.tolist()]}, known)
    columns, not_by_rows = serve_protocols.of_v1({"inputs": {"x": value.tolist()}}, known)
    tensor = {"name": "x", "datatype": "FP32", "shape": list(value.shape)}
    flat = serve_protocols.of_v2({"inputs": [{**tensor, "data": value.reshape(-1).tolist()}]}, known)
    nested = serve_protocols.of_v2({"inputs": [{**tensor, "data": value.tolist()}]}, known)
    assert by_rows
    assert not not_by_rows
    for found in (rows, named, columns, flat, nested):
        np.testing.assert_array_equal(found["x"], value)
        assert found["x"].dtype == np.float32
    document, behind = serve_protocols.to_v2("m", "1", "", {"x": value})
    (said,) = document["outputs"]
    assert not behind
    np.testing.assert_array_equal(np.array(said["data"], np.float32).reshape(said["shape"]), value)
    assert serve_protocols.to_v1({"x": value}, by_rows=True) == {"predictions": value.tolist()}


WORDS = model(Tensor("text", "BYTES", (-1,)), Tensor("n", "INT64", (-1,)))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ([], "Send either"),
        ({"instances": [1], "inputs": 1}, "Send either"),
        ({"instances": []}, "at least one row"),
        ({"instances": [1]}, "several inputs; name them: text, n"),
        ({"instances": [{"text": "a"}]}, "“n” is missing"),
        ({"instances": [{"text": "a", "n": 1}, {"text": "b"}]}, "every row has to name the same"),
        ({"instances": [{"text": "a", "n": 1.5}]}, "there are fractions, and it takes INT64"),
        ({"instances": [{"text": 3, "n": 1}]}, "a value is no text"),
        ({"instances": [{"text": {"b64": "!"}, "n": 1}]}, "no base64"),
        ({"inputs": {"text": ["a"], "n": [1], "m": [2]}}, "no input 'm'"),
        ({"inputs": {"text": ["a"], "n": [[1, 2], [3]]}}, "inputs.n"),
        ({"signature_name": "other", "instances": [1]}, "serving_default"),
    ],
)
def test_what_is_wrong_with_a_request_to_tensorflow_serving_is_said(body: Any, sentence: str) -> None:
    with pytest.raises(Wrong, match=sentence):
        serve_protocols.of_v1(body, WORDS)


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        ({"name": "other"}, r"inputs.0.name: there is no input 'other'"),
        ({"datatype": "FP8"}, r"inputs.0.datatype: 'FP8' is none of"),
        ({"datatype": "FP32"}, r"inputs.0.datatype: it is FP32, and “n” takes INT64"),
        ({"shape": [2, "a"]}, r"inputs.0.shape: send a list of whole numbers"),
        ({"shape": [3]}, r"inputs.0.data: this is no tensor of INT64"),
        ({"shape": [1, 2]}, r"inputs.0.data: its shape is \[1, 2\], and “n” takes \[-1\]"),
        ({"data": None}, r"inputs.0.data"),
        ({"data": ["a", "b"]}, r"inputs.0.data"),
    ],
)
def test_what_is_wrong_with_a_tensor_is_said_at_its_place(tensor: dict[str, Any], sentence: str) -> None:
    good = {"name": "n", "datatype": "INT64", "shape": [2], "data": [1, 2]}
    with pytest.raises(Wrong, match=sentence):
        serve_protocols.of_v2({"inputs": [{**good, **tensor}]}, model(Tensor("n", "INT64", (-1,))))


@pytest.mark.parametrize("number", [256, -1])
def test_a_number_that_a_type_does_not_have_is_refused_and_not_taken_for_another(number: int) -> None:
    with pytest.raises(Wrong, match="too small or too large for UINT8"):
        serve_protocols.of_v1({"instances": [1, number]}, model(Tensor("pixel", "UINT8", (-1,))))


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "INT64", "BOOL"])
@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity", "1" + 400 * "0", "1e39", '"1"', "null", "{}"])
def test_a_number_that_no_type_has_is_the_callers_mistake(datatype: str, number: str) -> None:
    """The model would return NaN, and the revision would be blamed for it."""
    fits = number == "1e39" and datatype == "FP64"
    known = model(Tensor("x", datatype, (-1,)))
    tensor = f'{{"name": "x", "datatype": "{datatype}", "shape": [1], "data": [{number}]}}'
    for ask in (
        lambda: serve_protocols.of_v1(json.loads(f'{{"instances": [{number}]}}'), known),
        lambda: serve_protocols.of_v2(json.loads(f'{{"inputs": [{tensor}]}}'), known),
    ):
        with nullcontext() if fits else pytest.raises(Wrong):
            ask()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(
        st.sampled_from(["x", "b64", "name", "datatype", "shape", "data", "parameters", "binary_data_size"]), each, max_size=4
    ),
)  # fmt: skip
inputs = st.fixed_dictionaries(
    {"name": st.just("x"), "datatype": st.sampled_from([*TYPES]), "shape": st.lists(st.integers(0, 3), max_size=2)},
    optional={"data": anything, "parameters": st.just({"binary_data_size": 4}) | anything},
)


@given(
    st.sampled_from([None, *TYPES]), anything | st.builds(lambda each: {"inputs": [each]}, inputs | anything)
    | st.builds(lambda each: {"instances": each}, anything), st.binary(max_size=8),
)  # fmt: skip
def test_whatever_is_sent_is_taken_or_refused_and_nothing_worse(datatype: str | None, body: Any, behind: bytes) -> None:
    known = model(*([Tensor("x", datatype, (-1,))] if datatype else []))
    for read in (lambda: serve_protocols.of_v1(body, known)[0], lambda: serve_protocols.of_v2(body, known, behind)):
        try:
            found = read()
        except Wrong:
            continue
        assert all(np.isfinite(each).all() for each in found.values() if each.dtype.kind == "f")


@pytest.mark.parametrize("datatype", [*TYPES])
@given(data=st.data())
def test_binary_tensors_come_back_as_they_were_sent(datatype: str, data: st.DataObject) -> None:
    shape = data.draw(arrays.array_shapes(max_dims=3, max_side=3))
    if datatype == "BYTES":
        texts = data.draw(st.lists(st.binary(max_size=5), min_size=math.prod(shape), max_size=math.prod(shape)))
        value = np.array([*texts, None], object)[:-1].reshape(shape)
    else:
        value = data.draw(arrays.arrays(TYPES[datatype], shape))
    document, behind = serve_protocols.to_v2("m", "1", "", {"x": value}, {"x": True})
    (tensor,) = document["outputs"]
    assert tensor["parameters"] == {"binary_data_size": len(behind)}
    known = model(Tensor("x", datatype, None))
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        with pytest.raises(Wrong, match="NaN"):
            serve_protocols.of_v2({"inputs": [tensor]}, known, behind)
        return
    found = serve_protocols.of_v2({"inputs": [tensor]}, known, behind)["x"]
    np.testing.assert_array_equal(found, value)
    assert found.dtype == value.dtype
    for wrong in (behind + b"x", behind[:-1]):
        with pytest.raises(Wrong):
            serve_protocols.of_v2({"inputs": [tensor]}, known, wrong)


def test_texts_and_bytes_come_back_as_they_were_sent() -> None:
    found, _ = serve_protocols.of_v1({"instances": [{"text": "ä", "n": 1}, {"text": {"b64": "/w=="}, "n": 2}]}, WORDS)
    assert found["text"].tolist() == ["ä".encode(), b"\xff"]
    answer = serve_protocols.to_v1({"text": found["text"], "n": found["n"]}, by_rows=True)
    assert answer == {"predictions": [{"text": "ä", "n": 1}, {"text": {"b64": "/w=="}, "n": 2}]}


# Drift


@pytest.mark.parametrize(
    ("rows", "same", "other"),
    [
        (list(range(1000)), [3, 997], [-1e9]),
        ([5] * 50, [5], [4, 6]),
        ([0, 1] * 50, [0, 1], [-1, 2]),
        ([0.1] * 50, [0.1], [0.2]),
        ([None, 1, 2, 3], [1], []),
    ],
)
def test_the_bins_of_a_sample_tell_what_it_has_from_what_it_has_not(rows: Any, same: Any, other: Any) -> None:
    said = {"inputs": {"x": rows}}
    ((_, bins),) = serve_drift._bins(said, model(Tensor("x", "FP32", (-1,))))
    (empty,) = bins.documents("input", "x")
    assert len(empty["expected"]) == len(empty["seen"]) == len(empty["edges"]) + 1 <= serve_drift.BINS + 2
    assert sum(empty["expected"]) == pytest.approx(1)
    bins.count(np.array(same, np.float32).astype(float).reshape(-1, 1))
    (of_it,) = bins.documents("input", "x")
    assert all(share > 0 for share, count in zip(of_it["expected"], of_it["seen"], strict=True) if count)
    if len(set(rows)) < 3:
        bins.count(np.array(other, np.float32).astype(float).reshape(-1, 1))
        (of_both,) = bins.documents("input", "x")
        assert sum(of_both["seen"][i] for i, share in enumerate(empty["expected"]) if not share) == len(other)


@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 40), st.integers(1, 5)),
        elements=st.floats(-1e300, 1e300) | st.just(np.nan),
    )
)
def test_counted_at_once_each_column_has_what_it_would_have_alone(table: Any) -> None:
    together = serve_drift.Bins(table)
    together.count(table)
    for column, said in enumerate(together.documents("input", "x")):
        values = table[:, column][~np.isnan(table[:, column])]
        expected = [0] * len(said["seen"])
        for value in values:
            expected[int(np.searchsorted(said["edges"], value, side="left"))] += 1
        assert said["seen"] == expected
        assert said["edges"] == sorted(set(said["edges"]))
        np.testing.assert_allclose(said["expected"], np.array(expected) / max(len(values), 1))


def test_of_more_rows_than_a_second_has_room_for_some_are_counted_from_everywhere() -> None:
    said = {"inputs": {"x": list(range(10_000))}, "outputs": {"y": [[0, 1]]}}
    known = model(Tensor("x", "FP64", (-1,)))
    found = serve_drift.Drift(dict(serve_drift._bins(said, known)))
    found.count({"x": np.arange(10_000.0)}, {"y": np.zeros((10_000, 2)), "more": np.zeros(3), "word": np.array(["a"])})
    x, y, _ = found.document["columns"]
    assert found.document["rows"] == 10_000
    assert sum(x["seen"]) == sum(y["seen"]) == 1000
    assert max(x["seen"][1:]) - min(x["seen"][1:-1]) <= 1
    # Columns that the sample does not have, and values that are not numbers, are left out.
    found.count({"x": np.zeros((3, 2))}, {"y": np.array([["a", "b"]])})
    assert sum(found.document["columns"][0]["seen"]) == 1000
    assert found.document["rows"] == 10_003


# The program in a task


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port
        self.rows: str | None = None

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, timeout=30) as answer:
                self.rows = answer.headers["X-Portal-Rows"]
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def infer(self, body: Any, binary: bytes, json_bytes: str = "") -> tuple[int, Any, bytes]:
        """A request with binary tensors after its JSON; returns status, JSON and the answer's binary part."""
        head = json.dumps(body).encode()
        headers = {"Inference-Header-Content-Length": json_bytes or str(len(head))}
        url = f"http://127.0.0.1:{self.port}/v2/models/m/infer"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, head + binary, headers), timeout=30) as answer:
                size, said = int(answer.headers["Inference-Header-Content-Length"] or 1 << 30), answer.read()
                return answer.status, json.loads(said[:size]), said[size:]
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), b""


@contextmanager
def served(folder: Path, format_: str, sample: Any = None, **options: str) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {
        **os.environ, "PORTAL_MODEL": str(folder), "PORTAL_MODEL_NAME": "m", "PORTAL_MODEL_VERSION": "3", "HOST": "127.0.0.1",
        "PORTAL_MODEL_FORMAT": format_, "PORT": str(port), "CUDA_VISIBLE_DEVICES": "", **options,
        **({"PORTAL_MODEL_SAMPLE": json.dumps(sample)} if sample is not None else {}),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        lines = []
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("It answers"):
                break
        else:
            pytest.fail(f"It did not start: {''.join(lines)}")
        yield Server(process, port)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "model.py").write_text(OWN)
    (folder / "bias.txt").write_text("1")
    options = {"PORTAL_MODEL_THREADS": "1", "PORTAL_MODEL_WAITING": "1", "PORTAL_MODEL_MOST_BYTES": "100000"}
    with served(folder, "python", {"instances": [[1, 2]]}, **options) as server:
        yield server


def test_a_class_of_ones_own_is_asked_by_both_protocols(own: Server) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    assert own.ask("/v1/models/m:predict", {"instances": [[1, 2], [3, 4]]}) == (200, {"predictions": [4, 8]})
    assert own.rows == "2"
    assert own.ask("/v1/models/m/versions/3:predict", {"inputs": [[1, 2]]}) == (200, {"outputs": [4]})
    answer = {"name": "sum", "shape": [1], "datatype": "FP32", "data": [4]}
    expected = {"model_name": "m", "model_version": "3", "id": "a", "outputs": [answer]}
    assert own.ask("/v2/models/m/infer", {"id": "a", "inputs": [tensor]}) == (200, expected)
    assert own.rows == "1"
    assert own.ask("/v2/models/m/versions/3")[1]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    state = own.ask("/v1/models/m")[1]["model_version_status"][0]
    assert (state["version"], state["state"]) == ("3", "AVAILABLE")
    signature = own.ask("/v1/models/m/metadata")[1]["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["x"]["dtype"] == "DT_FLOAT"


def test_binary_tensors_are_taken_and_answered_as_tritons_client_sends_them(own: Server) -> None:
    """The bytes are those of tritonclient.http 2.73, which requests binary tensors by default."""
    numbers = np.array([[1, 2], [3, 4]], "<f4").tobytes()
    tensor = {"name": "x", "shape": [2, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    asks: list[dict[str, Any]] = [
        {"inputs": [tensor], "parameters": {"binary_data_output": True}},
        {"inputs": [tensor], "outputs": [{"name": "sum", "parameters": {"binary_data": True}}]},
    ]
    for body in asks:
        status, head, behind = own.infer(body, numbers)
        assert (status, np.frombuffer(behind, "<f4").tolist()) == (200, [4, 8])
        assert head["outputs"][0] == {
            "name": "sum", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8},
        }  # fmt: skip
    status, head, behind = own.infer({"inputs": [tensor]}, numbers)
    assert (status, head["outputs"][0]["data"], behind) == (200, [4, 8], b"")
    asks[1]["outputs"][0]["name"] = "other"
    assert own.infer(asks[1], numbers)[0] == 400
    assert own.infer(asks[0], numbers[1:])[0] == 400
    assert own.infer(asks[0], numbers, json_bytes="x")[0] == 400


def test_each_refusal_says_why(own: Server) -> None:
    path = "/v1/models/m:predict"
    for where, body, status, sentence in (
        ("/v1/models/other:predict", {}, 404, "There is no model “other” here; this is m, version 3."),
        ("/v2/models/m/versions/2/infer", {}, 404, "There is no version “2” here; this is m, version 3."),
        (path, b"{", 400, "This is not JSON"),
        (path, b'{"instances": [[1e400, 2]]}', 400, "there is NaN, infinity, or a number as large"),
        (path, {"instances": [[1, 2, 3]]}, 400, "its shape is [1, 3], and “x” takes [-1, 2]"),
        (path, {"instances": [[-1, 2]]}, 500, "The model failed: ValueError: below zero"),
        (path, {"instances": [[9, 2]]}, 500, "NaN or infinity, which JSON cannot say"),
        (path, b" " * 200_000, 413, "A request has at most 0.1 MB."),
        ("/nothing", {}, 404, "Not Found"),
    ):
        answered, said = own.ask(where, body)
        assert (answered, sentence in said["error"]) == (status, True), said


def test_who_comes_when_too_many_wait_is_told_to_come_again_and_health_is_answered(own: Server) -> None:
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(own.ask, "/v1/models/m:predict", {"instances": [[7, 0]]}) for _ in range(4)]
        began = time.monotonic()
        assert own.ask("/v2/health/ready")[0] == 200
        assert time.monotonic() - began < 1.4
        statuses = sorted(each.result()[0] for each in asked)
    assert statuses == [200, 200, 503, 503]


def test_what_it_was_asked_is_answered_before_it_ends(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OWN)
    (tmp_path / "bias.txt").write_text("1")
    with served(tmp_path, "python") as server, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(server.ask, "/v1/models/m:predict", {"instances": [[7, 0]]})
        while not asked.running() or server.ask("/v2/health/ready")[0] != 200:
            pass
        time.sleep(0.3)  # by now the request is in the model, which takes 1.5 s
        server.process.send_signal(signal.SIGTERM)
        assert asked.result() == (200, {"predictions": [8]})
        assert server.process.wait(10) == 0


def test_a_model_that_does_not_answer_its_sample_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OWN)
    (tmp_path / "bias.txt").write_text("1")
    sentence = "does not answer its sample request: The model failed: ValueError"
    with pytest.raises(pytest.fail.Exception, match=sentence), served(tmp_path, "python", {"instances": [[-1, 2]]}):
        pass


def test_what_is_asked_and_answered_is_counted_beside_the_sample_and_the_sample_request_is_not(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OWN)
    (tmp_path / "bias.txt").write_text("1")
    rows = [[i / 100, 5] for i in range(100)]
    (tmp_path / "few.json").write_text(
        json.dumps({"inputs": {"x": rows}, "outputs": {"sum": [6 + a for a, _ in rows]}})
    )
    (tmp_path / "model-version.json").write_text('{"trainingSample": "few.json", "path": ""}')
    with served(tmp_path, "python", {"instances": [[1, 2]]}) as server:
        first = server.ask("/v2/models/m/drift")[1]
        assert (first["rows"], [sum(each["seen"]) for each in first["columns"]]) == (0, [0, 0, 0])
        with ThreadPoolExecutor(4) as threads:
            asked = [
                threads.submit(server.ask, "/v1/models/m:predict", {"instances": [[0.5, 5], [9.5, 4]]})
                for _ in range(50)
            ]
            assert {each.result()[0] for each in asked} == {200}
        assert server.ask("/v1/models/m:predict", {"instances": [[-1, 2]]})[0] == 500
        status, said = server.ask("/v2/models/m/versions/3/drift")
    assert (status, said["rows"], said["since"]) == (200, 100, first["since"])
    names = [(each["kind"], each["tensor"], each["column"]) for each in said["columns"]]
    assert names == [("input", "x", 0), ("input", "x", 1), ("output", "sum", 0)]
    of_a, of_b, of_sum = said["columns"]
    assert of_a["expected"] == pytest.approx([0.1] * 10)
    assert (sum(of_a["seen"]), of_a["seen"][-1]) == (100, 50)
    assert (of_b["edges"][1:], of_b["expected"], of_b["seen"]) == ([5.0], [0, 1, 0], [50, 50, 0])
    assert sum(of_sum["seen"]) == 100
    found = drift.read(said)
    assert [each.psi is None for each in found.columns] == [True] * 3  # too few rows for a value


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, ""),
        ({"training-sample.json": "{"}, "Expecting property name"),
        ({"training-sample.json": "[]"}, "by their names"),
        ({"training-sample.json": '{"inputs": {"y": [[1, 2]]}}'}, "there is no input 'y'"),
        ({"training-sample.json": '{"inputs": {"x": []}}'}, "a list of at most 10,000 rows"),
        ({"training-sample.json": '{"inputs": {"x": [[1, 2], [3]]}}'}, "ValueError"),
        ({"training-sample.json": '{"inputs": {"x": [[1, 1e999]]}}'}, "beyond all measure"),
        ({"training-sample.json": '{"inputs": {"x": [["a", "b"]]}}'}, "ValueError"),
        ({"training-sample.json": '{"inputs": ' + " " * 2**24 + "{}}"}, "more than 16 MiB"),
        ({"model-version.json": '{"trainingSample": "../secret.json"}'}, "not among the files"),
        ({"model-version.json": '{"trainingSample": "other.json"}'}, "there is no other.json"),
    ],
)
def test_without_a_sample_and_with_one_that_is_wrong_a_model_is_served_all_the_same(
    tmp_path: Path, files: dict[str, str], sentence: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = serve_drift.drift_of(tmp_path, model(Tensor("x", "FP32", (-1, 2))))
    found.count({"x": np.zeros((2, 2), np.float32)}, {})
    assert (found.document["columns"], found.document["rows"]) == ([], 2)
    assert sentence in found.document.get("message", "")
    assert bool(sentence) == ("message" in found.document)


def test_every_format_that_the_portal_names_has_a_loader() -> None:
    assert tuple(serve_formats.LOADERS) == FORMATS


def field(number: int, value: bytes | int | str) -> bytes:
    """One protocol buffer field."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    value = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(value)]) + value


def onnx_sum() -> bytes:
    """An ONNX model with the one operation sum = a + a, over floats of shape [?, 2], written as a protocol buffer."""
    shape = field(1, field(2, "n")) + field(1, field(1, 2))
    tensor = field(1, field(1, 1) + field(2, shape))
    node = field(1, "a") + field(1, "a") + field(2, "sum") + field(4, "Add")
    ends = field(11, field(1, "a") + field(2, tensor)) + field(12, field(1, "sum") + field(2, tensor))
    graph = field(1, node) + field(2, "g") + ends
    return field(1, 8) + field(7, graph) + field(8, field(2, 13))


def test_onnx(tmp_path: Path) -> None:
    (tmp_path / "sum.onnx").write_bytes(onnx_sum())
    with served(tmp_path, "onnx", {"instances": [[1, 2]]}) as server:
        assert server.ask("/v1/models/m:predict", {"instances": [[1, 2]]}) == (200, {"predictions": [[2, 4]]})


def test_scikit_learn_by_skops_and_never_by_pickle(tmp_path: Path) -> None:
    import skops.io
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    x, y = load_iris(return_X_y=True)
    skops.io.dump(LogisticRegression(max_iter=500).fit(x, y), tmp_path / "iris.skops")
    with served(tmp_path, "sklearn", {"instances": x[:2].tolist()}) as server:
        status, said = server.ask("/v1/models/m:predict", {"instances": x[:2].tolist()})
    assert status == 200
    assert [row["predict"] for row in said["predictions"]] == [0, 0]
    assert said["predictions"][0]["predict_proba"][0] > 0.9


@pytest.mark.trains
def test_tensorflow_and_keras(tmp_path: Path) -> None:
    program = """
import keras, os, sys
layers = [keras.layers.Input((2,), name="x"), keras.layers.Dense(1, kernel_initializer="ones")]
model = keras.Sequential(layers)
model.export(sys.argv[1] + "/saved", verbose=False)
os.mkdir(sys.argv[1] + "/keras")
model.save(sys.argv[1] + "/keras/m.keras")
"""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env={**os.environ, **quiet})
    for folder, format_ in (("saved", "saved-model"), ("keras", "keras")):
        with served(tmp_path / folder, format_, {"instances": [[1, 2]]}, **quiet) as server:
            assert server.ask("/v1/models/m:predict", {"instances": [[1, 2]]}) == (200, {"predictions": [[3]]})
            assert server.ask("/v2/models/m")[1]["inputs"][0]["shape"] == [-1, 2]
