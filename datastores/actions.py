"""Changes of datastores by people. Each is one transaction with its Event; a test first talks to the server, outside of
any transaction, and records the result afterwards.

The secret key is write-only. A change without one keeps the stored key, if server and access key stay the same and, unless an
owner makes the change, if it opens nothing outside the folder for which the key was given. Deleting a datastore leaves all
files in place, except for a volume: that was made for the datastore and is deleted with it, so its name has to be confirmed.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooSlow
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import islice
from math import ceil
from typing import cast
from urllib.parse import urlsplit

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from datastores import exports
from datastores.access import allowed_folder
from datastores.drivers import driver_for, nfs
from datastores.drivers.base import Driver, DriverError, NotPossible, NotThere
from datastores.drivers.patience import within
from datastores.extension_points import uses_of, wrongs
from datastores.listing import TRASH
from datastores.models import FOUND_MOST, Datastore, Removal, Volume
from datastores.specs import DatastoreManifest, Kind, S3Spec, size_bytes
from portal.access import MANAGE, OPERATE, appcodes_for, may, require
from portal.errors import Conflict, Invalid
from portal.events import record
from portal.manifests.kept import refuse_changes
from portal.models import Appcode, User
from portal.network import outgoing
from portal.templatetags.portal import bytes_

log = logging.getLogger(__name__)

TEST_SECONDS = 5
SHOWN_USES = 5

# A test that resolves a name may outlive its response, so their number is limited.
_testers = ThreadPoolExecutor(max_workers=8, thread_name_prefix="datastore-test")


@dataclass(frozen=True)
class Outcome:
    """The result of a test: what it says, after a failure the path of the invalid manifest field, and the number and bytes of
    the first FOUND_MOST files, None if they cannot be counted."""

    ok: bool
    message: str
    path: tuple[str, ...] = ()
    files: int | None = None
    size: int | None = None


@transaction.atomic
def create_datastore(manifest: DatastoreManifest, *, acting_user: User) -> Datastore:
    """Raises Invalid (for an invisible appcode exactly as for one that does not exist) or PermissionDenied."""
    appcode = _usable_appcode(manifest, acting_user)
    _lock_storage(manifest, appcode)
    _check(manifest, appcode, manifest.spec.secret)
    if (count := Datastore.objects.filter(appcode=appcode).count()) >= settings.DATASTORES_PER_APPCODE:
        sentence = f"{appcode.code} has {count} datastores, and no appcode may have more; delete what is not needed."
        raise Invalid.at("metadata", "appcode", message=sentence)
    name = manifest.metadata.name
    try:
        with transaction.atomic():
            store = Datastore.objects.create(
                appcode=appcode,
                name=name,
                kind=manifest.spec.kind,
                spec=manifest.spec.public,
                secret=manifest.spec.secret or None,
                created_by=acting_user,
            )
    except IntegrityError as error:
        if "datastore_name_once" not in str(error):
            raise
        raise Invalid.at(
            "metadata", "name", message=f"{appcode.code} already has a datastore “{name}”; choose another name."
        ) from error
    _record("datastore.created", store, acting_user, f"Created: {_described(store)}.")
    return store


@transaction.atomic
def change_datastore(store: Datastore, manifest: DatastoreManifest, *, acting_user: User) -> Datastore:
    """Changes what the datastore points to; runs that have begun keep their mounts. An existing volume can only grow."""
    store = Datastore.objects.select_for_update(of=("self",)).select_related("appcode").get(pk=store.pk)
    require(acting_user, store.appcode, OPERATE)
    refuse_changes(manifest, name=store.name, appcode=store.appcode.code)
    secret = manifest.spec.secret or _kept_secret(store, manifest, acting_user)
    _lock_storage(manifest, store.appcode)
    _check(manifest, store.appcode, secret, store)
    if store.made:
        _check_made(store.made, manifest)
    if manifest.spec.kind != "s3" and store.shares.exists():
        sentence = "Others read this datastore, and only what lies in S3 can be shared; share it with nobody first."
        raise Invalid.at("spec", manifest.spec.kind, message=sentence)
    before = copy(store)
    fields = {"kind": manifest.spec.kind, "spec": manifest.spec.public, "secret": secret or None}
    if any(getattr(store, name) != value for name, value in fields.items()):
        for name, value in fields.items():
            setattr(store, name, value)
        store.tested_at, store.test_ok, store.test_message = None, None, ""
        store.found_files, store.found_bytes = None, None
        store.save()
        if (before.kind, before.where) != (store.kind, store.where):
            if store.versions.exists():
                sentence = (
                    "Its versions are of what lies where it is now; make another datastore, or remove them first."
                )
                raise Invalid.at("spec", manifest.spec.kind, message=sentence)
            if store.removals.exists():
                sentence = (
                    "What is in its trash lies where it is now; empty the trash first, or make another datastore."
                )
                raise Invalid.at("spec", manifest.spec.kind, message=sentence)
            if store.rules.exists():
                sentence = "Its rules are about the files where it lies now; remove them first."
                raise Invalid.at("spec", manifest.spec.kind, message=sentence)
            _drop_uploads(before)
        # clusters/ passes the new size to the cloud.
        Volume.objects.filter(datastore=store).update(size=store.size, refused_size="", trouble="", tried_at=None)
        _record("datastore.changed", store, acting_user, f"Changed: {_described(store)}.")
    return store


@transaction.atomic
def delete_datastore(store: Datastore, *, acting_user: User, named: str = "") -> None:
    """Deletes the datastore; its files stay, except for a volume. Raises Conflict naming its users, and Invalid at
    ("name",) if data would be lost and `named` is not its name."""
    found = Datastore.objects.select_for_update(of=("self",)).select_related("appcode").filter(pk=store.pk).first()
    if found is None:
        return
    require(acting_user, found.appcode, OPERATE)
    if uses := uses_of([found])[found.pk]:
        names = ", ".join(use.name for use in uses[:SHOWN_USES])
        more = f" and {len(uses) - SHOWN_USES} more" if len(uses) > SHOWN_USES else ""
        raise Conflict(f"{found.name} is used by {names}{more}; delete or change them first.")
    if found.made and named != found.name:
        raise Invalid.at("name", message=f"All data in {found.name} is lost with it; say its name to delete it.")
    if count := found.removals.exclude(state=Removal.State.EMPTIED).count():
        raise Conflict(
            f"Nobody could restore what is in the trash of {found.name} any more ({count} removed by people or rules), and it "
            "would lie there for ever; restore it or empty the trash first."
        )
    what = f"its files stay at {found.where}"
    if found.kind == Datastore.Kind.VOLUME:
        what = "its volume is deleted with all data" if found.made else "its volume had not been made"
    Volume.objects.filter(datastore=found).update(tried_at=None)
    _record("datastore.deleted", found, acting_user, f"Deleted; {what}.")
    _drop_uploads(found)
    _drop_trash(found)
    found.delete()


def _drop_trash(store: Datastore) -> None:
    """Deletes what was being emptied from the trash and is still there."""
    if folders := [row.folder for row in store.removals.all()]:
        transaction.on_commit(partial(_remove_folders, store, folders))


def _remove_folders(store: Datastore, folders: Sequence[str]) -> None:
    try:
        with within(TEST_SECONDS):
            driver = open_store(store)
            for folder in folders:
                with suppress(NotThere):
                    driver.delete_folder(folder)
    except DriverError as error:
        log.warning("some of the trash of %s is left where it lies: %s", store, error)


def _drop_uploads(store: Datastore) -> None:
    """Drops unfinished uploads to where a datastore is, or was."""
    if unfinished := list(store.uploads.values_list("path", "remote")):
        transaction.on_commit(partial(_forget_parts, store, unfinished))
        store.uploads.all().delete()


def _forget_parts(store: Datastore, unfinished: Sequence[tuple[str, str]]) -> None:
    """Aborts uploads that can no longer be finished. Parts left after a failure are removed by the bucket's own rule."""
    try:
        with within(TEST_SECONDS):
            driver = open_store(store)
            for path, remote in unfinished:
                driver.abort(path, remote)
    except DriverError as error:
        log.warning("parts of unfinished uploads may be left in %s: %s", store, error)


