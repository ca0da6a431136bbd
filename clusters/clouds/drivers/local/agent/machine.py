"""The machine as all parts of the agent see it: its folder, GPUs, limits and uids, and the last reports on its runs.

It knows runs only by id. Everything that a run, its tasks, data and network need of the agent is here; `Node` (node.py) adds the
runs.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import math
import os
import secrets
import shutil
import socket
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from clusters.clouds.drivers.base import (
    ActivitySeen,
    EndpointSeen,
    Plan,
    RunRef,
    Seen,
    StorageSeen,
    TaskSeen,
    VolumeSource,
)
from clusters.clouds.drivers.local import protocol
from clusters.clouds.drivers.local.agent import disks, gpu_meter, gpus, scheduler, uids
from clusters.clouds.drivers.local.agent.journal import BOOT_ID, Journal
from clusters.clouds.drivers.local.data import cache
from clusters.clouds.drivers.local.data.files import read_json, write_json
from clusters.clouds.drivers.local.task import cgroups, rlimits
from datastores import trees

log = logging.getLogger(__name__)

UIDS_SHARED = (
    "{} may use uids of tasks in containers of their own, and read and change what tasks write: give them another range in "
    "/etc/subuid and /etc/subgid."
)
LAUNCHES = 8
TRY_AGAIN = 5.0
LOG_LIMIT = 64 * 1024 * 1024
GIB = 1 << 30


@dataclass(frozen=True)
class Options:
    """Command line options. `store_seconds`: how long the last store of a run is retried. `cpu_overcommit`: how often each core
    is assigned. `reserved_gb`: GiB of memory not for tasks, None for the default of `machine_room`. `processes`: per task,
    threads included. `file_gb`: GiB of the largest file, 0 for a quarter of the disk. `free_disk_gb`: GiB of free disk below
    which no run starts, None for the default of `least_free`. `appcode_gb`: GiB that the runs of an appcode may write, 0 for a
    quarter of the disk. `activity_seconds`: between two activity polls. `may_share`: several appcodes may run at the same time
    even if they cannot be isolated. `packages`: socket of the server for package index and
    tracking, "" for none; `has_index`: it knows an index."""

    ports: range = range(20_000, 30_000)
    journal_items: int = 20_000
    log_limit: int = LOG_LIMIT
    store_seconds: float = 600.0
    cpu_overcommit: float = 4.0
    reserved_gb: float | None = None
    processes: int = 4096
    file_gb: float = 0.0
    free_disk_gb: float | None = None
    appcode_gb: float = 0.0
    may_share: bool = False
    outside: bool = False
    activity_seconds: float = 15.0
    packages: str = ""
    has_index: bool = True


class Machine(ABC):
    """For use inside one event loop only."""

    def __init__(self, folder: Path, found: gpus.Gpus, options: Options) -> None:
        self.folder, self.gpus = folder, found
        self.ports, self.log_limit, self.store_seconds = options.ports, options.log_limit, options.store_seconds
        self.may_share = options.may_share
        self.room = machine_room(options.cpu_overcommit, options.reserved_gb)
        self.rclone, self.uv = _program("rclone"), _program("uv")
        # The Python environment that can fetch code from Git.
        self.git = sys.prefix if importlib.util.find_spec("dulwich") else ""
        self.packages, self.has_index = options.packages, options.has_index
        self.name = socket.gethostname()
        self.boot = BOOT_ID.read_text().strip()
        self.poke = folder / "poke"
        self.cache = folder / "cache"
        self.swept: list[asyncio.Future[None]] = []  # ongoing removals from the cache
        self.meter = gpu_meter.Meter()
        self.activity_seconds = options.activity_seconds
        self.leaving = False
        for name in ("disks", "runs", "trash", "volumes"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(folder)
        self.least_free = least_free(disk.f_frsize * disk.f_blocks, options.free_disk_gb)
        self.appcode_bytes = int(options.appcode_gb * GIB) or disk.f_frsize * disk.f_blocks // 4
        self.most_cached = disk.f_frsize * disk.f_blocks // 4
        self.limits: rlimits.Limits = {
            "processes": options.processes,
            "together": rlimits.together(),
            "file_bytes": int(options.file_gb * GIB) or disk.f_frsize * disk.f_blocks // 4,
        }
        known = read_json(folder / "cloud.json")
        if known is None:
            known = {"id": str(uuid.uuid4()), "uids": {}, "order": 0, "port": 0}
            # A random start, so that two portals on one machine rarely choose the same port.
            known["port"] = self.ports.start + secrets.randbelow(len(self.ports))
            write_json(folder / "cloud.json", known, durable=True)
        self.known: dict[str, Any] = known
        self.id = uuid.UUID(known["id"])
        self.first_uid = uids.first()
        self.journal = Journal(folder / "journal", options.journal_items)
        self.told: dict[str, Seen] = {}
        self.news: list[Seen] = []
        self.woken: dict[int, None] = {}  # an ordered set of run ids
        self.turn_due = False
        self.launches = 0
        self.cannot_isolate = ""
        self.wants_outside, self.pasta = options.outside, shutil.which("pasta")
        self.outside, self.no_outside = False, ""  # whether tasks reach the internet, and why not if they should
        self.shares_network = ""  # why tasks have no private network here
        self.building: dict[str, int] = {}  # the run that makes an environment, by appcode and key
        self.open_until = math.inf  # queue position from which runs wait for another appcode's runs to end
        self.no_disks = ""  # why what tasks write has no size limit here
        self.attached: set[Path] = set()  # mounted file systems of appcodes
        self.cgroups = cgroups.find(f"elearn-{self.id}")

    @abstractmethod
    def turn(self) -> None:
        """Advances the woken runs, assigns free resources, and writes the news."""

    def wake(self, run_id: int | None = None) -> None:
        """Schedules a turn, which processes this run (and the queue)."""
        if run_id is not None:
            self.woken[run_id] = None
        if not self.turn_due:
            self.turn_due = True
            asyncio.get_running_loop().call_soon(self.turn)

    def may_launch(self, run_id: int) -> bool:
        """Limits launches per turn, because each takes milliseconds, in which clients wait."""
        self.launches += 1
        if self.launches > LAUNCHES:
            self.wake(run_id)
        return self.launches <= LAUNCHES

    def later(self, seconds: float, run_id: int) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake, run_id)

    def call_later(self, seconds: float, what: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, what)

    @abstractmethod
    def wake_all(self) -> None:
        """Wakes every run."""

    @abstractmethod
    def in_use(self) -> set[str]:
        """Returns the environments of all current runs, by their keys in `building`."""

    @abstractmethod
    def cached_in_use(self) -> set[str]:
        """Returns the cache entries that current runs use."""

    def sweep_cache(self, wanted: int = 0) -> None:
        """Deletes expired cache entries, and more if needed to write `wanted` bytes and still start runs."""
        wanted += self.least_free - cache.free_bytes(str(self.folder))
        # Removals in progress will free space: do not remove more meanwhile.
        self.swept = [each for each in self.swept if not each.done()]
        if self.swept:
            return

        def discard(place: str) -> None:
            if going := self.discard(Path(place)):
                self.swept.append(going)

        cache.sweep(str(self.cache), self.cached_in_use, discard, most=self.most_cached, wanted=wanted)

    def disk_problem(self) -> str:
        """Returns why no run may start now, or "" if there is enough disk."""
        free = cache.free_bytes(str(self.folder))
        if free >= self.least_free:
            return ""
        self.sweep_cache()
        least = f"none starts below {self.least_free / GIB:.3g}"
        return (
            f"Waits for disk: {free / GIB:.2g} GiB are free where runs are kept, and {least}. "
            "An administrator can make room or change LOCAL_CLOUD_FREE_DISK_GB."
        )

    def emit(self, item: Seen) -> None:
        """Reports `item` unless it equals the last report."""
        key = key_of(item)
        if self.told.get(key) != item:
            self.told[key] = item
            self.news.append(item)
            self.wake()

    def flush(self) -> None:
        try:
            self.journal.append(self.news)
        except OSError:  # a full disk: retry later
            log.exception("The journal cannot be written now")
            asyncio.get_running_loop().call_later(TRY_AGAIN, self.wake)
        else:
            self.news = []

    def uid(self, appcode: str) -> int | None:
        """Returns the permanent uid of an appcode's tasks; None if the agent is not root (tasks then run as its own user)."""
        if os.geteuid() != 0:
            return None
        known = self.known["uids"]
        if appcode not in known:
            known[appcode] = self.first_uid + len(known)
            write_json(self.folder / "cloud.json", self.known, durable=True)
        return int(known[appcode])

    @property
    def uids_shared(self) -> str:
        """Returns a sentence on other owners of the tasks' uids, or ""."""
        if os.geteuid() != 0:
            return ""
        given = uids.subordinate()
        ranges = [
            (self.first_uid - uids.BEFORE, uids.BEFORE + uids.APPCODES),
            *((int(uid), 1) for uid in self.known["uids"].values()),
        ]
        owners = sorted({uids.owner(*each, given) for each in ranges} - {""})
        return UIDS_SHARED.format(" and ".join(owners)) if owners else ""

    def model(self, ids: tuple[str, ...], asked: str) -> str:
        """Returns the model of the GPUs `ids`; simulated ones have the requested model."""
        models = [slot.model for slot in self.gpus.slots if slot.id in ids]
        return "" if not models else (asked or models[0]) if self.gpus.simulated else models[0]

    def remains(self, number: int) -> list[Seen]:
        """Returns the last reports on a gone run."""
        remains = read_json(self.folder / "runs" / str(number) / "gone.json") or {"seen": []}
        return [protocol.seen_from(item) for item in remains["seen"]]

    def volume(self, number: int) -> Path:
        """Returns the folder of a volume, which outlives runs."""
        return self.folder / "volumes" / str(number)

    def room_for(self, ref: RunRef) -> Path:
        """Returns the folder in which a run writes: on its appcode's file system if there is one. Raises OSError.

        A link in the run's folder records the choice, so that its files are still found if file systems become available or fail
        later.
        """
        folder = self.run_folder(ref.id)
        link = folder / "room"
        if not link.is_symlink():
            is_plain = self.no_disks or (folder / "scratch").exists()
            place = "." if is_plain else f"../../disks/{self.uid(ref.appcode)}/{ref.id}"
            link.symlink_to(place)
        place = os.readlink(link)
        if place == ".":
            return folder
        room = self.folder / "disks" / Path(place).relative_to("../../disks")
        self._attach(room.parent)
        room.mkdir(exist_ok=True)
        return room

    def attach_all(self) -> None:
        """Mounts the file systems of all appcodes when the agent starts."""
        for image in self.folder.glob("disks/*.ext4"):
            try:
                self._attach(image.with_suffix(""))
            except OSError as error:
                log.exception("What an appcode has written cannot be read: %s", error)

    def discard_written(self, number: int) -> None:
        """Deletes what a gone run wrote."""
        for path in self.folder.glob(f"disks/*/{number}"):
            self.discard(path)

    def _attach(self, at: Path) -> None:
        if at not in self.attached:
            disks.attach(at.with_suffix(".ext4"), at, self.appcode_bytes, owner=0, spare=1)
            at.chmod(0o711)  # tasks pass through it to their own folders
            (at / "trash").mkdir(mode=0o700, exist_ok=True)
            self.attached.add(at)

    def attach_volume(self, source: VolumeSource, owner: int) -> None:
        """Creates a volume if missing and gives it its size if possible here. Raises OSError."""
        at, image = self.volume(source.volume.id), self._image(source.volume.id)
        # An existing plain folder stays one.
        if image.exists() or not (self.no_disks or at.is_dir()):
            disks.attach(image, at, disks.size_of(source.size), owner=owner)
        elif not at.is_dir():
            at.mkdir(mode=0o700)
            os.chown(at, owner, owner)

    def remove_volume(self, number: int) -> None:
        """Deletes a volume. Raises OSError."""
        disks.detach(self.volume(number))
        for path in (self.volume(number), self._image(number)):
            self.discard(path)

    def detach_all(self) -> None:
        """Unmounts everything while no process of a run lives, so that the portal's folder can be moved and deleted."""
        self.attached.clear()
        for at in [*self.folder.glob("volumes/*"), *self.folder.glob("disks/*")]:
            try:
                disks.detach(at)
            except OSError as error:
                log.warning("%s stays mounted: %s", at, error)

    def _image(self, number: int) -> Path:
        """Returns the file that contains a volume's file system."""
        return self.folder / "volumes" / f"{number}.ext4"

    def run_folder(self, number: int) -> Path:
        folder = self.folder / "runs" / str(number)
        folder.mkdir(exist_ok=True)
        return folder

    def discard(self, path: Path) -> asyncio.Future[None] | None:
        """Moves a file or folder away at once, then deletes it. Returns the future of the deletion if that needs a thread."""
        disk = next((each for each in self.attached if path.is_relative_to(each)), self.folder)
        trash = disk / "trash" / uuid.uuid4().hex
        try:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)  # a folder that its task made unwritable could not be moved
            os.rename(path, trash)
        except FileNotFoundError:
            return None
        return self._remove(trash)

    def _remove(self, path: Path) -> asyncio.Future[None] | None:
        if not path.is_dir() or path.is_symlink():
            path.unlink()
            return None
        try:
            path.rmdir()
        except OSError:  # usually: not empty
            return asyncio.get_running_loop().run_in_executor(None, _remove_tree, path)
        return None


