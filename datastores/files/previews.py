"""What a file looks like, from its first bytes: text, a table, a notebook. Pure; all that comes out is text for a page to escape.

Nothing that could be more than text is made of a file here (no HTML, no image, no program): people's files may be anything.
"""

from __future__ import annotations

import csv
import io
import json
import threading
from dataclasses import dataclass
from typing import Any

# Bytes that are read: of text the beginning, of a notebook all of it.
TEXT_BYTES, NOTEBOOK_BYTES = 64 * 1024, 4 * 2**20
LINES, LINE, ROWS, COLUMNS, CELL = 500, 2000, 100, 50, 200
CELLS, OUTPUTS, OUTPUT = 200, 20, 5000
TEXT = {
    "txt", "log", "md", "rst", "json", "jsonl", "ndjson", "yaml", "yml", "toml", "ini", "cfg", "conf", "py", "sh", "r", "sql",
    "xml", "html", "js", "css", "pbtxt", "prototxt", "c", "h", "cpp", "java", "go", "rs", "dockerfile", "env", "lock",
}  # fmt: skip
# A notebook at a time in this process: of 4 MiB that are nothing but brackets come a hundred while they are read.
ONE = threading.Lock()
TABLES = {"csv": ",;\t|", "tsv": "\t"}


@dataclass(frozen=True)
class Cell:
    """Of a notebook. `kind` is code, markdown or raw; `number` says when it ran, "" when it did not."""

    kind: str
    number: str
    source: str
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Preview:
    """One of `text`, `rows` (the first one is the header) and `cells`; or `why` there is none. `more`: the file goes on."""

    text: str = ""
    rows: tuple[tuple[str, ...], ...] = ()
    cells: tuple[Cell, ...] = ()
    more: bool = False
    why: str = ""


def kind_of(name: str) -> str:
    """notebook, table, text, or "" where nothing is shown."""
    ending = name.lower().rpartition(".")[2]
    if ending == "ipynb":
        return "notebook"
    return "table" if ending in TABLES else "text" if ending in TEXT else ""


def wanted(name: str) -> int:
    """How many bytes `preview` needs of a file of this name, 0 for none."""
    return {"notebook": NOTEBOOK_BYTES, "": 0}.get(kind_of(name), TEXT_BYTES)


def preview(name: str, data: bytes, size: int) -> Preview:
    """`data` are the first bytes of a file of `size` bytes, as many as `wanted`."""
    kind, more = kind_of(name), len(data) < size
    if not kind:
        return Preview(why="There is no preview for files of this kind.")
    if b"\0" in data:
        return Preview(why="It is called like a text and is none.")
    if kind == "notebook":
        return Preview(why="It is too large to be shown.") if more else _notebook(data)
    # A cut in the middle of a character or a line says nothing.
    text = data.decode("utf-8", errors="replace")
    if more:
        text = text.rpartition("\n")[0] or text
    if kind == "table":
        return _table(text, TABLES[name.lower().rpartition(".")[2]], more)
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
    """The plain text of an output; a picture is named."""
    if "traceback" in output:
        return _text(f"{output.get('ename', '')}: {output.get('evalue', '')}")
    kinds = output.get("data", {})
    picture = next((kind for kind in kinds if kind.startswith("image/")), "")
    said = _text(output.get("text", "")) or _text(kinds.get("text/plain", ""))
    return _text(f"[{picture}] {said}") if picture else said


def _text(value: Any) -> str:
    """A text or its lines. JSON has halves of characters, too, which no page can send."""
    text = ("".join(map(str, value)) if isinstance(value, list) else str(value))[:OUTPUT]
    return text.encode(errors="replace").decode()
