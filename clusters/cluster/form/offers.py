"""Smaller changes that let a waiting run start, as links to *Change* with its fields filled in. Loaded after the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from clusters.access import cluster_for
from clusters.cluster.form.data import fields_of
from clusters.cluster.offers import offers_of
from clusters.frameworks import COMPUTING_ROLES
from clusters.manifest.cluster import ClusterManifest
from clusters.runs.queries.offers import Offered, merged
from portal.access import OPERATE
from portal.pages.appcodes import person

# Fields that a link may fill in. Not the command: nobody else may say what one runs. (`?set=` changes plain values: values.py.)
FILLED = frozenset(
    {"at_once", "time_limit", "time_limit_unit", "priority_class"}
    | {f"{role}_{what}" for role in COMPUTING_ROLES for what in ("flavor", "count")}
)


@require_GET
def offers(request: HttpRequest, appcode: str, name: str) -> HttpResponse:
    user = person(request)
    cluster = cluster_for(user, appcode, name, OPERATE)
    found = offers_of(cluster, user)
    metadata = {"name": name, "appcode": appcode}
    manifest = (
        ClusterManifest.stored({"kind": "cluster", "metadata": metadata, "spec": cluster.spec}) if found else None
    )
    to = reverse("change_cluster", args=[appcode, name])
    links = (
        [(each, f"{to}?{urlencode(fields)}") for each, fields in fields_changed(manifest, found)] if manifest else []
    )
    return render(request, "clusters/cluster/_waiting_offers.html", {"links": links})


def fields_changed(manifest: ClusterManifest, offers: Sequence[Offered]) -> list[tuple[Offered, dict[str, str]]]:
    """Each offer with the fields of the form that it changes."""
    before, document = fields_of(manifest), manifest.model_dump(mode="json", by_alias=True)
    found = []
    for each in offers:
        after = fields_of(ClusterManifest.model_validate(merged(document, each.patch)))
        found.append((each, {name: value for name, value in after.items() if value != before[name]}))
    return found


def filled(said: Mapping[str, str]) -> dict[str, str]:
    """What a link fills in."""
    return {name: said[name] for name in FILLED if name in said}
