"""REST of budgets: their figures and steps; adding, changing, lifting and pausing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.budgets import access, actions
from billing.budgets.models import Budget, BudgetStep
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
from portal.api.operations import Document, operation
from portal.api.pagination import PAGE_PARAMETERS, page, page_together, search, text
from portal.api.views import person
from portal.models import User

PK = OpenApiParameter("id", int, OpenApiParameter.PATH)


class Budgets(APIView):
    @operation(
        "budgets_list",
        BudgetPage,
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter("appcode", str, description="Only of this appcode."),
            OpenApiParameter("search", str, description="Every word has to occur in the appcode or business line."),
        ],
    )
    def get(self, request: Request) -> Response:
        """The budgets that I may see, with what was spent of them this month"""
        rows = access.budgets_for(person(request))
        if code := text(request, "appcode", longest=63):
            rows = rows.filter(appcode__code=code)
        rows = search(request, rows, "appcode__code", "org_node__path")
        return page_together(request, rows, order="id", render=_documents)

    @operation("budgets_add", {201: BudgetDocument}, request=BudgetRequest)
    def post(self, request: Request) -> Document:
        """Set a budget

        Owners for one of their appcodes; administrators for any appcode or business line. There is one for each."""
        user = person(request)
        asked = BudgetRequest.model_validate(request.data)
        scope = actions.scope_of(asked.appcode, asked.business_line, user)
        made = actions.add(scope, asked.asked(), acting_user=user)
        return _document(user, made.pk)


class OneBudget(APIView):
    @operation("budgets_read", BudgetDocument, parameters=[PK])
    def get(self, request: Request, pk: int) -> Document:
        """A budget, what was spent of it and what it did this month"""
        return _document(person(request), pk)

    @operation("budgets_change", BudgetDocument, parameters=[PK], request=BudgetChange)
    def put(self, request: Request, pk: int) -> Document:
        """Change a budget

        A larger amount takes back at once what had its reason in the smaller one. What an administrator set or changed
        is the administrators' alone."""
        user = person(request)
        row = access.budget_for(user, pk)
        asked = BudgetChange.model_validate(request.data)
        actions.change(row, asked.asked(), acting_user=user)
        return _document(user, pk)

    @operation("budgets_remove", {204: None}, parameters=[PK])
    def delete(self, request: Request, pk: int) -> None:
        """Remove a budget"""
        user = person(request)
        actions.remove(access.budget_for(user, pk), acting_user=user)


class BudgetSteps(APIView):
    @operation("budgets_steps", StepPage, parameters=[PK, *PAGE_PARAMETERS])
    def get(self, request: Request, pk: int) -> Response:
        """What a budget told and did, in all months, the latest first"""
        row = access.budget_for(person(request), pk)
        steps = BudgetStep.objects.filter(budget=row).select_related("lifted_by")
        return page(request, steps, order="-id", render=step_document)


class LiftBudget(APIView):
    @operation("budgets_lift", BudgetDocument, parameters=[PK], request=ReasonRequest)
    def post(self, request: Request, pk: int) -> Document:
        """Take no measures until the month is over

        Administrators only. What was blocked can start at once; it goes on telling."""
        return _with_reason(request, pk, actions.lift)

    @operation("budgets_enforce", {204: None}, parameters=[PK])
    def delete(self, request: Request, pk: int) -> None:
        """End the lift of a budget

        Administrators only. What is due is announced again."""
        user = person(request)
        actions.enforce(access.budget_for(user, pk), acting_user=user)


class PauseBudget(APIView):
    @operation("budgets_pause", BudgetDocument, parameters=[PK], request=ReasonRequest)
    def post(self, request: Request, pk: int) -> Document:
        """Neither tell nor take measures until it is resumed

        Administrators only."""
        return _with_reason(request, pk, actions.pause)

    @operation("budgets_resume", {204: None}, parameters=[PK])
    def delete(self, request: Request, pk: int) -> None:
        """Resume a budget

        Administrators only."""
        user = person(request)
        actions.resume(access.budget_for(user, pk), acting_user=user)


def _with_reason(request: Request, pk: int, act: Callable[..., None]) -> Document:
    user = person(request)
    row = access.budget_for(user, pk)
    actions.require_administrator_of(user)
    act(row, ReasonRequest.model_validate(request.data).reason, acting_user=user)
    return _document(user, pk)


def _documents(rows: Sequence[Budget]) -> list[Document]:
    return [budget_document(each) for each in access.shown(rows, timezone.now())]


def _document(user: User, pk: int) -> Document:
    return _documents([access.budget_for(user, pk)])[0]
