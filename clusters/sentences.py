"""Sentences that the search understands of clusters and their runs: “failed runs yesterday”, “runs with loss < 0.1”, “stop all”,
“rerun show1 with LR=0.3”, “logs of my last run”, “compare show1 show2”.

A sentence has nouns, states, people, tags, days and conditions in any order (`read`). It means something only if each of its
words does, so none is dropped silently. Each function answers one kind of sentence with links; none of them does anything.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from clusters.access import clusters_for
from clusters.cluster.search import Search
from clusters.frameworks import APPLICATIONS
from clusters.results.models import Metric
from clusters.results.values import is_judged
from clusters.results.view import WORDS, Column, View, conditions
from clusters.runs.models import Cluster, Run
from clusters.runs.status.phase import TERMINAL
from clusters.scalars.events import tag_order
from portal.access import OPERATE, appcodes_for, people_for
from portal.models import User
from portal.search import SHORTEST, SMALL_WORDS, SYNONYMS, Button, Hit, words_of
from portal.text.days import Days, days_in
from portal.text.zones import zone_of

# What people call runs and clusters.
_RUNS = frozenset(("experiment", "job", "result", "run", "training"))
_NOUNS = {name: "runs" for one in _RUNS for name in (one, f"{one}s")} | {"cluster": "clusters", "clusters": "clusters"}
_EVERYTHING = frozenset(("all", "every", "everything"))
_MINE = frozenset(("i", "me", "mine", "my"))
# “How do I start a run” and “why did show1 fail” ask for something else.
_LINKING = SMALL_WORDS - _MINE - {"how", "why"} | frozenset(
    (
        "currently", "filter", "find", "get", "had", "having", "list", "now", "only", "started", "than", "their", "view", "were",
        "where", "whose",
    )
)  # fmt: skip
# What people type with a state, and what else they call it.
_STATES = {phase.lower(): phase for phase in Run.Phase.values} | {
    "finished": "Succeeded", "pending": "Queued", "waiting": "Queued", "errors": "Failed", "crashed": "Failed",
    "failing": "Failed", "cancelled": "Stopped", "canceled": "Stopped",
}  # fmt: skip
# What can be done with several clusters that are ticked in their list, with the states in which it can.
_LIVING, _ENDED = ",".join(phase for phase in Run.Phase.values if phase not in TERMINAL), ",".join(sorted(TERMINAL))
_SEVERAL = {"stop": ("Stop", _LIVING), "redeploy": ("Re-Deploy", _ENDED), "delete": ("Delete", _ENDED)}
_VERBS = {name: verb for verb in ("stop", "delete") for name in (verb, *SYNONYMS[verb])} | dict.fromkeys(
    ("redeploy", "rerun", "restart", "retry"), "redeploy"
)
# A comparison in words, before a number.
_SAID = {
    "<": ("below", "under", "less than", "lower than", "smaller than"), ">=": ("at least",), "<=": ("at most",),
    ">": ("above", "over", "more than", "greater than", "higher than", "larger than"), "=": ("equal to", "equals"),
}  # fmt: skip
_IN_WORDS = [
    (re.compile(rf"\s+(?:is\s+|are\s+)?(?:{'|'.join(names)})\s+(?=[-+.\d])", re.IGNORECASE), f" {sign} ")
    for sign, names in _SAID.items()
]
_WHICH = "|".join(WORDS)
_CONDITION = re.compile(
    rf"(?:\b(?:{_WHICH})\s+)?[^\s<>=!~,;]+(?:\s+(?:{_WHICH}))?\s*(?:<=|>=|!=|==|=|<|>|~)\s*"
    r"(?:\"[^\"]*\"|[\d.]+\s*(?:s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)\b(?:\s+ago)?|[^\s<>=!~,;]+)"
)
_TAGGED = re.compile(r"\b(?:tagged|tags?)\s+(?:(?:with|as|is)\s+)?([^\s,;<>=!~]+)", re.IGNORECASE)
# More words that may be names are no sentence.
MOST_NAMES = 4


@dataclass
class Said:
    """What a sentence says. `names` are the words that may be names of people, appcodes and clusters."""

    verb: str = ""
    noun: str = ""
    is_plural: bool = False
    everything: bool = False
    mine: bool = False
    states: list[str] = field(default_factory=list)
    tag: str = ""
    where: str = ""
    days: Days | None = None
    names: list[str] = field(default_factory=list)

    @property
    def narrows(self) -> bool:
        """Whether it says what only Results can be filtered by."""
        return bool(self.where or self.tag or self.days)


def read(typed: str, today: dt.date) -> Said:
    """Pure."""
    said = Said()
    for words, sign in _IN_WORDS:
        typed = words.sub(sign, typed)
    said.where = " and ".join(each[0] for each in _CONDITION.finditer(typed))
    typed, said.days = days_in(_CONDITION.sub(" ", typed).replace("how many", ""), today)
    if tagged := _TAGGED.search(typed):
        said.tag, typed = tagged[1], f"{typed[: tagged.start()]} {typed[tagged.end() :]}"
    for word in (each.strip("?!,;:.()“”\"'") for each in typed.lower().replace("’", "'").split()):
        _take(said, word)
    return said


def _take(said: Said, word: str) -> None:
    if word in _NOUNS:
        said.noun, said.is_plural = _NOUNS[word], said.is_plural or word.endswith("s")
    elif word.replace("-", "") in _VERBS:
        said.verb = _VERBS[word.replace("-", "")]
    elif word in _EVERYTHING:
        said.everything = True
    elif word in _MINE:
        said.mine = True
    elif word in _LINKING or not word:
        pass
    elif (
        len(word) >= SHORTEST
        and word != "start"
        and (found := [phase for name, phase in _STATES.items() if name.startswith(word)])
    ):
        said.states += [phase for phase in dict.fromkeys(found) if phase not in said.states]
    else:
        said.names.append(word.removesuffix("'s"))


@dataclass(frozen=True)
class Named:
    """What the names of a sentence are."""

    who: str = ""
    appcode: str = ""
    cluster: str = ""


def _named(user: User, names: Sequence[str], *, mine: bool) -> Named | None:
    """None where a name is nothing that the user may see, or two are of one kind. Three queries, none without names."""
    if not names:
        return Named(who=user.username if mine else "")
    if len(names) > MOST_NAMES:
        return None
    found = {
        "who": set(people_for(user).filter(username__in=names).values_list("username", flat=True)),
        "appcode": set(appcodes_for(user).filter(code__in=names).values_list("code", flat=True)),
        "cluster": set(clusters_for(user).filter(name__in=names, part_of="").values_list("name", flat=True)),
    }
    if mine:
        found["who"].add(user.username)
    if set(names) - set().union(*found.values()) or any(len(each) > 1 for each in found.values()):
        return None
    return Named(**{kind: next(iter(each), "") for kind, each in found.items()})


def of_runs(user: User, typed: str) -> list[Hit]:
    """ "failed", "my clusters", "runs with loss < 0.1", "bob's runs yesterday": the lists with only these."""
    said = read(typed, _today(user))
    _, unclear = conditions(said.where)
    if unclear or said.verb or not (said.narrows or said.states or said.mine or said.names):
        return []
    if not (said.noun or said.where or said.tag or said.states):
        return []
    named = _named(user, said.names, mine=said.mine)
    if named is None:
        return []
    if named == Named() and not said.narrows:
        return _in_state(said)
    if said.noun == "clusters" and not (said.narrows or named.cluster):
        return [_in_clusters(_subject(said, "clusters", named), "Clusters", said, named)]
    view = View(
        search=named.cluster, state=",".join(said.states), who=named.who, tag=said.tag,
        where=" and ".join(filter(None, (said.where, _started(said.days, user)))),
    )  # fmt: skip
    page = reverse("results_of", args=[named.appcode]) if named.appcode else reverse("results")
    return [Hit(_subject(said, "runs", named), "Results", f"{page}?{view.query}", "results")]


def _today(user: User) -> dt.date:
    return timezone.now().astimezone(zone_of(user.time_zone)).date()


def _in_state(said: Said) -> list[Hit]:
    """Home and Results with only these."""
    return [
        hit
        for phase in said.states
        for hit in (
            Hit(phase, "Home", f"{reverse('home')}?phase={phase}", "home"),
            Hit(f"{phase} runs", "Results", f"{reverse('results')}?state={phase}", "results"),
        )
    ]


def several(user: User, typed: str) -> list[Hit]:
    """ "stop all", "delete my failed runs": the clusters to choose from. Without a person or an appcode, one's own."""
    said = read(typed, _today(user))
    if not said.verb or said.narrows or not (said.everything or (said.noun and said.is_plural)):
        return []
    named = _named(user, said.names, mine=said.mine)
    if named is None or named.cluster:
        return []
    if not (named.who or named.appcode):
        said.mine, named = True, Named(who=user.username)
    verb, states = _SEVERAL[said.verb]
    subject = _subject(said, "clusters", named, {"stop": "living"}.get(said.verb, "ended"))
    said.states = said.states or states.split(",")
    title = f"Choose what to {verb.lower()}: {subject[0].lower()}{subject[1:]}"
    return [_in_clusters(title, f"Clusters · tick them, then {verb}", said, named)]


