"""Previews of files from their first bytes: text, table, notebook, records, picture, sound. Pure.

Files may contain anything, and none has a URL at which a browser could take it for a page of the portal. The result is
text for templates to escape, or a picture or sound as a `data:` URL: <img> and <audio> run nothing of it, and opened on
its own it has no origin.
"""

from __future__ import annotations

import csv
import io
import json
import threading
import zlib
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from datastores.tfrecord import Example, split_records

# Bytes read: the beginning of text and records, the whole file for the others.
TEXT_BYTES, RECORDS_BYTES, NOTEBOOK_BYTES, MEDIA_BYTES = 64 * 1024, 2**20, 4 * 2**20, 4 * 2**20
LINES, LINE, ROWS, COLUMNS, CELL = 500, 2000, 500, 50, 200
CELLS, OUTPUTS, OUTPUT = 200, 20, 5000
TEXT = {
    "txt", "log", "md", "rst", "json", "jsonl", "ndjson", "yaml", "yml", "toml", "ini", "cfg", "conf", "py", "sh", "r", "sql",
    "xml", "html", "js", "css", "pbtxt", "prototxt", "c", "h", "cpp", "java", "go", "rs", "dockerfile", "env", "lock",
}  # fmt: skip
# One notebook at a time per process: 4 MiB of nothing but brackets take a hundred MiB while parsed.
ONE = threading.Lock()
PICTURES = {
    "png": "png", "jpg": "jpeg", "jpeg": "jpeg", "gif": "gif", "webp": "webp", "avif": "avif", "bmp": "bmp", "svg": "svg+xml",
}  # fmt: skip
SOUNDS = {"wav": "wav", "mp3": "mpeg", "ogg": "ogg", "oga": "ogg", "opus": "ogg", "flac": "flac", "m4a": "mp4"}
PARQUET = {"parquet", "pq"}
RECORDS = {"tfrecord", "tfrecords"}
# Limits per record: values of a feature, and features.
VALUES, FEATURES = 10, 50
TABLES = {"csv": ",;\t|", "tsv": "\t"}
# Tables of W&B. Those of MLflow have the same form, and no name of their own.
FRAME, FRAME_STARTS = ".table.json", '{"columns":'


@dataclass(frozen=True)
class Cell:
    """A notebook cell. `kind` is code, markdown or raw; `number` is its execution count, "" if it has not run."""

    kind: str
    number: str
    source: str
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Preview:
    """`is_parquet` (the browser reads it); or one of `text`, `rows` (the first is the header), `cells`, `picture` and
    `sound` (`data:` URLs); or `why` there is no preview. `more`: the file goes on."""

    text: str = ""
    rows: tuple[tuple[str, ...], ...] = ()
    cells: tuple[Cell, ...] = ()
    picture: str = ""
    sound: str = ""
    is_parquet: bool = False
    more: bool = False
    why: str = ""


def kind_of(name: str) -> str:
    """notebook, frame, table, text, records, picture, sound, parquet, or "" without a preview."""
    name = name.lower()
    ending = name.rpartition(".")[2]
    if name.endswith(FRAME):
        return "frame"
    if ending == "ipynb":
        return "notebook"
    if ending in PARQUET:
        return "parquet"
    # Shards of a data set have names like digits.tfrecord-00003-of-00010.
    if RECORDS & set(name.replace("-", ".").split(".")[1:]):
        return "records"
    for kind, endings in (("table", TABLES), ("text", TEXT), ("picture", PICTURES), ("sound", SOUNDS)):
        if ending in endings:
            return kind
    return ""


def wanted(name: str) -> int:
    """The number of bytes that `preview` needs of a file with this name, 0 for none."""
    sizes = {
        "notebook": NOTEBOOK_BYTES,
        "frame": NOTEBOOK_BYTES,
        "records": RECORDS_BYTES,
        "picture": MEDIA_BYTES,
        "sound": MEDIA_BYTES,
        "parquet": 0,
        "": 0,
    }
    return sizes.get(kind_of(name), TEXT_BYTES)


def preview(name: str, data: bytes, size: int) -> Preview:
    """`data` are the first `wanted` bytes of a file of `size` bytes."""
    kind, more = kind_of(name), len(data) < size
    if kind == "parquet":
        return Preview(is_parquet=True)
    if not kind:
        return Preview(why="There is no preview for files of this kind.")
    if kind in ("picture", "sound"):
        return Preview(why="It is too large to be shown.") if more else _media(name, kind, data)
    if kind == "records":
        return _records(data, more)
    if b"\0" in data:
        return Preview(why="It is called like a text and is none.")
    if kind in ("notebook", "frame") and more:
        return Preview(why="It is too large to be shown.")
    if kind == "notebook":
        return _notebook(data)
    # The data may end within a character or a line.
    text = data.decode("utf-8", errors="replace")
    if more:
        text = text.rpartition("\n")[0] or text
    if kind == "table":
        return _table(text, TABLES[name.lower().rpartition(".")[2]], more)
    if not more and text[:40].replace(" ", "").startswith(FRAME_STARTS) and (found := _frame(text)):
        return found
    lines = text.splitlines()
    return Preview(text="\n".join(line[:LINE] for line in lines[:LINES]), more=more or len(lines) > LINES)


