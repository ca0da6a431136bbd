"""TensorBoard of runs, at a click: the one that shows exactly these runs is opened, restarted or created.

Its name is derived from the runs, so two clicks at once create one: the second finds the name taken, by what it wanted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from clusters.applications.actions import create_application
from clusters.applications.manifest import ApplicationManifest, ApplicationSpec, cluster_manifest
from clusters.catalog.lookup import require_active
from clusters.catalog.models import Flavor, Image
from clusters.catalog.software import why_not_in
from clusters.clouds.placement import place_of
from clusters.cluster import actions
from clusters.frameworks.tensorboard import TensorBoard
from clusters.manifest.cluster import MAX_NAME, MAX_RUNS_SHOWN, RUN_NAME, ClusterMetadata, ClusterSpec
from clusters.runs.models import Cluster, Run
from clusters.runs.queries.preview import Cost, cost_of
from portal.access import OPERATE, require
from portal.errors import Conflict, FieldError, Invalid, sentence
from portal.models import Appcode, User

# Minimum for the event files of some runs: starting alone takes two seconds of a core and 440 MiB.
CPU_MILLI, MEMORY_MB = 500, 512
# It ends even if somebody leaves a browser open on it.
TIME_LIMIT = 12 * 3600
# Names that are tried if the first is taken by something else.
NAMES = 9


@dataclass(frozen=True)
class Offer:
    """What a click would do: open `cluster`, or start one for `cost`; or nothing, and why."""

    cluster: Cluster | None = None
    cost: Cost | None = None
    why_not: str = ""


def open_tensorboard(names: Iterable[str], *, appcode: Appcode, acting_user: User) -> tuple[Cluster, bool]:
    """The TensorBoard of these runs of the appcode (`train/3`), and whether it was created now. Raises Invalid if one of them
    cannot be shown, PermissionDenied if the user may not start it, and Conflict while it is ending."""
    runs = in_order(names)
    found = _of(runs, appcode)
    if found and lives(found):
        return found, False
    require(acting_user, appcode, OPERATE)
    if found is None:
        return _make(runs, appcode, acting_user)
    try:
        actions.deploy(found, acting_user=acting_user)
    except Conflict:
        if not ((found := _of(runs, appcode)) and lives(found)):  # otherwise another user has just started it
            raise
    return _of(runs, appcode) or found, False


def offer(names: Iterable[str], *, appcode: Appcode, may_operate: bool) -> Offer:
    """What `open_tensorboard` would do."""
    try:
        runs = in_order(names)
        found = _of(runs, appcode)
        if found and lives(found):
            return Offer(found)
        if not may_operate:
            return Offer(why_not="Nobody has started one, and you may only look here.")
        require_active(appcode)
        name = next(_names(runs))
        spec = ClusterSpec.stored(found.spec) if found else cluster_manifest(_manifest(runs, name, appcode)).spec
        return Offer(cost=cost_of(spec, appcode))
    except Invalid as invalid:
        return Offer(why_not=sentence(invalid))


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, ordered by cluster and number. Raises Invalid for an invalid name, for none and for too many."""
    found = sorted(set(names))
    for name in found:
        if not RUN_NAME.fullmatch(name):
            raise Invalid.at("runs", message=f"“{name[:60]}” is no run; write CLUSTER/NUMBER, for example train/3.")
    if not 0 < len(found) <= MAX_RUNS_SHOWN:
        raise Invalid.at("runs", message=f"Choose from 1 to {MAX_RUNS_SHOWN} runs.")
    return tuple(sorted(found, key=lambda name: (name.partition("/")[0], int(name.partition("/")[2]))))


def _of(runs: tuple[str, ...], appcode: Appcode) -> Cluster | None:
    """The newest that shows exactly these."""
    rows = Cluster.objects.select_related("appcode", "created_by", "current_run").order_by("-pk")
    shown = {"framework": TensorBoard.name, "spec__runs": list(runs)}
    return rows.filter(appcode=appcode, deleted_at=None, **shown).first()


def lives(cluster: Cluster) -> bool:
    run = cluster.current_run
    return run is not None and not run.is_terminal and run.desired != Run.Desired.ENDED and not run.verdict


def _make(runs: tuple[str, ...], appcode: Appcode, user: User) -> tuple[Cluster, bool]:
    for name in _names(runs):
        try:
            return create_application(_manifest(runs, name, appcode), acting_user=user, appcode=appcode), True
        except Invalid as invalid:
            if [error.path for error in invalid.errors] != [("metadata", "name")]:
                raise Invalid([of_request(error) for error in invalid.errors]) from None
            refused = invalid
        if made := _of(runs, appcode):
            return made, False
    raise refused


def of_request(error: FieldError) -> FieldError:
    """The user only chose the runs; the other fields were chosen here."""
    return FieldError(("runs",), error.message) if error.path == ("spec", "runs") else error


def _names(runs: tuple[str, ...]) -> Iterator[str]:
    """`tb-train-3` for one run, `tb-train-3-and-2` for three that begin with it; more names in case these are taken."""
    first = f"tb-{runs[0].replace('/', '-')}{f'-and-{len(runs) - 1}' if runs[1:] else ''}"
    digest = hashlib.sha256(" ".join(runs).encode()).hexdigest()[:6]
    if len(first) <= MAX_NAME:
        yield first
    plain = first[: MAX_NAME - len(digest) - 1].rstrip("-")
    yield f"{plain}-{digest}"
    for number in range(2, NAMES):
        yield f"{plain[: MAX_NAME - len(digest) - 3].rstrip('-')}-{digest}-{number}"


def _manifest(runs: tuple[str, ...], name: str, appcode: Appcode) -> ApplicationManifest:
    """Uses the image of the first run, which wrote the files (or another one, if that image is known to lack TensorBoard), and
    the smallest sufficient flavor. Raises Invalid."""
    cluster, _, number = runs[0].partition("/")
    rows = Run.objects.filter(cluster__appcode=appcode, cluster__deleted_at=None, cluster__name=cluster, number=number)
    image = rows.values_list("spec__image", flat=True).first()
    if image is None:
        raise Invalid.at("runs", message=f"{appcode.code} has no run {runs[0]}.")
    wrote = Image.objects.filter(name=image).first()
    if wrote and why_not_in(wrote, TensorBoard.name):
        having = Image.objects.filter(enabled=True, frameworks__contains=[TensorBoard.name])
        software = place_of(appcode).driver.software
        image = next((each.name for each in having if each.has(software)), image)
    flavors = Flavor.objects.filter(enabled=True, gpus=0, cpu_milli__gte=CPU_MILLI, memory_mb__gte=MEMORY_MB)
    flavor = flavors.order_by("cpu_milli", "memory_mb", "pk").first()
    if flavor is None:
        sentence = (
            f"The catalogue has no flavor without GPUs with at least {CPU_MILLI / 1000:g} CPU and {MEMORY_MB} MiB."
        )
        raise Invalid.at("spec", "flavor", message=sentence)
    return ApplicationManifest(
        metadata=ClusterMetadata(name=name, appcode=appcode.code),
        spec=ApplicationSpec(type=TensorBoard.name, image=image, flavor=flavor.name, runs=runs, time_limit=TIME_LIMIT),
    )
