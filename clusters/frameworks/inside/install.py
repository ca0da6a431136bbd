"""Makes an environment, run as `python -c` in an image: a layer with the packages of a lock, installed by uv from wheels only.

No package code runs: wheels are unpacked, source distributions refused. Packages after a line `# plugins` in the lock go into a
separate layer, PATH/plugins, which only the image's own program sees. Files are hard links into uv's cache, which is on the same
file system and mount, or copies if a script of the appcode may write into them later.

A file that begins with the line `# requirements` is not a lock: the image's pip resolves the versions, as on a command line.
Packages of the image stay if they satisfy the requirements, even those that no index has (torch==2.4.0+cpu), which uv would not
consider.

With a SCRIPT argument, even an empty one, several tasks may try to make the same environment: the first makes it and runs the
script, the others reuse it. A marker is written last, so an incomplete environment is deleted and made again. An index that
cannot be reached is tried again for a while.

After a failure the installer's own text is on stderr, and the last line is a sentence for people: which package, and why. The
exit code is SILENT if the index could not be reached, so that another try may succeed.
"""

import base64
import bz2
import compileall
import fcntl
import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable

from clusters.frameworks.inside.layer import make_layer, packages_of

# Time limits for installing packages and for the script.
SECONDS, SCRIPT_SECONDS = 1200, 300
# Exit codes for what other requirements mend, and for what an administrator mends.
WRONG, OTHERS = 1, 2
# Exit code if the index cannot be reached; seconds for which `once` tries such an index, and between two tries.
SILENT, PATIENCE, PAUSE = 75, 600, 20
UNREACHED = "Packages cannot be installed: the package index cannot be reached."
# Seconds for one question to the index.
ASKING = 15
PLUGINS = "# plugins\n"
REQUIREMENTS = "# requirements\n"
# pip prints a file's address three times, and parameters added by an index exceed what people are shown.
ADDRESS = re.compile(r"https?://(?:[^\s/]*/)*([^\s/#)]+)/?(?:#\S*)?")
# What pip and uv say of a package that is not there. pip says the same if the index did not answer.
ABSENT = re.compile(
    r"No matching distribution found for (\S+)|(?:Because )?(\S+) was not found in the package registry"
    r"|there (?:is|are) no versions? of (\S+)"
)
VERSIONS = re.compile(r"\(from versions: (?:.*, )?([^\s,()]+)\)")
REFUSED = re.compile(r"HTTP error (4\d\d) while getting (\S+)(?s:.*?Client Error: (.+?) for url)?")
NETWORK = re.compile(
    r"HTTP error 5\d\d|(?:status|error) \(?5\d\d|[Ee]rror sending request|Connection(?:Error|ResetError)|NewConnectionError"
    r"|Connection (?:refused|aborted|broken|reset)|[Tt]imed out|Temporary failure in name resolution|IncompleteRead"
)
TOGETHER = re.compile(r"Cannot install (.+?) because these package versions have conflicting dependencies")
HASHES = re.compile(r"DO NOT MATCH THE HASHES|[Hh]ash mismatch")
UNBUILT = re.compile(r"╰─> (?!\[)(?!See )([A-Za-z0-9][\w.-]*)\s*$|Failed building wheel for (\S+)", re.MULTILINE)


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
        advice = "Correct the requirements, then deploy again."
        if requirements.startswith(REQUIREMENTS):
            argv = [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-input",
                "--no-cache-dir",
                "--progress-bar",
                "off",
                "--retries",
                "2",
            ]
            argv += ["--disable-pip-version-check", "--no-warn-script-location", "-r", file.name]
        else:
            is_plugin = os.path.basename(path) == "plugins"
            advice = "Deploy again without this plugin." if is_plugin else "Save the environment anew."
            argv = [_uv(), "pip", "sync", "--require-hashes", "--only-binary", ":all:", "--link-mode", link]
            argv += ["--allow-empty-requirements", "--no-config", "--no-progress", "--cache-dir", cache]
            argv += ["--python", python, file.name]
        code = installed(argv, advice)
    if code == 0:
        # Compiled by the image's own Python, because the layer's Python runs the code in a package's .pth. Ignores files that
        # fail.
        compileall.compile_dir(packages_of(path), quiet=2, workers=2)
    return code