def _in_clusters(title: str, note: str, said: Said, named: Named) -> Hit:
    search = Search(phase=",".join(said.states), owner=named.who, appcode=named.appcode)
    return Hit(title, note, f"{reverse('clusters')}{search.url()}", "cluster")


def _subject(said: Said, noun: str, named: Named, state: str = "") -> str:
    """ "My failed runs tagged baseline", "Results of show1 where loss < 0.1"."""
    first = [
        *(["my"] if said.mine else []),
        *([" or ".join(said.states).lower() or state] if said.states or state else []),
    ]
    words = " ".join([*first, noun]) if first or noun != "runs" else "Results"
    parts = (
        words[0].upper() + words[1:],
        f"by {named.who}" if named.who and not said.mine else "",
        f"of {named.cluster}" if named.cluster else "",
        f"in {named.appcode}" if named.appcode else "",
        f"tagged {said.tag}" if said.tag else "",
        said.days.said if said.days else "",
        f"where {said.where}" if said.where else "",
    )
    return " ".join(filter(None, parts))


def _started(days: Days | None, user: User) -> str:
    """As conditions: days are UTC's, those of another zone are said as times."""
    if days is None:
        return ""
    zone = zone_of(user.time_zone)

    def day(which: dt.date) -> str:
        start = dt.datetime.combine(which, dt.time(), zone)
        return start.isoformat(timespec="minutes") if start.utcoffset() else f"{which}"

    return f"started >= {day(days.first)} and started < {day(days.last + dt.timedelta(days=1))}"


