"""Reads the scalars and the configuration of a run from files that W&B writes offline, `run-ID.wandb`, without its package. Pure.

The idea: such a file is a log of LevelDB (blocks of 32 KiB, whose records may be split) of protocol buffers. Its history,
summary and configuration count, whose items are a name and a value as JSON. Source: sdk/internal/datastore.py and proto/ of
wandb. A value of the summary that has no history is a line of one point, at the last step. A file is written while the program
runs, so its last record may be incomplete.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from clusters.scalars.events import MAX_LINES_PER_FILE, MAX_TAG, Point, Series

MAGIC, BLOCK = b":W&B\xe1\xbe\x00", 32 * 1024
_HEAD = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
MAX_STEP = 10**15
# Files of a run that are read: each costs a second or so.
MAX_FILES = 4
# Values of a configuration.
MAX_CONFIG = 200
_KINDS = descriptor_pb2.FieldDescriptorProto
# What is read of wandb_internal.proto: message → (name, number, type, is_repeated); others are skipped.
_MESSAGES = {
    "Step": [("num", 1, "int64", False)],
    "Item": [
        ("key", 1, "bytes", False), ("nested_key", 2, "bytes", True), ("integer", 5, "sint64", False),
        ("number", 6, "double", False), ("value_json", 16, "bytes", False),
    ],
    "History": [("item", 1, "Item", True), ("step", 2, "Step", False)],
    "Update": [("key", 1, "bytes", False), ("nested_key", 2, "bytes", True), ("value_json", 16, "bytes", False)],
    "Updates": [("update", 1, "Update", True)],
    "Run": [("config", 4, "Updates", False), ("summary", 5, "Updates", False)],
    "Record": [
        ("history", 2, "History", False), ("summary", 3, "Updates", False), ("config", 5, "Updates", False),
        ("run", 17, "Run", False),
    ],
}  # fmt: skip


def _record() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="offline.proto", package="offline", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, is_repeated in fields:
            label = _KINDS.LABEL_REPEATED if is_repeated else _KINDS.LABEL_OPTIONAL
            told = {"type_name": f".offline.{kind}"} if kind in _MESSAGES else {}
            sort = _KINDS.TYPE_MESSAGE if kind in _MESSAGES else _KINDS.Type.Value(f"TYPE_{kind.upper()}")
            message.field.add(name=field, number=number, label=label, type=sort, **told)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("offline.Record"))


RECORD = _record()


def is_offline(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.startswith("run-") and name.endswith(".wandb")


def series_of(data: bytes) -> dict[str, Series]:
    return contents(data)[0]


def contents(data: bytes) -> tuple[dict[str, Series], dict[str, str]]:
    """The lines of a file by their names, `a.b` for a value inside another one, and its configuration as texts. A record that
    cannot be read is left out, and so is all after a damaged one."""
    found: dict[str, Series] = {}
    summary: dict[str, float] = {}
    config: dict[str, str] = {}
    for each in _records(data):
        try:
            record = RECORD.FromString(each)
            if record.HasField("history"):
                _add(found, record.history)
            for updates in (record.summary, record.run.summary):
                summary |= dict(_flat(_values(updates)))
            for updates in (record.config, record.run.config):
                config |= dict(_texts(_values(updates)))
        except (DecodeError, ValueError, OverflowError, RecursionError):
            continue
    last = max(
        (line.newest for line in found.values() if line.newest), key=lambda each: each.step, default=Point(0, 0.0, 0.0)
    )
    for name, value in summary.items():
        # `define_metric` adds the best value of a metric as `loss.min`.
        is_known = name in found or name.rpartition(".")[0] in found
        if not is_known and not _is_hidden(name) and len(found) < MAX_LINES_PER_FILE:
            found[name] = Series()
            found[name].add(Point(last.step, last.wall_time, value))
    return found, dict(list(config.items())[:MAX_CONFIG])


def _values(updates: Any) -> dict[str, Any]:
    return {_name(item): json.loads(item.value_json) for item in updates.update}


def _texts(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, dict) and value and name.count(".") < 3:
            yield from _texts(value, f"{name}.")
        elif not _is_hidden(name):
            yield _storable(name), _storable(value if isinstance(value, str) else json.dumps(value))


def _is_hidden(name: str) -> bool:
    """What W&B itself adds begins with an underscore."""
    return name.startswith("_") or len(name) > MAX_TAG


def _storable(text: str) -> str:
    """PostgreSQL refuses NUL and half of a surrogate pair, and JSON may have both."""
    return text.replace("\0", "").encode(errors="replace").decode()


def _add(found: dict[str, Series], history: Any) -> None:
    values = {_name(item): _value(item) for item in history.item}
    at, step = values.get("_timestamp"), history.step.num
    for name, value in _flat(values):
        if _is_hidden(name) or not 0 <= step < MAX_STEP:
            continue
        if name in found or len(found) < MAX_LINES_PER_FILE:
            found.setdefault(name, Series()).add(Point(step, float(at) if isinstance(at, int | float) else 0.0, value))


def _name(item: Any) -> str:
    return ".".join(part.decode(errors="replace") for part in (item.nested_key or [item.key]))


def _value(item: Any) -> Any:
    if item.HasField("value_json"):
        return json.loads(item.value_json)
    return item.number if item.HasField("number") else item.integer if item.HasField("integer") else None


def _flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Numbers with their names. Media (`_type`), texts and lists are none."""
    for name, value in values.items():
        if isinstance(value, dict) and "_type" not in value and before.count(".") < 3:
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{before}{name}", float(value)


def _records(data: bytes) -> Iterator[bytes]:
    if not data.startswith(MAGIC):
        return
    at, parts = len(MAGIC), b""
    while at + _HEAD.size <= len(data):
        if BLOCK - at % BLOCK < _HEAD.size:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if at + size > len(data) or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            return
        parts = data[at : at + size] if kind in (_FULL, _FIRST) else parts + data[at : at + size]
        at += size
        if kind in (_FULL, _LAST):
            yield parts
