"""The controller: one process that follows every cloud (clusters/runs/follower.py)."""

from __future__ import annotations

import threading
from typing import Any

from django.core.management.base import BaseCommand

from clusters.runs.follower import follow_all, tune


class Command(BaseCommand):
    help = __doc__
    # They load all pages, which this process has no use for; `migrate` makes the same ones before.
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        tune()
        follow_all(threading.Event())
