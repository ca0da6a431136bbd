"""Where a cluster's program comes from besides its image: files in the manifest, or a Git repository.

Every task sees the program read-only in one folder, and its command starts there. A run records a digest of all names
and texts, or the commit of the Git ref when it was planned: two runs with the same value ran the same program.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from datastores.specs import relative_path
from portal.manifests import Strict, field_error
from portal.network.outgoing import is_loopback
from portal.text.words import is_unicode

MAX_FILES = 200
# A run on Kubernetes keeps the files in one object of at most 1 MiB, with all else that its tasks share.
MAX_KIB = 512
MAX_NAME = 200
# Kubernetes volumes accept fewer paths than a file system does: no part may begin with "..".
_NAME = re.compile(r"(?!\.\.|\.(/|\Z))[A-Za-z0-9._+=@-]+(/(?!\.\.|\.(/|\Z))[A-Za-z0-9._+=@-]+)*")
_URL = re.compile(r"[\x21-\x7e]+")
# Names that Git accepts for a branch or tag, without the exotic ones.
_REF = re.compile(r"(?!.*(\.\.|//|/\.|@\{|\.lock(/|\Z)))[A-Za-z0-9_][A-Za-z0-9._/+@#-]*(?<![./])")


def _git(value: str) -> str:
    try:
        url = urlsplit(value)
        host, port = url.hostname or "", url.port
    except ValueError:
        host, port = "", None
    if not _URL.fullmatch(value) or not host or port == 0 or not url.path.strip("/"):
        raise ValueError("Write it as https://host/path/of/repository.git, in ASCII and without spaces.")
    if url.username is not None or url.password is not None:
        raise ValueError("Leave name and token out: they are kept as a secret of the appcode, among its Git tokens.")
    if url.query or url.fragment:
        raise ValueError("Leave out what follows “?” or “#”; ref and folder are fields of their own.")
    if url.scheme == "http" and is_loopback(host):
        return value
    if url.scheme != "https":
        raise ValueError("Only https:// is fetched; of this machine itself, http://, too.")
    return value


def _ref(value: str) -> str:
    if value and not _REF.fullmatch(value):
        raise ValueError("Name a branch, a tag or a commit.")
    return value


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
        if "\0" in text or not is_unicode(text):
            raise field_error(f"{name} is no text in UTF-8; put it into a datastore.", name)
    for name in value:
        parts = name.split("/")
        if taken := next((inner for n in range(1, len(parts)) if (inner := "/".join(parts[:n])) in value), ""):
            raise field_error(f"{taken} is a file, so {name} cannot be in it.", name)
    if (size := size_of(value)) > MAX_KIB * 1024:
        raise ValueError(f"All files together have {size / 1024:,.0f} KiB, and at most {MAX_KIB} may be given.")
    return value


class CodeSpec(Strict):
    """The program that every task finds read-only at /elearn/code, where its command starts."""

    files: Annotated[dict[str, str], AfterValidator(_files)] | None = Field(
        default=None,
        examples=[{"train.py": "print('hello')\n"}],
        description=f"Texts by their names, at most {MAX_KIB} KiB together; “lib/model.py” is in a folder.",
    )
    git: Annotated[str, StringConstraints(max_length=500), AfterValidator(_git)] | None = Field(
        default=None, examples=["https://git.example.com/team/digits.git"], description="A repository, by https."
    )
    ref: Annotated[str, StringConstraints(max_length=200), AfterValidator(_ref)] = Field(
        default="",
        examples=["main"],
        description="A branch, a tag or a commit; what the server calls HEAD where it is empty.",
    )
    path: Annotated[str, AfterValidator(relative_path)] = Field(
        default="", description="The folder of the repository where the command starts."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.files is not None and self.git is not None:
            raise field_error("Give files or a repository, not both.", "git")
        if self.files is None and self.git is None:
            raise field_error("Give files, or say which repository.", "git")
        if self.git is None and (self.ref or self.path):
            raise field_error("Only a repository has that; leave it out.", "ref" if self.ref else "path")
        return self

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value not in (None, "")}

    @property
    def digest(self) -> str:
        """Digest of all file names and texts; "" for a repository."""
        return digest_of(self.files) if self.files else ""

    @property
    def host(self) -> str:
        """The Git server of a repository, with its port unless it is the default."""
        return host_of(self.git or "")


def size_of(files: Mapping[str, str]) -> int:
    return sum(len(text.encode()) for text in files.values())


def digest_of(files: Mapping[str, str]) -> str:
    """SHA-256 of the files as JSON, by name."""
    text = json.dumps(files, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# A host name in lower case, with its port unless it is the default.
HOST = re.compile(r"(?=.{1,255}\Z)([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?(:[1-9][0-9]{0,4})?")


def host_of(url: str) -> str:
    """The host under which the Git token of this URL is stored."""
    return urlsplit(url).netloc.lower().removesuffix(":443")


def code_of(spec: Mapping[str, Any]) -> CodeSpec | None:
    """The program of a spec in JSON, which was validated when it was stored; None if it has none."""
    return CodeSpec.stored(spec["code"]) if spec.get("code") else None
