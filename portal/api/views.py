"""REST: who I am, appcodes, and the description of the API itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from django.contrib.auth import get_user
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework import status
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.access import MANAGE, appcode_for, appcodes_for, require_administrator
from portal.actions import appcodes as appcodes_actions
from portal.actions import people as people_actions
from portal.actions import requests as requests_actions
from portal.api import openapi as openapi  # known to the description before the first one is made
from portal.api.documents import (
    AppcodeDocument,
    AppcodePage,
    Me,
    RequestDocument,
    RequestPage,
    appcode_document,
    appcode_documents,
    me,
    read_appcode,
    request_document,
)
from portal.api.pagination import PAGE_PARAMETERS, SEARCH_PARAMETER, page, search, text
from portal.api.problems import PasswordToChoose
from portal.api.tokens import BearerAuthentication
from portal.manifests import Value, parse
from portal.models import Appcode, QuotaRequest, User
from portal.specs import Answered, AppcodeManifest, Granted, MeChange, Wanted

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


class MeView(APIView):
    @extend_schema(operation_id="me", summary="Who I am and where I may do what", responses=Me)
    def get(self, request: Request) -> Response:
        return Response(me(person(request)))

    @extend_schema(
        operation_id="me_change", summary="Change the zone in which pages show me times", request=MeChange, responses=Me
    )
    def patch(self, request: Request) -> Response:
        wanted, user = parse(MeChange, request.data), person(request)
        people_actions.set_time_zone(wanted.time_zone, acting_user=user)
        return Response(me(user))


class Appcodes(APIView):
    @extend_schema(
        operation_id="appcodes_list",
        summary="The appcodes that I may see, by code",
        parameters=[
            *PAGE_PARAMETERS,
            SEARCH_PARAMETER,
            OpenApiParameter(
                "request", str, enum=QuotaRequest.State.values, description="Whose request is in this state."
            ),
        ],
        responses=AppcodePage,
    )
    def get(self, request: Request) -> Response:
        rows = search(request, _with_people(appcodes_for(person(request))), "code", "name", "org_node__path")
        if state := text(request, "request", longest=20):
            rows = rows.filter(request__state=state)
        answer = page(request, rows, order="code", render=lambda row: {"row": row})
        answer.data["items"] = appcode_documents([item["row"] for item in answer.data["items"]])
        return answer

    @extend_schema(
        operation_id="appcodes_request",
        summary="Request an appcode",
        description="It can be used once an administrator has approved it; at once when an administrator asks.",
        request=AppcodeManifest,
        responses={201: AppcodeDocument},
        examples=[EXAMPLE],
    )
    def post(self, request: Request) -> Response:
        appcode = appcodes_actions.request_appcode(read_appcode(request.data), acting_user=person(request))
        address = request.build_absolute_uri(f"{request.path}/{appcode.code}")
        return Response(appcode_document(appcode), status=status.HTTP_201_CREATED, headers={"Location": address})


class OneAppcode(APIView):
    @extend_schema(operation_id="appcodes_read", summary="An appcode as a manifest", responses=AppcodeDocument)
    def get(self, request: Request, code: str) -> Response:
        return Response(appcode_document(appcode_for(person(request), code)))

    @extend_schema(
        operation_id="appcodes_change",
        summary="Change an appcode",
        description="Owners who are not named any more become developers. Quota, last day and org node are an administrator's to"
        " change; owners ask for them at /quota-requests. One that was never approved is thereby sent again.",
        request=AppcodeManifest,
        responses=AppcodeDocument,
        examples=[EXAMPLE],
    )
    def put(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, MANAGE)
        appcodes_actions.change_appcode(appcode, read_appcode(request.data, code=code), acting_user=person(request))
        return Response(appcode_document(appcode_for(person(request), code)))


class QuotaRequests(APIView):
    @extend_schema(
        operation_id="appcodes_quota_requests_list",
        summary="What was last asked for an appcode, and what became of it",
        description="One at most: two are never open at a time, and what came before stands in the events.",
        responses=RequestPage,
    )
    def get(self, request: Request, code: str) -> Response:
        asked = appcode_for(person(request), code).asked
        return Response({"items": [request_document(asked)] if asked else [], "next": None})

    @extend_schema(
        operation_id="appcodes_quota_requests_send",
        summary="Ask for another quota, budget or last day, or change what is asked for and send it again",
        description="The appcode keeps what it has until an administrator approves. What is left out stays as it is.",
        request=Wanted,
        responses={201: RequestDocument},
        examples=[
            OpenApiExample("More GPUs", request_only=True, value={"quota": {"gpus": 16}, "reason": "Two models."})
        ],
    )
    def post(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code, MANAGE)
        asked = requests_actions.ask(appcode, parse(Wanted, request.data), acting_user=person(request))
        return Response(request_document(asked), status=status.HTTP_201_CREATED)


class WithdrawRequest(APIView):
    @extend_schema(
        operation_id="appcodes_quota_requests_withdraw",
        summary="Withdraw an open request",
        request=None,
        responses={204: None},
    )
    def post(self, request: Request, code: str) -> Response:
        requests_actions.withdraw(appcode_for(person(request), code, MANAGE), acting_user=person(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ApproveRequest(APIView):
    @extend_schema(
        operation_id="appcodes_quota_requests_approve",
        summary="Approve what is asked for, or give something else instead",
        description="Administrators only. What is left out is as it was asked for.",
        request=Granted,
        responses=AppcodeDocument,
        examples=[OpenApiExample("Fewer GPUs", request_only=True, value={"revision": 1, "quota": {"gpus": 12}})],
    )
    def post(self, request: Request, code: str) -> Response:
        return _decide(request, code, Granted, requests_actions.approve)


class RefuseRequest(APIView):
    @extend_schema(
        operation_id="appcodes_quota_requests_refuse",
        summary="Refuse a request",
        description="Administrators only. Owners may change it and send it again.",
        request=Answered,
        responses=AppcodeDocument,
    )
    def post(self, request: Request, code: str) -> Response:
        return _decide(request, code, Answered, requests_actions.refuse)


class RequestChanges(APIView):
    @extend_schema(
        operation_id="appcodes_quota_requests_change",
        summary="Ask for changes of a request",
        description="Administrators only. It is open until the owners send it again or withdraw it.",
        request=Answered,
        responses=AppcodeDocument,
    )
    def post(self, request: Request, code: str) -> Response:
        return _decide(request, code, Answered, requests_actions.request_changes)


class SchemaView(SpectacularAPIView):
    """The OpenAPI description, as YAML or, with `?format=json`, as JSON. It tells nothing about anybody's data."""


class DocsView(SpectacularSwaggerSplitView):
    """Swagger UI from our own server. Its script is a file of its own, so that no inline script has to be allowed."""

    template_name = "portal/api_docs.html"
    url_name = "api-schema"


def person(request: Request) -> User:
    """Who asks; the default permissions let nobody else through."""
    return cast("User", request.user)


def person_still(request: Request) -> User | None:
    """Who asked, if they are still signed in with what they asked with: for answers that last long."""
    if request.auth is not None:
        try:
            found = BearerAuthentication().authenticate(request)
        except (AuthenticationFailed, PasswordToChoose):
            return None
        return found[0] if found else None
    http = request._request
    # As another process may have left it, not as it was read for this request.
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
