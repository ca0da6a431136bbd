from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q

from portal.models import Appcode


class Credit(models.Model):
    """Money given to an appcode. Its invoices use it up until it expires, by ledger entries of kind credit that name
    it. When a correction takes back usage that the credit paid for, the credit gets that amount back."""

    appcode = models.ForeignKey(Appcode, on_delete=models.PROTECT, related_name="credits")
    amount = models.DecimalField(max_digits=16, decimal_places=2)
    reason = models.CharField(max_length=200)
    valid_from = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    created_by = models.CharField(max_length=150)

    class Meta:
        ordering: ClassVar = ["expires_at", "id"]
        constraints: ClassVar = [models.CheckConstraint(condition=Q(amount__gt=0), name="credit_positive")]

    def __str__(self) -> str:
        return f"{self.amount} for {self.appcode}: {self.reason}"
