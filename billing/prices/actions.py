"""Changes prices from now or a later time on, one by one or from a file. Past charges never change."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from billing.metering.segments import floor
from billing.prices import file
from billing.prices.file import Row
from billing.prices.models import Price
from billing.prices.rates import DatedPrice
from portal.access import require_administrator
from portal.errors import Conflict, FieldError, Invalid
from portal.events import entry, record_all
from portal.models import Appcode, Event, OrgNode, User


@dataclass(frozen=True)
class Scope:
    """To whom terms apply: one appcode, one business line (its path), or everybody if neither is given."""

    appcode: Appcode | None = None
    business_line: str = ""

    @property
    def appcode_id(self) -> int | None:
        return self.appcode.pk if self.appcode else None

    def __str__(self) -> str:
        return self.appcode.code if self.appcode else self.business_line or "everybody"


EVERYBODY = Scope()


def scope_of(code: str, business_line: str) -> Scope:
    """The scope that a form or request names. Raises Invalid with paths appcode, business_line."""
    if code and business_line:
        raise Invalid.at("business_line", message="Choose an appcode or a business line, not both.")
    appcode = Appcode.objects.filter(code=code).first() if code else None
    if code and appcode is None:
        raise Invalid.at("appcode", message=f"There is no appcode {code}.")
    return Scope(appcode, business_line)


def asked_price(sku: str, per_hour: Decimal | None, valid_from: dt.datetime | None, scope: Scope) -> DatedPrice:
    """Validates a price; `valid_from` None is now. Raises Invalid as `add_price`."""
    now = floor(timezone.now())
    start = now if valid_from is None else floor(valid_from)
    errors = wrong_scope(scope)
    errors += [FieldError(("sku",), message) for message in file.wrong_sku(sku)]
    if message := file.wrong_price(sku, per_hour, special=scope != EVERYBODY):
        errors.append(FieldError(("per_hour",), message))
    if start < now:
        errors.append(FieldError(("valid_from",), "Past usage has its price; choose a time that is to come."))
    elif start >= file.LATEST:
        errors.append(FieldError(("valid_from",), "Give a time before the year 2100."))
    if errors:
        raise Invalid(errors)
    return DatedPrice(sku, start, per_hour, scope.appcode_id, scope.business_line)


@transaction.atomic
def add_price(
    sku: str,
    per_hour: Decimal | None,
    valid_from: dt.datetime | None,
    *,
    acting_user: User,
    scope: Scope = EVERYBODY,
) -> Price:
    """From `valid_from` (None: now) an hour of `sku` costs `per_hour` for `scope`; None ends a special price. Raises
    Invalid with paths sku, per_hour, valid_from, business_line."""
    require_administrator(acting_user)
    asked = asked_price(sku, per_hour, valid_from, scope)
    try:
        with transaction.atomic():
            price = Price.objects.create(
                sku=sku, per_hour=per_hour, valid_from=asked.valid_from, appcode=scope.appcode,
                business_line=scope.business_line,
            )  # fmt: skip
    except IntegrityError as error:
        raise Invalid.at("valid_from", message=f"There is a price of {sku} from that very second.") from error
    record_all([_added(price, acting_user)])
    return price


def wrong_scope(scope: Scope) -> list[FieldError]:
    if scope.appcode and scope.business_line:
        return [FieldError(("business_line",), "Choose an appcode or a business line, not both.")]
    if scope.business_line and not OrgNode.objects.filter(path=scope.business_line).exclude(namespace=None).exists():
        return [FieldError(("business_line",), f"There is no business line {scope.business_line}.")]
    return []


@transaction.atomic
def withdraw_price(price: Price, *, acting_user: User) -> None:
    """Withdraws a price that is not in force yet. Raises Conflict if it is."""
    require_administrator(acting_user)
    if price.valid_from <= timezone.now():
        raise Conflict("This price holds already and has been charged; add another one instead.")
    record_all([_withdrawn(price, acting_user)])
    price.delete()


# The book as a file


@dataclass(frozen=True)
class Change:
    """The effect of one line of a file: a new price, or with `old` another amount for a price that is not in force yet."""

    row: Row
    scope: Scope
    old: Price | None = None

    @property
    def dated(self) -> DatedPrice:
        row, scope = self.row, self.scope
        return DatedPrice(row.sku, row.valid_from, row.per_hour, scope.appcode_id, scope.business_line)


@dataclass(frozen=True)
class Import:
    """The changes that a file makes; `unchanged` counts its prices that are already in the book. Other prices stay."""

    changes: tuple[Change, ...]
    unchanged: int


def exported() -> str:
    """The whole book as CSV."""
    return file.write(map(row_of, Price.objects.select_related("appcode")))


def row_of(price: Price) -> Row:
    code = price.appcode.code if price.appcode else ""
    return Row(price.sku, code, price.business_line, price.per_hour, price.valid_from)


def read_import(text: str) -> Import:
    """What a file would change. Raises Invalid with paths (line, column) for all errors at once."""
    rows, errors = file.read(text)
    there = {row_of(price).key: price for price in Price.objects.select_related("appcode")}
    codes = {appcode.code: appcode for appcode in Appcode.objects.filter(code__in={row.appcode for _, row in rows})}
    nodes = OrgNode.objects.filter(path__in={row.business_line for _, row in rows}).exclude(namespace=None)
    lines = {"", *nodes.values_list("path", flat=True)}
    now, changes, unchanged = floor(timezone.now()), [], 0
    for line, row in rows:
        old = there.get(row.key)
        if old is not None and old.per_hour == row.per_hour:
            unchanged += 1
            continue
        wrong = _wrong_row(row, old, now)
        if row.appcode and row.appcode not in codes:
            wrong.append(("appcode", f"There is no appcode {row.appcode}."))
        if row.business_line not in lines:
            wrong.append(("business_line", f"There is no business line {row.business_line}."))
        errors += [FieldError((str(line), column), message) for column, message in wrong]
        changes.append(Change(row, Scope(codes.get(row.appcode), row.business_line), old))
    if errors:
        raise Invalid(sorted(errors, key=lambda error: int(error.path[0])))
    return Import(tuple(changes), unchanged)


def _wrong_row(row: Row, old: Price | None, now: dt.datetime) -> list[tuple[str, str]]:
    if row.valid_from >= now:
        return []
    if old is not None:
        return [("per_hour", f"This price holds already, with {_amount(old)}, and has been charged.")]
    return [("valid_from", "Past usage has its price; choose a time that is to come.")]


@transaction.atomic
def import_prices(text: str, *, acting_user: User) -> Import:
    """Imports all prices of a file, or none. Raises Invalid as `read_import`."""
    require_administrator(acting_user)
    with connection.cursor() as cursor:
        # Blocks other writers between the check and the change; readers go on.
        cursor.execute("LOCK TABLE billing_price IN SHARE ROW EXCLUSIVE MODE")
    found = read_import(text)
    replaced = [change.old for change in found.changes if change.old]
    events = [_withdrawn(price, acting_user) for price in replaced]
    Price.objects.filter(pk__in=[price.pk for price in replaced]).delete()
    made = Price.objects.bulk_create(
        Price(
            sku=change.row.sku, per_hour=change.row.per_hour, valid_from=change.row.valid_from,
            appcode=change.scope.appcode, business_line=change.scope.business_line,
        )
        for change in found.changes
    )  # fmt: skip
    if made:
        said = f"{len(made)} prices were imported, {len(replaced)} of them in place of others."
        summary = entry("prices.imported", actor=acting_user, object="prices", message=said, unchanged=found.unchanged)
        record_all([*events, *(_added(price, acting_user) for price in made), summary])
    return found


# Events


def _added(price: Price, acting_user: User) -> Event:
    said = (
        f"{price.sku} costs {_amount(price)} an hour"
        if price.per_hour is not None
        else f"The special price of {price.sku} ends"
    )
    said = f"{said} from {price.valid_from:%Y-%m-%d %H:%M:%S} UTC for {price.scope}."
    return _told("price.added", price, acting_user, said)


def _withdrawn(price: Price, acting_user: User) -> Event:
    return _told("price.withdrawn", price, acting_user, f"{price.sku} will not cost {_amount(price)} an hour.")


def _told(verb: str, price: Price, acting_user: User, message: str) -> Event:
    return entry(
        verb,
        actor=acting_user,
        object=f"price {price.sku}",
        message=message,
        appcode=price.appcode.code if price.appcode else "",
        per_hour=None if price.per_hour is None else str(price.per_hour),
        business_line=price.business_line,
        valid_from=price.valid_from.isoformat(),
    )


def _amount(price: Price) -> str:
    return "nothing special" if price.per_hour is None else f"{price.per_hour.normalize():f} {settings.CURRENCY}"
