"""REST of budgets: what was spent of them, what they told and did; setting, changing, lifting and pausing them."""

from __future__ import annotations

from collections.abc import Callable

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.budgets import access, turn
from billing.budgets.models import BudgetStep
from billing.budgets.serializers import (
    BudgetChange,
    BudgetDocument,
    BudgetPage,
    BudgetRequest,
    ReasonRequest,
    StepPage,
    budget_document,
    step_document,
)
from portal.api.pagination import PAGE_PARAMETERS, page, search, text
from portal.api.views import person
from portal.models import User

PK = OpenApiParameter("id", int, OpenApiParameter.PATH)


class Budgets(APIView):
    @extend_schema(
        operation_id="budgets_list",
        summary="The budgets that I may see, with what was spent of them this month",
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter("appcode", str, description="Only of this appcode."),
            OpenApiParameter("search", str, description="Every word has to occur in the appcode or business line."),
        ],
        responses=BudgetPage,
    )
    def get(self, request: Request) -> Response:
        rows = access.budgets_for(person(request))
        if code := text(request, "appcode", longest=63):
            rows = rows.filter(appcode__code=code)
        rows = search(request, rows, "appcode__code", "org_node__path")
        answer = page(request, rows, order="id", render=lambda row: {"row": row})
        found = [item["row"] for item in answer.data["items"]]
        answer.data["items"] = [budget_document(each) for each in access.shown(found, timezone.now())]
        return answer

    @extend_schema(
        operation_id="budgets_add",
        summary="Set a budget",
        description="Owners for one of their appcodes; administrators for any appcode or business line. There is one for each.",
        request=BudgetRequest,
        responses={201: BudgetDocument},
    )
    def post(self, request: Request) -> Response:
        user = person(request)
        asked = BudgetRequest.model_validate(request.data)
        scope = turn.scope_of(asked.appcode, asked.business_line, user)
        made = turn.add(scope, asked.asked(), acting_user=user)
        return _answer(user, made.pk, status.HTTP_201_CREATED)


class OneBudget(APIView):
    @extend_schema(
        operation_id="budgets_read",
        summary="A budget, what was spent of it and what it did this month",
        parameters=[PK],
        responses=BudgetDocument,
    )
    def get(self, request: Request, pk: int) -> Response:
        return _answer(person(request), pk)

    @extend_schema(
        operation_id="budgets_change",
        summary="Change a budget",
        description="A larger amount takes back at once what had its reason in the smaller one. What an administrator set or"
        " changed is the administrators' alone.",
        parameters=[PK],
        request=BudgetChange,
        responses=BudgetDocument,
    )
    def put(self, request: Request, pk: int) -> Response:
        user = person(request)
        row = access.budget_for(user, pk)
        asked = BudgetChange.model_validate(request.data)
        turn.change(row, asked.asked(), acting_user=user)
        return _answer(user, pk)

    @extend_schema(operation_id="budgets_remove", summary="Remove a budget", parameters=[PK], responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        user = person(request)
        turn.remove(access.budget_for(user, pk), acting_user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class BudgetSteps(APIView):
    @extend_schema(
        operation_id="budgets_steps",
        summary="What a budget told and did, in all months, the latest first",
        parameters=[PK, *PAGE_PARAMETERS],
        responses=StepPage,
    )
    def get(self, request: Request, pk: int) -> Response:
        row = access.budget_for(person(request), pk)
        steps = BudgetStep.objects.filter(budget=row).select_related("lifted_by")
        return page(request, steps, order="-id", render=step_document)


class LiftBudget(APIView):
    @extend_schema(
        operation_id="budgets_lift",
        summary="Take no measures until the month is over",
        description="Administrators only. What was blocked can start at once; it goes on telling.",
        parameters=[PK],
        request=ReasonRequest,
        responses=BudgetDocument,
    )
    def post(self, request: Request, pk: int) -> Response:
        return _with_reason(request, pk, turn.lift)

    @extend_schema(
        operation_id="budgets_enforce",
        summary="End the lift of a budget",
        description="Administrators only. What is due is announced again.",
        parameters=[PK],
        responses={204: None},
    )
    def delete(self, request: Request, pk: int) -> Response:
        return _undo(request, pk, turn.enforce)


class PauseBudget(APIView):
    @extend_schema(
        operation_id="budgets_pause",
        summary="Neither tell nor take measures until it is resumed",
        description="Administrators only.",
        parameters=[PK],
        request=ReasonRequest,
        responses=BudgetDocument,
    )
    def post(self, request: Request, pk: int) -> Response:
        return _with_reason(request, pk, turn.pause)

    @extend_schema(
        operation_id="budgets_resume",
        summary="Resume a budget",
        description="Administrators only.",
        parameters=[PK],
        responses={204: None},
    )
    def delete(self, request: Request, pk: int) -> Response:
        return _undo(request, pk, turn.resume)


def _with_reason(request: Request, pk: int, act: Callable[..., None]) -> Response:
    user = person(request)
    row = access.budget_for(user, pk)
    turn.require_administrator_of(user)
    act(row, ReasonRequest.model_validate(request.data).reason, acting_user=user)
    return _answer(user, pk)


def _undo(request: Request, pk: int, act: Callable[..., None]) -> Response:
    user = person(request)
    act(access.budget_for(user, pk), acting_user=user)
    return Response(status=status.HTTP_204_NO_CONTENT)


def _answer(user: User, pk: int, code: int = status.HTTP_200_OK) -> Response:
    [shown] = access.shown([access.budget_for(user, pk)], timezone.now())
    return Response(budget_document(shown), status=code)
