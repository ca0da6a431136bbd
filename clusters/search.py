"""What the search finds of clusters and the rooms around them: the kinds of objects, what can be done with them, and their tabs.

Parts of a whole, such as the trials of a sweep, are found by the whole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable

from django.db.models import Case, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce
from django.urls import reverse

from clusters.access import applications_for, clusters_for
from clusters.benchmarks.access import benchmarks_for
from clusters.cluster.pages import verbs as cluster_verbs
from clusters.cluster_templates.actions import templates_for
from clusters.cluster_templates.models import Template
from clusters.environments.access import newest_environments_for
from clusters.frameworks import APPLICATIONS
from clusters.model_registry.access import models_for
from clusters.pipelines.access import pipelines_for
from clusters.results.models import Metric
from clusters.results.view import Column, View, conditions
from clusters.runs.models import Cluster, Run
from clusters.runs.status.phase import TERMINAL
from clusters.schedules.actions import schedules_for
from clusters.services.access import services_for
from clusters.services.pages import verbs as service_verbs
from clusters.sweeps.access import sweeps_for
from clusters.sweeps.pages import verbs as sweep_verbs
from portal.access import appcodes_for
from portal.models import User
from portal.search import SHORTEST, Found, Hit, Kind, Verb, words_of


def _page(route: str) -> Callable[[Found], str]:
    return lambda found: reverse(route, args=[found.under, found.name])


def _below(room: str, path: str) -> Callable[[Found], str]:
    """What an action posts to, or a tab."""
    return lambda found: f"/{room}/{found.under}/{found.name}/{path}"


_ALL = Q()
_STATE = "current_run__phase"
_WANTED = Q(current_run__desired=Run.Desired.RUNNING)
_RUNS = _WANTED & Q(current_run__phase=Run.Phase.RUNNING)
_BEGINS = _WANTED & ~Q(current_run__phase__in=[Run.Phase.RUNNING, *TERMINAL])
_ENDED = Q(current_run__phase__in=TERMINAL)
_ENDS = Q(current_run__desired=Run.Desired.ENDED) & ~_ENDED
_NOTHING_TO_STOP = "has ended; nothing to stop"


def _of_clusters(room: str, stop: str) -> tuple[Verb, ...]:
    """`stop` is what stopping loses."""
    page, deploy = _page(room.removesuffix("s")), _below("clusters", "deploy")
    disable, cancel = _below("clusters", "disable"), _below("clusters", "cancel")
    return (
        Verb("Stop", _RUNS, disable, lost=stop),
        Verb("Stop", _BEGINS, cancel, lost=cluster_verbs.CANCEL.lost),
        Verb("Stop", _ENDED, page, instead=_NOTHING_TO_STOP),
        Verb("Re-Deploy", _ENDED, deploy, posts=True, offered_for="Stop"),
        Verb("Stop", _ENDS, page, instead="is stopping already"),
        Verb("Re-Deploy", _ENDED, deploy, posts=True),
        Verb("Re-Deploy", _RUNS | _BEGINS | _ENDS, page, instead="has not ended yet; stop it first"),
        Verb("Stop", _RUNS, disable, lost=stop, offered_for="Re-Deploy"),
        Verb("Stop", _BEGINS, cancel, lost=cluster_verbs.CANCEL.lost, offered_for="Re-Deploy"),
        *(
            Verb(f"{label} of", Q(current_run__isnull=False), _below("clusters", label.lower()))
            for label in ("Logs", "Metrics", "Usage", "Runs")
        ),
        *(Verb(f"{label} of", _ALL, _below("clusters", label.lower())) for label in ("Events", "Manifest")),
        Verb("Overview of", Q(current_run__phase=Run.Phase.FAILED), page),
        Verb("Change", _ALL, _below(room, "change"), operates=True),
        Verb("Delete", _ALL, _below("clusters", "delete"), lost=cluster_verbs.DELETE.lost),
    )


_OF_CLUSTERS = (
    *_of_clusters("clusters", cluster_verbs.DISABLE.lost),
    Verb("Clone", _ALL, lambda found: f"/clusters/new?clone={found.under}/{found.name}", operates=True),
    Verb("Sweep over", _ALL, lambda found: f"/sweeps/new?from={found.under}/{found.name}", operates=True),
)
_OF_APPLICATIONS = _of_clusters(
    "applications",
    "It can no longer be opened until it is deployed again. Files in its volume stay; what it holds in memory is lost.",
)
_STOPPED = ~Q(desired=Run.Desired.RUNNING)
_START = service_verbs.ACTS["enable"].lost
_OF_SERVICES = (
    Verb("Stop", ~_STOPPED, _below("services", "disable"), lost=service_verbs.ACTS["disable"].lost),
    Verb("Stop", _STOPPED, _page("service"), instead="is stopped already"),
    Verb("Start", _STOPPED, _below("services", "enable"), lost=_START, offered_for="Stop"),
    Verb("Start", _STOPPED, _below("services", "enable"), lost=_START),
    Verb("Try", _ALL, _below("services", "try"), operates=True),
    Verb("Tokens of", _ALL, _below("services", "tokens"), operates=True),
    *(Verb(f"{label} of", _ALL, _below("services", label.lower())) for label in ("History", "Manifest")),
    Verb("Change", _ALL, _below("services", "change"), operates=True),
    Verb("Delete", _ALL, _below("services", "delete"), lost=service_verbs.ACTS["delete"].lost),
)
_OF_SWEEPS = (
    Verb("Stop", Q(finished_at=None), _below("sweeps", "cancel"), lost=sweep_verbs.ACTS["cancel"].lost),
    Verb("Stop", Q(finished_at__isnull=False), _page("sweep"), instead=_NOTHING_TO_STOP),
    Verb("Pause", Q(phase="Running"), _below("sweeps", "pause"), posts=True),
    Verb("Resume", Q(phase="Paused"), _below("sweeps", "resume"), posts=True),
    Verb("Delete", _ALL, _below("sweeps", "delete"), lost=sweep_verbs.ACTS["delete"].lost),
)
_LIVES = Q(current_run__isnull=False, current_run__finished_at=None, current_run__cancelled_at=None)
_OF_PIPELINES = (
    Verb(
        "Stop", _LIVES, _below("pipelines", "cancel"), lost="Every stage that runs is ended; outputs are stored first."
    ),
    Verb("Stop", ~_LIVES, _page("pipeline"), instead="does not run; nothing to stop"),
    Verb("Run", ~_LIVES, _below("pipelines", "run"), posts=True, offered_for="Stop"),
    Verb("Run", ~_LIVES, _below("pipelines", "run"), posts=True),
    Verb("Pause", Q(current_run__phase="Running"), _below("pipelines", "pause"), posts=True),
    Verb("Resume", Q(current_run__phase="Paused"), _below("pipelines", "resume"), posts=True),
    Verb("Change", _ALL, _below("pipelines", "change"), operates=True),
)
_OF_SCHEDULES = (
    Verb("Pause", Q(next_at__isnull=False), _below("schedules", "pause"), posts=True),
    Verb("Resume", Q(next_at=None), _below("schedules", "resume"), posts=True),
)
_OF_MODELS = tuple(Verb(f"{label} of", _ALL, _below("models", label.lower())) for label in ("History", "Retention"))


def _clusters(user: User) -> QuerySet[Cluster]:
    return clusters_for(user).filter(part_of="").exclude(framework__in=list(APPLICATIONS))


def _applications(user: User) -> QuerySet[Cluster]:
    return applications_for(user).filter(part_of="")


def _templates(user: User) -> QuerySet[Template]:
    return templates_for(user).annotate(whose_code=Coalesce("appcode__code", Value(Template.ME)))


def _metrics(user: User) -> QuerySet[Metric]:
    return Metric.objects.filter(appcode__in=appcodes_for(user).order_by().values("pk"))


def _results(found: Found) -> str:
    """The results of an appcode, the best of this metric first."""
    return f"{reverse('results_of', args=[found.under])}?{View().sorted_by(Column('best', found.name)).query}"


KINDS = (
    Kind("Clusters", "cluster", _clusters, _page("cluster"), state=_STATE, listing="clusters", verbs=_OF_CLUSTERS),
    Kind(
        "Applications", "application", _applications, _page("application"), state=_STATE, listing="applications",
        verbs=_OF_APPLICATIONS, words=("notebooks",),
    ),
    Kind("Services", "service", services_for, _page("service"), listing="services", verbs=_OF_SERVICES),
    Kind("Sweeps", "sweep", sweeps_for, _page("sweep"), listing="sweeps", verbs=_OF_SWEEPS),
    Kind(
        "Pipelines", "pipeline", pipelines_for, _page("pipeline"), state=_STATE, listing="pipelines", verbs=_OF_PIPELINES
    ),
    Kind(
        "Schedules", "pipeline", schedules_for, _page("schedule"),
        state=Case(When(next_at=None, then=Value("Paused")), default=Value("")), listing="schedules", verbs=_OF_SCHEDULES,
    ),
    Kind("Benchmarks", "benchmark", benchmarks_for, _page("benchmark"), listing="benchmarks"),
    Kind("Models", "model", models_for, _page("model"), state=Value(""), listing="models", verbs=_OF_MODELS),
    Kind("Environments", "image", newest_environments_for, _page("environment"), state="image"),
    Kind(
        "Templates", "cluster", _templates, _page("template"), under="whose_code", state="description", listing="templates"
    ),
    Kind(
        "Metrics", "results", _metrics, _results, state=Value("results, the best first"),
        words=("sorted", "best", "highest", "lowest"),
    ),
)  # fmt: skip
# Clusters of all appcodes that a comparison looks at: an administrator sees those of everybody.
MOST_NAMED = 60
# What people type with a state, and what else they call it.
_OF_ALL = frozenset(("all", "cluster", "clusters", "job", "jobs", "results", "run", "runs"))
_STATES = {phase.lower(): phase for phase in Run.Phase.values} | {
    "finished": "Succeeded", "pending": "Queued", "waiting": "Queued", "errors": "Failed", "crashed": "Failed",
}  # fmt: skip


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
        Hit(
            f"Compare {' and '.join(runs)}", f"{code} · the newest runs",
            f"{reverse('compare', args=[code])}?runs={','.join(f'{name}/{run}' for name, run in runs.items())}", "results",
        )
        for code, numbers in found.items()
        if len(runs := {name: numbers[name] for name in names if name in numbers}) > 1
    ]  # fmt: skip


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


def states(user: User, typed: str) -> list[Hit]:
    """ "failed", "running jobs": Home and Results with only these."""
    said = [word for word in words_of(typed) if word not in _OF_ALL]
    if len(said) != 1 or len(said[0]) < SHORTEST:
        return []
    phases = dict.fromkeys(phase for word, phase in _STATES.items() if word.startswith(said[0]))
    return [
        hit
        for phase in phases
        for hit in (
            Hit(phase, "Home", f"{reverse('home')}?phase={phase}", "home"),
            Hit(f"{phase} runs", "Results", f"{reverse('results')}?state={phase}", "results"),
        )
    ]


_BEGIN = frozenset(("create", "launch", "new", "run", "start", "train"))
_GPUS = frozenset(("gpu", "gpus"))
_FRAMEWORKS = frozenset(("jax", "keras", "pytorch", "tensorflow", "torch"))


def training(user: User, typed: str) -> list[Hit]:
    """ "run pytorch on 2 gpus": the form."""
    words = frozenset(words_of(typed))
    counted = words & _GPUS and any(map(str.isdecimal, words))
    if not words & _BEGIN or not (counted or words & _FRAMEWORKS):
        return []
    return [Hit("New cluster", "", reverse("new_cluster"), "plus")]


def filtered(user: User, typed: str) -> list[Hit]:
    """ "loss < 0.1": the results for which this is true."""
    said, unclear = conditions(typed)
    if not said or unclear or any(" " in each.name or not each.value for each in said):
        return []
    return [Hit(f"Filter Results by “{typed}”", "", f"{reverse('results')}?{View(where=typed).query}", "results")]
