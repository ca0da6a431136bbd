"""The search: one engine for the palette (Ctrl-K, `/`) and the search page.

Each room contributes the kinds of its objects (`Kind`) to `extension_points.kinds`, with what can be done with them and the tabs
of their pages (`Verb`). A search is one UNION over the kinds that the user may see, so its number of queries does not depend on
the number of kinds or rows. Pages, actions and settings are matched in memory, from the entries of the navigation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Case, Expression, F, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Concat

from portal.access import OPERATE, appcodes_for
from portal.models import User

MAX_WORDS = 6
# Shortest beginning of a kind's or verb's name that counts as that name.
SHORTEST = 3
NOTHING = Value("", output_field=TextField())
# The rank of a row in whose name no typed word is.
NOT_NAMED = 3
# What a row of the UNION says, with the prefix found_.
FACTS = ("kind", "rank", "acts", "at", "verbs", "name", "under", "state", "key")
# Words of a sentence that name nothing ("logs of show1", "how do I log a metric").
SMALL_WORDS = frozenset(
    (
        "a", "and", "are", "by", "can", "did", "do", "does", "for", "go", "how", "i", "in", "is", "it", "many", "me", "much",
        "my", "of", "on", "open", "the", "to", "vs", "was", "what", "where", "why", "with",
    )
)  # fmt: skip
# What people type for the words of a label (without hyphens).
SYNONYMS = {
    "new": ("add", "create", "launch", "make", "start"),
    "stop": ("abort", "cancel", "disable", "end", "halt", "kill", "terminate"),
    "redeploy": ("again", "deploy", "launch", "rerun", "restart", "run", "start"),
    "start": ("deploy", "enable", "resume", "run"),
    "resume": ("continue", "start", "unpause"),
    "pause": ("hold", "suspend"),
    "change": ("configure", "edit", "settings"),
    "delete": ("erase", "remove"),
    "logs": ("lines", "output", "print", "stdout"),
    "metrics": ("accuracy", "charts", "curves", "loss", "scalars"),
    "usage": ("billing", "cost", "gpuhours", "money", "spending"),
    "runs": ("history", "results"),
    "events": ("activity", "audit"),
    "manifest": ("definition", "json", "yaml"),
    "history": ("activity", "revisions"),
    "tokens": ("keys",),
    "try": ("ask", "predict", "test"),
    "trash": ("deleted", "removed", "undo"),
    "quota": ("gpu", "gpus", "limit", "quotas"),
    "budget": ("money", "spending"),
}


@dataclass(frozen=True)
class Found:
    """A row that was found. `under` is what contains it, `key` what its address needs besides."""

    name: str
    under: str
    state: str
    key: str


@dataclass(frozen=True)
class Verb:
    """What can be done with the rows `where`, or a tab of their page ("Logs of"), offered when a word of its label or a
    synonym is typed ("stop demo", "demo logs"). `label` stands before the name of the row.

    With `lost`, what the action loses, it is a POST after a confirmation; `posts` is a POST without one. Otherwise it is a link.
    `instead` says of rows `where` it cannot be done why ("has ended; nothing to stop"), and the link leads to them. What can be
    done with such rows are verbs with `offered_for`, the label of that one. `operates` restricts it to those who may operate."""

    label: str
    where: Q
    url: Callable[[Found], str]
    lost: str = ""
    posts: bool = False
    operates: bool = False
    instead: str = ""
    offered_for: str = ""

    @property
    def acts(self) -> bool:
        return self.posts or bool(self.lost)

    @property
    def is_aside(self) -> bool:
        """Whether it answers a verb that cannot be done."""
        return bool(self.instead or self.offered_for)

    def is_named(self, word: str) -> bool:
        """Whether a typed word means it. The words of an alternative are those of the verb that cannot be done."""
        own = (self.offered_for or self.label).lower().replace("-", "").split()
        names = [name for first in own if first not in SMALL_WORDS for name in (first, *SYNONYMS.get(first, ()))]
        return any(_begins(name, word.replace("-", "")) for name in names)

    def title(self, name: str) -> str:
        return f"{name} {self.instead}" if self.instead else f"{self.label} {name}"


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

    def without_title(self, typed: Sequence[str]) -> list[str]:
        """The words besides those that say the kind."""
        return [word for word in typed if not any(_begins(name, word) for name in (self.title, *self.words))]


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
    """Results of one kind. `listing`: the list that has more of them, searched for `words`, if there are more than shown."""

    title: str
    hits: tuple[Hit, ...]
    listing: str = ""
    words: str = ""


def words_of(typed: str) -> list[str]:
    """The words of a search, in lower case."""
    every = typed.lower().split()[:MAX_WORDS]
    return [word for word in every if word not in SMALL_WORDS] or every


def objects(kinds: Sequence[Kind], user: User, typed: str, limit: int) -> list[Group]:
    """At most `limit` hits of each kind, best first. Kinds with a better hit come first, and actions before all where more is
    typed than the verb. One query, none without words."""
    words = words_of(typed)
    asked = [_Asked.of(kind, user, words) for kind in kinds if words and kind.only_for(user)]
    if not asked:
        return []
    queries = [each.query(number, limit + 1) for number, each in enumerate(asked)]
    rows = queries[0].union(*queries[1:], all=True).order_by("found_rank", "found_acts", "found_kind", "-found_at")
    actions: list[Hit] = []
    alternatives: list[Hit] = []
    groups: dict[str, list[Hit]] = {}
    more: dict[str, _Asked] = {}
    for number, rank, _acts, _at, verbs, *facts in rows:
        each, found = asked[number], Found(*facts)
        title = each.kind.title
        for verb in (each.verbs[int(place)] for place in verbs.split()):
            # Why something cannot be done is said of the very name that was typed, or where nothing can be done.
            aside = verb.is_aside and rank > 0
            (alternatives if aside else actions).append(_hit(each.kind, found, verb))
        if rank < NOT_NAMED or not each.alone:
            groups.setdefault(title, []).append(_hit(each.kind, found))
            more.setdefault(title, each)
    shown = [
        Group(title, tuple(hits[:limit]), more[title].kind.listing if len(hits) > limit else "", " ".join(more[title].needed))
        for title, hits in groups.items()
    ]  # fmt: skip
    if acting := actions or alternatives:
        shown.insert(0 if len(words) > 1 or not shown else len(shown), Group("Actions", tuple(acting[:limit])))
    return shown


def _hit(kind: Kind, found: Found, verb: Verb | None = None) -> Hit:
    note = " · ".join(part for part in (found.under, found.state) if part)
    if verb is None:
        return Hit(found.name, note, kind.url(found), kind.icon)
    button = Button(confirm=verb.lost, yes=verb.label) if verb.acts else None
    return Hit(verb.title(found.name), note, verb.url(found), kind.icon, button)


@dataclass(frozen=True)
class _Asked:
    """What is asked of one kind: the rows with the words `needed`, and which of `verbs` they take. The best rows have `typed` in
    their names. `alone`: only a verb was typed, so rows need not have its word, but only those that do are hits themselves."""

    kind: Kind
    user: User
    typed: list[str]
    needed: list[str]
    verbs: list[Verb]
    alone: bool

    @classmethod
    def of(cls, kind: Kind, user: User, words: list[str]) -> _Asked:
        verbs = [verb for verb in kind.verbs if any(map(verb.is_named, words))]
        said = [word for word in words if not any(verb.is_named(word) for verb in verbs)]
        alone = not said and len(words) == 1
        if alone:
            verbs = [verb for verb in verbs if not verb.is_aside]
        # An object may be called like a verb: "deploy run".
        return cls(kind, user, kind.without_title(words), kind.without_title(said or words[1:] or words), verbs, alone)

    def query(self, number: int, limit: int) -> QuerySet[Any, Any]:
        """The best rows as FACTS. Ranks: 0 one of the typed words is the name, 1 its beginning, 2 a part of it, NOT_NAMED. `acts`
        is 0 for rows with which something can be done, `verbs` says with which of `self.verbs`, by their places."""
        kind, can = self.kind, [self._can(verb) for verb in self.verbs]
        acts = [where for verb, where in zip(self.verbs, can, strict=True) if verb.acts and not verb.is_aside]
        rows = kind.rows(self.user)
        if self.alone and self.needed:
            rows = rows.filter(reduce(or_, can, self._has(self.needed[0])))
        else:
            for word in self.needed:
                rows = rows.filter(self._has(word))
        rank = [
            When(reduce(or_, (Q(**{f"{kind.name}__{lookup}": word}) for word in self.typed)), then=Value(place))
            for place, lookup in enumerate(("iexact", "istartswith", "icontains"))
            if self.typed
        ]
        places = [
            Case(When(where, then=Value(f"{place} ")), default=NOTHING, output_field=TextField())
            for place, where in enumerate(can)
        ]
        found: QuerySet[Any, Any] = (
            rows.order_by()
            .annotate(found_kind=Value(number), found_at=F("pk"))
            .annotate(
                found_rank=Case(*rank, default=Value(NOT_NAMED)),
                found_acts=Case(When(reduce(or_, acts), then=Value(0)), default=Value(1)) if acts else Value(1),
                found_verbs=Concat(NOTHING, *places, output_field=TextField()) if places else NOTHING,
                found_name=Cast(kind.name, TextField()),
                found_under=Coalesce(Cast(kind.under, TextField()), NOTHING),
                found_state=Coalesce(Cast(kind.state, TextField()), NOTHING),
                found_key=Cast(kind.key, TextField()),
            )
            .order_by("found_rank", "found_acts", "-found_at")
            .values_list(*(f"found_{fact}" for fact in FACTS))[:limit]
        )
        return found

    def _has(self, word: str) -> Q:
        kind = self.kind
        return reduce(or_, (Q(**{f"{column}__icontains": word}) for column in (kind.name, kind.under, *kind.also)))

    def _can(self, verb: Verb) -> Q:
        """The rows that this user can do it with."""
        where = verb.where or Q(pk__isnull=False)  # When() takes no empty condition
        if self.user.is_administrator or not (verb.acts or verb.operates):
            return where
        return where & Q(appcode__in=appcodes_for(self.user, OPERATE).order_by().values("pk"))


def _begins(label: str, word: str) -> bool:
    return len(word) >= SHORTEST and label.lower().startswith(word)
