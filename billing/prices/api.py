"""REST for administrators: prices, one by one or as a file, previews of changes, and discounts."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
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
from portal.api.operations import Document, operation
from portal.api.pagination import PAGE_PARAMETERS, page
from portal.api.problems import TooLarge
from portal.api.views import administrator
from portal.web.downloads import download

CSV, BYTES = "text/csv", "application/octet-stream"


class CsvBody(BaseParser):
    """Parses a CSV body of at most settings.DATA_UPLOAD_MAX_MEMORY_SIZE bytes, in UTF-8."""

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
    """The same body as binary data: common client generators do not support CSV."""

    media_type = BYTES


class Prices(APIView):
    @operation("prices_list", PricePage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request) -> Response:
        """All versions of all prices, the latest first"""
        administrator(request)
        return page(request, Price.objects.select_related("appcode"), order="-id", render=price_document)

    @operation("prices_add", {201: PriceDocument}, request=PriceRequest)
    def post(self, request: Request) -> Document:
        """Add a price

        It holds from `validFrom` (now when absent) until the next price of the same SKU for the same appcode, business
        line or everybody. `perHour` null ends a special price."""
        user = administrator(request)
        asked = PriceRequest.model_validate(request.data)
        scope = actions.scope_of(asked.appcode, asked.business_line)
        price = actions.add_price(asked.sku, asked.per_hour, asked.valid_from, acting_user=user, scope=scope)
        return price_document(price)


class OnePrice(APIView):
    @operation("prices_withdraw", {204: None})
    def delete(self, request: Request, pk: int) -> None:
        """Take back a price that does not hold yet"""
        user = administrator(request)
        actions.withdraw_price(get_object_or_404(Price, pk=pk), acting_user=user)


class PriceEffect(APIView):
    @operation("prices_preview", EffectDocument, request=PriceRequest)
    def post(self, request: Request) -> Document:
        """What a price would do to this month

        This month's usage so far, rated by the book as it is and as if the price had held since the first of the month.
        Nothing is changed."""
        administrator(request)
        asked = PriceRequest.model_validate(request.data)
        scope = actions.scope_of(asked.appcode, asked.business_line)
        change = actions.asked_price(asked.sku, asked.per_hour, asked.valid_from, scope)
        return effect_document(effect([change], timezone.now()))


class PriceFile(APIView):
    parser_classes = (CsvBody, CsvBytes)

    @operation("prices_export", {(200, CSV): OpenApiTypes.STR})
    def get(self, request: Request) -> HttpResponse:
        """The whole price book as CSV"""
        administrator(request)
        return download(actions.exported().encode(), f"{CSV}; charset=utf-8", "prices.csv")

    @operation("prices_import", ImportDocument, request={CSV: OpenApiTypes.STR, BYTES: OpenApiTypes.BINARY})
    def post(self, request: Request) -> Document:
        """Bring all prices of a CSV file into the book, or none

        As the export writes it. What the file does not name stays. Paths of errors are LINE.COLUMN."""
        user = administrator(request)
        return import_document(actions.import_prices(str(request.data), acting_user=user))


class Discounts(APIView):
    @operation("discounts_list", DiscountPage, parameters=PAGE_PARAMETERS)
    def get(self, request: Request) -> Response:
        """All discounts, the latest first"""
        administrator(request)
        return page(request, Discount.objects.select_related("appcode"), order="-id", render=discount_document)

    @operation("discounts_add", {201: DiscountDocument}, request=DiscountRequest)
    def post(self, request: Request) -> Document:
        """Add a discount

        `sku` "*" means everything and "gpu" GPUs of every model. Of several that apply the largest counts."""
        user = administrator(request)
        asked = DiscountRequest.model_validate(request.data)
        scope = actions.scope_of(asked.appcode, asked.business_line)
        discount = terms.add_discount(
            asked.sku, asked.percent, asked.valid_from, asked.valid_until, asked.reason, acting_user=user, scope=scope
        )
        return discount_document(discount)


class OneDiscount(APIView):
    @operation("discounts_end", {204: None})
    def delete(self, request: Request, pk: int) -> None:
        """End a discount now, or take back one that has not begun"""
        user = administrator(request)
        terms.end_discount(get_object_or_404(Discount, pk=pk), acting_user=user)
