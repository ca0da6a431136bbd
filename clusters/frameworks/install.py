"""Makes an environment, run as `python -c` in an image: a layer with the packages of a lock, by uv, from wheels alone.

Nothing of a package is run: wheels are unpacked, sources are refused. What the lock has behind a line `# plugins` goes into a
layer of its own, PATH/plugins, which only the image's own program sees. Files are linked to uv's cache, which lies on the same
file system and in the same mount, or copied where a script of the appcode may write into them afterwards.

What begins with a line `# requirements` is no lock: the image's pip finds the versions, as it would in a command. Packages that
the image has stay where they satisfy what is required, also those that no index has (torch==2.4.0+cpu), for which uv has no eye.

With SCRIPT, also empty, it is one of several that may be about to make the same: the first one does, with what the script does
afterwards, and the others find it. What says that it is whole is written last, so a half-made one is thrown away and made anew.
"""

import bz2
import compileall
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile

from clusters.frameworks.layer import make_layer, packages_of

# How long packages and the script may take.
SECONDS, SCRIPT_SECONDS = 1200, 300
PLUGINS = "# plugins\n"
REQUIREMENTS = "# requirements\n"
# pip says the address of a file three times, and of what an index passes on it is longer than what people are shown.
ADDRESS = re.compile(r"https?://(?:[^\s/]*/)*([^\s/#)]+)/?(?:#\S*)?")


def install(path: str, lock: str, cache: str, link: str) -> int:
    """Installs the requirements of the file `lock` into new layers at `path` and below it. The exit code of uv."""
    with open(lock) as file:
        own, _, plugins = file.read().partition(PLUGINS)
    code = layer(path, own, cache, link)
    return layer(os.path.join(path, "plugins"), plugins, cache, link) if code == 0 and plugins else code


def layer(path: str, requirements: str, cache: str, link: str) -> int:
    """Installs `requirements` into a new layer. The exit code of what installs them."""
    make_layer(path)
    python = os.path.join(path, "bin", "python")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        if requirements.startswith(REQUIREMENTS):
            argv = [python, "-m", "pip", "install", "--quiet", "--no-input", "--no-cache-dir", "--progress-bar", "off"]
            argv += ["--disable-pip-version-check", "--no-warn-script-location", "-r", file.name]
        else:
            argv = [_uv(), "pip", "sync", "--require-hashes", "--only-binary", ":all:", "--link-mode", link]
            argv += ["--allow-empty-requirements", "--no-config", "--no-progress", "--cache-dir", cache]
            argv += ["--python", python, file.name]
        code = limited(argv, "Installing packages", SECONDS, brief=True)
    if code == 0:
        # By the image's own Python: that of the layer runs what a package put into a .pth. Some carry files that do not compile.
        compileall.compile_dir(packages_of(path), quiet=2, workers=2)
    return code


def _uv() -> str:
    uv = shutil.which("uv") or "/elearn/uv"
    if not os.path.exists(uv):
        sys.exit("There is no uv in this image, and without it nothing is installed.")
    return uv


def once(path: str, packed: str, cache: str, link: str, script: str) -> int:
    """The same from a lock that bz2 has packed, unless it is there; then the script, and the cache is not kept."""
    whole = f"{path}.whole"
    with open(f"{path}.lock", "w") as turn, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if os.path.exists(whole):
            return 0
        for left in filter(os.path.exists, (path, cache)):
            shutil.rmtree(left)
        lock = os.path.join(folder, "lock.txt")
        with bz2.open(packed) as text, open(lock, "wb") as file:
            shutil.copyfileobj(text, file)
        code = install(path, lock, cache, link)
        # Nothing of it is needed any more, and a script shall not write into files that are there twice.
        shutil.rmtree(cache, ignore_errors=True)
        if code == 0 and script:
            code = limited(["bash", "-euo", "pipefail", "-c", script], "The script", SCRIPT_SECONDS, path)
        if code == 0:
            open(whole, "w").close()
        return code


def limited(argv: "list[str]", what: str, seconds: float, path: str = "", *, brief: bool = False) -> int:
    """Its exit code; what people read of it when it fails is said last. `brief` takes what it says of errors at its end, and of
    each address in that the last name alone."""
    programs = os.path.join(path, "bin")
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "VIRTUAL_ENV": path, "PORTAL_ENVIRONMENT": path} if path else {}
    try:
        said = subprocess.PIPE if brief else None
        done = subprocess.run(argv, env={**os.environ, **own}, timeout=seconds, stderr=said, check=False)
    except subprocess.TimeoutExpired:
        print(f"{what} took longer than {seconds} s.", file=sys.stderr)
        return 124
    if done.stderr:
        sys.stderr.write(ADDRESS.sub(r"\1", done.stderr.decode(errors="replace")))
    if done.returncode and path:
        print(f"{what} ended with exit code {done.returncode}.", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit((once if len(sys.argv) == 6 else install)(*sys.argv[1:]))
