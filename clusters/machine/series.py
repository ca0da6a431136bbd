"""Samples as bytes, thinned with age, and as lines of a chart. Pure.

A block is a sequence of records of equal size, in any order. Of a task's 10 s a record has one value for each of
QUANTITIES; all others have the mean with the seconds that it covers, the smallest and the largest value: of thinned samples over
time, and of a whole run over its tasks. Thinning keeps sums (mean × seconds) and extremes, and invents nothing: time without
samples has no records.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from clusters.machine.rates import QUANTITIES, Step

if TYPE_CHECKING:
    import numpy as np

    Rows = np.ndarray[Any, np.dtype[np.void]]

# Seconds between samples; and those that records of old blocks stand for.
STEP, STEPS = 10, (10, 60, 600)
# Seconds of one block, by the seconds of its records. Each is a multiple of the one before.
SPANS = {10: 600, 60: 6 * 3600, 600: 10 * 86_400}
_COUNT = len(QUANTITIES)
_FINE = struct.Struct(f"<If{_COUNT}f")
_WIDE = struct.Struct(f"<I{4 * _COUNT}f")
_FINE_TYPE = [("at", "<u4"), ("seconds", "<f4"), ("mean", "<f4", _COUNT)]
_PARTS = ("seconds", "mean", "low", "high")
_WIDE_TYPE = [("at", "<u4"), *((name, "<f4", _COUNT) for name in _PARTS)]
_ROW_TYPE = [("at", "<f8"), *((name, "<f8", _COUNT) for name in _PARTS)]


def fine(offset: float, step: Step) -> bytes:
    """Returns the record of one task; `offset`: seconds from the beginning of its block to the sample."""
    return _FINE.pack(int(offset), step.seconds, *step.values)


def whole(offset: float, steps: Sequence[Step]) -> bytes:
    """Returns the record of a run whose tasks did `steps` at the same time."""
    seconds, means, lows, highs = [], [], [], []
    for n in range(_COUNT):
        known = [(each.values[n], each.seconds) for each in steps if not math.isnan(each.values[n])]
        values = [value for value, _ in known] or [math.nan]
        seconds.append(sum(length for _, length in known) / len(known) if known else 0.0)
        means.append(sum(values) / len(values))
        lows.append(min(values))
        highs.append(max(values))
    return _WIDE.pack(int(offset), *seconds, *means, *lows, *highs)


def rows_of(blocks: Sequence[tuple[float, bytes]], *, is_wide: bool) -> Rows:
    """Returns the records of blocks with absolute times. A block is when it begins (seconds since 1970), and its data. All
    together, because a day of a task has 144 blocks."""
    # 30 MB of modules that only a process needs in which somebody looks at charts.
    import numpy as np

    dtype = np.dtype(_WIDE_TYPE if is_wide else _FINE_TYPE)
    blocks = sorted(blocks, key=lambda block: block[0])
    read = np.frombuffer(b"".join(data for _, data in blocks), dtype=dtype)
    rows = np.zeros(len(read), dtype=np.dtype(_ROW_TYPE))
    sizes = [len(data) // dtype.itemsize for _, data in blocks]
    rows["at"] = read["at"] + np.repeat([begin for begin, _ in blocks], sizes)
    rows["mean"] = read["mean"]
    if is_wide:
        for name in ("seconds", "low", "high"):
            rows[name] = read[name]
    else:
        rows["low"] = rows["high"] = rows["mean"]
        rows["seconds"] = np.where(np.isnan(rows["mean"]), 0.0, read["seconds"][:, None])
    return rows


def joined(parts: Iterable[Rows]) -> Rows:
    """Returns the records of several parts in the order of time."""
    import numpy as np

    rows = np.concatenate([np.zeros(0, dtype=np.dtype(_ROW_TYPE)), *parts])
    # Mostly they are in order, and moving them takes longer than all the rest.
    return rows if (np.diff(rows["at"]) >= 0).all() else rows[np.argsort(rows["at"], kind="stable")]


def bucketed(rows: Rows, width: int) -> Rows:
    """Returns one record for each `width` seconds that have any, at their end; `rows` are in the order of time."""
    import numpy as np

    if not len(rows):
        return rows
    ends = np.ceil(rows["at"] / width) * width
    first = np.flatnonzero(np.concatenate([[True], ends[1:] != ends[:-1]]))
    found = np.zeros(len(first), dtype=rows.dtype)
    found["at"] = ends[first]
    found["seconds"] = np.add.reduceat(rows["seconds"], first)
    sums = np.add.reduceat(rows["seconds"] * np.nan_to_num(rows["mean"]), first)
    with np.errstate(divide="ignore", invalid="ignore"):
        found["mean"] = np.where(found["seconds"] > 0, sums / found["seconds"], np.nan)
    found["low"] = np.fmin.reduceat(rows["low"], first)
    found["high"] = np.fmax.reduceat(rows["high"], first)
    return found


def broken(rows: Rows, width: int, gap: float) -> Rows:
    """Returns records of `width` seconds with one that knows nothing in each gap, where a line breaks; `rows` are in the order of
    time."""
    import numpy as np

    before = np.flatnonzero(np.diff(rows["at"]) > width + gap)
    nothing = np.full(len(before), math.nan, dtype=rows.dtype)
    nothing["at"] = rows["at"][before] + width
    return np.insert(rows, before + 1, nothing)


def packed(rows: Rows, begin: float) -> bytes:
    """Returns records as the data of a block that begins at `begin`."""
    import numpy as np

    made = np.zeros(len(rows), dtype=np.dtype(_WIDE_TYPE))
    made["at"] = np.round(rows["at"] - begin)
    for name in _PARTS:
        made[name] = rows[name]
    return made.tobytes()


def width_for(since: float, until: float, most: int, finest: int = STEP) -> int:
    """Returns the seconds of one point, so that at most `most` points cover the time: a round number."""
    needed = max((until - since) / max(most, 1), finest)
    round_ones = (10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200)
    return next((each for each in round_ones if each >= needed), 86_400 * math.ceil(needed / 86_400))
