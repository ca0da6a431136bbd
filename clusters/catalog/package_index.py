"""Queries the portal's package index through uv for available versions. No package is run or built.

The index URL may contain a password. It is passed by environment variable and never appears in a message.
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

from portal.text.words import readable

SECONDS = 60.0
# Seconds that a submission waits. What the index has not answered by then, the run will report.
SUBMITTING_SECONDS = 15.0
KNOWN_SECONDS = 86400
# Seconds for which previews repeat a refusal. A submission always queries again.
REFUSED_SECONDS = 3600
# Seconds without queries after an index did not answer: creating an application queries twice, once in a transaction.
SILENT_SECONDS = 60
SAID = 900
# Environment variables that uv gets besides the index.
KEPT = ("PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_COMPILE = (
    "pip", "compile", "-", "--constraints", "given.txt", "--only-binary", ":all:", "--no-header", "--no-annotate",
    "--no-config", "--no-progress", "--quiet", "--no-cache", "--no-python-downloads",
)  # fmt: skip
# uv's messages for a name or version that no index has, for any Python or image.
_NOT_THERE = re.compile(
    r"was not found in the package registry|there (is|are) no versions? of|\bonly \S+ (is|are) available"
)

_BECAUSE = re.compile(r"Because (.+?) and you require .*, we can conclude that your requirements are unsatisfiable\.")


def compiled(
    requirements: Sequence[str], *options: str, given: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> subprocess.CompletedProcess[str]:
    """The result of `uv pip compile` with the versions in `given` as constraints. Raises subprocess.TimeoutExpired."""
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
    """uv's reason, without its prefix and without passwords."""
    parts = urlsplit(settings.PACKAGE_INDEX)
    for secret in filter(None, (parts.password, parts.username)):
        errors = errors.replace(secret, "…")
    text = readable(" ".join(errors.split()))
    text = text.partition(" cause: ")[2] or text.removeprefix("error: ")
    return text if len(text) <= SAID else f"{text[: SAID // 3]} … {text[-2 * SAID // 3 :]}"


def why_not_there(requirements: Sequence[str]) -> str:
    """Why some requirements cannot be installed anywhere, because the index has no such name or version; or "". An index that
    does not answer counts as "" and is left alone for a minute. Requirements that exist are not queried again for a day."""
    if not requirements or settings.PACKAGE_INDEX == "off":
        return ""
    key = _key(requirements)
    if cache.get(key) == "":
        return ""
    try:
        done = compiled(requirements, "--no-deps", seconds=SUBMITTING_SECONDS)
    except subprocess.TimeoutExpired:
        cache.set(key, "", SILENT_SECONDS)
        return ""
    said = reason(done.stderr) if done.returncode else ""
    if _NOT_THERE.search(said):
        found = _BECAUSE.fullmatch(said)
        why = f"The package index says: {found[1]}." if found else said
        cache.set(key, why, REFUSED_SECONDS)
        return why
    cache.set(key, "", SILENT_SECONDS if said else KNOWN_SECONDS)
    return ""


def last_refusal(requirements: Sequence[str]) -> str:
    """What `why_not_there` said of these requirements within the last hour, "" for nothing. Does not query the index, so
    a preview may call it at every change."""
    return (cache.get(_key(requirements)) or "") if requirements and settings.PACKAGE_INDEX != "off" else ""


def _key(requirements: Sequence[str]) -> str:
    text = "\n".join([settings.PACKAGE_INDEX, *requirements])
    return f"packages:{hashlib.sha256(text.encode()).hexdigest()}"
