"""Makes all segments again from the stored observations; `--verify` only compares them with those in use, byte for byte.

Goes through the pods in portions, each in a short transaction of its own that keeps metering out: it may run beside a
living portal and needs the same memory for any history.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from billing import metering
from billing.models import Observation, UsageSegment
from billing.usage import Segment

PORTION = 5000


class Command(BaseCommand):
    help = "Makes all usage segments again from the observations."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--verify", action="store_true", help="Change nothing; fail when a segment differs.")

    def handle(self, *args: Any, verify: bool, **options: Any) -> None:
        total, wrong, ledger, last = 0, 0, hashlib.sha256(), ""
        while uids := self._next_pods(last):
            with transaction.atomic():
                metering.keep_others_out()
                made = {
                    s.uid: s for s in metering.segments_of(Observation.objects.filter(uid__in=uids).order_by("uid"))
                }
                stored = {row.uid: row.segment for row in UsageSegment.objects.filter(uid__in=uids)}
                differing = [uid for uid in uids if _bytes(made.get(uid)) != _bytes(stored.get(uid))]
                if not verify:
                    metering.store([made[uid] for uid in differing if uid in made])
                    UsageSegment.objects.filter(uid__in=[uid for uid in differing if uid not in made]).delete()
            for uid in differing:
                self.stdout.write(f"{uid}: stored {stored.get(uid)}, but the observations say {made.get(uid)}")
            for uid in uids:
                ledger.update(_bytes(made.get(uid)))
            total, wrong, last = total + len(made), wrong + len(differing), uids[-1]
        if verify and wrong:
            raise CommandError(f"{wrong} of the stored segments differ from what the observations say.")
        self.stdout.write(f"{total} segments, {wrong} mended, sha256 {ledger.hexdigest()}")

    def _next_pods(self, last: str) -> list[str]:
        """The next uids after `last` that have observations or a segment."""
        observed = Observation.objects.filter(uid__gt=last).order_by().values_list("uid")
        stored = UsageSegment.objects.filter(uid__gt=last).order_by().values_list("uid")
        return [uid for (uid,) in observed.union(stored).order_by("uid")[:PORTION]]


def _bytes(segment: Segment | None) -> bytes:
    """One segment in a form in which equal means equal to the last byte."""
    return json.dumps(segment and dataclasses.asdict(segment), default=str, sort_keys=True).encode()
