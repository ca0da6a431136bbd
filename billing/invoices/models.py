"""Closings of months, closed invoices with their lines and used credits, credit notes, and what invoices state.

An open invoice has no row; `drafts.draft` computes it. A row is a closed invoice, complete with its lines and immutable
(triggers). Names are copied, so that renaming never changes an invoice.
"""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from billing.invoices.document import Document, Key, Line, Note, Used
from billing.invoices.issuer import Terms
from portal.models import Appcode


class Closing(models.Model):
    """The closing of one month for everybody, due at `due_at`. `mark`, once set, is the last ledger id that the month's
    invoices cover, whatever is posted later. Months are closed in order, so marks grow. Nothing up to the mark began
    after `latest`, so a month that begins later need not read those entries."""

    month = models.DateField(unique=True)
    due_at = models.DateTimeField()
    mark = models.BigIntegerField(null=True)
    marked_at = models.DateTimeField(null=True)
    latest = models.DateTimeField(null=True)
    closed_at = models.DateTimeField(null=True)

    class Meta:
        ordering: ClassVar = ["month"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(month__day=1), name="closing_month"),
            models.CheckConstraint(
                condition=Q(mark=None, marked_at=None, closed_at=None) | Q(mark__isnull=False, marked_at__isnull=False),
                name="closing_marked",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}"

    @property
    def state(self) -> str:
        return "closed" if self.closed_at else "closing"


class Invoice(models.Model):
    """What an appcode pays for a month. It covers the ledger entries given by `after` and `mark` (`document.Document`)."""

    number = models.CharField(max_length=80, unique=True)
    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="invoices")
    month = models.DateField()
    code = models.CharField(max_length=63)
    name = models.CharField(max_length=100)
    business_line = models.CharField(max_length=200, blank=True)
    currency = models.CharField(max_length=10)
    after = models.BigIntegerField()
    mark = models.BigIntegerField()
    line_count = models.PositiveIntegerField()
    subtotal = models.DecimalField(max_digits=18, decimal_places=2)
    credited = models.DecimalField(max_digits=18, decimal_places=2)
    total = models.DecimalField(max_digits=18, decimal_places=2)
    # Added to the total. `terms`: who asks for it and how (`issuer.Terms`); null: not stated.
    tax = models.DecimalField(max_digits=18, decimal_places=2, default=0, db_default=0)
    terms = models.JSONField(null=True)
    sha256 = models.CharField(max_length=64)
    closed_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-id"]
        indexes: ClassVar = [models.Index(fields=["month", "id"], name="invoice_month")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["appcode", "month"], name="invoice_once"),
            models.CheckConstraint(condition=Q(total=F("subtotal") - F("credited")), name="invoice_adds_up"),
            # Credits pay for no more than was used, and get back no more than was taken back.
            models.CheckConstraint(
                condition=Q(credited=0) | Q(credited__gt=0, total__gte=0) | Q(credited__lt=0, total__lte=0),
                name="invoice_credited",
            ),
        ]

    def __str__(self) -> str:
        return self.number

    @classmethod
    def of(cls, document: Document, appcode_id: int) -> Invoice:
        same = ("number", "name", "business_line", "month", "currency", "after", "mark", "closed_at", "sha256")
        facts = {name: getattr(document, name) for name in (*same, "subtotal", "credited", "total", "tax")}
        terms = document.terms.facts() if document.terms else None
        return cls(appcode_id=appcode_id, code=document.appcode, line_count=len(document.lines), terms=terms, **facts)

    @property
    def gross(self) -> Decimal:
        total: Decimal = self.total + self.tax
        return total

    @property
    def stated(self) -> Terms | None:
        return Terms.of_facts(self.terms) if self.terms else None

    @property
    def document(self) -> Document:
        """The hashed document, rebuilt from the rows."""
        return Document(
            number=self.number,
            appcode=self.code,
            name=self.name,
            business_line=self.business_line,
            month=self.month,
            currency=self.currency,
            closed_at=self.closed_at,
            after=self.after,
            mark=self.mark,
            lines=tuple(row.line for row in self.lines.all()),
            used=tuple(row.used for row in self.credits.all()),
            terms=self.stated,
        )


