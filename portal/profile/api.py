"""REST of the user's own notification settings."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.views import APIView

from portal.api.operations import Document, operation
from portal.api.views import person
from portal.manifests import parse
from portal.profile.notifications import Notifications, SavedNotifications, notifications_of, set_notifications


class MeNotifications(APIView):
    @operation("me_notifications", Notifications)
    def get(self, request: Request) -> Document:
        """What I am told of runs that I started"""
        return notifications_of(person(request)).model_dump(mode="json", by_alias=True)

    @operation("me_notifications_set", SavedNotifications, request=Notifications)
    def put(self, request: Request) -> Document:
        """Choose what I am told

        Mail goes to my address; notifications come from every browser with a page of the portal open that I have
        allowed to show them; the webhook gets a signed message for each. What is left out is not told, and a webhook
        that is left out is deleted."""
        wanted = parse(Notifications, request.data)
        secret = set_notifications(wanted, acting_user=person(request))
        saved = SavedNotifications(**dict(wanted), secret=secret)
        return saved.model_dump(mode="json", by_alias=True)
