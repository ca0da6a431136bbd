"""Serves one version of a model by HTTP, as `python -c` inside a task: the Open Inference Protocol v2, and the REST of TensorFlow
Serving, which are two ways to say the same. Sources: the protocol's specification, and tensorflow.org/tfx/serving/api_rest.

A model of whatever format becomes names, types and shapes of tensors, and a function from arrays to arrays (`Model`). All that a
request can have wrong is said against these before the function is called. It is called in threads, of which there are as many as
cores, so health is answered meanwhile; who comes when too many wait is told to come again. It is ready when the model has
answered its sample request, so the first caller does not pay for what a model does on its first call.

Where a sample of what it was trained with lies beside the model, what it is asked and answers is counted in bins of that sample
(`Drift`), and whoever asks has the counts; to compare them is somebody else's.
"""

import asyncio
import base64
import binascii
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
# What the protocol calls the types of NumPy.
TYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    "BYTES": "object",
}  # fmt: skip
NAMES = {name: datatype for datatype, name in TYPES.items()}
# TensorFlow's name of each, which its clients read.
TENSORFLOW = {
    **{d: f"DT_{d}" for d in TYPES},
    "FP16": "DT_HALF",
    "FP32": "DT_FLOAT",
    "FP64": "DT_DOUBLE",
    "BYTES": "DT_STRING",
}
# A file beside the model, or what the portal names: a request as either protocol has it.
SAMPLE = "sample-request.json"
# What it was trained with, or a part of that: {"inputs": {name: rows}, "outputs": {name: rows}}. A file model-version.json beside
# it may say as `trainingSample` that it has another name.
TRAINING, SAID = "training-sample.json", "model-version.json"
MOST_TRAINING_BYTES, MOST_TRAINING_ROWS, MOST_SAID_BYTES = 16 * 2**20, 10_000, 256 * 1024
# Of a tensor with more columns the first are counted; of all that is asked in a second so many rows.
MOST_TENSORS, MOST_COLUMNS, MOST_ROWS_A_SECOND = 16, 64, 1_000
BINS, LARGEST = 10, 1e300


class Wrong(Exception):
    """What is wrong with a request, in a sentence for who sent it."""


@dataclass(frozen=True)
class Tensor:
    """An input or an output; -1 in `shape` stands for any number, and no shape (None) for any."""

    name: str
    datatype: str
    shape: tuple[int, ...] | None

    @property
    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "datatype": self.datatype,
            "shape": list(self.shape) if self.shape is not None else [-1],
        }


@dataclass(frozen=True)
class Model:
    """`run` may be called by several threads at once. No `inputs`: it does not say what it takes, and is given what comes."""

    platform: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    run: Callable[[Arrays], Arrays]


# -- formats -----------------------------------------------------------------------------------------------------------------


def load(format_: str, path: Path) -> Model:
    """Runs what is in it: whoever made the model can do here what its task may do."""
    if format_ not in LOADERS:
        raise SystemExit(
            f"A model of the format “{format_}” is not served by this program, which knows {', '.join(LOADERS)}."
        )
    return LOADERS[format_](path)


def saved_model(path: Path) -> Model:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    signatures = loaded.signatures
    called = "serving_default" if "serving_default" in signatures else next(iter(signatures), "")
    if not called:
        raise SystemExit("This SavedModel has no signature; export it by model.export(…), or with signatures=….")
    function = signatures[called]
    _, inputs = function.structured_input_signature
    names = list(inputs)
    types = {name: spec.dtype.as_numpy_dtype for name, spec in inputs.items()}

    def run(arrays: Arrays) -> Arrays:
        given = {name: tf.constant(arrays[name], dtype=inputs[name].dtype) for name in names}
        return {name: value.numpy() for name, value in function(**given).items()}

    # What is not kept alive takes its variables with it.
    run.loaded = loaded  # type: ignore[attr-defined]
    return Model(
        "tensorflow_savedmodel",
        [
            Tensor(name, NAMES.get(np.dtype(types[name]).name, "BYTES"), _shape(spec.shape))
            for name, spec in inputs.items()
        ],
        [
            Tensor(name, NAMES.get(np.dtype(spec.dtype.as_numpy_dtype).name, "BYTES"), _shape(spec.shape))
            for name, spec in sorted(function.structured_outputs.items())
        ],
        run,
    )


