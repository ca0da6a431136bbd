"""The controller: one process that follows every cloud (clusters/runs/status/follower.py)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from clusters.runs.probes import Asker
from clusters.runs.routing import Lookout, Publisher
from clusters.runs.status.follower import follow_all, tune
from clusters.services.controller.threads import Servicing
from clusters.services.drift import Drifting
from portal.installation import upgrades


class Command(BaseCommand):
    help = __doc__
    # The checks look for mistakes in our code and load all pages, which this process does not need; `make lint` runs them.
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        upgrades.admit()
        tune()
        stopped = threading.Event()
        if settings.GATEWAY_FOLDER:
            Publisher(Path(settings.GATEWAY_FOLDER), settings.GATEWAY_PORT, stopped).start()
        Lookout(stopped).start()
        Asker(stopped).start()
        Servicing(stopped).start()
        Drifting(stopped).start()
        follow_all(stopped)
