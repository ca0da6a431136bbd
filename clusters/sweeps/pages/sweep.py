"""The page of a sweep. The browser polls live parts as fragments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import conditional_page, require_safe

from clusters.sweeps.access import sweep_for
from clusters.sweeps.manifest import SweepSpec
from clusters.sweeps.models import Sweep
from clusters.sweeps.pages.form import FIELD_OF, SweepForm
from clusters.sweeps.pages.labels import described, short
from clusters.sweeps.pages.list import Row
from clusters.sweeps.pages.trials import table_of
from clusters.sweeps.parameters import in_order
from clusters.sweeps.totals import sums_of
from portal.access import OPERATE, may
from portal.manifests.kept import changeable
from portal.pages.appcodes import person
from portal.pages.charts import number

NOTHING: Mapping[str, str] = MappingProxyType({})


@require_safe
def sweep(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    return sweep_page(request, sweep_for(person(request), appcode, name))


def sweep_page(
    request: HttpRequest, found: Sweep, said: Mapping[str, str] = NOTHING, wrong: Mapping[str, str] = NOTHING
) -> HttpResponse:
    """`said` is the invalid input of the form that changes it, with errors in `wrong`."""
    head = _head(request, found)
    spec: SweepSpec = head["spec"]
    now = {**spec.model_dump(by_alias=True), "trials": spec.points, **said}
    context = {
        **head,
        **table_of(request, head["row"]),
        "described": [(name, described(each)) for name, each in in_order(spec.parameters)],
        "query": request.GET.urlencode(),
        "changes": [(key, _label(key), now[key], key in wrong) for key in changeable(SweepSpec)],
        "wrong": wrong,
    }
    return render(request, "clusters/sweeps/sweep.html", context)


@require_safe
@conditional_page
def live(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    return render(request, "clusters/sweeps/_sweep.html", _head(request, sweep_for(person(request), appcode, name)))


@require_safe
@conditional_page
def table(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    head = _head(request, sweep_for(person(request), appcode, name))
    return render(request, "clusters/sweeps/_trials.html", {**head, **table_of(request, head["row"])})


def _head(request: HttpRequest, found: Sweep) -> dict[str, Any]:
    spec = SweepSpec.stored(found.spec)
    return {
        "row": Row(found, spec, sums_of([found.pk], timezone.now())[found.pk]),
        "sweep": found,
        "spec": spec,
        "best": _best(found, [name for name, _ in in_order(spec.parameters)]),
        "may_operate": may(person(request), found.appcode, OPERATE),
    }


def _label(key: str) -> str:
    """What the form of a new sweep calls a field of its spec."""
    return str(SweepForm.base_fields[FIELD_OF[f"spec.{key}"]].label)


def _best(found: Sweep, names: Sequence[str]) -> dict[str, Any] | None:
    best = found.best
    if best is None:
        return None
    said = [(name, short(best["parameters"][name])) for name in names if name in best["parameters"]]
    sd = "" if best["sd"] is None else number(best["sd"])
    return {"number": best["number"], "said": said, "value": number(best["value"]), "sd": sd}
