"""Moves services on: decides from the current state of each, and carries out the steps in one transaction under its lock.

A tick first checks services without a lock, and most need nothing. One that does is locked, read again and decided upon again,
so concurrent or dead loops change nothing. Services at rest are only checked every few seconds; `seen.due` finds the others.
Clusters are created and ended by the same actions that users call, in the name of the user who last deployed the service.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable
from functools import cached_property

from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connection, transaction
from django.db.models import Q
from django.http import Http404

from clusters.catalog.lookup import usable_appcode
from clusters.cluster import actions
from clusters.model_registry.models import ModelAlias
from clusters.runs.models import Cluster, Run
from clusters.services import notify, revisions
from clusters.services.access import SERVICES
from clusters.services.actions import move_alias_to
from clusters.services.controller import observations, steps
from clusters.services.controller.autoscaling import Scale, scaled
from clusters.services.controller.rollout import decide
from clusters.services.manifest import ServiceSpec, replica_manifest, replica_name
from clusters.services.models import Replica, Revision, Rollout, Service
from portal.access import OPERATE, may
from portal.errors import Conflict, Invalid, sentence
from portal.models import User

log = logging.getLogger(__name__)

# Maximum rounds of steps that follow from earlier steps, within one transaction.
ROUNDS = 4
# Seconds between two writes of a comparison's current counters.
JUDGED_SECONDS = 5
VERBS = {
    Rollout.Phase.PROMOTED: "rolled-out",
    Rollout.Phase.ROLLED_BACK: "rolled-back",
    Rollout.Phase.FAILED: "rollout-failed",
    Rollout.Phase.CANCELLED: "rollout-cancelled",
}
# Services whose alias has moved since it was last checked.
_MOVED = """
SELECT service.id, alias.id FROM clusters_service service
JOIN clusters_registeredmodel model ON model.appcode_id = service.appcode_id
    AND model.name = split_part(service.spec ->> 'model', '@', 1)
JOIN clusters_modelalias alias ON alias.model_id = model.id AND alias.until IS NULL
    AND alias.name = split_part(service.spec ->> 'model', '@', 2)
WHERE service.phase <> 'Stopped' AND service.desired = 'running' AND service.spec ->> 'model' LIKE '%%@%%'
    AND service.followed IS DISTINCT FROM alias.id AND (%(only)s IS NULL OR service.id = %(only)s)
"""


def tick(now: dt.datetime, *, changed: Iterable[int] = (), woken: Iterable[int] = (), all_of_them: bool = True) -> bool:
    """Makes the next steps of all services, or only of those not at rest. `changed` and `woken` are not at rest; `woken` ones
    also have requests. Returns whether any was checked. May run twice or concurrently, and may die at any line."""
    asked, moved = frozenset(woken), _moved_aliases()
    services = (
        observations.living() if all_of_them else observations.due(asked | moved.keys() | frozenset(changed), now)
    )
    for each in observations.look(services, now, asked):
        scale = scaled(each.range, each.scale, each.demand, now)
        is_quiet = scale.kept == each.service.scale and each.service.pk not in moved
        if (
            is_quiet
            and not _is_to_be_judged(each, now)
            and not decide(each.state(scale), each.routers, each.measured, now)
        ):
            continue
        try:
            _go_on(each.service.pk, now, asked)
        except DatabaseError:
            raise
        except Exception:
            # One failing service must not stop the loop.
            log.exception("service %s: left as it is", each.service.pk)
    return bool(services)


def advance(appcode_id: int, name: str) -> None:
    """Makes the loop check the service at once, because a replica's run has ended."""
    found = Service.objects.filter(appcode=appcode_id, name=name).exclude(phase=Service.Phase.STOPPED)
    if pk := found.values_list("pk", flat=True).first():
        notify.changed(pk)


def _moved_aliases(only: int | None = None) -> dict[int, int]:
    """The row of the moved alias that each service has not handled yet."""
    with connection.cursor() as cursor:
        cursor.execute(_MOVED, {"only": only})
        return dict(cursor.fetchall())


def _is_to_be_judged(each: observations.Seen, now: dt.datetime) -> bool:
    if each.rollout is None or each.measured is None or int(now.timestamp()) % JUDGED_SECONDS:
        return False
    return bool(_judged(each) != each.rollout.judged)


def _judged(each: observations.Seen) -> dict[str, object]:
    return {"from": each.measured.before.document, "to": each.measured.after.document} if each.measured else {}


