"""The list of clusters: one row per cluster, filters, and a fragment that refreshes itself. The first page (home/pages.py) and
the list of applications share its rows.

Every browser with the page open polls the fragment every few seconds. So it takes the same few queries however many
clusters there are, and its ETag is compared before anything is rendered.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.db.models import BooleanField, Case, Count, F, FloatField, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Cast, Coalesce, Extract, JSONObject
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.template.loader import get_template
from django.utils import timezone
from django.utils.cache import get_conditional_response
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import conditional_page, require_safe
from pydantic import TypeAdapter

from billing.budgets.access import Tightest, tightest
from billing.periods import month
from billing.sums.access import Amount, usage_by_appcode
from clusters.access import clusters_in
from clusters.catalog.actions import flavor_titles
from clusters.clouds.health import silences_of
from clusters.clouds.kinds import OWN
from clusters.clouds.models import CloudState
from clusters.cluster.pages.verbs import CANCEL, DELETE, DEPLOY, KEEP, NEWEST, SEVERAL, Act, stop
from clusters.cluster.search import Search
from clusters.frameworks import APPLICATIONS, COMPUTING_ROLES, ROLES
from clusters.frameworks.jupyter import Jupyter
from clusters.gateway.origins import Opening, openings
from clusters.gateway.visits import is_open_to
from clusters.manifest.input import input_of
from clusters.runs.idle import Outlook, outlook
from clusters.runs.models import Cluster, Run
from clusters.runs.placing.rights import Right, rights_of
from clusters.runs.status.phase import TERMINAL
from portal.access import OPERATE, appcodes_for, roles_of
from portal.models import Appcode, User
from portal.pages.appcodes import person
from portal.pages.charts import number
from portal.pages.layout import selected_appcode, sorted_page_of, words
from portal.templatetags.portal import gpu_hours, minute, time

ROWS = 50
# `?sort=`: annotations of `_sortable` and a unique column. Default: live clusters first, the newest start before others, as on
# the first page.
SORTS: dict[str, tuple[str, ...]] = {"": ("-sort_living", "-sort_started", "-id")}
for _word in ("name", "started", "hours", "cost"):
    SORTS |= {_word: (f"sort_{_word}", "id"), f"-{_word}": (f"-sort_{_word}", "-id")}
COUNT_SECONDS = 5
# The run's columns that rows need, and the annotations that hold parts of its spec and its access.
RUN_FIELDS = (
    "phase", "reason", "message", "roles", "desired", "verdict", "cloud", "namespace", "started_at", "usage_as_of", "gpus",
    "gpu_seconds", "gpu_rate", "cost", "cost_rate", "endpoints", "activity", "activity_since", "kept_at", "idle_announced_at",
    "idle_stops_at", "end_announced_at", "deadline", "needed_asked_at", "created_at", "placed_at", "whole_at", "given_back_at",
    "gone", "priority_class", "resources", "headline",
)  # fmt: skip
SHOWN, ACCESS = "shown_spec", "shown_access"
# Cached rendered rows, about 2 KB each. They cover most rows of most answers.
KEPT_ROWS = 2000
# The cached form.
SPENT: TypeAdapter[tuple[Amount, Tightest | None]] = TypeAdapter(tuple[Amount, Tightest | None])
SPENT_SECONDS = 30
# Roles by title. Those that take no part in training share the last; an application's only role the first.
COLUMNS: dict[str, list[str]] = {}
for _name, _role in sorted(COMPUTING_ROLES.items(), key=lambda item: not item[1].takes_part):
    COLUMNS.setdefault(_role.title if _role.takes_part else list(COLUMNS)[-1], []).append(_name)
next(iter(COLUMNS.values())).extend(name for name in ROLES if name not in COMPUTING_ROLES)


@dataclass(frozen=True)
class RoleCell:
    """For example "Middle + 1 GPU", 100 of 100."""

    flavor: str
    ready: int
    count: int


@dataclass(frozen=True)
class Row:
    """One row as a value: equal rows render equally, so the ETag is computed from them."""

    pk: int
    name: str
    appcode: str
    owner: str
    phase: str
    reason: str
    message: str
    roles: tuple[tuple[str, RoleCell], ...]
    input: str
    output: str
    started: str
    where: str
    gpu_hours: str
    cost: str
    may_operate: bool
    is_live: bool
    is_ending: bool
    application: str = ""
    created: str = ""
    gpus: int = 0
    openings: tuple[Opening, ...] = ()
    per_hour: str = ""
    stops: str = ""
    # Two metrics of a run that has ended, by name.
    headline: tuple[tuple[str, str], ...] = ()
    # Why its GPUs may be taken back, and from when on; "" if they may not.
    lent: SafeString | str = ""
    can_keep: bool = False
    # Whether it has files of its own that outlive it.
    home: bool = False
    # Used on the cluster's own page only; lists do not load it.
    is_from_git: bool = False

    @property
    def url(self) -> str:
        return f"/clusters/{self.appcode}/{self.name}"

    @property
    def page(self) -> str:
        """The page that users open first."""
        return f"/applications/{self.appcode}/{self.name}" if self.application else self.url

    @property
    def clone(self) -> str:
        return f"/{'applications' if self.application else 'clusters'}/new?clone={self.appcode}/{self.name}"

    @property
    def starts(self) -> str:
        """Why its endpoints cannot be opened yet."""
        return f"Starts: {self.message or 'it does not answer yet.'}"

    @property
    def runs_notebooks(self) -> bool:
        """Whether its notebooks can be run as clusters."""
        return self.application == Jupyter.title

    @property
    def is_computing(self) -> bool:
        return not self.application

    @property
    def wrote(self) -> bool:
        """Whether it may have output for TensorBoard."""
        return bool(self.is_computing and self.output and self.started)

    @property
    def wrote_nothing(self) -> str:
        if not self.output:
            return "It has no output datastore, so nothing that it wrote is kept."
        return "It has not begun to run."

    @property
    def html(self) -> SafeString:
        return row_html(self, "clusters/cluster/_row.html")

    @property
    def application_html(self) -> SafeString:
        return row_html(self, "clusters/applications/_row.html")

    @property
    def columns(self) -> list[tuple[str, list[RoleCell]]]:
        """Its roles by title, without those that it does not have."""
        found = ((label, [cell for role, cell in self.roles if role in roles]) for label, roles in COLUMNS.items())
        return [(label, cells) for label, cells in found if cells]

    @property
    def flavors(self) -> list[str]:
        """The flavors of its roles, each once."""
        return list(dict.fromkeys(cell.flavor for _, cell in self.roles))

    @property
    def can_deploy(self) -> bool:
        return self.may_operate and not self.is_live

    @property
    def acts(self) -> tuple[Act, ...]:
        """The actions on the run that its phase and the user's role permit."""
        if not self.may_operate or (self.is_live and self.is_ending):
            return ()
        keep = (KEEP,) if self.can_keep else ()
        return (
            *keep,
            DEPLOY if not self.is_live else self.stop if self.phase == "Running" else CANCEL,
            *((NEWEST,) if self.is_from_git and not self.is_live else ()),
        )

    @property
    def stop(self) -> Act:
        return stop(self.application, notebook=self.runs_notebooks, output=bool(self.output), home=self.home)

    @property
    def delete(self) -> Act | None:
        return DELETE if self.may_operate else None


