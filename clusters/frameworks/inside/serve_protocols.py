"""Parses requests and writes answers of both protocols. Pure; part of serve.py."""

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clusters.frameworks.inside.serve_tensors import NAMES, TYPES, Array, Arrays, Model, Tensor, Wrong, datatype_of


def array(said: Any, tensor: Tensor, at: str, shape: Sequence[int] | None = None) -> Array:
    """Returns the data sent for `tensor`. `at`: its path in the request. `shape`: if the request gives one. Raises Wrong."""
    try:
        if tensor.datatype == "BYTES":
            made = said if isinstance(said, np.ndarray) else np.asarray(_bytes(said), dtype=object)
        else:
            made = np.asarray(said)
            if made.dtype == object or made.dtype.kind in "US":
                raise ValueError("its rows differ in length, or are no numbers")
            if made.dtype.kind == "f" and TYPES[tensor.datatype].startswith(("int", "uint", "bool")):
                raise ValueError(f"there are fractions, and it takes {tensor.datatype}")
            made = _cast(made, tensor.datatype)
        if shape is not None:
            made = made.reshape([int(size) for size in shape])
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Wrong(f"{at}: this is no tensor of {tensor.datatype}: {error}.") from error
    if tensor.shape is not None and not _fits(made.shape, tensor.shape):
        raise Wrong(
            f"{at}: its shape is {list(made.shape)}, and “{tensor.name}” takes {list(tensor.shape)}; -1 is any number."
        )
    return made


def _cast(made: Array, datatype: str) -> Array:
    """Raises ValueError for values that the type cannot hold, and for NaN and infinity: JSON has neither, and they would turn
    into an apparent error of the model."""
    if made.dtype.kind == "f" and not np.isfinite(made).all():
        raise ValueError("there is NaN, infinity, or a number as large")
    with np.errstate(over="ignore"):
        cast = made.astype(TYPES[datatype])
    if (cast.dtype.kind in "iu" and (cast != made).any()) or (cast.dtype.kind == "f" and not np.isfinite(cast).all()):
        raise ValueError(f"a number is too small or too large for {datatype}")
    return cast


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(size in (-1, has) for size, has in zip(wanted, shape, strict=True))


def _bytes(said: Any) -> Any:
    """Returns strings as bytes; {"b64": …} encodes bytes that are not text."""
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


def cut(raw: bytes, json_bytes: str | None) -> tuple[bytes, bytes]:
    """Splits a request after `json_bytes` (its Inference-Header-Content-Length) into JSON and tensors. Raises Wrong."""
    if json_bytes is None:
        return raw, b""
    if not (
        json_bytes.isascii() and json_bytes.isdigit() and int(json_bytes[:20]) <= len(raw) and len(json_bytes) < 20
    ):
        raise Wrong(f"Inference-Header-Content-Length: {json_bytes!r} is no number of bytes of this request.")
    return raw[: int(json_bytes)], raw[int(json_bytes) :]


def unpacked(raw: bytes, tensor: Tensor, at: str, shape: Sequence[int]) -> Array:
    """Parses a tensor of the protocol's binary extension: little-endian numbers in row-major order; each element of BYTES
    follows its length in four bytes. Raises Wrong."""
    count = math.prod(shape)
    if tensor.datatype == "BYTES":
        found: list[bytes] = []
        while raw:
            size = int.from_bytes(raw[:4], "little")
            if len(raw) < 4 + size:
                raise Wrong(f"{at}: its last element is shorter than it says.")
            found.append(raw[4 : 4 + size])
            raw = raw[4 + size :]
        if len(found) != count:
            raise Wrong(f"{at}: there are {len(found)} elements, and its shape has {count}.")
        made = np.array([*found, None], dtype=object)[:-1]
    else:
        dtype = np.dtype(TYPES[tensor.datatype]).newbyteorder("<")
        if len(raw) != count * dtype.itemsize:
            raise Wrong(f"{at}: there are {len(raw)} bytes, and its shape and type have {count * dtype.itemsize}.")
        made = np.frombuffer(raw, dtype)
        made = made.view(np.uint8) != 0 if dtype.kind == "b" else made.astype(dtype.newbyteorder("="))
    return array(made, tensor, at, shape)


