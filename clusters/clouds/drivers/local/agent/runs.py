"""One run, advanced from the state in its folder.

`advance` checks everything and does the next step. It is called after any change, and may be called at any time:

    fetch data ─► take GPUs, CPU, memory ─► start tasks, again and again ─► all ended: store data
    deleted: stop tasks ─► store data ─► gone (gone.json replaces all else but the logs)
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusters.clouds.drivers.base import CODE, Plan, RolePlan, RunGone, RunRef, S3Source, Seen, TaskSeen
from clusters.clouds.drivers.local import protocol
from clusters.clouds.drivers.local.agent.endpoints import Endpoints
from clusters.clouds.drivers.local.agent.environment import UV, Environment
from clusters.clouds.drivers.local.agent.machine import Machine
from clusters.clouds.drivers.local.agent.scheduler import Ask, Given, Room
from clusters.clouds.drivers.local.agent.tasks import Task
from clusters.clouds.drivers.local.data.data import TRY_AGAIN, Data
from clusters.clouds.drivers.local.data.files import read_json, write_json
from clusters.clouds.drivers.local.network import network, outside
from clusters.clouds.drivers.local.task import sandbox
from clusters.clouds.drivers.parts import WHOLE

OUTPUT = "/elearn/output"


def ask_of(plan: Plan) -> Ask:
    """Returns what the first concurrent tasks of `plan` need together: all tasks, unless `at_once` limits them."""
    needs = [
        ((role.role, index), role.gpus, role.gpu_model)
        for role in plan.roles
        if role.gpus
        for index in range(role.together)
    ]
    return Ask(plan.run.id, tuple(needs), sum((room_of(role, role.together) for role in plan.roles), Room()))


def room_of(role: RolePlan, count: int = 1) -> Room:
    """Returns what `count` tasks of a role need besides GPUs."""
    return Room(role.cpu_milli * count, role.memory_mb * count)


class Run:
    """A run with a plan that is not gone yet. `order`: its place among all that came."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        data = read_json(folder / "plan.json")
        self.machine, self.folder = machine, folder
        self.order: int = data["order"]
        self.plan: Plan = protocol.plan_from(data["plan"])
        self.ref: RunRef = self.plan.run
        self.uid: int | None = machine.uid(self.ref.appcode)
        self.ask = ask_of(self.plan)
        given = read_json(folder / "given.json")
        self.given: Given | None = None
        if given is not None:
            self.given = {(role, index): tuple(gpus) for role, index, gpus in given}
        deleted = read_json(folder / "deleted.json")
        self.deleted_at: float | None = deleted["at"] if deleted else None
        self.gone: RunGone | None = None
        self.data = Data(self)
        self.network = network.Network(self)
        self.environment = Environment(self)
        self.endpoints = Endpoints(self)
        self.tasks = [Task(self, role, index) for role in self.plan.roles for index in range(role.count)]
        if not self.ask.needs and any(task.spec is not None or task.ended for task in self.tasks):
            self.given = {}  # see `give`

    def resume(self) -> None:
        """Finds the living processes after a restart of the agent."""
        self.data.resume()
        self.network.resume()
        self.environment.resume()
        for task in self.tasks:
            task.resume()

    @property
    def waits(self) -> bool:
        return (
            self.deleted_at is None
            and self.given is None
            and self.data.ready
            and self.environment.ready
            and self.let_in
        )

    @property
    def let_in(self) -> bool:
        """True unless runs of another appcode must end first. Runs that have begun continue."""
        return self.order < self.machine.open_until or any(task.ended or task.spec for task in self.tasks)

    @property
    def over(self) -> bool:
        """True if none of its tasks will ever live again."""
        return not self.alive and (self.deleted_at is not None or all(task.final for task in self.tasks))

    @property
    def held(self) -> Given:
        """GPUs reserved for the run: those of tasks that run or may run again. With `at_once`, a task inherits the GPUs of one
        that has ended for good."""
        given = self.given or {}
        current = {task.key for task in self.current if task.role.gpus}
        found = {key: given[key] for key in given if key in current}
        for role in self.plan.roles:
            ended = [given[key] for key in given if key[0] == role.role and key not in current]
            following = sorted(key for key in current if key[0] == role.role and key not in given)
            found |= dict(zip(following, ended, strict=False))
        return found

    @property
    def room(self) -> Room:
        """CPU and memory reserved for the run."""
        if self.given is None:
            return Room()
        return sum((room_of(task.role) for task in self.current), Room())

    @property
    def current(self) -> list[Task]:
        """The tasks that run or should run now: of each role the first `together` ones that have not ended for good. A task
        stays in the list until it ends, because earlier ones only leave it."""
        found, left = [], {role.role: role.together for role in self.plan.roles}
        for task in self.tasks:
            if left[task.role.role] and not task.final:
                left[task.role.role] -= 1
                found.append(task)
        return found

    def give(self, given: Given) -> None:
        """Stores which GPUs it has before that takes effect. Without GPUs an existing attempt implies it."""
        if given:
            rows = [[role, index, list(gpus)] for (role, index), gpus in given.items()]
            write_json(self.folder / "given.json", rows, durable=True)
        self.given = given

    def delete(self) -> None:
        """Requests the end of everything; the file makes the request survive restarts."""
        if self.deleted_at is None:
            self.deleted_at = time.time()
            write_json(self.folder / "deleted.json", {"at": self.deleted_at}, durable=True)

    def advance(self) -> None:
        if self.gone is not None:
            return
        for task in self.tasks:
            task.settle()
        self.endpoints.look()
        if self.machine.leaving:
            self.stop_tasks("Disrupted" if self.deleted_at is None else "Stopped")
            self.environment.stop()
            if not self.alive and self.environment.idle:
                self.network.stop()
                self.data.pause()
        elif self.deleted_at is not None:
            self._end(self.deleted_at)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if all(task.final for task in self.tasks):
            self.network.stop()
            self.data.finish()
            return
        if not self.data.prepared and self.given is None and (problem := self.machine.disk_problem()):
            self.explain(problem)
            self.machine.later(TRY_AGAIN, self.ref.id)
            return
        self.data.start()
        if not self.data.ready:
            for task in self.current:
                self.machine.emit(task.view(reason="FetchingInput", message=self.data.why_waiting))
        elif not self.let_in:
            self.explain(network.OTHERS_FIRST)
        elif not self.environment.ready:
            self._make_environment()
        elif self.given is not None:
            if all(role.is_apart for role in self.plan.roles) or self.network.ready():
                if (held := self.held).keys() - self.given:
                    self.give(held)
                for task in self.current:
                    task.advance()
            elif self.network.problem:
                self.explain(self.network.problem)

    def _make_environment(self) -> None:
        if self.network.ready():
            self.environment.start()
        why = self.network.problem or self.environment.why_waiting
        for task in self.current:
            self.machine.emit(task.view(reason=self.environment.reason, message=why))

    @property
    def ends(self) -> Iterator[TaskSeen]:
        return (end for task in self.tasks for end in task.ended)

    @property
    def alive(self) -> bool:
        return any(task.alive or task.shim_ended for task in self.tasks)

    @property
    def idle(self) -> bool:
        """True if no process works for it."""
        return not self.alive and self.data.idle and self.network.idle and self.environment.idle

    def stop_tasks(self, reason: str, message: str = "") -> None:
        """Asks every living task to end; see `Task.stop`."""
        for task in self.tasks:
            task.stop(reason, message)

    def explain(self, text: str) -> None:
        """Reports for every task why it cannot start yet."""
        reason = "Unschedulable" if self.ask.needs else "WaitingForResources"
        for task in self.current:
            self.machine.emit(task.view(reason=reason, message=text))

    def _end(self, deleted_at: float) -> None:
        for task in self.tasks:
            task.stop("Stopped")
            task.cancel(deleted_at)
        self.environment.stop()
        if self.alive or not self.environment.idle:
            return
        self.network.stop()
        self.data.finish()
        if self.data.over and self.idle:
            self.gone = RunGone(
                self.ref.id, self.data.stored, "" if self.data.stored else self.data.message, self.ref.life
            )

    def seen(self) -> list[Seen]:
        """Returns the last report of every attempt, of the endpoints and of the data."""
        views: list[Seen] = [end for task in self.tasks for end in task.ended]
        uids = [task.view().uid for task in self.tasks if not task.final]
        views += [self.machine.told[uid] for uid in uids if uid in self.machine.told]
        return [*views, *self.endpoints.seen, self.data.seen]

    def image_binds(self) -> list[sandbox.Bind]:
        """Returns the mounts of its image's software, and uv, which makes environments."""
        binds = sandbox.python_binds(self.plan.image.environment)
        if self.machine.uv:
            binds.append({"source": self.machine.uv, "target": UV, "read_only": True})
        return binds

    def binds(self, part: int) -> list[sandbox.Bind]:
        """Returns the mounts of a task besides the system. `part`: its part of a divided input."""
        image = self.plan.image
        binds = [*self.image_binds(), *self.environment.binds()]
        resolver = os.path.realpath("/etc/resolv.conf")
        if self.machine.outside and os.path.isfile(resolver):
            binds.append({"source": outside.RESOLVER, "target": resolver, "read_only": True})
        if image.program:
            binds.append({"source": image.program, "target": "/elearn/program", "read_only": True})
        if self.plan.code:
            binds.append({"source": str(self.data.code), "target": CODE, "read_only": True, "data": True})
        for number, mount in enumerate(self.plan.mounts):
            if mount.stream_key:
                continue
            shown: sandbox.Bind = {"target": mount.mount_path, "read_only": mount.read_only, "data": True}
            lies: sandbox.Bind = {"source": str(self.data.place(number))}
            if folder := self.data.own(mount.source):
                lies = {"source": folder.path, "root": folder.root}
            if mount.is_divided:
                if not isinstance(mount.source, S3Source):
                    binds.append({**shown, **lies, "target": WHOLE})
                lies = {"source": str(self.data.share(number, part))}
            binds.append({**shown, **lies})
        if not any(mount.mount_path == OUTPUT for mount in self.plan.mounts):
            binds.append({"source": str(self.data.scratch), "target": OUTPUT})
        return binds

    def remains(self) -> dict[str, Any]:
        """Returns what gone.json keeps for `list`."""
        if self.gone is None:
            raise ValueError("The run is not gone.")
        seen = [json.loads(protocol.dumps(item)) for item in [*self.seen(), self.gone]]
        return {"ref": dict(vars(self.ref)), "seen": seen}
