"""What the API says about people and appcodes."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from portal.manifests import parse
from portal.models import Appcode, Membership, User
from portal.specs import AppcodeManifest


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
    memberships: list[Role]


class AppcodeStatus(Answer):
    state: Literal["requested", "active", "refused", "disabled"]
    note: str = Field(description="Why it was refused or disabled.")
    created: dt.datetime
    requested_by: str | None


class AppcodeDocument(AppcodeManifest):
    """An appcode as it is answered: the manifest with its state."""

    status: AppcodeStatus


class AppcodePage(Answer):
    items: list[AppcodeDocument]
    next: str | None


def read_appcode(body: Any, *, code: str | None = None) -> AppcodeManifest:
    """The manifest in a body, sent to /appcodes[/`code`]; the address may say the code instead. Raises Invalid."""
    if code is not None and isinstance(body, dict):
        body = {"metadata": {"name": code}, **body}
    return parse(AppcodeManifest, body)


def appcode_document(appcode: Appcode) -> dict[str, Any]:
    """The appcode as a manifest. No queries when `org_node`, `requested_by` and `memberships__user` were fetched."""
    members = appcode.memberships.all()
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
            "gpuQuota": appcode.gpu_quota,
            "storageQuotaGib": appcode.storage_quota_gib,
        },
        "status": AppcodeStatus(
            state=appcode.state,
            note=appcode.note,
            created=appcode.created_at,
            requested_by=appcode.requested_by.username if appcode.requested_by else None,
        ).json_value(),
    }


def me(user: User) -> dict[str, Any]:
    memberships = user.memberships.select_related("appcode").order_by("appcode__code")
    return Me(
        username=user.username,
        name=user.display_name,
        email=user.email,
        administrator=user.is_administrator,
        memberships=[Role(appcode=membership.appcode.code, role=membership.role) for membership in memberships],
    ).json_value()
