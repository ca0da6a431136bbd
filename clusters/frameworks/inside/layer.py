"""A layer of Python packages over an image: a virtual environment that sees the packages below it and is invisible to them.

The image's own Python may itself be a virtual environment, and `--system-site-packages` would skip it. So a layer names what it
lies on in a .pth file: its own packages come first on sys.path, then those of the layers below.

It is not made by `venv`, which takes half a second for parts that no layer needs, and whose module Debian omits.

This text runs inside tasks, where images have none of our modules: `programs.text` puts it in front of other programs.
"""

import os
import site
import sys
from collections.abc import Sequence

_PIP = """#!/bin/sh
exec "${0%/*}/python" -m pip "$@"
"""


def packages_of(layer: str) -> str:
    return os.path.join(layer, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")


def make_layer(path: str, below: "Sequence[str]" = (), system: bool = False) -> None:
    """Makes an empty layer at `path` over this Python and the layers `below`, the nearest first. An existing layer keeps its
    packages and is rebased. With `system`, `pip install --user` works, which pip otherwise refuses."""
    # An image's Python that is not a virtual environment is visible without a .pth.
    plain = sys.prefix == sys.base_prefix
    base = getattr(sys, "_base_executable", "") or sys.executable
    for folder in (packages_of(path), os.path.join(path, "bin")):
        os.makedirs(folder, exist_ok=True)
    _link("lib", os.path.join(path, "lib64"))
    for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
        _link(base, os.path.join(path, "bin", name))
    said = {
        "home": os.path.dirname(base),
        "include-system-site-packages": "true" if plain or system else "false",
        "version": ".".join(map(str, sys.version_info[:3])),
    }
    with open(os.path.join(path, "pyvenv.cfg"), "w") as file:
        file.writelines(f"{name} = {value}\n" for name, value in said.items())
    lay_on(path, below)
    for name in ("pip", "pip3"):
        write_program(os.path.join(path, "bin", name), _PIP)


def lay_on(path: str, below: "Sequence[str]" = ()) -> None:
    """Sets the layers below a layer."""
    plain = sys.prefix == sys.base_prefix
    folders = [packages_of(layer) for layer in below] + ([] if plain else site.getsitepackages())
    show(folders, packages_of(path))


def show(folders: "Sequence[str]", where: str) -> None:
    """Makes every Python that reads `where` see `folders`, too."""
    with open(os.path.join(where, "_below.pth"), "w") as file:
        file.writelines(f"import site, sys; {each!r} in sys.path or site.addsitedir({each!r})\n" for each in folders)


def write_program(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)  # noqa: S103  a program


def _link(target: str, path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(target, path)
