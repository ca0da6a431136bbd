"""What a model is asked and answers, counted in bins of what it was trained with. Part of serve.py."""

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clusters.frameworks.serve_tensors import TYPES, Array, Arrays, Model, Wrong, line_of

# What it was trained with, or a part of that: {"inputs": {name: rows}, "outputs": {name: rows}}. A file model-version.json beside
# it may say as `trainingSample` that it has another name.
TRAINING, SAID = "training-sample.json", "model-version.json"
MOST_TRAINING_BYTES, MOST_TRAINING_ROWS, MOST_SAID_BYTES = 16 * 2**20, 10_000, 256 * 1024
# Of a tensor with more columns the first are counted; of all that is asked in a second so many rows.
MOST_TENSORS, MOST_COLUMNS, MOST_ROWS_A_SECOND = 16, 64, 1_000
BINS, LARGEST = 10, 1e300


class Bins:
    """Of one tensor, column by column: edges by which its sample falls into ten parts of one size, fewer where values repeat, and
    how much was seen in each. A value lies in the first bin whose edge is not below it, in the last one beyond all edges."""

    def __init__(self, rows: Array) -> None:
        self.edges = [_edges(column[~np.isnan(column)]) for column in rows.T]
        self.width = 1 + max(len(edges) for edges in self.edges)
        # All columns at once: what a column lacks of edges is beyond everything.
        self.padded = np.full((len(self.edges), self.width - 1), np.inf)
        for row, edges in zip(self.padded, self.edges, strict=True):
            row[: len(edges)] = edges
        self.expected, self.seen = self._counted(rows), np.zeros((len(self.edges), self.width), np.int64)

    def count(self, rows: Array) -> None:
        self.seen += self._counted(rows)

    def _counted(self, rows: Array) -> Array:
        found = (rows[:, :, np.newaxis] > self.padded).sum(axis=2) + self.width * np.arange(len(self.edges))
        # What is no number lies in no bin.
        counts = np.bincount(found[~np.isnan(rows)], minlength=self.width * len(self.edges))
        return counts.reshape(len(self.edges), self.width)

    def documents(self, kind: str, tensor: str) -> Iterator[dict[str, Any]]:
        for column, edges in enumerate(self.edges):
            expected = self.expected[column][: len(edges) + 1]
            yield {
                "tensor": tensor, "column": column, "kind": kind, "edges": edges.tolist(),
                "expected": (expected / max(expected.sum(), 1)).tolist(), "seen": self.seen[column][: len(edges) + 1].tolist(),
            }  # fmt: skip


def _edges(values: Array) -> Array:
    """Values of the sample themselves; where many are the smallest, what is below that has a bin of its own."""
    if not values.size:
        return np.zeros(1)
    edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS, method="inverted_cdf"))
    lowest = values.min()
    return np.concatenate([[np.nextafter(lowest, -np.inf)], edges]) if edges[0] == lowest else edges


