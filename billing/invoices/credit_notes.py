"""Credit notes: they take back part of a closed invoice, which itself never changes."""

from __future__ import annotations

from decimal import Decimal

from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.utils import timezone

from billing import mails
from billing.invoices import document
from billing.invoices.closing import address_of
from billing.invoices.document import Note
from billing.invoices.issuer import Terms
from billing.invoices.models import CreditNote, Invoice
from billing.metering.segments import floor
from portal.access import require_administrator
from portal.errors import FieldError, Invalid
from portal.events import record
from portal.models import User


def most(invoice: Invoice) -> Decimal:
    """The limit for the sum of an invoice's credit notes: its total less what corrections on later invoices have taken
    back. The database computes it and refuses more."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_credit_note_limit(%s)", [invoice.pk])
        found: Decimal = cursor.fetchone()[0]
    return found


@transaction.atomic
def issue(invoice: Invoice, amount: Decimal, reason: str, *, acting_user: User) -> CreditNote:
    """Takes back `amount` of a closed invoice. Raises Invalid with paths amount, reason."""
    require_administrator(acting_user)
    # The lock makes note numbers consecutive. The database locks an appcode's invoices in the same order.
    all_ = Invoice.objects.select_for_update().filter(appcode=invoice.appcode_id).order_by("pk")
    invoice = {row.pk: row for row in all_}[invoice.pk]
    given = invoice.notes.aggregate(sum=Sum("amount"))["sum"] or Decimal(0)
    limit = most(invoice)
    errors = []
    if not amount.is_finite() or amount <= 0 or amount != round(amount, 2):
        errors.append(FieldError(("amount",), "Give an amount over 0 with at most two decimals."))
    elif amount > limit - given:
        left, why = round(max(limit - given, Decimal(0)), 2), ""
        if limit < invoice.total:
            why = " The rest was taken back already, by corrections on later invoices."
        errors.append(
            FieldError(("amount",), f"At most {left:,} {invoice.currency} of this invoice can be taken back.{why}")
        )
    if not reason.strip() or len(reason) > 300 or not reason.isprintable():
        errors.append(FieldError(("reason",), "Say why, in one line of at most 300 characters."))
    if errors:
        raise Invalid(errors)
    terms = invoice.stated or Terms()
    kept = invoice.total - given
    note = Note(
        number=document.note_number(invoice.number, invoice.notes.count() + 1),
        invoice=invoice.number,
        invoice_sha256=invoice.sha256,
        appcode=invoice.code,
        currency=invoice.currency,
        amount=round(amount, 2),
        reason=reason.strip(),
        issued_at=floor(timezone.now()),
        issued_by=acting_user.username,
        # The notes' taxes add up to the tax on what all of them take back.
        tax=terms.tax(kept) - terms.tax(kept - amount),
    )
    try:
        with transaction.atomic():
            row = CreditNote.objects.create(
                number=note.number, invoice=invoice, amount=note.amount, reason=note.reason, issued_at=note.issued_at,
                issued_by=note.issued_by, tax=note.tax, sha256=note.sha256,
            )  # fmt: skip
    except IntegrityError as error:
        raise Invalid.at("amount", message="Somebody took back a part of this invoice meanwhile.") from error
    said = f"{note.gross:,} {note.currency} of {note.invoice} are taken back: {note.reason}"
    record(
        "invoice.credit-note", actor=acting_user, object=f"invoice {note.invoice}", appcode=invoice.code, message=said,
        number=note.number, amount=str(note.amount), tax=str(note.tax), currency=note.currency, sha256=note.sha256,
    )  # fmt: skip
    text = f"{note.gross:,} {note.currency} of invoice {note.invoice} are taken back: {note.reason}\n\n{address_of(invoice)}\n"
    subject = f"Credit note {note.number}: {note.gross:,} {note.currency}"
    mails.queue([mails.Letter(f"credit note {note.number}", invoice.appcode_id, subject, text)], timezone.now())
    return row
