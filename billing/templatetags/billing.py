from __future__ import annotations

from decimal import Decimal

from django import template
from django.conf import settings
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing import money

register = template.Library()


@register.filter
def decimals(value: Decimal, digits: int) -> str:
    """ "1,234.50", rounded half to even, for display only; tiny amounts are "< 0.01", as those of `gpu_hours` and `money`."""
    shown = round(value, digits)
    return f"< {Decimal(1).scaleb(-digits)}" if value > 0 and not shown else f"{shown:,.{digits}f}"


@register.filter
def negative(value: Decimal) -> Decimal:
    return -value


@register.filter
def magnitude(value: Decimal) -> Decimal:
    return abs(value)


@register.filter
def sign(value: Decimal) -> str:
    """The sign of a difference."""
    return "+" if value > 0 else "−" if value < 0 else ""


@register.filter
def plain(value: Decimal) -> str:
    """ "12.5": without trailing zeros."""
    return f"{value.normalize():f}"


@register.filter
def sku(value: str) -> str:
    return money.title(value)


@register.filter
def unit_seconds(quantity: int, sku: str) -> str:
    return money.unit_seconds(sku, quantity)


@register.simple_tag
def price(value: Decimal) -> SafeString:
    return format_html('<span class="money">{} <small>{}</small></span>', money.price_text(value), settings.CURRENCY)
