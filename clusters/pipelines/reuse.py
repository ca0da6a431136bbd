"""Decides whether a stage would repeat its last succeeded run. Then that run is reused.

The idea: a run is the same as an earlier one if its spec is equal, including everything that is resolved at the start (the run
whose output it reads, versions of its environment), if its input files equal those noted then, and if its output is still
complete. Whatever cannot be checked counts as different. User-supplied servers are queried here, outside any transaction.
"""

from __future__ import annotations

import logging
import time

from clusters.catalog.folders import output_folder
from clusters.catalog.lookup import Resolved, resolve
from clusters.clouds.drivers.base import CloudError
from clusters.cluster.actions import settled
from clusters.manifest.cluster import ClusterSpec
from clusters.pipelines.graph import RUNNING, SUCCEEDED, WAITING, before, layers
from clusters.pipelines.manifest import PipelineSpec, cluster_name, part_of, reading
from clusters.pipelines.models import PipelineRun, StageRun
from clusters.runs.code import commit_of
from clusters.runs.input_listing import lies_there
from clusters.runs.models import Cluster, Run
from datastores.drivers.base import DriverError
from datastores.drivers.patience import within
from datastores.models import Datastore
from portal.errors import Invalid
from portal.models import Appcode

log = logging.getLogger(__name__)

# Maximum seconds for a store to list what a run read or wrote, and for all stages together.
SECONDS, ALL_SECONDS = 20.0, 60.0


def unchanged(run: PipelineRun, spec: PipelineSpec, latest: dict[str, StageRun]) -> dict[str, Run]:
    """The waiting stages that need not run again, each with the run to reuse. Raises nothing."""
    if run.fresh:
        return {}
    appcode = run.pipeline.appcode
    name = run.pipeline.name
    clusters = Cluster.objects.filter(appcode=appcode, part_of=part_of(name), deleted_at=None)
    by_name = {cluster.name: cluster for cluster in clusters.defer("spec")}
    stages, nodes = {stage.name: stage for stage in spec.stages}, {node.name: node for node in spec.nodes}
    # Stages behind these are checked once these have ended, as they may write what is read.
    under_way = {each for each, row in latest.items() if row.phase == RUNNING and not row.has_ended}
    until = time.monotonic() + ALL_SECONDS
    found: dict[str, Run] = {}
    sources: dict[str, Run] = {}
    for each in (each for column in layers(spec.nodes) for each in column):
        row, node = latest[each], nodes[each]
        if row.phase == SUCCEEDED and row.run:
            sources[each] = row.run
        cluster = by_name.get(cluster_name(name, each))
        spec_of = stages[each].spec
        if spec_of is None or row.phase != WAITING or row.attempt > 1 or cluster is None:
            continue  # sweeps, and stages that train their best trial, are never reused
        if node.source and node.source not in sources:
            continue
        if not _may_be(stages[each].when, spec_of) or under_way & before(each, spec.nodes):
            continue
        source = sources[node.source].number if node.source else None
        with within(until - time.monotonic()):
            same = _same(cluster, reading(spec_of, name, node, source), appcode, newest=run.newest)
        if same:
            found[each] = sources[each] = same
    return found


def _may_be(when: str, spec: ClusterSpec) -> bool:
    """A stage without output has nothing to reuse: it notifies somebody or changes something elsewhere. A stage that starts
    after a failure, or always, depends on how the others ended this time."""
    return when == "succeeded" and spec.output is not None


def _same(cluster: Cluster, spec: ClusterSpec, appcode: Appcode, *, newest: bool) -> Run | None:
    """The cluster's last succeeded run, if a run of `spec` would repeat it."""
    last = cluster.runs.filter(phase=Run.Phase.SUCCEEDED).select_related("cluster__appcode").first()
    if last is None:
        return None
    try:
        resolved = resolve(spec, appcode)
    except Invalid:
        return None
    if last.spec != {**spec.model_dump(mode="json", by_alias=True), **settled(resolved)}:
        return None
    try:
        is_same = _reads_the_same(last, resolved) and _has_written(last, resolved.output)
        if is_same and newest and spec.code and spec.code.git:
            is_same = commit_of(last, spec.code) == last.code.get("commit")
    except (DriverError, CloudError) as error:
        log.info("run %s: whether it would be the same again cannot be told: %s", last.pk, error)
        return None
    return last if is_same else None


def _reads_the_same(last: Run, resolved: Resolved) -> bool:
    """Another run's output counts as the same if the spec names the same run."""
    if resolved.input is None or resolved.input.run:
        return True
    digest = last.read.get("digest")
    return digest is not None and lies_there(resolved.input.store, resolved.input.folder, digest, SECONDS)


def _has_written(last: Run, store: Datastore | None) -> bool:
    digest = (last.wrote or {}).get("digest")
    folder = output_folder(last.spec["outputPath"], name=last.cluster.name, run=last.number)
    return store is not None and digest is not None and lies_there(store, folder, digest, SECONDS)
