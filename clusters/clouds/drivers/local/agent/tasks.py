"""One task of a run: its attempts, each a folder with spec.json (from the agent), status.json and log (from the shim), seen.json
(the end).

Everything is derived from these files, so an agent that was killed reads them and continues. `stop.json` records why an attempt
was asked to stop; it is written before the signal.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from clusters.clouds.drivers import hostnames, outputs
from clusters.clouds.drivers.base import CODE, Plan, RolePlan, TaskSeen, expand, restart_policy
from clusters.clouds.drivers.local import protocol
from clusters.clouds.drivers.local.agent.environment import Environment, index_env, tracking_address
from clusters.clouds.drivers.local.agent.machine import PartOf
from clusters.clouds.drivers.local.agent.scheduler import Ended, Given, next_attempt
from clusters.clouds.drivers.local.data.data import Data
from clusters.clouds.drivers.local.data.files import read_json, when, write_json
from clusters.clouds.drivers.local.network.network import Network
from clusters.clouds.drivers.local.task import cgroups, processes, sandbox, shim

LOG_TAIL = 4096
# Number of attempts that keep their logs: the first ones and the last ones.
FIRST_LOGS, LAST_LOGS = 1, 4
LOG_REMOVED = (
    f"[The log of this attempt was removed: of a task the first and the last {LAST_LOGS} attempts keep theirs.]\n"
)
LOST = "The process that watched over this task was lost, so the task was ended."


def start_folder(plan: Plan) -> str:
    """Returns the working folder of the tasks' commands."""
    if plan.code:
        return f"{CODE}/{plan.code.folder}".rstrip("/")
    return "/elearn/program" if plan.image.program else "/elearn"


class TaskOf(PartOf, Protocol):
    """What a task needs of its run, including its resources, data and network."""

    @property
    def given(self) -> Given | None: ...
    @property
    def data(self) -> Data: ...
    @property
    def network(self) -> Network: ...
    @property
    def environment(self) -> Environment: ...
    @property
    def ends(self) -> Iterable[TaskSeen]: ...
    def binds(self, part: int) -> list[sandbox.Bind]: ...


