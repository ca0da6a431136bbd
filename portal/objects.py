"""Objects that belong to an appcode and have a name in it: who may see them, their lock, and their events.

A room describes its kind once, for example `SWEEPS = Objects("sweep", Sweep.objects.filter(deleted_at=None))`. Objects of other
appcodes raise the same Http404 as missing ones.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from django.db.models import Model, Q, QuerySet
from django.http import Http404

from portal.access import OPERATE, VIEW, Capability, appcode_for, appcodes_for, require
from portal.errors import Invalid
from portal.events import record
from portal.models import Appcode, User

Row = TypeVar("Row", bound=Model)


class Objects(Generic[Row]):
    """`rows` are those that exist for users, with the rows joined that pages and documents read."""

    def __init__(self, kind: str, rows: QuerySet[Row]) -> None:
        self.kind, self.rows = kind, rows

    def visible(self, user: User) -> QuerySet[Row]:
        """Those of all appcodes that the user may see."""
        if user.is_administrator:
            return self.rows.all()
        return self.rows.filter(appcode__in=appcodes_for(user).order_by().values("pk"))

    def within(self, user: User, appcode: str) -> QuerySet[Row]:
        """Those of one appcode. Raises Http404."""
        return self.visible(user).filter(appcode=appcode_for(user, appcode))

    def find(self, user: User, appcode: str, name: str, capability: Capability = VIEW) -> Row:
        """Raises Http404 (absent or not visible) or PermissionDenied (visible, but without `capability`)."""
        found = self.visible(user).filter(appcode__code=appcode, name=name).first()
        if found is None:
            raise Http404(f"There is no {self.kind} “{name}” in {appcode} that you can see.")
        require(user, _appcode(found), capability)
        return found

    def hold(self, *where: Q, **which: Any) -> Row | None:
        """The current row, locked until the end of the transaction, if there is one that matches.

        Joined rows are read after the lock: those of the locking statement are as old as the wait for the lock."""
        one = self.rows.filter(*where, **which).select_related(None).select_for_update(no_key=True)
        found = one.values_list("pk").first()
        return self.rows.get(pk=found[0]) if found else None

    def locked(self, row: Row, user: User | None) -> Row:
        """`hold` for an action of `user`, or of the portal itself (None). Raises PermissionDenied, and Http404 if the row was
        deleted meanwhile."""
        if user is not None:
            require(user, _appcode(row), OPERATE)
        found = self.hold(pk=row.pk)
        if found is None:
            raise Http404(f"There is no {self.kind} “{row.name}” any more.")  # type: ignore[attr-defined]
        return found

    def reserve(self, appcode: Appcode, name: str, most: int) -> None:
        """Locks the appcode until the end of the transaction, so that its names stay unique and the count right. Raises Invalid
        if it has one of this name, or `most` of them."""
        Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
        rows, why = self.rows.filter(appcode=appcode), ""
        if rows.filter(name=name).exists():
            why = f"{appcode.code} already has a {self.kind} “{name}”; choose another name."
        elif rows.count() >= most:
            why = f"{appcode.code} has {most} {self.kind}s already; delete one."
        if why:
            raise Invalid.at("metadata", "name", message=why)

    def record(self, row: Row, verb: str, actor: User | None, message: str, **data: Any) -> None:
        """Appends an event, in the transaction of the change. `actor` None is the portal itself. Never pass secrets."""
        code = _appcode(row).code
        record(f"{self.kind}.{verb}", actor=actor, appcode=code, object=f"{self.kind} {row}", message=message, **data)


def _appcode(row: Model) -> Appcode:
    return row.appcode  # type: ignore[attr-defined, no-any-return]
