"""The search: one engine for the palette (Ctrl-K, `/`) and the search page.

Each room contributes the kinds of its objects (`Kind`) to `extension_points.kinds`. A search is one UNION over the kinds that the
user may see, so its number of queries does not depend on the number of kinds or rows. Pages, actions and settings are matched in
memory, from the entries of the navigation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Case, Expression, F, IntegerField, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Coalesce

from portal.access import OPERATE, appcodes_for
from portal.models import User

MAX_WORDS = 6
# Shortest beginning of a kind's or verb's name that counts as that name.
SHORTEST = 3
NOTHING = Value("", output_field=TextField())


@dataclass(frozen=True)
class Found:
    """A row that was found. `under` is what contains it, `key` what its address needs besides."""

    name: str
    under: str
    state: str
    key: str


@dataclass(frozen=True)
class Verb:
    """What can be done with the rows `where`, offered when its first word is typed ("stop demo"). With `lost`, what the action
    loses, it is a POST after a confirmation; `posts` is a POST without one. Both are for users who may operate the row. Otherwise
    it is a link."""

    label: str
    where: Q
    url: Callable[[Found], str]
    lost: str = ""
    posts: bool = False

    @property
    def acts(self) -> bool:
        return self.posts or bool(self.lost)


@dataclass(frozen=True)
class Kind:
    """Objects that can be found by their name. `rows` are those that the user may see.

    A typed word has to occur in `name`, `under` or one of `also` (columns), or begin the title ("sweep lr") or one of `words`.
    `only_for` decides who searches this kind; `listing` is the route of its list, which takes `?search=`.
    """

    title: str
    icon: str
    rows: Callable[[User], QuerySet[Any]]
    url: Callable[[Found], str]
    name: str = "name"
    under: str = "appcode__code"
    state: str | Expression = "phase"
    key: Expression | F = NOTHING
    also: tuple[str, ...] = ()
    listing: str = ""
    verbs: tuple[Verb, ...] = ()
    words: tuple[str, ...] = ()
    only_for: Callable[[User], bool] = lambda user: True

    def is_named(self, word: str) -> bool:
        return any(_begins(name, word) for name in (self.title, *self.words))


@dataclass(frozen=True)
class Button:
    """What a hit does instead of leading to a page: a POST of `name`=`value`, with `confirm` after a question."""

    name: str = ""
    value: str = ""
    confirm: str = ""
    yes: str = ""
    theme: str = ""


@dataclass(frozen=True)
class Hit:
    """One result: its name, a line about it, its page."""

    title: str
    note: str
    url: str
    icon: str = ""
    button: Button | None = None


@dataclass(frozen=True)
class Group:
    """Results of one kind. `listing`: where more of them are, if there are more than shown."""

    title: str
    hits: tuple[Hit, ...]
    listing: str = ""


def objects(kinds: Sequence[Kind], user: User, typed: str, limit: int) -> list[Group]:
    """At most `limit` hits of each kind, best first; kinds with a better hit come first. One query, none without words."""
    typed_words = typed.lower().split()[:MAX_WORDS]
    if not typed_words:
        return []
    searched: list[tuple[Kind, Verb | None]] = []
    queries: list[QuerySet[Any, Any]] = []
    for kind in kinds:
        if not kind.only_for(user):
            continue
        queries.append(_query(kind, kind.rows(user), typed_words, len(searched), limit + 1))
        searched.append((kind, None))
        for verb in kind.verbs:
            if _begins(verb.label, typed_words[0]):
                rows = _operable(kind.rows(user), user) if verb.acts else kind.rows(user)
                queries.append(_query(kind, rows.filter(verb.where), typed_words[1:], len(searched), limit))
                searched.append((kind, verb))
    if not queries:
        return []
    rows = queries[0].union(*queries[1:], all=True).order_by("found_rank", "found_kind", "-found_at")
    groups: dict[str, list[tuple[Kind, Hit]]] = {}
    for number, _rank, _at, *facts in rows:
        kind, chosen = searched[number]
        title = "Actions" if chosen else kind.title
        groups.setdefault(title, []).append((kind, _hit(kind, chosen, Found(*facts))))
    first = sorted(groups, key=lambda title: title != "Actions")
    return [
        Group(
            title,
            tuple(hit for _, hit in groups[title][:limit]),
            groups[title][0][0].listing if len(groups[title]) > limit and title != "Actions" else "",
        )
        for title in first
    ]


def _hit(kind: Kind, verb: Verb | None, found: Found) -> Hit:
    note = " · ".join(part for part in (found.under, found.state) if part)
    if verb is None:
        return Hit(found.name, note, kind.url(found), kind.icon)
    button = Button(confirm=verb.lost, yes=verb.label) if verb.acts else None
    return Hit(f"{verb.label} {found.name}", note, verb.url(found), kind.icon, button)


def _begins(label: str, word: str) -> bool:
    return len(word) >= SHORTEST and label.lower().startswith(word)


def _operable(rows: QuerySet[Any], user: User) -> QuerySet[Any]:
    return (
        rows if user.is_administrator else rows.filter(appcode__in=appcodes_for(user, OPERATE).order_by().values("pk"))
    )


def _query(kind: Kind, rows: QuerySet[Any], typed: Sequence[str], number: int, limit: int) -> QuerySet[Any, Any]:
    """The best rows as (kind, rank, primary key, name, under, state, key). Ranks: 0 the name itself, 1 its beginning, 2 a part of
    it, 3 other columns."""
    for word in typed:
        if not kind.is_named(word):
            rows = rows.filter(
                reduce(or_, (Q(**{f"{c}__icontains": word}) for c in (kind.name, kind.under, *kind.also)))
            )
    first = next((word for word in typed if not kind.is_named(word)), next(iter(typed), ""))
    rank = Case(
        When(Q(**{f"{kind.name}__iexact": first}), then=0),
        When(Q(**{f"{kind.name}__istartswith": first}), then=1),
        When(Q(**{f"{kind.name}__icontains": first}), then=2),
        default=3,
        output_field=IntegerField(),
    )
    found: QuerySet[Any, Any] = (
        rows.order_by()
        .annotate(found_kind=Value(number), found_rank=rank, found_at=F("pk"))
        .annotate(
            found_name=Cast(kind.name, TextField()),
            found_under=Coalesce(Cast(kind.under, TextField()), NOTHING),
            found_state=Coalesce(Cast(kind.state, TextField()), NOTHING),
            found_key=Cast(kind.key, TextField()),
        )
        .order_by("found_rank", "-found_at")
        .values_list("found_kind", "found_rank", "found_at", "found_name", "found_under", "found_state", "found_key")[
            :limit
        ]
    )
    return found
