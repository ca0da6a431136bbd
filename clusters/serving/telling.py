"""What is written down of services, for the event log and webhooks."""

from __future__ import annotations

from typing import Any

from clusters.models import Service
from portal.events import record
from portal.models import User


def told(service: Service, verb: str, actor: User | None, message: str, **data: Any) -> None:
    """Within the transaction of the change. `actor` None is the portal itself. No secrets."""
    code = service.appcode.code
    record(f"service.{verb}", actor=actor, appcode=code, object=f"service {service}", message=message, **data)
