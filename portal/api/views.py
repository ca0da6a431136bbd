"""REST: the current user, appcodes, and the API's description."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from django.conf import settings
from django.contrib.auth import get_user
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal import __version__
from portal.access import MANAGE, appcode_for, appcodes_for, require_administrator
from portal.actions import appcodes as appcodes_actions
from portal.actions import people as people_actions
from portal.actions import requests as requests_actions
from portal.api import openapi as openapi  # registers its extensions before the first description is generated
from portal.api.documents import (
    AppcodeDocument,
    AppcodePage,
    Me,
    RequestDocument,
    RequestPage,
    Version,
    appcode_document,
    appcode_documents,
    me,
    read_appcode,
    request_document,
)
from portal.api.operations import Document, created, operation
from portal.api.pagination import LIST_PARAMETERS, page_together, search, text
from portal.api.parameters import KnownParameters
from portal.api.problems import PasswordToChoose
from portal.api.tokens import BearerAuthentication
from portal.manifests import Value, parse
from portal.manifests.appcode import Answered, AppcodeManifest, Granted, MeChange, Wanted
from portal.models import Appcode, QuotaRequest, User

EXAMPLE = OpenApiExample(
    "An appcode of the business line OPS",
    request_only=True,
    value={
        "kind": "appcode",
        "metadata": {"name": "npe_ix_test_gpu"},
        "spec": {
            "orgNode": "example.ops",
            "owners": ["alice"],
            "emails": ["alice@example.com"],
            "remark": "Recommendations, second try",
        },
    },
)


class VersionView(APIView):
    """Open to everybody, as the sign-in page is, which says the same. A token that is no longer good does not matter here."""

    authentication_classes = ()
    permission_classes = (KnownParameters,)

    @operation("version", Version, auth=[])
    def get(self, request: Request) -> Document:
        """Which version of the portal answers

        Needs no token."""
        return Version(version=__version__, api=settings.SPECTACULAR_SETTINGS["VERSION"]).json_value()


class MeView(APIView):
    @operation("me", Me)
    def get(self, request: Request) -> Document:
        """Who I am and where I may do what"""
        return me(person(request))

    @operation("me_change", Me, request=MeChange)
    def patch(self, request: Request) -> Document:
        """Change the zone in which pages show me times"""
        wanted, user = parse(MeChange, request.data), person(request)
        people_actions.set_time_zone(wanted.time_zone, acting_user=user)
        return me(user)


class Appcodes(APIView):
    @operation(
        "appcodes_list",
        AppcodePage,
        parameters=[
            *LIST_PARAMETERS,
            OpenApiParameter(
                "request", str, enum=QuotaRequest.State.values, description="Whose request is in this state."
            ),
        ],
    )
    def get(self, request: Request) -> Response:
        """The appcodes that I may see, by code"""
        rows = search(request, _with_people(appcodes_for(person(request))), "code", "name", "org_node__path")
        if state := text(request, "request", longest=20):
            rows = rows.filter(request__state=state)
        return page_together(request, rows, order="code", render=appcode_documents)

    @operation("appcodes_request", {201: AppcodeDocument}, request=AppcodeManifest, examples=[EXAMPLE])
    def post(self, request: Request) -> Response:
        """Request an appcode

        It can be used once an administrator has approved it; at once when an administrator asks."""
        appcode = appcodes_actions.request_appcode(read_appcode(request.data), acting_user=person(request))
        return created(request, appcode.code, appcode_document(appcode))


class OneAppcode(APIView):
    @operation("appcodes_read", AppcodeDocument)
    def get(self, request: Request, code: str) -> Document:
        """An appcode as a manifest"""
        return appcode_document(appcode_for(person(request), code))

    @operation("appcodes_change", AppcodeDocument, request=AppcodeManifest, examples=[EXAMPLE])
    def put(self, request: Request, code: str) -> Document:
        """Change an appcode

        Owners who are not named any more become developers. Quota, last day and org node are an administrator's to
        change; owners ask for them at /quota-requests. One that was never approved is thereby sent again."""
        appcode = appcode_for(person(request), code, MANAGE)
        appcodes_actions.change_appcode(appcode, read_appcode(request.data, code=code), acting_user=person(request))
        return appcode_document(appcode_for(person(request), code))


class QuotaRequests(APIView):
    @operation("appcodes_quota_requests_list", RequestPage)
    def get(self, request: Request, code: str) -> Document:
        """What was last asked for an appcode, and what became of it

        One at most: two are never open at a time, and what came before stands in the events."""
        asked = appcode_for(person(request), code).asked
        return {"items": [request_document(asked)] if asked else [], "next": None}

    @operation(
        "appcodes_quota_requests_send",
        {201: RequestDocument},
        request=Wanted,
        examples=[
            OpenApiExample("More GPUs", request_only=True, value={"quota": {"gpus": 16}, "reason": "Two models."})
        ],
    )
    def post(self, request: Request, code: str) -> Document:
        """Ask for another quota, budget or last day, or change what is asked for and send it again

        The appcode keeps what it has until an administrator approves. What is left out stays as it is."""
        appcode = appcode_for(person(request), code, MANAGE)
        asked = requests_actions.ask(appcode, parse(Wanted, request.data), acting_user=person(request))
        return request_document(asked)


class WithdrawRequest(APIView):
    @operation("appcodes_quota_requests_withdraw", {204: None})
    def post(self, request: Request, code: str) -> None:
        """Withdraw an open request"""
        requests_actions.withdraw(appcode_for(person(request), code, MANAGE), acting_user=person(request))


class ApproveRequest(APIView):
    @operation(
        "appcodes_quota_requests_approve",
        AppcodeDocument,
        request=Granted,
        examples=[OpenApiExample("Fewer GPUs", request_only=True, value={"revision": 1, "quota": {"gpus": 12}})],
    )
    def post(self, request: Request, code: str) -> Response:
        """Approve what is asked for, or give something else instead

        Administrators only. What is left out is as it was asked for."""
        return _decide(request, code, Granted, requests_actions.approve)


class RefuseRequest(APIView):
    @operation("appcodes_quota_requests_refuse", AppcodeDocument, request=Answered)
    def post(self, request: Request, code: str) -> Response:
        """Refuse a request

        Administrators only. Owners may change it and send it again."""
        return _decide(request, code, Answered, requests_actions.refuse)


class RequestChanges(APIView):
    @operation("appcodes_quota_requests_change", AppcodeDocument, request=Answered)
    def post(self, request: Request, code: str) -> Response:
        """Ask for changes of a request

        Administrators only. It is open until the owners send it again or withdraw it."""
        return _decide(request, code, Answered, requests_actions.request_changes)


class SchemaView(SpectacularAPIView):
    """The OpenAPI description, as YAML or, with `?format=json`, as JSON. It contains no user data."""


class DocsView(SpectacularSwaggerSplitView):
    """Swagger UI from our own server. Its script is a separate file, so that the CSP can forbid inline scripts."""

    template_name = "portal/api_docs.html"
    url_name = "api-schema"


def person(request: Request) -> User:
    """The user of a request; the default permissions refuse anonymous ones."""
    return cast("User", request.user)


def administrator(request: Request) -> User:
    """The user of a request if it is an administrator. Raises Http404 otherwise."""
    user = person(request)
    require_administrator(user)
    return user


def person_still(request: Request) -> User | None:
    """The request's user if its credentials are still valid; for long-lived responses. None otherwise."""
    if request.auth is not None:
        try:
            found = BearerAuthentication().authenticate(request)
        except (AuthenticationFailed, PasswordToChoose):
            return None
        return found[0] if found else None
    http = request._request
    # Reads the session again: another process may have changed it since this request began.
    http.session = type(http.session)(http.session.session_key)
    user = get_user(http)
    return user if isinstance(user, User) and not user.must_change_password else None


def _decide(request: Request, code: str, body: type[Value], act: Callable[..., object]) -> Response:
    user = person(request)
    appcode = appcode_for(user, code)
    require_administrator(user)
    act(appcode, parse(body, request.data), acting_user=user)
    return Response(appcode_document(appcode_for(user, code)))


def _with_people(appcodes: QuerySet[Appcode]) -> QuerySet[Appcode]:
    people = "requested_by", "request__asked_by", "request__decided_by"
    return appcodes.select_related("org_node", *people).prefetch_related("memberships__user")
