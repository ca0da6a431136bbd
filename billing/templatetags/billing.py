from __future__ import annotations

from decimal import Decimal

from django import template
from django.conf import settings
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.money import class_of, family, model_of, price_text

register = template.Library()
WORDS = {"gpu": "GPU", "cpu": "CPU", "memory": "Memory", "storage": "Storage"}


@register.filter
def decimals(value: Decimal, digits: int) -> str:
    """ "1,234.50", rounded half to even, for display only."""
    return f"{round(value, digits):,.{digits}f}"


@register.filter
def negative(value: Decimal) -> Decimal:
    return -value


@register.filter
def magnitude(value: Decimal) -> Decimal:
    return abs(value)


@register.filter
def taken(used: Decimal, to_pay: Decimal) -> Decimal:
    """What credits and credit notes took off, as a negative amount."""
    return to_pay - used


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
    """The display name of a SKU: "GPU A100" for "gpu:A100", "GPU A100, spare" for "spare-gpu:A100", "Memory" for "memory"."""
    kind = family(value)
    named = f"{WORDS.get(kind, kind)} {model_of(value)}".strip()
    return f"{named}, {of}" if (of := class_of(value)) else named


@register.simple_tag
def price(value: Decimal) -> SafeString:
    return format_html('<span class="money">{} <small>{}</small></span>', price_text(value), settings.CURRENCY)
