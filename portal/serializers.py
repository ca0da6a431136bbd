"""What the API says about people and appcodes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from portal.models import User


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


def me(user: User) -> dict[str, Any]:
    memberships = user.memberships.select_related("appcode").order_by("appcode__code")
    return Me(
        username=user.username,
        name=user.display_name,
        email=user.email,
        administrator=user.is_administrator,
        memberships=[Role(appcode=membership.appcode.code, role=membership.role) for membership in memberships],
    ).json_value()
