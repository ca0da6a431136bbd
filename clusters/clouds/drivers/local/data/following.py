"""Follows event files in buckets for a run: a process that appends new bytes to local copies (../../follow.py).

Like rclone's copies it runs with the task's uid, in a sandbox with only these copies, with network access through `socks` only,
and with keys that no task ever sees. It ends with its parent process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal

from clusters.clouds.drivers import follow
from clusters.clouds.drivers.local.data import rclone
from clusters.clouds.drivers.local.network import socks
from clusters.clouds.drivers.local.task import sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_PROGRAM = "/elearn/rclone"


class Following:
    """The followed mounts of a run. `reached`: all have been listed once. `problem`: a sentence on what fails, or ""."""

    def __init__(self, spec: dict[str, Any], mounts: list[dict[str, Any]], folder: str) -> None:
        self.spec, self.mounts, self.folder = spec, mounts, folder
        self.problem, self.reached = "", False
        self.child, self.said, self.rest = 0, -1, b""
        self.open = contextlib.ExitStack()

    def look(self) -> None:
        """Reads the process's messages; starts it if there is none. `said` is readable when there are messages."""
        if not self.child:
            self._start()
            return
        self._hear()
        if os.waitpid(self.child, os.WNOHANG)[0]:
            self.child, self.said = 0, -1
            self.open.close()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.said, 1 << 16):
                self.rest += data
        *full, self.rest = self.rest.split(b"\n")
        if full:
            reached, *problems = json.loads(full[-1])
            self.reached, self.problem = self.reached or reached, self._sentence(problems)

    def stop(self) -> None:
        if self.child:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            self.child = 0
        self.open.close()

    def _start(self) -> None:
        own = os.path.join(self.folder, "follow")
        if not os.path.isdir(own):
            os.mkdir(own, 0o700)
            if self.spec["uid"] is not None:
                os.chown(own, self.spec["uid"], self.spec["uid"])
        proxy = self.open.enter_context(socks.proxy(self.spec["open"], self.spec["uid"]))
        self.said, says = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.open.callback(os.close, self.said)
        self.rest = b""
        self.child = os.fork()
        if self.child == 0:
            try:
                self._work(own, says, proxy)
            except BaseException as error:  # noqa: BLE001  whatever it is, it must be told, and this process may not go on
                os.write(says, json.dumps([False, str(error)]).encode() + b"\n")
            finally:
                os._exit(1)
        os.close(says)

    def _work(self, own: str, says: int, proxy: str) -> None:
        signal.set_wakeup_fd(-1)
        # Closes inherited descriptors, above all the lock that signals that the parent lives.
        os.closerange(3, says)
        os.closerange(says + 1, 1 << 16)
        sandbox.unshare()
        binds: list[sandbox.Bind] = [{"source": self.spec["rclone"], "target": _PROGRAM, "read_only": True}]
        pairs = []
        env = {"HOME": "/tmp", "RCLONE_HTTP_PROXY": proxy}  # noqa: S108  its own
        for mount in self.mounts:
            name, place = f"data{mount['number']}", f"/elearn/data{mount['number']}"
            binds.append({"source": mount["folder"], "target": place})
            pairs.append((f"{name}:{mount['bucket']}/{mount['prefix']}", place))
            env |= rclone.variables(mount, name)
        sandbox.build(os.path.join(self.folder, "root"), binds, tmp=own, proc=False)
        sandbox.drop_privileges(self.spec["uid"])
        sandbox.die_with_parent()
        told = ""

        def tell(problems: Sequence[str], reached: bool) -> None:
            nonlocal told
            words = json.dumps([reached, *problems])
            if words != told and os.write(says, words.encode() + b"\n"):
                told = words

        follow.run(
            pairs,
            program=_PROGRAM,
            folder="/tmp",  # noqa: S108
            env=env,
            every=follow.EVERY,
            tell=tell,
            before=sandbox.die_with_parent,
        )

    def _sentence(self, problems: list[str]) -> str:
        for mount, problem in zip(self.mounts, problems, strict=False):
            if problem:
                return f"Event files of {rclone.where(mount)} cannot be followed: {rclone.explain(mount, [problem])}"
        return ""
