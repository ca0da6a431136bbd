"""The package index of the portal, asked by uv: which versions there are. Nothing of a package is run and nothing is built.

The address of the index, which may have a password in it, goes by the environment and stands in no sentence.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings
from django.core.cache import cache
from uv import find_uv_bin

from portal.text import readable

SECONDS = 60.0
# How long a submission waits; what the index does not say by then, the run says.
SUBMITTING_SECONDS = 15.0
KNOWN_SECONDS = 86400
# An index that does not answer is not asked again so soon: creating an application asks twice, at last inside a transaction.
SILENT_SECONDS = 60
SAID = 900
# What uv is told of the world besides the index.
KEPT = ("PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_COMPILE = (
    "pip", "compile", "-", "--constraints", "given.txt", "--only-binary", ":all:", "--no-header", "--no-annotate",
    "--no-config", "--no-progress", "--quiet", "--no-cache", "--no-python-downloads",
)  # fmt: skip
# uv's words for a name or a version that no index has, whatever Python or image it is for.
_NOT_THERE = re.compile(
    r"was not found in the package registry|there (is|are) no versions? of|\bonly \S+ (is|are) available"
)

_BECAUSE = re.compile(r"Because (.+?) and you require .*, we can conclude that your requirements are unsatisfiable\.")


def compiled(
    requirements: Sequence[str], *options: str, given: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> subprocess.CompletedProcess[str]:
    """What uv makes of them with these versions `given`. Raises subprocess.TimeoutExpired."""
    kept = {name: value for name, value in os.environ.items() if name.upper() in KEPT}
    with tempfile.TemporaryDirectory() as folder:
        lines = (f"{name}=={version}\n" for name, version in (given or {}).items())
        (Path(folder) / "given.txt").write_text("".join(lines))
        return subprocess.run(
            [find_uv_bin(), *_COMPILE, *options],
            input="\n".join(requirements) + "\n",
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd=folder,
            env={**kept, "HOME": folder, "UV_DEFAULT_INDEX": settings.PACKAGE_INDEX},
        )


def reason(errors: str) -> str:
    """uv's reason, without what it says first and without a password."""
    parts = urlsplit(settings.PACKAGE_INDEX)
    for secret in filter(None, (parts.password, parts.username)):
        errors = errors.replace(secret, "…")
    text = readable(" ".join(errors.split()))
    text = text.partition(" cause: ")[2] or text.removeprefix("error: ")
    return text if len(text) <= SAID else f"{text[: SAID // 3]} … {text[-2 * SAID // 3 :]}"


def why_not_there(requirements: Sequence[str]) -> str:
    """Why some of them cannot be installed anywhere: the index has no such name, or no such version; or "". An index that does
    not answer says nothing, and is not asked again for a minute. What is known to be there is not asked for again that day."""
    if not requirements or settings.PACKAGE_INDEX == "off":
        return ""
    text = "\n".join([settings.PACKAGE_INDEX, *requirements])
    key = f"requirements:{hashlib.sha256(text.encode()).hexdigest()}"
    if cache.get(key):
        return ""
    try:
        done = compiled(requirements, "--no-deps", seconds=SUBMITTING_SECONDS)
    except subprocess.TimeoutExpired:
        cache.set(key, True, SILENT_SECONDS)
        return ""
    said = reason(done.stderr) if done.returncode else ""
    if _NOT_THERE.search(said):
        found = _BECAUSE.fullmatch(said)
        return f"The package index says: {found[1]}." if found else said
    cache.set(key, True, SILENT_SECONDS if said else KNOWN_SECONDS)
    return ""
