"""Makes a saved environment, run as `python -c` in an image: a layer with the packages of a lock, by uv, from wheels alone.

Nothing of a package is run: wheels are unpacked, sources are refused. Files are linked to uv's cache, which lies on the same
file system and in the same mount, or copied where a script of the appcode may write into them afterwards.
"""

import compileall
import os
import shutil
import subprocess
import sys

from clusters.frameworks.layer import make_layer, packages_of


def install(path: str, lock: str, cache: str, link: str) -> None:
    """Installs the requirements of the file `lock` into a new layer at `path`."""
    uv = shutil.which("uv") or "/elearn/uv"
    if not os.path.exists(uv):
        sys.exit("There is no uv in this image, and without it nothing is installed.")
    make_layer(path)
    argv = [uv, "pip", "sync", "--require-hashes", "--only-binary", ":all:", "--link-mode", link]
    argv += ["--allow-empty-requirements", "--no-config", "--no-progress", "--cache-dir", cache]
    code = subprocess.call([*argv, "--python", os.path.join(path, "bin", "python"), lock])
    if code == 0:
        # By the image's own Python: that of the layer runs what a package put into a .pth. Some carry files that do not compile.
        compileall.compile_dir(packages_of(path), quiet=2, workers=2)
    sys.exit(code)


if __name__ == "__main__":
    install(*sys.argv[1:])
