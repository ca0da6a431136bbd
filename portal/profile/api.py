"""REST of the user's own notifications: their settings, and what the bell tells."""

from __future__ import annotations

import datetime as dt

from django.utils import timezone
from pydantic import AwareDatetime, Field
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.api.documents import Answer, page_of
from portal.api.operations import Document, operation
from portal.api.pagination import PAGE_PARAMETERS, page_elsewhere
from portal.api.views import person
from portal.manifests import Strict, parse
from portal.models import User
from portal.profile import bell
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


class Told(Answer):
    type: str = Field(description="The kind of event, as webhooks get it: run.failed.")
    at: dt.datetime
    title: str
    text: str
    url: str = Field(description="Path of its page.")
    waits: bool = Field(description="Whether somebody has to do something.")
    is_new: bool = Field(description="Whether it is later than what you have read.")


ToldPage = page_of("ToldPage", Told)


class ReadUntil(Strict):
    """Everything up to this time has been read."""

    until: AwareDatetime


class Unread(Answer):
    until: dt.datetime
    unread: int = Field(description=f"What is later, counted up to {bell.MOST_COUNTED + 1}.")


class MeBell(APIView):
    @operation("me_bell_list", ToldPage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request) -> Response:
        """What I am told, newest first

        Ends, lost GPUs and notices of what I started, decisions and budgets of my appcodes, and what waits for me. Nothing
        has to be switched on for it."""
        user = person(request)
        return page_elsewhere(request, lambda cursor, limit: bell.lines(user, cursor, limit), render=_line)


class MeBellRead(APIView):
    @operation("me_bell_read", Unread)
    def get(self, request: Request) -> Document:
        """Until when I have read, and how much is unread"""
        return _unread(person(request))

    @operation("me_bell_read_set", Unread, request=ReadUntil)
    def put(self, request: Request) -> Document:
        """Note that I have read everything up to a time

        Send `at` of the newest item that you have shown, so that what came meanwhile stays unread. An earlier time than
        the one that is noted changes nothing; a later one than now counts as now."""
        user = person(request)
        bell.read(user, min(parse(ReadUntil, request.data).until, timezone.now()))
        user.refresh_from_db(fields=["told_until"])
        return _unread(user)


def _unread(user: User) -> Document:
    return Unread(until=user.told_until, unread=bell.unread(user)).json_value()


def _line(line: bell.Line) -> Document:
    news = line.news
    return Told.of(news, type=news.key, waits=line.waits, is_new=line.is_new).json_value()
