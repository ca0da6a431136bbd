"""Makes an environment, run as `python -c` in an image: a layer with the packages of a lock, installed by uv from wheels only.

No package code runs: wheels are unpacked, source distributions refused. Packages after a line `# plugins` in the lock go into a
separate layer, PATH/plugins, which only the image's own program sees. Files are hard links into uv's cache, which is on the same
file system and mount, or copies if a script of the appcode may write into them later.

A file that begins with the line `# requirements` is not a lock: the image's pip resolves the versions, as on a command line.
Packages of the image stay if they satisfy the requirements, even those that no index has (torch==2.4.0+cpu), which uv would not
consider.

With a SCRIPT argument, even an empty one, several tasks may try to make the same environment: the first makes it and runs the
script, the others reuse it. A marker is written last, so an incomplete environment is deleted and made again.
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

from clusters.frameworks.inside.layer import make_layer, packages_of

# Time limits for installing packages and for the script.
SECONDS, SCRIPT_SECONDS = 1200, 300
PLUGINS = "# plugins\n"
REQUIREMENTS = "# requirements\n"
# pip prints a file's address three times, and parameters added by an index exceed what people are shown.
ADDRESS = re.compile(r"https?://(?:[^\s/]*/)*([^\s/#)]+)/?(?:#\S*)?")


def install(path: str, lock: str, cache: str, link: str) -> int:
    """Installs the requirements in the file `lock` into new layers at `path` and below it. Returns the installer's exit code."""
    with open(lock) as file:
        own, _, plugins = file.read().partition(PLUGINS)
    code = layer(path, own, cache, link)
    return layer(os.path.join(path, "plugins"), plugins, cache, link) if code == 0 and plugins else code


def layer(path: str, requirements: str, cache: str, link: str) -> int:
    """Installs `requirements` into a new layer. Returns the installer's exit code."""
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
        # Compiled by the image's own Python, because the layer's Python runs the code in a package's .pth. Ignores files that
        # fail.
        compileall.compile_dir(packages_of(path), quiet=2, workers=2)
    return code


def _uv() -> str:
    uv = shutil.which("uv") or "/elearn/uv"
    if not os.path.exists(uv):
        sys.exit("There is no uv in this image, and without it nothing is installed.")
    return uv


def once(path: str, packed: str, cache: str, link: str, script: str) -> int:
    """Installs a bz2-compressed lock unless another task has, then runs the script. Deletes the cache."""
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
        # The cache is no longer needed. Without it the files have one link each, so the script cannot write into shared ones.
        shutil.rmtree(cache, ignore_errors=True)
        if code == 0 and script:
            code = limited(["bash", "-euo", "pipefail", "-c", script], "The script", SCRIPT_SECONDS, path)
        if code == 0:
            open(whole, "w").close()
        return code


def limited(argv: "list[str]", what: str, seconds: float, path: str = "", *, brief: bool = False) -> int:
    """Runs a program with a time limit and returns its exit code. The reason for a failure comes last on stderr. `brief`: stderr
    is printed at the end, with addresses cut to their last component."""
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
