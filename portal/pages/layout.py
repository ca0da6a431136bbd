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
from django.utils.functional import SimpleLazyObject
from django.utils.http import escape_leading_slashes, url_has_allowed_host_and_scheme

from portal import __version__
from portal.branding import reading
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
    a number; `tabs` are the routes of its other tabs; `pages` are routes of its pages that have addresses elsewhere. `words` find
    it, too."""

    label: str
    route: str
    icon: str
    count: str = ""
    tabs: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    words: str = ""


@dataclass(frozen=True)
class Section:
    """A group of the navigation. Home and help have no title."""

    title: str
    entries: tuple[Entry, ...]


NAVIGATION = (
    Section("", (Entry("Home", "home", "home", words="all that lives running start"),)),
    Section(
        "Train",
        (
            Entry("Clusters", "clusters", "cluster", words="runs jobs training"),
            Entry(
                "Results",
                "results",
                "results",
                pages=("compare",),
                words="metrics experiments runs table compare best highest lowest export csv",
            ),
            Entry("Applications", "applications", "application", words="notebooks jupyter tensorboard"),
            Entry(
                "Queue",
                "queue",
                "state-queued",
                tabs=("shares",),
                words="waiting shares gpus uses using used holds free available idle busy running capacity position",
            ),
            Entry("Sweeps", "sweeps", "sweep", words="parameters tuning"),
            Entry("Pipelines", "pipelines", "pipeline", tabs=("schedules",), words="workflows"),
            Entry("Benchmarks", "benchmarks", "benchmark", words="scaling"),
        ),
    ),
    Section(
        "Data",
        (
            Entry(
                "Datastores",
                "datastores",
                "datastore",
                pages=("storage", "storage_keys"),
                words="data files storage volumes buckets datasets",
            ),
        ),
    ),
    Section(
        "Serve",
        (
            Entry("Models", "models", "model", words="registry versions"),
            Entry("Services", "services", "service", words="serving inference endpoints"),
        ),
    ),
    Section(
        "Money",
        (
            Entry(
                "Costs",
                "billing",
                "billing",
                tabs=("dashboard", "invoices", "budgets"),
                words="billing money usage spend spent paid month expenses bill",
            ),
            Entry("Appcodes", "appcodes", "appcode", words="teams gpu quotas members limits"),
        ),
    ),
    Section("", (Entry("Help", "help", "help", words="documentation first steps"),)),
)
ADMINISTRATION = (
    Section(
        "Admin",
        (
            Entry("Requests", "admin_appcodes", "approve", "frame_requests", words="approve"),
            Entry("Business lines", "admin_orgs", "org"),
            Entry("Clouds", "admin_clouds", "cluster", words="kubernetes"),
            Entry("Nodes & flavors", "admin_flavors", "flavor", words="and sizes machines"),
            Entry("Images", "admin_images", "image"),
            Entry("Registries", "admin_registries", "key"),
            Entry("Plugins", "admin_plugins", "image"),
            Entry("Serving runtimes", "admin_runtimes", "service"),
            Entry("Allowed folders", "admin_folders", "folder", words="nfs"),
            Entry("Prices", "admin_prices", "price", words="discounts credits"),
            Entry("Months", "admin_months", "file", pages=("admin_invoicing",), words="close invoices issuer tax vat"),
            Entry("Branding", "admin_branding", "mark", words="name logo colour color banner brand support"),
            Entry("People", "admin_people", "people", words="users"),
            Entry("Webhooks", "admin_webhooks", "external"),
            Entry("Audit", "admin_audit", "audit", words="events log"),
        ),
    ),
)

# Further entries for the search only.
ACTIONS = (
    Entry("New cluster", "new_cluster", "plus", words="train run job gpu pytorch tensorflow jax"),
    Entry("New notebook or application", "new_application", "plus", words="jupyter tensorboard web"),
    Entry("New service", "new_service", "plus", words="serve deploy model"),
    Entry("New sweep", "new_sweep", "plus"),
    Entry("New pipeline", "new_pipeline", "plus"),
    Entry("New schedule", "new_schedule", "plus"),
    Entry("New benchmark", "new_benchmark", "plus"),
    Entry("New datastore", "new_datastore", "plus", words="volume bucket"),
    Entry("Register a version of a model", "register_model", "plus"),
    Entry("Import clusters", "import_clusters", "plus"),
    Entry("Request an appcode", "new_appcode", "plus", words="new create project team"),
    Entry("Templates", "templates", "cluster"),
    Entry("Schedules", "schedules", "pipeline", words="cron times"),
    Entry("Shares", "shares", "state-queued", words="fair pool"),
    Entry("Spending", "dashboard", "usage", words="costs billing money"),
    Entry("Invoices", "invoices", "file", words="costs billing bills"),
    Entry("Budgets", "budgets", "price", words="costs billing money left remaining"),
    Entry("Profile, API tokens, time zone and theme", "profile", "person", words="me account settings notifications"),
    Entry("Notifications", "bell", "bell", words="bell news alerts ended failed approved unread"),
    Entry("Change password", "account_change_password", "key"),
    Entry("REST API", "api-docs", "external", words="openapi swagger"),
)


def entries(administrator: bool) -> list[Entry]:
    """The lines of the navigation of a user."""
    sections = (*NAVIGATION, *(ADMINISTRATION if administrator else ()))
    return [entry for section in sections for entry in section.entries]


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


def of_one_appcode(code: str, route: str) -> dict[str, str]:
    """For the context of a page of one appcode: the header names it, and the switcher leads to `route`."""
    return {"selected_appcode": code, "one_appcode": reverse(route)}


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
        "navigation": _links(request, administrator) if signed_in else [],
        "selected_appcode": selected_appcode(request) if signed_in else "",
        "currency": settings.CURRENCY,
        "portal_version": __version__,
        "sends_mail": sends_mail(),
        "open_signup": settings.PORTAL_OPEN_SIGNUP,
        "error_id": getattr(request, "error_id", ""),
        # A callable, because error pages must not query the database.
        "demonstration": demonstration.said,
        "branding": SimpleLazyObject(reading.shown),
    }


def _links(request: HttpRequest, administrator: bool) -> list[tuple[str, list[Link]]]:
    """The sections, with the entries whose routes exist. Current is the entry that names the page, otherwise the one with the
    longest URL that is a prefix of the path."""
    sections = (*NAVIGATION, *(ADMINISTRATION if administrator else ()))
    there = {entry: url for entry in entries(administrator) if (url := address_of(entry.route))}
    every = {tab: entry for entry, url in there.items() for tab in (url, *map(address_of, entry.tabs)) if tab}
    route = request.resolver_match.url_name if request.resolver_match else None
    named = next((entry for entry in there if route in entry.pages), None)
    at = named or every.get(max((tab for tab in every if _is_below(request.path, tab)), key=len, default=""))
    return [
        (
            section.title,
            [
                Link(each.label, there[each], each.icon, each is at, address_of(each.count) if each.count else None)
                for each in section.entries
                if each in there
            ],
        )
        for section in sections
    ]


def _is_below(path: str, url: str) -> bool:
    """Home is above nothing: the profile is no part of it."""
    return path == url or (url != "/" and path.startswith(url.rstrip("/") + "/"))


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
