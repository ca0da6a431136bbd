"""Which appcodes are generated examples."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from portal.models import Appcode


class GeneratedAppcode(models.Model):
    """An appcode whose usage was generated for a demonstration (`history.py`), so that every page can say so.

    A trigger takes one only before anything was observed of the appcode: what is real can never be declared generated. While
    `removing` is true, and at no other time, the append-only tables let rows of this appcode go.
    """

    appcode = models.OneToOneField(Appcode, on_delete=models.PROTECT, primary_key=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    removing = models.BooleanField(default=False, db_default=False)

    def __str__(self) -> str:
        return f"{self.appcode} is generated"