class PartOf(Protocol):
    """What the data, the network and the tasks of a run need of it."""

    @property
    def machine(self) -> Machine: ...
    @property
    def ref(self) -> RunRef: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def folder(self) -> Path: ...
    @property
    def uid(self) -> int | None: ...


def least_free(disk: int, given_gb: float | None) -> int:
    """Returns the free bytes of `disk` below which no run starts."""
    return min(5 * GIB, disk // 20) if given_gb is None else int(given_gb * GIB)


def machine_room(cpu_overcommit: float, reserved_gb: float | None) -> scheduler.Room:
    """Returns what tasks may use of this machine. Cores can be overcommitted, memory cannot."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    reserved = min(2048, memory // 4) if reserved_gb is None else int(reserved_gb * 1024)
    return scheduler.Room(int(len(os.sched_getaffinity(0)) * 1000 * cpu_overcommit), max(0, memory - reserved))


def key_of(item: Seen) -> str:
    if isinstance(item, TaskSeen):
        return item.uid
    if isinstance(item, EndpointSeen):
        return f"endpoint-{item.run_id}-{item.name}"
    if isinstance(item, ActivitySeen):
        return f"activity-{item.run_id}"
    return f"storage-{item.run_id}" if isinstance(item, StorageSeen) else f"gone-{item.run_id}"


def _program(name: str) -> str:
    """Returns a program that a wheel installed beside our Python, else the system's, or ""."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or ""


def _remove_tree(path: Path) -> None:
    """Deletes a folder, including parts that a task made unwritable."""
    try:
        trees.remove(str(path), unlock=True)
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error)
