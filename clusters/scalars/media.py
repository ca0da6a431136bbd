"""Histograms and images in TensorBoard event files, as TensorFlow 1 and 2, Keras, PyTorch and tensorboardX write them. Pure.

The idea: a histogram becomes BINS numbers when it is read. Of an image only its place in the file is kept, and whoever shows it
reads these bytes again. So what is remembered of a run stays small. Of many steps, evenly spaced ones and the newest are kept.

Images may contain anything: one counts if its first bytes are those of PNG, JPEG, GIF or WebP, whatever the file says it is.
"""

from __future__ import annotations

import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

BINS = 30
# Steps of one histogram or image. At twice as many, every second one is dropped.
MAX_STEPS = 12
# Histograms and images by name, of a file and of a run; steps of a run; images that one summary may hold.
MAX_TAGS_PER_FILE, MAX_TAGS, MAX_RUN_STEPS, MAX_OUTPUTS = 60, 400, 4000, 10
# Buckets of a histogram that are read; TensorFlow writes 30, PyTorch up to 1,549.
MAX_BUCKETS = 10_000
MAX_TAG = 200
MAX_SIDE = 100_000
# Beyond it, differences of two values may overflow.
LARGEST = 1e300
_KINDS = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF87a", "gif"), (b"GIF89a", "gif"))
_HISTOGRAM = struct.Struct(f"<qddd{BINS}f")
_FLOATS = {types_pb2.DT_DOUBLE: ("d", 8, "double_val"), types_pb2.DT_FLOAT: ("f", 4, "float_val")}


@dataclass(frozen=True)
class Histogram:
    """`counts` of values in BINS bins of equal width from `low` to `high`."""

    step: int
    wall_time: float
    low: float
    high: float
    counts: tuple[float, ...]


@dataclass(frozen=True)
class Image:
    """Where an image is: the record of `size` bytes at `offset` in its file, the summary's `value`-th value, and there the
    `which`-th image. `width` and `height` are what the program said. An image with a file of its
    own is all of that."""

    step: int
    wall_time: float
    offset: int
    size: int
    value: int
    which: int
    width: int
    height: int
    caption: str = ""


@dataclass(frozen=True)
class Placed:
    """An image with the path of its file."""

    path: str
    image: Image

    @property
    def step(self) -> int:
        return self.image.step

    @property
    def wall_time(self) -> float:
        return self.image.wall_time


class Stepped(Protocol):
    @property
    def step(self) -> int: ...


T = TypeVar("T", bound=Stepped)


@dataclass
class Few(Generic[T]):
    """Every `stride`-th of what came, and the newest."""

    points: list[T] = field(default_factory=list)
    stride: int = 1
    seen: int = 0
    newest: T | None = None

    def add(self, one: T) -> None:
        if self.seen % self.stride == 0:
            self.points.append(one)
            if len(self.points) >= 2 * MAX_STEPS:
                self.thin()
        self.seen += 1
        self.newest = one

    @property
    def all(self) -> list[T]:
        if self.newest is None or (self.points and self.points[-1] is self.newest):
            return list(self.points)
        return [*self.points, self.newest]

    @property
    def whole(self) -> list[T]:
        return self.all

    def thin(self) -> None:
        self.points = self.points[::2]
        self.stride *= 2