def installed(argv: "list[str]", advice: str) -> int:
    """Runs an installer and says why it failed, with `advice` if other packages mend it. Its text has addresses cut to their
    last component. Returns its exit code, that of a shell if it was killed, or SILENT."""
    try:
        done = subprocess.run(argv, timeout=SECONDS, stderr=subprocess.PIPE, check=False)
    except subprocess.TimeoutExpired:
        print(f"Installing packages took longer than {SECONDS} s.", file=sys.stderr)
        return 124
    said = ADDRESS.sub(r"\1", done.stderr.decode(errors="replace"))
    sys.stderr.write(said)
    if done.returncode == 0:
        return 0
    if done.returncode < 0:
        print("Packages were not installed: the installer was ended, most likely for lack of memory.", file=sys.stderr)
        return 128 - done.returncode
    code, why = reason(said, reached)
    if code == WRONG:
        why += f" {advice}"
    print(f"\n{why}", file=sys.stderr)
    return code


def reason(said: str, is_reached: "Callable[[str], bool]") -> "tuple[int, str]":
    """Returns the exit code and a sentence for what pip or uv said. `is_reached`: whether the index answers for a package."""
    # uv wraps its lines.
    said = " ".join(said.split()) if "╰─▶" in said else said
    if found := ABSENT.search(said):
        package = next(filter(None, found.groups())).rstrip(".,")
        if versions := VERSIONS.search(said):
            if versions[1] != "none":
                newest = versions[1]
                return WRONG, f"Package {package} was not found: the newest version in the package index is {newest}."
            if not is_reached(re.split(r"[^\w.-]", package)[0]):
                return SILENT, UNREACHED
        python = ".".join(map(str, sys.version_info[:2]))
        return WRONG, f"Package {package} was not found: the package index has none for Python {python}."
    if found := REFUSED.search(said):
        why = found[3] or f"the package index refuses it ({found[1]}); ask an administrator"
        return OTHERS, f"{found[2]} cannot be fetched: {why}."
    if found := TOGETHER.search(said):
        return WRONG, f"{found[1]} cannot be installed together: each needs other versions."
    if HASHES.search(said):
        return WRONG, "A package cannot be installed: its file in the package index has another hash than was recorded."
    if "No space left on device" in said:
        return OTHERS, "The packages cannot be installed: the disk is full; an administrator makes room."
    if found := UNBUILT.search(said):
        package = found[1] or found[2]
        return WRONG, f"Package {package} cannot be installed: the package index has no wheel of it for this image."
    if NETWORK.search(said):
        return SILENT, UNREACHED
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = next(
        (line for line in reversed(lines) if line.lower().startswith("error")), (lines or ["it said nothing"])[-1]
    )
    return WRONG, f"Packages cannot be installed: {re.sub('(?i)^error: *', '', last)[:300].rstrip('.')}."


def reached(name: str) -> bool:
    """Whether the index answers for the package, be it that it has none."""
    index = urllib.parse.urlsplit(os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple/"))
    # urllib takes name and password for a port, and would say them in its error.
    account, _, host = index.netloc.rpartition("@")
    asked = urllib.request.Request(f"{index.scheme}://{host}{index.path.rstrip('/')}/{name}/")  # noqa: S310  pip's own setting
    if account:
        word = base64.b64encode(urllib.parse.unquote(account).encode()).decode()
        asked.add_header("Authorization", f"Basic {word}")
    try:
        urllib.request.urlopen(asked, timeout=ASKING).close()  # noqa: S310  pip's own setting
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, http.client.HTTPException):
        return False
    return True


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
        until = time.monotonic() + PATIENCE
        while (code := install(path, lock, cache, link)) == SILENT and time.monotonic() < until:
            time.sleep(PAUSE)
        if code == SILENT:
            print(
                f"{UNREACHED} It was tried for {PATIENCE // 60} minutes. Deploy again later, or ask an administrator.",
                file=sys.stderr,
            )
        # The cache is no longer needed. Without it the files have one link each, so the script cannot write into shared ones.
        shutil.rmtree(cache, ignore_errors=True)
        if code == 0 and script:
            code = run_script(script, path)
        if code == 0:
            open(whole, "w").close()
        return code


def run_script(script: str, path: str) -> int:
    """Runs the appcode's script in the environment. Returns its exit code."""
    programs = os.path.join(path, "bin")
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "VIRTUAL_ENV": path, "PORTAL_ENVIRONMENT": path}
    argv = ["bash", "-euo", "pipefail", "-c", script]
    try:
        done = subprocess.run(argv, env={**os.environ, **own}, timeout=SCRIPT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"The script took longer than {SCRIPT_SECONDS} s.", file=sys.stderr)
        return 124
    if done.returncode:
        mend = "Mend it, save the environment anew, and deploy."
        print(f"\nThe script ended with exit code {done.returncode}. {mend}", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit((once if len(sys.argv) == 6 else install)(*sys.argv[1:]))
