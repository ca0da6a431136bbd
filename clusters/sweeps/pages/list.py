"""The list of sweeps, and the summary of one. The browser polls live parts as fragments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_safe

from clusters.cluster.pages.list import cents
from clusters.cluster.pages.living import RESTS, LiveKind, Thing, owner
from clusters.sweeps.access import SWEEPS, sweeps_for
from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.models import Sweep
from clusters.sweeps.totals import Sums, sums_of
from portal.access import OPERATE, appcodes_for
from portal.models import User
from portal.pages.appcodes import person
from portal.pages.charts import number
from portal.pages.layout import listed, page_of, words
from portal.templatetags.portal import gpu_hours, time
from portal.templatetags.portal import number as grouped

PHASES = ("Running", "Paused", "Succeeded", "Failed", "Stopped")
# Filters of trials by phase; "" is the phase of a live trial.
TRIAL_PHASES = {"Living": "", "Succeeded": "Succeeded", "Failed": "Failed", "Pruned": "Pruned", "Stopped": "Stopped"}


@dataclass(frozen=True)
class Row:
    """A sweep in the list, or the head of its page."""

    sweep: Sweep
    spec: SweepSpec
    sums: Sums

    @property
    def url(self) -> str:
        return f"/sweeps/{self.sweep.appcode.code}/{self.sweep.name}"

    @property
    def total(self) -> int:
        """All trainings, folds counted."""
        return self.spec.points * (self.spec.folds or 1)

    @property
    def ended(self) -> int:
        return sum(count for phase, count in self.sums.trials.items() if phase in TRIAL_PHASES.values())

    @property
    def living(self) -> int:
        return sum(self.sums.trials.values()) - self.ended

    @property
    def at_work(self) -> int:
        """Live trials; if trials take turns in one run, those that are running."""
        return self.living - (self.sums.trials.get("Queued", 0) if self.spec.one_run else 0)

    @property
    def percent(self) -> int:
        return 100 * self.ended // self.total

    @property
    def failed(self) -> int:
        return self.sums.trials.get("Failed", 0)

    @property
    def best(self) -> str:
        return number(self.sweep.best["value"]) if self.sweep.best else ""

    @property
    def is_over(self) -> bool:
        return self.sweep.phase in ("Succeeded", "Failed", "Stopped")

    @property
    def how(self) -> str:
        """The sampler and its options, in one line."""
        words_ = {"grid": "grid search", "random": "random search", "tpe": "Bayesian search (TPE)"}
        folds = f", {self.spec.folds} folds each" if self.spec.folds else ""
        early = f", early stopping from step {self.spec.stop_early.min_steps}" if self.spec.stop_early else ""
        one = " in one run" if self.spec.one_run else ""
        return f"{words_[self.spec.sampler]}{folds}{early}, {self.spec.parallel} in parallel{one}"


@require_safe
def sweeps(request: HttpRequest) -> HttpResponse:
    return render(request, "clusters/sweeps/sweeps.html", _listed(request))


@require_safe
@conditional_page
def rows(request: HttpRequest) -> HttpResponse:
    return render(request, "clusters/sweeps/_rows.html", _listed(request))


def rows_of(found: Sequence[Sweep]) -> list[Row]:
    """List rows, in a constant number of queries."""
    sums = sums_of([sweep.pk for sweep in found], timezone.now())
    return [Row(sweep, SweepSpec.stored(sweep.spec), sums[sweep.pk]) for sweep in found]


def _listed(request: HttpRequest) -> dict[str, Any]:
    user, phase = person(request), words(request, "phase")
    found = listed(request, sweeps_for(user), "name")
    page, following = page_of(request, found.filter(phase=phase) if phase in PHASES else found, "-id")
    return {
        "rows": rows_of(page),
        "next_cursor": following,
        "phases": PHASES,
        "searched": bool(words(request) or phase or request.GET.get("cursor")),
        "query": request.GET.urlencode(),
        "may_create": appcodes_for(user, OPERATE).exists(),
    }


def _things(pks: Collection[int], user: User, roles: Mapping[int, str] | None) -> dict[int, Thing]:
    found = rows_of(list(SWEEPS.rows.filter(pk__in=pks)))
    return {
        row.sweep.pk: Thing(
            kind="sweep",
            title="Sweep",
            name=row.sweep.name,
            appcode=row.sweep.appcode.code,
            owner=owner(row.sweep),
            phase=row.sweep.phase,
            work=f"{grouped(row.ended)} of {grouped(row.total)} trials",
            note=f"best {row.best}" if row.best else row.sweep.message.partition("\n")[0],
            started=time(row.sweep.created_at),
            gpu_hours=gpu_hours(row.sums.gpu_seconds),
            cost=cents(row.sums.cost),
            whose="all trials",
        )
        for row in found
    }


LIVE = LiveKind("sweep", "Sweeps", "sweeps", SWEEPS.rows, "phase", ("created_at",), _things, RESTS)