def packed(value: Array) -> bytes:
    """The inverse of `unpacked`."""
    if datatype_of(value.dtype) != "BYTES":
        return value.astype(value.dtype.newbyteorder("<")).tobytes()
    texts = (each if isinstance(each, bytes) else str(each).encode() for each in value.reshape(-1).tolist())
    return b"".join(len(each).to_bytes(4, "little") + each for each in texts)


def of_v2(body: Any, model: Model, binary: bytes = b"") -> Arrays:
    """Parses a request of the Open Inference Protocol into arrays by name. `binary`: the tensors after its JSON. Raises Wrong."""
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
        size = _parameter(each, "binary_data_size", int)
        if size is None:
            found[name] = array(_flat(each.get("data")), tensor, f"inputs.{at}.data", shape)
            continue
        if not 0 <= size <= len(binary):
            raise Wrong(f"inputs.{at}: {size} bytes are not there; {len(binary)} are left behind the JSON.")
        found[name] = unpacked(binary[:size], tensor, f"inputs.{at}", shape)
        binary = binary[size:]
    if binary:
        raise Wrong(f"{len(binary)} bytes behind the JSON belong to no input; give each a binary_data_size.")
    _all_there(known, found, "inputs")
    return found


def _parameter(said: Mapping[str, Any], name: str, kind: type) -> Any:
    """Returns a parameter, or None if it is not given. Raises Wrong."""
    parameters = said.get("parameters") or {}
    value = parameters.get(name) if isinstance(parameters, dict) else None
    if value is not None and type(value) is not kind:
        raise Wrong(f"parameters.{name}: {value!r} is no {kind.__name__}.")
    return value


def _flat(said: Any) -> Any:
    """Flattens the data of a tensor, which may be nested; `shape` is given separately."""
    while isinstance(said, list) and said and isinstance(said[0], list):
        said = [each for row in said for each in (row if isinstance(row, list) else [row])]
    return said


def of_v1(body: Any, model: Model) -> tuple[Arrays, bool]:
    """Parses a request to TensorFlow Serving into arrays by name, and whether the answer is by rows. Raises Wrong."""
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
    """Returns a tensor for a model that does not declare its inputs."""
    try:
        kind = np.asarray(value).dtype
    except ValueError as error:
        raise Wrong(f"{name}: its rows differ in length.") from error
    return Tensor(name, NAMES.get(kind.name, "BYTES"), None)


def _all_there(known: Mapping[str, Tensor], found: Arrays, at: str) -> None:
    if missing := [name for name in known if name not in found]:
        raise Wrong(f"{at}: “{missing[0]}” is missing.")


def wanted(body: Mapping[str, Any], made: Arrays) -> dict[str, bool]:
    """Returns the requested outputs, all by default, and whether each is binary. Raises Wrong."""
    usual = bool(_parameter(body, "binary_data_output", bool))
    said = body.get("outputs")
    if not said:
        return dict.fromkeys(made, usual)
    if not isinstance(said, list) or not all(isinstance(each, dict) for each in said):
        raise Wrong("outputs: send a list of tensors, each with a name.")
    found = {}
    for at, each in enumerate(said):
        name = each.get("name")
        if not isinstance(name, str) or name not in made:
            raise Wrong(f"outputs.{at}.name: there is no output {name!r}; this model has {', '.join(made)}.")
        if _parameter(each, "classification", int):
            raise Wrong(f"outputs.{at}: classification is not offered; ask for the output itself.")
        binary = _parameter(each, "binary_data", bool)
        found[name] = usual if binary is None else binary
    return found


def to_v2(
    name: str, version: str, asked: str, made: Arrays, wanted: Mapping[str, bool] | None = None
) -> tuple[dict[str, Any], bytes]:
    """Returns the JSON of an answer, and the binary tensors after it."""
    outputs, behind = [], []
    for called, binary in (dict.fromkeys(made, False) if wanted is None else wanted).items():
        value = made[called]
        tensor: dict[str, Any] = {"name": called, "shape": list(value.shape), "datatype": datatype_of(value.dtype)}
        if binary:
            behind.append(packed(value))
            tensor["parameters"] = {"binary_data_size": len(behind[-1])}
        else:
            tensor["data"] = _plain(value.reshape(-1))
        outputs.append(tensor)
    document = {"model_name": name, "model_version": version, **({"id": asked} if asked else {}), "outputs": outputs}
    return document, b"".join(behind)


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
    """Returns plain lists for JSON; bytes that are not text become {"b64": …}."""
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
