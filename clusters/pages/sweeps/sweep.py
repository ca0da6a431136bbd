"""The page of a sweep. What changes by itself is asked for again as fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_safe

from clusters.models import Sweep
from clusters.pages.sweeps.listing import Row
from clusters.pages.sweeps.said import described, short
from clusters.pages.sweeps.trials import table_of
from clusters.sweeps.access import sweep_for
from clusters.sweeps.manifest import SweepSpec, in_order
from clusters.sweeps.sums import sums_of
from portal.access import OPERATE, may
from portal.charts import number
from portal.pages.appcodes import person


@require_safe
def sweep(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    return sweep_page(request, sweep_for(person(request), appcode, name))


def sweep_page(request: HttpRequest, found: Sweep, change: Mapping[str, Any] | None = None) -> HttpResponse:
    """`change` is what was typed in its form, where that is wrong."""
    head = _head(request, found)
    spec: SweepSpec = head["spec"]
    context = {
        **head,
        **table_of(request, head["row"]),
        "described": [(name, described(each)) for name, each in in_order(spec.parameters)],
        "query": request.GET.urlencode(),
        "changes": (("trials", "Points"), ("parallel", "At once")),
        "change": change or {"trials": spec.points, "parallel": spec.parallel, "wrong": {}},
    }
    return render(request, "clusters/sweep.html", context)


@require_safe
@conditional_page
def live(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Its head, and the best so far."""
    return render(request, "clusters/_sweep.html", _head(request, sweep_for(person(request), appcode, name)))


@require_safe
@conditional_page
def table(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """Its trials."""
    head = _head(request, sweep_for(person(request), appcode, name))
    return render(request, "clusters/_sweep_trials.html", {**head, **table_of(request, head["row"])})


def _head(request: HttpRequest, found: Sweep) -> dict[str, Any]:
    spec = SweepSpec.model_validate(found.spec)
    return {
        "row": Row(found, spec, sums_of([found.pk], timezone.now())[found.pk]),
        "sweep": found,
        "spec": spec,
        "best": _best(found, [name for name, _ in in_order(spec.parameters)]),
        "may_operate": may(person(request), found.appcode, OPERATE),
    }


def _best(found: Sweep, names: Sequence[str]) -> dict[str, Any] | None:
    """The best point so far, as people read it."""
    best = found.best
    if best is None:
        return None
    said = [(name, short(best["parameters"][name])) for name in names if name in best["parameters"]]
    sd = "" if best["sd"] is None else number(best["sd"])
    return {"number": best["number"], "said": said, "value": number(best["value"]), "sd": sd}