_NEWEST = frozenset(("last", "latest", "newest", "previous", "recent"))
_TABS = {
    name: tab
    for tab in ("logs", "metrics", "usage", "events", "manifest")
    for name in (tab, tab.removesuffix("s"), *SYNONYMS[tab])
} | dict.fromkeys(("overview", *SYNONYMS["overview"], "fail"), "")
_TWO = frozenset(("2", "both", "two"))
# Clusters of all appcodes, or newest runs, that a comparison looks at: an administrator sees those of everybody.
MOST_NAMED = 60


def newest(user: User, typed: str) -> list[Hit]:
    """ "my last run", "logs of my last run", "compare my last two runs" (of the appcode of the last). One query."""
    words = frozenset(words_of(typed))
    rest = words - _NEWEST - _NOUNS.keys() - _MINE
    compares = "compare" in rest and bool(rest & _TWO)
    if not words & _NEWEST or not words & _NOUNS.keys() or rest - (_TWO | {"compare"} if compares else _TABS.keys()):
        return []
    mine = Run.objects.filter(
        created_by=user, cluster__in=clusters_for(user).filter(part_of="").order_by().values("pk")
    )
    mine = mine.exclude(cluster__framework__in=list(APPLICATIONS)).order_by("-pk")
    facts = list(
        mine.values_list("cluster__appcode__code", "cluster__name", "number", "phase")[: MOST_NAMED if compares else 1]
    )
    if compares:
        return _compared(facts[0][0], [fact[1:3] for fact in facts if fact[0] == facts[0][0]][:2]) if facts else []
    tab = next((_TABS[word] for word in words if _TABS.get(word)), "")
    return [
        Hit(
            f"{tab.capitalize() or 'Overview'} of {name}", f"{code} · your last run, {number} · {phase}",
            f"{reverse('cluster', args=[code, name])}{tab and f'/{tab}'}", "cluster",
        )
        for code, name, number, phase in facts
    ]  # fmt: skip