def keras(path: Path) -> Model:
    import keras as library

    model = library.models.load_model(_only(path, "*.keras"), safe_mode=True)
    inputs = [Tensor(each.name, _named(each.dtype), _shape(each.shape)) for each in model.inputs]
    outputs = [Tensor(each.name, _named(each.dtype), _shape(each.shape)) for each in model.outputs]

    def run(arrays: Arrays) -> Arrays:
        given = [arrays[each.name] for each in inputs]
        made = model(given[0] if len(given) == 1 else given, training=False)
        made = made if isinstance(made, list | tuple) else [made]
        return {each.name: np.asarray(value) for each, value in zip(outputs, made, strict=True)}

    return Model("keras", inputs, outputs, run)


def onnx(path: Path) -> Model:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(_only(path, "*.onnx")))

    def tensor(each: Any) -> Tensor:
        said = each.type.removeprefix("tensor(").removesuffix(")")
        name = {"float": "float32", "double": "float64", "string": "object"}.get(said, said)
        return Tensor(each.name, NAMES.get(name, "BYTES"), tuple(n if isinstance(n, int) else -1 for n in each.shape))

    outputs = [tensor(each) for each in session.get_outputs()]

    def run(arrays: Arrays) -> Arrays:
        made = session.run(None, dict(arrays))
        return {each.name: np.asarray(value) for each, value in zip(outputs, made, strict=True)}

    return Model("onnx_onnxv1", [tensor(each) for each in session.get_inputs()], outputs, run)


def sklearn(path: Path) -> Model:
    import skops.io

    # Types that could run anything are refused by skops with their names.
    estimator = skops.io.load(_only(path, "*.skops"))
    features = getattr(estimator, "n_features_in_", -1)

    def run(arrays: Arrays) -> Arrays:
        (given,) = arrays.values()
        found = {"predict": np.asarray(estimator.predict(given))}
        if hasattr(estimator, "predict_proba"):
            found["predict_proba"] = np.asarray(estimator.predict_proba(given))
        return found

    return Model("sklearn_skops", [Tensor("X", "FP64", (-1, features))], [Tensor("predict", "FP64", (-1,))], run)


def python(path: Path) -> Model:
    """`model.py` with a class `Model`: made once with its folder, and `predict` takes and returns arrays by name. `inputs` and
    `outputs`, where it has them, are lists of (name, datatype, shape)."""
    spec = importlib.util.spec_from_file_location("model", path / "model.py")
    if spec is None or spec.loader is None or not (path / "model.py").exists():
        raise SystemExit("There is no model.py, with a class Model, among the files of this version.")
    module = importlib.util.module_from_spec(spec)
    sys.modules["model"] = module
    sys.path.insert(0, str(path))
    spec.loader.exec_module(module)
    own = module.Model(path)

    def tensors(name: str) -> list[Tensor]:
        return [Tensor(called, kind, tuple(shape)) for called, kind, shape in getattr(own, name, ())]

    def run(arrays: Arrays) -> Arrays:
        return {name: np.asarray(value) for name, value in own.predict(dict(arrays)).items()}

    return Model("python", tensors("inputs"), tensors("outputs"), run)


LOADERS: Mapping[str, Callable[[Path], Model]] = {
    "saved-model": saved_model, "keras": keras, "onnx": onnx, "sklearn": sklearn, "python": python,
}  # fmt: skip


def _only(path: Path, pattern: str) -> Path:
    found = sorted(path.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"There are {len(found)} files {pattern} in this version, and one is to be served.")
    return found[0]


def _shape(said: Any) -> tuple[int, ...] | None:
    rank = getattr(said, "rank", 0)
    return None if rank is None else tuple(-1 if size is None else int(size) for size in said)


def _named(dtype: Any) -> str:
    return NAMES.get(np.dtype(dtype).name, "BYTES")


# -- both protocols, pure ----------------------------------------------------------------------------------------------------


