"""Prints the packages installed over an image as JSON. Run as `python -c` by the image's own Python in a task.

It reads the packages' metadata and runs none of their code, so it works in a broken environment. With `lock` it also gets the
hashes of these versions' wheels from the index, by uv. With `image` it prints the image's own packages.
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import site
import subprocess
import sys
import tempfile
from typing import Any

SECONDS = 90
# The tools of a layer itself.
OWN = {"pip", "setuptools", "wheel", "uv"}


def listed(folders: "list[str]") -> "dict[str, dict[str, Any]]":
    """Returns version and index origin by name of the packages in `folders`; the first folder wins, as in Python."""
    found: dict[str, dict[str, Any]] = {}
    for each in importlib.metadata.distributions(path=folders):
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"] or "").lower()
        if name:
            found.setdefault(name, {"version": each.version, "indexed": is_indexed(each)})
    return found


def is_indexed(distribution: importlib.metadata.Distribution) -> bool:
    """False for packages from a folder or repository (PEP 610), whose address may contain a password."""
    return not distribution.read_text("direct_url.json")


def locked(requirements: "list[str]") -> str:
    """Returns the requirements with the hashes of all their wheels. Exits with uv's message if the index lacks one."""
    uv = shutil.which("uv") or "/elearn/uv"
    if not os.path.exists(uv):
        sys.exit("There is no uv in this image; it finds the hashes of packages.")
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "requirements.in")
        with open(name, "w") as file:
            file.write("\n".join(requirements) + "\n")
        argv = [
            uv,
            "pip",
            "compile",
            "--generate-hashes",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--no-header",
            "--no-annotate",
        ]
        argv += ["--no-config", "--no-progress", "--no-cache", "--quiet", "--python", sys.executable, name]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip()[-2000:] or "uv failed.")
    return done.stdout


def main() -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    layers = [path for path in (os.environ.get("PORTAL_LAYER"), os.environ.get("PORTAL_ENVIRONMENT")) if path]
    over = listed([os.path.join(path, "lib", version, "site-packages") for path in layers])
    image = listed([path for path in sys.path if path] or site.getsitepackages())
    new = {
        name: {**each, "was": image.get(name, {}).get("version", "")}
        for name, each in sorted(over.items())
        if name not in OWN and each["version"] != image.get(name, {}).get("version")
    }
    said: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "packages": new,
    }
    if "image" in sys.argv[1:]:
        said["packages"] = {name: each["version"] for name, each in sorted(image.items())}
    elif "lock" in sys.argv[1:]:
        wanted = [f"{name}=={each['version']}" for name, each in new.items() if each["indexed"]]
        said["lock"] = locked(wanted) if wanted else ""
    print(json.dumps(said))


if __name__ == "__main__":
    main()
