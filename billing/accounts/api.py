"""REST: an appcode's credits for its members; administrators give them."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.accounts import actions
from billing.accounts.models import Credit
from billing.accounts.serializers import CreditDocument, CreditPage, CreditRequest, credit_document
from portal.access import appcode_for, require_administrator
from portal.api.pagination import PAGE_PARAMETERS, page
from portal.api.views import person


class AppcodeCredits(APIView):
    @extend_schema(
        operation_id="credits_list",
        summary="Credits of an appcode and what is left of them, the latest first",
        parameters=PAGE_PARAMETERS,
        responses=CreditPage,
    )
    def get(self, request: Request, code: str) -> Response:
        appcode = appcode_for(person(request), code)
        rows = actions.credits_of(Credit.objects.filter(appcode=appcode))
        return page(request, rows, order="-id", render=credit_document)

    @extend_schema(
        operation_id="credits_give",
        summary="Give an appcode a credit",
        description="Administrators only. It is used up by the invoices of the months that it holds in.",
        request=CreditRequest,
        responses={201: CreditDocument},
    )
    def post(self, request: Request, code: str) -> Response:
        user = person(request)
        appcode = appcode_for(user, code)
        require_administrator(user)
        asked = CreditRequest.model_validate(request.data)
        credit = actions.give_credit(
            appcode, asked.amount, asked.reason, asked.valid_from, asked.expires_at, acting_user=user
        )
        return Response(credit_document(credit), status=status.HTTP_201_CREATED)