@lru_cache(KEPT_ROWS)
def row_html(row: object, template: str) -> SafeString:
    """The row as HTML. A row is a value that holds all it shows, so equal rows are rendered once."""
    return SafeString(get_template(template).render({"row": row, "currency": settings.CURRENCY}))


@dataclass(frozen=True)
class Morning:
    """Key numbers, in total and for the user: GPUs, queued runs, cost per hour. `silent`: a sentence per unreachable cloud;
    `lives`: whether any run is there."""

    gpus: int = 0
    my_gpus: int = 0
    waiting: int = 0
    my_waiting: int = 0
    per_hour: str = ""
    silent: tuple[str, ...] = ()
    lives: bool = False


@require_safe
def clusters(request: HttpRequest) -> HttpResponse:
    """The page. Six queries, including the user's."""
    return render(request, "clusters/cluster/list.html", _context(request))


@require_safe
def rows(request: HttpRequest) -> HttpResponseBase:
    """The live part of the list. Answers 304 while it is unchanged."""
    return live(request, _context(request), "clusters/cluster/_rows.html")


def live(request: HttpRequest, context: dict[str, Any], template: str) -> HttpResponseBase:
    """A live fragment of rows. Compares the content's hash with the browser's ETag before rendering."""
    told = repr(
        (
            *(context.get(name) for name in ("rows", "counts", "kinds", "morning", "next_cursor", "search")),
            request.user.pk,
        )
    )
    etag = f'"{hashlib.blake2b(told.encode(), digest_size=16).hexdigest()}"'
    response = get_conditional_response(request, etag=etag)
    if response is None:
        response = render(request, template, {**context, "live": True})
    response["ETag"] = etag
    return response


