"""Reads the scalars of a run (loss, accuracy, steps per second …) from its TensorBoard event files, without TensorFlow, and by
`media.py` their histograms and images.

The idea: an event file only grows, so nothing is read twice. For each file we keep the offset where reading stopped and the
points so far. A page reads only the bytes after that, and nothing while the object's etag is unchanged. Everything has a limit:
bytes read for one page, points of a line, lines, files.

A record of an event file is a protobuf `Event`. Source: tensorflow/core/util/event.proto. The message classes come from the
tensorboard package, which needs neither TensorFlow nor numpy for them.
"""

from __future__ import annotations

import heapq
import math
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Protocol

from google.protobuf.message import DecodeError
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

from clusters.scalars.media import MAX_RUN_STEPS, MAX_TAGS, Few, Media, Placed
from datastores.tfrecord import HEAD, TAIL, frames

# Bytes per page. The next page, a few seconds later, goes on with a longer file.
MAX_BYTES = 16 * 1024 * 1024
MAX_FILES = 200
# Points of one line. At twice as many, every second point is dropped.
MAX_POINTS = 1000
MAX_LINES_PER_FILE = 100
# Limits per run, which keep the cache at some MiB whatever a program writes.
MAX_RUN_POINTS, MAX_TAG = 100_000, 200
_POINT = struct.Struct("<qdd")
# A larger record holds a graph or a large image, never a scalar. Parsing one may take forty times as much memory.
MAX_RECORD = 1024 * 1024
CHUNK = 4 * 1024 * 1024

# struct format, and the field of TensorProto that holds the number when tensor_content does not.
_FORMATS: dict[int, tuple[str, str]] = {
    types_pb2.DT_FLOAT: ("<f", "float_val"),
    types_pb2.DT_DOUBLE: ("<d", "double_val"),
    types_pb2.DT_HALF: ("<e", ""),
    types_pb2.DT_INT32: ("<i", "int_val"),
    types_pb2.DT_INT64: ("<q", "int64_val"),
}


