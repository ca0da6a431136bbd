"""What the API says about people and appcodes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from portal import hooks
from portal.manifests import parse
from portal.models import Appcode, Membership, QuotaRequest, User
from portal.specs import AppcodeManifest
from portal.terms import Terms


class Answer(BaseModel):
    """A value that the API sends: camelCase keys, times in UTC, amounts of money as decimal strings."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    def json_value(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


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
    """What was last asked for an appcode, and what became of it."""

    state: Literal["waiting", "changes-requested", "approved", "refused", "withdrawn"]
    revision: int = Field(description="Named by who decides; goes up whenever the request is sent.")
    quota: QuotaAnswer
    expires: dt.date | None
    reason: str
    asked_by: str | None
    asked_at: dt.datetime
    decided_by: str | None
    decided_at: dt.datetime | None
    note: str = Field(description="Why it was refused, or what is to be changed.")


class AppcodeStatus(Answer):
    state: Literal["requested", "changes-requested", "refused", "withdrawn", "active", "expired", "disabled"]
    note: str = Field(description="Why it was disabled.")
    request: RequestDocument | None
    created: dt.datetime
    requested_by: str | None


class AppcodeDocument(AppcodeManifest):
    """An appcode as it is answered: the manifest with its state."""

    status: AppcodeStatus


class RequestPage(Answer):
    items: list[RequestDocument]
    next: str | None


class AppcodePage(Answer):
    items: list[AppcodeDocument]
    next: str | None


def read_appcode(body: Any, *, code: str | None = None) -> AppcodeManifest:
    """The manifest in a body, sent to /appcodes[/`code`]; the address may say the code instead. Raises Invalid."""
    if code is not None and isinstance(body, dict):
        body = {"metadata": {"name": code}, **body}
    return parse(AppcodeManifest, body)


def appcode_documents(appcodes: Sequence[Appcode]) -> list[dict[str, Any]]:
    """The appcodes as manifests. One query for budgets when all that belongs to them was fetched."""
    budgets = hooks.budgets_of([each.pk for each in appcodes])
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
        },
        "status": AppcodeStatus(
            state=appcode.standing,
            note=appcode.note,
            request=_request(asked) if asked else None,
            created=appcode.created_at,
            requested_by=appcode.requested_by.username if appcode.requested_by else None,
        ).json_value(),
    }


def request_document(row: QuotaRequest) -> dict[str, Any]:
    return _request(row).json_value()


def _request(row: QuotaRequest) -> RequestDocument:
    return RequestDocument(
        state=row.state, revision=row.revision, quota=_quota(row.terms), expires=row.expires_on, reason=row.reason,
        asked_by=row.asked_by.username if row.asked_by else None, asked_at=row.asked_at,
        decided_by=row.decided_by.username if row.decided_by else None, decided_at=row.decided_at, note=row.note,
    )  # fmt: skip


def _quota(terms: Terms) -> QuotaAnswer:
    budget = None if terms.budget is None else f"{terms.budget:.2f}"
    return QuotaAnswer(gpus=terms.gpus, storage=terms.storage, budget=budget)


def me(user: User) -> dict[str, Any]:
    memberships = user.memberships.select_related("appcode").order_by("appcode__code")
    return Me(
        username=user.username,
        name=user.display_name,
        email=user.email,
        administrator=user.is_administrator,
        time_zone=user.time_zone,
        memberships=[Role(appcode=membership.appcode.code, role=membership.role) for membership in memberships],
    ).json_value()
