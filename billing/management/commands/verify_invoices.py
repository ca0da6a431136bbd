"""Verifies every closed invoice: hash, fields beside the hashed document, lines and credits against the ledger, hashes
of credit notes, and that no invoice is missing. Changes nothing."""

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
