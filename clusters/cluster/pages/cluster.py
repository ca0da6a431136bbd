"""The cluster page: its head, and the tabs Overview, Usage, Runs, Events and Manifest (Logs and Metrics: own modules).

Each tab has an address. `?run=N` selects an earlier run. The browser polls live parts, which answer 304 if unchanged.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_safe
from pydantic import ValidationError

from billing.metering.segments import Segment
from billing.sums import breakdown
from billing.sums.access import busy_of, usage_of
from clusters.access import cluster_for, events_of
from clusters.admission.foretold import Foretold
from clusters.catalog.actions import flavor_titles
from clusters.catalog.folders import output_folder
from clusters.clouds.drivers.base import NO_COMMANDS, NOT_MADE, CloudError, RunsCommands
from clusters.clouds.health import silence_of
from clusters.clouds.registry import driver
from clusters.cluster.actions import gives_way
from clusters.cluster.api.documents import to_manifest
from clusters.cluster.form.new import curl
from clusters.cluster.pages import tasks
from clusters.cluster.pages.decisions import waited
from clusters.cluster.pages.list import Row, first_sentence, row_of, where
from clusters.cluster.pages.tasks import TaskRow, failed_first, says_its_own, task_rows
from clusters.frame.env_text import write_env
from clusters.frameworks import FRAMEWORKS, ROLES
from clusters.manifest.cluster import ClusterSpec
from clusters.manifest.code import code_of
from clusters.manifest.hook_spec import part_of
from clusters.manifest.input import InputSpec, input_of
from clusters.model_registry.models import ModelVersion
from clusters.results.access import views_of
from clusters.results.pages import context_of, view_of
from clusters.results.pages import shown as shown_as
from clusters.runs.models import Cluster, Run
from clusters.runs.placing.forecasts import forecasts_of
from clusters.runs.placing.rights import Right, rights_of
from clusters.runs.queries.preview import cost_of
from clusters.runs.quota import enough
from clusters.runs.status.hook_status import ShownHook, hooks_of
from clusters.runs.status.phase_update import consumer
from portal.access import MANAGE, OPERATE, may
from portal.errors import Invalid
from portal.pages import layout
from portal.pages.appcodes import person

TABS = (
    ("Overview", ""), ("Logs", "/logs"), ("Metrics", "/metrics"), ("Usage", "/usage"), ("Runs", "/runs"), ("Events", "/events"),
    ("Manifest", "/manifest"),
)  # fmt: skip
EVENTS, READERS = 100, 20


@dataclass(frozen=True)
class Page:
    """What every tab needs: the cluster, the selected run (None before the first), and the permitted actions."""

    cluster: Cluster
    run: Run | None
    row: Row
    now: dt.datetime
    notice: str = ""
    # The GPU quota with which a run that waits for quota would start, if the user may request it.
    larger_quota: int | None = None
    # By which right its run holds GPUs; None if it holds none, or where the portal does not place it.
    right: Right | None = None
    # By when its run probably starts; None if it does not wait.
    forecast: Foretold | None = None

    @property
    def url(self) -> str:
        return self.row.url

    @property
    def where(self) -> str:
        """The cloud and namespace of the selected run; "" for this machine."""
        return where(self.run) if self.run else ""

    @property
    def is_latest(self) -> bool:
        return self.run is None or self.run.pk == self.cluster.current_run_id

    @property
    def is_urgent(self) -> bool:
        return self.run is not None and self.run.priority_class == "urgent"

    @property
    def may_be_taken(self) -> bool:
        return self.right is not None and self.right.may_be_taken(self.now)

    @property
    def may_change(self) -> bool:
        """Whether the run waits, and the user may have it ask for something else."""
        run = self.run
        return (
            run is not None and self.is_latest and self.row.may_operate and gives_way(run) and not self.cluster.part_of
        )

    @property
    def is_to_mend(self) -> bool:
        """Whether the next step is a change: its run failed, and would fail again as it is."""
        return self.row.phase == "Failed" and self.row.can_deploy and not self.cluster.part_of

    @property
    def query(self) -> str:
        """Query string that keeps the selected run when the user switches tabs."""
        return "" if self.is_latest or self.run is None else f"?run={self.run.number}"

    @property
    def tabs(self) -> list[tuple[str, str]]:
        return [(label, self.url + path if path else self.row.page) for label, path in TABS]

    @property
    def whole(self) -> tuple[str, str] | None:
        """Name and page of the owner that created the cluster for itself (a sweep, …); None for a cluster of a user."""
        room, _, name = self.cluster.part_of.partition("/")
        # Hooks are shown on the page of their cluster.
        pages = "clusters" if room == "hooks" else room
        return (name, f"/{pages}/{self.cluster.appcode.code}/{name}") if name else None

    @property
    def sentence(self) -> str:
        """Why the run is in its phase."""
        return (first_sentence(self.run) or self.run.phase) if self.run else ""

    @property
    def installer_words(self) -> str:
        """What pip or uv wrote of packages that cannot be installed; "" if that is not why the run failed."""
        return self.run.message.partition("\n")[2] if self.run and self.run.reason == NOT_MADE else ""

    @property
    def cost(self) -> Decimal:
        return self.run.cost_at(self.now) if self.run else Decimal(0)

    @property
    def gpu_seconds(self) -> int:
        return self.run.gpu_seconds_at(self.now) if self.run else 0


@dataclass(frozen=True)
class Step:
    """A phase in a run's life. `end` is None while it lasts; `start` is None before it begins."""

    label: str
    start: dt.datetime | None
    end: dt.datetime | None
    state: str


