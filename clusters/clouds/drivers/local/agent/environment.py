"""The saved environment of one run: made once on this machine per appcode, digest and image, and mounted read-only in tasks.

    environments/<who>/<key>.json           marks a complete environment; only the agent writes here
    environments/<who>/made/<key>           the environment, owned by the appcode's uid
    environments/<who>/made/cache           uv's cache, on the same file system and mount as the environments
    runs/<id>/environment/<step>            the sandbox of a step, like a task's: the run's network, the appcode's uid

The first run that needs an environment makes it before it waits for GPUs; others wait. If that fails or is interrupted, the next
one tries. A package that is not there fails for good; while the index cannot be reached, or the process was ended, the run tries
again for PATIENCE. An environment without its `<key>.json` is incomplete and deleted first.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Protocol

from clusters.clouds.drivers import hostnames
from clusters.clouds.drivers.base import INDEX_UNREACHED, MAKING, NOT_MADE, restart_policy
from clusters.clouds.drivers.base import Environment as Asked
from clusters.clouds.drivers.local.agent.machine import Machine, PartOf
from clusters.clouds.drivers.local.data.files import read_json, write_json
from clusters.clouds.drivers.local.network import outward
from clusters.clouds.drivers.local.network.network import Network
from clusters.clouds.drivers.local.task import processes, sandbox, shim

# Paths in every sandbox, of tasks and of the steps.
PLACE = "/elearn/environments"
UV = "/elearn/uv"
LOCK = "/elearn/environment.lock"
# Seconds per step. Scripts are not metered, so they must be short, and a run tries them only SCRIPT_TRIES times.
SECONDS = (1200.0, 300.0)
SCRIPT_TRIES = 3
# Seconds between attempts, and seconds after the first failure in which there are any.
SHORTEST, LONGEST = 2.0, 60.0
PATIENCE = 600.0
# Seconds after which an unused environment is deleted; it is made again on demand.
KEPT = 30 * 86400.0
MEMORY_MB, CPU_MILLI = 2048, 2000
SAID = 2000
MEND = "Mend the script, save the environment anew, and deploy."


class BuiltFor(PartOf, Protocol):
    """What an environment needs of its run, including its network and the mounts of its image."""

    @property
    def network(self) -> Network: ...
    def image_binds(self) -> list[sandbox.Bind]: ...


class Environment:
    """`ready`: tasks may start. Always true for a run without an environment."""

    def __init__(self, run: BuiltFor) -> None:
        self.run = run
        self.asked: Asked | None = run.plan.environment
        self.process: processes.Detached | None = None
        # A sentence, and the lines that a program wrote before it.
        self.problem, self.words = "", ""
        self.pause = SHORTEST
        self.waits = False
        self.failed_at, self.again_at = 0.0, 0.0
        self.script_failures = 0
        # True if it is not tried again.
        self.failed = False
        # Steps: 0 installs packages, 1 runs the appcode's script.
        self.step = 0

    @property
    def base(self) -> Path:
        """The folder of this appcode's environments on this machine."""
        return self.run.machine.folder / "environments" / str("own" if self.run.uid is None else self.run.uid)

    @property
    def made(self) -> Path:
        """The part of `base` that the appcode's uid owns."""
        return self.base / "made"

    @property
    def key(self) -> str:
        assert self.asked is not None
        text = f"{self.asked.digest}\n{self.run.plan.image.environment}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def path(self) -> str:
        """The environment's path in tasks; "" for none."""
        return f"{PLACE}/{self.key}" if self.asked else ""

    @property
    def _whole(self) -> Path:
        return self.base / f"{self.key}.json"

    @property
    def ready(self) -> bool:
        return self.asked is None or self._whole.exists()

    @property
    def idle(self) -> bool:
        return self.process is None

    @property
    def reason(self) -> str:
        """The reason of tasks that wait for it."""
        return NOT_MADE if self.failed else MAKING

    @property
    def why_waiting(self) -> str:
        """A sentence; after a failure also lines that the program wrote."""
        if not self.problem:
            return "Installs packages; this is done once for all runs that use the same ones."
        if self.failed:
            return f"{self.problem}\n{self.words}".strip()
        return (
            f"{self.problem} Tries again at {_clock(self.again_at)} UTC, until {_clock(self.failed_at + PATIENCE)} UTC."
        )

    def binds(self) -> list[sandbox.Bind]:
        return [{"source": str(self.made / self.key), "target": self.path, "read_only": True}] if self.asked else []

    def used(self) -> None:
        """Marks the environment as used, before tasks start."""
        if self.asked is not None:
            os.utime(self._whole)

    def resume(self) -> None:
        """Finds the process that makes it, after a restart of the agent."""
        for step in (0, 1):
            folder = self._folder(step)
            if folder.is_dir() and (found := processes.Detached.adopt(folder, self._ended)) is not None:
                self.process, self.step = found, step
                self.run.machine.building[self.mark] = self.run.ref.id
                self._limit()

    def start(self) -> None:
        """Makes the environment unless another run does. Requires the run's network."""
        assert self.asked is not None
        machine = self.run.machine
        if (
            self.process is not None
            or self.waits
            or self.failed
            or machine.building.setdefault(self.mark, self.run.ref.id) != self.run.ref.id
        ):
            return
        owner = -1 if self.run.uid is None else self.run.uid
        for folder in (self.base.parent, self.base, self.made):
            folder.mkdir(exist_ok=True, mode=0o700)
        os.chown(self.made, owner, owner)
        machine.discard(self.made / self.key)
        self._sweep()
        self._begin(0)

    def stop(self) -> None:
        """Interrupts the current step."""
        if self.process is not None:
            self.process.send(signal.SIGTERM)

    @property
    def mark(self) -> str:
        """The environment's key in `Machine.building`; "" for none."""
        return f"{self.base.name}/{self.key}" if self.asked else ""

    def _folder(self, step: int) -> Path:
        return self.run.folder / "environment" / str(step)

    def _begin(self, step: int) -> None:
        assert self.asked is not None
        machine, folder = self.run.machine, self._folder(step)
        self.step = step
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("root", "tmp"):
            (folder / name).mkdir(parents=True)
        (folder / "tmp").chmod(0o1777)
        (folder / "lock.txt").write_text(self.asked.lock)
        (folder / "lock.txt").chmod(0o644)
        spec: dict[str, Any] = {
            "name": f"{self.run.ref.id}/environment",
            "hostname": f"{hostnames.base_name(self.run.ref)}-environment",
            "poke": str(machine.poke),
            "argv": self._argv(step),
            "env": self._env(step),
            "cwd": "/tmp",  # noqa: S108  its own
            "binds": [*self.run.image_binds(), {"source": str(folder / "lock.txt"), "target": LOCK, "read_only": True}],
            "uid": self.run.uid,
            "grace": 5,
            "log_limit": 1 << 20,
            "cgroups": [],
            "limits": machine.limits,
            "memory_mb": MEMORY_MB,
            "network": self.run.network.place,
        }
        # Hard links to uv's cache only work within one mount. A script gets only the folder that it changes.
        source, target = (self.made, PLACE) if step == 0 else (self.made / self.key, self.path)
        spec["binds"].append({"source": str(source), "target": target, "data": True})
        write_json(folder / "spec.json", spec)
        self.process = processes.Detached.launch(shim.__file__, folder, self._ended)
        self._limit()

    def _argv(self, step: int) -> list[str]:
        assert self.asked is not None
        if step:
            return ["bash", "-euo", "pipefail", "-c", self.asked.script]
        link = "copy" if self.asked.script else "hardlink"
        return ["python", "-c", self.asked.install, self.path, LOCK, f"{PLACE}/cache", link]

    def _env(self, step: int) -> dict[str, str]:
        here = [self.path] if step else []
        image = self.run.plan.image.environment
        path = ":".join([*(f"{each}/bin" for each in [*here, image]), "/usr/local/bin:/usr/bin:/bin"])
        own = {"VIRTUAL_ENV": (here or [image])[0], "PORTAL_ENVIRONMENT": self.path} if step else {}
        return {"PATH": path, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", **index_env(self.run.machine), **own}  # noqa: S108

    def _limit(self) -> None:
        process = self.process
        self.run.machine.call_later(SECONDS[self.step], lambda: self.stop() if self.process is process else None)

    def _ended(self) -> None:
        assert self.asked is not None
        self.process = None
        folder = self._folder(self.step)
        status = read_json(folder / "status.json") or {}
        if status.get("exit") == 0 and self.step == 0 and self.asked.script:
            self._begin(1)
            return
        if status.get("exit") == 0:
            write_json(self._whole, {"name": self.asked.name, "at": time.time()}, durable=True)
            self.problem = self.words = ""
        elif not self.run.machine.leaving:
            self._note_failure(status, folder)
        self.run.machine.building.pop(self.mark, None)
        self.run.machine.wake_all()

    def _note_failure(self, status: dict[str, Any], folder: Path) -> None:
        now = time.time()
        self.problem, self.words = _why(status, folder)
        self.failed_at = self.failed_at or now
        self.script_failures += self.step
        if self.step:
            assert self.asked is not None
            self.problem = f"The script of environment {self.asked.name} failed: {self.problem}"
            self.failed = self.script_failures >= SCRIPT_TRIES
        else:
            # Without an exit code it was ended: by its limit, or for its memory.
            self.failed = status.get("exit") not in (None, INDEX_UNREACHED, *restart_policy.FROM_OUTSIDE)
        late = now + self.pause > self.failed_at + PATIENCE
        if late and not self.failed:
            self.failed = True
            self.problem += f" It was tried for {PATIENCE / 60:.0f} minutes; deploy again later."
        elif self.failed and self.step:
            self.problem += f" {MEND}"
        if not self.failed:
            self.waits, self.again_at = True, now + self.pause
            self.run.machine.call_later(self.pause, self._again)
            self.pause = min(LONGEST, 2 * self.pause)

    def _again(self) -> None:
        self.waits = False
        self.run.machine.wake(self.run.ref.id)

    def _sweep(self) -> None:
        """Deletes environments that were unused for KEPT."""
        machine = self.run.machine
        for whole in self.base.parent.glob("*/*.json"):
            mark = f"{whole.parent.name}/{whole.stem}"
            if time.time() - whole.stat().st_mtime > KEPT and mark not in machine.in_use():
                machine.discard(whole)
                machine.discard(whole.parent / "made" / whole.stem)


def index_env(machine: Machine) -> dict[str, str]:
    """Returns the variables that point pip and uv to the package index; {} if tasks can reach none."""
    if not machine.packages or not machine.has_index or machine.shares_network:
        return {}
    return {"PIP_INDEX_URL": outward.URL, "UV_DEFAULT_INDEX": outward.URL, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def tracking_address(machine: Machine) -> str:
    """Returns where tasks record parameters and metrics; "" if they cannot reach the portal."""
    return "" if not machine.packages or machine.shares_network else outward.TRACKING_URL


def _clock(at: float) -> str:
    return f"{dt.datetime.fromtimestamp(at, dt.UTC):%H:%M:%S}"


def _why(status: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Returns the sentence of a failed step, its last line, and the lines before."""
    if status.get("error") or status.get("failure"):
        return str(status.get("error") or status.get("failure")), ""
    try:
        lines = (folder / "log").read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    if "signal" in status or "exit" not in status:
        return "Packages were not installed: the process was ended.", "\n".join(lines)[-SAID:]
    if not lines:
        return f"It ended with exit code {status['exit']}.", ""
    return lines[-1].strip(), "\n".join(lines[:-1]).strip()[-SAID:]
