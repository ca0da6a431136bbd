"""The loop that brings the desired state of a run to its cloud: claim → plan → call the cloud → record. It may die at any line.

A claim is a conditional UPDATE with a token and an expiry. Its holder works outside any transaction, renews it in long steps,
and writes back only while it holds the token. Calls to the cloud are repeatable: if a worker dies between call and record, the
next one calls again. `resync` finds whatever is left undone; it is the only part that must not be lost.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from django.db import DatabaseError, connection, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.crypto import salted_hmac

from clusters.catalog.data import why_frozen
from clusters.catalog.folders import output_folder
from clusters.catalog.locks import PLUGINS, REQUIREMENTS, together
from clusters.catalog.lookup import needs
from clusters.clouds.bulkhead import PutOff, lane
from clusters.clouds.drivers.base import (
    CloudError,
    CloudRefused,
    ImageRef,
    KeepsLogs,
    LocalSource,
    Mount,
    NfsSource,
    NotOurs,
    Plan,
    S3Source,
    Source,
    VolumeSource,
)
from clusters.clouds.drivers.base import Environment as PlannedEnvironment
from clusters.clouds.registry import cloud_names, cloud_of, gang, run_ref
from clusters.environments.models import Environment, Plugin
from clusters.events import run_event
from clusters.frameworks import FRAMEWORKS
from clusters.frameworks.base import Resources
from clusters.frameworks.programs import text
from clusters.gateway.origins import url
from clusters.logs import collect
from clusters.manifest.cluster import ClusterSpec
from clusters.manifest.code import code_of
from clusters.model_registry.models import ModelVersion
from clusters.pull_secrets.actions import registries_of
from clusters.runs import quota
from clusters.runs.code import NotYet, commit_of, planned
from clusters.runs.models import Cluster, Run
from clusters.runs.placing import places
from clusters.runs.plan import HOME_PATH, INPUT_PATH, OUTPUT_PATH, RUNS_PATH, build_plan, model_folder
from clusters.runs.status import history
from clusters.runs.status.phase_update import refresh
from clusters.runs.tracking_token import token_for
from clusters.volumes import lifecycle
from clusters.wakeups import wake
from datastores.models import Datastore
from datastores.sources import SourceError, source_for
from datastores.storage.place import is_own
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Invalid, sentence
from portal.events import record_all
from portal.text.words import readable

log = logging.getLogger(__name__)

# Time until another worker may take over from a dead one; maximum time for which a hanging step keeps its claim.
CLAIM, LONGEST_STEP = dt.timedelta(seconds=15), dt.timedelta(minutes=3)
# Interval between requests to end a run while the cloud has not confirmed the end.
ASK_AGAIN = dt.timedelta(seconds=30)
# Pauses before a retry after trouble: the cloud's, or a bug of ours, for which there should be time to read the log.
CLOUD_PAUSE = dt.timedelta(seconds=5)
OWN_PAUSE = dt.timedelta(seconds=30)
LONGEST_PAUSE = dt.timedelta(minutes=1)
TROUBLE = "CloudUnreachable"
# Maximum GiB copied from a bucket of another run's output that is only shown.
SHOWN_GIB = 20
INSTALL = text("install.py")


class _Unplaced(Exception):
    """The run has no places yet."""


def reconcile(run_id: int) -> str:
    """Moves one run as far as it can go now. Does nothing while another worker holds it; that worker checks again at its end.
    Returns the cloud on which it has begun to wait for places, or ""."""
    token = uuid.uuid4()
    while _claim(run_id, token):
        run = Run.objects.select_related("cluster__appcode", "source__cluster").get(pk=run_id)
        try:
            with _kept(run_id, token):
                is_held = _step(run, token)
        except _Unplaced:
            return run.cloud if _waits_for_place(run_id, token) else ""
        except PutOff as error:
            _pause(run, token, str(error), CLOUD_PAUSE, is_news=False)
            return ""
        except NotYet as error:
            _pause(run, token, f"{error} It is asked again.", OWN_PAUSE)
            return ""
        except CloudError as error:
            why = readable(str(error))
            log.warning("run %s: the cloud cannot do it now: %s", run_id, why)
            pause = min(max(CLOUD_PAUSE, dt.timedelta(seconds=error.after or 0)), LONGEST_PAUSE)
            _pause(run, token, f"The cloud cannot do it now and is asked again: {why}", pause)
            return ""
        except Exception as error:
            kind = type(error).__name__
            _pause(run, token, f"The portal failed ({kind}; its log says more) and tries again.", OWN_PAUSE)
            raise
        if not is_held or not _release(run_id, token):
            break
    return ""


def unsettled(at: dt.datetime) -> Q:
    """Runs whose desired state the cloud has not been sent yet, except those that the portal itself holds back."""
    to_start = (
        Q(desired="running", verdict="", applied_at=None, refusal="")
        & (Q(not_before=None) | Q(not_before__lte=at))
        & (Q(admitted_at__isnull=False) | ~Q(wait_reason__in=quota.HELD))
        & (Q(admitted_at=None) | Q(placed_at__isnull=False) | ~Q(wait_reason__in=places.HELD))
    )
    to_end = (Q(desired="ended") | ~Q(verdict="") | ~Q(refusal="") | Q(given_back_at__isnull=False)) & (
        Q(release_asked_at=None) | Q(release_asked_at__lt=at - ASK_AGAIN)
    )
    return Q(gone=False) & (to_start | to_end)


def _claim(run_id: int, token: uuid.UUID) -> bool:
    at = timezone.now()
    free = Q(claimed_until=None) | Q(claimed_until__lt=at)
    rows = Run.objects.filter(unsettled(at), free, pk=run_id)
    return rows.update(claim_token=token, claimed_until=at + CLAIM) == 1


@contextmanager
def _kept(run_id: int, token: uuid.UUID) -> Iterator[None]:
    """Renews the claim during a step. A step of usual length costs no query."""
    done, end = threading.Event(), time.monotonic() + LONGEST_STEP.total_seconds()

    def renew() -> None:
        try:
            while not done.wait(CLAIM.total_seconds() / 3) and time.monotonic() < end:
                until = timezone.now() + CLAIM
                Run.objects.filter(pk=run_id, claim_token=token).update(claimed_until=until)
        except DatabaseError as error:
            log.warning("run %s: its claim is not renewed: %s", run_id, error)
        finally:
            connection.close()

    thread = threading.Thread(target=renew, name=f"claim-{run_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _release(run_id: int, token: uuid.UUID) -> bool:
    """Gives the claim back. True if it was still ours, so the run may need another step (its desired state may have changed)."""
    return Run.objects.filter(pk=run_id, claim_token=token).update(claim_token=None, claimed_until=None) == 1


@transaction.atomic
def _pause(was: Run, token: uuid.UUID, why: str, pause: dt.timedelta, *, is_news: bool = True) -> None:
    """Gives the claim back, but keeps the run from being claimed for `pause`, and shows users what it waits for. Without
    `is_news`, a message about trouble with the cloud that is already shown stays. `was` is the run as this worker loaded it."""
    run = _ours(was.pk, token)
    if run is None:
        return
    run.claim_token, run.claimed_until = None, timezone.now() + pause
    if _is_to_end(run) and not _is_to_end(was):
        # The request to end it came while we held the claim, so its wake-up did nothing. The pause was meant for the start.
        run.claimed_until = None
        transaction.on_commit(lambda: wake(run.pk))
    run.save(update_fields=["claim_token", "claimed_until"])
    if is_news or run.wait_reason != TROUBLE:
        _wait(run, TROUBLE, readable(why))


def _is_to_end(run: Run) -> bool:
    return run.desired == Run.Desired.ENDED or bool(run.verdict or run.refusal)


def _step(run: Run, token: uuid.UUID) -> bool:
    """Makes one step. Returns whether the claim is still held after it."""
    run_id = run.pk
    if _is_to_end(run):
        if collect.is_wanted(run.cloud) and _waits_for_logs(run_id, token):
            return False
        # Skipped for a run that a user ends: its tasks are alive, or the cloud finds out itself.
        ended_itself = run.desired == Run.Desired.RUNNING and run.tasks.exists()
        over = ended_itself and not run.tasks.filter(phase__in=["Pending", "Running"]).exists()
        try:
            with lane(run.cloud):
                cloud_of(run).delete(run_ref(run), over=over)
        except NotOurs:
            _never_there(run_id, token)
        else:
            return _told(run_id, token, "release_asked_at")
    elif run.given_back_at is not None:
        with lane(run.cloud):
            cloud_of(run).delete(run_ref(run))
        return _told(run_id, token, "release_asked_at")
    elif run.admitted_at is not None or quota.admit(run_id):
        try:
            if not _commit_kept(run, token):
                return False
            plan = plan_of(run)
            if places.needs_place(run):
                # Only now: no room is kept for a run that cannot start for other reasons, such as a volume that another one has.
                raise _Unplaced
            with lane(run.cloud):
                cloud_of(run).apply(plan)
        except Invalid as refusal:
            _refuse(run_id, token, sentence(refusal))
        except (CloudRefused, SourceError) as refusal:
            _refuse(run_id, token, str(refusal))
        else:
            lifecycle.told(plan)
            return _told(run_id, token, "applied_at")
    return True


def _commit_kept(run: Run, token: uuid.UUID) -> bool:
    """Resolves and stores the commit of the run's code, if it needs one. Returns whether the claim is still held."""
    code = code_of(run.spec)
    if code is None or code.git is None or run.code:
        return True
    run.code = {"commit": commit_of(run, code)}
    return Run.objects.filter(pk=run.pk, claim_token=token).update(code=run.code) == 1


