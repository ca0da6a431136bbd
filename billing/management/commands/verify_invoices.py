"""Proves every closed invoice: its hash by its rows, its lines by the entries of the ledger that it covers, and the hashes of its
credit notes. Changes nothing."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing import invoicing
from billing.invoice_models import Invoice


class Command(BaseCommand):
    help = "Checks all closed invoices against their hashes and the ledger."

    def handle(self, *args: Any, **options: Any) -> None:
        count = wrong = 0
        rows = Invoice.objects.order_by("pk").prefetch_related("lines", "credits", "notes")
        for invoice in rows.iterator(chunk_size=500):
            count += 1
            found = invoicing.problems(invoice)
            wrong += bool(found)
            for problem in found:
                self.stdout.write(problem)
        if wrong:
            raise CommandError(f"{wrong} of {count} invoices are not what they say.")
        self.stdout.write(f"{count} invoices are what their hashes and the ledger say.")