def try_datastore(store: Datastore, *, acting_user: User) -> Outcome:
    """Tests reading, and writing if something stores files there. Stores the result, within TEST_SECONDS. Raises Conflict if
    this kind cannot be tested."""
    require(acting_user, store.appcode, OPERATE)
    if store.kind == Datastore.Kind.VOLUME:
        raise Conflict("There is nothing to try from here: Kubernetes makes the volume when a run first mounts it.")
    outcome = _try(store, writes=_is_written(store))
    # Only if it has not changed since.
    Datastore.objects.filter(pk=store.pk, changed_at=store.changed_at).update(
        tested_at=timezone.now(), test_ok=outcome.ok, test_message=outcome.message, found_files=outcome.files,
        found_bytes=outcome.size,
    )  # fmt: skip
    return outcome


def try_manifest(manifest: DatastoreManifest, *, acting_user: User, store: Datastore | None = None) -> Outcome:
    """Tests a manifest without saving it; `store` is the datastore that it would change. Raises Invalid where saving would."""
    appcode = _usable_appcode(manifest, acting_user)
    secret = manifest.spec.secret or (_kept_secret(store, manifest, acting_user) if store else "")
    _check(manifest, appcode, secret, store)
    tried = Datastore(appcode=appcode, kind=manifest.spec.kind, spec=manifest.spec.public, secret=secret)
    return _try(tried, writes=store is not None and _is_written(store))


