"""Folders too deep for recursion, paths or open descriptors, and changes during the walk."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters.clouds.drivers.local.data.division import scan
from datastores import trees
from datastores.drivers.local import Local

DEEP = 2_500


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A chain of folders called x with one file at its end. Few file descriptors are left for the walk."""
    top = tmp_path / "tree"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("x", dir_fd=here)
        below = os.open("x", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 512), before[1]))
    yield top
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    if top.exists():  # pytest's own removal does not reach that depth
        trees.remove(str(top))


def test_a_tree_of_any_depth_is_walked_and_removed(deep: Path) -> None:
    path = "x/" * DEEP + "end"
    assert list(scan(str(deep))) == [path]
    driver = Local(root=str(deep.parent), path=str(deep.parent))
    assert [entry.path for entry in driver.walk("tree")] == [f"tree/{path}"]
    assert driver.delete_folder("tree") == 1
    assert not deep.exists()


def test_no_link_is_followed_and_a_link_in_place_of_a_folder_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").touch()
    tree = tmp_path / "tree"
    for name in ("a", "b"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").touch()
    (tree / "link").symlink_to(tmp_path / "other")
    handle = os.open(tree, os.O_RDONLY)
    seen = []
    for found in trees.walk(handle):
        seen.append(found.path)
        if found.is_folder and len(seen) == 3:  # one folder is done and the other has been listed
            left = "b" if found.name == "a" else "a"
            os.rename(tree / left, tmp_path / "away")
            (tree / left).symlink_to(tmp_path / "other")
    os.close(handle)
    assert not any("kept" in path for path in seen)
    assert trees.remove(str(tree)) == 3
    assert os.listdir(tmp_path / "other") == ["kept"]


def test_a_folder_that_is_moved_away_while_it_is_walked_leads_nowhere(tmp_path: Path) -> None:
    below = tmp_path / "tree" / "a" / "b"
    below.mkdir(parents=True)
    (below / "file").touch()
    (tmp_path / "kept").touch()
    handle = os.open(tmp_path / "tree", os.O_RDONLY)
    seen = []
    for found in trees.walk(handle):
        seen.append(found.name)
        if found.name == "file":
            os.rename(below, tmp_path / "b")
    os.close(handle)
    assert seen == ["file"]
