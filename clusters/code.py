"""Where the program of a cluster comes from besides its image: files that stand in the manifest.

Every task sees them, read-only, in one folder, and its command starts there. What a run started with is named by a digest of
all names and texts, so two runs that say the same digest ran the same program.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from portal.manifests import Strict, field_error

MAX_FILES = 200
# A run on Kubernetes keeps them in an object of at most 1 MiB, with what else its tasks share.
MAX_KIB = 512
MAX_NAME = 200
# What a volume of Kubernetes takes as a path is narrower than what a file system does: no part begins with "..".
_NAME = re.compile(r"(?!\.\.|\.(/|\Z))[A-Za-z0-9._+=@-]+(/(?!\.\.|\.(/|\Z))[A-Za-z0-9._+=@-]+)*")


def _files(value: dict[str, str]) -> dict[str, str]:
    if not value:
        raise ValueError("Give at least one file, or leave the code out.")
    if len(value) > MAX_FILES:
        raise ValueError(
            f"There are {len(value)} files, and at most {MAX_FILES} may be given; put more into a datastore."
        )
    for name, text in value.items():
        if len(name) > MAX_NAME or not _NAME.fullmatch(name):
            raise field_error(
                f"“{name[:60]}” is no name of a file here; use letters, digits and . _ - + = @, '/' between folders, no '..', "
                f"and at most {MAX_NAME} characters.",
                name[:60],
            )
        if "\0" in text or not _is_unicode(text):
            raise field_error(f"{name} is no text in UTF-8; put it into a datastore.", name)
    for name in value:
        parts = name.split("/")
        if taken := next((inner for n in range(1, len(parts)) if (inner := "/".join(parts[:n])) in value), ""):
            raise field_error(f"{taken} is a file, so {name} cannot be in it.", name)
    if (size := size_of(value)) > MAX_KIB * 1024:
        raise ValueError(f"All files together have {size / 1024:,.0f} KiB, and at most {MAX_KIB} may be given.")
    return value


class CodeSpec(Strict):
    """What every task finds at /elearn/code, read-only, where its command starts."""

    files: Annotated[dict[str, str], AfterValidator(_files)] = Field(
        examples=[{"train.py": "print('hello')\n"}],
        description=f"Texts by their names, at most {MAX_KIB} KiB together; “lib/model.py” is in a folder.",
    )

    @property
    def digest(self) -> str:
        """Of all names and texts."""
        return digest_of(self.files)

    @property
    def words(self) -> str:
        """In one line, for people."""
        first = next(iter(self.files))
        return first if len(self.files) == 1 else f"{len(self.files)} files"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def size_of(files: Mapping[str, str]) -> int:
    """Bytes of all texts."""
    return sum(len(text.encode()) for text in files.values())


def digest_of(files: Mapping[str, str]) -> str:
    """SHA-256 of the files as JSON, by name."""
    text = json.dumps(files, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def code_of(spec: Mapping[str, Any]) -> CodeSpec | None:
    """Of a spec as JSON, which was judged when it was stored."""
    return CodeSpec.model_validate(spec["code"]) if spec.get("code") else None
