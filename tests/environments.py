"""Virtual environments for programs that `.venv` has no room for: other versions, or packages that slow others down. Each is
installed once, into the cache outside the tree, by uv: pip takes five times as much processor time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.kube.binary import cache


def installed(name: str, requirements: Path, newer: str = "") -> Path:
    """The environment with these requirements, made now if need be; two processes that want it at the same time make it once.
    `newer`: a package that works with this Python although its metadata wants a newer one, which uv never overlooks."""
    key = hashlib.sha256(requirements.read_bytes() + f"{newer} {sys.version}".encode()).hexdigest()[:16]
    folder = cache(name) / key
    with (cache(name) / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            python = folder / "bin" / "python"
            uv("venv", "--clear", f"--python={sys.executable}", str(folder))
            uv("pip", "install", "--system-certs", f"--python={python}", f"--requirements={requirements}")
            if newer:
                install = ["install", "--quiet", "--no-input", "--no-deps", "--ignore-requires-python", newer]
                _run([sys.executable, "-m", "pip", "--disable-pip-version-check", f"--python={python}", *install])
            (folder / "complete").touch()
    return folder


def uv(*arguments: str) -> None:
    """With the package index that pip is configured with, as in the Makefile."""
    asked = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "get", "global.index-url"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    index = told or os.environ.get("PIP_INDEX_URL", "")
    _run(
        [str(Path(sys.executable).with_name("uv")), "--quiet", *arguments], {"UV_DEFAULT_INDEX": index} if index else {}
    )


def _run(argv: list[str], more: dict[str, str] | None = None) -> None:
    subprocess.run(argv, env={**os.environ, **(more or {})}, check=True)