def array(said: Any, tensor: Tensor, at: str, shape: Sequence[int] | None = None) -> Array:
    """What was sent for `tensor`, which the request has `at`; `shape` where the request says it. Raises Wrong."""
    try:
        if tensor.datatype == "BYTES":
            made = np.asarray(_bytes(said), dtype=object)
        else:
            made = np.asarray(said)
            if made.dtype == object or made.dtype.kind in "US":
                raise ValueError("its rows differ in length, or are no numbers")
            if made.dtype.kind == "f" and TYPES[tensor.datatype].startswith(("int", "uint", "bool")):
                raise ValueError(f"there are fractions, and it takes {tensor.datatype}")
            cast = made.astype(TYPES[tensor.datatype])
            if cast.dtype.kind in "iu" and (cast != made).any():
                raise ValueError(f"a number is too small or too large for {tensor.datatype}")
            made = cast
        if shape is not None:
            made = made.reshape([int(size) for size in shape])
    except (ValueError, TypeError, OverflowError) as error:
        raise Wrong(f"{at}: this is no tensor of {tensor.datatype}: {error}.") from error
    if tensor.shape is not None and not _fits(made.shape, tensor.shape):
        raise Wrong(
            f"{at}: its shape is {list(made.shape)}, and “{tensor.name}” takes {list(tensor.shape)}; -1 is any number."
        )
    return made


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(size in (-1, has) for size, has in zip(wanted, shape, strict=True))


def _bytes(said: Any) -> Any:
    """Texts as bytes; {"b64": …} stands for bytes that are no text."""
    if isinstance(said, list):
        return [_bytes(each) for each in said]
    if isinstance(said, dict) and set(said) == {"b64"}:
        try:
            return base64.b64decode(said["b64"], validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"a value is no base64: {error}") from error
    if not isinstance(said, str):
        raise ValueError("a value is no text")
    return said.encode()


def of_v2(body: Any, model: Model) -> Arrays:
    """Arrays by name of a request of the Open Inference Protocol. Raises Wrong."""
    said = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(said, list) or not all(isinstance(each, dict) for each in said):
        raise Wrong("inputs: send a list of tensors, each with name, shape, datatype and data.")
    known = {tensor.name: tensor for tensor in model.inputs}
    found: dict[str, Array] = {}
    for at, each in enumerate(said):
        name, datatype = each.get("name"), each.get("datatype")
        if not isinstance(name, str) or (known and name not in known):
            raise Wrong(f"inputs.{at}.name: there is no input {name!r}; this model has {', '.join(known)}.")
        if datatype not in TYPES:
            raise Wrong(f"inputs.{at}.datatype: {datatype!r} is none of {', '.join(TYPES)}.")
        tensor = known.get(name, Tensor(name, datatype, None))
        if datatype != tensor.datatype:
            raise Wrong(f"inputs.{at}.datatype: it is {datatype}, and “{name}” takes {tensor.datatype}.")
        shape = each.get("shape")
        if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise Wrong(f"inputs.{at}.shape: send a list of whole numbers.")
        found[name] = array(_flat(each.get("data")), tensor, f"inputs.{at}.data", shape)
    _all_there(known, found, "inputs")
    return found


def _flat(said: Any) -> Any:
    """The data of a tensor, which may come nested; the shape stands beside it."""
    while isinstance(said, list) and said and isinstance(said[0], list):
        said = [each for row in said for each in (row if isinstance(row, list) else [row])]
    return said


def of_v1(body: Any, model: Model) -> tuple[Arrays, bool]:
    """Arrays by name of a request to TensorFlow Serving, and whether the answer goes by rows. Raises Wrong."""
    if not isinstance(body, dict) or ("instances" in body) == ("inputs" in body):
        raise Wrong("Send either “instances”, a list of rows, or “inputs”, whole tensors.")
    if body.get("signature_name", "serving_default") != "serving_default":
        raise Wrong("signature_name: only “serving_default” is served.")
    by_rows = "instances" in body
    key = "instances" if by_rows else "inputs"
    said = body[key]
    if by_rows and (not isinstance(said, list) or not said):
        raise Wrong("instances: send a list of at least one row.")
    known = {tensor.name: tensor for tensor in model.inputs}
    named = said[0] if by_rows else said
    if isinstance(named, dict) and set(named) != {"b64"}:
        if by_rows:
            if not all(isinstance(row, dict) and row.keys() == named.keys() for row in said):
                raise Wrong("instances: every row has to name the same inputs.")
            said = {name: [row[name] for row in said] for name in named}
    elif len(known) > 1:
        raise Wrong(f"{key}: this model has several inputs; name them: {', '.join(known)}.")
    else:
        said = {next(iter(known), "input"): said}
    found = {}
    for name, value in said.items():
        if known and name not in known:
            raise Wrong(f"{key}: there is no input {name!r}; this model has {', '.join(known)}.")
        tensor = known[name] if name in known else _guessed(name, value)
        found[name] = array(value, tensor, f"{key}.{name}")
    _all_there(known, found, key)
    return found, by_rows


