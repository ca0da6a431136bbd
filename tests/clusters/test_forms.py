"""Each form of a manifest can set all of its fields: "New sweep like this…", Clone and Change lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace, UnionType
from typing import Any, get_args

import pytest
from django.template.loader import render_to_string
from pydantic import BaseModel

from tests.clusters.forms import sent

SMALL = {"flavor": "small"}
NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
HOOK = {
    "on": "failure", "command": "true", "image": "tensorflow", "flavor": "small", "env": {"A": "1"}, "timeLimit": 90,
    "retries": 2, "output": "results", "outputPath": "{name}/x", "model": "digits",
}  # fmt: skip
SWEEP = {
    "template": {"image": "i", "command": "{lr}", "roles": {"master": SMALL}},
    "trials": 5,
    "parallel": 3,
    "retries": 2,
}
LR = {"lr": {"type": "float", "low": 1, "high": 2}}
CLUSTER = {"image": "i", "command": "true", "roles": {"master": SMALL}}


@dataclass(frozen=True)
class Room:
    """`specs`: together they set every field. `left_out`: fields that the form cannot set, with the reason. `whole`: fields
    that the form carries as one JSON text."""

    specs: list[dict[str, Any]]
    left_out: dict[str, str] = field(default_factory=dict)
    whole: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)


ROOMS = {
    "cluster": Room(
        [
            CLUSTER | {
                "environment": "tools:2", "keras": 2, "code": {"files": {"a.py": "1"}}, "env": {"A": " 1"},
                "input": {"datastore": "data", "path": "a", "version": "1", "mode": "copy", "fold": 1, "folds": 3},
                "output": "results", "outputPath": "x", "home": "home", "retries": 3, "timeLimit": 90, "priorityClass": "spare",
                "terminationGracePeriod": 120, "placement": "spread", "scheduleAfter": "2027-01-02T03:04:05Z",
                "hooks": [{"use": "tell"}, {"command": "true", "on": "always"}],
            },
            CLUSTER | {
                "requirements": ["pandas"], "code": {"git": "https://example.com/x.git", "ref": "main", "path": "a"},
                "input": {"from": "prepare", "when": "always"}, "access": {"to": "people", "people": ["bob"]},
                "mode": "service",
            },
            CLUSTER | {
                "framework": "parallel", "roles": {"worker": {**SMALL, "count": 3, "atOnce": 2}}, "completion": "workers",
            },
            CLUSTER | {
                "framework": "notebook", "command": "", "output": "results",
                "notebook": {"path": "a.ipynb", "source": NOTEBOOK, "parameters": {"a": 1}},
            },
        ],
        {
            "spec.plugins": "of JupyterLab, which is an application",
            "spec.runs": "of applications",
            "spec.model": "of applications and of replicas of services",
            "spec.server": "of replicas of services",
            "spec.idle.policy": "of applications",
            "spec.idle.after": "of applications",
        },
        whole=("spec.server",),
    ),
    "sweep": Room(
        [
            SWEEP | {
                "parameters": LR, "sampler": "tpe", "seed": 7, "goal": {"metric": "acc", "direction": "maximize"},
                "stopEarly": {"minSteps": 5, "factor": 4, "brackets": 2},
            },
            SWEEP | {"parameters": LR, "folds": 3, "template": SWEEP["template"] | {"input": {"from": "prepare"}}},
            SWEEP | {
                "parameters": LR, "oneRun": True,
                "template": {"framework": "parallel", "image": "i", "command": "{lr}", "roles": {"worker": SMALL}},
            },
        ],
        whole=("spec.template",),
    ),
    "application": Room(
        [
            SMALL | {
                "type": "jupyter", "image": "i", "environment": "tools:2", "plugins": ["archive"],
                "storage": {"size": "20Gi"}, "input": {"from": "prepare", "when": "always"}, "output": "results",
                "outputPath": "x", "runs": ["train/3"], "command": "true", "env": {"A": "1"}, "timeLimit": 90,
                "priorityClass": "urgent",
                "idle": {"policy": "announce", "after": 3600}, "access": {"to": "people", "people": ["bob"]},
                "endpoints": [{"name": "docs", "port": 8081, "health": "/a"}],
            },
            SMALL | {"type": "serving", "image": "i", "model": "digits/3", "requirements": ["six"]},
            SMALL | {"type": "jupyter", "image": "i", "storage": {"datastore": "mine"}},
        ],
        whole=("spec.input",),
    ),
    "service": Room(
        [
            {
                "model": "digits/3", "image": "i", "environment": "tools:2", "runtime": "own", "flavor": "small",
                "command": "true", "env": {"A": "1"}, "requestSeconds": 9,
                "replicas": {"least": 0, "most": 3, "target": 5, "idleAfter": 60},
                "rollout": {
                    "follow": "never", "kind": "canary", "weight": 20, "minutes": 3, "promote": "by-hand", "whenFull": "cpu",
                    "cpuFlavor": "small", "keepWarm": 0,
                },
            }
        ]
    ),
    "hook": Room([HOOK], metadata={"description": "Tells the team"}),
    "benchmark": Room(
        [
            {
                "image": "i", "flavor": "small", "serverFlavor": "large", "strategies": ["parameter-server"],
                "data": ["digits"], "counts": [1, 3], "parameterServers": 2, "steps": 60, "batch": 3, "width": 20,
            }
        ]
    ),
    "schedule": Room(
        [
            {"cron": "1 2 * * *", "timeZone": "Europe/Berlin", "missed": "once", "overlapping": "queue", kind: "train"}
            for kind in ("cluster", "pipeline")
        ],
        {"spec.paused": "the list has buttons for it; saving the form keeps it"},
    ),
}  # fmt: skip


def _forms(people: Any) -> dict[str, tuple[type[BaseModel], Callable[[Any], Any], Callable[..., Any], str, str | None]]:
    """By room: the manifest, the form filled from one, the form of a POST, its template, and the id of its <form>."""
    from clusters.applications.manifest import ApplicationManifest
    from clusters.applications.pages import form as applications
    from clusters.benchmarks.manifest import BenchmarkManifest
    from clusters.benchmarks.pages import new as benchmarks
    from clusters.cluster.form import data
    from clusters.cluster.form.choices import Offer
    from clusters.cluster.form.fields import ClusterForm
    from clusters.hooks import pages as hooks
    from clusters.hooks.actions import HookManifest
    from clusters.manifest.cluster import ClusterManifest
    from clusters.schedules import pages as schedules
    from clusters.schedules.manifest import ScheduleManifest
    from clusters.services.manifest import ServiceManifest
    from clusters.services.pages import form as services
    from clusters.sweeps.manifest import SweepManifest
    from clusters.sweeps.pages import form as sweeps

    def offer() -> Any:
        return Offer([people.ops], "ops-demo", [], [], [])

    def cluster(of: Any) -> Any:
        return ClusterForm(offer(), initial=data.fields_of(of))

    def sweep(of: Any) -> Any:
        said = sweeps.fields_of(of.metadata.name, of.metadata.appcode, of.spec)
        return sweeps.SweepForm(initial=said, rows=sweeps.rows_of(of.spec))

    def application(of: Any) -> Any:
        return applications.ApplicationForm(offer(), initial=applications.fields_of(of))

    def service(of: Any) -> Any:
        said = services.fields_of(of.metadata.name, of.metadata.appcode, of.spec)
        return services.ServiceForm(offer(), initial=said)

    def hook(of: Any) -> Any:
        row = SimpleNamespace(name=of.metadata.name, description=of.metadata.description, spec=of.spec.model_dump())
        return hooks.HookForm(people.ops, initial=hooks.fields_of(row))

    def benchmark(of: Any) -> Any:
        return benchmarks.BenchmarkForm(
            offer(), initial=benchmarks.fields_of(of.metadata.name, of.metadata.appcode, of.spec)
        )

    def schedule(of: Any) -> Any:
        said = schedules.fields_of(of.metadata.name, of.metadata.appcode, of.spec)
        return schedules.ScheduleForm(people.bob, initial=said)

    def with_offer(form: type[Any]) -> Callable[..., Any]:
        return lambda data: form(offer(), data)

    return {
        "cluster": (ClusterManifest, cluster, with_offer(ClusterForm), "cluster/new.html", "cluster-form"),
        "sweep": (SweepManifest, sweep, sweeps.SweepForm, "sweeps/new.html", "sweep-form"),
        "application": (
            ApplicationManifest, application, with_offer(applications.ApplicationForm), "applications/new.html",
            "application-form",
        ),
        "service": (ServiceManifest, service, with_offer(services.ServiceForm), "services/new.html", "service-form"),
        "hook": (HookManifest, hook, lambda data: hooks.HookForm(people.ops, data), "hooks/_form.html", None),
        "benchmark": (BenchmarkManifest, benchmark, with_offer(benchmarks.BenchmarkForm), "benchmarks/new.html", None),
        "schedule": (
            ScheduleManifest, schedule, lambda data: schedules.ScheduleForm(people.bob, data), "schedules/schedule.html",
            "schedule-form",
        ),
    }  # fmt: skip


def _all_fields(model: type[BaseModel], whole: tuple[str, ...], before: str = "") -> Iterator[str]:
    """Dotted JSON keys of the model's fields; instead of a field that is a model, its fields."""
    for name, each in model.model_fields.items():
        path = f"{before}{each.alias or name}"
        kinds = get_args(each.annotation) if isinstance(each.annotation, UnionType) else [each.annotation]
        below = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if below and path not in whole:
            yield from _all_fields(below, whole, f"{path}.")
        else:
            yield path


