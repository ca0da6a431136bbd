"""Opens the output of runs in a notebook: which of an appcode's notebooks can show it, and what that takes.

A notebook mounts the runs that its manifest names, read-only, when it starts. One that runs without them has to be restarted,
which ends what its kernels do, so that needs an explicit request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import quote

from django.db import transaction
from django.db.models import Case, F, IntegerField, Q, Value, When

from clusters.access import clusters_for, clusters_in
from clusters.applications.tensorboard import in_order, lives, of_request
from clusters.catalog.data import runs_named
from clusters.cluster import actions
from clusters.frameworks.jupyter import RUNS, Jupyter
from clusters.gateway import origins
from clusters.manifest.cluster import MAX_RUNS_SHOWN, ClusterManifest
from clusters.runs.models import Cluster
from clusters.runs.status.phase import TERMINAL
from portal.access import OPERATE, appcodes_for, require
from portal.errors import Conflict, Invalid
from portal.models import Appcode, User


@dataclass(frozen=True)
class Choice:
    """A notebook, and what it takes to show the runs in it: nothing, a start, or a restart."""

    cluster: Cluster
    takes: Literal["open", "start", "restart"]


def choices(runs: Sequence[str], appcode: Appcode) -> list[Choice]:
    """The notebooks of the appcode, least effort first. One query."""
    found = []
    for cluster in clusters_in([appcode.pk]).filter(framework=Jupyter.name).order_by("-pk"):
        run = cluster.current_run
        if run is None or run.is_terminal:
            found.append(Choice(cluster, "start"))
        else:
            shown = lives(cluster) and set(runs) <= set(run.spec["runs"])
            found.append(Choice(cluster, "open" if shown else "restart"))
    return sorted(found, key=lambda choice: ("open", "start", "restart").index(choice.takes))


def last_notebook(user: User) -> Cluster | None:
    """The notebook that the user works in: of their own that they may still start, one that runs, else the last that ran. One
    query."""
    own = clusters_for(user).filter(framework=Jupyter.name, created_by=user, appcode__in=appcodes_for(user, OPERATE))
    living = Q(current_run__isnull=False) & ~Q(current_run__phase__in=TERMINAL)
    asleep = Case(When(living, then=Value(0)), default=Value(1), output_field=IntegerField())
    return own.order_by(asleep, F("current_run__created_at").desc(nulls_last=True), "-pk").first()


def open_in_notebook(
    names: Iterable[str], name: str = "", *, restart: bool = False, appcode: Appcode, acting_user: User
) -> Cluster:
    """The notebook `name`, with these runs of the appcode (`train/3`) added; without a name, a live one that shows them
    already. Raises Invalid (also if none does), PermissionDenied, and Conflict if it has to be restarted, unless `restart`."""
    require(acting_user, appcode, OPERATE)
    runs = in_order(names)
    found = choices(runs, appcode)
    chosen = next((each for each in found if each.cluster.name == name if name), None)
    if not name:
        chosen = next((each for each in found if each.takes == "open"), None)
    if chosen is None:
        raise Invalid.at("application", message=_none(name, appcode, found))
    if chosen.takes == "open":
        return chosen.cluster
    if chosen.takes == "restart" and not restart:
        sentence = (
            f"{chosen.cluster.name} runs without them, and has to be ended and started anew; say so by “restart”."
        )
        raise Conflict(sentence)
    return _show(chosen.cluster, runs, acting_user)


def address_in(cluster: Cluster, names: Sequence[str]) -> str:
    """URL where a notebook shows these runs: the folder of all of them; for one run its folder, or the notebook that it ran;
    for none where it starts."""
    start = origins.url(cluster.origins["notebook"])
    if not names:
        return start
    place = f"{start}lab/tree/{RUNS}"
    if len(set(names)) > 1:
        return place
    run = runs_named(names, cluster.appcode).get(names[0])
    ran = run.spec.get("notebook") if run else None
    return "/".join([place, names[0], *([quote(PurePosixPath(ran["path"]).name)] if ran else [])])


@transaction.atomic
def _show(cluster: Cluster, runs: Sequence[str], user: User) -> Cluster:
    """Adds the runs to its definition, in place of those that are gone or were added longest ago, and starts it."""
    before = [name for name in cluster.spec["runs"] if name not in runs]
    there = runs_named(before, cluster.appcode)
    kept = [*(name for name in before if name in there), *runs][-MAX_RUNS_SHOWN:]
    metadata = {"name": cluster.name, "appcode": cluster.appcode.code}
    manifest = ClusterManifest.stored({"metadata": metadata, "spec": {**cluster.spec, "runs": kept}})
    try:
        changed = actions.change_cluster(cluster, manifest, acting_user=user)
        actions.redeploy(changed, acting_user=user)
    except Invalid as invalid:
        raise Invalid([of_request(error) for error in invalid.errors]) from None
    return changed


def _none(name: str, appcode: Appcode, found: Sequence[Choice]) -> str:
    if name:
        return f"{appcode.code} has no notebook “{name}”."
    there = ", ".join(each.cluster.name for each in found[:5])
    makes = "make one by the manifest of an application, with them in its “runs”."
    return (
        f"None shows them now; name one of {there}, or {makes}" if there else f"{appcode.code} has no notebook; {makes}"
    )
