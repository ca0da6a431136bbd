"""A layer of Python packages over an image: a virtual environment that sees what lies below it, and that nothing below sees.

An image's own Python may be a virtual environment, too, and `--system-site-packages` leads past that to what is below it. So a
layer names what it lies on in a .pth file: its own packages come first on sys.path, then those of the layers below.

This text runs inside tasks, where people's images have nothing of ours: it is put in front of other programs (`with_layers`).
"""

import os
import site
import sys
import venv
from collections.abc import Sequence

_PIP = """#!/bin/sh
exec "${0%/*}/python" -m pip "$@"
"""


def packages_of(layer: str) -> str:
    """Where the packages of a layer lie."""
    return os.path.join(layer, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")


def make_layer(path: str, below: "Sequence[str]" = ()) -> None:
    """Makes an empty one at `path` over this Python and over the layers `below`, the nearest first."""
    # An image whose Python is no virtual environment is seen without a .pth.
    plain = sys.prefix == sys.base_prefix
    venv.EnvBuilder(system_site_packages=plain, symlinks=True).create(path)
    lay_on(path, below)
    for name in ("pip", "pip3"):
        with open(os.path.join(path, "bin", name), "w") as file:
            file.write(_PIP)
        os.chmod(os.path.join(path, "bin", name), 0o755)  # noqa: S103  a program


def lay_on(path: str, below: "Sequence[str]" = ()) -> None:
    """Says what a layer lies on, in the place of what it lay on before."""
    plain = sys.prefix == sys.base_prefix
    folders = [packages_of(layer) for layer in below] + ([] if plain else site.getsitepackages())
    with open(os.path.join(packages_of(path), "_below.pth"), "w") as file:
        file.writelines(f"import site; site.addsitedir({folder!r})\n" for folder in folders)
