"""One model with its versions, the history of its aliases, one version, and versions side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import conditional_page, require_safe

from clusters.model_registry.access import aliases_now, history_of, model_for, version_for, versions_of
from clusters.model_registry.manifest import FORMATS
from clusters.model_registry.models import ModelAlias, ModelVersion, RegisteredModel
from clusters.model_registry.packing import packed
from datastores.drivers.base import DriverError
from datastores.files.downloads import download_packed
from portal.access import OPERATE, may
from portal.api.problems import Unavailable
from portal.errors import Conflict
from portal.pages.appcodes import person
from portal.pages.charts import number
from portal.pages.layout import page_of

# Metrics in the table of versions; a version's page shows all.
MOST_METRICS = 4
# Maximum number of versions side by side.
MOST_COMPARED = 6
# Versions that the page offers as an alias's target; others can be chosen on their own page.
OFFERED = 100


@dataclass(frozen=True)
class Row:
    """A version in the table, with its metrics in column order."""

    version: ModelVersion
    aliases: Sequence[str]
    metrics: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Alias:
    """An alias and the version that it named before; None if there was none or it is deleted."""

    row: ModelAlias
    before: ModelVersion | None


@dataclass(frozen=True)
class Compared:
    name: str
    values: Sequence[str]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


@require_safe
def model(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = model_for(person(request), appcode, name)
    offered = versions_of(shown).filter(state=ModelVersion.State.READY)[:OFFERED]
    context = {
        "aliases": _aliases(shown),
        "offered": [each.number for each in offered],
        "tab": "versions",
    }
    return render(
        request, "clusters/model_registry/model.html", context | _head(request, shown) | _versions(request, shown)
    )


@require_safe
@conditional_page
def rows(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """The table of versions, which changes while files are being read."""
    shown = model_for(person(request), appcode, name)
    return render(request, "clusters/model_registry/_versions.html", {"shown": shown} | _versions(request, shown))


@require_safe
def history(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    shown = model_for(person(request), appcode, name)
    page, following = page_of(request, history_of(shown), "-id")
    context = {"moves": page, "next_cursor": following, "tab": "history"}
    return render(request, "clusters/model_registry/history.html", context | _head(request, shown))


@require_safe
def version(request: HttpRequest, appcode: str, name: str, number: int) -> HttpResponse:
    shown = version_for(person(request), appcode, name, number)
    known = list(aliases_now(shown.model).values_list("name", flat=True))
    context = {"known_aliases": known} | _head(request, shown.model) | _version(shown)
    return render(request, "clusters/model_registry/version.html", context)


@require_safe
@conditional_page
def version_live(request: HttpRequest, appcode: str, name: str, number: int) -> HttpResponse:
    """The live part of a version's page while its files are being read."""
    return render(
        request, "clusters/model_registry/_version.html", _version(version_for(person(request), appcode, name, number))
    )


@require_safe
def version_mlflow(request: HttpRequest, appcode: str, name: str, number: int) -> HttpResponseBase:
    """The version as an archive for MLflow."""
    user = person(request)
    shown = version_for(user, appcode, name, number)
    try:
        return download_packed(lambda: packed(shown), f"{name}-{number}.zip", user)
    except (Conflict, DriverError, Unavailable) as error:
        messages.error(request, str(error))
        return redirect("model_version", appcode, name, number)


@require_safe
def compare(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    """`?version=1&version=2`: metrics and origins side by side."""
    shown = model_for(person(request), appcode, name)
    wanted = [
        int(each) for each in request.GET.getlist("version") if each.isascii() and each.isdigit() and len(each) < 10
    ]
    found = list(versions_of(shown).filter(number__in=wanted[:MOST_COMPARED]).order_by("number"))
    context = {
        "versions": found,
        "metrics": _compared([each.metrics for each in found]),
        "facts": [line for line in _compared([_facts(each) for each in found]) if any(line.values)],
        "most": MOST_COMPARED,
    }
    return render(request, "clusters/model_registry/compare.html", context | _head(request, shown))


def _head(request: HttpRequest, shown: RegisteredModel) -> dict[str, Any]:
    return {"shown": shown, "may_operate": may(person(request), shown.appcode, OPERATE)}


def _aliases(shown: RegisteredModel) -> list[Alias]:
    """The current aliases. Two queries."""
    now = list(aliases_now(shown))
    earlier = history_of(shown).filter(name__in=[each.name for each in now], until__isnull=False)
    before = {each.name: each.version for each in earlier.order_by("name", "-since").distinct("name")}
    alive = {name: row for name, row in before.items() if row and row.deleted_at is None}
    return [Alias(each, alive.get(each.name)) for each in now]


def _versions(request: HttpRequest, shown: RegisteredModel) -> dict[str, Any]:
    page, following = page_of(request, versions_of(shown), "-number")
    columns = _columns([each.metrics for each in page])
    by_version: dict[int, list[str]] = {}
    for row in aliases_now(shown):
        by_version.setdefault(row.version_id or 0, []).append(row.name)
    return {
        "rows": [
            Row(each, by_version.get(each.pk, ()), [(name, _said(each.metrics, name)) for name in columns])
            for each in page
        ],
        "columns": columns,
        "next_cursor": following,
        "is_reading": any(each.state == ModelVersion.State.PENDING for each in page),
    }


def _version(shown: ModelVersion) -> dict[str, Any]:
    return {
        "shown": shown.model,
        "version": shown,
        "served": f"{shown.model.name}/{shown.number}",
        "format": FORMATS.get(shown.format, shown.format),  # type: ignore[call-overload]
        "aliases": list(aliases_now(shown.model).filter(version=shown).values_list("name", flat=True)),
        "metrics": [(name, _said(shown.metrics, name)) for name in shown.metrics],
        "sample": orjson.dumps(shown.sample, option=orjson.OPT_INDENT_2).decode() if shown.sample is not None else "",
        "tensors": [
            (words, tensor["name"], tensor["dtype"], _shape(tensor["shape"]))
            for words, key in (("takes", "inputs"), ("gives", "outputs"))
            for tensor in (shown.signature or {}).get(key) or ()
        ],
        "run": shown.run if shown.run and shown.run.cluster.deleted_at is None else None,
    }


def _columns(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics that most versions have, in order of first appearance."""
    counts: dict[str, int] = {}
    for each in found:
        for name in each:
            counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: -counts[name])[:MOST_METRICS]


def _compared(found: Sequence[Mapping[str, Any]]) -> list[Compared]:
    names = dict.fromkeys(name for each in found for name in each)
    return [Compared(name, [_said(each, name) for each in found]) for name in names]


def _facts(row: ModelVersion) -> dict[str, Any]:
    said = row.lineage
    code, read = said.get("code", {}), said.get("input", {})
    return {
        "Run": said.get("run", ""),
        "Code": (code.get("commit") or code.get("digest") or "")[:12],
        "Input": (read.get("digest") or "")[:12],
        "Image": said.get("image", ""),
        "Environment": said.get("environment") or "",
        "Format": FORMATS.get(row.format, row.format),  # type: ignore[call-overload]
        "Files": f"{row.datastore}/{row.folder}",
    }


def _said(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name, "")
    if value is None:
        return "NaN"
    return value if isinstance(value, str) else number(value)


def _shape(shape: Sequence[int | None] | None) -> str:
    if shape is None:
        return "any"
    return f"({', '.join('n' if each is None else str(each) for each in shape)}{',' if len(shape) == 1 else ''})"