@transaction.atomic
def _go_on(service_id: int, now: dt.datetime, woken: frozenset[int]) -> None:
    service = SERVICES.hold(~Q(phase=Service.Phase.STOPPED), pk=service_id)
    if service is None:
        return
    if alias := _moved_aliases(service.pk).get(service.pk):
        _follow(service, alias)
    refused: dict[int, str] = {}
    for _ in range(ROUNDS):
        [found] = observations.look([service], now, woken)
        made = _Turn(found, now, refused)
        if not made.carry_out():
            break
        woken = observations.NOBODY


def _follow(service: Service, alias_id: int) -> None:
    """Handles a moved alias: rolls its version out, waits for approval, or ignores it."""
    alias = ModelAlias.objects.select_related("version__model").get(pk=alias_id)
    service.followed = alias.pk
    service.save(update_fields=["followed"])
    spec, version = ServiceSpec.stored(service.spec), alias.version
    living = revisions.living(service)
    now = living.to_revision if living else revisions.answering(service)
    if version is None:
        SERVICES.record(service, "alias-removed", None, f"{alias.name} names nothing any more; what answers goes on.")
        return
    if spec.rollout.follow == "never" or (now is not None and now.version_id == version.pk):
        return
    said, gated = spec.rollout, spec.rollout.follow == "gate"
    begun = revisions.begin_rollout(
        service,
        version,
        kind=said.kind,
        weight=said.weight,
        minutes=said.minutes,
        by_hand=said.promote == "by-hand",
        reason=f"{alias.name} names version {version.number}. {alias.reason}".strip()[:300],
        by=None,
        gated=gated,
    )
    what = "waits for somebody to agree" if gated else f"is rolled out ({begun.kind})"
    SERVICES.record(
        service,
        "rollout-begun",
        None,
        f"{alias.name} names version {version.number}, which {what}.",
        rollout=begun.number,
    )


