"""Services go on: what is seen of each is decided upon, and its steps are carried out in one transaction under its lock.

A tick first looks at services without a lock, and decides in vain of most of them. Where there is something to do, the service is
locked, looked at again and decided upon again, so two loops at once, or one that died, change nothing. Services at rest are
looked at with all others every few seconds; `seen.due` says which are not.
Clusters are made and ended by the actions that people use, in the name of who deployed the service last.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable
from functools import cached_property

from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connection, transaction
from django.http import Http404

from clusters import actions
from clusters.models import Cluster, ModelAlias, Replica, Revision, Rollout, Service
from clusters.serving import rollout as steps
from clusters.serving import seen, signal, turn
from clusters.serving.actions import move_alias_to
from clusters.serving.manifest import ServiceSpec, replica_manifest, replica_name
from clusters.serving.rollout import decide
from clusters.serving.scaling import Scale, scaled
from clusters.serving.telling import told
from clusters.spec.catalog import usable_appcode
from portal.access import OPERATE, may
from portal.errors import Conflict, Invalid
from portal.models import User

log = logging.getLogger(__name__)

# What one step makes necessary is done at once, so often.
ROUNDS = 4
# Between two times that what is compared is written down.
JUDGED_SECONDS = 5
VERBS = {
    Rollout.Phase.PROMOTED: "rolled-out",
    Rollout.Phase.ROLLED_BACK: "rolled-back",
    Rollout.Phase.FAILED: "rollout-failed",
    Rollout.Phase.CANCELLED: "rollout-cancelled",
}
# Services whose alias names something else than when it was looked at last.
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
    """Brings all services nearer to what is wanted of them, or those that are not at rest; whether it looked at any. `changed`:
    these are not at rest; `woken`: nor are these, of which somebody asks. May run twice or at once, and may die at any line."""
    asked, moved = frozenset(woken), _moved_aliases()
    services = seen.living() if all_of_them else seen.due(asked | moved.keys() | frozenset(changed), now)
    for each in seen.look(services, now, asked):
        scale = scaled(each.range, each.scale, each.demand, now)
        is_quiet = scale.kept == each.service.scale and each.service.pk not in moved
        if (
            is_quiet
            and not _is_to_be_judged(each, now)
            and not decide(each.state(scale), each.fronts, each.measured, now)
        ):
            continue
        try:
            _go_on(each.service.pk, now, asked)
        except DatabaseError:
            raise
        except Exception:
            # A mistake of ours about one service must not take the others along.
            log.exception("service %s: left as it is", each.service.pk)
    return bool(services)


def advance(appcode_id: int, name: str) -> None:
    """The run of one of its replicas has ended: has the loop look at once."""
    found = Service.objects.filter(appcode=appcode_id, name=name).exclude(phase=Service.Phase.STOPPED)
    if pk := found.values_list("pk", flat=True).first():
        signal.changed(pk)


def _moved_aliases(only: int | None = None) -> dict[int, int]:
    """By service, the row of its alias that it has not looked at yet."""
    with connection.cursor() as cursor:
        cursor.execute(_MOVED, {"only": only})
        return dict(cursor.fetchall())


def _is_to_be_judged(each: seen.Seen, now: dt.datetime) -> bool:
    if each.rollout is None or each.measured is None or int(now.timestamp()) % JUDGED_SECONDS:
        return False
    return bool(_judged(each) != each.rollout.judged)


def _judged(each: seen.Seen) -> dict[str, object]:
    return {"from": each.measured.before.document, "to": each.measured.after.document} if each.measured else {}


@transaction.atomic
def _go_on(service_id: int, now: dt.datetime, woken: frozenset[int]) -> None:
    rows = Service.objects.select_for_update(of=("self",), no_key=True).select_related("appcode__org_node", "acts_for")
    service = rows.filter(pk=service_id).exclude(phase=Service.Phase.STOPPED).first()
    if service is None:
        return
    if alias := _moved_aliases(service.pk).get(service.pk):
        _follow(service, alias)
    refused: dict[int, str] = {}
    for _ in range(ROUNDS):
        [found] = seen.look([service], now, woken)
        made = _Turn(found, now, refused)
        if not made.carry_out():
            break
        woken = seen.NOBODY


def _follow(service: Service, alias_id: int) -> None:
    """Its alias names another version: that is rolled out, waits for somebody to agree, or is left."""
    alias = ModelAlias.objects.select_related("version__model").get(pk=alias_id)
    service.followed = alias.pk
    service.save(update_fields=["followed"])
    spec, version = ServiceSpec.model_validate(service.spec), alias.version
    living = turn.living(service)
    now = living.to_revision if living else turn.answering(service)
    if version is None:
        told(service, "alias-removed", None, f"{alias.name} names nothing any more; what answers goes on.")
        return
    if spec.rollout.follow == "never" or (now is not None and now.version_id == version.pk):
        return
    said, gated = spec.rollout, spec.rollout.follow == "gate"
    begun = turn.begin_rollout(
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
    told(
        service,
        "rollout-begun",
        None,
        f"{alias.name} names version {version.number}, which {what}.",
        rollout=begun.number,
    )


class _Turn:
    """The steps of one service, whose row is locked."""

    def __init__(self, found: seen.Seen, now: dt.datetime, refused: dict[int, str]) -> None:
        self.found, self.now, self.refused = found, now, refused
        self.service = found.service

    def carry_out(self) -> bool:
        """Whether anything was done."""
        scale = scaled(self.found.range, self.found.scale, self.found.demand, self.now)
        resting = seen.resting(self.service, self.now) | self.refused
        freed = self.found.spec.rollout.when_full == "replace" and seen.freed(self.service, self.now)
        state = self.found.state(scale, resting, self.refused, freed=freed)
        made = decide(state, self.found.fronts, self.found.measured, self.now)
        self._scale(scale)
        for step in made:
            self._do(step)
        if any(isinstance(step, steps.ROUTED) for step in made):
            signal.reroute(self.service)
        if self.found.rollout and self.found.measured:
            # As it stands at the moment of a verdict, and every few seconds before.
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
            told(self.service, "scaled", None, message, replicas=scale.replicas)

    # -- clusters ------------------------------------------------------------------------------------------------------------

    def _start(self, step: steps.Start) -> None:
        revision = Revision.objects.get(pk=step.revision)
        facts = {"service": self.service, "revision": revision, "slot": step.slot}
        try:
            with transaction.atomic():
                cluster = self._cluster(step.slot, revision, self._acting)
                Replica.objects.create(**facts, cluster=cluster, run=cluster.current_run)
        except (Invalid, PermissionDenied, Conflict, Http404) as error:
            why = _sentence(error)
            self.refused[revision.pk] = why
            gone = {"state": Replica.State.GONE, "gone_at": self.now, "message": why}
            Replica.objects.create(**facts, **gone)

    def _cluster(self, slot: int, revision: Revision, user: User) -> Cluster:
        """The cluster of the slot, with a run that has just been made. Raises what the actions do."""
        service = self.service
        manifest = replica_manifest(service.name, service.appcode.code, slot, revision.spec)
        name = replica_name(service.name, slot)
        found = Cluster.objects.filter(appcode=service.appcode_id, name=name, deleted_at=None).first()
        if found is None:
            return actions.create_cluster(manifest, acting_user=user, part_of=service.part_of)
        if found.part_of != service.part_of:
            raise Conflict(f"There is a cluster “{name}”, as a replica of this would be called; delete or rename that.")
        usable_appcode(service.appcode.code, user)
        if found.current_run and not found.current_run.is_terminal:
            # Somebody deployed it by hand.
            actions.end_part(found.pk, "Replaced", f"{service.name} needs its place.")
        changed = actions.change_cluster(found, manifest, acting_user=user)
        changed.current_run = actions.deploy(changed, acting_user=user)
        return changed

    @cached_property
    def _acting(self) -> User:
        user, appcode = self.service.acts_for, self.service.appcode
        if user is not None and may(user, appcode, OPERATE):
            return user
        who = user.display_name if user else "Whoever deployed it"
        raise PermissionDenied(
            f"{who} may start nothing in {appcode.code} any more. Deploy it, and it goes on in your name."
        )

    # -- what is said --------------------------------------------------------------------------------------------------------

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
            told(self.service, verb, None, f"{rollout.to_revision.model}: {rollout.message}", rollout=rollout.number)

    def _promoted(self, rollout: Rollout) -> str:
        """What is said of it; the alias that the service follows is moved where somebody deployed another version by hand."""
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
            return f"{said} {alias} of {name} was not moved: {_sentence(error)}"
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
            told(service, phase.lower(), None, message)


def _sentence(error: Exception) -> str:
    return " ".join(each.message for each in error.errors) if isinstance(error, Invalid) else str(error)
