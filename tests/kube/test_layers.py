"""Images unpacked once for all nodes: versions of two checkouts side by side, and removal once no node runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube import archives, layers
from tests.kube.binary import cache

pytestmark = [pytest.mark.kube, pytest.mark.node]

NAME = "docker.io/gpu-cloud/tool:1"


def archive(content: bytes) -> Path:
    return archives.write(NAME, {"tool": content}, ["/tool"])


def names(store: Path) -> set[str]:
    with layers._containerd(store) as socket:
        return set(layers.ctr(socket, "images", "ls", "--quiet").split())


def contents(store: Path) -> set[bytes]:
    return {path.read_bytes() for path in (store / layers.SNAPSHOTTER / "snapshots").glob("*/fs/tool")}


def test_versions_stay_until_their_archives_are_gone_and_no_node_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old, new = archive(b"old"), archive(b"new")
    for each in (old, new):
        layers.unpack([each])
    shared = cache("node/layers")
    both = {NAME, layers.second_name(old), layers.second_name(new)}
    assert names(shared) == both
    # A node's store has all of them, and what it removes stays in the shared one.
    node = tmp_path / "store"
    node.mkdir()
    with layers.link(node):
        with layers._containerd(node) as socket:
            label = layers.ctr(socket, "images", "ls", f"name=={NAME}")
            assert layers.label(new) in label
            layers.ctr(socket, "images", "rm", "--sync", *both)
        assert names(node) == set()
        assert names(shared) == both
        assert contents(node) == set()
        assert contents(shared) == {b"old", b"new"}
        old.unlink()
        layers.unpack([archive(b"newer")])
        assert layers.second_name(old) in names(shared)
    layers.unpack([archive(b"newest")])
    found = names(shared)
    assert layers.second_name(old) not in found
    assert {NAME, layers.second_name(new)} < found
