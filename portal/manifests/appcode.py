"""The manifest of an appcode, validated on its own."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from portal.lending import Share
from portal.manifests import Manifest, Strict, stripped
from portal.terms import Terms

MAX_OWNERS = 4
MAX_EMAILS = 10
MAX_REMARK = 100
MAX_GPU_QUOTA = 100_000
MAX_WEIGHT = 1000
MAX_STORAGE_QUOTA_GIB = 100_000_000
MAX_BUDGET = Decimal("999999999999.99")
MAX_REASON = 300
MAX_TOKEN_DAYS = 365

# Includes the full-width forms of East Asian keyboards.
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
CODE = re.compile(r"[a-z][a-z0-9_-]{1,61}[a-z0-9]")
ORG_PATH = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*")
# A subset that PostgreSQL and mail servers both accept: one @, a dotted domain, no spaces or quotes.
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
    """Names appear in files that people open in spreadsheets."""
    if value.startswith(FORMULA):
        raise ValueError(f"It cannot begin with {value[0]}, because spreadsheets take that for a formula.")
    return value


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


def decimal_text(value: Any) -> Any:
    """A JSON number was already parsed as a binary float, which is not the written value."""
    if isinstance(value, float):
        raise ValueError('Give a decimal number as text, for example "1.25".')
    return value


def _money_a_month(value: Decimal) -> Decimal:
    if not value.is_finite() or not 0 < value <= MAX_BUDGET or value != value.quantize(Decimal("0.01")):
        raise ValueError(f"Give an amount from 0.01 to {MAX_BUDGET:,}, with two digits at most.")
    return value


Line = Annotated[str, BeforeValidator(stripped), AfterValidator(one_line)]
Code = Annotated[str, BeforeValidator(stripped), AfterValidator(_code)]
OrgPath = Annotated[
    str, BeforeValidator(stripped), StringConstraints(min_length=1, max_length=200), AfterValidator(_org_path)
]
Email = Annotated[str, BeforeValidator(stripped), AfterValidator(_email)]
Username = Annotated[
    str, BeforeValidator(stripped), StringConstraints(min_length=1, max_length=150), AfterValidator(one_line)
]


Budget = Annotated[
    Decimal, BeforeValidator(decimal_text), Field(max_digits=20, examples=["500.00"]), AfterValidator(_money_a_month)
]
Expires = Annotated[
    dt.date | None, Field(description="Its last day, in UTC; null: without end.", examples=["2027-03-31"])
]


class AppcodeMetadata(Strict):
    name: Code


class Quota(Strict):
    """Current or requested quota. Fields left out stay unchanged; in a new appcode they get the portal's defaults."""

    gpus: int | None = Field(
        default=None, ge=0, le=MAX_GPU_QUOTA, description="GPUs that its runs may hold at one time."
    )
    storage: int | None = Field(
        default=None, ge=0, le=MAX_STORAGE_QUOTA_GIB, description="GiB that its volumes may have together."
    )
    budget: Budget | None = Field(default=None, description="Money a month, as text; null: as it is.")


class ShareSpec(Strict):
    """What only administrators set. Fields left out stay unchanged; a new appcode borrows nothing and has the weight 1."""

    borrow: int | None = Field(
        default=None,
        ge=0,
        le=MAX_GPU_QUOTA,
        description="GPUs that its runs may hold beyond the quota, as long as nobody else needs them.",
    )
    weight: int | None = Field(
        default=None,
        ge=0,
        le=MAX_WEIGHT,
        description="Its part of the GPUs that are lent, against those of other appcodes. 0: what nobody else wants.",
    )

    def over(self, share: Share) -> Share:
        """`share` with the given fields replaced."""
        return Share(
            share.borrow if self.borrow is None else self.borrow,
            share.weight if self.weight is None else self.weight,
        )


class TermsSpec(Strict):
    quota: Quota = Quota()
    expires: Expires = None

    def over(self, terms: Terms) -> Terms:
        """`terms` with the given fields replaced. An explicit null `expires` counts as given."""
        quota = self.quota
        return Terms(
            terms.gpus if quota.gpus is None else quota.gpus,
            terms.storage if quota.storage is None else quota.storage,
            terms.budget if quota.budget is None else quota.budget,
            self.expires if "expires" in self.model_fields_set else terms.expires,
        )


class AppcodeSpec(TermsSpec):
    """Owners, addresses and terms of an appcode. `org_node` is a dotted path; `name` defaults to the code."""

    org_node: OrgPath
    name: Annotated[Line, AfterValidator(no_formula), AfterValidator(_at_most_100)] = ""
    owners: Annotated[list[Username], AfterValidator(_owners)]
    emails: Annotated[list[Email], AfterValidator(_emails)]
    remark: Annotated[Line, AfterValidator(_at_most_100), Field(description="At most 100 characters.")] = ""
    resource_type: Literal["gpu-cloud"] = "gpu-cloud"
    share: ShareSpec = ShareSpec()


class AppcodeManifest(Manifest):
    """`{"kind":"appcode","metadata":{"name"},"spec":{…}}`; `status` is ours and is ignored in requests."""

    kind: Literal["appcode"] = "appcode"
    metadata: AppcodeMetadata
    spec: AppcodeSpec


class Wanted(TermsSpec):
    """An owner's request for other terms."""

    reason: Annotated[Line, StringConstraints(max_length=MAX_REASON)] = ""


class Granted(TermsSpec):
    """An administrator's approval: the request as sent, with the given fields replaced, and perhaps another share."""

    share: ShareSpec = ShareSpec()

    revision: Annotated[int, Field(description="Of the request that was read; another one meanwhile is a conflict.")]


class Answered(Strict):
    """Why a request is refused, or what to change."""

    revision: Annotated[int, Field(description="Of the request that was read; another one meanwhile is a conflict.")]
    note: Annotated[Line, Field(description=f"1 to {MAX_REASON} characters; the owners read it.")]


class MeChange(Strict):
    """What users may change of themselves."""

    time_zone: str = Field(
        max_length=64, description="IANA name; empty: that of the browser.", examples=["Asia/Shanghai"]
    )
