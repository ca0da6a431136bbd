"""What administrators change of it."""

from __future__ import annotations

from django.db import transaction

from portal import events
from portal.access import require_administrator
from portal.branding import reading
from portal.branding.manifest import BrandingSpec
from portal.models import Branding, User


@transaction.atomic
def set_branding(spec: BrandingSpec, *, acting_user: User) -> None:
    """Replaces what is set. Raises PermissionDenied for others than administrators."""
    require_administrator(acting_user)
    row, _ = Branding.objects.select_for_update().get_or_create(pk=1)
    before, row.spec = BrandingSpec.stored(row.spec), spec.model_dump(mode="json", by_alias=True)
    changed = [name for name in BrandingSpec.model_fields if getattr(before, name) != getattr(spec, name)]
    if not changed:
        return
    row.save()
    said = (
        f"{', '.join(changed)}: {spec.banner.text}" if "banner" in changed and spec.banner.text else ", ".join(changed)
    )
    events.record("branding.changed", actor=acting_user, object="branding", message=said)
    transaction.on_commit(reading.renew)
