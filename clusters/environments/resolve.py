"""Requirements → a lock over what an image has, by uv from the package index, once when an administrator saves them.

The image's packages are constraints: none is replaced, and requirements that need another version are rejected with uv's message.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated

from django.conf import settings
from pydantic import Field, StringConstraints

from clusters.catalog.locks import NAME, VERSION, pins, written
from clusters.catalog.package_index import compiled, reason
from portal.errors import Conflict, Invalid
from portal.manifests import Strict

# uv's name for the oldest Linux that images may have.
PLATFORMS = {f"Linux-{machine}": f"{machine}-manylinux_2_28" for machine in ("x86_64", "aarch64")}


class Installed(Strict):
    """What an image has: its Python (3.11.7), its platform (Linux-x86_64), and versions by package."""

    python: Annotated[str, StringConstraints(pattern=r"^3\.[0-9]+\.[0-9]+[0-9a-z.+]*$", max_length=20)]
    platform: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$", max_length=40)]
    packages: dict[
        Annotated[str, StringConstraints(pattern=rf"^{NAME}$", max_length=200)],
        Annotated[str, StringConstraints(pattern=rf"^{VERSION}$", max_length=100)],
    ] = Field(max_length=5000)


def installed_in(environment: str) -> Installed | None:
    """What a virtual environment on this machine has; None if it does not exist. Only reads files."""
    folder = Path(environment)
    try:
        facts = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", (folder / "pyvenv.cfg").read_text(), re.MULTILINE))
    except OSError:
        return None
    python = ".".join((facts.get("version") or facts.get("version_info") or "").split(".")[:3])
    packages = [str(each) for each in folder.glob(f"lib/python{'.'.join(python.split('.')[:2])}/site-packages")]
    found: dict[str, str] = {}
    for each in distributions(path=packages):
        found.setdefault(re.sub(r"[-_.]+", "-", str(each.metadata["Name"] or "")).lower(), each.version)
    found.pop("", None)
    system, machine = os.uname().sysname, os.uname().machine
    return Installed(python=python, platform=f"{system}-{machine}", packages=found)


def resolved(requirements: Sequence[str], over: Installed, besides: Mapping[str, str]) -> str:
    """The lock of what `over` lacks for these requirements, using the versions in `besides` where one of those is needed.
    Raises Invalid at the requirements, and Conflict if the index does not answer in time."""
    if settings.PACKAGE_INDEX == "off":
        raise _invalid("This portal has no package index: PORTAL_PACKAGE_INDEX is off.")
    if over.platform not in PLATFORMS:
        raise _invalid(f"The image is for {over.platform}; plugins are for {' and '.join(PLATFORMS)} only.")
    machine = ("--python-version", over.python, "--python-platform", PLATFORMS[over.platform])
    try:
        done = compiled(requirements, "--generate-hashes", *machine, given={**besides, **over.packages})
    except subprocess.TimeoutExpired:
        raise Conflict("The package index did not answer in time; try again.") from None
    if done.returncode:
        raise _invalid(f"They cannot be had over this image: {reason(done.stderr)}")
    try:
        pinned = pins(done.stdout)
    except ValueError as error:
        raise _invalid(str(error)) from None
    lacking = {name: line for name, line in pinned.items() if name not in over.packages}
    if not lacking:
        raise _invalid("The image has all of this already.")
    return written(lacking)


def _invalid(sentence: str) -> Invalid:
    return Invalid.at("spec", "requirements", message=sentence)
