"""The search: one engine for the palette (Ctrl-K, `/`) and the search page.

Each room contributes the kinds of its objects (`Kind`) to `extension_points.kinds`, with what can be done with them and the tabs
of their pages (`Verb`). A search is one UNION over the kinds that the user may see, so its number of queries does not depend on
the number of kinds or rows. Pages, actions and settings are matched in memory, from the entries of the navigation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, Generic, TypeVar

from django.db.models import Case, Expression, F, Q, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Concat

from portal.access import OPERATE, appcodes_for
from portal.models import User

Item = TypeVar("Item")

MAX_WORDS = 6
# Shortest beginning of a kind's or verb's name that counts as that name.
SHORTEST = 3
NOTHING = Value("", output_field=TextField())
# Who asks why wants to read something, whatever else is said: “why did show1 stop” stops nothing.
WHY = "why"
# Ranks of rows: several words in a row are the name ("hello gpu", hello-gpu); no typed word is in the name.
PHRASE, NOT_NAMED = -1, 3
# What a row of the UNION says, with the prefix found_.
FACTS = ("kind", "rank", "acts", "at", "verbs", "name", "under", "state", "key")
# Words of a sentence that name nothing ("logs of show1", "how do I log a metric").
SMALL_WORDS = frozenset(
    (
        "a", "an", "and", "any", "are", "at", "be", "been", "by", "can", "did", "do", "does", "for", "from", "go", "has", "have",
        "how", "i", "in", "is", "it", "its", "many", "me", "much", "my", "need", "of", "on", "open", "or", "our", "please",
        "show", "that", "the", "there", "this", "to", "vs", "want", "was", "we", "what", "when", "where", "which", "who", "will",
        "with", "you",
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
    "overview": ("crash", "crashed", "error", "failed", "failure", "pending", "stuck", "waiting", "waits", WHY),
    "queue": ("pending", "position", "stuck", "waiting", "waits", WHY),
    "logs": ("lines", "output", "print", "stdout"),
    "metrics": ("accuracy", "charts", "curves", "loss", "scalars"),
    "usage": ("billing", "cost", "gpuhours", "money", "spending"),
    "costs": ("bill", "billing", "cost", "expenses", "money", "spend", "spending", "spent"),
    "members": ("add", "invite", "people", "person", "remove", "roles", "see", "share", "team", "user", "users"),
    "runs": ("history", "results"),
    "events": ("activity", "audit"),
    "manifest": ("definition", "json", "yaml"),
    "history": ("activity", "revisions"),
    "tokens": ("keys",),
    "try": ("ask", "predict", "test"),
    "trash": ("deleted", "removed", "undo"),
    "quota": ("gpu", "gpus", "limit", "quotas"),
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
        """Whether a typed word means it. The words of an alternative are those of the verb that cannot be done. What does
        something at once needs a whole word: nobody means “terminate” by “term”."""
        own = (self.offered_for or self.label).lower().replace("-", "").split()
        names = [name for first in own if first not in SMALL_WORDS for name in (first, *SYNONYMS.get(first, ()))]
        said = word.replace("-", "")
        return said in names if self.acts else any(_begins(name, said) for name in names)

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
    """The words of a search, in lower case, without small words unless there are no others."""
    every = [said for word in typed.lower().split() if (said := word.strip("?!,;:()“”\"'").rstrip("."))]
    return ([word for word in every if word not in SMALL_WORDS] or every)[:MAX_WORDS]


def is_name(name: str, words: Sequence[str]) -> bool:
    """Whether these words are the whole name: “hello gpu” is hello-gpu."""
    return re.split(r"[\s_-]+", name.lower()) == re.split(r"[\s_-]+", " ".join(words))


@dataclass(frozen=True)
class Text(Generic[Item]):
    """Something that is found by its words: an item with its title and whatever else says what it is about."""

    item: Item
    title: str
    about: str = ""


def ranked(texts: Iterable[Text[Item]], words: Sequence[str]) -> tuple[list[Item], int]:
    """The items with the most of the words, and how many these are. First those with more of them in a short title: “costs”
    finds Costs before “Costs by month”. A word may be the beginning of one, and a plural finds the singular, too."""
    patterns = [re.compile(rf"(?<![a-z0-9]){re.escape(_singular(word))}") for word in dict.fromkeys(words)]
    rated = []
    for text in texts:
        title = text.title.lower()
        everything = f"{title} {text.about.lower()}"
        count = sum(1 for pattern in patterns if pattern.search(everything))
        in_title = sum(1 for pattern in patterns if pattern.search(title))
        rated.append((count, in_title / len(title.split()), text.item))
    most = max((count for count, _, _ in rated), default=0)
    best = sorted((each for each in rated if each[0] == most), key=lambda each: -each[1]) if most else []
    return [item for _, _, item in best], most


def _singular(word: str) -> str:
    return word[:-1] if len(word) > SHORTEST and word.endswith("s") and not word.endswith("ss") else word


def objects(kinds: Sequence[Kind], user: User, typed: str, limit: int) -> list[Group]:
    """At most `limit` hits of each kind, best first. Kinds with a better hit come first, and actions before all where more is
    typed than the verb, but after an object with the typed name. One query, none without words."""
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
        named = bool(shown) and is_name(shown[0].hits[0].title, words)
        place = int(named) if len(words) > 1 else len(shown)
        shown.insert(place, Group("Actions", tuple(acting[:limit])))
    return shown


def _hit(kind: Kind, found: Found, verb: Verb | None = None) -> Hit:
    note = " · ".join(part for part in (found.under, found.state) if part)
    if verb is None:
        return Hit(found.name, note, kind.url(found), kind.icon)
    button = Button(confirm=verb.lost, yes=verb.label) if verb.acts else None
    return Hit(verb.title(found.name), note, verb.url(found), kind.icon, button)


@dataclass(frozen=True)
class _Asked:
    """What is asked of one kind: the rows with the words `needed`, or a name among `typed` and `phrases` (“why did train fail”),
    and which of `verbs` they take. The best rows have these in their names. `alone`: only a verb was typed, so rows need not have
    its word, but only those that do are hits themselves."""

    kind: Kind
    user: User
    typed: list[str]
    phrases: list[str]
    needed: list[str]
    verbs: list[Verb]
    alone: bool

    @classmethod
    def of(cls, kind: Kind, user: User, words: list[str]) -> _Asked:
        asked = [WHY] if WHY in words else words
        verbs = [verb for verb in kind.verbs if any(map(verb.is_named, asked))]
        said = [word for word in words if not any(verb.is_named(word) for verb in verbs)]
        alone = not said and len(words) == 1
        if alone:
            verbs = [verb for verb in verbs if not verb.is_aside]
        # An object may be called like a verb: "deploy run".
        needed = kind.without_title(said or words[1:] or words)
        return cls(kind, user, kind.without_title(words), _phrases(words), needed, verbs, alone)

    def query(self, number: int, limit: int) -> QuerySet[Any, Any]:
        """The best rows as FACTS. Ranks: PHRASE, 0 one of the typed words is the name, 1 its beginning, 2 a part of it,
        NOT_NAMED. `acts` is 0 for rows with which something can be done, `verbs` says with which of `self.verbs`, by their
        places."""
        kind, can = self.kind, [self._can(verb) for verb in self.verbs]
        acts = [where for verb, where in zip(self.verbs, can, strict=True) if verb.acts and not verb.is_aside]
        rows = kind.rows(self.user)
        if self.alone and self.needed:
            rows = rows.filter(reduce(or_, can, self._has(self.needed[0])))
        else:
            wanted = reduce(and_, map(self._has, self.needed), Q())
            named = Q(**{f"{kind.name}__in": [*self.typed, *self.phrases]})
            rows = rows.filter(wanted | named if wanted and self.phrases else wanted)
        rank = [When(Q(**{f"{kind.name}__in": self.phrases}), then=Value(PHRASE))] if self.phrases else []
        rank += [
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


def _phrases(words: Sequence[str]) -> list[str]:
    """The names that words in a row may mean: “hello gpu” hello-gpu, “val loss” val_loss."""
    ranges = ((first, last) for first in range(len(words)) for last in range(first + 2, len(words) + 1))
    return [mark.join(words[first:last]) for first, last in ranges for mark in "-_"]
