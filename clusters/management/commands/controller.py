"""The controller: one process that follows every cloud (clusters/runs/follower.py)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from clusters.runs.asking import Asker
from clusters.runs.follower import follow_all, tune
from clusters.runs.routing import Lookout, Publisher
from clusters.serving.drifting import Drifting
from clusters.serving.servicing import Servicing


class Command(BaseCommand):
    help = __doc__
    # They load all pages, which this process has no use for; `migrate` makes the same ones before.
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        tune()
        stopped = threading.Event()
        if settings.GATEWAY_FOLDER:
            Publisher(Path(settings.GATEWAY_FOLDER), settings.GATEWAY_PORT, stopped).start()
        Lookout(stopped).start()
        Asker(stopped).start()
        Servicing(stopped).start()
        Drifting(stopped).start()
        follow_all(stopped)
