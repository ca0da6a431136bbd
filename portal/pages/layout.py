"""What every page shows around its content: navigation, the selected appcode, GPUs in use, and a search.

The portal knows nothing of the apps above it; they contribute through `portal.extension_points`. Navigation names routes by
string and leaves out those that do not resolve. Nothing here costs a page a query: counters and menus are fragments that the
page fetches afterwards.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.http import escape_leading_slashes, url_has_allowed_host_and_scheme

from portal import __version__
from portal.db import keyset
from portal.installation import demonstration
from portal.terms import SOON, day

PAGE = 50
MAX_WORDS = 200
Row = TypeVar("Row", bound=Model)

THEMES = ("auto", "light", "dark")
THEME_COOKIE = "theme"


@dataclass(frozen=True)
class Entry:
    """A line of the navigation. `icon` is a symbol of static/portal/icons.svg; `count` is the route of a fragment with
    a number; `tabs` are the routes of its other tabs."""

    label: str
    route: str
    icon: str
    count: str = ""
    tabs: tuple[str, ...] = ()


NAVIGATION = (
    Entry("Clusters", "clusters", "cluster"),
    Entry("Sweeps", "sweeps", "sweep"),
    Entry("Benchmarks", "benchmarks", "benchmark"),
    Entry("Pipelines", "pipelines", "pipeline", tabs=("schedules",)),
    Entry("Models", "models", "model"),
    Entry("Services", "services", "service"),
    Entry("Applications", "applications", "application"),
    Entry("Queue", "queue", "state-queued"),
    Entry("Datastores", "datastores", "datastore"),
    Entry("Costs", "billing", "billing", tabs=("dashboard", "invoices", "budgets")),
    Entry("Appcodes", "appcodes", "appcode"),
    Entry("Help", "help", "help"),
)
ADMINISTRATION = (
    Entry("Requests", "admin_appcodes", "approve", "frame_requests"),
    Entry("Business lines", "admin_orgs", "org"),
    Entry("Clouds", "admin_clouds", "cluster"),
    Entry("Nodes & flavors", "admin_flavors", "flavor"),
    Entry("Images", "admin_images", "image"),
    Entry("Registries", "admin_registries", "key"),
    Entry("Plugins", "admin_plugins", "image"),
    Entry("Serving runtimes", "admin_runtimes", "service"),
    Entry("Allowed folders", "admin_folders", "folder"),
    Entry("Prices", "admin_prices", "price"),
    Entry("Months", "admin_months", "file"),
    Entry("People", "admin_people", "people"),
    Entry("Webhooks", "admin_webhooks", "external"),
    Entry("Audit", "admin_audit", "audit"),
)

# Further entries for the search only.
ACTIONS = (
    Entry("New cluster", "new_cluster", "plus"),
    Entry("New sweep", "new_sweep", "plus"),
    Entry("New benchmark", "new_benchmark", "plus"),
    Entry("New application", "new_application", "plus"),
    Entry("New service", "new_service", "plus"),
    Entry("New pipeline", "new_pipeline", "plus"),
    Entry("New schedule", "new_schedule", "plus"),
    Entry("New datastore", "new_datastore", "plus"),
    Entry("Register a version of a model", "register_model", "plus"),
    Entry("Templates", "templates", "cluster"),
    Entry("Import clusters", "import_clusters", "plus"),
    Entry("Request an appcode", "new_appcode", "plus"),
    Entry("Spending", "dashboard", "usage"),
    Entry("Invoices", "invoices", "file"),
    Entry("Budgets", "budgets", "price"),
    Entry("Profile, API tokens, time zone and theme", "profile", "person"),
    Entry("Change password", "account_change_password", "key"),
    Entry("REST API", "api-docs", "external"),
)


@dataclass(frozen=True)
class Link:
    label: str
    url: str
    icon: str
    current: bool
    count: str | None


def selected_appcode(request: HttpRequest) -> str:
    """The code of the appcode that lists are filtered by, "" for all: `?appcode=` if given, else the switcher's choice.
    It is a filter, not a permission: lists start from what the user may see and filter that by this code."""
    if "appcode" in request.GET:
        return words(request, "appcode")
    return str(request.session.get("appcode", "")) if request.user.is_authenticated else ""


def words(request: HttpRequest, name: str = "search") -> str:
    """A text parameter without NUL characters, which PostgreSQL refuses, cut to MAX_WORDS characters."""
    return request.GET.get(name, "").replace("\0", "").strip()[:MAX_WORDS]


def matching(rows: QuerySet[Row], typed: str, *columns: str) -> QuerySet[Row]:
    """The rows in which every typed word occurs in one of `columns`, ignoring case."""
    for word in typed.split():
        wanted = Q()
        for column in columns:
            wanted |= Q(**{f"{column}__icontains": word})
        rows = rows.filter(wanted)
    return rows


def listed(request: HttpRequest, rows: QuerySet[Row], *columns: str) -> QuerySet[Row]:
    """The rows of the selected appcode (`selected_appcode`) that match the typed words (`matching`)."""
    code = selected_appcode(request)
    return matching(rows.filter(appcode__code=code) if code else rows, words(request), *columns)


def page_of(request: HttpRequest, rows: QuerySet[Row], order: str, limit: int = PAGE) -> tuple[Sequence[Row], str]:
    """The rows after `?cursor=`, and the cursor of the next page (`keyset.page`). An invalid cursor gives the first page."""
    try:
        return keyset.page(rows, order, words(request, "cursor"), limit)
    except ValidationError:
        return keyset.page(rows, order, "", limit)


def sorted_page_of(
    request: HttpRequest, rows: QuerySet[Row], order: Sequence[str], limit: int
) -> tuple[Sequence[Row], str]:
    """The same for an order by several columns (`keyset.page_by`)."""
    try:
        return keyset.page_by(rows, order, words(request, "cursor"), limit)
    except ValidationError:
        return keyset.page_by(rows, order, "", limit)


def came_from(request: HttpRequest) -> str:
    """The path of our own page that sent this request, "/" if unknown."""
    referer = request.headers.get("Referer", "")
    if not url_has_allowed_host_and_scheme(referer, {request.get_host()}):
        return "/"
    parts = urlsplit(referer)
    return escape_leading_slashes(parts.path + (f"?{parts.query}" if parts.query else ""))


def theme(request: HttpRequest) -> str:
    """The browser's theme; "auto" follows the system."""
    chosen = request.COOKIES.get(THEME_COOKIE, "auto")
    return chosen if chosen in THEMES else "auto"