def _is_written(store: Datastore) -> bool:
    return any(use.writes for use in uses_of([store])[store.pk])


def open_store(store: Datastore) -> Driver:
    """The driver of a datastore. Raises DriverError for a folder that is not allowed. One query for `local`."""
    allowed = allowed_folder(store.appcode, store.spec["path"]) if store.kind == Datastore.Kind.LOCAL else None
    return driver_for(
        cast("Kind", store.kind),
        store.spec,
        store.secret or "",
        root=allowed.path if allowed else None,
        read_only=allowed.read_only if allowed else False,
    )


def _try(store: Datastore, *, writes: bool) -> Outcome:
    try:
        return _testers.submit(_tested, open_store(store), writes).result(TEST_SECONDS)
    except DriverError as error:
        return Outcome(False, str(error), ("spec", store.kind, error.field) if error.field else ())
    except TooSlow:
        return Outcome(False, f"Unreachable: no answer within {TEST_SECONDS} seconds.", ("spec", store.kind, "server"))


def _tested(driver: Driver, writes: bool) -> Outcome:
    with within(TEST_SECONDS):
        said = [driver.test()]
        if writes:
            with suppress(NotPossible):
                said.append(_write(driver))
        files = size = None
        # Last, and no failure: a slow server may need the rest of the time for it.
        with suppress(DriverError):
            sizes = [entry.size for entry in islice(driver.walk(""), FOUND_MOST)]
            files, size = len(sizes), sum(sizes)
            said.append(_found(files, size))
        return Outcome(True, " ".join(said), files=files, size=size)


def _write(driver: Driver) -> str:
    """Stores and removes a small file, in the folder that no listing, run or version contains. Raises DriverError."""
    path, text = f"{TRASH}/write-test-{secrets.token_hex(4)}", b"Written and removed by a test of this datastore.\n"
    try:
        driver.upload(path, BytesIO(text), len(text))
    except NotPossible:
        raise
    except DriverError as error:
        raise DriverError(f"It can be read, but not written: {error}", error.field) from error
    try:
        driver.delete(path)
    except DriverError as error:
        return f"A test file was written, but {path} could not be removed: {error}"
    return "A test file was written and removed."


def _found(files: int, size: int) -> str:
    if files == FOUND_MOST:
        return f"The first {files:,} files have {bytes_(size)}."
    return f"It has {files:,} file{'' if files == 1 else 's'}, {bytes_(size)}." if files else "It is empty."


def _kept_secret(store: Datastore, manifest: DatastoreManifest, user: User) -> str:
    """The stored secret, if it may be used for the manifest: it is never sent to another server than it was given for,
    and only an owner may use it for another bucket or folder. Raises Invalid."""
    spec = manifest.spec.s3
    if spec is None or not store.secret:
        return ""
    at = ("spec", "s3", "secret_key")
    if store.spec.get("server") != spec.server or store.spec.get("access_key") != spec.access_key:
        raise Invalid.at(*at, message="Give the secret key again: the server or the access key is another one.")
    if not _lies_in(spec, store.spec) and not may(user, store.appcode, MANAGE):
        sentence = "Give the secret key again, or ask an owner to do this: it was given for another bucket or folder."
        raise Invalid.at(*at, message=sentence)
    return str(store.secret)


def _lies_in(spec: S3Spec, before: Mapping[str, str]) -> bool:
    """True if everything that `spec` names was part of the bucket and folder `before`."""
    folder = before.get("prefix", "")
    return before.get("bucket") == spec.bucket and f"{spec.prefix}/".startswith(f"{folder}/" if folder else "")


def _check_made(volume: Volume, manifest: DatastoreManifest) -> None:
    """Raises Invalid for changes that an existing volume does not allow."""
    spec = manifest.spec.volume
    if spec is None:
        sentence = "Its volume has been made; make another datastore, and delete this one when its data is not needed."
        raise Invalid.at("spec", manifest.spec.kind, message=sentence)
    for field in ("storage_class", "access_mode"):
        if getattr(spec, field) != getattr(volume, field):
            stays = getattr(volume, field) or "the default class"
            sentence = f"Its volume has been made with {stays} and stays like that; make another datastore."
            raise Invalid.at("spec", "volume", field, message=sentence)
    # A size that the cloud refused was never applied, so it may be reduced again.
    least = volume.told_size if volume.refused_size else volume.size
    if size_bytes(spec.size) < size_bytes(least):
        raise Invalid.at("spec", "volume", "size", message=f"A volume only grows; it has {least} by now.")


