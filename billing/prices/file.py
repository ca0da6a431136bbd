"""The price book as a CSV file, and changed books for previews: pure functions over dated prices.

The file has one price per line: what, for whom, how much, from when. It is accepted as a whole or not at all; every
error has its line and column. Reading a written book gives the same book.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

from billing.money import wider
from billing.prices.rates import DatedPrice, Owner, Prices
from portal.errors import FieldError
from portal.text.zones import utc_text

HEAD = ("sku", "appcode", "business_line", "per_hour", "valid_from")
SKU = re.compile(r"(?:(?:spare|urgent)-)?gpu(:[^\s:][^:\x00-\x1f]{0,58}[^\s:])?|cpu|memory|storage")
MOST = Decimal(10) ** 8
MAX_ROWS = 5000
LATEST = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Row:
    """A price in the file, with the appcode's code. `per_hour` None ends a special price."""

    sku: str
    appcode: str
    business_line: str
    per_hour: Decimal | None
    valid_from: dt.datetime

    @property
    def key(self) -> tuple[str, str, str, dt.datetime]:
        return self.sku, self.appcode, self.business_line, self.valid_from

    @property
    def cells(self) -> tuple[str, ...]:
        per_hour = "" if self.per_hour is None else f"{self.per_hour.normalize():f}"
        return self.sku, self.appcode, self.business_line, per_hour, utc_text(self.valid_from)


def write(rows: Iterable[Row]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(HEAD)
    writer.writerows(row.cells for row in sorted(rows, key=lambda row: row.key))
    return out.getvalue()


def read(text: str) -> tuple[list[tuple[int, Row]], list[FieldError]]:
    """The prices with their line numbers, and errors with paths (line, column)."""
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    rows: list[tuple[int, Row]] = []
    errors: list[FieldError] = []
    try:
        head = tuple(cell.strip() for cell in next(reader, []))
        if head != HEAD:
            return [], [FieldError(("1", head[0] if head else "sku"), f"The first line must be: {','.join(HEAD)}")]
        first: dict[tuple[object, ...], int] = {}
        for cells in reader:
            line = reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if len(rows) + len(errors) >= MAX_ROWS:
                return [], [FieldError((str(line), "sku"), f"At most {MAX_ROWS:,} prices at once.")]
            row, wrong = _row(line, [cell.strip() for cell in cells])
            errors += wrong
            if row and row.key in first:
                errors.append(
                    FieldError((str(line), "valid_from"), f"Line {first[row.key]} has the same price already.")
                )
            elif row:
                first[row.key] = line
                rows.append((line, row))
    except csv.Error as error:
        errors.append(FieldError((str(reader.line_num), "sku"), f"This is no CSV: {error}."))
    return rows, errors


def _row(line: int, cells: Sequence[str]) -> tuple[Row | None, list[FieldError]]:
    if len(cells) != len(HEAD):
        message = f"This line has {len(cells)} values and not {len(HEAD)}."
        return None, [FieldError((str(line), HEAD[min(len(cells), len(HEAD)) - 1]), message)]
    sku, appcode, business_line, per_hour, valid_from = cells
    wrong: list[tuple[str, str]] = []
    value, moment = _price(per_hour), _moment(valid_from)
    wrong += [("sku", message) for message in wrong_sku(sku)]
    if any("\0" in cell for cell in cells):
        wrong.append(("sku", "NUL characters are not allowed."))
    if appcode and business_line:
        wrong.append(("business_line", "Give an appcode or a business line, not both."))
    if isinstance(value, str):
        wrong.append(("per_hour", value))
    elif message := wrong_price(sku, value, special=bool(appcode or business_line)):
        wrong.append(("per_hour", message))
    if isinstance(moment, str):
        wrong.append(("valid_from", moment))
    if wrong or isinstance(value, str) or isinstance(moment, str):
        return None, [FieldError((str(line), column), message) for column, message in wrong]
    return Row(sku, appcode, business_line, value, moment), []


def wrong_sku(sku: str) -> list[str]:
    return (
        [] if SKU.fullmatch(sku) else ["Use gpu, gpu:MODEL, either behind spare- or urgent-, cpu, memory or storage."]
    )


def wrong_price(sku: str, per_hour: Decimal | None, *, special: bool) -> str:
    """What is wrong with a price per hour, or ""."""
    if per_hour is None:
        return "" if special or len(wider(sku)) > 1 else "Only a special price can end; give 0 for what is free."
    if not per_hour.is_finite() or not 0 <= per_hour < MOST or per_hour != round(per_hour, 6):
        return "Give an amount from 0 to 100 million with at most six decimals."
    return ""


def _price(text: str) -> Decimal | str | None:
    if not text:
        return None
    try:
        return Decimal(text) if text.isascii() and len(text) < 40 else "Give a number like 1.25."
    except InvalidOperation:
        return "Give a number like 1.25."


def _moment(text: str) -> dt.datetime | str:
    """Parses a day (its midnight in UTC) or a time with its zone; returns a message if it is invalid."""
    try:
        moment = dt.datetime.fromisoformat(text)
        if "T" not in text and " " not in text:
            moment = moment.replace(tzinfo=dt.UTC)
        if moment.tzinfo is None:
            return "Give the time zone, for example 2026-01-31T18:00:00Z."
        moment = moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        return "Give a date like 2026-01-31 or a time like 2026-01-31T18:00:00Z."
    if moment.microsecond:
        return "Prices begin at a whole second."
    return moment if moment < LATEST else "Give a time before the year 2100."


def as_if(prices: Prices, changes: Iterable[DatedPrice], since: dt.datetime, owners: Iterable[Owner] = ()) -> Prices:
    """The book as if `changes` had been in force since `since`, without later prices of their SKUs and scopes. `owners`
    adds owners for the changes that the book lacks because their business line had no special terms."""
    new = {(change.sku, change.scope): replace(change, valid_from=since) for change in changes}
    kept = (old for old in prices.dated if (old.sku, old.scope) not in new or old.valid_from < since)
    return Prices((*kept, *new.values()), prices.discounts, tuple({*prices.owners, *owners}))


def dated(prices: Prices, changes: Iterable[DatedPrice], owners: Iterable[Owner] = ()) -> Prices:
    """The book with each change from its own time on, replacing one of exactly that time."""
    new = {(change.sku, change.scope, change.valid_from): change for change in changes}
    kept = (old for old in prices.dated if (old.sku, old.scope, old.valid_from) not in new)
    return Prices((*kept, *new.values()), prices.discounts, tuple({*prices.owners, *owners}))
