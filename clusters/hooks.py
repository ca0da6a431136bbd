"""What this app tells the apps beneath it, which may not import it: who uses a datastore, GPUs held, clusters that are found.

Registered once by `apps.py`; each answer costs one query or two, whatever is asked for.
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
from clusters.clouds.kinds import DRIVERS
from clusters.clouds.registry import rows
from clusters.input import input_of
from clusters.model_registry.access import models_for
from clusters.models import Cloud, CloudState, Cluster, Flavor, Image, Run
from clusters.runs.status import consumer
from clusters.spec.search import Search
from clusters.templates import templates_for
from datastores import hooks as datastore_hooks
from datastores.models import Datastore, Share
from portal import hooks as portal_hooks
from portal.models import Appcode, User


def clusters_using(stores: Sequence[Datastore]) -> Mapping[int, list[datastore_hooks.Use]]:
    """Living clusters whose definition, or whose run that has not ended, names one of `stores`; others than those of its appcode
    by the longer name, `ops-demo/digits`."""
    keys = {str(store): store.pk for store in stores}
    found: dict[int, list[datastore_hooks.Use]] = {pk: [] for pk in keys.values()}
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
            use = datastore_hooks.Use(cluster.name if is_own else str(cluster), cluster_url(cluster))
            found[keys[name]].append(use)
    return found


def steps() -> list[portal_hooks.Step]:
    """What of the catalogue is set up."""
    return [
        portal_hooks.Step("Register a cloud", Cloud.objects.filter(enabled=True).exists(), reverse("admin_clouds")),
        portal_hooks.Step("Offer flavors", Flavor.objects.exists(), reverse("admin_flavors")),
        portal_hooks.Step("Offer images", Image.objects.exists(), reverse("admin_images")),
    ]


def _uses_any(names: Collection[str], outputs: Collection[str]) -> Q:
    """Clusters whose definition, or whose run that has not ended, names one of these datastores, or reads what a run has
    written to one of `outputs`."""
    in_run = _names_any("current_run__spec", names) | Q(current_run__source__spec__output__in=outputs)
    return Q(deleted_at=None) & _names_any("spec", names) | Q(current_run__gone=False) & in_run


def _names_any(spec: str, names: Collection[str]) -> Q:
    """Whether a spec names one of these datastores."""
    keys = ("input", "input__datastore", "output", "home")
    return reduce(or_, (Q(**{f"{spec}__{key}__in": names}) for key in keys))


def gpus_held(appcodes: QuerySet[Appcode]) -> portal_hooks.GpuUse:
    """GPUs that pods of `appcodes` hold now, and whether some of them (before there are any: of all there are) are simulated."""
    runs = Run.objects.filter(gone=False, cluster__appcode__in=appcodes.values("pk"))
    found = runs.aggregate(held=Sum("gpu_rate"), clouds=ArrayAgg("cloud", distinct=True))
    simulated = CloudState.objects.filter(simulated__gt=0)
    if found["clouds"]:
        simulated = simulated.filter(name__in=found["clouds"])
    return portal_hooks.GpuUse(found["held"] or 0, simulated=simulated.exists())


def gpu_pool() -> int:
    """All GPUs of all clouds, as they were last seen."""
    return sum(node["gpus"] for state in CloudState.objects.all() for node in state.capacity.get("nodes", []))


def without_end(consumers: Collection[str]) -> set[str]:
    """Of what billing knows by these keys, what goes on until somebody ends it: volumes, buckets, and runs of services without a
    time limit."""
    numbers = {int(key.removeprefix("run ")) for key in consumers if re.fullmatch(r"run \d+", key)}
    services = Run.objects.filter(pk__in=numbers, spec__mode="service", spec__timeLimit=None).only("pk")
    return {key for key in consumers if key.startswith(("volume ", "bucket "))} | {consumer(run) for run in services}


def closed_networks() -> set[str]:
    """What administrators closed to tasks, addresses of nodes and API servers among it: webhooks do not lead there either."""
    found = rows().values_list("kind", "settings")
    return {network for kind, stored in found for network in DRIVERS[kind].closed_networks(stored)}


def find_clusters(user: User, words: str, limit: int) -> list[portal_hooks.Hit]:
    """For the search over everything: the newest clusters that match and that `user` may see."""
    found = Search(text=words).narrow(clusters_for(user)).order_by("-pk")[:limit]
    return [
        portal_hooks.Hit(
            c.name, f"{c.appcode.code} · {c.current_run.phase if c.current_run else 'never deployed'}", cluster_url(c)
        )
        for c in found
    ]


def find_templates(user: User, words: str, limit: int) -> list[portal_hooks.Hit]:
    """The templates of this name that `user` may see."""
    rows = templates_for(user)
    for word in words.split():
        rows = rows.filter(name__icontains=word)
    return [
        portal_hooks.Hit(each.name, each.description, reverse("template", args=[each.whose, each.name]))
        for each in rows.defer("spec").order_by("name")[:limit]
    ]


def find_models(user: User, words: str, limit: int) -> list[portal_hooks.Hit]:
    """The models of this name that `user` may see."""
    rows = models_for(user)
    for word in words.split():
        rows = rows.filter(name__icontains=word)
    return [
        portal_hooks.Hit(each.name, each.appcode.code, reverse("model", args=[each.appcode.code, each.name]))
        for each in rows.order_by("name")[:limit]
    ]


def cluster_url(cluster: Cluster) -> str:
    return reverse("cluster", args=[cluster.appcode.code, cluster.name])