@transaction.atomic
def _waits_for_logs(run_id: int, token: uuid.UUID) -> bool:
    """Whether the run's logs have to be opened before its end; then the claim is given back. The run is woken when the logs are
    open, or by the sweep if no worker opens them.

    Runs under the lock of the run's row, claim included: the worker that opens the logs wakes a run that is not claimed. If the
    run were still claimed then, it would have to wait for the sweep.
    """
    run = _ours(run_id, token)
    if run is None:
        return True
    if not collect.prepare(run):
        return False
    run.claim_token, run.claimed_until = None, timezone.now() + collect.PREPARE
    run.save(update_fields=["claim_token", "claimed_until"])
    return True


@transaction.atomic
def _waits_for_place(run_id: int, token: uuid.UUID) -> bool:
    """Gives the claim back until the run has its places. Returns whether it was still held."""
    run = _ours(run_id, token)
    if run is None:
        return False
    run.claim_token = run.claimed_until = None
    run.save(update_fields=["claim_token", "claimed_until"])
    _wait(run, *places.wait(run))
    return True


@transaction.atomic
def _told(run_id: int, token: uuid.UUID, field: str) -> bool:
    """Records that the cloud was called, which ends any trouble with it. Gives the claim back, unless the run was started but
    is to end by now, which the cloud is sent next. Returns whether the claim is still held."""
    run = _ours(run_id, token)
    if run is None:
        return False
    is_held = field == "applied_at" and _is_to_end(run)
    setattr(run, field, timezone.now())
    if not is_held:
        run.claim_token = run.claimed_until = None
    run.save(update_fields=[field, "claim_token", "claimed_until"])
    if run.wait_reason == TROUBLE:
        _wait(run, "", "")
    log.info("run %s: the cloud was told to %s it", run_id, "start" if field == "applied_at" else "end")
    return is_held


