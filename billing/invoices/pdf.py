"""Invoices and credit notes as PDF (A4, reportlab). The same document gives the same bytes.

PDF's standard fonts have Latin letters only; other characters use a CID font that every reader supplies.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from html import escape
from typing import Any

from PIL.Image import DecompressionBombError
from reportlab.lib import colors
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfbase.pdfmetrics import registerFont
from reportlab.platypus import Image, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from billing.invoices.access import Sheet
from billing.invoices.document import Line
from billing.invoices.issuer import Terms
from billing.money import price_text, title
from portal.branding import reading
from portal.branding.manifest import BrandingSpec
from portal.installation import demonstration

log = logging.getLogger(__name__)
INK, MUTED, RULE, TINT = (colors.HexColor(value) for value in ("#1a212c", "#566070", "#dde1e7", "#f3f5f8"))
MOST_PIXELS = 4_000_000
# Characters outside of the standard fonts' Latin letters and the few other marks that pages use.
LATIN = re.compile(r"[^\n\x20-\x7e\xa0-\xff–—‘’“”…·×]+")
WIDE_FONT = "STSong-Light"
BODY = ParagraphStyle("body", fontName="Helvetica", fontSize=9, leading=12.5, textColor=INK)
SMALL = ParagraphStyle("small", BODY, fontSize=7.5, leading=10.5, textColor=MUTED)
NUMBER = ParagraphStyle("number", BODY, alignment=TA_RIGHT)
HEAD = ParagraphStyle("head", SMALL, fontName="Helvetica-Bold")
HEAD_NUMBER = ParagraphStyle("head-number", HEAD, alignment=TA_RIGHT)
TITLE = ParagraphStyle("title", BODY, fontName="Helvetica-Bold", fontSize=18, leading=22)
SECTION = ParagraphStyle(
    "section", BODY, fontName="Helvetica-Bold", fontSize=10, leading=13, spaceBefore=12, spaceAfter=3
)
BIG = ParagraphStyle("big", BODY, fontName="Helvetica-Bold", fontSize=13, leading=17, alignment=TA_RIGHT)
BOLD = ParagraphStyle("bold", BODY, fontName="Helvetica-Bold")
BOLD_NUMBER = ParagraphStyle("bold-number", BOLD, alignment=TA_RIGHT)
# Frames have 6 points of padding on each side.
WIDTH = A4[0] - 36 * mm - 12


def invoice(sheet: Sheet) -> bytes:
    document, row = sheet.document, sheet.row
    own = [line for line in document.lines if line.key.month == document.month]
    late = [line for line in document.lines if line.key.month != document.month]
    state = "" if row else f" ({sheet.state})"
    terms, branding = document.terms or Terms(), reading.spec()
    story: list[Any] = [
        *_issuer(terms, branding),
        _head(f"Invoice{state}", document.number if row else "", f"{sheet.to_pay:,} {document.currency}"),
        *([_text(said, BOLD)] if (said := demonstration.said()) else []),
        Spacer(1, 5 * mm),
        _facts(
            [
                *([("Billed to", terms.bill_to)] if terms.bill_to else []),
                (
                    "Appcode",
                    document.appcode if document.name == document.appcode else f"{document.name} ({document.appcode})",
                ),
                ("Business line", document.business_line or "none"),
                ("Month", f"{document.month:%B %Y} (UTC)"),
                ("Closed", f"{document.closed_at:%Y-%m-%d %H:%M:%S} UTC")
                if row
                else ("As of", f"{document.closed_at:%Y-%m-%d %H:%M:%S} UTC; not closed yet"),
                *([("Due", f"{terms.due_on:%Y-%m-%d}")] if row and terms.due_on else []),
            ]
        ),
        _text(f"Used in {document.month:%B %Y}", SECTION),
        _lines(own, document.currency) if own else _text("Nothing.", BODY),
    ]
    if late:
        story += [_text("Corrections of earlier months", SECTION), _lines(late, document.currency, months=True)]
    story += [Spacer(1, 4 * mm), _sums(sheet)]
    if row and terms.payment:
        story += [_text("Payment", SECTION), _text(terms.payment, BODY)]
    if row:
        # On two lines, because a hash has no place to break.
        proof = "SHA-256 of this invoice's canonical JSON, which the portal hands out beside it:"
        story += [Spacer(1, 8 * mm), _text(proof, SMALL), _text(row.sha256, SMALL)]
    return _made(story, f"Invoice {document.number}", branding.name)


def _issuer(terms: Terms, branding: BrandingSpec) -> list[Any]:
    """The letterhead. The house's logo is as it is now; an SVG cannot be printed here."""
    if not terms.issuer:
        return []
    name, *lines = terms.issuer.splitlines()
    address = "\n".join([*lines, *([f"Tax number {terms.tax_number}"] if terms.tax_number else [])])
    said = [
        _text(name, BOLD),
        _text(address, SMALL),
    ]
    logo = _logo(branding)
    table = Table([[said, logo or ""]], [WIDTH - 24 * mm, 24 * mm])
    table.setStyle(TableStyle([("VALIGN", (0, 0), (-1, -1), "TOP"), ("ALIGN", (1, 0), (1, 0), "RIGHT"), *_tight()]))
    return [table, Spacer(1, 8 * mm)]


def _logo(branding: BrandingSpec) -> Image | None:
    found = branding.logo_file
    if found is None or found[0] == "image/svg+xml":
        return None
    try:
        width, height = ImageReader(io.BytesIO(found[1])).getSize()
    except (OSError, ValueError, DecompressionBombError) as error:  # Nobody has decoded it before.
        log.warning("The logo cannot be printed on invoices: %s", error)
        return None
    if width * height > MOST_PIXELS:
        return None
    scale = min(20 * mm / width, 14 * mm / height)
    return Image(io.BytesIO(found[1]), width * scale, height * scale)


