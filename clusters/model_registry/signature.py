"""What a model takes and gives, read from its files; nothing of a model is ever run here. What they do not tell is not known."""

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

from clusters.model_registry.finding import models_among
from clusters.model_registry.manifest import Signature
from datastores.drivers.base import Driver
from portal.errors import Invalid
from portal.limits import refuse_nul

log = logging.getLogger(__name__)

# Weights lie beside saved_model.pb, not in it; config.json of a .keras file describes layers.
MAX_SAVED_MODEL, MAX_CONFIG = 64 * 2**20, 8 * 2**20
# Bytes of a .keras file that are asked for at a time, and of which its list of files and its config.json have to be.
PIECE, MAX_READ = 256 * 1024, MAX_CONFIG + 4 * 2**20
CHILD_SECONDS = 30
# Of what a tenant wrote anything may be wrong, and each way of packing has errors of its own.
BROKEN = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, LookupError, TypeError, ValueError,
    AttributeError, RuntimeError, ArithmeticError, MemoryError,
)  # fmt: skip
PROGRAM = Path(__file__).with_name("saved_model.py")


def read_signature(driver: Driver, folder: str, files: Iterable[tuple[str, int]], known: str) -> Signature | None:
    """Of a model of format `known` in `folder`, with these `files` (path from there, and bytes). Raises DriverError."""
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
    """What a file says may be anything."""
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
    """A file of a datastore of which only what is wanted is read. Raises BadZipFile where that is more than a model needs: how
    long its list of files is the file itself says."""

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
    """Of the input layers. What comes out only running it would tell."""
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