@require_safe
@conditional_page
def spent(request: HttpRequest) -> HttpResponse:
    """This month's cost of the user's appcodes, and their tightest budget. Loaded separately: it sums a month of usage."""
    user = person(request)
    appcodes = _selected(appcodes_for(user), request)
    key = f"clusters.spent.{user.pk}.{hashlib.blake2b(selected_appcode(request).encode(), digest_size=8).hexdigest()}"
    known, now = cache.get(key), timezone.now()
    if known is None:
        used = usage_by_appcode(appcodes, month(now), now)
        found = Amount.total(each.amount for each in used), tightest(appcodes, used)
        cache.set(key, SPENT.dump_python(found, mode="json"), SPENT_SECONDS)
    else:
        found = SPENT.validate_python(known)
    told = {"spent": found[0], "budget": found[1], "month": now, "appcode": selected_appcode(request)}
    return render(request, "clusters/cluster/_spent.html", told)


def _context(request: HttpRequest) -> dict[str, Any]:
    roles = roles_of(person(request))
    context = found(request, "cluster", clusters_in(roles).exclude(framework__in=list(APPLICATIONS)), roles)
    return {**context, "morning": morning(person(request), roles, context["search"].appcode)}


def found(
    request: HttpRequest, kind: str, clusters: QuerySet[Cluster], roles: Mapping[int, str] | None
) -> dict[str, Any]:
    """One page of `clusters`, which are of this `kind`, narrowed by the user's search, with the filters' state. `roles`
    are the user's by appcode id. Two queries, and two more when counts and flavor titles are not cached."""
    user = person(request)
    search = replace(Search.read(request.GET), appcode=selected_appcode(request))
    now, titles = timezone.now(), flavor_titles()
    sort = chosen if (chosen := words(request, "sort")) in SORTS else ""
    listed, next_cursor = sorted_page_of(
        request, _sortable(_listed(search.narrow(clusters)), sort, now), SORTS[sort], ROWS
    )
    return {
        "rows": rows_of(listed, user, roles, titles, now),
        "search": search,
        "next_cursor": next_cursor,
        "sort": sort,
        "several": SEVERAL,
        "compares": kind == "cluster",
        "counts": _counts(user, kind, search, clusters),
        "may_create": roles is None or any(role in OPERATE.value for role in roles.values()),
        "query": request.GET.urlencode(),
    }


def rows_with(pks: Collection[int], user: User, roles: Mapping[int, str] | None) -> dict[int, Row]:
    """The rows of these clusters, by primary key. One query, and one more for the rights of their runs."""
    found = list(_listed(clusters_in(roles).filter(pk__in=pks))) if pks else []
    return {row.pk: row for row in rows_of(found, user, roles, flavor_titles(), timezone.now())}


def rows_of(
    listed: Sequence[Cluster], user: User, roles: Mapping[int, str] | None, titles: Mapping[str, str], now: dt.datetime
) -> list[Row]:
    """The rows of clusters that were read with `_listed`."""
    rows, runs = [], []
    for cluster in listed:
        shown = getattr(cluster, SHOWN)
        cluster.spec = {**shown, "framework": cluster.framework, "access": getattr(cluster, ACCESS)}
        if run := cluster.current_run:
            run.spec, run.cluster = shown, cluster
            runs.append(run)
    rights = rights_of(runs)
    for cluster in listed:
        may_operate = roles is None or roles[cluster.appcode_id] in OPERATE.value
        right = rights.get(cluster.current_run_id or 0)
        rows.append(row_of(cluster, user=user, may_operate=may_operate, titles=titles, now=now, right=right))
    return rows


