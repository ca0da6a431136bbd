"""The packages that pip installs for a cluster: lines of a manifest, and files of its code that they name. Pure.

Packages come only from the cloud's index. So a line is a requirement (PEP 508), optionally with hashes, or `-r NAME`
for a file of `code.files`. Options that lead to another index, a path or an address are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from packaging.requirements import InvalidRequirement, Requirement

MAX_REQUIREMENTS = 200
MAX_KIB = 64
_FILE = re.compile(r"(?:-r|--requirement)(?:\s+|=)(\S+)")
_COMMENT = re.compile(r"(^|\s+)#.*$")
_HASHES = re.compile(r"(?:\s+--hash=sha256:[0-9a-f]{64})+$")
_CONTINUED = re.compile(r"[ \t]*\\\r?\n[ \t]*")


def requirement(line: str) -> str:
    """The requirement, stripped. Raises ValueError for anything else, including an address."""
    line = line.strip()
    if line.startswith("-"):
        raise ValueError(
            f"“{line[:80]}” is no requirement: options are not read, and packages come from the index of the cloud."
        )
    try:
        asked = Requirement(_HASHES.sub("", line))
    except InvalidRequirement:
        raise ValueError(f"“{line[:80]}” is no requirement; write a name, or pandas>=2.2.") from None
    if asked.url:
        raise ValueError(f"{asked.name}: packages come from the index only, not from an address.")
    return line


def required(said: Iterable[str], files: Mapping[str, str] | None) -> tuple[str, ...]:
    """All packages to install, one requirement each, sorted. `files` are the files of the code. Raises ValueError."""
    found: set[str] = set()
    for line in _lines("\n".join(said)):
        if match := _FILE.fullmatch(line):
            found |= _of_file(match[1].removeprefix("./"), files or {})
        else:
            found.add(requirement(line))
    if len(found) > MAX_REQUIREMENTS:
        raise ValueError(f"There are {len(found)} requirements, and at most {MAX_REQUIREMENTS} are installed.")
    if sum(len(each.encode()) + 1 for each in found) > MAX_KIB * 1024:
        raise ValueError(f"All requirements together may have {MAX_KIB} KiB.")
    return tuple(sorted(found))


def _of_file(name: str, files: Mapping[str, str]) -> set[str]:
    if name not in files:
        raise ValueError(
            f"The files of the code have no {name[:80]}. The requirements of a repository are installed by the command: "
            f"pip install -r {name[:80]}."
        )
    try:
        return {requirement(line) for line in _lines(files[name])}
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _lines(text: str) -> list[str]:
    joined = _CONTINUED.sub(" ", text.removeprefix("\ufeff"))
    return [line for each in joined.split("\n") if (line := _COMMENT.sub("", each).strip())]
