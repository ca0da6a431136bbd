"""Answers for the lower apps, which may not import this one: uses of a datastore, GPUs held, first steps.

`apps.py` registers the functions once. Each call costs one or two queries, however many rows it covers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import or_

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Q, QuerySet, Sum
from django.db.models.fields.json import KT
from django.urls import reverse

from clusters.catalog.models import Flavor, Image
from clusters.clouds.kinds import DRIVERS
from clusters.clouds.models import Cloud, CloudState
from clusters.clouds.registry import rows
from clusters.cluster.form.starters import is_example
from clusters.manifest.input import input_of
from clusters.runs.models import Cluster, Run
from clusters.runs.status.phase_update import consumer
from datastores import extension_points as datastore_points
from datastores.models import Datastore, Share
from portal import extension_points as portal_points
from portal.extension_points import Picture
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
        written = {spec.get(key) for spec in specs for key in ("output", "home")}
        named = set(written)
        named |= {said.datastore for spec in specs if (said := input_of(spec))}
        if cluster.current_run and not cluster.current_run.gone and cluster.current_run.source:
            named.add(cluster.current_run.source.spec["output"])
        whole = {name if "/" in name else f"{cluster.appcode.code}/{name}" for name in named if name}
        for name in sorted(whole & keys.keys()):
            is_own = name.startswith(f"{cluster.appcode.code}/")
            # Only datastores of its own appcode can be written.
            writes = is_own and bool(written & {name, name.partition("/")[2]})
            use = datastore_points.Use(cluster.name if is_own else str(cluster), cluster_url(cluster), writes)
            found[keys[name]].append(use)
    return found


def steps() -> list[portal_points.Step]:
    return [
        portal_points.Step("Register a cloud", Cloud.objects.filter(enabled=True).exists(), reverse("admin_clouds")),
        portal_points.Step("Offer flavors", Flavor.objects.exists(), reverse("admin_flavors")),
        portal_points.Step("Offer images", Image.objects.exists(), reverse("admin_images")),
    ]


# The newest runs of a person in which first steps are looked for.
LATELY = 100
_TOLD = ("phase", KT("spec__framework"), KT("spec__code"), KT("spec__input"), KT("spec__command"))


def first_hour(user: User) -> list[portal_points.Step]:
    """One query."""
    own = Run.objects.filter(created_by=user).order_by("-phase_since")
    lately = list(own.values_list(*_TOLD)[:LATELY])
    clusters, new = reverse("clusters"), reverse("new_cluster")
    return [
        portal_points.Step(
            "Run an example", any(is_example(run[4] or "") for run in lately), new,
            "Press “Run” on the card “Hello GPU” above the form. It starts in seconds, and costs a cent.",
            (Picture("example", "New cluster: cards with examples, among them Hello GPU, above the form."),),
        ),
        portal_points.Step(
            "Look at a result", any(run[0] == Run.Phase.SUCCEEDED for run in lately), clusters,
            "The page of a run has its numbers, its curve, its files and its cost; Logs has what it printed. On Metrics, "
            "point at a curve for its values and drag to zoom.",
            (
                Picture("result", "A run that succeeded: its loss and accuracy, a curve, its files, and what to do next."),
                Picture("metrics", "Its metrics: two curves, and the values under the pointer."),
            ),
        ),
        portal_points.Step(
            "Open a notebook", any(run[1] == "jupyter" for run in lately), reverse("my_notebook"),
            "“My notebook” on Home shows what it would make the first time; later it starts and opens Jupyter in one "
            "click. Stop it when you are done: an open notebook holds its GPU.",
            (Picture("notebook", "JupyterLab: a cell has trained a model, and what it reads in six pictures is below."),),
        ),
        portal_points.Step(
            "Run your own program", any(run[2] for run in lately), new,
            "Unfold Code, write a file into the form or name a Git repository, and say how it is started. Numbers that it "
            "prints, like “step 3: loss=0.2”, become curves.",
            (Picture("program", "New cluster: the command python train.py, and the file train.py, written into the form."),),
        ),
        portal_points.Step(
            "Bring your data", any(run[3] for run in lately), reverse("datastores"),
            "Open a datastore, like the object storage of your appcode, and drop files. Name it as the input of a cluster: "
            "programs read it at /elearn/input.",
            (Picture("data", "A datastore: a place to drop files, and those that it holds."),),
        ),
    ]  # fmt: skip


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


def cluster_url(cluster: Cluster) -> str:
    return reverse("cluster", args=[cluster.appcode.code, cluster.name])
