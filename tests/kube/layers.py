"""Unpacked images, shared by all nodes: a containerd store in the cache, in which images are imported once.

A node's own store starts as a copy of this one's records; its blobs and layers are links. That takes less than a second, and
an import 20 s of CPU time per GB, for each node. Layers never change: containers write into directories of their own above
them. `python -m tests.kube.layers` builds and unpacks all images of docker/.

Each image has a second name, that of its archive, so a node finds its own version when two checkouts share the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tenacity import retry, retry_if_exception_message, stop_after_attempt

from portal.up import services
from portal.up.services import Service, ServiceError
from tests.kube import images
from tests.kube.binary import cache

# Label on imported images of containerd: the archive that they came from.
ARCHIVE_LABEL = "gpu-cloud/archive"
RECORDS = "io.containerd.metadata.v1.bolt/meta.db"
BLOBS = "io.containerd.content.v1.content/blobs/sha256"
SNAPSHOTTER = "io.containerd.snapshotter.v1.overlayfs"

CONFIG = """\
version = 2
root = "{store}"
state = "{state}"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp", {without}
]
[grpc]
  address = "{socket}"
"""


def unpack(archives: Sequence[Path]) -> None:
    """Imports the archives that are missing. Raises ServiceError. Start it from a main thread (see services.spawn)."""
    store = cache("node/layers")
    done = _done()
    with _locked("layers.lock", fcntl.LOCK_EX):
        missing = [archive for archive in archives if not (done / archive.stem).exists()]
        if not missing:
            return
        with _containerd(store) as socket:
            _remove_unused(socket, missing[0].parent)
            for archive in missing:
                print(f"Unpacking {archive.name} (once; up to a minute) …", file=sys.stderr, flush=True)
                found = import_archive(socket, archive)
                ctr(socket, "images", "tag", "--force", found[0], second_name(archive))
                (done / archive.stem).write_text("\n".join(found))


def link(store: Path) -> IO[bytes]:
    """Makes a node's store in this folder, which has nothing else. Returns a file: the images stay as long as it is open."""
    shared = cache("node/layers")
    used = (cache("node") / "used.lock").open("wb")
    fcntl.flock(used, fcntl.LOCK_SH)
    with _locked("layers.lock", fcntl.LOCK_SH):
        if not (shared / RECORDS).exists():
            return used
        for record in (RECORDS, f"{SNAPSHOTTER}/metadata.db"):
            (store / record).parent.mkdir(mode=0o700)
            shutil.copyfile(shared / record, store / record)
        (store / BLOBS).mkdir(parents=True)
        for blob in (shared / BLOBS).iterdir():
            (store / BLOBS / blob.name).hardlink_to(blob)
        snapshots = store / SNAPSHOTTER / "snapshots"
        snapshots.mkdir(mode=0o700)
        for each in (shared / SNAPSHOTTER / "snapshots").iterdir():
            (snapshots / each.name).symlink_to(each)
    return used


def import_archive(socket: Path, archive: Path) -> list[str]:
    """Imports an OCI or Docker archive. Returns the full names of its images."""
    names = [line.split()[1] for line in _import(socket, archive).splitlines() if line]
    for name in names:
        ctr(socket, "images", "label", name, label(archive))
    return names


def second_name(archive: Path) -> str:
    """Returns the second name of the image from this archive."""
    return f"localhost/gpu-cloud/{archive.stem}:1"


def names(archive: Path) -> list[str]:
    """Returns the full names of the images of an unpacked archive."""
    return (_done() / archive.stem).read_text().split()


def label(archive: Path) -> str:
    """Returns the label of images from this archive, made of its description of its content by digests."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name in ("index.json", "manifest.json") and (file := tar.extractfile(member)):
                return f"{ARCHIVE_LABEL}={hashlib.sha256(file.read()).hexdigest()[:16]}"
    raise ServiceError(f"{archive} is no archive of images.")


def ctr(socket: Path, *args: str) -> str:
    return output("ctr", "--address", str(socket), "--namespace", "k8s.io", *args)


def output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise ServiceError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@retry(
    retry=retry_if_exception_message(match="(?s).*parent snapshot .* does not exist"),
    stop=stop_after_attempt(3),
    reraise=True,
)
def _import(socket: Path, archive: Path) -> str:
    """When an image takes the name of an older one, containerd deletes layers of the older one, at times also a shared layer
    just before the next is put on it. The import is then repeated, which unpacks that layer again."""
    return ctr(socket, "images", "import", str(archive))


@contextmanager
def _locked(name: str, how: int) -> Iterator[None]:
    with (cache("node") / name).open("wb") as lock:
        fcntl.flock(lock, how)
        yield


@contextmanager
def _containerd(store: Path) -> Iterator[Path]:
    """Runs a containerd that only stores images. Its mounts are its own and end with it."""
    with tempfile.TemporaryDirectory(prefix="layers-") as folder:
        state = Path(folder)
        socket, config = state / "containerd.sock", state / "containerd.toml"
        without = '"io.containerd.grpc.v1.cri"'
        config.write_text(CONFIG.format(store=store, state=state / "state", socket=socket, without=without))
        argv = ("unshare", "--mount", "--", "containerd", "--config", str(config), "--log-level=warn")
        with services.running([Service("containerd", argv, socket.is_socket)], state, os.environ):
            yield socket


def _done() -> Path:
    """Returns a folder with a file for each unpacked archive, which contains the names of its images."""
    return services.private_folder(cache("node/layers") / "archives")


def _remove_unused(socket: Path, archives: Path) -> None:
    """Removes images whose archives were deleted, unless a node runs, which may use them."""
    unused = [each for each in _done().iterdir() if not (archives / f"{each.name}.tar").exists()]
    with (cache("node") / "used.lock").open("wb") as used:
        try:
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        for each in unused:
            each.unlink()
            ctr(socket, "images", "rm", "--sync", second_name(archives / f"{each.name}.tar"))


def main() -> int:
    try:
        unpack([images.image(name) for name in images.TAGS])
    except (images.BuildError, ServiceError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