@transaction.atomic
def _never_there(run_id: int, token: uuid.UUID) -> None:
    """Marks a run gone whose place in the cloud belongs to somebody else: it was never created there, so nothing is left."""
    run = _ours(run_id, token)
    if run is not None:
        run.release_asked_at, run.gone = timezone.now(), True
        run.save(update_fields=["release_asked_at", "gone"])
        refresh([run], timezone.now())


def _ours(run_id: int, token: uuid.UUID) -> Run | None:
    """The locked row while the claim is ours; None if it expired and another worker took it."""
    rows = Run.objects.select_for_update(of=("self",), no_key=True).select_related("cluster__appcode")
    return rows.filter(pk=run_id, claim_token=token).first()


def _wait(run: Run, reason: str, message: str) -> None:
    if (run.wait_reason, run.wait_message) != (reason, message):
        run.wait_reason, run.wait_message = reason, message
        run.wait_code, run.wait_values = history.of_wait(reason, message)
        refresh([run], timezone.now(), unsaved=["wait_reason", "wait_message"])


@transaction.atomic
def _refuse(run_id: int, token: uuid.UUID, why: str) -> None:
    run = _ours(run_id, token)
    if run is None:
        return
    why = readable(why) or "The cloud refused it and did not say why."
    if run.tasks.exists():
        # It was started before and is only being re-applied: it goes on as it is.
        run.applied_at = timezone.now()
        run.save(update_fields=["applied_at"])
        sentence = f"It differs from what was submitted and could not be put right; it goes on as it is: {why}"
        record_all([run_event("run.not_put_right", run, sentence)])
        if run.wait_reason == TROUBLE:
            _wait(run, "", "")
    else:
        run.refusal = why
        run.save(update_fields=["refusal"])
        refresh([run], timezone.now())