def soon() -> dt.date:
    """The latest expiry date that counts as soon."""
    return day(timezone.now()) + dt.timedelta(days=SOON)


def sends_mail() -> bool:
    """True if mail is sent to people; without EMAIL_URL it goes to the log."""
    return "console" not in settings.EMAIL_BACKEND


def frame(request: HttpRequest) -> dict[str, Any]:
    """The context processor. It costs no query once it is known whether this is a demonstration."""
    user = request.user if hasattr(request, "user") else None
    signed_in = user is not None and user.is_authenticated
    administrator = signed_in and getattr(user, "is_administrator", False)
    return {
        "theme": theme(request),
        "themes": THEMES,
        "navigation": _links(NAVIGATION, request.path) if signed_in else [],
        "administration": _links(ADMINISTRATION, request.path) if administrator else [],
        "selected_appcode": selected_appcode(request) if signed_in else "",
        "currency": settings.CURRENCY,
        "portal_version": __version__,
        "sends_mail": sends_mail(),
        "open_signup": settings.PORTAL_OPEN_SIGNUP,
        "error_id": getattr(request, "error_id", ""),
        # A callable, because error pages must not query the database.
        "demonstration": demonstration.said,
    }


def _links(entries: tuple[Entry, ...], path: str) -> list[Link]:
    """The entries whose routes exist. The entry with the longest URL that is a prefix of `path` is current."""
    there = [(entry, url) for entry in entries if (url := address_of(entry.route))]
    every = {tab: url for entry, url in there for tab in (url, *map(address_of, entry.tabs)) if tab}
    at = every.get(max((tab for tab in every if _is_below(path, tab)), key=len, default=""))
    return [
        Link(entry.label, url, entry.icon, url == at, address_of(entry.count) if entry.count else None)
        for entry, url in there
    ]


def _is_below(path: str, url: str) -> bool:
    if url == "/":
        return path == "/" or path.startswith("/clusters/")
    return path == url or path.startswith(url.rstrip("/") + "/")


@cache
def address_of(route: str) -> str | None:
    """The URL of a route without parameters, None if there is none."""
    try:
        return reverse(route)
    except NoReverseMatch:
        return None


class RequestIdMiddleware:
    """Gives every request an id for the error page, the log and the header X-Request-ID."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        error_id = secrets.token_hex(4)
        request.error_id = error_id  # type: ignore[attr-defined]
        response = self.get_response(request)
        response["X-Request-ID"] = error_id
        return response
