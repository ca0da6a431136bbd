"""A model as its server sees it: named tensors with types and shapes, and a function from arrays to arrays. Part of serve.py."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
# NumPy's types by the protocol's names.
TYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    "BYTES": "object",
}  # fmt: skip
NAMES = {name: datatype for datatype, name in TYPES.items()}
# TensorFlow's names, which its clients read.
TENSORFLOW = {
    **{d: f"DT_{d}" for d in TYPES},
    "FP16": "DT_HALF",
    "FP32": "DT_FLOAT",
    "FP64": "DT_DOUBLE",
    "BYTES": "DT_STRING",
}


class Wrong(Exception):
    """An invalid request; the message is sent to the caller."""


@dataclass(frozen=True)
class Tensor:
    """An input or output. -1 in `shape` means any size; `shape` None means any shape."""

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
    """`run` must be thread-safe. Without `inputs` the model declares nothing and gets whatever is sent."""

    platform: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    run: Callable[[Arrays], Arrays]


def datatype_of(dtype: Any) -> str:
    return NAMES.get(np.dtype(dtype).name, "BYTES")


def line_of(error: BaseException) -> str:
    """Returns type and first line of an error, because the reason phrase of HTTP is one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
