"""Previews: every kind of file gives one, and none is larger than a page can hold."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datastores.files import previews
from datastores.files.previews import Cell, preview
from datastores.tfrecord import Example, masked_crc32c

ENDINGS = st.sampled_from(["txt", "csv", "TSV", "ipynb", "json", "tfrecord", "png", "mp3", "bin", "table.json", ""])


@given(ENDINGS, st.binary(max_size=2000), st.booleans())
def test_any_bytes_are_some_preview(ending: str, data: bytes, whole: bool) -> None:
    shown = preview(f"x.{ending}", data, len(data) + (0 if whole else 1))
    assert (
        len([part for part in (shown.text, shown.rows, shown.cells, shown.picture, shown.sound, shown.why) if part])
        <= 1
    )
    assert shown.rows is None or len(shown.rows) <= previews.ROWS + 1


def test_a_table_is_told_by_its_own_delimiter_and_cut_at_a_whole_line() -> None:
    shown = preview("a.csv", b'name;"a;b"\nx;1\ny;2', 100)
    assert (shown.rows, shown.more) == ((("name", "a;b"), ("x", "1")), True)
    assert preview("a.tsv", b"a,b\t1\n", 6).rows == (("a,b", "1"),)


def test_a_table_of_wandb_or_mlflow_is_one() -> None:
    told = (
        b'{"columns": ["n", "text", "score"], "data": [[1, "a<b", 0.3333333333], [2, null, NaN], '
        b'[3, "\\ud800", {"_type": "image"}]]}'
    )
    rows = ("n", "text", "score"), ("1", "a<b", "0.333333"), ("2", "", ""), ("3", "?", '{"_type": "image"}')
    for name in ("preds_0_54d5.table.json", "wrong.json"):
        assert preview(name, told, len(told)).rows == rows
        assert preview(name, told, len(told) + 1).rows == ()
    long = json.dumps({"columns": ["n"], "data": [[n] for n in range(previews.ROWS + 1)]}).encode()
    shown = preview("x.table.json", long, len(long))
    assert (len(shown.rows), shown.more) == (previews.ROWS + 1, True)


@pytest.mark.parametrize(
    "data",
    [b"{}", b'{"columns":7,"data":[]}', b'{"columns":["a"],"data":7}', b'{"columns":["a"],"data":[7]}', b"[" * 999],
)
def test_what_only_looks_like_a_table_is_text(data: bytes) -> None:
    assert preview("x.table.json", data, len(data)).text == data.decode()[: previews.LINE]


def test_a_notebook_shows_what_was_run_and_what_came_of_it() -> None:
    code = {
        "cell_type": "code",
        "execution_count": 3,
        "source": ["1\n", "+1"],
        "outputs": [
            {"output_type": "stream", "text": ["a\n", "b"]},
            {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}},
            {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["\x1b[31m…"]},
        ],
    }
    data = json.dumps({"cells": [{"cell_type": "markdown", "source": "# T"}, code]}).encode()
    assert preview("n.ipynb", data, len(data)).cells == (
        Cell("markdown", "", "# T", ()),
        Cell("code", "3", "1\n+1", ("a\nb", "[image/png] <Figure>", "ValueError: no")),
    )


@pytest.mark.parametrize("data", [b"[]", b"{}", b'{"cells": 7}', b'{"cells": [7]}', b"[" * 100_000, b"\xff"])
def test_what_only_looks_like_a_notebook_is_none(data: bytes) -> None:
    assert "is none" in preview("n.ipynb", data, len(data)).why


def record(**features: Any) -> bytes:
    """Returns an Example as TensorFlow's TFRecordWriter stores it."""
    example = Example()
    for name, (kind, values) in features.items():
        getattr(example.features.feature[name], f"{kind}_list").value.extend(values)
    message: bytes = example.SerializeToString()
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_crc32c(length)) + message + struct.pack("<I", masked_crc32c(message))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
def test_records_show_the_features_of_their_examples(pack: Any) -> None:
    one = record(label=("int64", [7]), image=("bytes", [b"\xff\xd8"]), name=("bytes", [b"seven"]))
    data = pack(one + record(weights=("float", [0.5] * 12)))
    assert preview("digits.tfrecord-00001-of-00002", data, len(data)).rows == (
        ("Record", "Feature", "Kind", "Values"),
        ("1", "image", "bytes", "2 bytes"),
        ("", "label", "int64", "7"),
        ("", "name", "bytes", "seven"),
        ("2", "weights", "float", "0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, … (12 in all)"),
    )
    assert preview("x.tfrecord", data[:-3], len(data)).more


def test_what_unpacks_to_more_than_a_page_is_not_unpacked_whole() -> None:
    data = gzip.compress(record(zeros=("bytes", [bytes(2 * previews.RECORDS_BYTES)])))
    assert "too large" in preview("x.tfrecord", data, len(data)).why


def test_a_picture_is_no_address_of_the_portal() -> None:
    assert preview("a.svg", b"<svg/>", 6).picture == "data:image/svg+xml;base64,PHN2Zy8+"
    assert preview("a.png", b"x", 2).why == "It is too large to be shown."


def test_halves_of_characters_reach_no_page() -> None:
    output = r'{"ename": "\ud800", "traceback": []}, {"data": {"image/\ud800": 1, "text/plain": "\ud800"}}'
    said = '{"cells": [{"cell_type": "code", "source": "\\ud800", "outputs": [' + output + "]}]}"
    [cell] = preview("x.ipynb", said.encode(), len(said)).cells
    assert (cell.source, *cell.outputs) == ("?", "?: ", "[image/?] ?")


def test_notebooks_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 25 times its size in memory, and a user can request as many at once as there are threads."""
    held = []
    monkeypatch.setattr(previews, "json", SimpleNamespace(loads=lambda data: held.append(previews.ONE.locked()) or {}))
    assert preview("x.ipynb", b"{}", 2).why
    assert (held, previews.ONE.locked()) == ([True], False)
