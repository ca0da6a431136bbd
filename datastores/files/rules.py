"""Rules of a datastore: what goes by itself, seen before it does.

A rule is looked at once a day. What it lets go is decided anew each time (../retention.py), by one listing of its folder and
then by what runs and versions hold at that moment, and is moved to the trash, where it can be restored like all that people
removed. So a preview is that decision without the move, and who dies meanwhile has moved a part, which the next turn does not
find any more. Marks at files that say what is to go were refused: they would have to be kept true while runs begin.

A rule whose folder has more files than are listed does nothing: the last checkpoints might be among those that were not seen.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterator, Sequence

from django.db import IntegrityError, transaction
from django.utils import timezone

from datastores import hooks
from datastores.actions import open_store
from datastores.drivers.base import Driver, DriverError, Entry, NotThere
from datastores.drivers.patience import within
from datastores.files import contents, trash
from datastores.models import Datastore, Removal, Rule
from datastores.retention import Decision, Held, Item, RuleSpec, candidates, decide, seen_from
from datastores.specs import relative_path
from portal.access import OPERATE, require
from portal.api.problems import Unavailable
from portal.db.advisory_lock import Lock, advisory_lock
from portal.errors import Conflict, Invalid
from portal.models import User
from portal.text import readable

log = logging.getLogger(__name__)

MOST_RULES = 20
# Files below the folder of a rule: of S3 a question for every thousand.
MOST_FILES = 200_000
# Together; more no column takes.
MOST_BYTES = 2**62
EVERY = dt.timedelta(days=1)
# What could not be looked at is tried again.
AGAIN = dt.timedelta(hours=1)
# How much goes in one turn, and for how many seconds; the rest has its next turn when the others have had theirs. So it never
# stands in a row before what people remove. How long a store may take to list a folder, and for how long a round begins others.
MOST_MOVED, TURN, LIST_SECONDS, ROUND_SECONDS = 1_000, 15.0, 300.0, 50.0


def preview(store: Datastore, spec: RuleSpec) -> Decision:
    """What the rule would move to the trash now, and what is held back. Raises Conflict for a folder with too many files, and
    DriverError."""
    outputs = (each for hook in hooks.outputs for each in hook(store))
    found = candidates(spec, _files(open_store(store), spec.path), outputs, timezone.now())
    unnamed = [
        Held(item.path, "nobody could restore it: no path here is like this") for item in found if _is_odd(item.path)
    ]
    # Asked last: what has begun during the listing counts, too.
    return decide(found, [*_held(store), *unnamed])


def add(store: Datastore, spec: RuleSpec, *, acting_user: User) -> Rule:
    """Saves a rule, which is applied in a minute and then every day. Raises Invalid, Conflict, and DriverError: what cannot be
    previewed is not saved."""
    require(acting_user, store.appcode, OPERATE)
    preview(store, spec)
    facts = {"kind": spec.kind, "folder": spec.path, "days": spec.days, "keep": spec.keep}
    try:
        with transaction.atomic():
            # One at a time, or two could both be the last that there is room for.
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
    """Nothing goes by it any more; what it moved to the trash stays there for its time."""
    require(acting_user, rule.datastore.appcode, OPERATE)
    contents.record_of(
        "datastore.rule-removed", rule.datastore, acting_user, f"{rule.spec.words}: no more.", rule=rule.pk
    )
    rule.delete()


def sweep() -> None:
    """Applies the rules that are due, that which waits longest first. One at a time, however many workers there are."""
    with advisory_lock(Lock.RULES) as is_mine:
        until = time.monotonic() + ROUND_SECONDS
        while is_mine and time.monotonic() < until:
            due = Rule.objects.filter(due_at__lte=timezone.now()).order_by("due_at", "pk")
            rule = due.select_related("datastore__appcode").first()
            if rule is None:
                return
            apply(rule)


def apply(rule: Rule) -> None:
    """One turn of a rule."""
    now, trouble, wait = timezone.now(), "", EVERY
    moved: list[Item] = []
    # Whoever dies over it does not keep the others waiting.
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
    """One by one, so that `moved` has what is on its way when a store answers no more. How many were looked at, and why the first
    of those stays that cannot go: the others do. What is large goes on by the sweep of the trash. Raises DriverError."""
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
    """Listing takes minutes, in which somebody may have written it anew."""
    if item.is_folder:
        return next(driver.walk(item.path), None) is not None
    try:
        return driver.look(item.path).etag == item.etag
    except NotThere:
        return False


def _is_odd(path: str) -> bool:
    """Whether it is none that people may name. Servers may call files anything."""
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
        found = [each for hook in hooks.in_use for each in hook(other)]
        found += [Held(row.folder, f"the version {other.name}@{row.name} has it") for row in other.versions.all()]
        if other.appcode_id != store.appcode_id:
            found = [Held(each.folder, "another appcode uses it") for each in found]
        held += [seen for each in found if (seen := seen_from(_top(store), _top(other), each))]
    return held


def _at_one_place(store: Datastore) -> list[Datastore]:
    """The datastores, of whatever appcode, that have files in common with this one, itself among them."""
    rows = Datastore.objects.select_related("appcode").filter(kind=store.kind)
    if store.kind == Datastore.Kind.S3:
        rows = rows.filter(spec__server=store.spec["server"], spec__bucket=store.spec["bucket"])
    here = f"{_top(store)}/"
    return [row for row in rows if here.startswith(f"{_top(row)}/") or f"{_top(row)}/".startswith(here)]


def _top(store: Datastore) -> str:
    return store.where.rstrip("/")
