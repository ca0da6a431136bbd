"""The branding as one typed value. Pure."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hashlib
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, StringConstraints

from portal.manifests import Manifest, Strict, stripped
from portal.manifests.appcode import one_line

NAME = "GPU cloud"
MOST_LOGO_BYTES = 64 * 1024
LOGO_TYPES = ("image/png", "image/svg+xml", "image/webp", "image/jpeg")
_DATA = re.compile(rf"data:({'|'.join(map(re.escape, LOGO_TYPES))});base64,([A-Za-z0-9+/]+=*)")

Level = Literal["info", "warning"]
Line = Annotated[str, BeforeValidator(stripped), AfterValidator(one_line)]


def _colour(value: str) -> str:
    if value and not re.fullmatch(r"#[0-9a-fA-F]{6}", value):
        raise ValueError("Give a colour like #3a55c4.")
    return value.lower()


def _logo(value: str) -> str:
    if value and len(_decoded(value)) > MOST_LOGO_BYTES:
        raise ValueError(f"At most {MOST_LOGO_BYTES // 1024} KiB.")
    return value


def _decoded(value: str) -> bytes:
    found = _DATA.fullmatch(value)
    if found is None:
        raise ValueError("Give a PNG, SVG, WebP or JPEG picture as a data: address in base64.")
    try:
        return base64.b64decode(found[2], validate=True)
    except binascii.Error:
        raise ValueError("Its base64 cannot be read.") from None


def _address(value: str) -> str:
    try:
        parts = urlsplit(value)
    except ValueError:
        raise ValueError("This is no address.") from None
    is_web = parts.scheme in ("http", "https") and parts.hostname
    is_mail = parts.scheme == "mailto" and "@" in parts.path
    if value and not (is_web or is_mail):
        raise ValueError("Give an address that begins with https:// or mailto:.")
    return value


class Banner(Strict):
    """A sentence on every page, for planned maintenance, say."""

    text: Annotated[Line, StringConstraints(max_length=300)] = ""
    level: Level = "info"
    until: AwareDatetime | None = Field(default=None, description="When it goes away by itself; null: never.")

    def said(self, at: dt.datetime) -> bool:
        return bool(self.text) and (self.until is None or at < self.until)


class BrandingSpec(Strict):
    name: Annotated[Line, StringConstraints(min_length=1, max_length=40)] = Field(
        default=NAME, description="Instead of “GPU cloud”."
    )
    colour: Annotated[str, BeforeValidator(stripped), AfterValidator(_colour)] = Field(
        default="",
        description="Of buttons and links. Its lightness is adjusted until it can be read, in light and dark.",
        examples=["#0a7c8a"],
    )
    logo: Annotated[str, StringConstraints(max_length=100_000), AfterValidator(_logo)] = Field(
        default="", description="A square picture: data:image/png;base64,… (also SVG, WebP, JPEG), at most 64 KiB."
    )
    support: Annotated[str, BeforeValidator(stripped), StringConstraints(max_length=300), AfterValidator(_address)] = (
        Field(
            default="",
            description="Where people ask for help: https://… or mailto:….",
            examples=["mailto:gpu@example.com"],
        )
    )
    banner: Banner = Banner()

    @property
    def logo_digest(self) -> str:
        """Names the logo in its address; "" without one."""
        return hashlib.sha256(self.logo.encode()).hexdigest()[:16] if self.logo else ""

    @property
    def logo_file(self) -> tuple[str, bytes] | None:
        """Its type and its bytes."""
        return (self.logo[5:].partition(";")[0], _decoded(self.logo)) if self.logo else None


class BrandingManifest(Manifest):
    kind: Literal["branding"] = "branding"
    spec: BrandingSpec
