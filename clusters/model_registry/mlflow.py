"""Converts versions to MLflow's file MLmodel and back. Pure; no model is run.

Format: mlflow.org/docs/latest/ml/model (MLmodel, flavors), and mlflow/models/model.py of 3.17. Of MLflow's kinds of signature
only tensors exist here, too. Table columns contain nothing that a model server could check, so they are left out.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from clusters.model_registry.detection import models_among
from clusters.model_registry.manifest import Format, Signature
from portal.text.words import readable

FILE, DATA, REQUIREMENTS, EXAMPLE, SERVING = (
    "MLmodel", "data", "requirements.txt", "input_example.json", "serving_input_example.json"
)  # fmt: skip
# The MLflow release whose format is written.
RELEASE = "3.17.2"
MAX_BYTES = 256 * 1024
# MLflow cannot load a plain Python class; this loader wraps it.
LOADER = "portal_loader"
LOADER_PROGRAM = '''"""Reads model.py, with its class Model, as a model of MLflow: `predict` takes and returns arrays by name."""

import importlib.util
import sys
from pathlib import Path


class Wrapped:
    def __init__(self, model):
        self.model = model

    def predict(self, inputs, params=None):
        return self.model.predict(inputs)


def _load_pyfunc(folder):
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("model", Path(folder) / "model.py")
    module = sys.modules["model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Wrapped(module.Model(Path(folder)))
'''
# Minimum requirements. The exact versions are only known inside the image.
NEEDS: Mapping[str, Sequence[str]] = {
    "saved-model": ("tensorflow",), "keras": ("keras",), "onnx": ("onnxruntime",), "sklearn": ("scikit-learn", "skops"),
    "python": ("numpy",),
}  # fmt: skip
_KINDS: Mapping[str, Format] = {"keras": "keras", "onnx": "onnx"}
# NumPy types that tensors may have in both formats. Texts are objects in MLflow.
_TYPES = {
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
}  # fmt: skip
_WORDS = 300
_MOST_DIMENSIONS = 32


@dataclass(frozen=True)
class Told:
    """The content of an MLmodel. `folder` is relative to the MLmodel; `format` is None if no flavor is supported."""

    folder: str
    format: Format | None
    signature: Signature | None
    example: str
    origin: dict[str, Any]


def files(
    name: str, number: int, *, format_: str, paths: Sequence[str], signature: Mapping[str, Any] | None, sample: Any,
    lineage: Mapping[str, Any], digests: Mapping[str, str], created: str, lock: str = "",
) -> dict[str, bytes]:  # fmt: skip
    """The files beside those of the model (which are in DATA), by name."""
    made: dict[str, bytes] = {}
    document: dict[str, Any] = {
        "artifact_path": name, "flavors": _flavors(format_, paths), "mlflow_version": RELEASE, "utc_time_created": created,
        "metadata": {"portal": {"model": name, "version": number, "lineage": dict(lineage), "sha256": dict(digests)}},
    }  # fmt: skip
    if run := lineage.get("run"):
        document["run_id"] = run
    if said := _signature(signature):
        document["signature"] = said
    if (example := _example(sample)) is not None:
        document["saved_input_example_info"] = {
            "artifact_path": EXAMPLE, "serving_input_path": SERVING, "type": "ndarray"
        }  # fmt: skip
        made[EXAMPLE] = json.dumps(example).encode()
        made[SERVING] = json.dumps({"inputs": example}).encode()
    if format_ == "python":
        made[f"code/{LOADER}.py"] = LOADER_PROGRAM.encode()
    if needs := NEEDS.get(format_, ()):
        made[REQUIREMENTS] = lock.encode() or "".join(f"{each}\n" for each in needs).encode()
    made[FILE] = yaml.safe_dump(document, sort_keys=True, allow_unicode=True).encode()
    return made


def _flavors(format_: str, paths: Sequence[str]) -> dict[str, Any]:
    main = next(
        (f"{DATA}/{each.main}" for each in models_among(paths) if not each.folder and each.format == format_), ""
    )
    if format_ == "saved-model" and main:
        return {
            "tensorflow": {"code": None, "model_type": "tf2-module", "saved_model_dir": DATA},
            "python_function": {"loader_module": "mlflow.tensorflow"},
        }
    if format_ == "keras" and main:
        # MLflow appends the extension itself.
        return {
            "keras": {"data": main.removesuffix(".keras"), "save_exported_model": False},
            "python_function": {"loader_module": "mlflow.keras"},
        }
    if format_ == "onnx" and main:
        return {
            "onnx": {"code": None, "data": main, "providers": ["CPUExecutionProvider"]},
            "python_function": {"data": main, "loader_module": "mlflow.onnx"},
        }
    if format_ == "sklearn" and main:
        return {
            "sklearn": {
                "code": None,
                "pickled_model": main,
                "serialization_format": "skops",
                "skops_trusted_types": None,
            },
            "python_function": {"loader_module": "mlflow.sklearn", "model_path": main, "predict_fn": "predict"},
        }
    if format_ == "python":
        return {"python_function": {"code": "code", "data": DATA, "loader_module": LOADER}}
    return {}


def _signature(said: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """None if a tensor has a type that MLflow does not have."""
    if not said:
        return None
    written: dict[str, Any] = {"params": None}
    for key in ("inputs", "outputs"):
        tensors = said.get(key)
        specs = [_spec(each) for each in tensors or ()]
        if not all(specs):
            return None
        written[key] = json.dumps(specs) if specs else None
    return written if written["inputs"] else None


def _spec(tensor: Mapping[str, Any]) -> dict[str, Any] | None:
    dtype, shape = tensor["dtype"], tensor["shape"]
    dtype = "object" if dtype in ("string", "object") else dtype
    if shape is None or dtype not in _TYPES | {"object"}:
        return None
    sizes = [-1 if each is None else each for each in shape]
    return {"name": tensor["name"], "type": "tensor", "tensor-spec": {"dtype": dtype, "shape": sizes}}


def _example(sample: Any) -> Any:
    """The inputs of a request in either protocol in MLflow's form: arrays by name, or one array. None for anything else."""
    if not isinstance(sample, dict):
        return None
    rows, inputs = sample.get("instances"), sample.get("inputs")
    if isinstance(rows, list) and rows:
        if all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
            return {name: [row[name] for row in rows] for name in rows[0]}
        return rows if not any(isinstance(row, dict) for row in rows) else None
    if isinstance(inputs, list) and inputs and all(isinstance(each, dict) and "datatype" in each for each in inputs):
        try:
            return {str(each["name"]): _shaped(_flat(each["data"]), each["shape"]) for each in inputs}
        except (KeyError, TypeError, ValueError):
            return None
    return inputs if isinstance(inputs, dict | list) and inputs else None


