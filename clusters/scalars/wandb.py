"""Reads what W&B writes offline, `run-ID.wandb`, without its package: the scalars, the configuration and the histograms of a run,
and the captions of its images. Pure.

The idea: such a file is a log of LevelDB (blocks of 32 KiB, whose records may be split) of protocol buffers. Its history,
summary and configuration count, whose items are a name and a value as JSON. Source: sdk/internal/datastore.py and proto/ of
wandb. A value of the summary that has no history is a line of one point, at the last step. A file is written while the program
runs, so its last record may be incomplete.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from clusters.scalars.events import MAX_LINES_PER_FILE, MAX_TAG, Point, Series
from clusters.scalars.media import MAX_BUCKETS, MAX_TAGS_PER_FILE, Few, Histogram, histogram_of

MAGIC, BLOCK = b":W&B\xe1\xbe\x00", 32 * 1024
_HEAD = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
MAX_STEP = 10**15
# Files of a run that are read: each costs a second or so.
MAX_FILES = 4
# Images whose order and caption are kept, of a file and of one step, and characters of a caption.
MAX_CAPTIONS, MAX_IMAGES, CAPTION = 2000, 100, 200
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


class Offline(NamedTuple):
    """What a file tells: lines by their names, `a.b` for a value inside another one; its configuration as texts; histograms; and
    the paths of its images, below the folder `files`, in the order in which they were logged, with their captions."""

    series: dict[str, Series]
    config: dict[str, str]
    histograms: dict[str, Few[Histogram]]
    captions: dict[str, str]


def contents(data: bytes) -> Offline:
    """A record that cannot be read is left out, and so is all after a damaged one."""
    found: dict[str, Series] = {}
    histograms: dict[str, Few[Histogram]] = {}
    captions: dict[str, str] = {}
    summary: dict[str, float] = {}
    config: dict[str, str] = {}
    for each in _records(data):
        try:
            record = RECORD.FromString(each)
            if record.HasField("history"):
                values = _tree(record.history.item, _value)
                _add(found, values, record.history.step.num)
                _add_media(histograms, captions, values, record.history.step.num)
            for updates in (record.summary, record.run.summary):
                summary |= dict(_flat(_tree(updates.update, _json)))
            for updates in (record.config, record.run.config):
                config |= dict(_texts(_tree(updates.update, _json)))
        except (DecodeError, ValueError, TypeError, OverflowError, RecursionError):
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
    return Offline(found, dict(list(config.items())[:MAX_CONFIG]), histograms, captions)


def _tree(items: Iterable[Any], value: Callable[[Any], Any]) -> dict[str, Any]:
    """The values by name. W&B writes each part of a dictionary as an item of its own, that of an image, too."""
    found: dict[str, Any] = {}
    for item in items:
        *folders, name = (part.decode(errors="replace") for part in (item.nested_key or [item.key]))
        at = found
        for folder in folders:
            if not isinstance(at.get(folder), dict):
                at[folder] = {}
            at = at[folder]
        at[name] = value(item)
    return found


def _json(item: Any) -> Any:
    return json.loads(item.value_json)


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


def _add(found: dict[str, Series], values: dict[str, Any], step: int) -> None:
    for name, value in _flat(values):
        if _is_hidden(name) or not 0 <= step < MAX_STEP:
            continue
        if name in found or len(found) < MAX_LINES_PER_FILE:
            found.setdefault(name, Series()).add(Point(step, _time(values), value))


def _time(values: dict[str, Any]) -> float:
    at = values.get("_timestamp")
    return float(at) if isinstance(at, int | float) else 0.0


def _add_media(
    histograms: dict[str, Few[Histogram]], captions: dict[str, str], values: dict[str, Any], step: int
) -> None:
    for name, value in _media_of(values):
        kind = value["_type"]
        if kind == "histogram" and 0 <= step < MAX_STEP and not _is_hidden(name):
            found = histogram_of(list(_bins(value)), step, _time(values))
            if found and (name in histograms or len(histograms) < MAX_TAGS_PER_FILE):
                histograms.setdefault(name, Few()).add(found)
        elif kind == "image-file" and len(captions) < MAX_CAPTIONS:
            captions[str(value.get("path"))] = _caption(value.get("caption"))
        elif kind == "images/separated" and len(captions) < MAX_CAPTIONS:
            said = value.get("captions")
            texts = said if isinstance(said, list) else []
            for path, text in zip_longest(value.get("filenames", ())[:MAX_IMAGES], texts[:MAX_IMAGES]):
                captions[str(path)] = _caption(text) or captions.get(str(path), "")


def _media_of(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in values.items():
        if isinstance(value, dict) and "_type" in value:
            yield f"{before}{name}", value
        elif isinstance(value, dict) and before.count(".") < 3:
            yield from _media_of(value, f"{before}{name}.")


def _caption(said: Any) -> str:
    return _storable(said)[:CAPTION] if isinstance(said, str) else ""


def _bins(value: dict[str, Any]) -> Iterator[tuple[float, float, float]]:
    """Left and right edge of each bin, and how many values it has."""
    counts, edges = value.get("values", ())[:MAX_BUCKETS], value.get("bins", ())
    if packed := value.get("packedBins"):
        edges = [packed["min"] + n * packed["size"] for n in range(len(counts) + 1)]
    yield from zip(edges, edges[1:], counts, strict=False)


def _value(item: Any) -> Any:
    if item.HasField("value_json"):
        return _json(item)
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
