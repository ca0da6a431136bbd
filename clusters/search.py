"""What the search finds of clusters and the rooms around them: the kinds of objects, what can be done with them, and their tabs.

Parts of a whole, such as the trials of a sweep, are found by the whole.
"""

from __future__ import annotations

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
from clusters.results.view import Column, View
from clusters.runs.models import Cluster, Run
from clusters.runs.status.phase import TERMINAL
from clusters.schedules.actions import schedules_for
from clusters.services.access import services_for
from clusters.services.pages import verbs as service_verbs
from clusters.sweeps.access import sweeps_for
from clusters.sweeps.pages import verbs as sweep_verbs
from portal.access import appcodes_for
from portal.models import User
from portal.search import Found, Kind, Verb


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
_WAITS = Q(current_run__phase__in=[Run.Phase.QUEUED, Run.Phase.STARTING])
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
        Verb("Overview of", Q(current_run__phase=Run.Phase.FAILED) | _WAITS, page),
        Verb("Place in the queue of", _WAITS, lambda found: reverse("queue")),
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