class _Turn:
    """The steps of one service, whose row is locked."""

    def __init__(self, found: observations.Seen, now: dt.datetime, refused: dict[int, str]) -> None:
        self.found, self.now, self.refused = found, now, refused
        self.service = found.service

    def carry_out(self) -> bool:
        """Returns whether there were any steps."""
        scale = scaled(self.found.range, self.found.scale, self.found.demand, self.now)
        resting = observations.resting(self.service, self.now) | self.refused
        freed = self.found.spec.rollout.when_full == "replace" and observations.freed(self.service, self.now)
        state = self.found.state(scale, resting, self.refused, freed=freed)
        made = decide(state, self.found.routers, self.found.measured, self.now)
        self._scale(scale)
        for step in made:
            self._do(step)
        if any(isinstance(step, steps.ROUTED) for step in made):
            notify.reroute(self.service)
        if self.found.rollout and self.found.measured:
            # Stored with each step, including the verdict, and every few seconds before.
            judged = _judged(self.found)
            if made or _is_to_be_judged(self.found, self.now):
                Rollout.objects.filter(pk=self.found.rollout.pk).update(judged=judged)
        return bool(made)

    def _do(self, step: steps.Step) -> None:
        match step:
            case steps.Gone(replica, why):
                self._change(replica, state=Replica.State.GONE, gone_at=self.now, message=why, counted={})
            case steps.Lose(replica):
                self._change(replica, state=Replica.State.STARTING, address="")
            case steps.Serve(replica, address):
                at = self.found.replicas[replica]["served_at"] or self.now
                self._change(replica, state=Replica.State.SERVING, address=address, served_at=at)
            case steps.Leave(replica, until):
                at_route = self.service.route + 1
                self._change(replica, state=Replica.State.DRAINING, left_at=at_route, drain_until=until)
            case steps.End(replica):
                cluster_id = self.found.replicas[replica]["cluster_id"]
                if cluster_id:
                    actions.end_part(cluster_id, "Replaced", f"{self.service.name} needs this replica no more.")
            case steps.Start():
                self._start(step)
            case steps.Weigh(revision, weight, mirrored):
                Revision.objects.filter(pk=revision).update(weight=weight, mirrored=mirrored)
            case steps.Want(revision, count):
                Revision.objects.filter(pk=revision).update(wanted=count)
            case steps.Advance():
                self._advance(step)
            case steps.Phase(phase, message):
                self._say(phase, message)

    def _change(self, replica: int, **columns: object) -> None:
        Replica.objects.filter(pk=replica).update(**columns)

    def _scale(self, scale: Scale) -> None:
        if scale.kept == self.service.scale:
            return
        before = self.service.scale.get("replicas")
        self.service.scale = scale.kept
        self.service.save(update_fields=["scale"])
        if before is not None and before != scale.replicas:
            message = f"{scale.replicas} replica{'s' * (scale.replicas != 1)}, before {before}: {scale.why}"
            SERVICES.record(self.service, "scaled", None, message, replicas=scale.replicas)

    # -- clusters ------------------------------------------------------------------------------------------------------------

    def _start(self, step: steps.Start) -> None:
        revision = Revision.objects.get(pk=step.revision)
        facts = {"service": self.service, "revision": revision, "slot": step.slot}
        try:
            with transaction.atomic():
                run = self._deploy(step.slot, revision, self._acting)
                Replica.objects.create(**facts, cluster=run.cluster, run=run)
        except (Invalid, PermissionDenied, Conflict, Http404) as error:
            why = sentence(error)
            self.refused[revision.pk] = why
            gone = {"state": Replica.State.GONE, "gone_at": self.now, "message": why}
            Replica.objects.create(**facts, **gone)

    def _deploy(self, slot: int, revision: Revision, user: User) -> Run:
        """A new run of the slot's cluster. Raises what the actions raise."""
        service = self.service
        name = replica_name(service.name, slot)
        found = Cluster.objects.filter(appcode=service.appcode_id, name=name, deleted_at=None).first()
        if found and found.part_of != service.part_of:
            raise Conflict(f"There is a cluster “{name}”, as a replica of this would be called; delete or rename that.")
        if found:
            usable_appcode(service.appcode.code, user)
            # A user deployed it directly.
            actions.end_part(found.pk, "Replaced", f"{service.name} needs its place.")
        manifest = replica_manifest(service.name, service.appcode.code, slot, revision.spec)
        return actions.deploy_part(manifest, service.part_of, acting_user=user)

    @cached_property
    def _acting(self) -> User:
        user, appcode = self.service.acts_for, self.service.appcode
        if user is not None and may(user, appcode, OPERATE):
            return user
        who = user.display_name if user else "Whoever deployed it"
        raise PermissionDenied(
            f"{who} may start nothing in {appcode.code} any more. Deploy it, and it goes on in your name."
        )

    # -- phases and messages -------------------------------------------------------------------------------------------------

    def _advance(self, step: steps.Advance) -> None:
        rollout = Rollout.objects.select_related("to_revision", "from_revision").get(pk=step.rollout)
        has_moved = rollout.phase != step.phase
        rollout.phase, rollout.message, rollout.judge_at = step.phase, step.sentence, step.judge_at or rollout.judge_at
        if has_moved:
            rollout.phase_since = self.now
        if step.phase not in Rollout.LIVING:
            rollout.finished_at = self.now
            if step.phase == Rollout.Phase.PROMOTED:
                rollout.message = self._promoted(rollout)
        rollout.save(update_fields=["phase", "message", "judge_at", "phase_since", "finished_at"])
        if verb := VERBS.get(Rollout.Phase(step.phase)):
            SERVICES.record(
                self.service, verb, None, f"{rollout.to_revision.model}: {rollout.message}", rollout=rollout.number
            )

    def _promoted(self, rollout: Rollout) -> str:
        """Returns the message of a promotion. If a user deployed another version, moves the followed alias to it."""
        seconds = max(0, int((self.now - rollout.created_at).total_seconds()))
        said = f"Revision {rollout.to_revision.number} answers, after {max(1, seconds):,} s."
        spec, version = self.found.spec, rollout.to_revision.version
        name, _, alias = spec.model.partition("@")
        if not alias or spec.rollout.follow == "never" or version is None or _moved_aliases(self.service.pk):
            return said
        row = ModelAlias.objects.filter(model=version.model, name=alias, until=None).first()
        if row is None or row.version_id is None or row.version_id == version.pk or row.pk != self.service.followed:
            return said
        try:
            with transaction.atomic():
                move_alias_to(
                    self.service,
                    rollout.to_revision,
                    f"{self.service.name} answers with it. {rollout.reason}".strip(),
                    by=self._acting,
                )
        except (Invalid, PermissionDenied, Conflict, Http404) as error:
            return f"{said} {alias} of {name} was not moved: {sentence(error)}"
        moved = ModelAlias.objects.filter(model=version.model, name=alias, until=None).values_list("pk", flat=True)
        self.service.followed = moved.first()
        self.service.save(update_fields=["followed"])
        return f"{said} {alias} of {name} names version {version.number} now."

    def _say(self, phase: str, message: str) -> None:
        service = self.service
        has_moved = service.phase != phase
        service.phase, service.message = phase, message
        if has_moved:
            service.phase_since = self.now
        service.save(update_fields=["phase", "message", "phase_since"])
        if has_moved:
            SERVICES.record(service, phase.lower(), None, message)
