"""The administrator's view of a request: the requested terms beside those of the appcode, its business line and the
platform. The number of queries does not depend on the number of requests."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from decimal import Decimal

from django.conf import settings
from django.db.models import QuerySet
from django.forms import BoundField

from portal import extension_points
from portal.extension_points import GpuPrices
from portal.lending import Share, Stand, effect
from portal.models import Appcode, OrgNode, QuotaRequest
from portal.pages.forms import DecisionForm
from portal.terms import Terms


@dataclass(frozen=True)
class Given:
    """The total terms of some active appcodes."""

    appcodes: int = 0
    gpus: int = 0
    storage: int = 0
    budget: Decimal = Decimal(0)
    borrow: int = 0
    weight: int = 0

    def __add__(self, other: Given) -> Given:
        return Given(
            self.appcodes + other.appcodes,
            self.gpus + other.gpus,
            self.storage + other.storage,
            self.budget + other.budget,
            self.borrow + other.borrow,
            self.weight + other.weight,
        )


@dataclass(frozen=True)
class Platform:
    """The total terms of all active appcodes, the number of GPUs and of held ones, and GPU prices; None if unknown."""

    given: Given
    pool: int | None
    held: int | None
    prices: GpuPrices | None


@dataclass(frozen=True)
class Card:
    """One request with its form. `line` is the business line, None if no node above the appcode is one."""

    appcode: Appcode
    asked: QuotaRequest
    has: Terms | None
    used_gib: int
    line: OrgNode | None
    line_given: Given
    platform: Platform
    form: DecisionForm
    effect: Sequence[str]

    @property
    def rows(self) -> list[tuple[str, str, str, object, object, BoundField, object, object]]:
        """Rows of (kind of value, label, unit, current value, requested value, field, the line's total, the platform's total)."""
        has, asked, line, everybody = self.has, self.asked.terms, self.line_given, self.platform.given
        units = {"gpus": "", "storage": "GiB", "budget": settings.CURRENCY, "expires": ""}
        given = self.appcode.share
        lent = [
            (name, str(self.form[name].label), "", getattr(given, name), None, self.form[name], getattr(line, name),
             getattr(everybody, name))
            for name in ("borrow", "weight")
        ]  # fmt: skip
        terms: list[tuple[str, str, str, object, object, BoundField, object, object]] = [
            (
                name, str(self.form[name].label), unit, getattr(has, name, None), getattr(asked, name), self.form[name],
                getattr(line, name, None), getattr(everybody, name, None),
            )
            for name, unit in units.items()
        ]  # fmt: skip
        return [*terms[:1], *lent, *terms[1:]]


def waiting() -> QuerySet[Appcode]:
    """Appcodes whose request waits for a decision, oldest first."""
    rows = Appcode.objects.filter(request__state=QuotaRequest.State.WAITING).exclude(state=Appcode.State.DISABLED)
    rows = rows.select_related("org_node", "request__asked_by").prefetch_related("memberships__user")
    return rows.order_by("request__asked_at", "pk")


def _form(appcode: Appcode, asked: QuotaRequest) -> DecisionForm:
    first = {**DecisionForm.shown(asked.terms), **DecisionForm.shown_share(appcode.share), "revision": asked.revision}
    return DecisionForm(initial=first, auto_id=f"id_{appcode.pk}_%s")


def cards(appcodes: Sequence[Appcode], typed: DecisionForm | None = None, of: str = "") -> list[Card]:
    """Cards for those of `appcodes` whose request can be decided; `typed` is a rejected form for the appcode with the
    code `of`."""
    decidable = [(each, each.asked) for each in appcodes if each.asked and each.asked.is_decidable]
    if not decidable:
        return []
    lines = {node.path: node for node in OrgNode.objects.exclude(namespace=None)}
    active = _active()
    budgets = extension_points.budgets_of([each.pk for each in active])
    given: dict[str, Given] = {}
    for each in active:
        path = _line(each, lines)
        money = budgets.get(each.pk, Decimal(0))
        one = Given(1, each.gpu_quota, each.storage_quota_gib, money, each.gpu_borrow, each.weight)
        given[path] = given.get(path, Given()) + one
    volumes, use, pool = (
        extension_points.volumes_gib.only,
        extension_points.gpu_use.only,
        extension_points.gpu_pool.only,
    )
    used = volumes([each.code for each, _ in decidable]) if volumes else {}
    platform = Platform(
        sum(given.values(), Given()), pool() if pool else None, use(Appcode.objects.all()).in_use if use else None,
        extension_points.gpu_prices_of(None),
    )  # fmt: skip
    found = []
    for each, asked in decidable:
        path = _line(each, lines)
        has = Terms(each.gpu_quota, each.storage_quota_gib, budgets.get(each.pk), each.expires_on)
        found.append(
            Card(
                each, asked, has if each.state == Appcode.State.ACTIVE else None, used.get(each.code, 0), lines.get(path),
                given.get(path, Given()), platform, typed if typed and each.code == of else _form(each, asked),
                _effect(each, asked.gpus, each.share, active, platform.pool),
            )
        )  # fmt: skip
    return found


def effect_of(appcode: Appcode, gpus: int, share: Share) -> tuple[str, ...]:
    """Sentences on who gains and who loses if the appcode gets this quota and share."""
    pool = extension_points.gpu_pool.only
    return _effect(appcode, gpus, share, _active(), pool() if pool else None)


def _active() -> list[Appcode]:
    return list(Appcode.objects.filter(state=Appcode.State.ACTIVE).select_related("org_node"))


def _effect(appcode: Appcode, gpus: int, share: Share, active: Sequence[Appcode], pool: int | None) -> tuple[str, ...]:
    stands = {each.code: Stand(each.gpu_quota, each.gpu_borrow, each.weight) for each in active}
    return effect(appcode.code, stands.pop(appcode.code, None), Stand(gpus, share.borrow, share.weight), stands, pool)


def _line(appcode: Appcode, lines: Container[str]) -> str:
    """The path of its business line, "" without one."""
    return next((path for path in reversed(appcode.org_node.ancestors_and_self) if path in lines), "")