class InvoiceLine(models.Model):
    """The sum for one `document.Key`; `place` counts from 1 in print order."""

    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="lines")
    place = models.PositiveIntegerField()
    month = models.DateField()
    business_line = models.CharField(max_length=200, blank=True)
    sku = models.CharField(max_length=70)
    price_id = models.BigIntegerField(null=True)
    per_hour = models.DecimalField(max_digits=14, decimal_places=6)
    discount = models.DecimalField(max_digits=5, decimal_places=2)
    quantity = models.BigIntegerField()
    charge = models.DecimalField(max_digits=50, decimal_places=10)
    amount = models.DecimalField(max_digits=18, decimal_places=2)

    class Meta:
        ordering: ClassVar = ["invoice", "place"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["invoice", "place"], name="invoice_line_once")]

    def __str__(self) -> str:
        return f"{self.invoice_id}.{self.place} {self.sku}"

    @classmethod
    def of(cls, invoice: Invoice, place: int, line: Line) -> InvoiceLine:
        key = {name: getattr(line.key, name) for name in KEY}
        return cls(invoice=invoice, place=place, **key, quantity=line.quantity, charge=line.charge, amount=line.amount)

    @property
    def line(self) -> Line:
        return Line(Key(**{name: getattr(self, name) for name in KEY}), self.quantity, self.charge)


# The fields that an InvoiceLine shares with its Key.
KEY = ("month", "business_line", "sku", "price_id", "per_hour", "discount")


class InvoiceCredit(models.Model):
    """What an invoice used of a credit (negative: gave back); `entry` is its ledger line."""

    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="credits")
    credit = models.ForeignKey("billing.Credit", on_delete=models.PROTECT, related_name="uses")
    entry = models.OneToOneField("billing.LedgerEntry", on_delete=models.PROTECT, related_name="+")
    place = models.PositiveIntegerField()
    reason = models.CharField(max_length=200)
    amount = models.DecimalField(max_digits=18, decimal_places=2)

    class Meta:
        ordering: ClassVar = ["invoice", "place"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["invoice", "credit"], name="invoice_credit_once"),
            models.CheckConstraint(condition=~Q(amount=0), name="invoice_credit_some"),
        ]

    def __str__(self) -> str:
        return f"{self.amount} of credit {self.credit_id}"

    @property
    def used(self) -> Used:
        return Used(self.credit_id, self.amount, self.reason)


class CreditNote(models.Model):
    """Takes back part or all of a closed invoice: a separate, immutable document."""

    number = models.CharField(max_length=90, unique=True)
    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="notes")
    amount = models.DecimalField(max_digits=18, decimal_places=2)
    tax = models.DecimalField(max_digits=18, decimal_places=2, default=0, db_default=0)
    reason = models.CharField(max_length=300)
    issued_at = models.DateTimeField()
    issued_by = models.CharField(max_length=150)
    sha256 = models.CharField(max_length=64)

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [models.CheckConstraint(condition=Q(amount__gt=0), name="credit_note_positive")]

    def __str__(self) -> str:
        return self.number

    @property
    def note(self) -> Note:
        invoice = self.invoice
        return Note(
            self.number, invoice.number, invoice.sha256, invoice.code, invoice.currency, self.amount, self.reason,
            self.issued_at, self.issued_by, self.tax,
        )  # fmt: skip


class Invoicing(models.Model):
    """What administrators set for invoices to come (`issuer.InvoicingSpec`): one row at most."""

    spec = models.JSONField(default=dict)

    class Meta:
        constraints: ClassVar = [models.CheckConstraint(condition=Q(id=1), name="invoicing_once")]

    def __str__(self) -> str:
        return "invoicing"
