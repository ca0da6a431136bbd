"""The node agent's main loop over runs. The machine's folder is the truth, this a copy.

Work is level-triggered: any change of a run wakes it. Once per turn of the event loop woken runs are advanced, free resources are
assigned, and all news are written to the journal together.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from pathlib import Path
from typing import Any

from clusters.clouds.drivers.base import GpuNow, RunGone
from clusters.clouds.drivers.local.agent import disks, gpu_meter, gpus, samples, scheduler, uids
from clusters.clouds.drivers.local.agent.machine import TRY_AGAIN, Machine, Options, key_of
from clusters.clouds.drivers.local.agent.runs import Run
from clusters.clouds.drivers.local.data.files import read_json, write_json
from clusters.clouds.drivers.local.network import network
from clusters.clouds.drivers.local.task import processes, shim

log = logging.getLogger(__name__)

NOT_YET = "It starts as soon as what ran in its place before has ended."


class Node(Machine):
    """The machine with its runs, in the order in which they came."""

    def __init__(self, folder: Path, found: gpus.Gpus, options: Options) -> None:
        super().__init__(folder, found, options)
        self.left = asyncio.Event()
        self.runs: dict[int, Run] = {}
        self.gone: set[int] = set()
        self.addresses: dict[int, dict[str, int]] = {}
        purged = folder / "purged"
        self.purged = {int(line) for line in purged.read_text().split()} if purged.exists() else set()

    def resume(self) -> None:
        """Reads every run's folder and finds living processes."""
        for item in self.journal.items:
            self.told[key_of(item)] = item
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
        for path in [*self.folder.glob("trash/*"), *self.folder.glob("disks/*/trash/*")]:
            self._remove(path)
        for run in list(self.runs.values()):
            run.resume()
            self.wake(run.ref.id)

    def wake_all(self) -> None:
        for run in self.runs.values():
            self.wake(run.ref.id)

    def in_use(self) -> set[str]:
        return {run.environment.mark for run in self.runs.values()}

    def cached_in_use(self) -> set[str]:
        return {key for run in self.runs.values() for key in run.data.cached}

    def turn(self) -> None:
        """Advances the woken runs, assigns free resources, and writes the news."""
        self.turn_due = False
        self.launches = 0
        self._let_in()
        woken, self.woken = self.woken, {}
        for run_id in woken:
            if run_id in self.runs:
                self._advance(self.runs[run_id])
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
            self.later(TRY_AGAIN, run.ref.id)
        if run.gone is not None and run.ref.id in self.runs:
            self._bury(run, run.gone)

    def _let_in(self) -> None:
        """If appcodes cannot be isolated, makes the runs of other appcodes wait for those of the first."""
        apart = self.may_share or not (self.shares_network or self.no_disks)
        queue = [] if apart else sorted((run for run in self.runs.values() if not run.over), key=lambda run: run.order)
        until = next((run.order for run in queue if run.ref.appcode != queue[0].ref.appcode), math.inf)
        if until != self.open_until:
            self.open_until = until
            self.wake_all()

    def _give(self) -> None:
        queue = self.queue
        if not queue:
            return
        if problem := self.disk_problem():
            for run in queue:
                run.explain(problem)
                self.later(TRY_AGAIN, run.ref.id)
            return
        for run in queue:
            given = scheduler.fit(self.free, run.ask) if self.free_room.holds(run.ask.room) else None
            if given is None:
                run.explain(NOT_YET)
            else:
                run.give(given)
                self._advance(run)

    @property
    def queue(self) -> list[Run]:
        """The runs whose tasks could start if their GPUs, CPU and memory were free, oldest first."""
        return sorted((run for run in self.runs.values() if run.waits), key=lambda run: run.order)

    @property
    def free_room(self) -> scheduler.Room:
        return self.room.without(sum((run.room for run in self.runs.values()), scheduler.Room()))

    @property
    def free(self) -> list[scheduler.Slot]:
        return scheduler.free_slots(self.gpus.slots, {run.ref.id: run.held for run in self.runs.values()})

    def holders(self) -> list[gpu_meter.Holder]:
        """Returns the attempts that hold GPUs now."""
        found = (task.view() for run in self.runs.values() for task in run.tasks if task.alive)
        return [
            gpu_meter.Holder(seen.uid, seen.began_at.timestamp(), seen.gpus)
            for seen in found
            if seen.gpus and seen.began_at
        ]

    def living(self, now: float) -> list[samples.Living]:
        """Returns the attempts whose programs run, for `samples.look`."""
        found = []
        for run in self.runs.values():
            is_single = sum(role.count for role in run.plan.roles) == 1
            for task in run.tasks:
                if task.spec is None or task.init is None or not task.alive:
                    continue
                has_network = bool(task.spec["network"]) and (is_single or bool(task.spec.get("own_network")))
                looks = [(gpu, self.meter.look(gpu, now)) for gpu in task.spec["gpus"]]
                gpus_now = [
                    GpuNow(gpu, look.percent, look.memory_mb << 20) if look else GpuNow(gpu) for gpu, look in looks
                ]
                kept, limit = tuple(task.spec["cgroups"]), task.spec["memory_mb"]
                found.append(samples.Living(task.uid, *task.init, kept, limit, has_network, tuple(gpus_now)))
        return found

    def _bury(self, run: Run, gone: RunGone) -> None:
        self.emit(gone)  # reported before it is stored: a repeated report is harmless, a missing one is not
        self.flush()
        write_json(run.folder / "gone.json", run.remains(), durable=True)
        del self.runs[run.ref.id]
        self.addresses.pop(run.ref.id, None)
        self.gone.add(run.ref.id)
        self.told = {key: item for key, item in self.told.items() if item.run_id != run.ref.id}
        self._clear(run.folder, stored=gone.stored)
        self.sweep_cache()
        self.wake()

    def heard(self, name: str) -> None:
        """Handles a notice that a shim (`12/worker-0-0`) or a storage process (`12/storage`) has written something."""
        number, _, part = name.partition("/")
        run = self.runs.get(int(number))
        if run is None:
            return
        if part == "storage":
            run.data.look()
            if run.data.wanted and run.deleted_at is None:
                self.sweep_cache(run.data.wanted)
            self.wake(run.ref.id)
        for task in run.tasks:
            if task.spec is not None and task.folder.name == part:
                task.look()
                run.endpoints.look()

    def _clear(self, folder: Path, *, stored: bool) -> None:
        """Deletes everything of a gone run but gone.json, logs, and output that could not be stored."""
        kept = {"gone.json", "tasks"} if stored else {"gone.json", "tasks", "mounts"}
        for path in folder.iterdir():
            if path.name not in kept:
                self.discard(path)
        if stored:
            self.discard_written(int(folder.name))
        for task in folder.glob("tasks/*"):
            for path in task.iterdir():
                if path.name not in ("log", "log.times"):
                    self.discard(path)

    def probe(self) -> None:
        """Tries a sandbox with a private network, else one without.

        Sets `cannot_isolate` and `shares_network` to what failed.
        """
        self.no_disks = disks.why_not(self.folder)
        self.attach_all()
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
        """Starts an empty task in the network `place`; returns what failed, or ""."""
        folder = self.folder / "probe"
        for name in ("root", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status.json").unlink(missing_ok=True)
        spec: dict[str, Any] = {
            "name": "",
            "hostname": "probe",
            "poke": "",
            "argv": ["true"],
            "env": {"PATH": "/usr/bin:/bin"},
            "cwd": "/",
        }
        spec |= {"limits": self.limits, "memory_mb": 16, "cgroups": []}
        spec |= {
            "binds": [],
            "uid": None if os.geteuid() else self.first_uid + uids.PROBE,
            "grace": 1,
            "log_limit": 1024,
        }
        write_json(folder / "spec.json", spec | {"network": place})
        processes.run_once(shim.__file__, folder)
        status = read_json(folder / "status.json") or {}
        return "" if status.get("exit") == 0 else status.get("error") or "Tasks cannot be started here."
