"""Access of users to services (`portal/objects.py`)."""

from __future__ import annotations

from clusters.services.models import Service
from portal.objects import Objects

SERVICES = Objects(
    "service", Service.objects.filter(deleted_at=None).select_related("appcode", "created_by", "acts_for")
)
services_for, service_for = SERVICES.visible, SERVICES.find
