"""Answers for the lower apps, which may not import this one: uses of a datastore, GPUs held, search hits.

`apps.py` registers the functions once. Each call costs one or two queries, however many rows it covers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import or_

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Q, QuerySet, Sum
from django.urls import reverse

from clusters.access import clusters_for
from clusters.catalog.models import Flavor, Image
from clusters.clouds.kinds import DRIVERS
from clusters.clouds.models import Cloud, CloudState
from clusters.clouds.registry import rows
from clusters.cluster.search import Search
from clusters.cluster_templates.actions import templates_for
from clusters.manifest.input import input_of
from clusters.model_registry.access import models_for
from clusters.runs.models import Cluster, Run
from clusters.runs.status.phase_update import consumer
from datastores import extension_points as datastore_points
from datastores.models import Datastore, Share
from portal import extension_points as portal_points
from portal.models import Appcode, User


def clusters_using(stores: Sequence[Datastore]) -> Mapping[int, list[datastore_points.Use]]:
    """Maps each datastore's id to the clusters that use it: live clusters whose definition, or unfinished run, names
    the datastore. Clusters of another appcode are named in full, `ops-demo/digits`."""
    keys = {str(store): store.pk for store in stores}
    found: dict[int, list[datastore_points.Use]] = {pk: [] for pk in keys.values()}
    shared = set(Share.objects.filter(datastore__in=found).values_list("datastore", flat=True))
    names = [store.name for store in stores]
    own = Q(appcode__in={s.appcode_id for s in stores}) & _uses_any([*names, *keys], names)
    elsewhere = _uses_any([name for name, pk in keys.items() if pk in shared], ())
    clusters = Cluster.objects.filter(own | elsewhere if shared else own)
    for cluster in clusters.select_related("appcode", "current_run__source"):
        specs = [cluster.spec] if cluster.deleted_at is None else []
        if cluster.current_run and not cluster.current_run.gone:
            specs.append(cluster.current_run.spec)
        named = {spec.get(key) for spec in specs for key in ("output", "home")}
        named |= {said.datastore for spec in specs if (said := input_of(spec))}
        if cluster.current_run and not cluster.current_run.gone and cluster.current_run.source:
            named.add(cluster.current_run.source.spec["output"])
        whole = {name if "/" in name else f"{cluster.appcode.code}/{name}" for name in named if name}
        for name in sorted(whole & keys.keys()):
            is_own = name.startswith(f"{cluster.appcode.code}/")
            use = datastore_points.Use(cluster.name if is_own else str(cluster), cluster_url(cluster))
            found[keys[name]].append(use)
    return found


def steps() -> list[portal_points.Step]:
    return [
        portal_points.Step("Register a cloud", Cloud.objects.filter(enabled=True).exists(), reverse("admin_clouds")),
        portal_points.Step("Offer flavors", Flavor.objects.exists(), reverse("admin_flavors")),
        portal_points.Step("Offer images", Image.objects.exists(), reverse("admin_images")),
    ]


def _uses_any(names: Collection[str], outputs: Collection[str]) -> Q:
    """Filters clusters whose definition, or unfinished run, names one of these datastores or reads run output from `outputs`."""
    in_run = _names_any("current_run__spec", names) | Q(current_run__source__spec__output__in=outputs)
    return Q(deleted_at=None) & _names_any("spec", names) | Q(current_run__gone=False) & in_run


def _names_any(spec: str, names: Collection[str]) -> Q:
    keys = ("input", "input__datastore", "output", "home")
    return reduce(or_, (Q(**{f"{spec}__{key}__in": names}) for key in keys))


def gpus_held(appcodes: QuerySet[Appcode]) -> portal_points.GpuUse:
    """GPUs that pods of `appcodes` hold now, and whether any are simulated. While they hold none, all simulated GPUs count."""
    runs = Run.objects.filter(gone=False, cluster__appcode__in=appcodes.values("pk"))
    found = runs.aggregate(held=Sum("gpu_rate"), clouds=ArrayAgg("cloud", distinct=True))
    simulated = CloudState.objects.filter(simulated__gt=0)
    if found["clouds"]:
        simulated = simulated.filter(name__in=found["clouds"])
    return portal_points.GpuUse(found["held"] or 0, simulated=simulated.exists())


def gpu_pool() -> int:
    """All GPUs of all clouds, as last seen."""
    return sum(node["gpus"] for state in CloudState.objects.all() for node in state.capacity.get("nodes", []))


def without_end(consumers: Collection[str]) -> set[str]:
    """The subset of these billing keys that runs until a user ends it: volumes, buckets, service runs without a time limit."""
    numbers = {int(key.removeprefix("run ")) for key in consumers if re.fullmatch(r"run \d+", key)}
    services = Run.objects.filter(pk__in=numbers, spec__mode="service", spec__timeLimit=None).only("pk")
    return {key for key in consumers if key.startswith(("volume ", "bucket "))} | {consumer(run) for run in services}


def closed_networks() -> set[str]:
    """Networks closed to tasks by administrators, including nodes and API servers. Webhooks may not reach them either."""
    found = rows().values_list("kind", "settings")
    return {network for kind, stored in found for network in DRIVERS[kind].closed_networks(stored)}


def find_clusters(user: User, words: str, limit: int) -> list[portal_points.Hit]:
    """For the global search: the newest matching clusters that `user` may see."""
    found = Search(text=words).narrow(clusters_for(user)).order_by("-pk")[:limit]
    return [
        portal_points.Hit(
            c.name, f"{c.appcode.code} · {c.current_run.phase if c.current_run else 'never deployed'}", cluster_url(c)
        )
        for c in found
    ]


def find_templates(user: User, words: str, limit: int) -> list[portal_points.Hit]:
    rows = templates_for(user)
    for word in words.split():
        rows = rows.filter(name__icontains=word)
    return [
        portal_points.Hit(each.name, each.description, reverse("template", args=[each.whose, each.name]))
        for each in rows.defer("spec").order_by("name")[:limit]
    ]


def find_models(user: User, words: str, limit: int) -> list[portal_points.Hit]:
    rows = models_for(user)
    for word in words.split():
        rows = rows.filter(name__icontains=word)
    return [
        portal_points.Hit(each.name, each.appcode.code, reverse("model", args=[each.appcode.code, each.name]))
        for each in rows.order_by("name")[:limit]
    ]


def cluster_url(cluster: Cluster) -> str:
    return reverse("cluster", args=[cluster.appcode.code, cluster.name])
