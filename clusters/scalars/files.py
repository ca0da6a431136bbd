"""Images and tables among the files of an output, by their names alone: those that W&B writes offline and that MLflow's client
logs, and those that programs save themselves, such as `image_at_epoch_0004.png`. Pure.

The idea: images of one folder whose names differ in their last number are one series, and that number is the step.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from clusters.scalars.events import MAX_RECORD, Shown
from clusters.scalars.media import MAX_OUTPUTS, MAX_TAG, MAX_TAGS, Few, Image, Placed
from datastores.drivers.base import Entry

IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_TABLES = (".csv", ".tsv", ".table.json")
# W&B: wandb/offline-run-DATE-ID/files/media/images/KEY_STEP_HASH.png, where a key may have slashes.
_WANDB = re.compile(
    r"(?P<folder>(?:.*?/)?)(?:wandb/)?(?:offline-)?run-[^/]+/files/media/(?:images|table)/(?P<tag>.+)_(?P<step>\d{1,15})_[0-9a-f]{20}\."
)
# MLflow: images/KEY+step+STEP+timestamp+TIME+UUID.png, before version 3.9 with another sign; each has a smaller copy beside it.
_MLFLOW = re.compile(
    r"(?P<folder>(?:.*/)?)images/(?P<tag>[^/]+?)(?P<sign>[+%~])step(?P=sign)(?P<step>\d{1,15})(?P=sign)timestamp(?P=sign)"
)
_ARTIFACT = re.compile(r"(?:^|/)mlflow/(?P<logged>[0-9a-f]{32}/.+\.json)$")
_SMALLER = re.compile(r"[+%~]compressed\.webp$")
LOGGED, SERIES, SINGLE = range(3)
# The step of a file whose name tells none.
UNKNOWN = -1
_NUMBER = re.compile(r"\d{1,15}(?=\D*$)")


@dataclass(frozen=True)
class TableFile:
    """A table at a step."""

    path: str
    step: int
    wall_time: float


class _Named(NamedTuple):
    """What a file is of. Loggers' files have the first rank, series the next, files of their own the last."""

    rank: int
    folder: str
    tag: str
    step: int
    entry: Entry


def is_shown(path: str) -> bool:
    """Whether a file may be an image or a table."""
    return is_image(path) or path.lower().endswith(_TABLES) or bool(_ARTIFACT.search(path))


def is_image(path: str) -> bool:
    return path.lower().endswith(IMAGES) and not _SMALLER.search(path)


def images_among(entries: Iterable[Entry], captions: Mapping[str, str]) -> tuple[list[Shown], int]:
    """The images, whose points are `Placed`, and how many are left out because they are too large. Those that a logger names
    come first, in the order of their `captions` by path, then series, then single files, whose step is UNKNOWN."""
    images = [entry for entry in entries if is_image(entry.path)]
    small = [entry for entry in images if entry.size <= MAX_RECORD]
    lines: dict[tuple[int, str, str, int], list[Placed]] = defaultdict(list)
    of_step = Counter[tuple[str, str, int]]()
    place = {path: n for n, path in enumerate(captions)}
    for rank, folder, tag, step, entry in sorted(
        _named(small), key=lambda each: place.get(each.entry.path, len(place))
    ):
        which = of_step[folder, tag, step] if rank == LOGGED else 0
        of_step[folder, tag, step] += 1
        if which < MAX_OUTPUTS:
            image = Image(step, _time(entry), 0, entry.size, 0, 0, 0, 0, captions.get(entry.path, ""))
            lines[rank, folder, tag, which].append(Placed(entry.path, image))
    several = {key[:3] for key in lines if key[3]}
    found = []
    for (rank, folder, tag, which), placed in sorted(lines.items())[:MAX_TAGS]:
        few = Few[Placed]()
        for each in sorted(placed, key=lambda one: (one.step, one.wall_time)):
            few.add(each)
        found.append(Shown(tag, folder, tuple(few.all), which + 1 if (rank, folder, tag) in several else 0))
    return found, len(images) - len(small)


def tables_among(entries: Iterable[Entry], logged: Collection[str]) -> list[Shown]:
    """The tables, those with steps first, whose points are `TableFile`. `logged`: what MLflow's client logged as tables, as
    RUN/PATH."""
    found: dict[tuple[str, str], list[TableFile]] = defaultdict(list)
    for entry in entries:
        path, artifact = PurePosixPath(entry.path), _ARTIFACT.search(entry.path)
        folder, tag, step = "" if path.parent.name == "" else str(path.parent), path.name, UNKNOWN
        if logger := _WANDB.match(entry.path):
            folder, tag, step = logger["folder"].rstrip("/"), logger["tag"], int(logger["step"])
        elif artifact and artifact["logged"] not in logged:
            continue
        if entry.path.lower().endswith(_TABLES) or artifact:
            found[folder, tag[:MAX_TAG]].append(TableFile(entry.path, step, _time(entry)))
    lines = [
        Shown(tag, folder, tuple(sorted(each, key=lambda one: (one.step, one.wall_time))))
        for (folder, tag), each in sorted(found.items())
    ]
    return sorted(lines, key=lambda line: line.points[0].step == UNKNOWN)


def _named(entries: Iterable[Entry]) -> Iterator[_Named]:
    own = []
    for entry in sorted(entries, key=lambda each: each.path):
        if logger := _WANDB.match(entry.path) or _MLFLOW.match(entry.path):
            tag = re.sub("[~#]", "/", logger["tag"]) if logger.re is _MLFLOW else logger["tag"]
            yield _Named(LOGGED, logger["folder"].rstrip("/"), tag[:MAX_TAG], int(logger["step"]), entry)
            continue
        path = PurePosixPath(entry.path)
        folder, number = "" if path.parent.name == "" else str(path.parent), _NUMBER.search(path.stem)
        before, after = (path.stem[: number.start()], path.stem[number.end() :]) if number else (path.stem, "")
        own.append((entry, number, (folder, before, after)))
    count = Counter(around for _, number, around in own if number)
    for entry, number, (folder, before, after) in own:
        name = PurePosixPath(entry.path).name
        if number and count[folder, before, after] > 1:
            tag = before.rstrip("_-. =") + after or PurePosixPath(folder).name or "images"
            yield _Named(SERIES, folder, tag[:MAX_TAG], int(number[0]), entry)
        else:
            yield _Named(SINGLE, folder, name[:MAX_TAG], UNKNOWN, entry)


def _time(entry: Entry) -> float:
    at = entry.since or entry.modified
    return at.timestamp() if at else 0.0
