"""The search page, the palette's results, and what the portal itself contributes: pages, settings, appcodes, people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import Q, Value
from django.db.models.functions import Concat
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from portal import access, extension_points
from portal.models import User
from portal.pages import layout
from portal.pages.appcodes import person
from portal.pages.help_page import ANSWERS, TERMS
from portal.search import SYNONYMS, Button, Found, Group, Hit, Kind, Verb, objects, words_of

# Hits of each kind, on the search page and in the palette.
ON_PAGE, IN_PALETTE = 20, 5
# What an empty palette offers.
AT_FIRST = 8


def _tab(route: str) -> Callable[[Found], str]:
    """A tab of the page of an appcode; its own page without the app that has this tab."""

    def address(found: Found) -> str:
        try:
            return reverse(route, args=[found.name])
        except NoReverseMatch:
            return reverse("appcode", args=[found.name])

    return address


def _budget(found: Found) -> str:
    """The budgets of an appcode; its own page without the app that has them."""
    there = layout.address_of("budgets")
    return f"{there}?appcode={found.name}" if there else reverse("appcode", args=[found.name])


_OF_APPCODES = (
    *(
        Verb(f"{label} of", Q(), _tab(route))
        for label, route in (
            ("Results", "results_of"), ("Quota", "appcode"), ("Object storage", "storage"), ("Environments", "environments"),
            ("Hooks", "hooks"), ("Git tokens", "git_tokens"),
        )
    ),
    Verb("Budget of", Q(), _budget),
)  # fmt: skip
KINDS = (
    Kind(
        "Appcodes", "appcode", access.appcodes_for, lambda found: reverse("appcode", args=[found.name]),
        name="code", under="name", state="state", also=("remark",), listing="appcodes", verbs=_OF_APPCODES,
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
        groups = objects(list(extension_points.kinds), user, typed, limit)
        meant = [hit for sentence in extension_points.sentences for hit in sentence(user, words_of(typed))]
        if wanted := meant + _matching(offered, typed):
            groups.insert(0, Group("Go to", tuple(wanted[:limit])))
        if explained := _matching(terms(), typed):
            groups.append(Group("Help", tuple(explained[:limit])))
    else:
        groups = [Group("Actions", tuple(hit for _, hit in offered[:AT_FIRST]))]
    return {"words": typed, "groups": groups, "count": sum(len(group.hits) for group in groups)}


def _matching(offered: list[tuple[str, Hit]], typed: str) -> list[Hit]:
    """Those in whose text every typed word begins one."""
    words = words_of(typed)
    return [hit for text, hit in offered if all(any(each.startswith(w) for each in text.split()) for w in words)]


def pages(user: User) -> list[tuple[str, Hit]]:
    """Actions and pages of the navigation, each with the text that is searched."""
    entries = [*layout.ACTIONS, *layout.entries(user.is_administrator)]
    return [
        (_searched(entry), Hit(entry.label, "", url, entry.icon))
        for entry in entries
        if (url := layout.address_of(entry.route))
    ]


def _searched(entry: layout.Entry) -> str:
    first = entry.label.partition(" ")[0].lower()
    return " ".join((entry.label, entry.words, *SYNONYMS.get(first, ()))).lower()


def terms() -> list[tuple[str, Hit]]:
    """The answers, words and recipes of help, each with the text that is searched."""
    at = reverse("help")
    answers = [
        (f"{each.question} {each.words}".lower(), Hit(each.question, each.text, each.url, "help"))
        for each in ANSWERS
        if each.url
    ]
    words = [(term.name.lower(), Hit(term.name, term.meaning, f"{at}#{term.anchor}", "help")) for term in TERMS]
    return (
        answers
        + words
        + [
            (f"{each.title} {each.text}".lower(), Hit(each.title, "From your program", f"{at}#{each.anchor}", "help"))
            for each in extension_points.recipes
        ]
    )


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
