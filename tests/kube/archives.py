"""OCI image archives for a test node, made from a few files: the node cannot pull images, and these need no builder.

The archives are stored in the test plane's cache and named by a hash of their content.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from portal.up.services import ServiceError
from tests.kube.binary import cache, pause_binary

PAUSE = "docker.io/gpu-cloud/pause:1"
BUSYBOX = "docker.io/gpu-cloud/busybox:1"
EXECUTABLE = 0o755

Files = Mapping[str, bytes | str]  # path → content, or (str) the target of a symbolic link


def pause() -> Path:
    """Returns the image of every pod's sandbox: tests/plane/pause."""
    return write(PAUSE, {"pause": pause_binary().read_bytes()}, ["/pause"])


def busybox() -> Path:
    """An image with a shell, some 200 small programs, and what the portal starts tasks with: bash and coreutils' `timeout`."""
    program = _program("busybox")
    if _libraries(program):
        raise ServiceError("This busybox is not static; install one that is with: apt-get install busybox-static")
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    files: dict[str, bytes | str] = {f"bin/{name}": "busybox" for name in applets}
    files["bin/busybox"] = program.read_bytes()
    for program in (_program("timeout"), _program("bash")):
        files[f"bin/{program.name}"] = program.read_bytes()
        files |= {str(path).lstrip("/"): path.read_bytes() for path in _libraries(program)}
    files["etc/passwd"] = b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n"
    files["etc/group"] = b"root:x:0:\nuser:x:1000:\n"
    return write(BUSYBOX, files, ["/bin/sh"])


def write(name: str, files: Files, command: Sequence[str]) -> Path:
    """Returns the archive of an image with this full name; creates it if it is missing."""
    layer = _tar({"tmp/": b"", **files})
    digest = _digest(layer)
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [digest]},
        }
    )
    kind = "application/vnd.oci.image"
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _descriptor(f"{kind}.config.v1+json", config),
            "layers": [_descriptor(f"{kind}.layer.v1.tar", layer)],
        }
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    index = {
        "schemaVersion": 2,
        "manifests": [{**_descriptor(f"{kind}.manifest.v1+json", manifest), "annotations": names}],
    }
    blobs = {f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}": blob for blob in (layer, config, manifest)}
    archive = _tar({"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index), **blobs})
    path = cache("archives") / f"{hashlib.sha256(archive).hexdigest()[:16]}.tar"
    if not path.exists():
        # Two nodes that start concurrently may write the same archive.
        partly = path.with_suffix(f".{os.getpid()}")
        partly.write_bytes(archive)
        partly.replace(path)
    return path


def _program(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise ServiceError(f"The program {name} is missing; see tests/kube/node.py for what a node needs.")
    return Path(found)


def _libraries(program: Path) -> list[Path]:
    """Returns the libraries and the loader of a dynamic program, under the paths at which it looks for them."""
    told = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    return [Path(word) for word in told.split() if word.startswith("/")]


def _tar(files: Files) -> bytes:
    """Returns a reproducible tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path.rstrip("/"))
            entry.mode = EXECUTABLE
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                tar.addfile(entry)
            elif path.endswith("/"):
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
                tar.addfile(entry)
            else:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _descriptor(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