def page_of(request: HttpRequest, appcode: str, name: str) -> Page:
    """Raises Http404 for a cluster or run that is absent or not visible."""
    user = person(request)
    cluster = cluster_for(user, appcode, name)
    run = cluster.current_run
    if wanted := request.GET.get("run"):
        number = int(wanted) if wanted.isascii() and wanted.isdecimal() and len(wanted) < 10 else 0
        if run is None or run.number != number:
            run = cluster.runs.filter(number=number).select_related("created_by").first()
        if run is None:
            raise Http404(f"{name} has no run {wanted[:20]}.")
    if run:
        run.cluster = cluster
    now = timezone.now()
    may_operate = may(user, cluster.appcode, OPERATE)
    row = row_of(cluster, user=user, may_operate=may_operate, titles=flavor_titles(), now=now)
    waits = run is not None and run.phase == Run.Phase.QUEUED and run.wait_reason == "QuotaExceeded"
    larger = enough(run) if run and waits and may(user, cluster.appcode, MANAGE) else None
    is_ending = run is None or bool(run.verdict) or run.desired != Run.Desired.RUNNING
    right = None if run is None or is_ending else rights_of([run]).get(run.pk)
    forecast = forecasts_of([run], now).get(run.pk) if run else None
    return Page(cluster, run, row, now, silence_of(run, now) if run else "", larger, right, forecast)


