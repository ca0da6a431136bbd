"""REST: sweeps and their trials."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Literal, get_args

from django.db.models import DecimalField, F, FloatField, OuterRef, Prefetch, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce
from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from pydantic import Field
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from clusters.cluster import actions as clusters
from clusters.cluster.api.documents import ClusterDocument, to_manifest
from clusters.manifest.cluster import ClusterManifest, ClusterName
from clusters.runs.models import Cluster, Run
from clusters.sweeps import actions, shared
from clusters.sweeps.access import SWEEPS, sweep_for, trial_for
from clusters.sweeps.copies import ROLE
from clusters.sweeps.manifest import SweepManifest, SweepSpec, name_again
from clusters.sweeps.models import Sweep, Trial
from clusters.sweeps.totals import PHASE, Sums, sums_of
from portal.access import OPERATE
from portal.api.documents import Answer, page_of
from portal.api.money import Money, money
from portal.api.objects import all_view, object_views
from portal.api.operations import Document, operation
from portal.api.pagination import PAGE_PARAMETERS, page_together, search, text
from portal.api.verbs import Kind, Verb
from portal.api.views import person
from portal.errors import Invalid
from portal.manifests import Strict, parse

EXAMPLE = OpenApiExample(
    "Learning rates",
    request_only=True,
    value={
        "kind": "sweep",
        "metadata": {"name": "lr", "appcode": "ops-demo"},
        "spec": {
            "template": {
                "image": "tensorflow-2-21",
                "command": "python digits_single.py --sample --output /tmp/output --learning-rate {lr}",
                "roles": {"master": {"flavor": "middle-1-gpu"}},
            },
            "parameters": {"lr": {"type": "float", "low": 0.0001, "high": 0.1, "log": True}},
            "goal": {"metric": "accuracy", "direction": "maximize"},
            "sampler": "tpe",
            "trials": 20,
            "parallel": 2,
        },
    },
)
SweepPhase = Literal["Running", "Paused", "Succeeded", "Failed", "Stopped"]
TrialPhase = Literal["Queued", "Starting", "Running", "Succeeded", "Failed", "Pruned", "Stopped"]
TRIAL_PHASES: tuple[str, ...] = get_args(TrialPhase)
SORTS = ("number", "-number", "value", "-value", "cost", "-cost")


class Best(Answer):
    number: int = Field(description="Of the trial.")
    value: float = Field(description="Of folds, their mean.")
    sd: float | None = Field(description="Of folds, the standard deviation of their values; null where there are none.")
    parameters: dict[str, Any]


class SweepStatus(Answer):
    phase: SweepPhase
    message: str = Field(description="A sentence for people; empty when all is well.")
    points: int = Field(description="How many there are to be.")
    trials: dict[TrialPhase, int] = Field(description="Those that were begun, by phase; of folds each is counted.")
    best: Best | None
    created: dt.datetime
    created_by: str | None
    finished: dt.datetime | None
    gpu_seconds: int = Field(description="The sum over its trials.")
    cost: Money


class SweepDocument(SweepManifest):
    """A sweep: its manifest and its results."""

    status: SweepStatus


SweepPage = page_of("SweepPage", SweepDocument)


class TrialDocument(Answer):
    number: int = Field(description="Of its point, from 0.")
    fold: int | None = Field(description="Which is held out, from 1; null where there are none.")
    parameters: dict[str, Any]
    phase: TrialPhase
    message: str = Field(description="Why it is in this phase, in a sentence.")
    value: float | None = Field(description="The last value of the goal's metric.")
    cluster: str | None = Field(
        description="The cluster that it is, with its logs, metrics and output, or whose run it shares; null where it is "
        "gone, or waits for a run to share."
    )
    task: str | None = Field(
        examples=["worker-7"], description="Which task of that it is; null where it is a cluster of its own."
    )
    run: int | None = Field(description="The newest run of that.")
    attempt: int = Field(description="How often a failed run of it was started anew.")
    started: dt.datetime | None
    finished: dt.datetime | None
    gpu_seconds: int
    cost: Money


TrialPage = page_of("TrialPage", TrialDocument)


class AgainMetadata(Strict):
    name: ClusterName | None = None


class TrainAgain(Strict):
    """The name of the cluster."""

    metadata: AgainMetadata = AgainMetadata()


VERBS = (
    Verb("pause", actions.pause_sweep, "Start no more trials", "Those that run go on. 409 for a sweep that is over."),
    Verb(
        "resume", actions.resume_sweep, "Start trials again", "From now on in your name. 409 for a sweep that is over."
    ),
    Verb("cancel", actions.cancel_sweep, "End a sweep and all of its trials", "Repeating it changes nothing."),
)


class Trials(APIView):
    @operation(
        "sweeps_trials",
        TrialPage,
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter(
                "phase", str, enum=TRIAL_PHASES, description="Only those in this phase; several are divided by commas."
            ),
            OpenApiParameter(
                "sort",
                str,
                enum=SORTS,
                default="number",
                description="By number, value or cost, with “-” the largest first. Those without a value come last in both.",
            ),
        ],
    )
    def get(self, request: Request, code: str, name: str) -> Response:
        """The trials of a sweep"""
        sweep, now = sweep_for(person(request), code, name), timezone.now()
        facts = Run.objects.only("cluster", "usage_as_of", "gpu_seconds", "gpu_rate", "cost", "cost_rate")
        newest = Run.objects.only("number", "phase", "message", "started_at")
        # Prefetched, not joined: sorting may cover all rows, and few are shown.
        rows = Trial.objects.filter(sweep=sweep).prefetch_related(
            Prefetch("cluster", Cluster.objects.only("name", "current_run")),
            Prefetch("cluster__current_run", newest),
            Prefetch("cluster__runs", facts.order_by("pk")),
        )
        phases = [word for word in text(request, "phase", longest=100).split(",") if word]
        if unknown := next((word for word in phases if word not in TRIAL_PHASES), None):
            raise Invalid.at("phase", message=f"“{unknown}” is none of {', '.join(TRIAL_PHASES)}.")
        rows = rows.annotate(now=PHASE)
        if phases:
            rows = rows.filter(now__in=phases)
        one_run = sweep.spec.get("oneRun", False)
        begun_at = shared.STARTED if one_run else F("cluster__current_run__started_at")
        rows, order = _sorted(rows, text(request, "sort", longest=10, default="number"), one_run=one_run)
        rows = rows.annotate(begun_at=begun_at)
        return page_together(request, rows, order=order, render=lambda found: _trials(found, now))


class TrialCluster(APIView):
    """The cluster of a point. It does not depend on the fold."""

    @operation("sweeps_trial_manifest", ClusterManifest)
    def get(self, request: Request, code: str, name: str, number: int) -> Document:
        """A trial as a cluster of its own: the manifest, with the parameters put in

        Nothing is made. Of folds it is the cluster that trains with all of the input."""
        sweep = sweep_for(person(request), code, name)
        manifest = actions.cluster_of(trial_for(sweep, number), name_again(name, number))
        return manifest.model_dump(mode="json", by_alias=True)

    @operation("sweeps_trial_train", {201: ClusterDocument}, request=TrainAgain)
    def post(self, request: Request, code: str, name: str, number: int) -> Response:
        """Train a trial again, as a cluster of its own

        Of folds, with all of the input. It is called SWEEP-NUMBER-again where no name is sent."""
        sweep = sweep_for(person(request), code, name, OPERATE)
        asked = parse(TrainAgain, request.data or {})
        manifest = actions.cluster_of(trial_for(sweep, number), asked.metadata.name or name_again(name, number))
        made = clusters.create_cluster(manifest, acting_user=person(request), appcode=sweep.appcode)
        address = request.build_absolute_uri(f"/api/v1/appcodes/{code}/clusters/{made.name}")
        return Response(to_manifest(made), status=status.HTTP_201_CREATED, headers={"Location": address})


def _page(request: Request, sweeps: QuerySet[Sweep]) -> Response:
    return page_together(request, search(request, sweeps, "name"), order="-id", render=_documents)


def _document(sweep: Sweep) -> dict[str, Any]:
    return _documents([sweep])[0]


def _documents(sweeps: Iterable[Sweep]) -> list[dict[str, Any]]:
    sweeps = list(sweeps)
    sums = sums_of([sweep.pk for sweep in sweeps], timezone.now())
    return [_said(sweep, sums[sweep.pk]) for sweep in sweeps]


def _said(sweep: Sweep, sums: Sums) -> dict[str, Any]:
    spec = SweepSpec.stored(sweep.spec)
    found = SweepStatus(
        phase=sweep.phase,
        message=sweep.message,
        points=spec.points,
        trials=sums.trials,
        best=Best(**sweep.best) if sweep.best else None,
        created=sweep.created_at,
        created_by=sweep.created_by.username if sweep.created_by else None,
        finished=sweep.finished_at,
        gpu_seconds=sums.gpu_seconds,
        cost=money(sums.cost),
    )
    return {
        "kind": "sweep",
        "metadata": {"name": sweep.name, "appcode": sweep.appcode.code},
        "spec": spec.model_dump(mode="json", by_alias=True),
        "status": found.json_value(),
    }


def _sorted(rows: QuerySet[Trial], sort: str, *, one_run: bool) -> tuple[QuerySet[Trial], str | Sequence[str]]:
    """The sorted rows, and the order, which ends with a unique column. Raises Invalid."""
    if sort not in SORTS:
        raise Invalid.at("sort", message=f"“{sort}” is none of {', '.join(SORTS)}.")
    down, by = sort[: sort.startswith("-")], sort.removeprefix("-")
    if by == "number":
        # In order of their creation.
        return rows, f"{down}id"
    if by == "value":
        last = Value(float("-inf") if down else float("inf"))
        return rows.annotate(by=Coalesce("value", last, output_field=FloatField())), (f"{down}by", "id")
    costs = Run.objects.filter(cluster=OuterRef("cluster")).order_by().values("cluster").annotate(sum=Sum("cost"))
    nothing = Value(Decimal(0))
    spent = Coalesce(Subquery(costs.values("sum")), nothing, output_field=DecimalField())
    # Copies in one run hold equal resources: sort by the time that they held them.
    held = Coalesce(shared.SECONDS, Value(0.0), output_field=FloatField())
    return rows.annotate(by=held if one_run else spent), (f"{down}by", "id")


def _trials(trials: Sequence[Trial], now: dt.datetime) -> list[Document]:
    used = shared.used_by(trials, now)
    return [_trial(row, used.get(row.pk), now) for row in trials]


def _trial(trial: Trial, used: tuple[int, Decimal] | None, now: dt.datetime) -> dict[str, Any]:
    run = trial.cluster.current_run if trial.cluster else None
    if used is None:
        runs = list(trial.cluster.runs.all()) if trial.cluster and trial.index is None else []
        used = (
            sum(each.gpu_seconds_at(now) for each in runs),
            sum((each.cost_at(now) for each in runs), Decimal(0)),
        )
    return TrialDocument(
        number=trial.number,
        fold=trial.fold or None,
        parameters=trial.parameters,
        phase=trial.now,  # type: ignore[attr-defined]
        message=trial.message or ("" if trial.phase or run is None else run.message),
        value=trial.value,
        cluster=trial.cluster.name if trial.cluster else None,
        task=None if trial.index is None else f"{ROLE}-{trial.index}",
        run=run.number if run else None,
        attempt=trial.attempt,
        started=trial.begun_at,  # type: ignore[attr-defined]
        finished=trial.finished_at,
        gpu_seconds=used[0],
        cost=money(used[1]),
    ).json_value()


AllSweeps = all_view(SWEEPS, SweepPage, _page)
AppcodeSweeps, OneSweep = object_views(
    SWEEPS, SweepManifest, SweepDocument, SweepPage,
    render=_document, listing=_page, example=EXAMPLE,
    create=actions.create_sweep, change=actions.change_sweep, delete=actions.delete_sweep,
    texts={
        "create": "Create a sweep and start its first trials",
        "read": "A sweep, and what it has come to",
        "change": "Change a sweep\n\nWith more trials one that was over goes on.",
        "delete": "Delete a sweep with all of its clusters\n\n"
        "It is out of sight at once; its trials are ended and their logs removed in the background. Data in "
        "datastores stays.",
    },
)  # fmt: skip
KIND = Kind("sweeps", sweep_for, SweepDocument, _document)
