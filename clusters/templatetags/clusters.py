"""How sizes of machines look, cores and memory, and what a program wrote."""

from __future__ import annotations

from django import template

from clusters.failure import lines_of

register = template.Library()


@register.simple_tag
def cores(milli: int) -> str:
    """1000 → "1", 500 → "0.5"."""
    return f"{milli / 1000:g}"


@register.simple_tag
def gib(mib: int) -> str:
    """16384 → "16 GiB", 512 → "0.5 GiB"."""
    return f"{mib / 1024:.4g} GiB"


@register.filter
def as_shown(text: str) -> str:
    """The lines of a log as a terminal would show them, without colours and empty lines."""
    return "\n".join(lines_of(text))