def _table(text: str, delimiters: str, more: bool) -> Preview:
    first = text.partition("\n")[0]
    delimiter = max(delimiters, key=first.count)
    rows: list[tuple[str, ...]] = []
    try:
        for row in csv.reader(io.StringIO(text), delimiter=delimiter):
            if len(rows) > ROWS:
                return Preview(rows=tuple(rows), more=True)
            if row:
                rows.append(tuple(cell[:CELL] for cell in row[:COLUMNS]))
    except csv.Error:
        return Preview(text=text[:TEXT_BYTES], more=True)
    return Preview(rows=tuple(rows), more=more) if rows else Preview(why="There is nothing in it.")


def _frame(text: str) -> Preview | None:
    """A table as `{"columns": [names], "data": [rows]}`; None if it is something else."""
    try:
        with ONE:
            told = json.loads(text)
            names, data = told["columns"][:COLUMNS], told["data"]
            rows = tuple(tuple(_said(cell) for cell in row[:COLUMNS]) for row in data[:ROWS])
            more = len(data) > ROWS
            del told, data
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return Preview(rows=(tuple(map(_said, names)), *rows), more=more)


def _said(cell: Any) -> str:
    if cell is None or cell != cell:  # NaN, which stands for no value.
        return ""
    text = cell if isinstance(cell, str) else f"{cell:.6g}" if isinstance(cell, float) else json.dumps(cell)
    return _text(text)[:CELL]


def _media(name: str, kind: str, data: bytes) -> Preview:
    ending, bytes_ = name.lower().rpartition(".")[2], b64encode(data).decode()
    if kind == "picture":
        return Preview(picture=f"data:image/{PICTURES[ending]};base64,{bytes_}")
    return Preview(sound=f"data:audio/{SOUNDS[ending]};base64,{bytes_}")


def _records(data: bytes, more: bool) -> Preview:
    """One row per feature of the first examples. Of a compressed file only the beginning is decompressed."""
    records, used, damaged = split_records(data, RECORDS_BYTES)
    if damaged and not records:
        try:
            unpacking = zlib.decompressobj(wbits=47)  # GZIP or ZLIB
            data = unpacking.decompress(data, RECORDS_BYTES)
        except zlib.error:
            data = b""
        more = more or not unpacking.eof
        records, used, damaged = split_records(data, RECORDS_BYTES)
        if damaged or not data:
            return Preview(why="It is called like a file of records and is none.")
    if not records:
        return Preview(why="Its first record is too large to be shown." if data else "There is nothing in it.")
    rows: list[tuple[str, ...]] = [("Record", "Feature", "Kind", "Values")]
    for number, record in enumerate(records, 1):
        shown = _example(str(number), record)
        if len(rows) + len(shown) > ROWS + 1:
            return Preview(rows=tuple(rows + shown)[: ROWS + 1], more=True)
        rows += shown
    return Preview(rows=tuple(rows), more=more or used < len(data))


def _example(number: str, record: bytes) -> list[tuple[str, ...]]:
    try:
        features = Example.FromString(record).features.feature
    except DecodeError:
        features = {}
    if not features:
        return [(number, "", "", f"{len(record):,} bytes, no tf.train.Example")]
    rows: list[tuple[str, ...]] = []
    for name in sorted(features)[:FEATURES]:
        kind = features[name].WhichOneof("kind") or ""
        values = getattr(features[name], kind).value if kind else ()
        shown = ", ".join(_value(value) for value in values[:VALUES])
        rest = f", … ({len(values):,} in all)" if len(values) > VALUES else ""
        rows.append((number, name[:CELL], kind.removesuffix("_list"), f"{shown[:CELL]}{rest}"))
        number = ""
    return rows


def _value(value: bytes | float | int) -> str:
    if not isinstance(value, bytes):
        return f"{value:g}" if isinstance(value, float) else str(value)
    text = value[:CELL].decode(errors="replace")
    return text if text.isprintable() and "\ufffd" not in text else f"{len(value):,} bytes"


def _notebook(data: bytes) -> Preview:
    try:
        with ONE:
            cells = json.loads(data)["cells"]
            shown, more = tuple(_cell(cell) for cell in cells[:CELLS]), len(cells) > CELLS
            del cells
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Preview(why="It is called like a notebook and is none.")
    return Preview(cells=shown, more=more)


def _cell(cell: dict[str, Any]) -> Cell:
    count = cell.get("execution_count")
    outputs = (_output(output) for output in list(cell.get("outputs", ()))[:20])
    return Cell(
        str(cell["cell_type"]),
        str(count) if isinstance(count, int) else "",
        _text(cell["source"]),
        tuple(filter(None, outputs)),
    )


def _output(output: dict[str, Any]) -> str:
    """The plain text of an output; a picture is only named."""
    if "traceback" in output:
        return _text(f"{output.get('ename', '')}: {output.get('evalue', '')}")
    kinds = output.get("data", {})
    picture = next((kind for kind in kinds if kind.startswith("image/")), "")
    said = _text(output.get("text", "")) or _text(kinds.get("text/plain", ""))
    return _text(f"[{picture}] {said}") if picture else said


def _text(value: Any) -> str:
    """Joins a list of lines. JSON may contain half surrogate pairs, which no page can send."""
    text = ("".join(map(str, value)) if isinstance(value, list) else str(value))[:OUTPUT]
    return text.encode(errors="replace").decode()