@dataclass
class Media:
    """What one file has, by tag: of an image with the number of its output behind it. `plugins`: what the first event of a tag
    said about it, which later ones may omit. `left_out`: images that are too large or of another kind, and whether there are
    more tags than are kept."""

    histograms: dict[str, Few[Histogram]] = field(default_factory=dict)
    images: dict[str, Few[Image]] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)
    left_out: int = 0
    is_crowded: bool = False

    @property
    def lines(self) -> list[Few[Any]]:
        return [*self.histograms.values(), *self.images.values()]

    def add(self, event: Any, offset: int, size: int, room: int) -> None:
        """Takes what `event` has, which is the record at `offset`; at most `room` new tags."""
        if not math.isfinite(event.wall_time):
            return
        for n, value in enumerate(event.summary.value):
            kind = value.WhichOneof("value")
            if kind not in ("histo", "image", "tensor") or not 0 < len(value.tag) <= MAX_TAG or "\0" in value.tag:
                continue
            plugin = value.metadata.plugin_data.plugin_name or self.plugins.get(value.tag, "")
            if kind == "histo" or (kind == "tensor" and plugin == "histograms"):
                found = histogram(value, event.step, event.wall_time)
                if found and (line := self._line(self.histograms, value.tag, plugin, room)):
                    line.add(found)
            elif kind == "image" or plugin == "images":
                width, height, several = images(value)
                for which, data in enumerate(several[:MAX_OUTPUTS]):
                    if not image_type(data):
                        self.left_out += 1
                    elif line := self._line(self.images, _named(value.tag, which, len(several)), plugin, room):
                        line.add(Image(event.step, event.wall_time, offset, size, n, which, width, height))

    def _line(self, lines: dict[str, Few[Any]], tag: str, plugin: str, room: int) -> Few[Any] | None:
        if tag not in lines:
            if len(self.histograms) + len(self.images) >= min(MAX_TAGS_PER_FILE, room):
                self.is_crowded = True
                return None
            lines[tag] = Few()
            if plugin:
                self.plugins[tag.partition("\0")[0]] = plugin
        return lines[tag]

    def to_json(self) -> list[Any]:
        histograms = {
            tag: [
                each.stride, each.seen, len(each.points),
                b64encode(b"".join(_HISTOGRAM.pack(h.step, h.wall_time, h.low, h.high, *h.counts) for h in each.all)).decode(),
            ]
            for tag, each in self.histograms.items()
        }  # fmt: skip
        images_ = {
            tag: [each.stride, each.seen, len(each.points), [list(vars(one).values()) for one in each.all]]
            for tag, each in self.images.items()
        }
        return [histograms, images_, self.plugins, self.left_out, self.is_crowded]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Media:
        histograms, images_, plugins, left_out, is_crowded = value
        return cls(
            {tag: _few(each, _unpacked(each[3])) for tag, each in histograms.items()},
            {tag: _few(each, [Image(*one) for one in each[3]]) for tag, each in images_.items()},
            plugins, left_out, is_crowded,
        )  # fmt: skip


def _few(told: Sequence[Any], points: list[T]) -> Few[T]:
    stride, seen, count, _ = told
    return Few(points[:count], stride, seen, points[-1] if points else None)


def _unpacked(text: str) -> list[Histogram]:
    return [
        Histogram(step, at, low, high, tuple(counts))
        for step, at, low, high, *counts in _HISTOGRAM.iter_unpack(b64decode(text))
    ]


def _named(tag: str, which: int, count: int) -> str:
    """The key of an image: of several that one summary holds, with its number."""
    return f"{tag}\0{which}" if count > 1 else tag


def image_type(data: bytes) -> str:
    """png, jpeg, gif or webp by the first bytes, "" for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((kind for start, kind in _KINDS if data.startswith(start)), "")


def sides(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG or GIF; (0, 0) for other images."""
    if data[:4] == b"\x89PNG" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
    elif data[:3] == b"GIF" and len(data) >= 10:
        width, height = struct.unpack_from("<HH", data, 6)
    else:
        return 0, 0
    return min(width, MAX_SIDE), min(height, MAX_SIDE)


def images(value: Any) -> tuple[int, int, Sequence[bytes]]:
    """Width, height and the encoded images of a summary value: of TensorFlow 1 and PyTorch one, of TensorFlow 2 a tensor of
    strings whose first two are the numbers."""
    if value.WhichOneof("value") == "image":
        return _side(value.image.width), _side(value.image.height), [value.image.encoded_image_string]
    told = value.tensor.string_val
    if value.tensor.dtype != types_pb2.DT_STRING or len(told) < 3:
        return 0, 0, []
    return _side(told[0]), _side(told[1]), told[2 : 2 + MAX_OUTPUTS]


def _side(told: int | bytes) -> int:
    try:
        return min(max(int(told[:10] if isinstance(told, bytes) else told), 0), MAX_SIDE)
    except ValueError:
        return 0


