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
from clusters.models import CloudState, Cluster, Run
from clusters.runs.status import consumer
from clusters.spec.search import Search
from datastores import hooks as datastore_hooks
from datastores.models import Datastore
from portal import hooks as portal_hooks
from portal.models import Appcode, User


def clusters_using(stores: Sequence[Datastore]) -> Mapping[int, list[datastore_hooks.Use]]:
    """Living clusters whose definition, or whose run that has not ended, names one of `stores`."""
    names = [store.name for store in stores]
    in_definition = _names_any("spec", names)
    in_run = Q(current_run__gone=False) & (
        _names_any("current_run__spec", names) | Q(current_run__source__spec__output__in=names)
    )
    clusters = Cluster.objects.filter(
        Q(deleted_at=None) & in_definition | in_run, appcode__in={s.appcode_id for s in stores}
    )
    found: dict[int, list[datastore_hooks.Use]] = {store.pk: [] for store in stores}
    keys = {(store.appcode_id, store.name): store.pk for store in stores}
    for cluster in clusters.select_related("appcode", "current_run__source"):
        specs = [cluster.spec] if cluster.deleted_at is None else []
        if cluster.current_run and not cluster.current_run.gone:
            specs.append(cluster.current_run.spec)
        named = {spec.get(key) for spec in specs for key in ("output", "home")}
        named |= {said.datastore for spec in specs if (said := input_of(spec))}
        if cluster.current_run and not cluster.current_run.gone and cluster.current_run.source:
            named.add(cluster.current_run.source.spec["output"])
        for name in sorted(name for name in named if name):
            if (cluster.appcode_id, name) in keys:
                found[keys[cluster.appcode_id, name]].append(datastore_hooks.Use(cluster.name, cluster_url(cluster)))
    return found


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
    """Of what billing knows by these keys, what goes on until somebody ends it: volumes, and runs of services without a time
    limit."""
    numbers = {int(key.removeprefix("run ")) for key in consumers if re.fullmatch(r"run \d+", key)}
    services = Run.objects.filter(pk__in=numbers, spec__mode="service", spec__timeLimit=None).only("pk")
    return {key for key in consumers if key.startswith("volume ")} | {consumer(run) for run in services}


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


def cluster_url(cluster: Cluster) -> str:
    return reverse("cluster", args=[cluster.appcode.code, cluster.name])
