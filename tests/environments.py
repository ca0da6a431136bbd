"""Virtual environments for programs that `.venv` has no room for: other versions, or packages that slow others down. Each is
installed once, into the cache outside the tree."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

from tests.kube.binary import cache


def installed(name: str, requirements: Path, *options: str) -> Path:
    """The environment with these requirements, made now if need be; two processes that want it at the same time make it once."""
    key = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache(name) / key
    with (cache(name) / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "install"]
            subprocess.run([*pip, *options, "-r", requirements], check=True)
            (folder / "complete").touch()
    return folder
