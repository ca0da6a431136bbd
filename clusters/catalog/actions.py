"""Flavors, images and serving runtimes that an administrator offers. All writes by users go through here, each with an Event.

None is ever deleted, because runs and bills name it: it is no longer offered. Live runs keep what they hold (`Run.resources`).
"""

from __future__ import annotations

from typing import Any, TypeVar

from django.apps import apps
from django.apps.registry import Apps
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from clusters.catalog.models import Flavor, Image, ServingRuntime
from clusters.frameworks.runtimes import SHIPPED
from portal.access import require_administrator
from portal.errors import FieldError, Invalid
from portal.events import record
from portal.models import User

FLAVOR_TITLES, FLAVOR_SECONDS = "clusters.flavor_titles", 86400
Offer = TypeVar("Offer", Flavor, Image, ServingRuntime)


def flavor_titles() -> dict[str, str]:
    """Name → title of every flavor, cached until one is saved."""
    titles: dict[str, str] | None = cache.get(FLAVOR_TITLES)
    if not titles:
        titles = dict(Flavor.objects.values_list("name", "title"))
        cache.set(FLAVOR_TITLES, titles, FLAVOR_SECONDS)
    return titles


@transaction.atomic
def save_offer(offer: Offer, *, acting_user: User) -> Offer:
    """Creates or changes an offer. Raises Invalid naming the model's fields."""
    require_administrator(acting_user)
    kind = offer._meta.model_name
    created = offer.pk is None
    try:
        offer.full_clean()
        with transaction.atomic():
            offer.save()
    except ValidationError as error:
        raise Invalid(
            [FieldError((field,), sentences[0]) for field, sentences in error.message_dict.items()]
        ) from error
    except IntegrityError as error:
        raise Invalid.at("name", message="Another one has this name or title meanwhile; choose another.") from error
    record(
        f"{kind}.{'created' if created else 'changed'}",
        actor=acting_user,
        object=f"{kind} {offer.name}",
        message=f"{offer.title}{'' if offer.enabled else ', not offered'}.",
    )
    transaction.on_commit(lambda: cache.delete(FLAVOR_TITLES))
    return offer


def keep_runtimes(apps: Apps = apps, **_: object) -> None:
    """Creates the serving runtimes that the portal ships, where missing. Called after each `migrate` with that state's models.
    Changes by administrators stay."""
    try:
        model: Any = apps.get_model("clusters", "ServingRuntime")
    except LookupError:
        return  # only other apps were migrated
    model.objects.bulk_create([model(**facts) for facts in SHIPPED], ignore_conflicts=True)
