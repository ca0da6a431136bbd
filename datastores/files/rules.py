"""Rules of a datastore: automatic removal, with a preview.

A rule is applied once a day. What it removes is decided anew each time (../retention.py): by one listing of its folder,
then by what runs and versions hold at that moment. It goes to the trash, where it can be restored. So a preview is this
decision without the move; after a crash the next turn continues with the rest. We decided against marking files for
removal in advance, because the marks would have to stay true while runs begin.

A rule does nothing if its folder has more files than are listed: the latest checkpoints might be among the unlisted ones.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterator, Sequence

from django.db import IntegrityError, transaction
from django.utils import timezone

from datastores import extension_points
from datastores.actions import open_store
from datastores.drivers.base import Driver, DriverError, Entry, NotThere
from datastores.drivers.patience import within
from datastores.files import contents, trash
from datastores.files.retention import Decision, Held, Item, RuleSpec, candidates, decide, seen_from
from datastores.models import Datastore, Removal, Rule
from datastores.specs import relative_path
from portal.access import OPERATE, require
from portal.api.problems import Unavailable
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict, Invalid
from portal.models import User
from portal.text.words import readable

log = logging.getLogger(__name__)

MOST_RULES = 20
# Files below a rule's folder: one S3 request per thousand.
MOST_FILES = 200_000
# Total size; a database column holds no more.
MOST_BYTES = 2**62
EVERY = dt.timedelta(days=1)
# The delay after a failure.
AGAIN = dt.timedelta(hours=1)
# Files and seconds per turn; the rest of a rule waits until other rules had their turn, so a rule never delays people's
# removals for long. Then: seconds to list a folder, and seconds during which a round starts further rules.
MOST_MOVED, TURN, LIST_SECONDS, ROUND_SECONDS = 1_000, 15.0, 300.0, 50.0


def preview(store: Datastore, spec: RuleSpec) -> Decision:
    """What the rule would move to the trash now, and what is held back. Raises Conflict for a folder with too many
    files, and DriverError."""
    outputs = (each for hook in extension_points.outputs for each in hook(store))
    found = candidates(spec, _files(open_store(store), spec.path), outputs, timezone.now())
    unnamed = [
        Held(item.path, "nobody could restore it: no path here is like this") for item in found if _is_odd(item.path)
    ]
    # Holds are read last, so that runs that began during the listing count.
    return decide(found, [*_held(store), *unnamed])


def add(store: Datastore, spec: RuleSpec, *, acting_user: User) -> Rule:
    """Saves a rule, which is applied within a minute and then daily. Raises Invalid, Conflict, and DriverError: a rule
    that cannot be previewed is not saved."""
    require(acting_user, store.appcode, OPERATE)
    preview(store, spec)
    facts = {"kind": spec.kind, "folder": spec.path, "days": spec.days, "keep": spec.keep}
    try:
        with transaction.atomic():
            # The lock keeps two requests from both adding the last allowed rule.
            Datastore.objects.select_for_update(of=("self",), no_key=True).get(pk=store.pk)
            if store.rules.count() >= MOST_RULES:
                raise Conflict(f"{store.name} has {MOST_RULES} rules; remove one that is not needed.")
            rule = Rule.objects.create(datastore=store, created_by=acting_user, **facts)
            contents.record_of("datastore.rule-added", store, acting_user, f"{spec.words}.", rule=rule.pk)
    except IntegrityError:
        raise Invalid.at("path", message="There is such a rule for this folder already; remove it first.") from None
    return rule


@transaction.atomic
def forget(rule: Rule, *, acting_user: User) -> None:
    """Deletes the rule; what it moved to the trash stays there for its time."""
    require(acting_user, rule.datastore.appcode, OPERATE)
    contents.record_of(
        "datastore.rule-removed", rule.datastore, acting_user, f"{rule.spec.words}: no more.", rule=rule.pk
    )
    rule.delete()


def sweep() -> None:
    """Applies the due rules, the one that waits longest first. One worker at a time."""
    with advisory_lock(Lock.RULES) as is_mine:
        until = time.monotonic() + ROUND_SECONDS
        while is_mine and time.monotonic() < until:
            due = Rule.objects.filter(due_at__lte=timezone.now()).order_by("due_at", "pk")
            rule = due.select_related("datastore__appcode").first()
            if rule is None:
                return
            apply(rule)


def apply(rule: Rule) -> None:
    """Applies a rule once."""
    now, trouble, wait = timezone.now(), "", EVERY
    moved: list[Item] = []
    # Set first, so that a crash does not block the other rules.
    Rule.objects.filter(pk=rule.pk).update(due_at=now + AGAIN)
    try:
        with within(LIST_SECONDS):
            found = preview(rule.datastore, rule.spec)
        with contents.changing(rule.datastore, *(item.path for item in found.going[:MOST_MOVED])):
            looked, trouble = _move(rule, found.going[:MOST_MOVED], moved)
        if trouble:
            wait = AGAIN
        elif looked < len(found.going):
            wait = dt.timedelta(0)
    except (DriverError, Conflict, Unavailable) as error:
        log.warning("rule %s of %s cannot be applied: %s", rule.pk, rule.datastore, error)
        trouble, wait = readable(str(error)), AGAIN
    done = Decision(tuple(moved))
    if moved:
        many = f"{done.files:,} file{'s'[: done.files != 1]} with {done.size:,} bytes"
        message, amount = f"{rule.spec.words}: {many} moved to the trash.", {"files": done.files, "bytes": done.size}
        contents.record_of("datastore.rule-applied", rule.datastore, None, message, rule=rule.pk, **amount)
    last = {"applied_at": now, "files": done.files, "bytes": done.size, "trouble": trouble}
    Rule.objects.filter(pk=rule.pk).update(due_at=timezone.now() + wait, **last)


def _move(rule: Rule, items: Sequence[Item], moved: list[Item]) -> tuple[int, str]:
    """Moves items one by one, so that `moved` is right if the store fails. Returns how many were handled, and why the first
    item that cannot be moved stays; the others go on. The sweep of the trash continues large moves. Raises DriverError."""
    driver, until, trouble = open_store(rule.datastore), time.monotonic() + TURN, ""
    for count, item in enumerate(items):
        left = until - time.monotonic()
        if count and left <= 0:
            return count, trouble
        if not _is_as_listed(driver, item):
            continue
        entry = Entry(item.path.rpartition("/")[2], item.path, item.is_folder, item.size)
        try:
            trash.remove(rule.datastore, [entry], acting_user=None, cause=rule.spec.words[:200], seconds=left)
            moved.append(item)
        except DriverError as error:
            log.warning("%s of %s cannot go by rule %s: %s", item.path, rule.datastore, rule.pk, error)
            trouble = trouble or readable(str(error))
    return len(items), trouble


def _is_as_listed(driver: Driver, item: Item) -> bool:
    """False if the item was changed or deleted since the listing, which takes minutes."""
    if item.is_folder:
        return next(driver.walk(item.path), None) is not None
    try:
        return driver.look(item.path).etag == item.etag
    except NotThere:
        return False


def _is_odd(path: str) -> bool:
    """True if users could not name this path; servers accept any name."""
    try:
        return relative_path(path) != path
    except ValueError:
        return True


def _files(driver: Driver, folder: str) -> Iterator[Entry]:
    size = 0
    for count, entry in enumerate(driver.walk(folder), 1):
        size += entry.size
        if size > MOST_BYTES:
            raise DriverError("The server says of its files what cannot be.", "server")
        if count > MOST_FILES:
            raise Conflict(
                f"There are more than {MOST_FILES:,} files, and a rule sees all of its folder; name one in it."
            )
        yield entry


def _held(store: Datastore) -> list[Held]:
    moving = store.removals.filter(settled=False).exclude(state=Removal.State.EMPTIED).values_list("path", flat=True)
    held = [Held(path, "on its way to the trash, or back") for path in moving]
    for other in _at_one_place(store):
        found = [each for hook in extension_points.in_use for each in hook(other)]
        found += [Held(row.folder, f"the version {other.name}@{row.name} has it") for row in other.versions.all()]
        if other.appcode_id != store.appcode_id:
            found = [Held(each.folder, "another appcode uses it") for each in found]
        held += [seen for each in found if (seen := seen_from(_top(store), _top(other), each))]
    return held


def _at_one_place(store: Datastore) -> list[Datastore]:
    """All datastores, of any appcode, that share files with this one, including itself."""
    rows = Datastore.objects.select_related("appcode").filter(kind=store.kind)
    if store.kind == Datastore.Kind.S3:
        rows = rows.filter(spec__server=store.spec["server"], spec__bucket=store.spec["bucket"])
    here = f"{_top(store)}/"
    return [row for row in rows if here.startswith(f"{_top(row)}/") or f"{_top(row)}/".startswith(here)]


def _top(store: Datastore) -> str:
    return store.where.rstrip("/")
