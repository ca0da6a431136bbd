"""Sharing: the owners of a datastore decide who else may read it.

Readers see and download its files, and their runs may mount it as input, read-only, under the name `ops-demo/digits`.
Readers may have copies, so ending a share only protects later files. Only S3 is shared: a volume lies in the namespace
of one business line, and administrators decide which appcodes may use a folder or an export.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction

from datastores.models import Datastore, Share
from portal.access import MANAGE, require
from portal.errors import FieldError, Invalid
from portal.events import record
from portal.models import Appcode, OrgNode, User

MOST = 100
ONLY_S3 = (
    "Only what lies in S3 can be shared; administrators say which appcodes a folder, an export or a volume is for."
)


@dataclass(frozen=True)
class Readers:
    """Appcodes by code, business lines by path, or everybody; never the datastore's own appcode."""

    appcodes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    everybody: bool = False

    @property
    def words(self) -> str:
        """For people, in one line: "everybody", "ops-more, all of qunarcorp.ops", "nobody else"."""
        named = [*self.appcodes, *(f"all of {line}" for line in self.lines)]
        return "everybody" if self.everybody else ", ".join(named) or "nobody else"


def readers_of(store: Datastore) -> Readers:
    """One query."""
    rows = list(store.shares.select_related("appcode", "line"))
    return Readers(
        tuple(sorted(row.appcode.code for row in rows if row.appcode)),
        tuple(sorted(row.line.path for row in rows if row.line)),
        any(row.appcode is None and row.line is None for row in rows),
    )


@transaction.atomic
def share(store: Datastore, readers: Readers, *, acting_user: User) -> Readers:
    """Replaces all readers. Raises Invalid at `appcodes`, `lines` or `everybody`."""
    store = Datastore.objects.select_for_update(of=("self",)).select_related("appcode").get(pk=store.pk)
    require(acting_user, store.appcode, MANAGE)
    before = readers_of(store)
    wanted, nodes = set(readers.appcodes) - {store.appcode.code}, set(readers.lines)
    found = {appcode.code: appcode for appcode in Appcode.objects.filter(code__in=wanted)}
    lines = {node.path: node for node in OrgNode.objects.filter(path__in=nodes)}
    errors = [FieldError(("appcodes",), f"There is no appcode “{code}”.") for code in sorted(wanted - set(found))]
    errors += [FieldError(("lines",), f"There is no business line “{path}”.") for path in sorted(nodes - set(lines))]
    if len(wanted) + len(nodes) > MOST:
        errors = [FieldError(("appcodes",), f"At most {MOST} readers are named; share it with a business line.")]
    if store.kind != Datastore.Kind.S3 and (wanted or nodes or readers.everybody):
        errors = [FieldError(("appcodes",), ONLY_S3)]
    if errors:
        raise Invalid(errors)
    store.shares.all().delete()
    rows = [Share(datastore=store, appcode=appcode) for appcode in found.values()]
    rows += [Share(datastore=store, line=node) for node in lines.values()]
    Share.objects.bulk_create([*rows, *([Share(datastore=store)] if readers.everybody else [])])
    after = readers_of(store)
    if after != before:
        said = f"Read by {after.words}; before by {before.words}."
        record(
            "datastore.shared", actor=acting_user, appcode=store.appcode.code, object=f"datastore {store}", message=said
        )
    return after


def named(text: str) -> Sequence[str]:
    """The words of a field, separated by spaces, commas or line breaks."""
    return text.replace(",", " ").split()
