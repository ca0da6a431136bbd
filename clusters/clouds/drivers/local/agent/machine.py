"""The machine as every part of the agent knows it: its folder, GPUs, limits and uids, and what was told of its runs.

It knows no run but by its id. What a run, its tasks, data and network need of the node agent is here and nothing else;
`Node` (node.py) adds the runs themselves.
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
    """Of the command line. `store_seconds` is how long the last store of a run is tried again; `cpu_overcommit` how often
    each core is given out; `reserved_gb` the GiB of memory for everything but tasks, None for what `machine_room` thinks right;
    `processes` of one task, threads too; `file_gb` the GiB of the largest file, 0 for a quarter of the disk; `free_disk_gb`
    the GiB without which no run starts, None for what `least_free` thinks right; `appcode_gb` the GiB that the runs of an appcode
    may write, 0 for a quarter of the disk; `activity_seconds` lie between two questions whether a run works. With `may_share`
    several appcodes run side by side even where they cannot be kept apart; `packages` is the socket of the package index, ""
    for none."""

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


class Machine(ABC):
    """To be used inside one event loop only."""

    def __init__(self, folder: Path, found: gpus.Gpus, options: Options) -> None:
        self.folder, self.gpus = folder, found
        self.ports, self.log_limit, self.store_seconds = options.ports, options.log_limit, options.store_seconds
        self.may_share = options.may_share
        self.room = machine_room(options.cpu_overcommit, options.reserved_gb)
        self.rclone, self.uv = _program("rclone"), _program("uv")
        # The Python, in its environment, that has what fetches code from Git.
        self.git = sys.prefix if importlib.util.find_spec("dulwich") else ""
        self.packages = options.packages
        self.name = socket.gethostname()
        self.boot = BOOT_ID.read_text().strip()
        self.poke = folder / "poke"
        self.cache = folder / "cache"
        self.swept: list[asyncio.Future[None]] = []  # of the cache, what is being removed
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
            # Two portals on one machine begin at different places, so that they hardly ever want the same port.
            known["port"] = self.ports.start + secrets.randbelow(len(self.ports))
            write_json(folder / "cloud.json", known, durable=True)
        self.known: dict[str, Any] = known
        self.id = uuid.UUID(known["id"])
        self.first_uid = uids.first()
        self.journal = Journal(folder / "journal", options.journal_items)
        self.told: dict[str, Seen] = {}
        self.news: list[Seen] = []
        self.woken: dict[int, None] = {}  # by the ids of runs, in order
        self.turn_due = False
        self.launches = 0
        self.cannot_isolate = ""
        self.wants_outside, self.pasta = options.outside, shutil.which("pasta")
        self.outside, self.no_outside = False, ""  # whether tasks reach the internet, and why not although they should
        self.shares_network = ""  # why tasks have no network of their own here
        self.building: dict[str, int] = {}  # which run makes an environment, by appcode and key
        self.open_until = math.inf  # the place in the queue from which on runs wait for those of another appcode
        self.no_disks = ""  # why what tasks write has no limit here
        self.attached: set[Path] = set()  # the file systems of appcodes
        self.cgroups = cgroups.find(f"elearn-{self.id}")

    @abstractmethod
    def turn(self) -> None:
        """Advances the woken runs, gives out what is free, and writes the news down."""

    def wake(self, run_id: int | None = None) -> None:
        """Looks at this run (and at the queue) in the next turn of the loop."""
        if run_id is not None:
            self.woken[run_id] = None
        if not self.turn_due:
            self.turn_due = True
            asyncio.get_running_loop().call_soon(self.turn)

    def may_launch(self, run_id: int) -> bool:
        """Starting takes milliseconds, so a turn starts a few only and lets clients speak in between."""
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
        """Looks at every run in the next turn."""

    @abstractmethod
    def in_use(self) -> set[str]:
        """The environments of the runs that are here, as `building` names them."""

    @abstractmethod
    def cached_in_use(self) -> set[str]:
        """What the runs that are here use of the cache."""

    def sweep_cache(self, wanted: int = 0) -> None:
        """Removes what is due, and so much more that `wanted` bytes can be written and runs start all the same."""
        wanted += self.least_free - cache.free_bytes(str(self.folder))
        # What goes already is not free yet, and nothing else has to go in its place.
        self.swept = [each for each in self.swept if not each.done()]
        if self.swept:
            return

        def discard(place: str) -> None:
            if going := self.discard(Path(place)):
                self.swept.append(going)

        cache.sweep(str(self.cache), self.cached_in_use, discard, most=self.most_cached, wanted=wanted)

    def disk_problem(self) -> str:
        """Why no run may start now; "" when there is room on the disk."""
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
        """Tells `item` unless it is what was told last."""
        key = key_of(item)
        if self.told.get(key) != item:
            self.told[key] = item
            self.news.append(item)
            self.wake()

    def flush(self) -> None:
        try:
            self.journal.append(self.news)
        except OSError:  # a full disk: the news waits
            log.exception("The journal cannot be written now")
            asyncio.get_running_loop().call_later(TRY_AGAIN, self.wake)
        else:
            self.news = []

    def uid(self, appcode: str) -> int | None:
        """The uid as which tasks of this appcode run, the same for ever; None when this is not root (everything is ours)."""
        if os.geteuid() != 0:
            return None
        known = self.known["uids"]
        if appcode not in known:
            known[appcode] = self.first_uid + len(known)
            write_json(self.folder / "cloud.json", self.known, durable=True)
        return int(known[appcode])

    @property
    def uids_shared(self) -> str:
        """Who else owns what tasks write, as a sentence; "" for nobody."""
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
        """The model of the GPUs `ids`; a simulated one is what was asked for."""
        models = [slot.model for slot in self.gpus.slots if slot.id in ids]
        return "" if not models else (asked or models[0]) if self.gpus.simulated else models[0]

    def remains(self, number: int) -> list[Seen]:
        """What is still known of a gone run."""
        remains = read_json(self.folder / "runs" / str(number) / "gone.json") or {"seen": []}
        return [protocol.seen_from(item) for item in remains["seen"]]

    def volume(self, number: int) -> Path:
        """The folder of a volume; it outlives the runs that mount it."""
        return self.folder / "volumes" / str(number)

    def room_for(self, ref: RunRef) -> Path:
        """The folder in which a run writes: on the file system of its appcode where there is one. Raises OSError.

        A link in the run's folder keeps the choice: what a run has written stays found when file systems come or fail later.
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
        """What appcodes have written, when the agent starts."""
        for image in self.folder.glob("disks/*.ext4"):
            try:
                self._attach(image.with_suffix(""))
            except OSError as error:
                log.exception("What an appcode has written cannot be read: %s", error)

    def discard_written(self, number: int) -> None:
        """Of a run that is gone."""
        for path in self.folder.glob(f"disks/*/{number}"):
            self.discard(path)

    def _attach(self, at: Path) -> None:
        if at not in self.attached:
            disks.attach(at.with_suffix(".ext4"), at, self.appcode_bytes, owner=0, spare=1)
            at.chmod(0o711)  # tasks go through it to what is theirs
            (at / "trash").mkdir(mode=0o700, exist_ok=True)
            self.attached.add(at)

    def attach_volume(self, source: VolumeSource, owner: int) -> None:
        """Makes the volume where it is missing, and lets it have its size where volumes have one here. Raises OSError."""
        at, image = self.volume(source.volume.id), self._image(source.volume.id)
        # One that was a plain folder before stays one.
        if image.exists() or not (self.no_disks or at.is_dir()):
            disks.attach(image, at, disks.size_of(source.size), owner=owner)
        elif not at.is_dir():
            at.mkdir(mode=0o700)
            os.chown(at, owner, owner)

    def remove_volume(self, number: int) -> None:
        """Raises OSError."""
        disks.detach(self.volume(number))
        for path in (self.volume(number), self._image(number)):
            self.discard(path)

    def detach_all(self) -> None:
        """While no process of a run lives: the folder of the portal can be moved and removed then."""
        self.attached.clear()
        for at in [*self.folder.glob("volumes/*"), *self.folder.glob("disks/*")]:
            try:
                disks.detach(at)
            except OSError as error:
                log.warning("%s stays mounted: %s", at, error)

    def _image(self, number: int) -> Path:
        """The file that holds the file system of a volume."""
        return self.folder / "volumes" / f"{number}.ext4"

    def run_folder(self, number: int) -> Path:
        folder = self.folder / "runs" / str(number)
        folder.mkdir(exist_ok=True)
        return folder

    def discard(self, path: Path) -> asyncio.Future[None] | None:
        """Takes a file or folder out of the way now and removes it in a thread, which it returns where it needs one."""
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
        except OSError:  # not empty, mostly
            return asyncio.get_running_loop().run_in_executor(None, _remove_tree, path)
        return None


class PartOf(Protocol):
    """What the data, the network and the tasks of a run know of it."""

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
    """The bytes of `disk` that runs leave to everybody else when they start."""
    return min(5 * GIB, disk // 20) if given_gb is None else int(given_gb * GIB)


def machine_room(cpu_overcommit: float, reserved_gb: float | None) -> scheduler.Room:
    """What tasks may have of this machine. Cores are shared by those who compute; memory that is given out is gone."""
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
    """The program of a wheel beside our Python, else the system's; "" when there is none."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name) or ""


def _remove_tree(path: Path) -> None:
    """Also what a task made unwritable for its owner."""
    try:
        trees.remove(str(path), unlock=True)
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error)