def _counts(user: User, kind: str, search: Search, clusters: QuerySet[Cluster]) -> list[tuple[str, int]]:
    """The number of clusters by phase, ignoring the phase filter. One query, cached for COUNT_SECONDS."""
    asked = repr((user.pk, kind, replace(search, phase="", cursor="")))
    key = f"clusters.counts.{hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()}"
    found: dict[str, int] | None = cache.get(key)
    if found is None:
        # Clusters that were never deployed have no phase and no filter chip.
        every = replace(search, phase="").narrow(clusters).filter(current_run__isnull=False).order_by()
        found = dict(every.values_list("current_run__phase").annotate(n=Count("pk")))
        cache.set(key, found, COUNT_SECONDS)
    return [(phase, found.get(phase, 0)) for phase in Run.Phase.values]


def _sortable(clusters: QuerySet[Cluster], sort: str, now: dt.datetime) -> QuerySet[Cluster]:
    """Adds only the annotations that the order `sort` needs."""
    since = Extract(Value(now) - F("current_run__usage_as_of"), "epoch")

    def grown(base: str, rate: str) -> Coalesce:
        """The computation of `Run.cost_at` in SQL; 0 for a cluster that never ran."""
        parts = [Cast(f"current_run__{name}", FloatField()) for name in (base, rate)]
        return Coalesce(parts[0] + parts[1] * Coalesce(since, 0.0, output_field=FloatField()), 0.0)

    living = When(current_run__phase__in=[phase for phase in Run.Phase.values if phase not in TERMINAL], then=True)
    annotations = {
        "sort_living": Case(living, default=False, output_field=BooleanField()),
        "sort_name": F("name"),
        "sort_started": Coalesce("current_run__started_at", "current_run__created_at", "created_at"),
        "sort_hours": grown("gpu_seconds", "gpu_rate"),
        "sort_cost": grown("cost", "cost_rate"),
    }
    wanted = {column.removeprefix("-") for column in SORTS[sort]}
    return clusters.annotate(**{name: made for name, made in annotations.items() if name in wanted})


def _listed(clusters: QuerySet[Cluster]) -> QuerySet[Cluster]:
    """Loads only what rows need: commands and environments may be long."""
    spec = JSONObject(**{name: f"current_run__spec__{name}" for name in ("roles", "input", "output", "idle", "home")})
    run = [f"current_run__{name}" for name in RUN_FIELDS]
    own = (
        "name",
        "framework",
        "created_at",
        "origins",
        "appcode__code",
        "appcode__gpu_quota",
        "appcode__gpu_borrow",
        "created_by__username",
    )
    return clusters.only(*own, *run).annotate(**{SHOWN: spec, ACCESS: F("spec__access")})


def row_of(
    cluster: Cluster,
    *,
    user: User,
    may_operate: bool,
    titles: Mapping[str, str],
    now: dt.datetime,
    right: Right | None = None,
) -> Row:
    """The row of a cluster. `right`: that of its run. Of `cluster.spec` it needs framework and access, and without a run also
    roles, input and output."""
    run = cluster.current_run
    spec = run.spec if run else cluster.spec
    driver = APPLICATIONS.get(cluster.spec["framework"])
    cells = (
        (
            role,
            RoleCell(
                titles.get(asked["flavor"], asked["flavor"]),
                # Tasks that were ended after success count as ready.
                facts["count"] if run.phase == Run.Phase.SUCCEEDED else facts["ready"],
                facts["count"],
            ),
        )
        for role in ROLES
        if run and (facts := run.roles.get(role)) and (asked := spec["roles"].get(role))
    )
    is_live = bool(run and not run.is_terminal)
    is_ending = bool(run and (run.desired == Run.Desired.ENDED or run.verdict))
    opens = is_live and not is_ending and (may_operate or is_open_to(user, cluster.spec, member=True))
    quiet = outlook(run) if run else Outlook()
    return Row(
        pk=cluster.pk,
        name=cluster.name,
        appcode=cluster.appcode.code,
        owner=cluster.created_by.username if cluster.created_by else "",
        phase=run.phase if run else "",
        reason=run.reason if run else "",
        message=first_sentence(run)
        if run and run.phase != Run.Phase.SUCCEEDED and (run.reason or run.is_terminal)
        else "",
        roles=tuple(cells),
        input=said.words if (said := input_of(spec)) else "",
        output=spec["output"] or "",
        started=time(run.started_at, "") if run else "",
        where=where(run) if run else "",
        gpu_hours=gpu_hours(run.gpu_seconds_at(now)) if run else "–",
        cost=cents(run.cost_at(now)) if run else "–",
        may_operate=may_operate,
        is_live=is_live,
        is_ending=is_ending,
        application=driver.title if driver else "",
        created=time(cluster.created_at),
        gpus=run.gpus if run else 0,
        per_hour=cents(run.cost_rate * 3600) if is_live and run and run.cost_rate else "",
        openings=tuple(openings(cluster, run)) if opens else (),
        stops=stops_in(quiet, now),
        headline=tuple((name, value if isinstance(value, str) else number(value)) for name, value in run.headline)
        if run and run.is_terminal
        else (),
        lent="" if is_ending else lent(right, now),
        home=bool(spec.get("home")),
        can_keep=(quiet.announced and not quiet.is_last) or is_asked(run),
        is_from_git=bool((cluster.spec.get("code") or {}).get("git")),
    )