def _flat(data: Any) -> list[Any]:
    while isinstance(data, list) and data and isinstance(data[0], list):
        data = [each for row in data for each in row]
    return list(data)


def _shaped(flat: list[Any], shape: Sequence[int]) -> Any:
    """Raises ValueError if the number of values does not match."""
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError("too many dimensions")
    for size in reversed(shape[1:]):
        if size < 1 or len(flat) % size:
            raise ValueError("another number of values")
        flat = [flat[at : at + size] for at in range(0, len(flat), size)]
    if shape and len(flat) != shape[0]:
        raise ValueError("another number of values")
    return flat


# -- reading an MLmodel ------------------------------------------------------------------------------------------------------


class _Plain(yaml.SafeLoader):
    """A loader without aliases: a few of them can expand to more than all memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it refers to another place of itself")
        return super().compose_node(parent, index)


def told(data: bytes) -> Told:
    """Parses an untrusted MLmodel. Raises ValueError with a sentence."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"MLmodel has more than {MAX_BYTES // 1024} KiB.")
    try:
        said = yaml.load(data, Loader=_Plain)  # noqa: S506  a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"MLmodel is no YAML: {readable(str(error).splitlines()[0], 200)}") from None
    flavors = said.get("flavors") if isinstance(said, dict) else None
    if not isinstance(flavors, dict):
        raise ValueError("MLmodel names no flavors.")
    folder, format_ = _model(flavors)
    if posixpath.normpath(f"/{folder}") != f"/{folder}".rstrip("/") and folder:
        raise ValueError("MLmodel names a folder that is none.")
    info = _dict(said.get("saved_input_example_info"))
    example = str(info.get("serving_input_path") or "")
    return Told(folder, format_, _read(_dict(said.get("signature"))), example, _origin(said))


def _model(flavors: Mapping[str, Any]) -> tuple[str, Format | None]:
    own = {name: _dict(said) for name, said in flavors.items()}
    if said := own.get("tensorflow"):
        if said.get("saved_model_dir"):
            return str(said["saved_model_dir"]), "saved-model"
        return str(said.get("data") or "data"), "keras" if said.get("save_format") == "keras" else None
    if said := own.get("sklearn"):
        path = str(said.get("pickled_model") or "")
        return path.rpartition("/")[0], "sklearn" if said.get("serialization_format") == "skops" else None
    for name, format_ in _KINDS.items():
        if said := own.get(name):
            path = str(said.get("data") or "")
            # For Keras, MLflow itself names a folder that contains model.keras.
            return path if name == "keras" and "/" not in path else path.rpartition("/")[0], format_
    said = own.get("python_function", {})
    return (str(said.get("data") or ""), "python") if said.get("loader_module") == LOADER else ("", None)


def _read(said: Mapping[str, Any]) -> Signature | None:
    try:
        found = {key: _tensors(said.get(key), key) for key in ("inputs", "outputs")}
        return Signature.model_validate(found) if found["inputs"] else None
    except (ValidationError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _tensors(text: Any, key: str) -> list[dict[str, Any]] | None:
    if not text:
        return None
    found = []
    for each in json.loads(text):
        spec, name = each["tensor-spec"], each.get("name") or key.removesuffix("s")
        dtype = "string" if spec["dtype"] in ("object", "str") else spec["dtype"]
        found.append({"name": name, "dtype": dtype, "shape": [None if n == -1 else n for n in spec["shape"]]})
    return found


def _origin(said: Mapping[str, Any]) -> dict[str, Any]:
    """The stated origin, for display only; it is not verified."""
    portal = _dict(_dict(said.get("metadata")).get("portal"))
    lineage = _dict(portal.get("lineage"))
    code, read = _dict(lineage.get("code")), _dict(lineage.get("input"))
    words = {
        "run": said.get("run_id"), "created": said.get("utc_time_created"), "mlflow": said.get("mlflow_version"),
        "model": f"{portal['model']}/{portal.get('version')}" if portal.get("model") else said.get("model_uuid"),
        "code": code.get("commit") or code.get("digest"), "input": read.get("digest"), "image": lineage.get("image"),
    }  # fmt: skip
    return {key: readable(str(value), _WORDS) for key, value in words.items() if value}


def sample(data: bytes) -> Any:
    """A request from an MLflow input example; None if it is of another kind."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    if isinstance(table := said.get("dataframe_split"), dict):
        return {"instances": table["data"]} if isinstance(table.get("data"), list) else None
    return {"inputs": said["inputs"]} if isinstance(said.get("inputs"), dict | list) else None


def the_one(paths: Iterable[str]) -> str | None:
    """The only MLmodel among these files; None if there are none or several."""
    found = [path for path in paths if path.rpartition("/")[2] == FILE]
    return found[0] if len(found) == 1 else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
