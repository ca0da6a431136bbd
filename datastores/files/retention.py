"""Rules of a datastore: what may be removed automatically, and what is held back. Pure.

A rule finds candidates among a folder's files by names and times alone, and by what runs report of their outputs; files
that anything else uses are held back. So a preview and the rule itself make the same decision.

Checkpoints are files whose names differ in one number: TensorFlow's (`ckpt-12.index` with its `.data-…`), Keras's
(`…-05.keras`, `epoch05-0.32.weights.h5`), and `.pt`, `.pth`, `.ckpt`, `.h5`, `.hdf5` with a word for what is counted
(`epoch`, `step`, `iter`, `ckpt`, `checkpoint`), because shards of a data set would otherwise look the same. The last
checkpoints are those with the highest numbers and those written last: a restarted training counts from 1 again, and
copied files have the time of the copy.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from datastores.drivers.base import Entry
from datastores.specs import relative_path
from portal.manifests import Strict, field_error

Kind = Literal["failed-runs", "checkpoints", "files"]
KINDS: dict[Kind, str] = {
    "failed-runs": "Outputs of failed runs",
    "checkpoints": "All but the last checkpoints",
    "files": "Old files",
}
_COUNTED = r"(?:epoch|step|iter|ckpt|checkpoint)"
_NUMBER = r"(?P<number>\d{1,18})"
# What may follow the number: a metric (-0.32, -val_loss=0.5), or the step after an epoch.
_MORE = r"(?:[-_.](?:step=?\d+|[a-z_=]*\d+\.\d+))*"
# Excludes the end of another number, as in model-0.95.keras.
_BEGINS = r"(?<!\d\.)"
_TENSORFLOW = re.compile(
    rf"(?P<series>(?:.*[-_.=])?){_BEGINS}{_NUMBER}(?P<kind>(?:\.ckpt)?)\.(?:index|meta|data-\d{{5}}-of-(?P<parts>\d{{5}}))"
)
_OTHERS = (
    re.compile(
        rf"(?P<series>.*?(?:[-_.=]|{_COUNTED})){_BEGINS}{_NUMBER}{_MORE}(?P<kind>\.keras|\.weights\.h5)", re.IGNORECASE
    ),
    re.compile(
        rf"(?P<series>.*?{_COUNTED}[-_.=]?){_BEGINS}{_NUMBER}{_MORE}(?P<kind>\.(?:h5|hdf5|ckpt|pth?))", re.IGNORECASE
    ),
)
# Longer names are not matched, because the patterns would take too long.
MOST_LETTERS = 255
_NEVER = dt.datetime.max.replace(tzinfo=dt.UTC)


class RuleSpec(Strict):
    """A rule of a `kind` for everything below the folder `path`: removes after `days`, or keeps the last `keep`."""

    kind: Kind = Field(
        description="Outputs of runs that failed (failed-runs), of each series of checkpoints all but the last (checkpoints), "
        "or everything that nobody has written for a while (files)."
    )
    path: Annotated[str, StringConstraints(max_length=500), AfterValidator(relative_path)] = Field(
        default="", description="The folder; all of the datastore when absent."
    )
    days: int | None = Field(
        default=None, ge=1, le=3650, description="Since the run failed, or the file was written. Not of checkpoints."
    )
    keep: int | None = Field(default=None, ge=1, le=1000, description="Of checkpoints: how many of a series stay.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        wanted, other = ("keep", "days") if self.kind == "checkpoints" else ("days", "keep")
        if getattr(self, wanted) is None:
            what = "how many of a series stay" if wanted == "keep" else "after how many days"
            raise field_error(f"Say {what}.", wanted)
        if getattr(self, other) is not None:
            raise field_error("This kind of rule has none.", other)
        return self

    @property
    def words(self) -> str:
        """For people: "Keep the last 3 checkpoints in train"."""
        where = f" in {self.path}" if self.path else ""
        days = f"{self.days} day{'s'[: self.days != 1]}"
        if self.kind == "checkpoints":
            last = f"{self.keep} checkpoints" if self.keep != 1 else "checkpoint"
            return f"Keep the last {last}{where}"
        if self.kind == "failed-runs":
            return f"Outputs of failed runs{where} go after {days}"
        return f"Files{where} go after {days}"


@dataclass(frozen=True)
class Output:
    """A folder that a run wrote to, or was to write to. `failed_at` is set if the run failed and all of it has ended."""

    folder: str
    run: str
    failed_at: dt.datetime | None


@dataclass(frozen=True)
class Held:
    """A file or folder ("": all) in which nothing may be removed; `why` is shown to people: "run show1/3 reads it"."""

    folder: str
    why: str


@dataclass(frozen=True)
class Item:
    """A file with its `etag`, or a folder with its contents; `why` names the run that failed."""

    path: str
    is_folder: bool
    files: int
    size: int
    why: str = ""
    etag: str = ""


@dataclass(frozen=True)
class Kept:
    """The total of candidates held back for one reason."""

    why: str
    files: int
    size: int


@dataclass(frozen=True)
class Decision:
    """Ordered by path."""

    going: tuple[Item, ...]
    kept: tuple[Kept, ...] = ()

    @property
    def files(self) -> int:
        return sum(item.files for item in self.going)

    @property
    def size(self) -> int:
        return sum(item.size for item in self.going)


@dataclass
class _Checkpoint:
    number: int
    parts: int = 0
    shards: int = 0
    has_index: bool = False
    modified: dt.datetime = field(default_factory=lambda: dt.datetime.min.replace(tzinfo=dt.UTC))
    entries: list[Entry] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return self.has_index and 0 < self.shards == self.parts

    @property
    def written(self) -> tuple[dt.datetime, int]:
        return self.modified, self.number


def candidates(spec: RuleSpec, files: Iterable[Entry], outputs: Iterable[Output], now: dt.datetime) -> list[Item]:
    """The candidates among `files`, which are all files below the rule's folder. `outputs` are those of all runs that
    ever wrote to the datastore; only failed runs' outputs are candidates."""
    if spec.kind == "checkpoints":
        return _checkpoints(files, spec.keep or 1)
    before = now - dt.timedelta(days=spec.days or 1)
    if spec.kind == "failed-runs":
        return _failed(spec.path, files, outputs, before)
    return [_item(entry) for entry in files if _written(entry) < before]