class Task:
    """Task `index` of a role. `ended`: its finished attempts. `final`: no other attempt will come."""

    def __init__(self, run: TaskOf, role: RolePlan, index: int) -> None:
        self.run, self.role, self.index = run, role, index
        self.key = (role.role, index)
        self.ended: list[TaskSeen] = []
        self.shim: processes.Detached | None = None
        self.spec: dict[str, Any] | None = None
        self.asked_to_stop = False
        self.shim_ended = False
        self.cancelled = False
        # PID 1 of the running attempt and when it started, as the shim wrote them.
        self.init: tuple[int, int] | None = None
        self.attempt = 0
        while (spec := read_json(self.folder / "spec.json")) is not None:
            seen = read_json(self.folder / "seen.json")
            if seen is None:
                self.spec = spec
                break
            self.ended.append(protocol.seen_from(seen))  # type: ignore[arg-type]
            self.attempt += 1

    @property
    def folder(self) -> Path:
        return self.run.folder / "tasks" / f"{self.role.role}-{self.index}-{self.attempt}"

    @property
    def part(self) -> int:
        """Its part of a divided input; below 0: none."""
        return self.role.first_part + self.index if self.role.first_part >= 0 else -1

    @property
    def alive(self) -> bool:
        return self.shim is not None

    @property
    def runs(self) -> bool:
        """True if the program of this attempt has started, and has neither ended nor been asked to."""
        status = read_json(self.folder / "status.json") or {}
        return self.alive and not self.asked_to_stop and "started_at" in status

    @property
    def final(self) -> bool:
        return self.cancelled or (self.spec is None and self.delay() is None)

    def delay(self) -> float | None:
        """Returns the seconds from the end of the last attempt to the next one; None if none will come."""
        ends = [Ended(end.phase == "Succeeded", end.disrupted, _seconds(end), self._is_own(end)) for end in self.ended]
        return next_attempt(ends, self.role.restart, self.role.retries)

    def _is_own(self, end: TaskSeen) -> bool:
        """Returns whether it failed because of its program alone."""
        if end.phase != "Failed" or not restart_policy.ended_itself(end):
            return False
        return self.role.is_apart or not restart_policy.lost_another(end, self.run.ends)

    @property
    def uid(self) -> str:
        """The id of the current attempt."""
        ref = self.run.ref
        life = f"/{ref.life}" if ref.life else ""
        name = f"{ref.id}/{self.role.role}/{self.index}/{self.attempt}{life}"
        return str(uuid.uuid5(self.run.machine.id, name))

    def view(self, **values: Any) -> TaskSeen:
        """Returns the current attempt as far as known without its shim."""
        machine, number = self.run.machine, self.run.ref.id
        seen = TaskSeen(number, self.role.role, self.index, self.attempt, self.uid, "Pending", node=machine.name)
        if self.spec is not None:
            seen = replace(
                seen,
                gpus=tuple(self.spec["gpus"]),
                gpu_model=self.spec["gpu_model"],
                scheduled_at=when(self.spec["scheduled_at"]),
                began_at=when(self.spec["scheduled_at"]),
            )
        return replace(seen, **values)

    def resume(self) -> None:
        """Finds the shim of an unfinished attempt, or its end, after a restart of the agent."""
        for end in self.ended:
            self.run.machine.emit(end)
        if self.spec is None:
            return
        self.asked_to_stop = (self.folder / "stop.json").exists()
        self.shim = processes.Detached.adopt(self.folder, self._shim_gone)
        if self.shim is not None:
            if self.asked_to_stop:
                self.shim.send(signal.SIGTERM)
            self.look()
        elif (self.folder / "status.json").exists() or self.spec["boot"] != self.run.machine.boot or self.asked_to_stop:
            self._conclude(witnessed=False)
        # Otherwise the attempt was written but never started, so `advance` starts it.

    def advance(self) -> None:
        """Starts a due attempt. Requires that the run's data is ready and its GPUs are assigned."""
        if self.shim is not None:
            return
        if self.spec is None:
            delay = self.delay()
            if delay is None:
                return
            due = (_at(self.ended[-1]) + delay) if self.ended else 0.0
            wait = due - time.time()
            if wait > 0.001:
                self.run.machine.emit(self.view(reason="BackOff", message=f"Starts again {delay:.0f} s after the end."))
                self.run.machine.later(wait, self.run.ref.id)
                return
            if not self.run.machine.may_launch(self.run.ref.id):
                return
            self._prepare()
        self.run.machine.emit(self.view(reason="Starting", message="The program is being started."))
        self.shim = processes.Detached.launch(shim.__file__, self.folder, self._shim_gone)

    def _prepare(self) -> None:
        """Creates the attempt: from here on it exists, holds its GPUs and is billed."""
        run, folder = self.run, self.folder
        run.environment.used()
        gpus = run.given.get(self.key, ()) if run.given else ()
        for path in (folder / "root", self.tmp):
            path.mkdir(parents=True, exist_ok=True)
        self.tmp.chmod(0o1777)
        model = run.machine.model(gpus, self.role.gpu_model)
        self.spec = {
            "name": f"{run.ref.id}/{folder.name}",
            "hostname": hostnames.host_name(run.ref, self.role.role, self.index),
            "poke": str(run.machine.poke),
            "boot": run.machine.boot,
            "argv": list(self.role.argv),
            "env": self._environment(gpus),
            "cwd": start_folder(run.plan),
            "tmp": str(self.tmp),
            "binds": [*run.binds(self.part), self._work(), *run.machine.gpus.binds(gpus)],
            "uid": run.uid,
            "grace": run.plan.grace_seconds,
            "log_limit": run.machine.log_limit,
            "note": run.data.warning,
            "cgroups": self._cgroups(),
            "limits": run.machine.limits,
            "memory_mb": self.role.memory_mb,
            "network": run.network.place,
            "own_network": run.network.own(self.role),
            "gpus": list(gpus),
            "gpu_model": model,
            "scheduled_at": time.time(),
        }
        write_json(folder / "spec.json", self.spec, durable=True)

    @property
    def tmp(self) -> Path:
        """The attempt's /tmp."""
        return self.run.data.room / "tmp" / self.folder.name

    def _work(self) -> sandbox.Bind:
        """Returns the mount of the task's working folder (frameworks/starting.py), which all its attempts share."""
        work = self.run.data.work / f"{self.role.role}-{self.index}"
        work.mkdir(exist_ok=True)
        owner = -1 if self.run.uid is None else self.run.uid
        os.chown(work, owner, owner)
        return {"source": str(work), "target": outputs.WORK}

    def _cgroups(self) -> list[str]:
        return cgroups.make(
            self.run.machine.cgroups,
            f"{self.run.ref.id}-{self.folder.name}",
            cpu_milli=self.role.cpu_milli,
            memory_mb=self.role.memory_mb,
            processes=self.run.machine.limits["processes"],
        )

    def _environment(self, gpus: tuple[str, ...]) -> dict[str, str]:
        image, over = self.run.plan.image.environment, self.run.environment.path
        python = [image] if self.role.from_image or not over else [over, image]
        env = {
            "PATH": ":".join([*(f"{each}/bin" for each in python), "/usr/local/bin:/usr/bin:/bin"]),
            "VIRTUAL_ENV": python[0],
            **({"PORTAL_ENVIRONMENT": over} if over else {}),
            **index_env(self.run.machine),
            "HOME": "/tmp",  # noqa: S108  the task's own
            "TMPDIR": "/tmp",  # noqa: S108
            "HOSTNAME": hostnames.host_name(self.run.ref, self.role.role, self.index),
            "USER": sandbox.USER,
            "LOGNAME": sandbox.USER,
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "TASK_INDEX": str(self.index),
            **self.run.data.variables,
        }
        known = {"TASK_INDEX": str(self.index), **self.run.plan.shared, **self.run.plan.secrets}
        known |= self.run.plan.tracking_variables(tracking_address(self.run.machine))
        for name, text in self.role.env.items():
            known[name] = expand(text, known)
        visible = ",".join(self.run.machine.gpus.names[gpu] for gpu in gpus)
        ours = {
            "TASK_INDEX": str(self.index),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": visible,
            "NVIDIA_VISIBLE_DEVICES": visible or "void",
        }
        return {**env, **known, **ours}

    def cancel(self, at: float) -> None:
        """Ends waiting tasks after the run was deleted at `at`. A task that was never reported ends silently."""
        if self.ended and self.ended[-1].reason == "Stopped":
            self.cancelled = True
        elif not self.final and self.spec is None:
            seen = self.view(
                phase="Failed", reason="Stopped", message="Stopped before it started.", finished_at=when(at)
            )
            if seen.uid in self.run.machine.told:
                self.run.machine.emit(seen)
                self.ended.append(seen)
            self.cancelled = True

    def stop(self, reason: str, message: str = "") -> None:
        """Asks the attempt to end. `reason` (Stopped, Disrupted) and an optional `message` will describe its end. An attempt
        that never started ends at once."""
        if self.spec is None or self.asked_to_stop:
            return
        self.asked_to_stop = True
        write_json(self.folder / "stop.json", {"reason": reason, "message": message}, durable=True)
        if self.shim is None:
            self._conclude()
        else:
            self.shim.send(signal.SIGTERM)

    def look(self) -> None:
        """Reads what the shim has written so far."""
        status = read_json(self.folder / "status.json") or {}
        if self.spec is not None and "started_at" in status:
            self.init = status["init"], status["init_start"]
            self.run.machine.emit(self.view(phase="Running", started_at=when(status["started_at"])))

    def _shim_gone(self) -> None:
        self.shim, self.shim_ended = None, True
        self.run.machine.wake(self.run.ref.id)

    def settle(self) -> None:
        """Stores the end of an attempt whose shim has ended. May be repeated after an OSError."""
        if self.shim_ended:
            self.look()
            self._conclude()

    def _conclude(self, *, witnessed: bool = True) -> None:
        """Ends the attempt: kills what may be left, stores and reports its end. `witnessed`: it ended just now."""
        status = read_json(self.folder / "status.json") or {}
        stop = read_json(self.folder / "stop.json") or {}
        seen = self._end(status, stop.get("reason", ""), witnessed)
        if stop.get("message") and seen.reason == stop["reason"]:
            seen = replace(seen, message=stop["message"])
        write_json(self.folder / "seen.json", _plain(seen), durable=True)
        self.run.machine.emit(seen)
        self.run.machine.discard(self.tmp)
        self._drop_log(self.attempt - LAST_LOGS)
        self.ended.append(seen)
        if self.spec is not None:
            cgroups.remove(self.spec["cgroups"])
        self.spec = self.init = None
        self.asked_to_stop = self.shim_ended = False
        self.attempt += 1

    def _drop_log(self, attempt: int) -> None:
        """Replaces the log of an old attempt by a sentence."""
        if attempt >= FIRST_LOGS:
            log = self.folder.with_name(f"{self.role.role}-{self.index}-{attempt}") / "log"
            log.with_name("log.times").unlink(missing_ok=True)
            log.write_text(LOG_REMOVED)

    def _end(self, status: dict[str, Any], asked: str, witnessed: bool) -> TaskSeen:
        seen = self.view(started_at=when(status.get("started_at")), finished_at=when(status.get("finished_at")))
        if "finished_at" not in status and (status or not asked):
            return self._lost(seen, status, witnessed)
        largest = self.spec["limits"]["file_bytes"] if self.spec is not None else 0
        return ended(seen, status, asked, log_tail(self.folder / "log"), largest, self.role.memory_mb)

    def _lost(self, seen: TaskSeen, status: dict[str, Any], witnessed: bool) -> TaskSeen:
        """Returns the end of an attempt whose shim died. Kills what it left; otherwise estimates the end by the log's time."""
        same_boot = self.spec is not None and self.spec["boot"] == self.run.machine.boot
        init = status.get("init", 0)
        if same_boot and init and shim.start_time(init) == status["init_start"]:
            processes.kill_and_wait(init)
            witnessed = True
        finished = time.time()
        if not witnessed:
            known = [seen.scheduled_at, seen.started_at]
            times = [moment.timestamp() for moment in known if moment is not None]
            times += [
                path.stat().st_mtime for path in (self.folder / "log", self.folder / "status.json") if path.exists()
            ]
            finished = min(finished, max(times, default=finished))
        return replace(
            seen,
            phase="Failed",
            reason="Lost",
            message=status.get("lost") or (LOST if same_boot else "This machine was restarted."),
            finished_at=when(finished),
            disrupted=True,
            estimated=True,
            log_tail=log_tail(self.folder / "log"),
        )


