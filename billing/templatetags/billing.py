"""Small numbers for the pages of billing."""

from __future__ import annotations

from decimal import Decimal

from django import template

register = template.Library()


@register.filter
def decimals(value: Decimal, digits: int) -> str:
    """ "1,234.50", rounded half to even, for eyes only."""
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
    """What stands before the magnitude of a difference."""
    return "+" if value > 0 else "−" if value < 0 else ""