def image_of(record: bytes, value: int, which: int) -> bytes:
    """The bytes of one image of an event; none if there is no such image."""
    try:
        found = event_pb2.Event.FromString(record).summary.value
    except DecodeError:
        return b""
    several = images(found[value])[2] if value < len(found) else ()
    return several[which] if which < len(several) and image_type(several[which]) else b""


def histogram(value: Any, step: int, wall_time: float) -> Histogram | None:
    """The histogram of a summary value; None without values, and for buckets that make no sense."""
    told = _buckets(value.histo) if value.WhichOneof("value") == "histo" else _rows(value.tensor)
    return histogram_of(told, step, wall_time)


def histogram_of(told: Iterable[tuple[float, float, float]], step: int, wall_time: float) -> Histogram | None:
    """`told`: the left and the right edge of each bucket, and how many values it has."""
    buckets = [(left, right, count) for left, right, count in told if count > 0 and -LARGEST < left <= right < LARGEST]
    if not buckets or not math.isfinite(sum(count for _, _, count in buckets)):
        return None
    low, high = min(left for left, _, _ in buckets), max(right for _, right, _ in buckets)
    try:
        counts = struct.unpack(f"<{BINS}f", struct.pack(f"<{BINS}f", *binned(buckets, low, high, BINS)))
    except OverflowError:
        return None
    return Histogram(step, wall_time, low, high, counts)


def _buckets(histo: summary_pb2.HistogramProto) -> Iterator[tuple[float, float, float]]:
    """Of TensorFlow 1 and PyTorch: each bucket ends at its limit. The outer limits may be the largest floats, so the smallest
    and the largest value cut them."""
    if len(histo.bucket) != len(histo.bucket_limit) or len(histo.bucket) > MAX_BUCKETS:
        return
    left = histo.min
    for limit, count in zip(histo.bucket_limit, histo.bucket, strict=True):
        right = min(max(limit, histo.min), histo.max)
        yield left, right, count
        left = right


def _rows(tensor: tensor_pb2.TensorProto) -> Iterator[tuple[float, float, float]]:
    """Of TensorFlow 2: a row of left edge, right edge and count for each bucket."""
    shape = [each.size for each in tensor.tensor_shape.dim]
    if tensor.dtype not in _FLOATS or len(shape) != 2 or shape[1] != 3 or not 0 < shape[0] <= MAX_BUCKETS:
        return
    letter, width, name = _FLOATS[tensor.dtype]
    numbers: Sequence[float] = getattr(tensor, name)
    if len(tensor.tensor_content) == shape[0] * 3 * width:
        numbers = struct.unpack(f"<{shape[0] * 3}{letter}", tensor.tensor_content)
    if len(numbers) == shape[0] * 3:
        for n in range(0, len(numbers), 3):
            yield numbers[n], numbers[n + 1], numbers[n + 2]


def binned(buckets: Iterable[tuple[float, float, float]], low: float, high: float, bins: int) -> list[float]:
    """The counts of `buckets` in equal bins from `low` to `high`: those of a bucket are spread evenly over it."""
    found, width = [0.0] * bins, (high - low) / bins
    if not width:
        found[bins // 2] = sum(count for _, _, count in buckets)
        return found

    def place(value: float) -> float:
        return min(max((value - low) / width, 0.0), float(bins))

    for left, right, count in buckets:
        start, end = place(left), place(right)
        first, last = min(int(start), bins - 1), min(int(end), bins - 1)
        if end - start < 1e-9 or first == last:
            found[first] += count
            continue
        for n in range(first, last + 1):
            found[n] += count * max(0.0, min(end, n + 1) - max(start, n)) / (end - start)
    return found


def quantile(found: Histogram, share: float) -> float:
    """The value below which `share` of the values are, about: those of a bin are taken as spread evenly over it."""
    left, width = share * sum(found.counts), (found.high - found.low) / BINS
    for n, count in enumerate(found.counts):
        if count and left <= count:
            return min(found.low + (n + left / count) * width, found.high)
        left -= count
    return found.high
