"""What people ask for, as typed and validated values: the base of all manifests, and the manifest of an appcode.

A form, a REST body and a manifest file all become the same value; nothing else reaches an action, so they accept and refuse
the same things. Whether a name in it exists is the database's business; what can be judged from the value is judged here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

MAX_OWNERS = 4
MAX_EMAILS = 10
MAX_REMARK = 100
MAX_GPU_QUOTA = 100_000
MAX_TOKEN_DAYS = 365

CODE = re.compile(r"[a-z][a-z0-9_-]{1,61}[a-z0-9]")
ORG_PATH = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*")
# What both PostgreSQL and mail servers take without surprises: one @, a dotted domain, no spaces or quotes.
EMAIL = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)+"
)


class Strict(BaseModel):
    """A frozen value whose JSON keys are camelCase (the Kubernetes convention) and which refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


def field_error(message: str, *path: str) -> ValueError:
    """A ValueError for a rule over several fields that carries the path of the field to mend (see `errors_by_path`)."""
    error = ValueError(message)
    error.field_path = path  # type: ignore[attr-defined]
    return error


def errors_by_path(errors: list[Any]) -> list[tuple[tuple[str, ...], str]]:
    """Pydantic's `ValidationError.errors()` as (path, sentence) pairs; paths are JSON keys, e.g. ("spec","orgNode")."""
    out = []
    for item in errors:
        cause = (item.get("ctx") or {}).get("error")
        path = tuple(str(part) for part in item["loc"] if part != "[key]")
        path += tuple(getattr(cause, "field_path", ()))
        out.append((path, str(cause) if cause is not None else sentence(item["type"], item["msg"])))
    return out


def sentence(kind: str, message: str) -> str:
    """Pydantic's words as one would say them beside a field."""
    plain = {
        "missing": "Fill this in.",
        "extra_forbidden": "There is no such field.",
        "string_too_short": "Fill this in.",
        "too_short": "Fill this in.",
        "int_parsing": "Give a whole number.",
    }
    return plain.get(kind, message[:1].upper() + message[1:] + ("" if message.endswith(".") else "."))


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


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("Use one line of text without control characters.")
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


Line = Annotated[str, BeforeValidator(_stripped), AfterValidator(_printable)]
Code = Annotated[str, BeforeValidator(_stripped), AfterValidator(_code)]
OrgPath = Annotated[
    str, BeforeValidator(_stripped), StringConstraints(min_length=1, max_length=200), AfterValidator(_org_path)
]
Email = Annotated[str, BeforeValidator(_stripped), AfterValidator(_email)]
Username = Annotated[
    str, BeforeValidator(_stripped), StringConstraints(min_length=1, max_length=150), AfterValidator(_printable)
]


class AppcodeMetadata(Strict):
    name: Code


class AppcodeSpec(Strict):
    """Who pays, who decides and who is told. `org_node` is a dotted path; `name` defaults to the code."""

    org_node: OrgPath
    name: Annotated[Line, AfterValidator(_at_most_100)] = ""
    owners: Annotated[list[Username], AfterValidator(_owners)]
    emails: Annotated[list[Email], AfterValidator(_emails)]
    remark: Annotated[Line, AfterValidator(_at_most_100), Field(description="At most 100 characters.")] = ""
    resource_type: Literal["gpu-cloud"] = "gpu-cloud"
    gpu_quota: int | None = Field(
        default=None, ge=0, le=MAX_GPU_QUOTA, description="GPUs at one time; an administrator sets it."
    )


class AppcodeManifest(Strict):
    """`{"kind":"appcode","metadata":{"name"},"spec":{…}}`; `status` is ours and is ignored when it comes back."""

    kind: Literal["appcode"] = "appcode"
    metadata: AppcodeMetadata
    spec: AppcodeSpec

    @model_validator(mode="before")
    @classmethod
    def _drop_status(cls, value: Any) -> Any:
        return {key: item for key, item in value.items() if key != "status"} if isinstance(value, dict) else value
