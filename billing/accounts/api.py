"""REST: members list an appcode's credits; administrators give them."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.accounts import actions
from billing.accounts.models import Credit
from billing.accounts.serializers import CreditDocument, CreditPage, CreditRequest, credit_document
from portal.access import appcode_for, require_administrator
from portal.api.operations import Document, operation
from portal.api.pagination import PAGE_PARAMETERS, page
from portal.api.views import person


class AppcodeCredits(APIView):
    @operation("credits_list", CreditPage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request, code: str) -> Response:
        """Credits of an appcode and what is left of them, the latest first"""
        appcode = appcode_for(person(request), code)
        rows = actions.credits_of(Credit.objects.filter(appcode=appcode))
        return page(request, rows, order="-id", render=credit_document)

    @operation("credits_give", {201: CreditDocument}, request=CreditRequest)
    def post(self, request: Request, code: str) -> Document:
        """Give an appcode a credit

        Administrators only. It is used up by the invoices of the months that it holds in."""
        user = person(request)
        appcode = appcode_for(user, code)
        require_administrator(user)
        asked = CreditRequest.model_validate(request.data)
        credit = actions.give_credit(
            appcode, asked.amount, asked.reason, asked.valid_from, asked.expires_at, acting_user=user
        )
        return credit_document(credit)