class EventFile(Protocol):
    """One object in a datastore. `etag` changes whenever its bytes do."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def etag(self) -> str: ...


@dataclass(frozen=True)
class Point:
    step: int
    wall_time: float
    value: float


@dataclass
class Series:
    """The points of one tag in one file, thinned evenly: every `stride`-th point, plus the newest; its extremes beside them."""

    points: list[Point] = field(default_factory=list)
    stride: int = 1
    seen: int = 0
    newest: Point | None = None
    low: Point | None = None
    high: Point | None = None

    def add(self, point: Point) -> None:
        if math.isfinite(point.value):
            if self.low is None or point.value < self.low.value:
                self.low = point
            if self.high is None or point.value > self.high.value:
                self.high = point
        if self.seen % self.stride == 0:
            self.points.append(point)
            if len(self.points) >= 2 * MAX_POINTS:
                self.thin()
        self.seen += 1
        self.newest = point

    @property
    def all(self) -> list[Point]:
        if self.newest is None or (self.points and self.points[-1] is self.newest):
            return list(self.points)
        return [*self.points, self.newest]

    @property
    def extremes(self) -> list[Point]:
        """The smallest and the largest point, which may be thinned out of `all`."""
        return [each for each in (self.low, self.high) if each is not None]

    @property
    def whole(self) -> list[Point]:
        """`all` with the extremes, by step. Of points of one step, the newest stays the last."""
        found = self.all
        if self.stride > 1:  # Else nothing is left out.
            known = {(point.step, point.value) for point in found}
            found = [*(each for each in self.extremes if (each.step, each.value) not in known), *found]
        return sorted(found, key=lambda point: point.step)

    def thin(self) -> None:
        self.points = self.points[::2]
        self.stride *= 2

    def to_json(self) -> list[Any]:
        """Packs points as bytes, because JSON has no NaN or infinity."""
        return [self.stride, self.seen, len(self.points), _packed(self.all), _packed(self.extremes)]

    @classmethod
    def from_json(cls, value: list[Any]) -> Series:
        stride, seen, count, packed, extremes = value
        points, ends = _unpacked(packed), _unpacked(extremes)
        return cls(
            points[:count], stride, seen, points[-1] if points else None, *(ends[:1] + ends[-1:] or (None, None))
        )


def _packed(points: Iterable[Point]) -> str:
    return b64encode(b"".join(_POINT.pack(each.step, each.wall_time, each.value) for each in points)).decode()


def _unpacked(text: str) -> list[Point]:
    return [Point(*each) for each in _POINT.iter_unpack(b64decode(text))]


@dataclass
class Progress:
    """What is remembered of one file: its content up to `offset` under this etag."""

    etag: str = ""
    size: int = 0
    offset: int = 0
    started: float = 0.0
    ended: float = 0.0
    broken: bool = False
    series: dict[str, Series] = field(default_factory=dict)
    media: Media = field(default_factory=Media)

    @property
    def is_complete(self) -> bool:
        return self.broken or self.offset >= self.size

    @property
    def state(self) -> tuple[str, int, int, int]:
        """Changes when there is something new to remember."""
        numbers, media = (sum(len(e.points) for e in lines) for lines in (self.series.values(), self.media.lines))
        return self.etag, self.offset, numbers, media

    def to_json(self) -> dict[str, Any]:
        series = {tag: each.to_json() for tag, each in self.series.items()}
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        return known | {"series": series, "media": self.media.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Progress:
        series = {tag: Series.from_json(each) for tag, each in value["series"].items()}
        return cls(**value | {"series": series, "media": Media.from_json(value["media"])})


@dataclass(frozen=True)
class Curve:
    """One line of a chart: the points of `tag` in one folder of event files, ordered by step."""

    tag: str
    folder: str
    points: tuple[Point, ...]

    @cached_property
    def is_timed(self) -> bool:
        """Whether it is known when each number was written."""
        return bool(self.points) and all(point.wall_time for point in self.points)

    def to_json(self) -> list[str]:
        return [self.tag, self.folder, _packed(self.points)]

    @classmethod
    def from_json(cls, value: list[str]) -> Curve:
        tag, folder, packed = value
        return cls(tag, folder, tuple(_unpacked(packed)))


@dataclass(frozen=True)
class Shown:
    """The histograms of `tag` in one folder, or its images, by step. `which` counts from 1 if its summaries hold several."""

    tag: str
    folder: str
    points: tuple[Any, ...]
    which: int = 0


@dataclass(frozen=True)
class Scalars:
    curves: tuple[Curve, ...]
    files: int
    notes: tuple[str, ...] = ()
    # False if the next call has more to read.
    is_complete: bool = True
    # Whether it was read from the program's printed output.
    is_printed: bool = False
    # How many histograms and images there are, which `media.py` tells.
    media: int = 0
    # What the program told of its configuration.
    parameters: Mapping[str, str] = field(default_factory=dict)
    # When the run started, in seconds since 1970; 0 if unknown.
    started: float = 0.0

    @property
    def tags(self) -> list[str]:
        """Each tag once: losses, accuracies and speeds first, then by name."""
        return sorted({curve.tag for curve in self.curves}, key=tag_order)

    @cached_property
    def began(self) -> float:
        """From when relative time counts, in seconds since 1970: the start of the run, or its first number if the portal heard of
        the start later. 0 if neither is known."""
        started = [self.started] if self.started else []
        times = (point.wall_time for curve in self.curves if curve.is_timed for point in curve.points)
        return min([*started, *times], default=0.0)


def is_event_file(path: str) -> bool:
    """TensorBoard's rule: the name contains "tfevents". Profiles are files of another kind."""
    name = PurePosixPath(path).name
    return "tfevents" in name and not name.endswith((".profile-empty", ".tmp"))


