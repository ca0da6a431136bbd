"""Inputs and outputs of a model, read from its files without ever running it. What the files do not contain stays unknown."""

from __future__ import annotations

import io
import json
import logging
import lzma
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from clusters.model_registry.detection import models_among
from clusters.model_registry.manifest import Signature
from datastores.drivers.base import Driver
from portal.errors import Invalid
from portal.web.limits import refuse_nul

log = logging.getLogger(__name__)

# Limits in bytes. Weights are beside saved_model.pb, not in it; config.json in a .keras file describes layers.
MAX_SAVED_MODEL, MAX_CONFIG = 64 * 2**20, 8 * 2**20
# Bytes read at a time of a .keras file, and the total within which its directory and config.json must be.
PIECE, MAX_READ = 256 * 1024, MAX_CONFIG + 4 * 2**20
CHILD_SECONDS = 30
# A tenant's file may be broken in any way, and each compression method has its own errors.
BROKEN = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, LookupError, TypeError, ValueError,
    AttributeError, RuntimeError, ArithmeticError, MemoryError,
)  # fmt: skip
PROGRAM = Path(__file__).with_name("saved_model.py")


def read_signature(driver: Driver, folder: str, files: Iterable[tuple[str, int]], known: str) -> Signature | None:
    """Signature of a model of format `known` in `folder`, which has `files` (relative path and bytes). Raises DriverError."""
    sizes = dict(files)
    main = next((each.main for each in models_among(sizes) if not each.folder and each.format == known), None)
    if main is None:
        return None
    path = f"{folder}/{main}" if folder else main
    if known == "saved-model" and sizes[main] <= MAX_SAVED_MODEL:
        return _checked(_of_saved_model(driver.read_range(path, 0, sizes[main])))
    if known == "keras":
        return _checked(_of_keras(_Ranges(driver, path, sizes[main])))
    return None


def _checked(found: Any) -> Signature | None:
    """Validates `found`, as a file may contain anything."""
    try:
        refuse_nul(found)
        return Signature.model_validate(found) if found else None
    except (ValidationError, Invalid) as error:
        log.info("a model's own signature is none: %s", error)
        return None


def _of_saved_model(data: bytes) -> Any:
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(PROGRAM)],
            input=data,
            capture_output=True,
            timeout=CHILD_SECONDS,
            check=True,
            env={},
        )
    except subprocess.SubprocessError as error:
        log.info("saved_model.pb cannot be read: %s", error)
        return None
    return json.loads(done.stdout)


class _Ranges(io.RawIOBase):
    """A file in a datastore that is read in ranges. Raises BadZipFile beyond MAX_READ bytes, which no model needs: the file
    itself declares the length of its directory."""

    def __init__(self, driver: Driver, path: str, size: int) -> None:
        self._driver, self._path, self._size, self._at = driver, path, size, 0
        self._left = MAX_READ

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        self._left -= max(length, 0)
        if self._left < 0:
            raise zipfile.BadZipFile(f"it has more than {MAX_READ} bytes besides weights")
        data = self._driver.read_range(self._path, self._at, length) if length > 0 else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _of_keras(file: _Ranges) -> Any:
    """Signature of the input layers. Outputs are only known by running it."""
    try:
        with zipfile.ZipFile(io.BufferedReader(file, PIECE)) as archive, archive.open("config.json") as stream:
            data = stream.read(MAX_CONFIG + 1)
        if len(data) > MAX_CONFIG:
            return None
        model = json.loads(data)
        layers = [each for each in model["config"]["layers"] if each["class_name"] == "InputLayer"]
        inputs = [_tensor(each["config"]) for each in layers]
        if not inputs and (shape := (model.get("build_config") or {}).get("input_shape")):
            inputs = [{"name": "inputs", "dtype": "float32", "shape": shape}]
    except BROKEN as error:
        log.info("a .keras file cannot be read: %r", error)
        return None
    return {"inputs": inputs, "outputs": None} if inputs else None


def _tensor(config: dict[str, Any]) -> dict[str, Any]:
    dtype = config.get("dtype")
    if isinstance(dtype, dict):
        dtype = dtype["config"]["name"]
    return {"name": config["name"], "dtype": dtype, "shape": config.get("batch_shape")}