def is_asked(run: Run | None) -> bool:
    """Whether the mail asking if the run is still needed is unanswered."""
    if run is None or run.is_terminal or run.needed_asked_at is None:
        return False
    return run.kept_at is None or run.kept_at < run.needed_asked_at


def stops_in(quiet: Outlook, now: dt.datetime) -> str:
    """The announced stop, "" for none. Rounded to minutes, so that the list does not change every second."""
    if not quiet.announced:
        return ""
    why = "It reaches its time limit" if quiet.is_last else "It does nothing"
    if quiet.stops_at is None:
        return f"{why}."
    minutes = max(0, -int(-(quiet.stops_at - now).total_seconds() // 60))
    end = "is ended" if quiet.is_last else "is stopped"
    return f"{why} and {end} in {minutes} minutes." if minutes > 1 else f"{why} and {end} within a minute."


def lent(right: Right | None, now: dt.datetime) -> SafeString | str:
    """ "Borrowed, may be taken back from 14:20 on"; "" for what may not be taken. It changes only once."""
    if right is None or right.until is None:
        return ""
    name = right.name.capitalize()
    if right.may_be_taken(now):
        return f"{name}, may be taken back at any time"
    return format_html("{}, may be taken back from {} on", name, minute(right.until))


def where(run: Run) -> str:
    """For example "training/ops"; "" for this machine, the usual place."""
    return "" if run.cloud in OWN else f"{run.cloud}/{run.namespace}"


def first_sentence(run: Run) -> str:
    """Why the run is in its phase, without log lines that may follow."""
    return run.message.partition("\n")[0]


def cents(cost: Decimal) -> str:
    """A cost for a column; a positive amount that would round to 0.00 is "< 0.01"."""
    return "< 0.01" if 0 < cost < Decimal("0.005") else f"{cost:,.2f}"


def morning(user: User, roles: Mapping[int, str] | None, appcode: str) -> Morning:
    """The key numbers, in two queries: live runs visible to the user by cloud, and the state of those clouds."""
    runs = Run.objects.filter(gone=False)
    if roles is not None:
        runs = runs.filter(cluster__appcode__in=list(roles))
    if appcode:
        runs = runs.filter(cluster__appcode__code=appcode)
    mine, waits = Q(created_by=user), Q(phase=Run.Phase.QUEUED)
    found = list(
        runs.order_by()
        .values("cloud")
        .annotate(
            gpus=Sum("gpu_rate"),
            my_gpus=Sum("gpu_rate", filter=mine, default=0),
            cost_rate=Sum("cost_rate"),
            waiting=Count("pk", filter=waits),
            my_waiting=Count("pk", filter=waits & mine),
        )
    )
    states = CloudState.objects.filter(name__in=[each["cloud"] for each in found]).defer("capacity").order_by("pk")
    silent = silences_of(list(states), timezone.now())
    sums = {name: sum(each[name] for each in found) for name in ("gpus", "my_gpus", "waiting", "my_waiting")}
    rate = sum((each["cost_rate"] for each in found), Decimal(0))
    return Morning(
        **sums, per_hour=cents(rate * 3600) if rate else "", silent=tuple(silent.values()), lives=bool(found)
    )


def _selected(appcodes: QuerySet[Appcode], request: HttpRequest) -> QuerySet[Appcode]:
    code = selected_appcode(request)
    return appcodes.filter(code=code) if code else appcodes
