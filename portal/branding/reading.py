"""The branding that every page shows, from the cache. A change is on all pages at once; if the cache loses that, within an
hour."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from django.core.cache import cache
from django.db import DatabaseError
from django.urls import reverse
from django.utils import timezone

from portal.branding.manifest import NAME, Banner, BrandingSpec
from portal.models import Branding

log = logging.getLogger(__name__)
KEY, FRESH = "portal.branding", 3600


@dataclass(frozen=True)
class Shown:
    """`logo`: its address. `banner`: None if there is none now."""

    name: str = NAME
    colour: str = ""
    logo: str = ""
    support: str = ""
    banner: Banner | None = None


def spec() -> BrandingSpec:
    """One query."""
    found = Branding.objects.values_list("spec", flat=True).first()
    return BrandingSpec.stored(found or {})


def shown() -> Shown:
    """For error pages, too: without a database it is the portal without branding."""
    known = cache.get(KEY)
    if known is None:
        try:
            known = _read()
        except DatabaseError as error:
            log.warning("The branding could not be read: %s", error)
            return Shown()
        cache.add(KEY, known, FRESH)  # Not over what a change has put there since this was read.
    banner = Banner.stored(known.pop("banner"))
    return Shown(**known, banner=banner if banner.said(timezone.now()) else None)


def renew() -> None:
    """After a change is committed."""
    cache.set(KEY, _read(), FRESH)


def _read() -> dict[str, object]:
    found = spec()
    logo = reverse("branding_logo", args=[found.logo_digest]) if found.logo else ""
    banner = found.banner.model_dump(mode="json", by_alias=True)
    return {"name": found.name, "colour": found.colour, "logo": logo, "support": found.support, "banner": banner}
