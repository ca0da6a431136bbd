"""What a person wants to be told of the runs that they started, and how: by mail, or by a notification of their browsers.

A phase that a run comes to is news for who started it. Programs are told by webhooks (portal/webhooks), which an appcode has.
"""

from __future__ import annotations

from typing import Annotated, Literal

from django.db import transaction
from pydantic import AfterValidator, Field

from portal.manifests import Strict
from portal.models import User

# As runs have them, in small letters, and what people read.
PHASES = {"running": "starts running", "succeeded": "succeeds", "failed": "fails", "stopped": "is stopped"}
Phase = Literal["running", "succeeded", "failed", "stopped"]


def _in_order(value: list[Phase]) -> list[Phase]:
    return [phase for phase in PHASES if phase in value]


Phases = Annotated[list[Phase], Field(max_length=20, examples=[["failed", "succeeded"]]), AfterValidator(_in_order)]


class Notifications(Strict):
    """`mail` and `browser` are the phases of one's own runs that are told there; none by default."""

    mail: Phases = Field(default_factory=list)
    browser: Phases = Field(default_factory=list)


def notifications_of(user: User) -> Notifications:
    return Notifications.model_validate({"mail": user.mail_phases, "browser": user.browser_phases})


@transaction.atomic
def set_notifications(wanted: Notifications, *, acting_user: User) -> None:
    """Of oneself. What happened before is not told."""
    acting_user.mail_phases, acting_user.browser_phases = list(wanted.mail), list(wanted.browser)
    acting_user.save(update_fields=["mail_phases", "browser_phases"])
