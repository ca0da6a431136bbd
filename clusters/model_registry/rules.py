"""Retention rules of models, with a preview.

A rule runs once a day. Each time it decides anew (retention.py) from what uses versions at that moment, and deletes by the same
action as users, which checks the uses again. Decision and deletion are one transaction under the model's lock, so no alias
moves between them, and a crash undoes the whole turn. Versions are deliberately not marked for deletion, nor are files
(datastores/files/rules.py): marks would have to be kept up to date.
"""

from __future__ import annotations

import datetime as dt
import logging
import time

from django.db import transaction
from django.db.models import Count, Max, Q
from django.http import Http404
from django.urls import reverse
from django.utils import timezone

from clusters.model_registry import actions
from clusters.model_registry.models import ModelAlias, ModelRetention, RegisteredModel
from clusters.model_registry.retention import Decision, Found, Held, Named, RetentionSpec, decide
from clusters.model_registry.usage import users_of
from clusters.services.models import Rollout
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict

log = logging.getLogger(__name__)

EVERY = dt.timedelta(days=1)
# Pause before a failed turn is repeated.
AGAIN = dt.timedelta(hours=1)
# Versions deleted in one transaction, and seconds after which a round starts no more rules. The rest waits until other models
# have had their turn.
MOST_DELETED, ROUND_SECONDS = 50, 50.0


def spec_of(rule: ModelRetention) -> RetentionSpec:
    return RetentionSpec(keep=rule.keep, days=rule.days)


def retention_of(model: RegisteredModel) -> ModelRetention:
    """Raises Http404 for a model without a rule."""
    rule = ModelRetention.objects.filter(model=model).select_related("created_by").first()
    if rule is None:
        raise Http404(f"{model.name} has no retention rule.")
    return rule


def preview(model: RegisteredModel, spec: RetentionSpec) -> Decision:
    """What the rule would delete now, and what keeps the other versions. Nine queries."""
    rows = model.versions.filter(deleted_at=None).values_list("number", "state", "created_at", "size")
    # Uses are read after the versions, so that recent ones count, too.
    return decide(spec, [Found(*row) for row in rows], _named(model), _held(model), timezone.now())


def sweep() -> None:
    """Applies the due rules, the one that waits longest first. One worker at a time."""
    with advisory_lock(Lock.MODEL_RULES) as is_mine:
        until = time.monotonic() + ROUND_SECONDS
        while is_mine and time.monotonic() < until:
            due = ModelRetention.objects.filter(due_at__lte=timezone.now()).order_by("due_at", "pk")
            rule = due.select_related("model__appcode").first()
            if rule is None:
                return
            # Set first, so that a crash does not block the other rules.
            ModelRetention.objects.filter(pk=rule.pk).update(due_at=timezone.now() + AGAIN)
            apply(rule.model)


@transaction.atomic
def apply(model: RegisteredModel) -> None:
    """One turn of the model's current rule."""
    now = timezone.now()
    RegisteredModel.objects.select_for_update(no_key=True).get(pk=model.pk)
    rule = ModelRetention.objects.filter(model=model, model__deleted_at=None).first()
    if rule is None:
        return
    spec = spec_of(rule)
    going = preview(model, spec).going
    versions = {row.number: row for row in model.versions.filter(deleted_at=None, number__in=[v.number for v in going])}
    gone: list[Found] = []
    for each in going[:MOST_DELETED]:
        try:
            actions.delete_version(versions[each.number], acting_user=None, rule=spec.words)
            gone.append(each)
        except Conflict as conflict:
            log.info("version %s of %s stays: %s", each.number, model, conflict)
    rule.applied_at, rule.versions, rule.bytes = now, len(gone), sum(each.size for each in gone)
    rule.due_at = now if len(going) > MOST_DELETED else now + EVERY
    rule.save(update_fields=["applied_at", "versions", "bytes", "due_at"])


def _named(model: RegisteredModel) -> list[Named]:
    rows = model.aliases.filter(version__isnull=False, version__deleted_at=None)
    lately = rows.values_list("version__number", "name").annotate(
        ended=Max("until"), living=Count("pk", filter=Q(until=None))
    )
    naming = model.aliases.filter(until=None, version__isnull=False).values("name")
    earlier = ModelAlias.objects.filter(model=model, name__in=naming, until__isnull=False).order_by("name", "-since")
    before = set(earlier.distinct("name").values_list("version__number", "name"))
    return [
        Named(number, name, None if living else ended, goes_back=(number, name) in before)
        for number, name, ended, living in lately.order_by()
    ]


def _held(model: RegisteredModel) -> list[Held]:
    held = [Held(each.number, f"{each.kind} {each.name} has it", each.url) for each in users_of(model)]
    back = Rollout.objects.filter(
        phase=Rollout.Phase.PROMOTED, to_revision__weight__gt=0, from_revision__version__model=model,
        service__deleted_at=None,
    )  # fmt: skip
    for number, name in back.values_list("from_revision__version__number", "service__name").distinct().order_by():
        url = reverse("service", args=[model.appcode.code, name])
        held.append(Held(number, f"service {name} goes back to it when it is rolled back", url))
    return held
