"""Counts a model's inputs and outputs in bins of its training data. Part of serve.py."""

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clusters.frameworks.inside.serve_tensors import TYPES, Array, Arrays, Model, Wrong, line_of

# The training data or a sample of it: {"inputs": {name: rows}, "outputs": {name: rows}}. `trainingSample` in model-version.json
# beside it may name another file.
TRAINING, SAID = "training-sample.json", "model-version.json"
MOST_TRAINING_BYTES, MOST_TRAINING_ROWS, MOST_SAID_BYTES = 16 * 2**20, 10_000, 256 * 1024
# Only the first columns of wider tensors and this many rows per second are counted.
MOST_TENSORS, MOST_COLUMNS, MOST_ROWS_A_SECOND = 16, 64, 1_000
BINS, LARGEST = 10, 1e300


class Bins:
    """The bins of one tensor, per column: edges that divide the sample into ten equal parts, fewer if values repeat, and the
    counts in each. A value belongs to the first bin whose edge is not below it, or to the last bin."""

    def __init__(self, rows: Array) -> None:
        self.edges = [_edges(column[~np.isnan(column)]) for column in rows.T]
        self.width = 1 + max(len(edges) for edges in self.edges)
        # One array for all columns: missing edges are infinite.
        self.padded = np.full((len(self.edges), self.width - 1), np.inf)
        for row, edges in zip(self.padded, self.edges, strict=True):
            row[: len(edges)] = edges
        self.expected, self.seen = self._counted(rows), np.zeros((len(self.edges), self.width), np.int64)

    def count(self, rows: Array) -> None:
        self.seen += self._counted(rows)

    def _counted(self, rows: Array) -> Array:
        found = (rows[:, :, np.newaxis] > self.padded).sum(axis=2) + self.width * np.arange(len(self.edges))
        # NaN belongs to no bin.
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
    """Returns edges that are values of the sample. If the lowest value is an edge, smaller values get their own bin."""
    if not values.size:
        return np.zeros(1)
    edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS, method="inverted_cdf"))
    lowest = values.min()
    return np.concatenate([[np.nextafter(lowest, -np.inf)], edges]) if edges[0] == lowest else edges


class Drift:
    """Counts of inputs and outputs since `since`, in the bins of a sample. Counts only grow. `rows` counts all rows, `seen` a
    part of them. Thread-safe."""

    def __init__(self, bins: Mapping[tuple[str, str], Bins], why: str = "", most: int = MOST_ROWS_A_SECOND) -> None:
        self.bins, self.why, self.most = bins, why, most
        self.rows, self.since = 0, time.time()
        self._second, self._left, self._lock = 0, most, threading.Lock()

    def count(self, asked: Arrays, answered: Arrays) -> None:
        """Counts one request. Never raises: ignores tensors that differ from the sample."""
        rows = max((_rows(value) for value in asked.values()), default=0)
        with self._lock:
            self.rows += rows
            if not self.bins or not rows:
                return
            if self._second != (now := int(time.monotonic())):
                self._second, self._left = now, self.most
            if not self._left:
                return
            # With more rows than the budget allows, takes evenly spaced ones.
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
    """Returns every `step`th row as numbers, or None if the columns differ from the sample's or are not numeric."""
    if value.dtype.kind not in "biuf" or not value.size:
        return None
    flat = value.reshape(_rows(value), -1)[::step]
    if flat.shape[1] != columns and not (flat.shape[1] > columns == MOST_COLUMNS):
        return None
    return flat[:, :columns].astype(np.float64)


def drift_of(path: Path, model: Model) -> Drift:
    """Returns the counters for the sample beside the model. With no sample or an invalid one the model is served all the same,
    and the reason is printed and reported."""
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
            # Requests come in the tensor's type: round the sample likewise, so that 0.1 is the same number in both.
            values = np.asarray(rows, np.float64)
            if types.get(name, "").startswith("float"):
                values = values.astype(types[name]).astype(np.float64)
            values = values.reshape(len(rows), -1)[:, :MOST_COLUMNS]
            if not values.size or (np.abs(values) > LARGEST).any():
                raise Wrong(f"{kind}s.{name}: its rows have no columns, or numbers beyond all measure.")
            yield (kind, name), Bins(values)
