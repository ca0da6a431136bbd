"""The data of one run: fetched before its tasks start, stored while they run and once more when they have ended.

Run as `python -I -S storage.py FOLDER LOCK`, like a shim. FOLDER holds spec.json and command.json (the agent's) and
status.json (ours); SIGUSR1 says that command.json has changed. The commands: `finish` stores what is left, for at most
store_seconds, and ends; `pause` stores once and ends, to go on later.

The copies are made by rclone. It runs as the task's uid in a sandbox of its own in which only the copied folder is seen,
because a task may put any link into its output at any moment. What was stored is known by size and times of the files,
so nothing is started when nothing has changed, and nothing remote is ever deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import sys
import threading
import time
from functools import partial

if not __package__:  # run as a script; the isolated interpreter has no other way to find its neighbours
    sys.path[0:0] = [os.path.abspath(__file__).rsplit("/clusters/", 1)[0]]

from clusters.clouds.drivers import outputs
from clusters.clouds.drivers.local.data import cache, code, nfs, rclone
from clusters.clouds.drivers.local.task import sandbox
from clusters.clouds.drivers.local.task.shim import Status, leave_parent
from clusters.clouds.drivers.parts import WHOLE, link, shown
from datastores import trees
from datastores.listing import TRASH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from clusters.clouds.drivers.local.data.following import Following
    from clusters.clouds.drivers.local.data.streaming import Streaming
    from datastores.listing import Listing

STORE_EVERY = 5.0
NOT_THAT = "The input is not what {} was: files have been added, removed or written since."
# How often input that changes while it is copied is copied again, until what was read is known.
TRIES = 3
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0


class Told(Exception):
    """A command came while something else went on."""


class Refused(Exception):
    """The input, or the code, is not what was asked for; the text says so."""


class Storage:
    """All remote mounts of one run."""

    def __init__(self, folder: str, spec: dict[str, Any], wake: int) -> None:
        self.folder, self.spec, self.wake = folder, spec, wake
        self.doing = ""
        self.status = Status(folder, spec["poke"], spec["name"])
        self.status.values = _read(os.path.join(folder, "status.json")) or {}
        self.mounts: list[dict[str, Any]] = spec["mounts"]
        self.outputs = [mount for mount in self.mounts if mount["kind"] == "s3" and not mount["read_only"]]
        self.outputs += [in_work(mount, spec["work"]) for mount in self.outputs[:1]]
        self.stored: dict[str, dict[str, list[int]]] = _read(os.path.join(folder, "stored.json")) or {}
        self.kept: dict[str, outputs.Output] = {}
        self.following: Following | None = None
        if followed := [mount for mount in self.mounts if mount["kind"] == "s3" and mount["follow"]]:
            # It brings what HTTP needs, and few runs follow anything.
            from clusters.clouds.drivers.local.data.following import Following

            self.following = Following(spec, followed, folder)

        streamed = next((mount for mount in self.mounts if mount["stream_key"]), None)
        self.streaming: Streaming | None = None
        if streamed:  # it brings what HTTP needs, too
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
        """Until there is a command."""
        with contextlib.suppress(Told):
            while True:
                self.sleep(STORE_EVERY)

    def end(self) -> None:
        """Does what the last command says; a pause may come after a finish, when the whole portal is stopped."""
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
        """Until everything is there; what stands in the way is shown and tried again."""
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
                # Whoever has it made later runs it again; nobody finds a run that waits for a misspelt name.
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
        """Until it is done: a disk may be full, a folder not for us to read."""
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
        """Until what is followed was looked at once, so that who opens it first finds something."""
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
        """Until its listing is that of a whole one in the cache, which is made when it is not there."""
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
        """Whether what was copied is what was listed. Raises rclone.Failed."""
        partial = cache.begin(place, self.spec["cache_uid"])
        free = cache.free_bytes(place) - self.spec["least_free"]
        left = max(0, listing.size - cache.written(partial))
        # The agent hears of what is missing, and makes room where it can; what there is room for moves nothing out.
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
        """The lock of one place of the cache, however long another run takes to make it. Raises Told."""
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
        """Waits in a thread, so that a command is heard meanwhile."""
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
        """What is said of input without a file, "" where there is one."""
        for mount in self.mounts:
            place = self.status.values.get("sources", {}).get(mount["number"], mount["folder"])
            is_copied = not (mount["follow"] or mount["shown_gib"] or mount["stream_key"])
            # Of folders of this machine the agent says it.
            if mount["kind"] != "local" and mount["read_only"] and is_copied and is_empty(place):
                where = rclone.where(mount) if mount["kind"] == "s3" else f"{mount['server']}:{mount['path']}"
                return f"The input is empty: there is nothing in {where}."
        return ""

    def store_live(self) -> None:
        """A failure costs nothing yet: it is shown, and the next round tries again."""
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
        """Stores every changed file that can be. Raises rclone.Failed when the store is at fault."""
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
        """When all was there and tasks could start, in ns."""
        return int(self.status.values.get("since", 0))

    def left_out(self) -> str:
        """A sentence about what was left out of all outputs, "" for nothing."""
        left: dict[str, str] = {}
        for output in self.kept.values():
            left |= output.left_out
        return outputs.sentence(left)

    def finish(self) -> None:
        """The last store. `over` tells the agent; what could not be stored stays where it is."""
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
        return str((_read(os.path.join(self.folder, "command.json")) or {}).get("command", ""))

    def check(self) -> None:
        if self.command() != self.doing:
            raise Told

    def sleep(self, seconds: float, also: int = -1) -> None:
        """Raises Told as soon as there is another command. Ends when `also` can be read."""
        self.check()
        handles = [self.wake, also] if also >= 0 else [self.wake]
        if self.wake in select.select(handles, [], [], seconds)[0]:
            os.read(self.wake, 64)
            self.check()


def share(folder: str, part: int) -> str:
    """Where the tasks that get this part find what they see of the divided input in `folder`; -1 for those that get none."""
    return f"{folder}-{part}" if part >= 0 else f"{folder}-none"


def divide(mount: dict[str, Any], source: str) -> None:
    """Makes a folder for each part, and one for those who get none, of hard links to what was fetched into `source`, so no file
    lies here twice, or of links to where tasks find what is mounted. May be repeated, for nobody looks at them yet."""
    folder, parts, fold, folds = (mount[key] for key in ("folder", "parts", "fold", "folds"))
    names = [name for name in scan(source) if not name.startswith(f"{TRASH}/")]
    for part in (-1, *range(parts)):
        found = shown(names, part, parts, fold, folds)
        there = share(folder, part)
        if os.path.isdir(there):
            trees.remove(there)
        os.mkdir(there, 0o755)
        if mount["kind"] != "s3":
            link(WHOLE, there, found)
            continue
        for name, appears in found:
            os.makedirs(os.path.dirname(os.path.join(there, appears)), exist_ok=True)
            os.link(os.path.join(source, name), os.path.join(there, appears), follow_symlinks=False)


def in_work(mount: dict[str, Any], folder: str) -> dict[str, Any]:
    """How the folder of all folders in which the tasks of the run start is stored below its output."""
    prefix = f"{mount['prefix']}/{outputs.WORK_FOLDER}".strip("/")
    return {**mount, "number": "work", "folder": folder, "prefix": prefix, "mount_path": outputs.WORK}


def look(mount: dict[str, Any], since: int) -> outputs.Look:
    where = {"mount": mount["mount_path"], "prefix": mount["prefix"]}
    if mount["mount_path"] == outputs.WORK:
        return outputs.look_at_work(mount["folder"], since=since, **where)
    return outputs.look(mount["folder"], **where)


def scan(folder: str) -> dict[str, list[int]]:
    """Size and times of every regular file below `folder`, by its path in there. Follows no links."""
    files: dict[str, list[int]] = {}
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for found in trees.walk(top):
            info = found.info
            if stat.S_ISREG(info.st_mode):
                files[found.path] = [info.st_size, info.st_mtime_ns, info.st_ctime_ns]
    finally:
        os.close(top)
    return files


def is_empty(folder: str) -> bool:
    """Whether nothing at all is in it. What may not be looked at is not called empty."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def megabytes(done: int, total: int) -> str:
    return f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"


def _read(path: str) -> Any:
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def main(folder: str, lock: int) -> None:
    leave_parent(lock)
    os.set_inheritable(lock, False)
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    Storage(folder, _read(os.path.join(folder, "spec.json")), wake_read).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