def decide(found: Iterable[Item], held: Sequence[Held]) -> Decision:
    """Removes from `found` what is held: items inside held folders, and folders that contain something held."""
    whys = {each.folder: each.why for each in reversed(held)}
    above = {folder: each.why for each in reversed(held) for folder in _up(each.folder)}
    going, kept = [], dict[str, tuple[int, int]]()
    for item in sorted(found, key=lambda each: each.path):
        why = next((whys[folder] for folder in _up(item.path) if folder in whys), "")
        if not why and item.is_folder:
            why = above.get(item.path, "")
        if not why:
            going.append(item)
            continue
        files, size = kept.get(why, (0, 0))
        kept[why] = files + item.files, size + item.size
    return Decision(tuple(going), tuple(Kept(why, *amount) for why, amount in kept.items()))


def seen_from(top: str, other: str, held: Held) -> Held | None:
    """A hold of a datastore at `other`, translated for a datastore at `top`; None if they do not overlap."""
    folder = f"{other}/{held.folder}" if held.folder else other
    if f"{top}/".startswith(f"{folder}/"):
        return Held("", held.why)
    return Held(folder[len(top) + 1 :], held.why) if folder.startswith(f"{top}/") else None


def _failed(top: str, files: Iterable[Entry], outputs: Iterable[Output], before: dt.datetime) -> list[Item]:
    """Output folders whose runs all failed before `before` and in which nothing was written since. If several runs
    wrote to one folder or below it, all of them must have failed."""
    failed, others = dict[str, str](), set[str]()
    for output in outputs:
        if output.failed_at and output.failed_at < before:
            failed[output.folder] = output.run
        else:
            others.update(_up(output.folder))
    inside = f"{top}/" if top else ""
    names = {folder for folder in failed if folder and folder not in others and f"{folder}/".startswith(inside)}
    amounts, touched = defaultdict[str, list[int]](lambda: [0, 0]), set[str]()
    for entry in files:
        folder = next((each for each in _up(entry.path.rpartition("/")[0]) if each in names), "")
        if not folder:
            continue
        amounts[folder][0] += 1
        amounts[folder][1] += entry.size
        if _written(entry) >= before:
            touched.add(folder)
    return [
        Item(folder, True, count, size, f"run {failed[folder]} failed")
        for folder, (count, size) in amounts.items()
        if folder not in touched
    ]


def _checkpoints(files: Iterable[Entry], keep: int) -> list[Item]:
    series = defaultdict[tuple[str, str, str], dict[int, _Checkpoint]](dict)
    for entry in files:
        if not (read := _read(entry.name)):
            continue
        number, name, kind, parts = read
        found = series[entry.path.rpartition("/")[0], name, kind]
        one = found.setdefault(number, _Checkpoint(number))
        one.entries.append(entry)
        one.modified = max(one.modified, entry.modified or _NEVER)
        one.has_index |= parts is None or entry.name.endswith(".index")
        if parts is None:
            one.parts = one.shards = 1
        elif parts:
            one.parts, one.shards = parts, one.shards + 1
    return [_item(entry) for found in series.values() for one in _old(found.values(), keep) for entry in one.entries]


def _old(found: Iterable[_Checkpoint], keep: int) -> Iterator[_Checkpoint]:
    """Checkpoints before the last `keep` complete ones, by number and by time. Incomplete ones do not count towards
    `keep`, but are removed in turn."""
    found = list(found)
    whole = [one for one in found if one.is_whole]
    if len(whole) <= keep:
        return
    number = sorted((one.number for one in whole), reverse=True)[keep - 1]
    written = sorted((one.written for one in whole), reverse=True)[keep - 1]
    yield from (one for one in found if one.number < number and one.written < written)


def _read(name: str) -> tuple[int, str, str, int | None] | None:
    """Parses a checkpoint's file name: (number, series, kind, parts), with the number of data parts: 0 for a file
    without data, None for a single-file checkpoint."""
    if len(name) > MOST_LETTERS:
        return None
    if match := _TENSORFLOW.fullmatch(name):
        return int(match["number"]), match["series"], f"{match['kind']} of TensorFlow", int(match["parts"] or 0)
    for pattern in _OTHERS:
        if match := pattern.fullmatch(name):
            return int(match["number"]), match["series"], match["kind"].lower(), None
    return None


def _item(entry: Entry) -> Item:
    return Item(entry.path, False, 1, entry.size, etag=entry.etag)


def _written(entry: Entry) -> dt.datetime:
    """The later of both times: unpacked files have old modification times, but were not here then."""
    return max(entry.modified or _NEVER, entry.since or entry.modified or _NEVER)


def _up(path: str) -> Iterator[str]:
    """All folders above a path, from the top (""), and the path itself."""
    yield ""
    end = path.find("/")
    while end > 0:
        yield path[:end]
        end = path.find("/", end + 1)
    if path:
        yield path
