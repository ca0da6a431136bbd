"""What is known of a cloud → what `clusters.admission` decides by, and its verdict about a new run. Calls no cloud."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from django.utils import timezone

from clusters.admission.codes import Code, Values
from clusters.admission.decision import Ask, Prospect, Snapshot, Verdict, decide
from clusters.admission.decision import room as left_by
from clusters.admission.judgement import Judgement
from clusters.admission.order import PriorityClass
from clusters.admission.packing import GPU_ONLY, Field, Shape, Sizes, Tasks
from clusters.admission.pool import Node
from clusters.admission.taking import Holding
from clusters.admission.windows import NONE, Asker, Windows, explained, tolerating
from clusters.admission.words import must_add, sentence_of
from clusters.clouds.drivers.base import Capacity, Slices
from clusters.clouds.drivers.base import Node as Seen
from clusters.clouds.registry import adds_nodes, places_runs
from clusters.runs.models import Cluster
from clusters.runs.placing import windows
from clusters.runs.placing.known import ENDLESS, MOST_WAITING, TO_END, UNUSED, Ending, Known, Terms, Waiting, read
from clusters.runs.placing.rights import Rights, holdings, rights
from portal.db.one_view import one_view
from portal.models import Appcode

# What a run waits for that others may have to give back.
SHORT = frozenset({Code.GPUS, Code.FRAGMENTED, Code.RESOURCES, Code.BEHIND})
# How long it takes at most until a run begins that starts now: its image and its data are fetched first.
TO_BEGIN = dt.timedelta(minutes=10)
# Waiting runs for which it is looked ahead.
MOST_FORETOLD = 20
# The longest time limit that a run can have.
MOST_SECONDS = 60 * 86400
# Stands for an amount that the cloud does not report. Larger than any sum of what tasks ask.
UNREPORTED = 1 << 60


@dataclass(frozen=True)
class Wish:
    """Who would start a new run, and how. `line`: its namespace. `seconds`: its time limit. `is_endless`: it can have none.
    `person`: by id."""

    appcode: Appcode
    line: str
    priority_class: PriorityClass = "normal"
    seconds: int | None = None
    is_endless: bool = False
    person: str = ""

    @property
    def terms(self) -> Terms:
        return Terms(self.line, self.appcode.gpu_quota, self.appcode.gpu_borrow, self.appcode.weight)


def judge(tasks: Sequence[Tasks], capacity: Capacity, cloud: str, wish: Wish, but: Cluster | None = None) -> Judgement:
    """Judges a new run of `tasks`, the youngest of all that wait."""
    return Here.read(cloud, capacity, wish, but).judge(tasks)


class Here:
    """A cloud as new runs of one appcode find it. Changes of a run are decided by what was read for itself."""

    def __init__(self, cloud: str, known: Known, at: dt.datetime, wish: Wish) -> None:
        self._cloud, self._known, self._at, self._wish = cloud, known, at, wish
        self._rights = Rights()
        if places_runs(cloud):
            self._rights = rights(known.waiting, at, {str(wish.appcode.pk): wish.terms})
        # Of a run that was judged and can never start: what an administrator would have to add.
        self.must_add = ""
        self._holdings: tuple[Holding, ...] = ()
        self._snapshots: dict[Wanted, Snapshot] = {}
        self._prospects: dict[Wanted, Prospect] = {}
        self._several = Wanted.of({task for each in known.waiting for task in each.tasks})

    @classmethod
    def read(cls, cloud: str, capacity: Capacity, wish: Wish, but: Cluster | None = None) -> Here:
        """At most fifteen queries, with those of `judge`. They see one moment: else a run that gets its places meanwhile would be
        neither waiting nor placed, or both."""
        with one_view():
            return cls(cloud, read(cloud, capacity, but), timezone.now(), wish)

    def judge(self, tasks: Sequence[Tasks]) -> Judgement:
        wish, ask, known = self._wish, self.ask(tasks, self._wish.priority_class, self._wish.seconds), self._known
        verdict = self.prospect(tasks).verdict(ask)
        if verdict.code in SHORT and self._rights.shares:
            also = Waiting(0, ask.tasks, appcode=ask.appcode, priority_class=ask.priority_class)
            if able := holdings(self._cloud, self._rights, [*known.waiting, also], self._at):
                self._holdings, self._prospects = able, {}
                verdict = self.prospect(tasks).verdict(ask)
        if known.windows.windows:
            new = ask, self._asker(wish.seconds)
            verdict = explained(self._snapshot(self._wanted(tasks)), {"": verdict}, known.windows, new=new)[""]
        message = said(verdict, known.capacity)
        self.must_add = must_add(verdict)
        if verdict.code.fits == "never" and adds_nodes(self._cloud):
            more = "That is so with the machines of today: it waits for others, which are added when tasks wait."
            lacking = Code.GPUS if any(each.gpus for each in tasks) else Code.RESOURCES
            return Judgement("waits", lacking, f"{message} {more}")
        return Judgement(verdict.code.fits, verdict.code, message)

    def ask(self, tasks: Sequence[Tasks], priority_class: PriorityClass, seconds: int | None) -> Ask:
        tolerated = self._known.windows.tolerated(self._asker(seconds))
        asked = tolerating([each for each in tasks if each.count], tolerated)
        ends = ends_at(self._at, seconds)
        return Ask(
            "", str(self._wish.appcode.pk), asked, priority_class=priority_class, ends=ends, person=self._wish.person
        )

    def prospect(self, tasks: Iterable[Tasks]) -> Prospect:
        """What decides about these tasks."""
        wanted = self._wanted(tasks)
        if wanted not in self._prospects:
            self._prospects[wanted] = Prospect(replace(self._snapshot(wanted), holdings=self._holdings))
        return self._prospects[wanted]

    def limits(self, tasks: Sequence[Tasks], priority_class: PriorityClass) -> list[int]:
        """Time limits, in seconds, that end before nodes are needed that are kept, or before a window; the longest first."""
        until = self.prospect(tasks).frees(self.ask(tasks, priority_class, None))
        first = ends_at(self._at, 0) or 0
        return self._known.windows.limits(min(each - first, MOST_SECONDS) for each in until)

    def _asker(self, seconds: int | None) -> Asker:
        return windows.asker(self._wish.appcode.pk, seconds, is_endless=self._wish.is_endless)

    def _wanted(self, tasks: Iterable[Tasks]) -> Wanted:
        return self._several | Wanted.of(list(tasks))

    def _snapshot(self, wanted: Wanted) -> Snapshot:
        if wanted not in self._snapshots:
            found = snapshot(self._known, self._at, wanted)
            self._snapshots[wanted] = replace(found, shares=self._rights.shares)
        return self._snapshots[wanted]


def decide_all(cloud: str, known: Known, at: dt.datetime) -> tuple[Snapshot, dict[str, Verdict]]:
    """Decides about all runs of a cloud that wait. Reads what may be taken back only if one lacks room."""
    here = rights(known.waiting, at) if known.waiting else Rights()
    found = replace(snapshot(known, at), shares=here.shares)
    verdicts = decide(found)
    if any(each.code in SHORT for each in verdicts.values()) and (able := holdings(cloud, here, known.waiting, at)):
        found = replace(found, holdings=able)
        verdicts = _told_from(found, decide(found))
    return found, explained(found, verdicts, known.windows)


def _told_from(found: Snapshot, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    """The verdicts, where the first runs that wait are told from when on GPUs are taken back for them, if only runs that began
    too recently are in their way."""
    until = {each.run: each.until for each in found.holdings if each.is_protected}
    first = tuple(ask for ask in found.asks if verdicts[ask.run].rank <= MOST_FORETOLD)
    if not until or not any(verdicts[ask.run].code in SHORT for ask in first):
        return verdicts
    open_ = tuple(replace(each, is_protected=False) for each in found.holdings)
    later = decide(replace(found, asks=first, holdings=open_))
    for run, then in later.items():
        if verdicts[run].code in SHORT and (ends := [until[each] for each in then.takes if each in until]):
            told = {"taken_from": -(-max(ends) // 60) * 60, "runs": len(then.takes)}
            verdicts[run] = replace(verdicts[run], values={**verdicts[run].values, **told})
    return verdicts


def free_for(tasks: Sequence[Tasks], known: Known) -> Judgement:
    """Judges tasks by what runs hold now, whatever else waits."""
    found = snapshot(Known(known.capacity, known.taken), also=Wanted.of(tasks))
    verdict = decide(replace(found, asks=(Ask("", "", tuple(tasks)),)))[""]
    return Judgement(verdict.code.fits, verdict.code, said(verdict, known.capacity))


def said(verdict: Verdict, capacity: Capacity) -> str:
    """The sentence for a verdict, and why some nodes take no tasks."""
    return sentence_of(verdict.code, told(verdict, capacity))


def told(verdict: Verdict, capacity: Capacity) -> Values:
    """The values of a verdict, and what the nodes say of themselves: all that its sentence is made of."""
    shut = [node for node in capacity.nodes if not node.takes_tasks]
    if verdict.code is Code.NO_NODES:
        return {**verdict.values, "notes": _notes(shut)}
    with_gpus = [node for node in shut if node.gpus]
    if not with_gpus or verdict.code.fits != "waits":
        return verdict.values
    closed = f"{len(with_gpus)} of {len(capacity.nodes)} machines take no tasks: {_notes(with_gpus)}"
    return {**verdict.values, "notes": closed}


def _notes(nodes: Sequence[Seen]) -> str:
    return " ".join(sorted({node.note for node in nodes if node.note}))


def left(known: Known, tasks: Iterable[Tasks] = ()) -> Field:
    """What all runs leave for a new one of such tasks."""
    return left_by(snapshot(known, also=Wanted.of(list(tasks))))


def rooms(cloud: str, capacity: Capacity, wanted: Iterable[Tasks] = ()) -> Callable[[Tasks], int]:
    """Returns how many tasks like a given one, of those `wanted`, a new run finds room for. At most six queries, none for each
    task."""
    field = left(read(cloud, capacity), wanted)
    return lambda task: sum(
        shape.holds(replace(task, count=MOST_WAITING)) * len(names) for shape, names in field.items()
    )


def ends_at(at: dt.datetime, seconds: int | None) -> int | None:
    """When a run with this time limit has ended if it starts at `at`, in seconds since 1970."""
    return None if seconds is None else int((at + TO_BEGIN + TO_END).timestamp()) + seconds


def snapshot(known: Known, at: dt.datetime | None = None, also: Wanted | None = None) -> Snapshot:
    """Returns what `decide` needs, without shares. Runs are named by their ids. `at`: now, which counts for time limits. `also`:
    what a later run asks for. Nodes have only what somebody asks for, since nodes that are alike then cost as much as one."""
    # Many runs ask for the same, by the same object, which is found faster than an equal one.
    keys = [_key(each, known.windows) for each in known.waiting]
    several = dict(zip(keys, known.waiting, strict=True))
    asking = {task for each in several.values() for task in each.tasks} | {each.tasks for each in known.promises}
    wanted = Wanted.of(asking) | (also or Wanted())
    promised: dict[str, Sizes] = {}
    for promise in known.promises:
        for node in promise.open:
            if count := promise.on(node):
                promised[node] = promised.get(node, Sizes()) + Sizes.of_tasks(promise.tasks, count)
    alike: dict[Hashable, Node] = {}
    nodes = known.windows.close(
        _node(
            each,
            kind,
            known.taken.get(each.name, Sizes()),
            promised.get(each.name),
            known.ending.get(each.name),
            alike,
            wanted,
        )
        for each, kind in zip(known.capacity.nodes, known.capacity.kinds, strict=True)
    )
    alike_asks: dict[tuple[Tasks, ...], tuple[Tasks, ...]] = {}
    asked = {}
    for key, each in several.items():
        tasks = _asked(each, nodes, key[0])
        asked[key] = alike_asks.setdefault(tasks, tasks)
    asks = tuple(
        Ask(
            str(each.run),
            each.appcode,
            asked[key],
            each.started,
            each.priority_class,
            ends_at(at, each.seconds) if at else None,
            each.person,
        )
        for key, each in zip(keys, known.waiting, strict=True)
    )
    avoiding = [each for each in known.waiting if each.avoided]
    return _avoided(avoiding, nodes, asks) if avoiding else Snapshot(nodes, asks)


def _avoided(avoiding: Sequence[Waiting], nodes: Sequence[Node], asks: Sequence[Ask]) -> Snapshot:
    """Keeps runs off the nodes that they avoid, by labels. A node that is avoided still counts for what can ever fit."""
    every = frozenset(("open to", str(each.run)) for each in avoiding)
    found = []
    for node in nodes:
        labels = every - {("open to", str(each.run)) for each in avoiding if node.name in each.avoided}
        drained = replace(node.drained, labels=labels | node.drained.labels) if node.drained else None
        free = replace(node.free, labels=labels | node.free.labels)
        whole = replace(node.whole, labels=every | node.whole.labels)
        found.append(replace(node, whole=whole, free=free, drained=drained))
    return Snapshot(
        tuple(found),
        tuple(
            replace(ask, tasks=tuple(replace(each, labels=each.labels | {mine}) for each in ask.tasks))
            if mine in every
            else ask
            for ask in asks
            for mine in [("open to", ask.run)]
        ),
    )


def _key(waiting: Waiting, closed: Windows) -> tuple[frozenset[str], int, bool, bool]:
    """Equal for runs that ask for the same. Where its cloud places a run by itself, it does so on any node."""
    tolerated = NONE
    if closed.windows:
        tolerated = closed.every if waiting.started else closed.tolerated_by(waiting.run)
    return tolerated, id(waiting.tasks), waiting.is_independent, waiting.spread


def _asked(waiting: Waiting, nodes: Sequence[Node], tolerated: frozenset[str]) -> tuple[Tasks, ...]:
    """Independent tasks take turns where the cloud never has room for all at once."""
    found = tolerating(waiting.tasks, tolerated)
    if waiting.spread:
        found = tuple(replace(each, spread=True) for each in found)
    if not waiting.is_independent:
        return found
    most = {each: sum((node.drained or node.whole).holds(each) for node in nodes) for each in found}
    return tuple(replace(each, count=max(1, min(each.count, most[each]))) for each in found)


@dataclass(frozen=True)
class Wanted:
    """Labels and resources beside GPUs that somebody asks for."""

    labels: frozenset[tuple[str, str]] = frozenset()
    resources: frozenset[str] = frozenset()

    def __or__(self, other: Wanted) -> Wanted:
        return Wanted(self.labels | other.labels, self.resources | other.resources)

    @classmethod
    def of(cls, tasks: Collection[Tasks]) -> Wanted:
        extra = {name for each in tasks for name, _ in each.extra}
        labels = frozenset({label for each in tasks for label in each.labels})
        return cls(labels, frozenset({each.resource for each in tasks} | extra))


def _node(
    seen: Seen,
    kind: int,
    held: Sizes,
    promised: Sizes | None,
    ending: Ending | None,
    alike: dict[Hashable, Node],
    wanted: Wanted,
) -> Node:
    """`alike` remembers nodes by all that is asked here, since most of many are equal but for their names."""
    labels = wanted.labels.intersection(seen.labels) if wanted.labels else wanted.labels
    slices = tuple(each for each in seen.slices if each.resource in wanted.resources) if seen.slices else ()
    key = kind, labels, slices, held, promised
    if key not in alike:
        alike[key] = _new_node(seen, held, promised, labels, slices)
    one = alike[key]
    if ending is None:
        ending = UNUSED if held == Sizes() else ENDLESS
    ends = None if promised else ending.ends
    path = tuple(value for _, value in seen.domains) if seen.domains else ()
    return Node(
        seen.name, one.whole, one.free, one.ready, one.drained, one.promised, ending.sizes, ends, path, ending.gone
    )


def _new_node(
    seen: Seen, held: Sizes, promised: Sizes | None, labels: frozenset[tuple[str, str]], slices: Sequence[Slices]
) -> Node:
    """CPU and memory of tasks are estimates, so what the cloud has seen as free caps them."""
    away = promised or Sizes()
    cpu, memory = seen.cpu_milli or UNREPORTED, seen.memory_mb or UNREPORTED
    taints = frozenset({*(GPU_ONLY if seen.gpu_tasks_only else ()), *seen.taints})
    whole = Shape(
        seen.gpus, cpu, memory, seen.gpu_model, seen.resource, labels, taints, any_model=seen.simulated,
        slices=tuple((each.resource, each.total) for each in slices),
    )  # fmt: skip
    drained = replace(
        whole,
        gpus=max(0, seen.gpus - seen.gpus_others),
        cpu_milli=max(0, cpu - seen.cpu_milli_others),
        memory_mb=max(0, memory - seen.memory_mb_others),
        slices=tuple((each.resource, max(0, each.total - each.others)) for each in slices),
    )
    # What is not reported as there is not free 0 either.
    cpu_free = seen.cpu_milli_free if seen.cpu_milli else None
    memory_free = seen.memory_mb_free if seen.memory_mb else None
    free = replace(
        drained,
        gpus=max(0, drained.gpus - held.of(drained.resource) - away.of(drained.resource)),
        cpu_milli=_free(drained.cpu_milli - held.cpu_milli, cpu_free, away.cpu_milli),
        memory_mb=_free(drained.memory_mb - held.memory_mb, memory_free, away.memory_mb),
        slices=tuple((name, max(0, n - held.of(name) - away.of(name))) for name, n in drained.slices),
    )
    return Node(seen.name, whole, free, ready=seen.takes_tasks, drained=drained, promised=promised is not None)


def _free(calculated: int, seen: int | None, promised: int) -> int:
    return max(0, (calculated if seen is None else min(calculated, seen)) - promised)