# Superlatives of runs: the sorting that begins with them, and what the hit says. "" is the best value of a metric.
_MOST = {
    **dict.fromkeys(("best", "top"), ("", "the best first")),
    "worst": ("", "the worst first"),
    "cheapest": ("cost", "the cheapest first"),
    **dict.fromkeys(("dearest", "expensive", "costliest"), ("-cost", "the most expensive first")),
    **dict.fromkeys(("longest", "slowest"), ("-duration", "the longest first")),
    **dict.fromkeys(("shortest", "fastest", "quickest"), ("duration", "the shortest first")),
}  # fmt: skip


def superlative(user: User, typed: str) -> list[Hit]:
    """ "best run", "my longest run": Results sorted so, of the appcode of the newest run that the user made, or may see. The best
    is that of the metric whose column comes first. Three queries at most."""
    words = words_of(typed.lower().replace("most ", ""))
    said = [word for word in words if word in _MOST]
    mine = frozenset(typed.lower().split()) & _MINE
    if len(said) != 1 or not set(words) & _NOUNS.keys() or set(words) - _MOST.keys() - _NOUNS.keys() - _MINE:
        return []
    seen = Run.objects.filter(cluster__in=clusters_for(user).order_by().values("pk"))
    seen = seen.exclude(cluster__framework__in=list(APPLICATIONS)).order_by("-pk")
    newest_of = seen.values_list("cluster__appcode", "cluster__appcode__code")
    found = newest_of.filter(created_by=user).first() or (None if mine else newest_of.first())
    if found is None:
        return []
    appcode, code = found
    sort, note = _MOST[said[0]]
    if not sort:
        metrics = filter(is_judged, Metric.objects.filter(appcode=appcode).values_list("name", flat=True))
        if (name := min(metrics, key=tag_order, default="")) == "":
            return []
        best = View().sorted_by(Column("best", name)).sort
        worst = best.removeprefix("-") if best.startswith("-") else f"-{best}"
        sort, note = worst if said[0] == "worst" else best, f"{name}, {note}"
    view = View(sort=sort, who=user.username if mine else "")
    title = "My runs" if mine else "Results"
    return [Hit(f"{title}: {note}", code, f"{reverse('results_of', args=[code])}?{view.query}", "results")]


def comparison(user: User, typed: str) -> list[Hit]:
    """ "compare a b": the newest runs of the clusters with these names, side by side, for each appcode with two of them."""
    words = words_of(typed)
    names = [word for word in words if word != "compare"]
    if len(names) == len(words) or len(names) < 2:
        return []
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    named = clusters_for(user).filter(name__in=names, current_run__isnull=False)
    facts = named.order_by("appcode__code").values_list("appcode__code", "name", "current_run__number")
    for code, name, run in facts[:MOST_NAMED]:
        found[code][name] = run
    return [
        hit
        for code, numbers in found.items()
        for hit in _compared(code, [(name, numbers[name]) for name in names if name in numbers])
    ]


def _compared(code: str, runs: Iterable[tuple[str, int]]) -> list[Hit]:
    """Two or more runs side by side."""
    each = list(dict.fromkeys(runs))
    if len(each) < 2:
        return []
    names = dict.fromkeys(name for name, _ in each)
    title = " and ".join(names) if len(names) > 1 else " and ".join(f"{name} run {run}" for name, run in each)
    runs_said = ",".join(f"{name}/{run}" for name, run in each)
    return [
        Hit(
            f"Compare {title}", f"{code} · the newest runs",
            f"{reverse('compare', args=[code])}?runs={runs_said}", "results",
        )
    ]  # fmt: skip


# “LR=0.3”, “--lr = 0.3”, “LR to 0.3”. What a link may set is a plain word or number (cluster/form/values.py).
_SET = re.compile(r"(?<!\S)(?:--)?([A-Za-z_][\w.-]*)(?:\s*=\s*|\s+to\s+)([\w.+-]+)(?=[\s,;?!]|$)")
_AGAIN = frozenset(
    (
        "again", "change", "clone", "copy", "deploy", "redeploy", "rerun", "restart", "retry", "run", "set", "start",
        "train", "try",
    )
)  # fmt: skip
MOST_CHANGED = 3


