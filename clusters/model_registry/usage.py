"""What uses versions of a model. Every deletion of a version checks it, whether by a user or by a rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast
from django.urls import reverse

from clusters.model_registry.models import RegisteredModel
from clusters.model_registry.retention import versions_in
from clusters.pipelines.models import Pipeline, PipelineRun
from clusters.runs.models import Cluster, Run
from clusters.runs.status.phase import TERMINAL
from clusters.services.models import Revision, Rollout
from clusters.sweeps.models import Sweep

Kind = Literal["cluster", "service", "pipeline", "sweep"]
LIVES = Q(weight__gt=0) | Q(wanted__gt=0) | Q(mirrored=True) | Q(rollouts__phase__in=Rollout.LIVING)


@dataclass(frozen=True)
class VersionUse:
    """A use of version `number` by something of `kind` called `name`, whose page is `url`."""

    number: int
    kind: Kind
    name: str
    url: str


def users_of(model: RegisteredModel) -> list[VersionUse]:
    """Everything that names a version by number or uses it now, ordered by kind and name. A follower of an alias uses the
    version that the alias names. Five queries for any number of versions."""
    code = model.appcode.code
    found = sorted(set(_uses(model)))
    return [VersionUse(number, kind, name, reverse(kind, args=[code, name])) for kind, name, number in found]


def _uses(model: RegisteredModel) -> Iterator[tuple[Kind, str, int]]:
    said = Q(spec__model__startswith=f"{model.name}/")
    runs = Run.objects.filter(said, gone=False, cluster__appcode=model.appcode)
    clusters = Cluster.objects.filter(said | Q(current_run__in=runs), appcode=model.appcode, deleted_at=None)
    for name, defined, running, gone in clusters.values_list(
        "name", "spec__model", "current_run__spec__model", "current_run__gone"
    ):
        for each in (defined, None if gone else running):
            for number in versions_in({"model": each}, model.name):
                yield "cluster", name, number
    revisions = Revision.objects.filter(LIVES, version__model=model, service__deleted_at=None)
    for name, number in revisions.values_list("service__name", "version__number"):
        yield "service", name, number
    mine = {"appcode": model.appcode}
    runs_of = PipelineRun.objects.filter(pipeline__appcode=model.appcode).exclude(phase__in=TERMINAL)
    whole: tuple[tuple[Kind, QuerySet[Any], str], ...] = (
        ("pipeline", Pipeline.objects.filter(**mine), "name"),
        ("pipeline", runs_of, "pipeline__name"),
        ("sweep", Sweep.objects.filter(**mine).exclude(phase__in=TERMINAL), "name"),
    )
    for kind, rows, name in whole:
        for who, spec in _naming(rows, model).values_list(name, "spec"):
            for number in versions_in(spec, model.name):
                yield kind, who, number


def _naming(rows: QuerySet[Any], model: RegisteredModel) -> QuerySet[Any]:
    """Rows whose definition contains the model's name, so that the others are not loaded."""
    text: QuerySet[Any] = rows.annotate(said=Cast("spec", CharField()))
    return text.filter(said__contains=f'"{model.name}/')
