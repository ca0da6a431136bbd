"""Which files of an output are stored, which are left out, and where links lead: on real folders, and for any chain of links."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.drivers import outputs

MOUNT = "/elearn/output"


def look(folder: Path, prefix: str = "runs/1") -> outputs.Look:
    return outputs.look(str(folder), mount=MOUNT, prefix=prefix)


def _socket(top: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(top / "s"))


def _deep(top: Path) -> None:
    """A path with more bytes than a key may have."""
    at = top
    for _ in range(5):
        at /= "d" * 250
    at.mkdir(parents=True)
    (at / "x").write_text("1")


def _closed(top: Path) -> None:
    (top / "d").mkdir()
    (top / "d" / "x").write_text("1")
    (top / "d").chmod(0)


def _saved_model(top: Path) -> None:
    for name in ("saved_model.pb", "variables/index", "assets/"):
        path = top / "m" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text("1")


def _wandb(top: Path) -> None:
    """As W&B 0.31 leaves its folder, offline."""
    _files(
        top,
        "wandb/offline-run-1/run-1.wandb",
        "wandb/offline-run-1/logs/debug.log",
        "wandb/offline-run-1/files/config.yaml",
    )
    (top / "wandb/offline-run-1/tmp/code").mkdir(parents=True)
    (top / "wandb/offline-run-1/logs/debug-core.log").symlink_to("/elearn/home/.cache/wandb/logs/core-debug-1.log")
    (top / "wandb/latest-run").symlink_to("offline-run-1")
    (top / "wandb/debug.log").symlink_to("offline-run-1/logs/debug.log")


def _files(top: Path, *names: str) -> None:
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("1")


# What is created, what is stored, and what is left out with a word of the reason.
TABLE: dict[str, tuple[Callable[[Path], object], set[str], dict[str, str]]] = {
    "a line break": (lambda top: _files(top, "a\nb", "c"), {"c"}, {"a\nb": "line break"}),
    "a tab": (lambda top: _files(top, "a\tb"), set(), {"a\tb": "control character"}),
    "no UTF-8": (lambda top: _files(top, os.fsdecode(b"a\xff")), set(), {os.fsdecode(b"a\xff"): "UTF-8"}),
    "a long path": (_deep, set(), {"/".join(["d" * 250] * 5 + ["x"]): "1,263 bytes"}),
    "mode 000": (lambda top: (_files(top, "x"), (top / "x").chmod(0)), set(), {"x": "mode 000"}),
    "a closed folder": (_closed, set(), {"d/": "mode 000"}),
    "a pipe": (lambda top: os.mkfifo(top / "p"), set(), {"p": "no file"}),
    "a socket": (_socket, set(), {"s": "no file"}),
    "an empty folder": (lambda top: (top / "d" / "e").mkdir(parents=True), set(), {"d/e/": "empty"}),
    "a SavedModel": (_saved_model, {"m/saved_model.pb", "m/variables/index"}, {}),
    "a folder of W&B": (
        _wandb, {f"wandb/offline-run-1/{name}" for name in ("run-1.wandb", "logs/debug.log", "files/config.yaml")}, {}
    ),
    "a link": (lambda top: (_files(top, "x"), (top / "l").symlink_to("x")), {"x", "l"}, {}),
    "a link by the task's path": (
        lambda top: (_files(top, "d/x"), (top / "l").symlink_to(f"{MOUNT}/d/x")), {"d/x", "l"}, {}
    ),
    "a link to a folder": (
        lambda top: (_files(top, "d/x", "d/e/y"), (top / "l").symlink_to("d/")), {"d/x", "d/e/y", "l/x", "l/e/y"}, {}
    ),
    "a link to a link": (
        lambda top: (_files(top, "d/x"), (top / "a").symlink_to("d"), (top / "l").symlink_to("a/x")), {"d/x", "a/x", "l"}, {}
    ),
    "a link out": (lambda top: (top / "l").symlink_to("/etc/passwd"), set(), {"l": "leads out"}),
    "a link out by dots": (lambda top: (top / "l").symlink_to("../x"), set(), {"l": "leads out"}),
    "a link to a folder of nearly the name": (
        lambda top: (top / "l").symlink_to(f"{MOUNT}s/x"), set(), {"l": "leads out"}
    ),
    "a link to nothing": (lambda top: (top / "l").symlink_to("x"), set(), {"l": "nothing"}),
    "a link to itself": (lambda top: (top / "l").symlink_to("l"), set(), {"l": "leads out"}),
    "a loop": (
        lambda top: (_files(top, "d/x"), (top / "d" / "l").symlink_to(MOUNT)), {"d/x"}, {"d/l": "that it lies in"}
    ),
    "a link to what cannot be stored": (
        lambda top: (os.mkfifo(top / "p"), (top / "l").symlink_to("p")), set(), {"p": "no file", "l": "nothing"}
    ),
    "names of all kinds": (
        lambda top: _files(top, " a", "a ", "-a", "#a", ";a", "a:b", "a*[?]", "ü/é", "😀"),
        {" a", "a ", "-a", "#a", ";a", "a:b", "a*[?]", "ü/é", "😀"}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", TABLE)
def test_what_can_be_stored_is_and_the_rest_is_named(tmp_path: Path, row: str) -> None:
    make, stored, left = TABLE[row]
    make(tmp_path)
    found = look(tmp_path)
    assert set(found.files) == stored
    assert set(found.left) == set(left)
    for name, word in left.items():
        assert word in found.left[name]


def test_the_mark_of_a_link_changes_with_the_link_and_with_what_it_leads_to(tmp_path: Path) -> None:
    _files(tmp_path, "a", "b")
    (tmp_path / "l").symlink_to("a")
    before = look(tmp_path).files["l"]
    (tmp_path / "a").write_text("12")
    assert look(tmp_path).files["l"] != before
    before = look(tmp_path).files["l"]
    (tmp_path / "l").unlink()
    (tmp_path / "l").symlink_to("b")
    assert look(tmp_path).files["l"] != before


def test_links_to_folders_bring_no_more_files_than_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MOST_BY_LINKS", 5)
    _files(tmp_path, "d/x", "d/y")
    for number in range(4):
        (tmp_path / f"l{number}").symlink_to("d")
    found = look(tmp_path)
    assert len(found.files) == 2 + 4
    assert len(found.left) == 2


PARTS = st.sampled_from(["a", "b", "c", "..", "."])
TEXTS = st.lists(PARTS, min_size=1, max_size=4).map("/".join) | st.sampled_from(["/", MOUNT, f"{MOUNT}/a", "/etc"])
PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(PATHS, TEXTS, min_size=1, max_size=6))
def test_no_row_of_links_leads_outside_or_on_for_ever(texts: dict[str, str]) -> None:
    # A link has nothing below it.
    links = {name: (text, 0) for name, text in texts.items() if not any(name.startswith(f"{each}/") for each in texts)}
    for path in links:
        target = outputs.resolve(path, MOUNT, links)
        if target is not None:
            parts = target.split("/") if target else []
            assert not {"..", ".", ""} & set(parts), "from the top of the folder"
            assert not any("/".join(parts[: count + 1]) in links for count in range(len(parts)))


def test_errors_of_a_name_are_told_from_those_of_the_store() -> None:
    refused = "Failed to copy: operation error S3: PutObject, StatusCode: 403, api error SignatureDoesNotMatch: no"
    own, odd, others = outputs.blame({
        "x": "failed to open source object: open /d/x: permission denied", "y": "lstat /d/y: no such file or directory",
        "b\\c": refused, "plain/n-1.txt": refused,
    })  # fmt: skip
    assert own == {"x": "nobody may read it", "y": ""}
    assert odd == {"b\\c": "the store refuses its name: SignatureDoesNotMatch"}
    assert others == {"plain/n-1.txt": refused}


def test_twenty_are_named_on_one_line_each_and_the_rest_is_counted() -> None:
    assert outputs.sentence({}) == ""
    assert outputs.sentence({"a\nb": "why"}) == "1 thing in the output was not stored: a\\nb (why)."
    said = outputs.sentence({f"{number:03}" + "x" * 300: "why" for number in range(123)})
    assert said.startswith("123 things in the output were not stored: 000x")
    assert said.endswith("; and 103 more.")
    assert said.count("(why)") == 20
    assert len(said) < 4096, "as much as is kept"