def read(
    files: Iterable[EventFile],
    read_range: Callable[[str, int, int], bytes],
    remembered: dict[str, Progress],
) -> tuple[Scalars, dict[str, Progress]]:
    """The scalars in `files`, and the progress by path to remember for the next call. Updates `remembered` while reading, so
    that nothing is lost if `read_range` raises.

    `read_range(path, start, length)` returns at most `length` bytes, fewer at the end. Damaged files add a note, never an error.
    """
    chosen = sorted((file for file in files if is_event_file(file.path)), key=lambda file: file.path)
    notes: list[str] = []
    if len(chosen) > MAX_FILES:
        notes.append(f"There are {len(chosen)} event files; the newest {MAX_FILES} by name are shown.")
        chosen = chosen[-MAX_FILES:]
    budget, progress = MAX_BYTES, dict[str, Progress]()
    for file in chosen:
        known = remembered.setdefault(file.path, Progress())
        if known.etag != file.etag:
            if file.size < known.offset:
                # Shorter than what was read: another file with the same name.
                known = remembered[file.path] = Progress()
            known.etag, known.size = file.etag, file.size
        while not known.is_complete and budget > 0:
            data = read_range(file.path, known.offset, CHUNK)
            room = MAX_TAGS - sum(len(each.media.lines) for each in progress.values())
            used = _take(known, data, room)
            budget -= max(used, 1024)
            if not used:
                # The rest is a partial record; with the file's next etag there will be more of it.
                known.size = known.offset
        if known.broken:
            notes.append(f"{file.path} is damaged at byte {known.offset}; what follows is not shown.")
        progress[file.path] = known
    thin(progress.values())
    media = [each for file in progress.values() for each in file.media.lines]
    _thin(media, MAX_RUN_STEPS)
    waiting = [file.size - progress[file.path].offset for file in chosen if not progress[file.path].is_complete]
    if waiting:
        notes.append(f"Still reading: {sum(waiting) / 1024**2:.0f} MiB to go.")
    curves = tuple(_curves(progress))
    return Scalars(curves, len(chosen), tuple(notes), is_complete=not waiting, media=len(media)), progress


def thin(progress: Iterable[Progress], most: int = MAX_RUN_POINTS) -> None:
    """Thins the longest lines of a run until it has at most `most` points. Each line keeps its newest point."""
    _thin([each for file in progress for each in file.series.values()], most)


def _thin(lines: Sequence[Series | Few[Any]], most: int) -> None:
    total = sum(len(each.points) for each in lines)
    longest = [(-len(each.points), n) for n, each in enumerate(lines)]
    heapq.heapify(longest)
    while total > most and longest[0][0] < -1:
        length, n = longest[0]
        lines[n].thin()
        total += length + len(lines[n].points)
        heapq.heapreplace(longest, (-len(lines[n].points), n))


def _take(progress: Progress, data: bytes, room: int) -> int:
    """Adds what is in `data` (the bytes from `progress.offset`): scalars, and histograms and images of at most `room` tags more.
    Returns how many bytes were consumed."""
    records, used, damaged = frames(data)
    for start, end in records:
        if end - start > MAX_RECORD:
            progress.media.left_out += _is_summary(data[start : start + 32])
            continue
        try:
            event = event_pb2.Event.FromString(data[start:end])
        except DecodeError:
            continue
        progress.started = progress.started or event.wall_time
        progress.ended = max(progress.ended, event.wall_time)
        for value in event.summary.value:
            number = _scalar(value)
            if number is None or len(value.tag) > MAX_TAG:
                continue
            series = progress.series.get(value.tag)
            if series is None:
                if len(progress.series) >= MAX_LINES_PER_FILE:
                    continue
                series = progress.series[value.tag] = Series()
            series.add(Point(event.step, event.wall_time, number))
        progress.media.add(event, progress.offset + start - HEAD, end - start + HEAD + TAIL, room)
    if not used and not damaged and len(data) >= 12:
        # A record longer than one read: skip it.
        length = struct.unpack_from("<Q", data)[0] + HEAD + TAIL
        used = length if length > MAX_RECORD and progress.offset + length <= progress.size else 0
        progress.media.left_out += bool(used) and _is_summary(data[HEAD : HEAD + 32])
    progress.offset += used
    progress.broken = damaged
    return int(used)


