"""Proves every closed invoice: its hash by its rows, what its rows say beside what was hashed, its lines and credits by the
entries of the ledger that it covers, the hashes of its credit notes, and that none is missing. Changes nothing."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing.invoices import closing


class Command(BaseCommand):
    help = "Checks all closed invoices against their hashes and the ledger."

    def handle(self, *args: Any, **options: Any) -> None:
        count = wrong = missing = 0
        for invoice, found in closing.proof():
            if invoice is None:
                missing += len(found)
            else:
                count += 1
                wrong += bool(found)
            for problem in found:
                self.stdout.write(problem)
        if wrong or missing:
            more = f", and {missing} are missing" if missing else ""
            raise CommandError(f"{wrong} of {count} invoices are not what they say{more}.")
        self.stdout.write(f"{count} invoices are what their hashes and the ledger say.")