def _head(title: str, number: str, amount: str) -> Table:
    left = [_text(title, TITLE), _text(number, SMALL)]
    table = Table(
        [[left, [_text("To pay" if number else "So far", HEAD_NUMBER), _text(amount, BIG)]]],
        [WIDTH * 0.62, WIDTH * 0.38],
    )
    table.setStyle(TableStyle([("VALIGN", (0, 0), (-1, -1), "BOTTOM"), *_tight()]))
    return table


def _facts(facts: Sequence[tuple[str, str]]) -> Table:
    table = Table([[_text(name, SMALL), _text(value, BODY)] for name, value in facts], [30 * mm, WIDTH - 30 * mm])
    table.setStyle(TableStyle([("VALIGN", (0, 0), (-1, -1), "TOP"), *_tight(1)]))
    return table


def _lines(lines: Sequence[Line], currency: str, *, months: bool = False) -> Table:
    several = len({line.key.business_line for line in lines}) > 1
    rows = [
        [_text("What", HEAD), _text("Quantity", HEAD_NUMBER), _text("Per hour", HEAD_NUMBER), _text("Less", HEAD_NUMBER),
         _text(currency, HEAD_NUMBER)]
    ]  # fmt: skip
    for line in lines:
        key = line.key
        notes = [f"used in {key.month:%B %Y}"] if months else []
        notes += [key.business_line or "no business line"] if several else []
        what = [_text(title(key.sku), BODY)] + ([_text(", ".join(notes), SMALL)] if notes else [])
        price = price_text(key.per_hour) if key.price_id else "no price"
        less = f"{key.discount.normalize():f} %" if key.discount else ""
        cells = (f"{line.hours:,.2f} {line.unit}", price, less, f"{line.amount:,}")
        rows.append([what, *(_text(cell, NUMBER) for cell in cells)])
    shares = (0.36, 0.25, 0.15, 0.09, 0.15)
    table = Table(rows, [WIDTH * share for share in shares], repeatRows=1)
    style = [
        ("LINEBELOW", (0, 0), (-1, 0), 0.75, MUTED), ("LINEBELOW", (0, 1), (-1, -1), 0.4, RULE),
        ("VALIGN", (0, 0), (-1, -1), "TOP"), *_tight(3),
    ]  # fmt: skip
    table.setStyle(TableStyle(style))
    return table


def _sums(sheet: Sheet) -> Table:
    document = sheet.document
    rows: list[tuple[str, Decimal, bool]] = []
    notes = sheet.notes
    if document.used:
        rows.append(("Used", document.subtotal, False))
    rows += [
        (f"Credit{' given back' if used.given_back else ''}: {used.reason}", -used.amount, False)
        for used in document.used
    ]
    taxed = document.terms if document.terms and document.terms.tax_percent else None
    if notes or taxed:
        rows.append((f"Total{' before tax' if taxed else ''}", document.total, True))
    rows += [(f"{note.number}: {note.reason}", -note.amount, False) for note in notes]
    if taxed:
        rows.append((f"{taxed.tax_name or 'Tax'} {taxed.tax_percent.normalize():f} %", sheet.tax, False))
    rows.append(("To pay" if sheet.row else "So far", sheet.to_pay, True))
    cells = [
        [_text(name, BOLD if bold else BODY), _text(f"{amount:,} {document.currency}", BOLD_NUMBER if bold else NUMBER)]
        for name, amount, bold in rows
    ]
    table = Table(cells, [WIDTH * 0.37, WIDTH * 0.25], hAlign="RIGHT")
    table.setStyle(
        TableStyle([("BACKGROUND", (0, -1), (-1, -1), TINT), ("VALIGN", (0, 0), (-1, -1), "TOP"), *_tight(4, 4)])
    )
    return table


def _tight(above: int = 0, beside: int = 0) -> list[tuple[Any, ...]]:
    every = ((0, 0), (-1, -1))
    return [
        ("LEFTPADDING", *every, beside), ("RIGHTPADDING", *every, beside), ("TOPPADDING", *every, above),
        ("BOTTOMPADDING", *every, above),
    ]  # fmt: skip


def _text(text: str, style: ParagraphStyle) -> Paragraph:
    """Escapes the text: names come from users and must not be read as markup."""
    _wide_font()
    parts, end = [], 0
    for found in LATIN.finditer(text):
        parts.append(escape(text[end : found.start()]))
        parts.append(f'<font name="{WIDE_FONT}">{escape(found.group())}</font>')
        end = found.end()
    return Paragraph("".join([*parts, escape(text[end:])]).replace("\n", "<br/>"), style)


@cache
def _wide_font() -> None:
    registerFont(UnicodeCIDFont(WIDE_FONT))


def _made(story: list[Any], title: str, author: str) -> bytes:
    def foot(canvas: Any, template: Any) -> None:
        canvas.setFont("Helvetica", 7.5)
        canvas.setFillColor(MUTED)
        canvas.drawString(18 * mm + 6, 10 * mm, title)
        canvas.drawRightString(A4[0] - 18 * mm - 6, 10 * mm, f"Page {template.page}")

    out = io.BytesIO()
    template = SimpleDocTemplate(
        out, pagesize=A4, leftMargin=18 * mm, rightMargin=18 * mm, topMargin=18 * mm, bottomMargin=18 * mm, title=title,
        author=author, invariant=1,
    )  # fmt: skip
    template.build(story, onFirstPage=foot, onLaterPages=foot)
    return out.getvalue()
