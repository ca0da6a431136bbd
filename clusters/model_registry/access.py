"""Reading the registry: the only way from a person to its rows. What is not theirs raises the Http404 of what does not exist."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from django.db.models import Prefetch, QuerySet
from django.http import Http404
from django.urls import reverse

from clusters.models import ModelAlias, ModelVersion, RegisteredModel
from datastores.hooks import Use
from datastores.models import Datastore
from portal.access import VIEW, Capability, appcode_for, appcodes_for, require
from portal.models import User


def models_for(user: User) -> QuerySet[RegisteredModel]:
    """Of all their appcodes, with appcode and creator joined."""
    rows = RegisteredModel.objects.filter(deleted_at=None).select_related("appcode", "created_by")
    return rows if user.is_administrator else rows.filter(appcode__in=appcodes_for(user).order_by().values("pk"))


def models_in(user: User, appcode: str) -> QuerySet[RegisteredModel]:
    """Those of one appcode. Raises Http404."""
    return models_for(user).filter(appcode=appcode_for(user, appcode))


def model_for(user: User, appcode: str, name: str, capability: Capability = VIEW) -> RegisteredModel:
    """Raises Http404 (absent or not theirs) or PermissionDenied (visible, but they may not do that)."""
    model = models_for(user).filter(appcode__code=appcode, name=name).first()
    if model is None:
        raise Http404(f"There is no model “{name}” in {appcode} that you can see.")
    require(user, model.appcode, capability)
    return model


def versions_of(model: RegisteredModel) -> QuerySet[ModelVersion]:
    """Those that are not deleted, newest first, without what is long."""
    rows = model.versions.filter(deleted_at=None).select_related("created_by", "run__cluster")
    return rows.defer("files", "sample", "signature", "run__spec", "run__cluster__spec").order_by("-number")


def version_for(user: User, appcode: str, name: str, number: int, capability: Capability = VIEW) -> ModelVersion:
    """With all that is long. Raises as `model_for`."""
    model = model_for(user, appcode, name, capability)
    rows = model.versions.filter(deleted_at=None, number=number) if number < 2**31 else model.versions.none()
    version = rows.select_related("created_by", "frozen", "run__cluster").first()
    if version is None:
        raise Http404(f"{name} has no version {number}.")
    version.model = model
    return version


def aliases_now(model: RegisteredModel) -> QuerySet[ModelAlias]:
    """What its aliases name now, by name; at most MAX_ALIASES."""
    return _now().filter(model=model)


def with_aliases() -> Prefetch[str, QuerySet[ModelAlias], str]:
    """For lists of models: `aliases_now` of each, in one query."""
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
    """What the alias names now, or what it named at a moment. Raises Http404 where it named nothing."""
    rows = history_of(model).filter(name=name).order_by("-since")
    row = (rows.filter(since__lte=at) if at else rows).first()
    if row is None or row.version is None:
        when = "now" if at is None else f"at {at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
        raise Http404(f"{name} of {model.name} names no version {when}.")
    return row


def models_using(stores: Sequence[Datastore]) -> Mapping[int, list[Use]]:
    """Models of which a version lies in one of `stores`, by the store's number. One query."""
    rows = ModelVersion.objects.filter(frozen__datastore__in=stores).order_by("model__name")
    facts = rows.values_list("frozen__datastore", "model__name", "model__appcode__code").distinct()
    found: dict[int, list[Use]] = {store.pk: [] for store in stores}
    for pk, name, code in facts:
        found[pk].append(Use(f"the model {name}", reverse("model", args=[code, name])))
    return found
