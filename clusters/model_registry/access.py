"""Access of users to models (`portal/objects.py`), their versions and aliases."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from django.db.models import Prefetch, QuerySet
from django.http import Http404
from django.urls import reverse

from clusters.model_registry.models import ModelAlias, ModelVersion, RegisteredModel
from datastores.extension_points import Use
from datastores.models import Datastore
from portal.access import VIEW, Capability
from portal.models import User
from portal.objects import Objects

MODELS = Objects("model", RegisteredModel.objects.filter(deleted_at=None).select_related("appcode", "created_by"))
models_for, model_for = MODELS.visible, MODELS.find


def versions_of(model: RegisteredModel) -> QuerySet[ModelVersion]:
    """Versions that are not deleted, newest first, without their long columns."""
    rows = model.versions.filter(deleted_at=None).select_related("created_by", "run__cluster")
    return rows.defer("files", "sample", "signature", "run__spec", "run__cluster__spec").order_by("-number")


def version_for(user: User, appcode: str, name: str, number: int, capability: Capability = VIEW) -> ModelVersion:
    """The version with its long columns. Raises what `model_for` raises."""
    model = model_for(user, appcode, name, capability)
    rows = model.versions.filter(deleted_at=None, number=number) if number < 2**31 else model.versions.none()
    version = rows.select_related("created_by", "frozen", "run__cluster").first()
    if version is None:
        raise Http404(f"{name} has no version {number}.")
    version.model = model
    return version


def aliases_now(model: RegisteredModel) -> QuerySet[ModelAlias]:
    """Current rows of its aliases, by name; at most MAX_ALIASES."""
    return _now().filter(model=model)


def with_aliases() -> Prefetch[str, QuerySet[ModelAlias], str]:
    """Prefetches `aliases_now` for a list of models, in one query."""
    return Prefetch("aliases", queryset=_now(), to_attr="now")


def _now() -> QuerySet[ModelAlias]:
    return (
        ModelAlias.objects.filter(until=None, version__isnull=False)
        .select_related("version", "moved_by")
        .order_by("name")
    )


def history_of(model: RegisteredModel) -> QuerySet[ModelAlias]:
    """All moves of all aliases, newest first."""
    return model.aliases.select_related("version", "moved_by").order_by("-id")


def alias_at(model: RegisteredModel, name: str, at: dt.datetime | None = None) -> ModelAlias:
    """The alias's row now, or at a moment. Raises Http404 if it named nothing then."""
    rows = history_of(model).filter(name=name).order_by("-since")
    row = (rows.filter(since__lte=at) if at else rows).first()
    if row is None or row.version is None:
        when = "now" if at is None else f"at {at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
        raise Http404(f"{name} of {model.name} names no version {when}.")
    return row


def models_using(stores: Sequence[Datastore]) -> Mapping[int, list[Use]]:
    """Models with a version in one of `stores`, by the store's primary key. One query."""
    rows = ModelVersion.objects.filter(frozen__datastore__in=stores).order_by("model__name")
    facts = rows.values_list("frozen__datastore", "model__name", "model__appcode__code").distinct()
    found: dict[int, list[Use]] = {store.pk: [] for store in stores}
    for pk, name, code in facts:
        found[pk].append(Use(f"the model {name}", reverse("model", args=[code, name])))
    return found
