"""What an administrator offers to choose from: flavors and images. The only way they are written; each write has its Event.

A flavor or image is never deleted, because runs and bills name it: it is taken off the offer, and living runs keep what they
hold (`Run.resources` is a copy).
"""

from __future__ import annotations

from typing import TypeVar

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from clusters.models import Flavor, Image
from portal.access import require_administrator
from portal.errors import FieldError, Invalid
from portal.events import record
from portal.models import User

Offer = TypeVar("Offer", Flavor, Image)


@transaction.atomic
def save_offer(offer: Offer, *, acting_user: User) -> Offer:
    """Creates or changes a flavor or an image. Raises Invalid naming the model's fields."""
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
    return offer
