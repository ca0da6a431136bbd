"""Display of values on every page: states, times, durations, money, bytes, GPU-hours; and small shared blocks.

A live fragment must render the same text until its data changes, or it would never answer 304. So times are rendered
coarsely here and refined in the browser (static/portal/portal.js).
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any

from django import template
from django.conf import settings
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from portal.assets import has_uplot

register = template.Library()

# The icon shape of each state word, for runs, tasks, appcodes, tokens and connection tests alike.
SHAPES = {
    "queued": ("lifted", "gated", "queued", "pending", "requested", "waiting", "scheduled", "new", "due"),
    "starting": (
        "tight", "starting", "stopping", "closing", "testing", "deploying", "storing", "fetching", "changes-requested",
        "degraded", "comparing", "shifting", "draining",
    ),
    "running": ("running", "open", "ready", "enabled", "live", "serving"),
    "succeeded": ("on track", "succeeded", "active", "closed", "ok", "reachable", "approved", "delivered", "promoted"),
    "failed": ("used up", "blocked", "failed", "refused", "unreachable", "error", "unschedulable", "lost", "changed"),
    "stopped": (
        "services stopped", "paused", "stopped", "disabled", "cancelled", "expired", "inactive", "deleted", "withdrawn", "pruned",
        "skipped", "sleeping", "rolled back", "gone",
    ),
}  # fmt: skip
SHAPE_OF = {word: shape for shape, words in SHAPES.items() for word in words}
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@register.simple_tag
@cache
def icon(name: str) -> SafeString:
    """A symbol of static/portal/icons.svg, hidden from screen readers: put the same in words beside it."""
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"/></svg>', static("portal/icons.svg"), name
    )


@register.simple_tag
@lru_cache(maxsize=1024)
def state(word: str, note: str = "") -> SafeString:
    """A state by shape, word and colour. `note` is a short reason after the word: `{% state run.phase run.reason %}`."""
    shape = SHAPE_OF.get(str(word).lower(), "none")
    behind = format_html(' <span class="state-note">{}</span>', note) if note else ""
    label = (str(word)[:1].upper() + str(word)[1:]).replace("-", " ")
    return format_html('<span class="state state-{}">{}{}{}</span>', shape, icon(f"state-{shape}"), label, behind)


@register.inclusion_tag("components/chart_files.html")
def chart_files(lines: bool = True) -> dict[str, bool]:
    """Styles and scripts of a page with charts, for its head. uPlot is left out if the page has no chart of lines, and
    where it is not installed; then these charts stay pictures."""
    return {"has_uplot": lines and has_uplot()}


@register.filter
def duration(seconds: float | int | dt.timedelta | None) -> str:
    """Seconds as "45 s", "3 min 20 s", "2 h 5 min", "3 d 4 h": the largest unit and the next one, unless that is zero."""
    if seconds is None:
        return "–"
    rest = int(seconds.total_seconds() if isinstance(seconds, dt.timedelta) else seconds)
    for n, (size, unit) in enumerate(UNITS):
        if rest >= size and n < len(UNITS) - 1:
            below, name = UNITS[n + 1]
            second = rest % size // below
            return f"{rest // size} {unit} {second} {name}" if second else f"{rest // size} {unit}"
    return f"{max(rest, 0)} s"


def coarse(seconds: float) -> str:
    """A duration in its largest unit; below one minute "moments"."""
    return next((f"{int(seconds // size)} {unit}" for size, unit in UNITS[:-1] if seconds >= size), "moments")


@register.simple_tag
def time(value: dt.datetime | None, missing: str = "–") -> SafeString | str:
    """ "3 min ago", "in 2 h", with the exact UTC time in the tooltip. The browser keeps it up to date."""
    if value is None:
        return missing
    away = (timezone.now() - value).total_seconds()
    # Future times are rounded up: a token made for 90 days ends "in 90 d".
    ahead = next((f"{math.ceil(-away / size)} {unit}" for size, unit in UNITS if -away > size - 1), "moments")
    text = "just now" if -60 < away < 60 else f"{coarse(away)} ago" if away > 0 else f"in {ahead}"
    return _time(value, "data-relative", text)


@register.simple_tag
def moment(value: dt.datetime | None, missing: str = "–", zone: bool = True) -> SafeString | str:
    """The exact time, "2026-01-31 18:00:00 UTC", for logs and audits; `zone` False omits the zone. The browser converts
    it to the reader's zone, with UTC in the tooltip."""
    if value is None:
        return missing
    text = _exact(value)
    return _time(value, "data-moment", text) if zone else _time(value, 'data-moment="short"', text.removesuffix(" UTC"))


@register.simple_tag
def minute(value: dt.datetime) -> SafeString:
    """The time of today, "18:00 UTC", or of another day, "2026-01-31 18:00 UTC". The browser converts it to the reader's zone."""
    day = "" if value.astimezone(dt.UTC).date() == timezone.now().date() else "%Y-%m-%d "
    return _time(value, 'data-moment="minute"', f"{value.astimezone(dt.UTC):{day}%H:%M} UTC")


@register.simple_tag
def elapsed(start: dt.datetime | None, end: dt.datetime | None = None) -> SafeString | str:
    """The duration of something; without `end` the browser counts up."""
    if start is None:
        return "–"
    if end is not None:
        # Between whole seconds, as the tooltip shows them and as segments are billed.
        whole = end.replace(microsecond=0) - start.replace(microsecond=0)
        return format_html('<span title="{} to {}">{}</span>', _exact(start), _exact(end), duration(whole))
    seconds = (timezone.now() - start).total_seconds()
    return _time(start, "data-since", coarse(seconds) if seconds >= 60 else "moments")


