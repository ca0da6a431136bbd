"""The search page, the palette's results, and what the portal itself contributes: pages, settings, appcodes, people."""

from __future__ import annotations

from typing import Any

from django.db.models import Value
from django.db.models.functions import Concat
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from portal import access, extension_points
from portal.models import User
from portal.pages import layout
from portal.pages.appcodes import person
from portal.search import Button, Group, Hit, Kind, objects

# Hits of each kind, on the search page and in the palette.
ON_PAGE, IN_PALETTE = 20, 5
# What an empty palette offers.
AT_FIRST = 8

KINDS = (
    Kind(
        "Appcodes", "appcode", access.appcodes_for, lambda found: reverse("appcode", args=[found.name]),
        name="code", under="name", state="state", also=("remark",), listing="appcodes",
    ),
    Kind(
        "People", "person", access.people_for, lambda found: reverse("admin_person", args=[found.name]),
        name="username", under="email", state=Concat("first_name", Value(" "), "last_name"), also=("first_name", "last_name"),
        listing="admin_people", only_for=lambda user: user.is_administrator,
    ),
    Kind(
        "People", "person", access.people_for, lambda found: f"mailto:{found.under}",
        name="username", under="email", state=Concat("first_name", Value(" "), "last_name"), also=("first_name", "last_name"),
        only_for=lambda user: not user.is_administrator,
    ),
)  # fmt: skip


@require_GET
def search(request: HttpRequest) -> HttpResponse:
    """Everything that the user may see and whose name contains the words `q`."""
    return render(request, "portal/search.html", _found(request, ON_PAGE))


@require_GET
@never_cache
def palette(request: HttpRequest) -> HttpResponse:
    """The palette's results while the user types. Without words it offers actions."""
    return render(request, "portal/_palette.html", _found(request, IN_PALETTE))


def _found(request: HttpRequest, limit: int) -> dict[str, Any]:
    typed, user = layout.words(request, "q"), person(request)
    offered = [*pages(user), *settings()]
    if typed:
        # Pages come first: their names are few and known.
        wanted = [hit for title, hit in offered if all(word in title for word in typed.lower().split())]
        groups = objects(list(extension_points.kinds), user, typed, limit)
        if wanted:
            groups.insert(0, Group("Go to", tuple(wanted[:limit])))
    else:
        groups = [Group("Actions", tuple(hit for _, hit in offered[:AT_FIRST]))]
    return {"words": typed, "groups": groups, "count": sum(len(group.hits) for group in groups)}


def pages(user: User) -> list[tuple[str, Hit]]:
    """Actions and pages of the navigation, each with the text that is searched."""
    entries = [*layout.ACTIONS, *layout.entries(user.is_administrator)]
    return [
        (f"{entry.label} {entry.words}".lower(), Hit(entry.label, "", url, entry.icon))
        for entry in entries
        if (url := layout.address_of(entry.route))
    ]


def settings() -> list[tuple[str, Hit]]:
    """What a user does at once, each with the text that is searched: their notebook, the theme, the end of the session."""
    notebook = layout.address_of("my_notebook")
    themes = (("light", "Light"), ("dark", "Dark"), ("auto", "System"))
    return [
        *(
            [("my notebook open jupyter lab", Hit("My notebook", "", notebook, "application", Button()))]
            if notebook
            else []
        ),
        *(
            (
                f"{label} theme switch colour mode".lower(),
                Hit(f"{label} theme", "", reverse("set_theme"), "theme", Button("theme", theme, theme=theme)),
            )
            for theme, label in themes
        ),
        ("sign out log out logout", Hit("Sign out", "", reverse("account_logout"), "person", Button())),
    ]