@require_safe
@conditional_page
def head(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The live head above the tabs: name, state, reason, cost so far, and actions."""
    return render(request, "clusters/cluster/_head.html", {"page": page_of(request, appcode, name)})


@require_safe
def overview(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Applications have a page of their own."""
    shown = page_of(request, appcode, name)
    if shown.row.application:
        query = request.GET.urlencode()
        return redirect(f"{shown.row.page}{query and '?'}{query}")
    return render(request, "clusters/cluster/overview.html", {"page": shown, **overview_of(request, shown)})


@require_safe
@conditional_page
def progress(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The live part of the overview: timeline and tasks."""
    shown = page_of(request, appcode, name)
    return render(request, "clusters/cluster/_progress.html", {"page": shown, **overview_of(request, shown)})


def _place(segment: Segment) -> tuple[int, int, dt.datetime]:
    """Sort key of a usage segment: by role and index, then time. Labels are unvalidated and may be missing."""
    order, role, index = list(ROLES), str(segment.labels.get("role", "")), str(segment.labels.get("index", ""))
    return order.index(role) if role in ROLES else len(order), int(index) if index.isdecimal() else 0, segment.started


@require_safe
def usage(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = page_of(request, appcode, name)
    titles = flavor_titles()
    rows = sorted(usage_of([consumer(shown.run)], shown.now) if shown.run else [], key=lambda row: _place(row.segment))
    context = {
        "page": shown,
        "segments": [(row, titles.get(flavor := str(row.segment.labels.get("flavor", "")), flavor)) for row in rows],
        "busy": busy_of(rows),
        "makeup": breakdown.parts(shown.now, consumers=[consumer(shown.run)]) if shown.run else [],
        "total": sum((row.cost for row in rows), Decimal(0)),
        "gpu_seconds": sum(row.gpu_seconds for row in rows),
    }
    return render(request, "clusters/cluster/usage.html", context)


@require_safe
def cost(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The cost of one more run, in a sentence. Pages with a deploy button fetch it."""
    one = cluster_for(person(request), appcode, name)
    try:
        found = cost_of(ClusterSpec.stored(one.spec), one.appcode)
    except (Invalid, ValidationError):
        found = None
    return render(request, "clusters/cluster/_cost.html", {"cost": found})


@require_safe
def runs(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The table of results, of this cluster alone."""
    shown = page_of(request, appcode, name)
    view = replace(view_of(request), cluster=name, whole="")
    own = views_of(person(request), shown.cluster.appcode, view.scope).own
    if own and not set(request.GET) - {"run"}:
        return redirect(f"{request.path}?{own}")
    context = {"page": shown, "embedded": True, **context_of(request, shown.cluster.appcode, view)}
    if shown.row.is_computing:
        context["tensorboard"] = f"{shown.url}/tensorboard"
        context["notebook"] = f"{shown.url}/notebook" if shown.row.may_operate else ""
    return shown_as(request, render(request, "clusters/cluster/runs.html", context), context["table"].view)


@require_safe
def events(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = page_of(request, appcode, name)
    found, next_cursor = layout.page_of(request, events_of(shown.cluster), "-id", EVENTS)
    return render(request, "clusters/cluster/events.html", {"page": shown, "events": found, "next_cursor": next_cursor})


@require_safe
def manifest(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = page_of(request, appcode, name)
    document = to_manifest(shown.cluster, shown.now)
    text = json.dumps(document, indent=2, ensure_ascii=False)
    wanted = json.dumps(
        {key: value for key, value in document.items() if key != "status"}, indent=2, ensure_ascii=False
    )
    address = request.build_absolute_uri(f"/api/v1/appcodes/{appcode}/clusters/{name}")
    context = {"page": shown, "manifest": text, "curl": curl(address, wanted, method="PUT"), "address": address}
    return render(request, "clusters/cluster/manifest.html", context)


@require_safe
def export(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    document = to_manifest(cluster_for(person(request), appcode, name), timezone.now())
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    headers = {"Content-Disposition": f'attachment; filename="{name}.json"'}
    return HttpResponse(text, content_type="application/json", headers=headers)


def timeline(run: Run, rows: list[TaskRow]) -> list[Step]:
    """Queued → Starting → Running → the end, with start and end times."""
    times = [row.task.scheduled_at for row in rows if row.task and row.task.scheduled_at]
    if run.whole_at and run.phase != Run.Phase.QUEUED:
        times.append(run.whole_at)  # On this machine packages are installed before its tasks get their GPUs.
    scheduled = min(times, default=None)
    ended = run.finished_at
    began = run.started_at or ended
    if scheduled and began:
        scheduled = min(scheduled, began)  # A task that was started again was scheduled again.
    steps = [
        Step("Queued", run.created_at, scheduled or began, "Queued"),
        Step("Starting", scheduled, began, "Starting"),
        Step("Running", run.started_at, ended, "Running"),
    ]
    reached = [step for step in steps if step.start is not None]
    if ended:
        return [*reached, Step(run.phase, ended, ended, run.phase)]
    return [*reached, *(step for step in steps if step.start is None), Step("Done", None, None, "")]


def overview_of(request: HttpRequest, shown: Page) -> dict[str, Any]:
    """The timeline, the tasks and the configuration of the selected run."""
    run = shown.run
    if run is None:
        return {
            "steps": [],
            "tasks": [],
            "failed": [],
            "spec": shown.cluster.spec,
            "read": reading_of(shown.cluster.spec, None, shown.cluster.appcode.code),
            "completion": _completion(shown.cluster.spec),
            "env": write_env(shown.cluster.spec["env"]),
            "code": code_of(shown.cluster.spec),
        }
    rows = task_rows(run)
    is_apart = says_its_own(run)
    found = tasks.table(rows, tasks.Asked.read(request.GET), is_apart=is_apart)
    titles = flavor_titles()
    framework = FRAMEWORKS[run.spec["framework"]]
    return {
        "steps": timeline(run, rows),
        "waited": waited(run, everything="all" in request.GET),
        "tasks": tasks.located(run, found.rows),
        "table": found,
        "says_its_own": is_apart,
        "no_commands": _no_commands(run.cloud),
        "strip": tasks.strip(rows, shown.url, "" if shown.is_latest else f"&run={run.number}"),
        "failed": failed_first(run, rows),
        "hook_groups": _hook_groups(run, shown.now),
        "roles": [
            (
                framework.role(role).title,
                titles.get(run.spec["roles"][role]["flavor"], ""),
                run.roles[role]["count"],
                run.spec["roles"][role].get("atOnce"),
            )
            for role in ROLES
            if role in run.roles and role in run.spec["roles"]
        ],
        "spec": run.spec,
        "read": reading_of(run.spec, run.source, shown.cluster.appcode.code),
        "readers": _readers(run),
        "registered": _registered(run),
        "completion": _completion(run.spec),
        "env": write_env(run.spec["env"]),
        "code": code_of(run.spec),
        "folder": output_folder(run.spec["outputPath"], name=shown.cluster.name, run=run.number),
    }


def _hook_groups(run: Run, now: dt.datetime) -> list[tuple[str, list[tuple[ShownHook, Decimal]]]]:
    """Hooks with their cost so far, grouped into before and after the run."""
    found = [(each, each.cost_at(now)) for each in hooks_of(run)]
    before, after = ([row for row in found if (row[0].on == "before") is is_before] for is_before in (True, False))
    return [group for group in (("Before the run", before), ("After the run", after)) if group[1]]


def _registered(run: Run) -> list[ModelVersion]:
    """Model versions made from the run's output. Skips the query for a run without output or still running."""
    if not run.spec["output"] or not run.is_terminal:
        return []
    found = run.model_versions.filter(deleted_at=None).select_related("model").defer("files", "sample", "signature")
    return list(found.order_by("pk"))


def _readers(run: Run) -> list[Run]:
    """The newest runs that read its output, except its hooks. Skips the query for a run without output."""
    if not run.spec["output"]:
        return []
    others = run.readers.filter(cluster__deleted_at=None).exclude(cluster__part_of=part_of(run.cluster.name))
    return list(others.select_related("cluster").order_by("-pk")[:READERS])


@dataclass(frozen=True)
class Reading:
    """What a run reads: `folder` of a datastore ("" for all of it), written by `run` of a cluster (None until it is chosen)."""

    said: InputSpec
    store: str
    folder: str
    run: Run | None
    appcode: str

    @property
    def cluster(self) -> str:
        return (self.said.from_ or "").partition("/")[0]

    @property
    def url(self) -> str:
        """The page of the datastore, which another appcode may share; "" while unknown."""
        owner, _, name = self.store.rpartition("/")
        query = "?" + urlencode({"folder": self.folder}, safe="/") if self.folder else ""
        return reverse("datastore", args=[owner or self.appcode, name]) + query if name else ""

    @property
    def how(self) -> str:
        """For display: the version, and how it reaches the tasks."""
        version = f"version {self.said.version}" if self.said.version else ""
        return ", ".join(part for part in (version, self.said.manner) if part)


def reading_of(spec: dict[str, Any], source: Run | None, appcode: str) -> Reading | None:
    """The input of a spec in an appcode; `source` is the run whose output is read."""
    said = input_of(spec)
    if said is None:
        return None
    folder = output_folder(source.spec["outputPath"], name=source.cluster.name, run=source.number) if source else ""
    store = source.spec["output"] if source else said.datastore or ""
    return Reading(said, store, "/".join(part for part in (folder, said.path) if part), source, appcode)


def _no_commands(cloud: str) -> str:
    """Why no terminal can be opened in tasks of this cloud; "" if it can."""
    try:
        return "" if issubclass(driver(cloud), RunsCommands) else NO_COMMANDS
    except CloudError as error:
        return str(error)


def _completion(spec: dict[str, Any]) -> str:
    return FRAMEWORKS[spec["framework"]].completion(spec["completion"]).title