class Drift:
    """What was asked and answered since `since`, by the bins of a sample: counts that only grow. `rows` counts what `seen` has
    only a part of. Several threads count at once."""

    def __init__(self, bins: Mapping[tuple[str, str], Bins], why: str = "", most: int = MOST_ROWS_A_SECOND) -> None:
        self.bins, self.why, self.most = bins, why, most
        self.rows, self.since = 0, time.time()
        self._second, self._left, self._lock = 0, most, threading.Lock()

    def count(self, asked: Arrays, answered: Arrays) -> None:
        """Never raises: whatever else comes than the sample has is left out."""
        rows = max((_rows(value) for value in asked.values()), default=0)
        with self._lock:
            self.rows += rows
            if not self.bins or not rows:
                return
            if self._second != (now := int(time.monotonic())):
                self._second, self._left = now, self.most
            if not self._left:
                return
            # Of more rows than there is room for, some from everywhere.
            step = -(-rows // self._left)
            self._left -= -(-rows // step)
        found = []
        for kind, arrays in (("input", asked), ("output", answered)):
            for name, value in arrays.items():
                bins = self.bins.get((kind, name))
                if (
                    bins
                    and (table := _table(value, max(step, -(-_rows(value) // self.most)), len(bins.edges))) is not None
                ):
                    found.append((bins, table))
        with self._lock:
            for bins, table in found:
                bins.count(table)

    @property
    def document(self) -> dict[str, Any]:
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.since)) + f".{int(self.since % 1 * 1e6):06d}Z"
        with self._lock:
            columns = [each for (kind, name), bins in self.bins.items() for each in bins.documents(kind, name)]
            said = {"since": since, "rows": self.rows, "columns": columns}
        return said | ({"message": self.why} if self.why else {})


def _rows(value: Array) -> int:
    return int(value.shape[0]) if value.ndim else 1


def _table(value: Array, step: int, columns: int) -> Array | None:
    """Every `step`th row, as numbers; None of what has other columns than the sample, or no numbers."""
    if value.dtype.kind not in "biuf" or not value.size:
        return None
    flat = value.reshape(_rows(value), -1)[::step]
    if flat.shape[1] != columns and not (flat.shape[1] > columns == MOST_COLUMNS):
        return None
    return flat[:, :columns].astype(np.float64)


def drift_of(path: Path, model: Model) -> Drift:
    """By the sample beside the model. A model is served without one, and with one that is wrong, which is said."""
    try:
        return Drift(dict(_bins(_training(path), model)))
    except (Wrong, OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        print(f"Drift is not counted: {line_of(error)}", file=sys.stderr, flush=True)
        return Drift({}, line_of(error))


def _training(path: Path) -> Any:
    name = TRAINING
    if (said := path / SAID).is_file() and said.stat().st_size <= MOST_SAID_BYTES:
        document = json.loads(said.read_bytes())
        name = document.get("trainingSample", TRAINING) if isinstance(document, dict) else TRAINING
    file = path / str(name)
    if not file.resolve().is_relative_to(path.resolve()):
        raise Wrong(f"{SAID}: trainingSample is not among the files of this version.")
    if not file.is_file():
        if name != TRAINING:
            raise Wrong(f"{SAID}: there is no {name} among the files of this version.")
        return {}
    if file.stat().st_size > MOST_TRAINING_BYTES:
        raise Wrong(f"{name} has more than {MOST_TRAINING_BYTES >> 20} MiB.")
    return json.loads(file.read_bytes())


def _bins(said: Any, model: Model) -> Iterator[tuple[tuple[str, str], Bins]]:
    for kind, known in (("input", model.inputs), ("output", model.outputs)):
        tensors = said.get(f"{kind}s", {}) if isinstance(said, dict) else None
        if not isinstance(tensors, dict) or len(tensors) > MOST_TENSORS:
            raise Wrong(f"{kind}s: a sample has the rows of at most {MOST_TENSORS} tensors, by their names.")
        types = {tensor.name: TYPES[tensor.datatype] for tensor in known}
        for name, rows in tensors.items():
            if kind == "input" and types and name not in types:
                raise Wrong(f"inputs: there is no input {name!r}; this model has {', '.join(types)}.")
            if not isinstance(rows, list) or not 0 < len(rows) <= MOST_TRAINING_ROWS:
                raise Wrong(f"{kind}s.{name}: send a list of at most {MOST_TRAINING_ROWS:,} rows.")
            if types.get(name) == "object":
                continue
            # What is asked comes in the type of the tensor, so 0.1 has to be the same number here.
            values = np.asarray(rows, np.float64)
            if types.get(name, "").startswith("float"):
                values = values.astype(types[name]).astype(np.float64)
            values = values.reshape(len(rows), -1)[:, :MOST_COLUMNS]
            if not values.size or (np.abs(values) > LARGEST).any():
                raise Wrong(f"{kind}s.{name}: its rows have no columns, or numbers beyond all measure.")
            yield (kind, name), Bins(values)