def _is_summary(begin: bytes) -> bool:
    """Whether an event is a summary and no graph, by its first bytes: after the time (field 1) and the step (2) comes field 5."""
    rest = begin.removeprefix(begin[:9] if begin[:1] == b"\x09" else b"")
    if rest[:1] == b"\x10":
        rest = rest[1:].lstrip(bytes(range(128, 256)))[1:]
    return rest[:1] == b"\x2a"


def _scalar(value: summary_pb2.Summary.Value) -> float | None:
    """The number of a summary value as TensorFlow 1 (and PyTorch) or TensorFlow 2 writes it; None if it is not a scalar."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor":
        return None
    return _tensor_scalar(value.tensor)


def _tensor_scalar(tensor: tensor_pb2.TensorProto) -> float | None:
    if tensor.dtype not in _FORMATS or any(dimension.size != 1 for dimension in tensor.tensor_shape.dim):
        return None
    layout, name = _FORMATS[tensor.dtype]
    if len(tensor.tensor_content) == struct.calcsize(layout):
        return float(struct.unpack(layout, tensor.tensor_content)[0])
    values: Sequence[float] = getattr(tensor, name) if name else ()
    return float(values[0]) if len(values) == 1 else None


def _curves(progress: Mapping[str, Progress]) -> list[Curve]:
    return [Curve(*each) for each in joined(progress, lambda _, file: file.series)]


def histograms_in(progress: Mapping[str, Progress]) -> list[Shown]:
    return [Shown(*each) for each in joined(progress, lambda _, file: file.media.histograms)]


def images_in(progress: Mapping[str, Progress]) -> list[Shown]:
    """Their points are `Placed`."""

    def lines(path: str, file: Progress) -> dict[str, Few[Placed]]:
        return {key: Few([Placed(path, one) for one in each.all]) for key, each in file.media.images.items()}

    found = []
    for key, folder, points in joined(progress, lines):
        tag, _, which = key.partition("\0")
        found.append(Shown(tag, folder, points, int(which) + 1 if which else 0))
    return found


def joined(
    progress: Mapping[str, Progress], lines: Callable[[str, Progress], Mapping[str, Any]]
) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """Tag, folder, and the points of all files there by step, of those `lines` of each file by its path."""
    by_line: dict[tuple[str, str], list[tuple[Progress, Any]]] = {}
    for path, file in progress.items():
        for tag, line in lines(path, file).items():
            by_line.setdefault((tag, str(PurePosixPath(path).parent)), []).append((file, line))
    for (tag, folder), several in sorted(by_line.items(), key=lambda each: each[0]):
        points: list[Any] = []
        ended = 0.0
        for file, line in sorted(several, key=lambda each: each[0].started):
            new = line.all
            if points and new and file.started > ended:
                # A restarted program goes on from its checkpoint: its repeated steps replace the lost ones.
                points = [point for point in points if point.step < new[0].step]
            points += line.whole
            ended = max(ended, file.ended)
        yield tag, "" if folder == "." else folder, tuple(sorted(points, key=lambda p: (p.step, p.wall_time)))


def rank(tag: str) -> int:
    """Smaller for what people look at first: losses, then accuracies, then speeds."""
    words = tag.lower()
    marks = (("loss",), ("acc",), ("step/sec", "steps_per_sec", "step_per_sec"))
    return next((rank for rank, names in enumerate(marks) if any(name in words for name in names)), len(marks))


def tag_order(tag: str) -> tuple[int, str, str]:
    """Sorts tags: as `rank`, then by name, where layer 2 comes before layer 10."""
    return rank(tag), re.sub(r"\d+", lambda digits: digits[0].zfill(9), tag), tag
