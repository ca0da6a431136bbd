"""The data of one run: fetched before its tasks start, stored while they run and once more when they have ended.

Run as `python -I -S storage.py FOLDER LOCK`, like a shim. FOLDER contains spec.json and command.json (from the agent) and
status.json (from this process); SIGUSR1 signals a new command.json. Commands: `finish` stores what is left, for at most
store_seconds, and ends; `pause` stores once and ends, to continue later.

rclone copies. It runs with the task's uid in a sandbox that contains only the copied folder, because a task may create any link
in its output at any moment. Stored files are recognized by size and times, so without changes nothing is started. Nothing remote
is ever deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import threading
import time
from functools import partial

if not __package__:  # run as a script: the isolated interpreter cannot find its neighbours otherwise
    sys.path[0:0] = [os.path.abspath(__file__).rsplit("/clusters/", 1)[0]]

from clusters.clouds.drivers import outputs
from clusters.clouds.drivers.local.data import cache, code, nfs, rclone
from clusters.clouds.drivers.local.data.division import divide
from clusters.clouds.drivers.local.data.files import read_json
from clusters.clouds.drivers.local.task import sandbox
from clusters.clouds.drivers.local.task.shim import Status, leave_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from clusters.clouds.drivers.local.data.following import Following
    from clusters.clouds.drivers.local.data.streaming import Streaming
    from datastores.listing import Listing

STORE_EVERY = 5.0
NOT_THAT = "The input is not what {} was: files have been added, removed or written since."
# How often input that changes during the copy is copied again, until its content is known.
TRIES = 3
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0


class Told(Exception):
    """A new command interrupts the current work."""


class Refused(Exception):
    """Input or code is not the requested one; the text explains."""


class Storage:
    """All remote mounts of one run."""

    def __init__(self, folder: str, spec: dict[str, Any], wake: int) -> None:
        self.folder, self.spec, self.wake = folder, spec, wake
        self.doing = ""
        self.status = Status(folder, spec["poke"], spec["name"])
        self.status.values = read_json(os.path.join(folder, "status.json")) or {}
        self.mounts: list[dict[str, Any]] = spec["mounts"]
        self.outputs = [mount for mount in self.mounts if mount["kind"] == "s3" and not mount["read_only"]]
        self.outputs += [in_work(mount, spec["work"]) for mount in self.outputs[:1]]
        self.stored: dict[str, dict[str, list[int]]] = read_json(os.path.join(folder, "stored.json")) or {}
        self.kept: dict[str, outputs.Output] = {}
        self.following: Following | None = None
        if followed := [mount for mount in self.mounts if mount["kind"] == "s3" and mount["follow"]]:
            # Imported on demand: it needs an HTTP library, and few runs follow files.
            from clusters.clouds.drivers.local.data.following import Following

            self.following = Following(spec, followed, folder)

        streamed = next((mount for mount in self.mounts if mount["stream_key"]), None)
        self.streaming: Streaming | None = None
        if streamed:  # it needs an HTTP library, too
            from clusters.clouds.drivers.local.data.streaming import Streaming

            self.streaming = Streaming(spec, streamed, folder)

    # -- the row of things ---------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            if self.streaming:
                self.streaming.look()
            if not self.status.values.get("fetched"):
                self.fetch()
            while True:
                self.sleep(STORE_EVERY)
                self.store_live()
        except Refused as error:
            self.say("refused", str(error), durable=True)
            self.wait()
            self.end()
        except Told:
            self.end()

    def wait(self) -> None:
        with contextlib.suppress(Told):
            while True:
                self.sleep(STORE_EVERY)

    def end(self) -> None:
        """Executes the last command. A pause may follow a finish when the whole portal stops."""
        self.doing = self.command()
        if self.following:
            self.following.stop()
            self.following = None
        if self.streaming:
            self.streaming.stop()
            self.streaming = None
        try:
            if self.doing == "finish":
                self.finish()
            elif self.status.values.get("fetched"):
                self.store_live()
        except Told:
            self.end()

    def fetch(self) -> None:
        """Fetches until everything is there; shows errors and retries."""
        self.say("fetching", "Fetching the data.")
        delay = FIRST_DELAY
        while True:
            try:
                if self.spec.get("code"):
                    self.fetch_code()
                for mount in self.mounts:
                    self.fetch_one(mount)
                break
            except code.Failed as error:
                self.say("failed", f"The code cannot be fetched: {error} It is tried again.")
                self.sleep(delay)
                delay = min(LONGEST_DELAY, delay * 2)
            except rclone.Absent as error:
                # Final: a run that waits for a misspelt name would go unnoticed. People can start it again once the folder
                # exists.
                raise Refused(f"Input cannot be fetched: {error}") from None
            except rclone.Failed as error:
                what = "Input" if mount["read_only"] else "The folder for output"
                self.say("failed", f"{what} cannot be fetched: {error} It is tried again.")
                self.sleep(delay)
                delay = min(LONGEST_DELAY, delay * 2)
        for mount in self.mounts:
            if mount["parts"] or mount["folds"]:
                self.divide(mount)
        self.reach()
        for mount in self.outputs:
            self.stored[mount["number"]] = look(mount, 0).files
        self.remember()
        self.say("ready", "", fetched=True, since=time.time_ns(), durable=True, warning=self.emptiness())

    def divide(self, mount: dict[str, Any]) -> None:
        """Divides an input; retries errors such as a full disk or an unreadable folder."""
        delay = FIRST_DELAY
        while True:
            try:
                self.divide_once(mount)
                return
            except OSError as error:
                self.say("failed", f"The input cannot be divided: {error.strerror}. It is tried again.")
                self.sleep(delay)
                delay = min(LONGEST_DELAY, delay * 2)

    def divide_once(self, mount: dict[str, Any]) -> None:
        if mount["kind"] != "local":
            divide(mount, self.status.values.get("sources", {}).get(mount["number"], mount["folder"]))
            return
        handle = sandbox.open_inside(mount["root"], mount["path"])
        try:
            divide(mount, f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)

    def reach(self) -> None:
        """Waits until followed files have been listed once, so that an early reader finds something."""
        while self.following and not self.following.reached:
            self.following.look()
            if problem := self.following.problem:
                self.say("failed", f"{problem} It is tried again.")
            self.sleep(STORE_EVERY, self.following.said)

    def fetch_code(self) -> None:
        try:
            code.fetch(self.spec, self.folder, self.wake, self.check)
        except code.Refused as error:
            raise Refused(str(error)) from None

    def fetch_one(self, mount: dict[str, Any]) -> None:
        if mount["kind"] == "nfs":
            place = nfs.attach(mount["server"], mount["path"], mount["folder"], self.spec["open"])
            self.status.values.setdefault("sources", {})[mount["number"]] = place
            return
        if mount["kind"] == "local" or mount["follow"] or mount["stream_key"]:
            return
        if mount["cached"]:
            self.fetch_cached(mount)
            return
        what = "input" if mount["read_only"] else "existing output"

        def progress(done: int, total: int) -> None:
            if self.status.values["state"] == "fetching" or done:
                self.say("fetching", f"Fetching {what}: {megabytes(done, total)}.")

        if mount["is_input"]:
            self.status.values.pop("read", None)
        for _ in range(TRIES if mount["is_input"] else 1):
            before = self.list(mount) if mount["is_input"] else None
            if before and mount["digest"] and before.digest != mount["digest"]:
                raise Refused(NOT_THAT.format(mount["version"]))
            rclone.fetch(self.spec, mount, self.folder, self.wake, progress, self.check)
            if before and self.list(mount).digest == before.digest:
                self.status.values["read"] = [before.digest, before.files, before.size]
                return

    def fetch_cached(self, mount: dict[str, Any]) -> None:
        """Provides a cached copy that matches the current listing; makes it if it does not exist."""
        for _ in range(TRIES):
            listing = self.list(mount)
            if mount["digest"] and listing.digest != mount["digest"]:
                raise Refused(NOT_THAT.format(mount["version"]))
            key = cache.key_of(mount, listing.digest)
            place = os.path.join(self.spec["cache"], key)
            with self.held(place):
                if not os.path.isdir(cache.files(place)) and not self.make(mount, place, listing):
                    continue
                cache.used(place)
                mine = {"cached": {mount["number"]: key}, "sources": {mount["number"]: cache.files(place)}}
                for name, values in mine.items():
                    self.status.values.setdefault(name, {}).update(values)
                self.status.write(durable=True, wanted=0, read=[listing.digest, listing.files, listing.size])
                return
        raise rclone.Failed(f"What lies in {rclone.where(mount)} changes while it is copied, so it cannot be cached.")

    def make(self, mount: dict[str, Any], place: str, listing: Listing) -> bool:
        """Copies an input into the cache. Returns whether the copy matches the listing. Raises rclone.Failed."""
        partial = cache.begin(place, self.spec["cache_uid"])
        free = cache.free_bytes(place) - self.spec["least_free"]
        left = max(0, listing.size - cache.written(partial))
        # `wanted` tells the agent to make room, and is only set if room is missing, so that nothing is evicted needlessly.
        lacks = left > free
        self.say("fetching", "Fetching input, once for all runs that read the same.", wanted=left if lacks else 0)
        if lacks:
            raise rclone.Failed(
                f"It has {listing.size / 1e9:.1f} GB, and {max(0, free) / 1e9:.1f} are free for it here."
            )

        def progress(done: int, total: int) -> None:
            self.say("fetching", f"Fetching input, once for all runs that read the same: {megabytes(done, total)}.")

        spec, into = self.spec | {"uid": self.spec["cache_uid"]}, mount | {"folder": partial}
        rclone.fetch(spec, into, self.folder, self.wake, progress, self.check)
        if self.list(mount).digest != listing.digest:
            cache.forget(place)
            return False
        cache.finish(place, listing.size)
        return True

    @contextlib.contextmanager
    def held(self, place: str) -> Iterator[None]:
        """Holds the lock of a cache entry, however long another run takes to make it. Raises Told."""
        while True:
            handle = cache.open_lock(place)
            try:
                self.lock(handle)
                if cache.is_of(handle, place):
                    yield
                    return
            finally:
                os.close(handle)

    def lock(self, handle: int) -> None:
        """Takes a lock; waits in a thread, so that commands interrupt the wait."""
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        self.say("fetching", "Waits for another run that fetches the same input.")
        taken, takes = os.pipe2(os.O_CLOEXEC)

        def wait() -> None:
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.close(takes)

        threading.Thread(target=wait, daemon=True).start()
        try:
            while not select.select([taken], [], [], 0)[0]:
                self.sleep(STORE_EVERY, taken)
        finally:
            os.close(taken)

    def list(self, mount: dict[str, Any]) -> Listing:
        return rclone.listing(self.spec, mount, self.folder, self.wake, self.check)

    def emptiness(self) -> str:
        """Returns a warning about input without files, or ""."""
        for mount in self.mounts:
            place = self.status.values.get("sources", {}).get(mount["number"], mount["folder"])
            is_copied = not (mount["follow"] or mount["shown_gib"] or mount["stream_key"])
            # The agent checks folders of this machine.
            if mount["kind"] != "local" and mount["read_only"] and is_copied and is_empty(place):
                where = rclone.where(mount) if mount["kind"] == "s3" else f"{mount['server']}:{mount['path']}"
                return f"The input is empty: there is nothing in {where}."
        return ""

    def store_live(self) -> None:
        """Stores once while tasks run. Shows an error; the next round retries."""
        if self.streaming:
            self.streaming.look()
        try:
            self.store()
        except rclone.Failed as error:
            self.say("failed", f"Output cannot be stored: {error} It is tried again.")
            return
        if self.following:
            self.following.look()
            if problem := self.following.problem:
                self.say("failed", f"{problem} It is tried again.")
                return
        self.say("ready", "")

    def store(self) -> None:
        """Stores every changed file that can be stored. Raises rclone.Failed if the store fails."""
        for mount in self.outputs:
            output = self.kept.get(mount["number"])
            if output is None:
                known = self.stored.setdefault(mount["number"], {})
                output = self.kept[mount["number"]] = outputs.Output(known)
            try:
                has_stored = output.store(
                    look(mount, self.since),
                    partial(rclone.store, self.spec, mount, self.folder),
                )
            except rclone.Failed:
                self.remember()
                raise
            if has_stored:
                self.remember()

    @property
    def since(self) -> int:
        """When everything was fetched and tasks could start, in ns."""
        return int(self.status.values.get("since", 0))

    def left_out(self) -> str:
        """Returns a sentence on what was left out of all outputs, or ""."""
        left: dict[str, str] = {}
        for output in self.kept.values():
            left |= output.left_out
        return outputs.sentence(left)

    def finish(self) -> None:
        """Stores for the last time and reports `over`. Files that could not be stored stay where they are."""
        if not self.status.values.get("fetched"):
            self.say("none", "", over=True, stored=True)
            return
        self.say("storing" if self.outputs else "ready", "Storing the output." if self.outputs else "")
        deadline = time.monotonic() + self.spec["store_seconds"]
        delay = FIRST_DELAY
        while True:
            try:
                self.store()
                break
            except rclone.Failed as error:
                left = deadline - time.monotonic()
                if left <= 0:
                    where = " and ".join(mount["folder"] for mount in self.outputs if look(mount, self.since).files)
                    text = f"Output could not be stored: {error} The files are still in {where}."
                    self.say("failed", text, over=True, stored=False, durable=True)
                    return
                self.say("failed", f"Output cannot be stored: {error} It is tried again.")
                self.sleep(min(delay, left))
                delay = min(LONGEST_DELAY, delay * 2)
        for mount in self.mounts:
            if mount["kind"] == "nfs":
                nfs.detach(mount["folder"])
        state = "stored" if self.outputs else "none"
        self.say(state, "", over=True, stored=True, durable=True, left=self.left_out())

    # -- small things ----------------------------------------------------------------------------------------------

    def say(self, state: str, message: str, *, durable: bool = False, **values: Any) -> None:
        values |= {"state": state, "message": message}
        if any(self.status.values.get(key) != value for key, value in values.items()):
            self.status.write(durable=durable, **values)
            while not self.status.tell():
                time.sleep(0.05)

    def remember(self) -> None:
        path = os.path.join(self.folder, "stored.json")
        with open(path + ".new", "w") as file:
            json.dump(self.stored, file)
        os.rename(path + ".new", path)

    def command(self) -> str:
        return str((read_json(os.path.join(self.folder, "command.json")) or {}).get("command", ""))

    def check(self) -> None:
        if self.command() != self.doing:
            raise Told

    def sleep(self, seconds: float, also: int = -1) -> None:
        """Raises Told as soon as there is another command. Returns early when `also` is readable."""
        self.check()
        handles = [self.wake, also] if also >= 0 else [self.wake]
        if self.wake in select.select(handles, [], [], seconds)[0]:
            os.read(self.wake, 64)
            self.check()


def in_work(mount: dict[str, Any], folder: str) -> dict[str, Any]:
    """Returns a mount that stores the tasks' working folders below the run's output."""
    prefix = f"{mount['prefix']}/{outputs.WORK_FOLDER}".strip("/")
    return {**mount, "number": "work", "folder": folder, "prefix": prefix, "mount_path": outputs.WORK}


def look(mount: dict[str, Any], since: int) -> outputs.Look:
    where = {"mount": mount["mount_path"], "prefix": mount["prefix"]}
    if mount["mount_path"] == outputs.WORK:
        return outputs.look_at_work(mount["folder"], since=since, **where)
    return outputs.look(mount["folder"], **where)


def is_empty(folder: str) -> bool:
    """Returns whether a folder is empty; False if it is unreadable."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def megabytes(done: int, total: int) -> str:
    return f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"


def main(folder: str, lock: int) -> None:
    leave_parent(lock)
    os.set_inheritable(lock, False)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    Storage(folder, read_json(os.path.join(folder, "spec.json")), wake_read).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
