"""REST for administrators: prices, one by one or as a file, what a change would do, and discounts."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.prices import actions, terms
from billing.prices.effects import effect
from billing.prices.models import Discount, Price
from billing.prices.serializers import (
    DiscountDocument,
    DiscountPage,
    DiscountRequest,
    EffectDocument,
    ImportDocument,
    PriceDocument,
    PricePage,
    PriceRequest,
    discount_document,
    effect_document,
    import_document,
    price_document,
)
from portal.access import require_administrator
from portal.api.pagination import PAGE_PARAMETERS, page
from portal.api.problems import TooLarge
from portal.api.views import person
from portal.files import download

CSV, BYTES = "text/csv", "application/octet-stream"


class CsvBody(BaseParser):
    """Reads a file of prices: at most settings.DATA_UPLOAD_MAX_MEMORY_SIZE bytes, in UTF-8."""

    media_type = CSV

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body: bytes = stream.read(limit + 1)
        if len(body) > limit:
            raise TooLarge(f"A file of prices has at most {limit // 1024} KiB.")
        try:
            return body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ParseError("The file has to be in UTF-8.") from error


class CsvBytes(CsvBody):
    """The same, sent by programs that know no CSV: the usual generators of clients are among them."""

    media_type = BYTES


class Prices(APIView):
    @extend_schema(
        operation_id="prices_list",
        summary="All versions of all prices, the latest first",
        parameters=PAGE_PARAMETERS,
        responses=PricePage,
    )
    def get(self, request: Request) -> Response:
        require_administrator(person(request))
        return page(request, Price.objects.select_related("appcode"), order="-id", render=price_document)

    @extend_schema(
        operation_id="prices_add",
        summary="Add a price",
        description="It holds from `validFrom` (now when absent) until the next price of the same SKU for the same appcode,"
        " business line or everybody. `perHour` null ends a special price.",
        request=PriceRequest,
        responses={201: PriceDocument},
    )
    def post(self, request: Request) -> Response:
        user = person(request)
        require_administrator(user)
        asked = PriceRequest.model_validate(request.data)
        scope = actions.scope_of(asked.appcode, asked.business_line)
        price = actions.add_price(asked.sku, asked.per_hour, asked.valid_from, acting_user=user, scope=scope)
        return Response(price_document(price), status=status.HTTP_201_CREATED)


class OnePrice(APIView):
    @extend_schema(
        operation_id="prices_withdraw",
        summary="Take back a price that does not hold yet",
        responses={204: None},
    )
    def delete(self, request: Request, pk: int) -> Response:
        user = person(request)
        require_administrator(user)
        actions.withdraw_price(get_object_or_404(Price, pk=pk), acting_user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class PriceEffect(APIView):
    @extend_schema(
        operation_id="prices_preview",
        summary="What a price would do to this month",
        description="This month's usage so far, rated by the book as it is and as if the price had held since the first of"
        " the month. Nothing is changed.",
        request=PriceRequest,
        responses=EffectDocument,
    )
    def post(self, request: Request) -> Response:
        require_administrator(person(request))
        asked = PriceRequest.model_validate(request.data)
        scope = actions.scope_of(asked.appcode, asked.business_line)
        change = actions.asked_price(asked.sku, asked.per_hour, asked.valid_from, scope)
        return Response(effect_document(effect([change], timezone.now())))


class PriceFile(APIView):
    parser_classes = (CsvBody, CsvBytes)

    @extend_schema(
        operation_id="prices_export",
        summary="The whole price book as CSV",
        responses={(200, CSV): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> HttpResponse:
        require_administrator(person(request))
        return download(actions.exported().encode(), f"{CSV}; charset=utf-8", "prices.csv")

    @extend_schema(
        operation_id="prices_import",
        summary="Bring all prices of a CSV file into the book, or none",
        description="As the export writes it. What the file does not name stays. Paths of errors are LINE.COLUMN.",
        request={CSV: OpenApiTypes.STR, BYTES: OpenApiTypes.BINARY},
        responses=ImportDocument,
    )
    def post(self, request: Request) -> Response:
        user = person(request)
        require_administrator(user)
        return Response(import_document(actions.import_prices(str(request.data), acting_user=user)))


class Discounts(APIView):
    @extend_schema(
        operation_id="discounts_list",
        summary="All discounts, the latest first",
        parameters=PAGE_PARAMETERS,
        responses=DiscountPage,
    )
    def get(self, request: Request) -> Response:
        require_administrator(person(request))
        return page(request, Discount.objects.select_related("appcode"), order="-id", render=discount_document)

    @extend_schema(
        operation_id="discounts_add",
        summary="Add a discount",
        description='`sku` "*" means everything and "gpu" GPUs of every model. Of several that apply the largest counts.',
        request=DiscountRequest,
        responses={201: DiscountDocument},
    )
    def post(self, request: Request) -> Response:
        user = person(request)
        require_administrator(user)
        asked = DiscountRequest.model_validate(request.data)
        scope = actions.scope_of(asked.appcode, asked.business_line)
        discount = terms.add_discount(
            asked.sku, asked.percent, asked.valid_from, asked.valid_until, asked.reason, acting_user=user, scope=scope
        )
        return Response(discount_document(discount), status=status.HTTP_201_CREATED)


class OneDiscount(APIView):
    @extend_schema(
        operation_id="discounts_end",
        summary="End a discount now, or take back one that has not begun",
        responses={204: None},
    )
    def delete(self, request: Request, pk: int) -> Response:
        user = person(request)
        require_administrator(user)
        terms.end_discount(get_object_or_404(Discount, pk=pk), acting_user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)
