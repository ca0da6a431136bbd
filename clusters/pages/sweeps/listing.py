"""The list of sweeps, and what is said of each. What changes by itself is asked for again as a fragment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_safe

from clusters.models import Sweep
from clusters.sweeps.access import sweeps_for
from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.sums import Sums, sums_of
from portal.access import OPERATE, appcodes_for
from portal.charts import number
from portal.pages.appcodes import person
from portal.pages.layout import matching, page_of, selected_appcode, words

PHASES = ("Running", "Paused", "Succeeded", "Failed", "Stopped")
# What a trial's phase is filtered by; "" is that of one that lives.
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
        """Trainings in all, folds counted."""
        return self.spec.points * (self.spec.folds or 1)

    @property
    def ended(self) -> int:
        return sum(count for phase, count in self.sums.trials.items() if phase in TRIAL_PHASES.values())

    @property
    def living(self) -> int:
        return sum(self.sums.trials.values()) - self.ended

    @property
    def at_work(self) -> int:
        """Those that live; of trials that take turns in one run, those whose turn it is."""
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
        """How the next points are chosen, in a line."""
        words_ = {"grid": "every combination", "random": "at random", "tpe": "nearer to what was good (TPE)"}
        folds = f", {self.spec.folds} folds each" if self.spec.folds else ""
        early = f", those behind ended from step {self.spec.stop_early.min_steps} on" if self.spec.stop_early else ""
        one = " in one run" if self.spec.one_run else ""
        return f"{words_[self.spec.sampler]}{folds}{early}, {self.spec.parallel} at once{one}"


@require_safe
def sweeps(request: HttpRequest) -> HttpResponse:
    return render(request, "clusters/sweeps.html", _listed(request))


@require_safe
@conditional_page
def rows(request: HttpRequest) -> HttpResponse:
    """The part of the list that changes."""
    return render(request, "clusters/_sweep_rows.html", _listed(request))


def _listed(request: HttpRequest) -> dict[str, Any]:
    user, code, phase = person(request), selected_appcode(request), words(request, "phase")
    found = sweeps_for(user)
    if code:
        found = found.filter(appcode__code=code)
    if phase in PHASES:
        found = found.filter(phase=phase)
    page, following = page_of(request, matching(found, words(request), "name"), "-id")
    sums = sums_of([sweep.pk for sweep in page], timezone.now())
    return {
        "rows": [Row(sweep, SweepSpec.model_validate(sweep.spec), sums[sweep.pk]) for sweep in page],
        "next_cursor": following,
        "phases": PHASES,
        "searched": bool(words(request) or phase or request.GET.get("cursor")),
        "query": request.GET.urlencode(),
        "may_create": appcodes_for(user, OPERATE).exists(),
    }