def _guessed(name: str, value: Any) -> Tensor:
    """Of a model that does not say what it takes."""
    try:
        kind = np.asarray(value).dtype
    except ValueError as error:
        raise Wrong(f"{name}: its rows differ in length.") from error
    return Tensor(name, NAMES.get(kind.name, "BYTES"), None)


def _all_there(known: Mapping[str, Tensor], found: Arrays, at: str) -> None:
    if missing := [name for name in known if name not in found]:
        raise Wrong(f"{at}: “{missing[0]}” is missing.")


def to_v2(name: str, version: str, asked: str, made: Arrays) -> dict[str, Any]:
    outputs = [
        {"name": called, "shape": list(value.shape), "datatype": _named(value.dtype), "data": _plain(value.reshape(-1))}
        for called, value in made.items()
    ]
    return {"model_name": name, "model_version": version, **({"id": asked} if asked else {}), "outputs": outputs}


def to_v1(made: Arrays, by_rows: bool) -> dict[str, Any]:
    plain = {name: _plain(value) for name, value in made.items()}
    if not by_rows:
        return {"outputs": next(iter(plain.values())) if len(plain) == 1 else plain}
    if len(plain) == 1:
        return {"predictions": next(iter(plain.values()))}
    counts = {len(value) if isinstance(value, list) else -1 for value in plain.values()}
    if len(counts) != 1 or -1 in counts:
        raise Wrong("The outputs of this model do not go by rows; ask with “inputs”.")
    return {"predictions": [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]}


def _plain(value: Array) -> Any:
    """As JSON has it; bytes that are no text become {"b64": …}."""
    return value.tolist() if value.dtype.kind not in "OSU" else _texts(value.tolist())


def _texts(said: Any) -> Any:
    if isinstance(said, list):
        return [_texts(each) for each in said]
    if isinstance(said, bytes):
        try:
            return said.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(said).decode()}
    return said if isinstance(said, int | float | bool) else str(said)


# -- drift -------------------------------------------------------------------------------------------------------------------


class Bins:
    """Of one tensor, column by column: edges by which its sample falls into ten parts of one size, fewer where values repeat, and
    how much was seen in each. A value lies in the first bin whose edge is not below it, in the last one beyond all edges."""

    def __init__(self, rows: Array) -> None:
        self.edges = [_edges(column[~np.isnan(column)]) for column in rows.T]
        self.width = 1 + max(len(edges) for edges in self.edges)
        # All columns at once: what a column lacks of edges is beyond everything.
        self.padded = np.full((len(self.edges), self.width - 1), np.inf)
        for row, edges in zip(self.padded, self.edges, strict=True):
            row[: len(edges)] = edges
        self.expected, self.seen = self._counted(rows), np.zeros((len(self.edges), self.width), np.int64)

    def count(self, rows: Array) -> None:
        self.seen += self._counted(rows)

    def _counted(self, rows: Array) -> Array:
        found = (rows[:, :, np.newaxis] > self.padded).sum(axis=2) + self.width * np.arange(len(self.edges))
        # What is no number lies in no bin.
        counts = np.bincount(found[~np.isnan(rows)], minlength=self.width * len(self.edges))
        return counts.reshape(len(self.edges), self.width)

    def documents(self, kind: str, tensor: str) -> Iterator[dict[str, Any]]:
        for column, edges in enumerate(self.edges):
            expected = self.expected[column][: len(edges) + 1]
            yield {
                "tensor": tensor, "column": column, "kind": kind, "edges": edges.tolist(),
                "expected": (expected / max(expected.sum(), 1)).tolist(), "seen": self.seen[column][: len(edges) + 1].tolist(),
            }  # fmt: skip


def _edges(values: Array) -> Array:
    """Values of the sample themselves; where many are the smallest, what is below that has a bin of its own."""
    if not values.size:
        return np.zeros(1)
    edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS, method="inverted_cdf"))
    lowest = values.min()
    return np.concatenate([[np.nextafter(lowest, -np.inf)], edges]) if edges[0] == lowest else edges


