"""Validates what a task reports as installed over its image. Users write what runs there, so none of it is trusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from clusters.catalog.locks import NAME, VERSION, pins, written
from clusters.manifest.env import no_nul
from portal.errors import Invalid
from portal.manifests import AppcodeName, Manifest, Strict, dns_label

MAX_PACKAGES = 500
MAX_LOCK_BYTES = 2 * 2**20
MAX_SCRIPT_BYTES = 16 * 1024
# Number of names in a message.
NAMED = 5


def _script(value: str) -> str:
    no_nul(value)
    if len(value.encode()) > MAX_SCRIPT_BYTES:
        raise ValueError(f"A script has at most {MAX_SCRIPT_BYTES // 1024} KiB.")
    return value.replace("\r\n", "\n") if value.strip() else ""


EnvironmentName = Annotated[str, StringConstraints(min_length=1, max_length=40), AfterValidator(dns_label)]
Script = Annotated[str, AfterValidator(_script)]


class SavedMetadata(Strict):
    name: EnvironmentName
    appcode: AppcodeName


class SavedSpec(Strict):
    """What is saved besides the installed packages."""

    script: Script = Field(
        default="",
        description="What bash runs once, after the packages were installed, with the environment in $VIRTUAL_ENV.",
        examples=["mkdir $VIRTUAL_ENV/models"],
    )


class EnvironmentManifest(Manifest):
    """`{"kind":"environment","metadata":{"name","appcode"},"spec":{"script"}}`."""

    kind: Literal["environment"] = "environment"
    metadata: SavedMetadata
    spec: SavedSpec = SavedSpec()


class FoundPackage(Strict):
    """A package that the image lacks or has in another version. `was` is the image's version or ""."""

    version: Annotated[str, StringConstraints(pattern=rf"^{VERSION}$", max_length=100)]
    was: Annotated[str, StringConstraints(max_length=100)] = ""
    indexed: bool = True


class Found(Strict):
    """A task's report: packages by name, and their hashes in `lock` if it was requested."""

    python: Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+]*$", max_length=20)]
    platform: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]+$", max_length=40)]
    packages: dict[Annotated[str, StringConstraints(pattern=rf"^{NAME}$", max_length=100)], FoundPackage] = Field(
        max_length=MAX_PACKAGES
    )
    lock: Annotated[str, StringConstraints(max_length=MAX_LOCK_BYTES)] = ""

    @property
    def elsewhere(self) -> list[str]:
        """Packages from no index, which cannot be installed again."""
        return [name for name, each in self.packages.items() if not each.indexed]

    @property
    def rows(self) -> list[dict[str, str]]:
        """As stored and shown: new packages first, then other versions."""
        rows = [{"name": name, "version": each.version, "was": each.was} for name, each in self.packages.items()]
        return sorted(rows, key=lambda row: (bool(row["was"]), row["name"]))


def some(names: Sequence[str]) -> str:
    """ "a, b and 3 more"."""
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def lock_of(found: Found) -> str:
    """The lock in normalized form, one requirement with its hashes per line. Raises Invalid unless it matches the packages."""
    try:
        pinned = pins(found.lock)
    except ValueError as error:
        raise Invalid.at("spec", message=f"{error} Environments are saved with them only.") from None
    if missing := sorted(set(found.packages) ^ set(pinned)):
        raise Invalid.at("spec", message=f"What was installed changed meanwhile ({some(missing)}); save it again.")
    return written(pinned)


def digest_of(image: str, found: Found, lock: str, script: str) -> str:
    said = {"image": image, "python": found.python, "platform": found.platform, "lock": lock, "script": script}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
