"""REST documents of people and appcodes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel

from portal import extension_points
from portal.manifests import parse
from portal.manifests.appcode import AppcodeManifest
from portal.models import Appcode, Membership, QuotaRequest, User
from portal.terms import Terms


class Answer(BaseModel):
    """A response value: camelCase keys, times in UTC, money as decimal strings."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    @classmethod
    def of(cls, found: Any, **said: Any) -> Self:
        """An answer about a row or another object. Each required field that is not in `said` is its attribute of that name."""
        required = [name for name, field in cls.model_fields.items() if field.is_required() and name not in said]
        return cls(**{name: getattr(found, name) for name in required}, **said)

    def json_value(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def page_of(name: str, document: type[BaseModel]) -> type[Answer]:
    """The page of a list of such documents, called `name` in the API's description."""
    items: Any = list[document]  # type: ignore[valid-type]
    return create_model(name, __base__=Answer, __module__=document.__module__, items=items, next=str | None)


# A user, by name. Null where the account was deleted, and where nobody did it.
Who = Annotated[str | None, BeforeValidator(lambda value: value.username if isinstance(value, User) else value)]


class Version(Answer):
    version: str = Field(description="That of the portal, by SemVer.", examples=["1.0.0"])
    api: str = Field(description="That of REST: the first part of every address after /api.", examples=["v1"])


class Role(Answer):
    appcode: str
    role: str


class Me(Answer):
    username: str
    name: str
    email: str
    administrator: bool
    time_zone: str = Field(description="IANA name; empty: that of the browser.", examples=["Asia/Shanghai"])
    memberships: list[Role]


class QuotaAnswer(Answer):
    gpus: int
    storage: int = Field(description="GiB.")
    budget: str | None = Field(description="Money a month.", examples=["500.00"])


class RequestDocument(Answer):
    """The latest request for an appcode, and its decision."""

    state: Literal["waiting", "changes-requested", "approved", "refused", "withdrawn"]
    revision: int = Field(description="Named by who decides; goes up whenever the request is sent.")
    quota: QuotaAnswer
    expires: dt.date | None
    reason: str
    asked_by: Who
    asked_at: dt.datetime
    decided_by: Who
    decided_at: dt.datetime | None
    note: str = Field(description="Why it was refused, or what is to be changed.")


class AppcodeStatus(Answer):
    state: Literal["requested", "changes-requested", "refused", "withdrawn", "active", "expired", "disabled"]
    note: str = Field(description="Why it was disabled.")
    request: RequestDocument | None
    created: dt.datetime
    requested_by: Who


class AppcodeDocument(AppcodeManifest):
    """An appcode in responses: the manifest with its state."""

    status: AppcodeStatus


RequestPage = page_of("RequestPage", RequestDocument)


AppcodePage = page_of("AppcodePage", AppcodeDocument)


def read_appcode(body: Any, *, code: str | None = None) -> AppcodeManifest:
    """Parses an appcode manifest sent to /appcodes[/`code`]; the code may be in the URL only. Raises Invalid."""
    if code is not None and isinstance(body, dict):
        body = {"metadata": {"name": code}, **body}
    return parse(AppcodeManifest, body)


def appcode_documents(appcodes: Sequence[Appcode]) -> list[dict[str, Any]]:
    """The appcodes as manifests. One query for budgets, if their related rows were prefetched."""
    budgets = extension_points.budgets_of([each.pk for each in appcodes])
    return [_appcode_document(each, budgets.get(each.pk)) for each in appcodes]


def appcode_document(appcode: Appcode) -> dict[str, Any]:
    return appcode_documents([appcode])[0]


def _appcode_document(appcode: Appcode, budget: Decimal | None) -> dict[str, Any]:
    members, asked = appcode.memberships.all(), appcode.asked
    if asked and appcode.state == Appcode.State.REQUESTED:
        budget = asked.budget
    terms = Terms(appcode.gpu_quota, appcode.storage_quota_gib, budget, appcode.expires_on)
    owners = sorted(member.user.username for member in members if member.role == Membership.Role.OWNER)
    return {
        "kind": "appcode",
        "metadata": {"name": appcode.code},
        "spec": {
            "orgNode": appcode.org_node.path,
            "name": appcode.name,
            "owners": owners,
            "emails": appcode.emails,
            "remark": appcode.remark,
            "resourceType": appcode.resource_type,
            "quota": _quota(terms).json_value(),
            "expires": appcode.expires_on and appcode.expires_on.isoformat(),
            "share": {"borrow": appcode.gpu_borrow, "weight": appcode.weight},
        },
        "status": AppcodeStatus.of(
            appcode,
            state=appcode.standing,
            request=_request(asked) if asked else None,
            created=appcode.created_at,
        ).json_value(),
    }


def request_document(row: QuotaRequest) -> dict[str, Any]:
    return _request(row).json_value()


def _request(row: QuotaRequest) -> RequestDocument:
    return RequestDocument.of(row, quota=_quota(row.terms), expires=row.expires_on)


def _quota(terms: Terms) -> QuotaAnswer:
    budget = None if terms.budget is None else f"{terms.budget:.2f}"
    return QuotaAnswer(gpus=terms.gpus, storage=terms.storage, budget=budget)


def me(user: User) -> dict[str, Any]:
    memberships = user.memberships.select_related("appcode").order_by("appcode__code")
    return Me.of(
        user,
        name=user.display_name,
        administrator=user.is_administrator,
        memberships=[Role(appcode=membership.appcode.code, role=membership.role) for membership in memberships],
    ).json_value()