class Drift:
    """What was asked and answered since `since`, by the bins of a sample: counts that only grow. `rows` counts what `seen` has
    only a part of. Several threads count at once."""

    def __init__(self, bins: Mapping[tuple[str, str], Bins], why: str = "", most: int = MOST_ROWS_A_SECOND) -> None:
        self.bins, self.why, self.most = bins, why, most
        self.rows, self.since = 0, time.time()
        self._second, self._left, self._lock = 0, most, threading.Lock()

    def count(self, asked: Arrays, answered: Arrays) -> None:
        """Never raises: whatever else comes than the sample has is left out."""
        rows = max((_rows(value) for value in asked.values()), default=0)
        with self._lock:
            self.rows += rows
            if not self.bins or not rows:
                return
            if self._second != (now := int(time.monotonic())):
                self._second, self._left = now, self.most
            if not self._left:
                return
            # Of more rows than there is room for, some from everywhere.
            step = -(-rows // self._left)
            self._left -= -(-rows // step)
        found = []
        for kind, arrays in (("input", asked), ("output", answered)):
            for name, value in arrays.items():
                bins = self.bins.get((kind, name))
                if (
                    bins
                    and (table := _table(value, max(step, -(-_rows(value) // self.most)), len(bins.edges))) is not None
                ):
                    found.append((bins, table))
        with self._lock:
            for bins, table in found:
                bins.count(table)

    @property
    def document(self) -> dict[str, Any]:
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.since)) + f".{int(self.since % 1 * 1e6):06d}Z"
        with self._lock:
            columns = [each for (kind, name), bins in self.bins.items() for each in bins.documents(kind, name)]
            said = {"since": since, "rows": self.rows, "columns": columns}
        return said | ({"message": self.why} if self.why else {})


def _rows(value: Array) -> int:
    return int(value.shape[0]) if value.ndim else 1


def _table(value: Array, step: int, columns: int) -> Array | None:
    """Every `step`th row, as numbers; None of what has other columns than the sample, or no numbers."""
    if value.dtype.kind not in "biuf" or not value.size:
        return None
    flat = value.reshape(_rows(value), -1)[::step]
    if flat.shape[1] != columns and not (flat.shape[1] > columns == MOST_COLUMNS):
        return None
    return flat[:, :columns].astype(np.float64)


def drift_of(path: Path, model: Model) -> Drift:
    """By the sample beside the model. A model is served without one, and with one that is wrong, which is said."""
    try:
        return Drift(dict(_bins(_training(path), model)))
    except (Wrong, OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        print(f"Drift is not counted: {_line(error)}", file=sys.stderr, flush=True)
        return Drift({}, _line(error))


def _training(path: Path) -> Any:
    name = TRAINING
    if (said := path / SAID).is_file() and said.stat().st_size <= MOST_SAID_BYTES:
        document = json.loads(said.read_bytes())
        name = document.get("trainingSample", TRAINING) if isinstance(document, dict) else TRAINING
    file = path / str(name)
    if not file.resolve().is_relative_to(path.resolve()):
        raise Wrong(f"{SAID}: trainingSample is not among the files of this version.")
    if not file.is_file():
        if name != TRAINING:
            raise Wrong(f"{SAID}: there is no {name} among the files of this version.")
        return {}
    if file.stat().st_size > MOST_TRAINING_BYTES:
        raise Wrong(f"{name} has more than {MOST_TRAINING_BYTES >> 20} MiB.")
    return json.loads(file.read_bytes())


def _bins(said: Any, model: Model) -> Iterator[tuple[tuple[str, str], Bins]]:
    for kind, known in (("input", model.inputs), ("output", model.outputs)):
        tensors = said.get(f"{kind}s", {}) if isinstance(said, dict) else None
        if not isinstance(tensors, dict) or len(tensors) > MOST_TENSORS:
            raise Wrong(f"{kind}s: a sample has the rows of at most {MOST_TENSORS} tensors, by their names.")
        types = {tensor.name: TYPES[tensor.datatype] for tensor in known}
        for name, rows in tensors.items():
            if kind == "input" and types and name not in types:
                raise Wrong(f"inputs: there is no input {name!r}; this model has {', '.join(types)}.")
            if not isinstance(rows, list) or not 0 < len(rows) <= MOST_TRAINING_ROWS:
                raise Wrong(f"{kind}s.{name}: send a list of at most {MOST_TRAINING_ROWS:,} rows.")
            if types.get(name) == "object":
                continue
            # What is asked comes in the type of the tensor, so 0.1 has to be the same number here.
            values = np.asarray(rows, np.float64)
            if types.get(name, "").startswith("float"):
                values = values.astype(types[name]).astype(np.float64)
            values = values.reshape(len(rows), -1)[:, :MOST_COLUMNS]
            if not values.size or (np.abs(values) > LARGEST).any():
                raise Wrong(f"{kind}s.{name}: its rows have no columns, or numbers beyond all measure.")
            yield (kind, name), Bins(values)


# -- the server --------------------------------------------------------------------------------------------------------------


class Server:
    """One version of one model. `most_waiting` requests wait for a thread; who comes then gets 503."""

    def __init__(
        self, model: Model, name: str, version: str, threads: int, most_waiting: int, most_bytes: int, drift: Drift
    ) -> None:
        self.model, self.name, self.version, self.most_bytes, self.drift = model, name, version, most_bytes, drift
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="run")
        self.most, self.waiting, self.ready = threads + most_waiting, 0, False

    def app(self) -> web.Application:
        app = web.Application(client_max_size=self.most_bytes, middlewares=[self.errors])
        get, post = app.router.add_get, app.router.add_post
        get("/v2", self.server_metadata)
        get("/v2/health/live", self.live)
        get("/v2/health/ready", self.is_ready)
        for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            get(base, self.metadata)
            get(f"{base}/ready", self.is_ready)
            get(f"{base}/drift", self.drifted)
            post(f"{base}/infer", self.infer)
        for base in ("/v1/models/{model:[^/:]+}", "/v1/models/{model:[^/:]+}/versions/{version:[^/:]+}"):
            get(base, self.status)
            get(f"{base}/metadata", self.tensorflow_metadata)
            post(f"{base}:predict", self.predict)
        return app

    @web.middleware
    async def errors(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Every refusal as both protocols have it: {"error": sentence}."""
        try:
            for key, own in (("model", self.name), ("version", self.version)):
                asked = request.match_info.get(key, own)
                if asked != own:
                    sentence = f"There is no {key} “{asked}” here; this is {self.name}, version {self.version}."
                    return _error(404, sentence)
            response: web.StreamResponse = await handler(request)
            return response
        except Wrong as wrong:
            return _error(400, str(wrong))
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"A request has at most {self.most_bytes / 1e6:.1f} MB.")
        except web.HTTPException as error:
            return _error(error.status, error.reason)

    async def live(self, request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def is_ready(self, request: web.Request) -> web.Response:
        return web.json_response({"ready": self.ready, "name": self.name}, status=200 if self.ready else 503)

    async def server_metadata(self, request: web.Request) -> web.Response:
        return web.json_response({"name": "gpu-cloud-serve", "version": "1", "extensions": []})

    async def metadata(self, request: web.Request) -> web.Response:
        model = self.model
        return web.json_response({
            "name": self.name, "versions": [self.version], "platform": model.platform,
            "inputs": [each.document for each in model.inputs], "outputs": [each.document for each in model.outputs],
        })  # fmt: skip

    async def drifted(self, request: web.Request) -> web.Response:
        return web.json_response(self.drift.document)

    async def status(self, request: web.Request) -> web.Response:
        said = {"version": self.version, "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        return web.json_response({"model_version_status": [said]})

    async def tensorflow_metadata(self, request: web.Request) -> web.Response:
        def info(tensors: Sequence[Tensor]) -> dict[str, Any]:
            return {
                each.name: {
                    "dtype": TENSORFLOW[each.datatype],
                    "tensor_shape": {
                        "dim": [{"size": str(size), "name": ""} for size in each.shape or ()],
                        "unknown_rank": each.shape is None,
                    },
                    "name": each.name,
                }
                for each in tensors
            }

        signature = {
            "inputs": info(self.model.inputs), "outputs": info(self.model.outputs),
            "method_name": "tensorflow/serving/predict",
        }  # fmt: skip
        return web.json_response({
            "model_spec": {"name": self.name, "signature_name": "", "version": self.version},
            "metadata": {"signature_def": {"signature_def": {"serving_default": signature}}},
        })  # fmt: skip

    async def infer(self, request: web.Request) -> web.Response:
        body = await _body(request)
        arrays = of_v2(body, self.model)
        made = await self.run(arrays)
        return _answer(to_v2(self.name, self.version, str(body.get("id", "")), made), arrays)

    async def predict(self, request: web.Request) -> web.Response:
        arrays, by_rows = of_v1(await _body(request), self.model)
        return _answer(to_v1(await self.run(arrays), by_rows), arrays)

    async def run(self, arrays: Arrays) -> Arrays:
        if self.waiting >= self.most:
            raise web.HTTPServiceUnavailable(reason="Too many requests wait for this replica. Try again.")
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, self.counted, arrays)
        except Exception as error:
            print(f"A request failed in the model: {error!r}", file=sys.stderr, flush=True)
            raise web.HTTPInternalServerError(reason=f"The model failed: {_line(error)}") from error
        finally:
            self.waiting -= 1

    def counted(self, arrays: Arrays) -> Arrays:
        made = self.model.run(arrays)
        if self.ready:  # the sample request is nobody's
            self.drift.count(arrays, made)
        return made

    async def warm_up(self, sample: Any) -> None:
        """Answers the sample request once, as a caller would send it; raises SystemExit where it cannot."""
        if sample is not None:
            try:
                arrays = of_v2(sample, self.model) if _is_v2(sample) else of_v1(sample, self.model)[0]
                await self.run(arrays)
            except (Wrong, web.HTTPException) as error:
                said = error.reason if isinstance(error, web.HTTPException) else str(error)
                raise SystemExit(f"The model does not answer its sample request: {said}") from error
        self.ready = True


def _is_v2(sample: Any) -> bool:
    return (
        isinstance(sample, dict)
        and isinstance(sample.get("inputs"), list)
        and all(isinstance(each, dict) and "datatype" in each for each in sample["inputs"])
    )


def _line(error: BaseException) -> str:
    """The first line of what it says: a reason of HTTP has one."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


async def _body(request: web.Request) -> Any:
    raw = await request.read()
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"This is not JSON: {error}.") from error


def _answer(document: Mapping[str, Any], arrays: Arrays) -> web.Response:
    """With how many rows it was asked, for whoever counts."""
    first = next(iter(arrays.values()), None)
    rows = len(first) if first is not None and first.ndim else 1
    try:
        text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return _error(500, "The model answered NaN or infinity, which JSON cannot say.")
    return web.Response(text=text, content_type="application/json", headers={"X-Portal-Rows": str(rows)})


def _error(status: int, sentence: str) -> web.Response:
    headers = {"Retry-After": "1"} if status == 503 else None
    text = json.dumps({"error": sentence}, ensure_ascii=False)
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


def sample_of(path: Path) -> Any:
    """The request that the version was registered with, None without one."""
    said = os.environ.get("PORTAL_MODEL_SAMPLE", "")
    if not said and (path / SAMPLE).is_file():
        said = (path / SAMPLE).read_text()
    return json.loads(said) if said else None


async def serve() -> None:
    given = os.environ
    path, name, version = Path(given["PORTAL_MODEL"]), given["PORTAL_MODEL_NAME"], given["PORTAL_MODEL_VERSION"]
    began = time.monotonic()
    model = load(given["PORTAL_MODEL_FORMAT"], path)
    print(f"{name}, version {version}, is loaded after {time.monotonic() - began:.1f} s.", flush=True)
    threads = int(given.get("PORTAL_MODEL_THREADS") or len(os.sched_getaffinity(0)))
    limits = (int(given.get("PORTAL_MODEL_WAITING") or 64), int(given.get("PORTAL_MODEL_MOST_BYTES") or 16_000_000))
    server = Server(model, name, version, threads, *limits, drift_of(path, model))
    await server.warm_up(sample_of(path))
    app = server.app()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=60)
    await runner.setup()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await web.TCPSite(runner, given["HOST"], int(given["PORT"])).start()
    print(f"It answers after {time.monotonic() - began:.1f} s.", flush=True)
    await ended.wait()
    # Nobody new is let in, and who is in gets an answer.
    await runner.cleanup()
    print("It has answered what it was asked, and ends.", flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
