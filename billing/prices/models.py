"""The price book: dated prices and discounts, and the owners of appcodes over time. Terms that have taken effect never change."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q

from billing.money import class_of, family, model_of
from billing.prices.rates import DatedDiscount, DatedPrice, Owner
from portal.models import Appcode


class Ownership(models.Model):
    """From `valid_from` on the appcode belonged to this business line: the path of its nearest OrgNode with a
    namespace. Triggers on appcodes and the organisation keep it, so that no code that moves an appcode can forget it.
    An appcode's first owner also applies to earlier times."""

    appcode = models.ForeignKey(Appcode, on_delete=models.CASCADE, related_name="ownerships")
    business_line = models.CharField(max_length=200, blank=True)
    valid_from = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["appcode", "valid_from"], name="ownership_once")]

    def __str__(self) -> str:
        return f"{self.appcode} {self.business_line} from {self.valid_from:%F %T}"

    @property
    def owner(self) -> Owner:
        return Owner(self.appcode_id, self.valid_from, self.business_line)


class Scoped(models.Model):
    """To whom special terms apply: one appcode, one business line (its path), or everybody."""

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    business_line = models.CharField(max_length=200, blank=True, db_default="")

    class Meta:
        abstract = True

    @property
    def scope(self) -> str:
        if self.appcode_id is not None:
            return f"appcode {self.appcode}"
        return f"business line {self.business_line}" if self.business_line else "everybody"


class Price(Scoped):
    """The price of one unit of a SKU for one hour, from `valid_from` until the next price of the same SKU and scope.

    `sku` is "gpu" (any model), "gpu:<model>", the same behind "spare-" and "urgent-", "cpu" (one core), "memory" or "storage"
    (one GiB); money is in settings.CURRENCY. `per_hour` null ends a special price: the more general one applies again. A trigger
    refuses to change or delete a price that has taken effect, because it was charged. `rates.Prices` defines which applies.
    """

    sku = models.CharField(max_length=70)
    per_hour = models.DecimalField(max_digits=14, decimal_places=6, null=True)
    valid_from = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["sku", "valid_from"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["sku", "appcode", "business_line", "valid_from"], name="price_once", nulls_distinct=False
            ),
            models.CheckConstraint(condition=Q(per_hour__gte=0), name="price_not_negative"),
            models.CheckConstraint(condition=Q(appcode=None) | Q(business_line=""), name="price_one_scope"),
            models.CheckConstraint(
                condition=Q(per_hour__isnull=False)
                | Q(appcode__isnull=False)
                | ~Q(business_line="")
                | Q(sku__startswith="gpu:")
                | Q(sku__startswith="spare-gpu")
                | Q(sku__startswith="urgent-gpu"),
                name="price_ends_special_only",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.sku} {self.per_hour} from {self.valid_from:%F} for {self.scope}"

    @property
    def explained(self) -> str:
        """What one unit of it is, in words."""
        model = model_of(self.sku)
        gpu = f"one {model} GPU" if model else "one GPU of any model"
        if of := class_of(self.sku):
            gpu += f", {of}"
        units = {"gpu": gpu, "cpu": "one core", "memory": "one GiB", "storage": "one GiB"}
        return units.get(family(self.sku), "")

    @property
    def dated(self) -> DatedPrice:
        return DatedPrice(self.sku, self.valid_from, self.per_hour, self.appcode_id, self.business_line, self.pk)


class Discount(Scoped):
    """`percent` off `sku` ("*" everything, "gpu" GPUs of every model, "spare-gpu" the spare ones among them, or one SKU)
    from `valid_from` until `valid_until`. The largest of several applies. A discount that has begun may only be ended (a
    trigger)."""

    sku = models.CharField(max_length=70)
    percent = models.DecimalField(max_digits=5, decimal_places=2)
    reason = models.CharField(max_length=200, blank=True)
    valid_from = models.DateTimeField()
    valid_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["sku", "valid_from"]
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(percent__gt=0, percent__lte=100), name="discount_percent"),
            models.CheckConstraint(condition=Q(appcode=None) | Q(business_line=""), name="discount_one_scope"),
            models.CheckConstraint(
                condition=Q(valid_until=None) | Q(valid_until__gte=F("valid_from")), name="discount_forward"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.percent} % off {self.sku} from {self.valid_from:%F} for {self.scope}"

    @property
    def dated(self) -> DatedDiscount:
        until, line = self.valid_until, self.business_line
        return DatedDiscount(self.sku, self.percent, self.valid_from, until, self.appcode_id, line, self.pk)