def _described(store: Datastore) -> str:
    return f"{store.where}, {store.size}" if store.size else store.where


def _lock_storage(manifest: DatastoreManifest, appcode: Appcode) -> None:
    """Locks the appcode, so that two volumes cannot both take the rest of a quota, and reads the current quota."""
    if manifest.spec.volume:
        row = Appcode.objects.select_for_update(of=("self",), no_key=True).get(pk=appcode.pk)
        appcode.storage_quota_gib = row.storage_quota_gib


def volumes_gib(codes: Collection[str]) -> dict[str, int]:
    """GiB of the volumes by appcode code, rounded up; appcodes without volumes are left out. Two queries."""
    used: Counter[str] = Counter()
    for code, size in _volumes(codes):
        used[code] += size_bytes(size)
    return {code: -(-size // 2**30) for code, size in used.items()}


def _volumes(codes: Collection[str], but: Datastore | None = None) -> list[tuple[str, str]]:
    """(appcode, size) of each volume, including volumes of deleted datastores that still exist."""
    stores = Datastore.objects.filter(appcode__code__in=codes, kind=Datastore.Kind.VOLUME)
    stores = stores.exclude(pk=but.pk) if but else stores
    going = Volume.objects.filter(datastore=None, appcode__in=codes)
    return [*stores.values_list("appcode__code", "spec__size"), *going.values_list("appcode", "size")]


def _check_quota(appcode: Appcode, size: str, store: Datastore | None) -> None:
    """Raises Invalid if the size exceeds the appcode's quota. A volume that does not grow is accepted even if the quota
    was lowered."""
    used = sum(size_bytes(each) for _, each in _volumes([appcode.code], but=store))
    quota = appcode.storage_quota_gib * 2**30
    before = size_bytes(store.size) if store and store.size else 0
    if size_bytes(size) > before and used + size_bytes(size) > quota:
        left = max(0, quota - used) / 2**30
        raise Invalid.at(
            "spec",
            "volume",
            "size",
            message=f"Volumes of {appcode.code} may have {appcode.storage_quota_gib:,} GiB together, and {left:,.0f} GiB are "
            "left; choose a smaller size, delete what is not needed, or let an owner request a larger quota.",
            see=f"/appcodes/{appcode.code}/request?storage={ceil((used + size_bytes(size)) / 2**30)}",
        )


def _check(manifest: DatastoreManifest, appcode: Appcode, secret: str, store: Datastore | None = None) -> None:
    """Checks that need more than the manifest; `store` is the datastore that it changes. Raises Invalid."""
    spec = manifest.spec
    if spec.s3 and not secret:
        raise Invalid.at("spec", "s3", "secret_key", message="Give the secret key that belongs to the access key.")
    if spec.local and allowed_folder(appcode, spec.local.path) is None:
        sentence = "This folder is not one that an administrator allowed; ask them for another or to allow it."
        raise Invalid.at("spec", "local", "path", message=sentence)
    if spec.nfs and (sentence := exports.why_not(spec.nfs.server, spec.nfs.path, appcode.code)):
        raise Invalid.at("spec", "nfs", "server", message=sentence)
    if spec.volume:
        _check_quota(appcode, spec.volume.size, store)
    if errors := wrongs(appcode, spec):
        raise Invalid(errors)
    try:
        if spec.s3:
            url = urlsplit(spec.s3.server)
            port = url.port or (443 if url.scheme == "https" else 80)
            outgoing.check_literal(url.hostname or "", port, settings.OUTGOING)
        elif spec.nfs:
            outgoing.check_literal(spec.nfs.server, nfs.PORT, nfs.rules())
    except outgoing.Closed as error:
        raise Invalid.at("spec", spec.kind, "server", message=str(error)) from error


def _usable_appcode(manifest: DatastoreManifest, user: User) -> Appcode:
    appcode = appcodes_for(user).filter(code=manifest.metadata.appcode).first()
    if appcode is None:
        sentence = f"There is no appcode “{manifest.metadata.appcode}” that you can use."
        raise Invalid.at("metadata", "appcode", message=sentence)
    require(user, appcode, OPERATE)
    if appcode.why_not:
        raise Invalid.at("metadata", "appcode", message=appcode.why_not)
    return appcode


def _record(verb: str, store: Datastore, actor: User, message: str) -> None:
    record(verb, actor=actor, appcode=store.appcode.code, object=f"datastore {store}", message=message)