def _said(value: Any, before: str = "") -> Iterator[str]:
    yield before
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _said(each, f"{before}.{key}" if before else key)


@pytest.mark.parametrize("room", ROOMS)
def test_each_field_of_a_manifest_survives_the_form_or_has_a_reason_not_to(room, page_catalogue, people):
    case = ROOMS[room]
    manifest_class, filled, of_post, template, form_id = _forms(people)[room]
    survived: set[str] = set()
    for spec in case.specs:
        metadata = {"name": "one", "appcode": "ops-demo", **case.metadata}
        manifest = manifest_class.model_validate({"metadata": metadata, "spec": spec})
        form = filled(manifest)
        context = {
            "form": form, "template": getattr(manifest.spec, "template", None), "user": SimpleNamespace(is_authenticated=False),
            "steps": [],
        }  # fmt: skip
        for step in (2, 3) if room == "application" else (0,):
            steps = {"step": step, "carried": form.carried(step)} if step else {}
            page = render_to_string(f"clusters/{template}", {**context, **steps})
            data = sent(page if form_id else f"<form>{page}</form>", form_id)
            again = of_post(_query(data))
            assert again.is_valid(), again.errors
            assert again.manifest == manifest
        survived |= set(_said(manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)))
    missing = [path for path in _all_fields(manifest_class, case.whole) if path not in survived]
    assert set(missing) == {"kind", *case.left_out}


def _query(data: dict[str, Any]) -> Any:
    from django.http import QueryDict

    query = QueryDict(mutable=True)
    for name, value in data.items():
        query.setlist(name, value if isinstance(value, list) else [value])
    return query
