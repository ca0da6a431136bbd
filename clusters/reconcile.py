"""The loop from what is wanted to what the cloud is told: claim → plan → tell the cloud → record. It can die at any line.

A claim is a conditional UPDATE with a token and an end: whoever holds it works outside any transaction, and writes back only
while the token is still theirs. Telling the cloud is repeatable, so a worker that dies after telling and before recording
is followed by one that tells again. What is left undone is found by `sweep`, which is the only thing that may not be lost.
"""

from __future__ import annotations

import datetime as dt
import logging
import uuid

from django.db import transaction
from django.db.models import Q, QuerySet, Sum

from clusters import tasks
from clusters.actions import end_by_portal
from clusters.admission import Quota, judge_quota
from clusters.catalogue import resolve
from clusters.clouds.base import (
    CloudError,
    CloudRefused,
    ImageRef,
    LocalSource,
    Mount,
    NfsSource,
    Plan,
    RunRef,
    S3Source,
    Source,
)
from clusters.clouds.registry import cloud
from clusters.models import Cluster, Run
from clusters.observe import refresh
from clusters.plans import INPUT_PATH, OUTPUT_PATH, Resources, build_plan, output_folder
from clusters.specs import ClusterSpec
from datastores.models import Datastore
from datastores.sources import SourceError, source_for
from portal.errors import Invalid
from portal.models import Appcode, OrgNode

log = logging.getLogger(__name__)

CLAIM = dt.timedelta(seconds=60)
# A cloud that was asked to end a run and has not said so: ask again.
ASK_AGAIN = dt.timedelta(seconds=30)
SWEEP_LIMIT = 500


def reconcile(run_id: int) -> None:
    """Moves one run as far as it can go now. Does nothing while another worker holds it: that one looks again at its end."""
    token = uuid.uuid4()
    while _claim(run_id, token):
        try:
            _step(run_id, token)
        except CloudError as error:
            # The claim is kept until it runs out: that is the back-off, and the sweep comes back for it.
            _note_trouble(run_id, token, error)
            return
        if not _release(run_id, token):
            return


def unsettled(at: dt.datetime) -> Q:
    """Runs of which the cloud has not yet been told what is wanted."""
    to_start = Q(desired="running", verdict="", applied_at=None, refusal="") & (
        Q(not_before=None) | Q(not_before__lte=at)
    )
    to_end = (Q(desired="ended") | ~Q(verdict="") | ~Q(refusal="")) & (
        Q(release_asked_at=None) | Q(release_asked_at__lt=at - ASK_AGAIN)
    )
    return Q(gone=False) & (to_start | to_end)


def _claim(run_id: int, token: uuid.UUID) -> bool:
    at = tasks.now()
    free = Q(claimed_until=None) | Q(claimed_until__lt=at)
    rows = Run.objects.filter(unsettled(at), free, pk=run_id)
    return rows.update(claim_token=token, claimed_until=at + CLAIM) == 1


def _release(run_id: int, token: uuid.UUID) -> bool:
    """Gives the claim back. True when it was still ours and the run may need another step (its wants changed meanwhile)."""
    return Run.objects.filter(pk=run_id, claim_token=token).update(claim_token=None, claimed_until=None) == 1


def _note_trouble(run_id: int, token: uuid.UUID, error: CloudError) -> None:
    log.warning("run %s: the cloud cannot do it now: %s", run_id, error)
    retry_at = tasks.now() + dt.timedelta(seconds=5)
    Run.objects.filter(pk=run_id, claim_token=token).update(
        claim_token=None, claimed_until=retry_at, message=f"The cloud cannot be reached and is tried again: {error}"
    )


def _step(run_id: int, token: uuid.UUID) -> None:
    run = Run.objects.select_related("cluster__appcode__org_node").get(pk=run_id)
    if run.desired == Run.Desired.ENDED or run.verdict or run.refusal:
        cloud().delete(run_ref(run))
        Run.objects.filter(pk=run_id, claim_token=token).update(release_asked_at=tasks.now())
        return
    if run.admitted_at is None and not _admit(run_id):
        # It stays unsettled; holding the claim for a moment keeps this loop from spinning.
        Run.objects.filter(pk=run_id, claim_token=token).update(
            claim_token=None, claimed_until=tasks.now() + dt.timedelta(seconds=2)
        )
        return
    try:
        cloud().apply(plan_of(run))
    except (CloudRefused, Invalid, SourceError) as refusal:
        _refuse(run_id, token, str(refusal))
        return
    Run.objects.filter(pk=run_id, claim_token=token).update(applied_at=tasks.now())


@transaction.atomic
def _admit(run_id: int) -> bool:
    """Counts the run against the quota of its appcode, or notes what it waits for. Locks the appcode: one at a time."""
    appcode = Appcode.objects.select_for_update(of=("self",), no_key=True).get(clusters__runs=run_id)
    run = Run.objects.select_for_update(of=("self",), no_key=True).select_related("cluster__appcode").get(pk=run_id)
    held = (
        Run.objects.filter(cluster__appcode=appcode, gone=False, admitted_at__isnull=False).aggregate(n=Sum("gpus"))[
            "n"
        ]
        or 0
    )
    older = [n for n in waiting(appcode.pk).filter(pk__lt=run_id).values_list("gpus", flat=True) if n]
    judgement = judge_quota(run.gpus, Quota(appcode.code, appcode.gpu_quota, held, older))
    admitted = judgement.fits == "now"
    changed = (run.wait_reason, run.wait_message) != (judgement.reason, judgement.message)
    run.wait_reason, run.wait_message = judgement.reason, judgement.message
    if admitted:
        run.admitted_at = tasks.now()
    run.save(update_fields=["wait_reason", "wait_message", "admitted_at"])
    if changed:
        refresh([run], tasks.now())
    return admitted


