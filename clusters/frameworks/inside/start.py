"""Run as `python -I -c` before a task's command (starting.py): makes an empty layer over the image, in which `pip install` works.

    LAYER   the folder of the layer; deleted with the task

It must be fast, because hardly any task installs anything.
"""

import os
import sys

from clusters.frameworks.inside.layer import make_layer, packages_of, show, write_program

# Folders of system programs, which do not need installed packages.
_SYSTEM = {"/bin", "/sbin", "/usr/bin", "/usr/sbin"}
_LARGEST = 4096


def main(layer: str) -> None:
    make_layer(layer, system=True)
    programs(layer)
    # Virtual environments made with --system-site-packages see the user's packages: link the layer and the image's packages
    # there.
    own = packages_of(os.path.join(os.path.expanduser("~"), ".local"))
    os.makedirs(own, exist_ok=True)
    show([packages_of(layer), *(each for each in sys.path if each.endswith("-packages"))], own)


def programs(layer: str) -> None:
    """Copies the image's Python programs (torchrun, jupyter) into the layer, where they see installed packages."""
    python = os.path.realpath(sys.executable)
    for folder in os.environ.get("PATH", "").split(":"):
        if folder in _SYSTEM or not os.path.isdir(folder):
            continue
        with os.scandir(folder) as entries:
            for entry in entries:
                path = os.path.join(layer, "bin", entry.name)
                if (
                    entry.is_file(follow_symlinks=False)
                    and entry.stat().st_size <= _LARGEST
                    and not os.path.exists(path)
                ):
                    with open(entry.path, "rb") as file:
                        first, rest = file.readline(), file.read()
                    name = first[2:].strip().decode(errors="replace")
                    if first.startswith(b"#!/") and os.path.realpath(name) == python:
                        text = rest.decode(errors="replace")
                        write_program(path, f"#!{layer}/bin/python\n{text}")


if __name__ == "__main__":
    main(sys.argv[1])
