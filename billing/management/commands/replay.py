"""Rebuilds all segments and the whole ledger from the stored observations; `--verify` only compares them byte for byte.

It handles pods in portions, each in a short transaction that locks metering and posting out, so it may run beside a
live portal and its memory does not depend on the history. The pure functions (`segments.segment_of`,
`entries.entries_of`) compute everything; what the database computed in SQL must be the same. The ledger is repaired by
reversals and new lines, and the sums by day and month must match its lines.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from billing.ledger import entries as ledger_entries
from billing.ledger import posting
from billing.ledger.entries import Entry
from billing.ledger.models import Due, LedgerEntry
from billing.metering import record, sightings
from billing.metering.models import Observation, Quarantined, UsageSegment
from billing.metering.segments import Segment, floor
from billing.prices.book import price_book
from billing.prices.models import Ownership

PORTION = 5000


@dataclass
class Found:
    segments: int = 0
    lines: int = 0
    wrong: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    surplus: list[str] = field(default_factory=list)


class Command(BaseCommand):
    help = "Makes all usage segments and the ledger again from the observations."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--verify", action="store_true", help="Change nothing; fail when anything differs.")

    def handle(self, *args: Any, verify: bool, **options: Any) -> None:
        if not verify:
            self._try_quarantine_again()
        found, last = Found(), ""
        while uids := _next_pods(last):
            with transaction.atomic():
                record.keep_others_out()
                posting.keep_others_out()
                self._portion(uids, found, verify=verify)
            last = uids[-1]
        if not verify:
            posting.post()
            # These segments have no observations, and posting has reversed their lines.
            UsageSegment.objects.filter(uid__in=found.surplus).delete()
        self._without_segment(found, verify=verify)
        self._sums(found, verify=verify)
        if verify and found.wrong:
            raise CommandError(f"{found.wrong} segments, lines or sums differ from what the observations say.")
        self.stdout.write(
            f"{found.segments} segments, {found.lines} lines of the ledger, {found.wrong} mended,"
            f" sha256 {found.digest.hexdigest()}"
        )

    def _portion(self, uids: Sequence[str], found: Found, *, verify: bool) -> None:
        now = floor(timezone.now())
        observations = Observation.objects.filter(uid__in=uids).order_by("uid")
        made = {segment.uid: segment for segment in record.segments_of(observations)}
        rows = {row.uid: row for row in UsageSegment.objects.filter(uid__in=uids)}
        stored = {uid: row.segment for uid, row in rows.items()}
        differing = [uid for uid in uids if _bytes(made.get(uid)) != _bytes(stored.get(uid))]
        for uid in differing:
            self.stdout.write(f"{uid}: stored {stored.get(uid)}, but the observations say {made.get(uid)}")
        expected = _expected(made.values(), now)
        lines = {uid: _lines(entries) for uid, entries in expected.items()}
        misposted = [uid for uid in self._misposted(rows, expected, lines, now) if uid not in differing]
        for uid in uids:
            found.digest.update(_bytes(made.get(uid)) + lines.get(uid, b""))
        found.segments += len(made)
        found.lines += sum(map(len, expected.values()))
        found.wrong += len(differing) + len(misposted)
        if not verify:
            self._mend(made, rows, differing, misposted, found)

    def _misposted(
        self,
        rows: dict[str, UsageSegment],
        expected: dict[str, tuple[Entry, ...]],
        lines: dict[str, bytes],
        now: dt.datetime,
    ) -> list[str]:
        """The pods whose lines are wrong. Segments that wait for posting are not."""
        ids = {row.pk: uid for uid, row in rows.items()}
        waiting = set(Due.objects.filter(segment__in=ids, due_at__lte=now).values_list("segment", flat=True))
        standing: dict[str, list[Entry]] = {uid: [] for uid in rows}
        posted = LedgerEntry.objects.filter(segment__in=ids, kind=LedgerEntry.Kind.USAGE, reversals=None)
        for line in posted:
            standing[ids[line.segment_id or 0]].append(line.entry)
        wrong = []
        for pk, uid in ids.items():
            if pk not in waiting and _lines(standing[uid]) != lines.get(uid, b""):
                self.stdout.write(f"{uid}: posted {standing[uid]}, but it should be {expected.get(uid, ())}")
                wrong.append(uid)
        return wrong

    def _mend(
        self,
        made: dict[str, Segment],
        rows: dict[str, UsageSegment],
        differing: Sequence[str],
        misposted: Sequence[str],
        found: Found,
    ) -> None:
        """Writes the segments and queues what has to be posted again."""
        record.store([made[uid] for uid in differing if uid in made])
        for uid in differing:
            if uid not in made:
                UsageSegment.objects.filter(uid=uid).update(ended=rows[uid].started)
                found.surplus.append(uid)
        posting.again(rows[uid].pk for uid in misposted)

    def _without_segment(self, found: Found, *, verify: bool) -> None:
        """Counts, and reverses unless `verify`, usage lines whose segment does not exist."""
        there = UsageSegment.objects.filter(pk=OuterRef("segment_id"))
        lost = LedgerEntry.objects.filter(~Exists(there), kind=LedgerEntry.Kind.USAGE, reversals=None)
        with transaction.atomic():
            posting.keep_others_out()
            for line in lost.iterator(PORTION):
                self.stdout.write(f"{line}: there is no such segment")
                found.wrong += 1
                if not verify:
                    posting.reverse(line)

    def _sums(self, found: Found, *, verify: bool) -> None:
        """Counts, and rebuilds unless `verify`, sums that differ from the lines."""
        with transaction.atomic():
            posting.keep_others_out()
            for table, cells in posting.wrong_sums().items():
                for cell in cells:
                    self.stdout.write(f"{table}: {cell}")
                found.wrong += len(cells)
                if cells and not verify:
                    posting.rebuild_sums()

    def _try_quarantine_again(self) -> None:
        """Retries quarantined sightings: their appcode may exist by now, or this version may understand more."""
        for row in Quarantined.objects.filter(resolved_at=None).order_by("pk").iterator(PORTION):
            try:
                state = sightings.parse(row.raw)
            except sightings.NotUnderstood as reason:
                Quarantined.objects.filter(pk=row.pk).update(reason=str(reason)[:300])
                continue
            with transaction.atomic():
                if not record.missing_appcodes([state]):
                    record.record([state], seen_at=row.seen_at)
                    Quarantined.objects.filter(pk=row.pk).update(resolved_at=timezone.now())


def _next_pods(last: str) -> list[str]:
    """The next uids after `last` that have observations or a segment."""
    found: set[str] = set()
    for table in (Observation, UsageSegment):
        rows = table._default_manager.filter(uid__gt=last).order_by("uid").distinct()
        found.update(rows.values_list("uid", flat=True)[:PORTION])
    return sorted(found)[:PORTION]


def _expected(segments: Iterable[Segment], now: dt.datetime) -> dict[str, tuple[Entry, ...]]:
    """The lines of these segments that are final at `now`."""
    segments = list(segments)
    prices = price_book()
    codes = {segment.appcode_id for segment in segments}
    owners = [row.owner for row in Ownership.objects.filter(appcode__in=codes)]
    return {s.uid: ledger_entries.entries_of(s, prices, owners, ledger_entries.final_until(s, now)) for s in segments}


def _bytes(value: Segment | Entry | None) -> bytes:
    """A serialisation in which equal values are equal byte for byte."""
    return orjson.dumps(value, default=_exact, option=orjson.OPT_SORT_KEYS)


def _exact(value: Decimal) -> str:
    return f"{value:.10f}"


def _lines(entries: Iterable[Entry]) -> bytes:
    return b"\n".join(_bytes(entry) for entry in sorted(entries, key=lambda entry: (entry.sku, entry.since)))
