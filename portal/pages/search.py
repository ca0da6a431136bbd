"""The search page, the palette's results, and what the portal itself contributes: pages, settings, appcodes, people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from django.db.models import Q, Value
from django.db.models.functions import Concat
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from portal import access, extension_points
from portal.models import User
from portal.pages import help_page, layout
from portal.pages.appcodes import person
from portal.search import SYNONYMS, Button, Found, Group, Hit, Kind, Text, Verb, is_name, objects, ranked, words_of

# Hits of each kind, on the search page and in the palette.
ON_PAGE, IN_PALETTE = 20, 5
# What an empty palette offers.
AT_FIRST = 8
# So few hits are followed by the search of Help.
LITTLE = 2
# What must be typed to be offered to sign out.
SIGN_OUT = (("sign", "out"), ("log", "out"), ("signout",), ("logout",))


def _tab(route: str) -> Callable[[Found], str]:
    """A tab of the page of an appcode; its own page without the app that has this tab."""

    def address(found: Found) -> str:
        try:
            return reverse(route, args=[found.name])
        except NoReverseMatch:
            return reverse("appcode", args=[found.name])

    return address


def _members(found: Found) -> str:
    return f"{reverse('appcode', args=[found.name])}#members"


def _budget(found: Found) -> str:
    """The budgets of an appcode; its own page without the app that has them."""
    there = layout.address_of("budgets")
    return f"{there}?appcode={found.name}" if there else reverse("appcode", args=[found.name])


_OF_APPCODES = (
    *(
        Verb(f"{label} of", Q(), _tab(route))
        for label, route in (
            ("Results", "results_of"), ("Quota", "appcode"), ("Object storage", "storage"), ("Environments", "environments"),
            ("Hooks", "hooks"), ("Git tokens", "git_tokens"), ("Costs", "billing_appcode"),
        )
    ),
    Verb("Members of", Q(), _members),
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
    words, offered = words_of(typed), pages(user)
    groups, further = [], list[Hit]()
    if typed:
        groups = objects(list(extension_points.kinds), user, typed, limit)
        meant = [
            *_sign_out(words),
            *_inviting(user, words),
            *(hit for sentence in extension_points.sentences for hit in sentence(user, typed)),
        ]
        (fitting, most), (explained, told) = ranked(offered, words), help_page.explained(typed)
        # Not all words need to be somewhere, unless something has all of them.
        strictly = groups or meant or len(words) in (most, told)
        least = len(words) if strictly else max(most, told)
        there = {hit.url for hit in meant}
        go_to = meant + [hit for hit in fitting if most == least and hit.url not in there]
        # “My clusters” is one's own before all; “open queue” is the page.
        go_to.sort(key=lambda hit: (not is_name(hit.title, typed.lower().split()), not is_name(hit.title, words)))
        _insert(groups, go_to[:limit], words)
        if explained and told == least:
            groups.insert(0 if help_page.is_asked(typed) else len(groups), Group("Help", tuple(explained[:limit])))
        if not strictly or sum(len(group.hits) for group in groups) <= LITTLE:
            further = [
                Hit(f"Search Help for “{typed}”", "", f"{reverse('help')}?{urlencode({'search': typed})}", "help")
            ]
    else:
        groups = [Group("Actions", tuple(text.item for text in offered[:AT_FIRST]))]
    return {"words": typed, "groups": groups, "further": further}


def _insert(groups: list[Group], go_to: Sequence[Hit], words: Sequence[str]) -> None:
    """Pages come first: their names are few and known. But not before an object with the very name that was typed, unless a page
    has it, too."""
    if not go_to:
        return
    named = bool(groups) and is_name(groups[0].hits[0].title, words) and not is_name(go_to[0].title, words)
    groups.insert(int(named), Group("Go to", tuple(go_to)))


def _sign_out(words: Sequence[str]) -> list[Hit]:
    """Only for its own words and no others: it must not be the first result of “log”, or of “log out of memory”."""
    if tuple(words) not in SIGN_OUT:
        return []
    return [Hit("Sign out", "", reverse("account_logout"), "person", Button())]


# Appcodes of an owner whose members are offered.
MOST_INVITING = 3


def _inviting(user: User, words: Sequence[str]) -> list[Hit]:
    """ "invite alice": the members of the appcodes to which the user may add people. No query without that verb."""
    if len(words) != 2 or words[0] != "invite":
        return []
    codes = list(
        access.appcodes_for(user, access.MANAGE).order_by("-pk").values_list("code", flat=True)[:MOST_INVITING]
    )
    if words[1] in codes:
        return []
    at = layout.address_of("appcodes")
    return [
        *(
            Hit(f"Members of {code}", "Add people here", f"{reverse('appcode', args=[code])}#members", "appcode")
            for code in codes
        ),
        *([] if codes or not at else [Hit("Invite somebody", "Owners of an appcode add people", at, "appcode")]),
    ]


def pages(user: User) -> list[Text[Hit]]:
    """Actions and pages of the navigation, and settings."""
    entries = [*layout.ACTIONS, *layout.entries(user.is_administrator)]
    return [
        *(
            Text(Hit(entry.label, "", url, entry.icon), entry.label, _about(entry))
            for entry in entries
            if (url := layout.address_of(entry.route))
        ),
        *settings(),
    ]


def _about(entry: layout.Entry) -> str:
    first = entry.label.partition(" ")[0].lower()
    return " ".join((entry.words, *SYNONYMS.get(first, ())))


def settings() -> list[Text[Hit]]:
    """What a user does at once: their notebook, and the theme."""
    notebook = layout.address_of("my_notebook")
    themes = (("light", "Light"), ("dark", "Dark"), ("auto", "System"))
    mine = (
        Text(Hit("My notebook", "", notebook, "application", Button()), "My notebook", "jupyter lab")
        if notebook
        else None
    )
    return [
        *([mine] if mine else []),
        *(
            Text(
                Hit(f"{label} theme", "", reverse("set_theme"), "theme", Button("theme", theme, theme=theme)),
                f"{label} theme", "switch colour mode",
            )
            for theme, label in themes
        ),
    ]  # fmt: skip