def ended(
    seen: TaskSeen, status: Mapping[str, Any], asked: str, tail: str, largest_file: int, memory_mb: int
) -> TaskSeen:
    """Returns the end of an attempt. `status`: everything the shim wrote ({} without a shim). `asked`: why it was to stop, ""
    for not. `tail`: the end of its log. Pure.

    Exit code 0 is a success even if it was asked to stop at that moment: a worker ends when its master does. Only attempts that
    end together with the portal restart whatever their exit code, because many programs save their state on SIGTERM and exit
    with 0.
    """
    code = status.get("exit", 128 + status["signal"] if "signal" in status else None)
    was_stopped = bool(status.get("stopping") and asked)
    if not status:
        return replace(
            seen, phase="Failed", reason=asked, message="Ended before it started.", disrupted=asked == "Disrupted",
            finished_at=when(time.time()),
        )  # fmt: skip
    if status.get("error"):
        return replace(seen, phase="Failed", reason="Error", message=status["error"], exit_code=128)
    if was_stopped and asked == "Disrupted":
        text = "Stopped together with the portal; it is started again."
        return replace(seen, phase="Failed", reason=asked, message=text, exit_code=code, disrupted=True)
    if code == 0:
        # The reason prevents another attempt (`Task.cancel`).
        said = {"reason": asked, "message": "Stopped."} if was_stopped else {}
        return replace(seen, phase="Succeeded", exit_code=0, **said)  # type: ignore[arg-type]
    if was_stopped:
        return replace(seen, phase="Failed", reason=asked, message="Stopped.", exit_code=code)
    if status.get("oom"):
        text = (
            f"It was ended because it used more than its memory, {memory_mb:,} MB; use a larger flavor or less memory."
        )
        return replace(seen, phase="Failed", reason="OOMKilled", message=text, exit_code=code, log_tail=tail)
    text = status.get("failure", "")
    if "signal" in status:
        text = f"Killed by signal {status['signal']} ({signal.strsignal(status['signal'])})."
    if status.get("signal") == signal.SIGXFSZ and largest_file:
        most = f"{largest_file / (1 << 30):.3g} GiB"
        text = f"Ended because it wrote a file of more than {most}, the largest that this machine allows."
    return replace(seen, phase="Failed", reason="Error", message=text, exit_code=code, log_tail=tail)


def log_tail(path: Path) -> str:
    """Returns the last lines of a log, at most 4 KiB, without characters that a database rejects."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_TAIL))
            data = file.read(LOG_TAIL)
    except FileNotFoundError:
        return ""
    if size > LOG_TAIL and b"\n" in data[:-1]:
        data = data[data.index(b"\n") + 1 :]
    text = data.decode("utf-8", "replace").replace("\0", "�")
    return text.encode()[-LOG_TAIL:].decode("utf-8", "ignore")


def _plain(seen: TaskSeen) -> dict[str, Any]:
    return dict(json.loads(protocol.dumps(seen)))


def _at(end: TaskSeen) -> float:
    return end.finished_at.timestamp() if end.finished_at else 0.0


def _seconds(end: TaskSeen) -> float:
    start: dt.datetime | None = end.started_at or end.scheduled_at
    return max(0.0, (end.finished_at - start).total_seconds()) if start and end.finished_at else 0.0