def changed(user: User, typed: str) -> list[Hit]:
    """ "rerun show1 with LR=0.3": the form of its next run with the value filled in; of one that lives, the form of a copy."""
    values = [f"{name}={value.rstrip('.')}" for name, value in _SET.findall(typed)]
    words = [word.replace("re-", "re") for word in words_of(_SET.sub(" ", typed))]
    names = [word for word in words if word not in _AGAIN and word not in _NOUNS]
    if not values or len(names) == len(words) or not names:
        return []
    mine = clusters_for(user).filter(appcode__in=appcodes_for(user, OPERATE).order_by().values("pk"), part_of="")
    rows = mine.filter(name__in=[*names, "-".join(names)]).exclude(framework__in=list(APPLICATIONS)).order_by("-pk")
    facts = rows.values_list("appcode__code", "name", "current_run__phase")[:MOST_CHANGED]
    query, hits = urlencode([("set", value) for value in values]), []
    for code, name, phase in facts:
        if phase is None or phase in TERMINAL:
            deed, note, form = "Change", "the form of its next run", f"{reverse('change_cluster', args=[code, name])}?"
        else:
            deed, note, form = (
                "Copy",
                "it has not ended; the form of a copy",
                f"{reverse('new_cluster')}?clone={code}/{name}&",
            )
        hits.append(Hit(f"{deed} {name}: {', '.join(values)}", f"{code} · {note}, filled in", form + query, "cluster"))
    return hits


# Words that name an error: "KeyError", "torch.cuda.OutOfMemoryError", "oom".
_ERROR = re.compile(r".+(error|exception|timeout|killed)|oom|nccl|cuda|memory|traceback|segmentation")
# Clusters whose last runs are looked at for an error, the newest of the user's, and how many are told.
MOST_LOOKED_AT, MOST_FAILED, LONGEST_LINE = 500, 3, 120


def failures(user: User, typed: str) -> list[Hit]:
    """ "KeyError", "out of memory": the last runs that failed with it, and all that failed. One query."""
    words = words_of(typed)
    if not any(map(_ERROR.fullmatch, words)):
        return []
    newest = clusters_for(user).filter(part_of="", current_run__isnull=False).order_by("-pk").values("pk")
    told = Q()
    for word in words:
        told &= (
            Q(current_run__message__icontains=word) | Q(current_run__reason__icontains=word) | Q(name__icontains=word)
        )
    if "memory" in words:
        told |= Q(current_run__reason="OOMKilled")
    found = Cluster.objects.filter(told, pk__in=newest[:MOST_LOOKED_AT], current_run__phase=Run.Phase.FAILED)
    facts = found.order_by("-current_run__pk").values_list(
        "appcode__code", "name", "current_run__number", "current_run__message"
    )
    hits = [
        Hit(
            f"{name} failed",
            f"{code} · run {number} · {_line(message)}",
            reverse("cluster", args=[code, name]),
            "cluster",
        )
        for code, name, number, message in facts[:MOST_FAILED]
    ]
    return [*hits, Hit("Failed", "Home · each says what usually mends it", f"{reverse('home')}?phase=Failed", "home")]


def _line(message: str) -> str:
    first = message.partition("\n")[0]
    return first if len(first) <= LONGEST_LINE else f"{first[:LONGEST_LINE]}…"


_BEGIN = frozenset(("create", "launch", "new", "run", "start", "train"))
_GPUS = frozenset(("gpu", "gpus"))
_FRAMEWORKS = frozenset(("jax", "keras", "pytorch", "tensorflow", "torch"))
_NOTEBOOKS = frozenset(("jupyter", "jupyterlab", "notebook", "notebooks"))


def training(user: User, typed: str) -> list[Hit]:
    """ "run pytorch on 2 gpus": the form; for “a notebook with 1 GPU” that of a notebook, and one's own."""
    words = frozenset(words_of(typed))
    counted = words & _GPUS and any(map(str.isdecimal, words))
    if not words & _BEGIN or not (counted or words & _FRAMEWORKS):
        return []
    note = "Choose a flavor with the GPUs there" if counted else ""
    if not words & _NOTEBOOKS:
        return [Hit("New cluster", note, reverse("new_cluster"), "plus")]
    return [
        Hit("New notebook or application", note, reverse("new_application"), "plus"),
        Hit("My notebook", "", reverse("my_notebook"), "application", Button()),
    ]


SENTENCES = (comparison, newest, superlative, changed, several, training, of_runs, failures)