def plan_of(run: Run) -> Plan:
    """The plan of a run as it was submitted. Raises Invalid if something that it names is gone, SourceError if a datastore
    cannot be mounted, and CloudError from `reserve` or while another run has its volume."""
    spec = ClusterSpec.stored(run.spec)
    found = needs(spec, run.cluster.appcode, run.cloud, run.namespace, run.source)
    ref = run_ref(run)
    folder = output_folder(spec.output_path, name=run.cluster.name, run=run.number)
    mounts = []
    if found.input:
        source = mount_source(run, found.input.store, found.input.folder)
        readers = FRAMEWORKS[spec.framework].readers(spec)
        mode = spec.input.mode if spec.input else ""
        parts = sum(spec.count(role) for role in readers) if mode == "shard" else 0
        fold, folds = (spec.input.fold or 0, spec.input.folds or 0) if spec.input else (0, 0)
        version = found.input.version
        asked, digest = (str(version), version.digest) if version else ("", "")
        mounts.append(
            Mount(
                INPUT_PATH,
                True,
                source,
                parts=parts,
                fold=fold,
                folds=folds,
                version=asked,
                digest=digest,
                cached=mode == "cache" or (mode == "auto" and version is not None and isinstance(source, S3Source)),
                or_copied=mode == "auto",
                disk_bytes=version.disk_bytes if version else 0,
                stream_key=_stream_key(run) if mode == "stream" else "",
            )
        )
    if found.model:
        version = found.model.frozen
        assert version is not None
        mounts.append(
            Mount(
                model_folder(spec),
                True,
                mount_source(run, version.datastore, version.folder),
                version=str(found.model),
                digest="" if found.input else version.digest,
                beside=found.input is not None,
            )
        )
    if found.output:
        if why := why_frozen(found.output, folder):
            raise SourceError(why)
        mounts.append(Mount(OUTPUT_PATH, False, mount_source(run, found.output, folder)))
    if found.home:
        mounts.append(Mount(HOME_PATH, False, mount_source(run, found.home, "")))
    for shown in found.runs:
        folder = output_folder(shown.run.spec["outputPath"], name=shown.run.cluster.name, run=shown.run.number)
        source = mount_source(run, shown.store, folder)
        follow = FRAMEWORKS[spec.framework].shows_runs == "events"
        mounts.append(Mount(f"{RUNS_PATH}/{shown.name}", True, source, follow=follow, shown_gib=SHOWN_GIB))
    # Independent tasks get no addresses: thousands would use up the ports of a machine.
    are_apart = FRAMEWORKS[spec.framework].is_independent
    counts: dict[str, int] = {role: 0 if are_apart else each.count for role, each in spec.active_roles.items()}
    cloud = cloud_of(run)
    with lane(run.cloud) if cloud.asks_for_addresses else nullcontext():
        addresses = cloud.reserve(ref, counts)
    image = found.image
    plan = build_plan(
        ref,
        spec,
        image=ImageRef(image.name, image.container, image.environment, image.program),
        resources={role: Resources(**facts) for role, facts in run.resources.items()},
        mounts=tuple(mounts),
        addresses=addresses,
        origins={name: url(origin).rstrip("/") for name, origin in run.cluster.origins.items()},
        environment=_planned(spec, found.environment, found.plugins),
        code=planned(run, spec.code),
        model=_about(found.model, model_folder(spec)) if found.model else {},
        proof=run.cluster.proof,
    )
    plan = replace(plan, tracking_token=token_for(run.pk, spec.env))
    if run.placed_at is not None and not are_apart:
        plan = replace(plan, gang=gang(run.cloud))
    # The portal does not know which nodes reach a volume, such as a disk of one zone.
    if run.placed_at is not None and not any(isinstance(mount.source, VolumeSource) for mount in mounts):
        roles = tuple(replace(role, nodes=places.nodes_of(run, role.role)) for role in plan.roles)
        plan = replace(plan, roles=roles)
    return replace(plan, registries=registries_of(run.namespace)) if cloud.software == "container" else plan