@transaction.atomic
def _refuse(run_id: int, token: uuid.UUID, why: str) -> None:
    run = Run.objects.select_for_update(of=("self",), no_key=True).select_related("cluster__appcode").get(pk=run_id)
    if run.claim_token == token:
        run.refusal = why
        run.save(update_fields=["refusal"])
        refresh([run], tasks.now())


def waiting(appcode_id: int) -> QuerySet[Run]:
    """Runs of an appcode that the quota holds back, oldest first."""
    return Run.objects.filter(
        cluster__appcode=appcode_id, admitted_at=None, desired="running", verdict="", refusal="", gone=False
    ).order_by("pk")


def waiting_runs(appcode_id: int) -> list[int]:
    ids = list(waiting(appcode_id).values_list("pk", flat=True)[:20])
    # They may be in the short pause between two looks; what was freed is worth a look now.
    Run.objects.filter(pk__in=ids, claim_token=None).update(claimed_until=None)
    return ids


def run_ref(run: Run) -> RunRef:
    appcode = run.cluster.appcode
    paths = appcode.org_node.ancestors_and_self
    namespaces = dict(OrgNode.objects.filter(path__in=paths, namespace__isnull=False).values_list("path", "namespace"))
    namespace = next((namespaces[path] for path in reversed(paths) if path in namespaces), "default")
    return RunRef(run.pk, namespace or "default", appcode.code, run.cluster.name, run.number)


def plan_of(run: Run) -> Plan:
    """The plan of a run as it was submitted. Raises Invalid when something it names is gone, CloudError from `reserve`."""
    spec = ClusterSpec.model_validate(run.spec)
    resolved = resolve(spec, run.cluster.appcode)
    ref = run_ref(run)
    folder = output_folder(spec.output_path, name=run.cluster.name, run=run.number)
    mounts = []
    if resolved.input:
        mounts.append(Mount(INPUT_PATH, True, mount_source(resolved.input, "")))
    if resolved.output:
        mounts.append(Mount(OUTPUT_PATH, False, mount_source(resolved.output, folder)))
    image = resolved.image
    return build_plan(
        ref,
        spec,
        image=ImageRef(image.name, image.container, image.environment, image.program),
        resources={role: Resources(**facts) for role, facts in run.resources.items()},
        mounts=tuple(mounts),
        addresses=cloud().reserve(ref, {role: each.count for role, each in spec.active_roles.items()}),
    )


def mount_source(store: Datastore, folder: str) -> Source:
    """What the cloud needs to mount `folder` of a datastore. Raises SourceError when it cannot be mounted any more."""
    source = source_for(store, folder)
    if source.kind == "s3":
        return S3Source(**source.fields, secret_key=source.secret)
    return NfsSource(**source.fields) if source.kind == "nfs" else LocalSource(**source.fields)


def purge(cluster_id: int) -> None:
    """Removes the logs of a deleted cluster. Nothing happens while one of its runs is not gone: the sweep comes again."""
    cluster = Cluster.objects.filter(pk=cluster_id, deleted_at__isnull=False, purged=False).first()
    if cluster is None or cluster.runs.filter(gone=False).exists():
        return
    for run in cluster.runs.select_related("cluster__appcode__org_node"):
        cloud().purge(run_ref(run))
    Cluster.objects.filter(pk=cluster_id).update(purged=True)


def sweep() -> None:
    """Finds what wake-ups lost: unsettled runs, runs past their time limit, deleted clusters whose logs are left."""
    at = tasks.now()
    for run_id in Run.objects.filter(deadline__lt=at, desired="running", verdict="").values_list("pk", flat=True)[
        :SWEEP_LIMIT
    ]:
        _end_overdue(run_id)
    free = Q(claimed_until=None) | Q(claimed_until__lt=at)
    for run_id in Run.objects.filter(unsettled(at), free).values_list("pk", flat=True).order_by("pk")[:SWEEP_LIMIT]:
        tasks.wake(run_id)
    dead = Cluster.objects.filter(deleted_at__isnull=False, purged=False)
    for cluster_id in dead.values_list("pk", flat=True).order_by("pk")[:SWEEP_LIMIT]:
        tasks.wake_purge(cluster_id)


@transaction.atomic
def _end_overdue(run_id: int) -> None:
    run = Run.objects.select_for_update(of=("self",), no_key=True).select_related("cluster__appcode").get(pk=run_id)
    if run.desired == Run.Desired.RUNNING and not run.verdict:
        minutes = run.spec["timeLimit"] // 60
        end_by_portal(run, "TimeLimit", f"It reached its time limit of {minutes} minutes.")
