"""Template tags: sizes of machines, links to runs, and log lines."""

from __future__ import annotations

import re
from collections import Counter

from django import template
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from clusters.admission.demand import demand_of, is_whole, short
from clusters.logs.failure import lines_of
from clusters.runs.models import Run

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
def gpus_asked(run: Run) -> str:
    """ "8", and where slices are asked for, "2 × mig-1g.10gb"."""
    slices = Counter[str]()
    for role, held in run.resources.items():
        unit = demand_of(held).counted(held["gpu_model"])
        if not is_whole(unit):
            slices[short(unit)] += held["gpus"] * run.roles[role]["count"]
    several = [f"{count} × {unit}" for unit, count in slices.items() if count]
    return ", ".join([*([str(run.gpus)] if run.gpus or not several else []), *several])


# A run in a sentence: train/3.
RUN = re.compile(r"(?<![\w/.-])([a-z](?:[a-z0-9-]*[a-z0-9])?)/([1-9][0-9]{0,8})(?![\w/-])")


@register.filter
def with_links(sentence: str, appcode: str) -> SafeString:
    """The sentence as HTML, with links to runs of the appcode."""
    link = rf'<a href="/clusters/{escape(appcode)}/\1?run=\2">\1/\2</a>'
    # Matched names have only letters, digits and hyphens, so the HTML is safe.
    return mark_safe(RUN.sub(link, escape(sentence)))  # noqa: S308


@register.filter
def as_shown(text: str) -> str:
    """The lines of a log as a terminal would show them, without colours and empty lines."""
    return "\n".join(lines_of(text))