def _about(version: ModelVersion, folder: str) -> dict[str, str]:
    """Environment variables that describe the model in `folder` to tasks."""
    # In UTF-8, which its size limit refers to. Escaped to ASCII, it could exceed what a program accepts.
    sample = json.dumps(version.sample, ensure_ascii=False, separators=(",", ":")) if version.sample is not None else ""
    return {
        "PORTAL_MODEL": folder,
        "PORTAL_MODEL_NAME": version.model.name,
        "PORTAL_MODEL_VERSION": str(version.number),
        "PORTAL_MODEL_FORMAT": version.format,
        **({"PORTAL_MODEL_SAMPLE": sample} if sample else {}),
    }


def _stream_key(run: Run) -> str:
    """The key of a run, always the same. It cannot be derived from what a run can see."""
    return salted_hmac("clusters.stream", str(run.pk), algorithm="sha256").hexdigest()


def _planned(spec: ClusterSpec, saved: Environment | None, plugins: Sequence[Plugin]) -> PlannedEnvironment | None:
    """The environment to build, None without one. Clouds know only one per run, so plugins are a layer of it."""
    if spec.requirements:
        lock = REQUIREMENTS + "".join(f"{each}\n" for each in spec.required)
        digest = hashlib.sha256(f"{spec.image}\n{lock}".encode()).hexdigest()
        return PlannedEnvironment("of its requirements", digest, lock, "", INSTALL)
    if saved is None and not plugins:
        return None
    own = (saved.digest, saved.lock, saved.script) if saved else ("", "", "")
    if not plugins:
        return PlannedEnvironment(str(saved), *own, INSTALL)
    parts: list[Environment | Plugin] = [*([saved] if saved else []), *sorted(plugins, key=str)]
    lock = own[1] + PLUGINS + together({str(each): each.lock for each in plugins})
    digest = hashlib.sha256("\n".join(each.digest for each in parts).encode()).hexdigest()
    return PlannedEnvironment(" + ".join(map(str, parts)), digest, lock, own[2], INSTALL)


def mount_source(run: Run, store: Datastore, folder: str) -> Source:
    """The source from which the cloud mounts `folder` of a datastore. Raises SourceError if it cannot be mounted any more, and
    CloudError while another run has it."""
    if store.kind == Datastore.Kind.VOLUME:
        return lifecycle.source_for_run(run, store, folder)
    source = source_for(store, folder)
    if source.kind == "s3":
        return S3Source(**source.fields, secret_key=source.secret, own=is_own(source.fields["endpoint"]))
    return NfsSource(**source.fields) if source.kind == "nfs" else LocalSource(**source.fields)


def purge(cluster_id: int) -> None:
    """Deletes the logs of a deleted cluster. Does nothing while one of its runs still exists, or while another cluster is being
    purged; the sweep retries. So an unreachable archive or cloud blocks one worker thread at most, and no run waits for it.

    The logs of a cloud that has been removed from the portal are gone with it.
    """
    with advisory_lock(Lock.PURGE) as is_ours:
        cluster = Cluster.objects.filter(pk=cluster_id, deleted_at__isnull=False, purged=False).first()
        if not is_ours or cluster is None or cluster.runs.filter(gone=False).exists():
            return
        try:
            collect.forget(list(cluster.runs.all()))
            for run in cluster.runs.filter(cloud__in=cloud_names()).select_related("cluster__appcode"):
                if isinstance(cloud := cloud_of(run), KeepsLogs):
                    cloud.purge(run_ref(run))
        except CloudError as error:
            log.warning("cluster %s: its logs cannot be removed now: %s", cluster_id, error)
        else:
            Cluster.objects.filter(pk=cluster_id).update(purged=True)
