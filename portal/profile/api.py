"""REST of one's own choices: what one is told of one's runs."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.api.views import person
from portal.manifests import parse
from portal.profile.notifications import Notifications, SavedNotifications, notifications_of, set_notifications


class MeNotifications(APIView):
    @extend_schema(
        operation_id="me_notifications",
        summary="What I am told of runs that I started",
        responses=Notifications,
    )
    def get(self, request: Request) -> Response:
        return Response(notifications_of(person(request)).model_dump(mode="json", by_alias=True))

    @extend_schema(
        operation_id="me_notifications_set",
        summary="Choose what I am told",
        description="Mail goes to my address; notifications come from every browser with a page of the portal open that I have "
        "allowed to show them; the webhook gets a signed message for each. What is left out is not told, and a webhook that is "
        "left out is deleted.",
        request=Notifications,
        responses=SavedNotifications,
    )
    def put(self, request: Request) -> Response:
        wanted = parse(Notifications, request.data)
        secret = set_notifications(wanted, acting_user=person(request))
        saved = SavedNotifications(**dict(wanted), secret=secret)
        return Response(saved.model_dump(mode="json", by_alias=True))
