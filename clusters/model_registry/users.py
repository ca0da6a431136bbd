"""Who uses versions of a model. What deletes a version asks this, whether a person or a rule does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import CharField, Q, QuerySet
from django.db.models.functions import Cast
from django.urls import reverse

from clusters.model_registry.retention import versions_in
from clusters.models import Cluster, Pipeline, PipelineRun, RegisteredModel, Revision, Rollout, Run, Sweep
from clusters.phase import TERMINAL

Kind = Literal["cluster", "service", "pipeline", "sweep"]
LIVES = Q(weight__gt=0) | Q(wanted__gt=0) | Q(mirrored=True) | Q(rollouts__phase__in=Rollout.LIVING)


@dataclass(frozen=True)
class VersionUse:
    """`kind` and `name` of who has the version of that number; its page is at `url`."""

    number: int
    kind: Kind
    name: str
    url: str


def users_of(model: RegisteredModel) -> list[VersionUse]:
    """What names one of its versions by number, or has it now, by kinds and names; what follows an alias has what that names.
    Five queries, however many versions there are."""
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
    """Those in whose definition it stands somewhere, so that the others are not read."""
    text: QuerySet[Any] = rows.annotate(said=Cast("spec", CharField()))
    return text.filter(said__contains=f'"{model.name}/')