@register.simple_tag
def money(amount: Decimal | float | int | None, digits: int = 2) -> SafeString | str:
    """An amount with its currency: `{% money cost %}`, `{% money price_per_hour 4 %}`. Rounded half-even, for display only."""
    if amount is None:
        return "–"
    exact = Decimal(str(amount))
    shown = round(exact, digits)
    text = f"{shown:,.{digits}f}" if shown or not exact else f"< {Decimal(1).scaleb(-digits)}"
    return format_html(
        '<span class="money" title="{}">{} <small>{}</small></span>', f"{exact:f}", text, settings.CURRENCY
    )


@register.filter
def gpu_hours(gpu_seconds: int | None) -> str:
    """GPU-seconds as GPU-hours with two decimals, "1,234.50"; tiny amounts are "< 0.01"."""
    if gpu_seconds is None:
        return "–"
    hours = gpu_seconds / 3600
    return "< 0.01" if 0 < hours < 0.005 else f"{hours:,.2f}"


@register.filter(name="bytes")
def bytes_(count: int | None) -> str:
    """ "0 B", "999 B", "1.5 MiB", "2.0 TiB"."""
    if count is None:
        return "–"
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{int(size)} B" if unit == "B" else f"{size:,.1f} {unit}"


@register.filter
def number(value: float | int | None) -> str:
    """With a thousands separator: "12,345"."""
    return "–" if value is None else f"{value:,}"


@register.simple_tag
def copy(text: str, label: str = "Copy") -> SafeString:
    """A button that copies `text`; the browser shows it only if copying works."""
    return format_html(
        '<button type="button" class="btn btn-quiet copy" data-copy="{}" hidden>{}<span>{}</span></button>',
        text,
        icon("copy"),
        label,
    )


@register.simple_block_tag
def menu(content: str, label: str = "Actions", icon_name: str = "more") -> SafeString:
    """`{% menu "Actions for show1" %}<a …>…</a><button …>…</button>{% endmenu %}`: an action menu that works without
    JavaScript. Without an entry there is no menu."""
    if not content.strip():
        return SafeString("")
    # `content` is template output, so its variables are escaped already.
    return format_html(
        '<details class="menu"><summary class="btn btn-quiet btn-icon" aria-label="{}" title="{}">{}</summary>'
        '<div class="menu-items">{}</div></details>',
        label, label, icon(icon_name), mark_safe(content),  # noqa: S308
    )  # fmt: skip


@register.simple_tag(takes_context=True)
def tab(context: dict[str, Any], label: str, url: str, count: int | None = None) -> SafeString:
    """A tab that links to its own page; use it inside `<nav class="tabs" aria-label="…">`."""
    current = ' aria-current="page"' if context["request"].path == url else ""
    number_ = format_html(' <span class="count">{}</span>', count) if count is not None else ""
    return format_html('<a href="{}"{}>{}{}</a>', url, SafeString(current), label, number_)


@register.simple_tag(takes_context=True)
def chip(context: dict[str, Any], name: str, value: str, label: str, count: int | None = None) -> SafeString:
    """A filter: a link that sets `?name=value`, or removes it if set, and returns to the first page. One that would find nothing
    is left out unless it is set."""
    query = context["request"].GET.copy()
    active = query.get(name, "") == str(value)
    if count == 0 and not active:
        return SafeString("")
    query.pop("cursor", None)
    query.pop(name, None)
    if not active and value:
        query[name] = str(value)
    number_ = format_html(' <span class="count">{}</span>', f"{count:,}") if count is not None else ""
    return format_html(
        '<a class="chip" href="?{}"{}>{}{}</a>',
        query.urlencode(),
        SafeString(' aria-current="true"' if active else ""),
        label,
        number_,
    )


# The route of an event object's page, by kind; the parts of its key are the arguments.
PAGES = {
    "cluster": "cluster",
    "service": "service",
    "application": "application",
    "datastore": "datastore",
    "appcode": "appcode",
}


@register.simple_tag
def subject(said: str) -> SafeString | str:
    """An event's object ("cluster ops-demo/show1") as a link to its page, which may be gone by now."""
    kind, _, key = said.partition(" ")
    try:
        url = reverse(PAGES[kind], args=key.split("/"))
    except (KeyError, NoReverseMatch):
        return said
    return format_html('{} <a href="{}">{}</a>', kind, url, key)


@register.simple_tag(takes_context=True)
def sort(context: dict[str, Any], first: str, label: str) -> SafeString:
    """A column heading that sorts by `?sort=`: first as in `first`, then reversed, then unsorted. "-cost" starts with
    the largest."""
    query = context["request"].GET.copy()
    now = query.get("sort", "")
    other = first.removeprefix("-") if first.startswith("-") else f"-{first}"
    query.pop("cursor", None)
    query.pop("sort", None)
    if now != other:
        query["sort"] = other if now == first else first
    mark = "" if now not in (first, other) else " ↓" if now.startswith("-") else " ↑"
    return format_html('<a class="sort" href="?{}">{}{}</a>', query.urlencode(), label, mark)


def _time(value: dt.datetime, mark: str, text: str) -> SafeString:
    """Not escaped, for speed: it is used often and consists only of our own characters."""
    iso = value.astimezone(dt.UTC).isoformat()
    return SafeString(f'<time datetime="{iso}" title="{_exact(value)}" {mark}>{text}</time>')


def _exact(value: dt.datetime) -> str:
    return f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
