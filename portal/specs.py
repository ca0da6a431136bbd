"""The manifest of an appcode: what may be said of who pays, judged from the value alone."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from portal.manifests import Manifest, Strict

MAX_OWNERS = 4
MAX_EMAILS = 10
MAX_REMARK = 100
MAX_GPU_QUOTA = 100_000
MAX_STORAGE_QUOTA_GIB = 100_000_000
MAX_TOKEN_DAYS = 365

# Also as keyboards of East Asia have them.
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
CODE = re.compile(r"[a-z][a-z0-9_-]{1,61}[a-z0-9]")
ORG_PATH = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*")
# What both PostgreSQL and mail servers take without surprises: one @, a dotted domain, no spaces or quotes.
EMAIL = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)+"
)


def _code(value: str) -> str:
    if not CODE.fullmatch(value):
        raise ValueError(
            "Use 3 to 63 lower-case letters, digits, '_' and '-'; start with a letter, end with a letter or digit."
        )
    return value


def _org_path(value: str) -> str:
    if not ORG_PATH.fullmatch(value):
        raise ValueError("Use lower-case words divided by dots, like qunarcorp.ops.dev.")
    return value


def _email(value: str) -> str:
    if len(value) > 254 or not EMAIL.fullmatch(value):
        raise ValueError(f"“{value}” is not an e-mail address.")
    return value


def one_line(value: str) -> str:
    if not value.isprintable():
        raise ValueError("Use one line of text without control characters.")
    return value


def no_formula(value: str) -> str:
    """Names stand in files that people open in spreadsheets."""
    if value.startswith(FORMULA):
        raise ValueError(f"It cannot begin with {value[0]}, because spreadsheets take that for a formula.")
    return value


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _at_most_100(value: str) -> str:
    if len(value) > MAX_REMARK:
        raise ValueError(f"At most {MAX_REMARK} characters; these are {len(value)}.")
    return value


def _owners(value: list[str]) -> list[str]:
    if not 1 <= len(value) <= MAX_OWNERS:
        raise ValueError(f"Name 1 to {MAX_OWNERS} owners; these are {len(value)}.")
    if len(set(value)) != len(value):
        raise ValueError("Somebody is named twice.")
    return value


def _emails(value: list[str]) -> list[str]:
    if not 1 <= len(value) <= MAX_EMAILS:
        raise ValueError(f"Give 1 to {MAX_EMAILS} addresses; these are {len(value)}.")
    if len({email.lower() for email in value}) != len(value):
        raise ValueError("An address is given twice.")
    return value


Line = Annotated[str, BeforeValidator(_stripped), AfterValidator(one_line)]
Code = Annotated[str, BeforeValidator(_stripped), AfterValidator(_code)]
OrgPath = Annotated[
    str, BeforeValidator(_stripped), StringConstraints(min_length=1, max_length=200), AfterValidator(_org_path)
]
Email = Annotated[str, BeforeValidator(_stripped), AfterValidator(_email)]
Username = Annotated[
    str, BeforeValidator(_stripped), StringConstraints(min_length=1, max_length=150), AfterValidator(one_line)
]


class AppcodeMetadata(Strict):
    name: Code


class AppcodeSpec(Strict):
    """Who pays, who decides and who is told. `org_node` is a dotted path; `name` defaults to the code."""

    org_node: OrgPath
    name: Annotated[Line, AfterValidator(no_formula), AfterValidator(_at_most_100)] = ""
    owners: Annotated[list[Username], AfterValidator(_owners)]
    emails: Annotated[list[Email], AfterValidator(_emails)]
    remark: Annotated[Line, AfterValidator(_at_most_100), Field(description="At most 100 characters.")] = ""
    resource_type: Literal["gpu-cloud"] = "gpu-cloud"
    gpu_quota: int | None = Field(
        default=None, ge=0, le=MAX_GPU_QUOTA, description="GPUs at one time; an administrator sets it."
    )
    storage_quota_gib: int | None = Field(
        default=None,
        ge=0,
        le=MAX_STORAGE_QUOTA_GIB,
        description="GiB of all its volumes together; an administrator sets it.",
    )


class AppcodeManifest(Manifest):
    """`{"kind":"appcode","metadata":{"name"},"spec":{…}}`; `status` is ours and is ignored when it comes back."""

    kind: Literal["appcode"] = "appcode"
    metadata: AppcodeMetadata
    spec: AppcodeSpec
