"""The owner of one attempt of one task: starts it in its sandbox, keeps its log, and records what happened.

Run as `python -I -S shim.py FOLDER LOCK`, where the descriptor LOCK holds the lock of FOLDER (see processes.py). It leaves its
parent's session, so the task survives the node agent and the portal. In FOLDER it reads spec.json and writes `log`, `log.times`
and status.json; on SIGTERM it stops the task. If it dies, the kernel kills the task (see `sandbox.die_with_parent`), so no task
exists without its shim.

    shim ── fork ──► init (PID 1 of the new PID namespace) ── fork, exec ──► the task
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import sys
import time

if not __package__:  # run as a script: the isolated interpreter cannot find its neighbours otherwise
    sys.path[0:0] = [os.path.abspath(__file__).rsplit("/clusters/", 1)[0]]

from clusters.clouds.drivers import marks
from clusters.clouds.drivers.local.network import netns
from clusters.clouds.drivers.local.task import cgroups, memory, rlimits, sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TAIL = 64 * 1024
EXIT_NOT_STARTED = 127


class Log:
    """The task's output on disk with its times beside it, up to `limit` bytes; of further output only the last 64 KiB."""

    def __init__(self, path: str, limit: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.file, self.times = os.open(path, flags, 0o600), os.open(path + ".times", flags, 0o600)
        self.marker = marks.Marker()
        self.left = limit
        self.limit = limit
        self.dropped = 0
        # Pieces of the end with their times; `kept`: their total bytes.
        self.tail: list[tuple[int, bytes]] = []
        self.kept = 0

    def write(self, data: bytes) -> None:
        now = time.time_ns() // 1000
        if self.left > 0:
            head, data = data[: self.left], data[self.left :]
            self.left -= len(head)
            self._append(head, now)
            if self.left == 0:
                self._append(b"\n[The log is longer than %d bytes; only its end follows.]\n" % self.limit, now)
        if not data:
            return
        self.dropped += len(data)
        if self.tail and now - self.tail[-1][0] < marks.CLOSE_US:
            data = self.tail.pop()[1] + data
        self.tail.append((now, data[-TAIL:]))
        self.kept = sum(len(each) for _, each in self.tail)
        while self.kept > TAIL:
            at, first = self.tail[0]
            beyond = self.kept - TAIL
            self.tail[:1] = [(at, first[beyond:])] if len(first) > beyond else []
            self.kept -= min(beyond, len(first))

    def close(self) -> None:
        if self.dropped > self.kept:
            at = self.tail[0][0] if self.tail else time.time_ns() // 1000
            self._append(b"[%d bytes left out.]\n" % (self.dropped - self.kept), at)
        for at, data in self.tail:
            self._append(data, at)
        os.close(self.file)
        os.close(self.times)

    def _append(self, data: bytes, now: int) -> None:
        while data:
            try:
                written = os.write(self.file, data)
                if mark := self.marker.add(data[:written], now):
                    os.write(self.times, mark)
            except OSError:  # a full disk costs lines of the log, never the task
                return
            data = data[written:]


def leave_parent(lock: int) -> None:
    """Continues in a child with its own session; writes the child's pid into the lock."""
    child = os.fork()
    if child:
        os.pwrite(lock, b"%d\n" % child, 0)
        os._exit(0)
    os.setsid()
    os.umask(0o022)


def main(folder: str, lock: int) -> None:
    leave_parent(lock)
    with open(os.path.join(folder, "spec.json")) as file:
        spec = json.load(file)
    status = Status(folder, spec["poke"], spec["name"])
    try:
        run(folder, lock, spec, status)
    except netns.Lost as lost:
        # Not the task's fault: an attempt without an end counts as lost, and the next one starts at once.
        status.write(durable=True, lost=str(lost))
    except (sandbox.SandboxError, OSError) as error:
        status.write(durable=True, error=str(error), finished_at=time.time())


class Status:
    """status.json: the events so far, replaced atomically; a datagram notifies the agent."""

    def __init__(self, folder: str, poke: str, name: str) -> None:
        self.path = os.path.join(folder, "status.json")
        self.poke, self.name = poke, name
        self.values: dict[str, Any] = {}

    def write(self, *, durable: bool = False, **values: Any) -> None:
        self.values.update(values)
        with open(self.path + ".new", "w") as file:
            json.dump(self.values, file)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.rename(self.path + ".new", self.path)

    def tell(self) -> bool:
        """Notifies the agent. Returns False if it is too busy now; an absent agent reads status.json when it starts."""
        return tell(self.poke, self.name)


def tell(poke: str, name: str) -> bool:
    """Sends `name` to the agent's socket `poke`, via its folder, because socket paths must be short."""
    try:
        folder = os.open(os.path.dirname(poke), os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return True
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(name.encode(), f"/proc/self/fd/{folder}/{os.path.basename(poke)}")
        except BlockingIOError:
            return False
        except OSError:
            pass
        finally:
            os.close(folder)
    return True


def run(folder: str, lock: int, spec: dict[str, Any], status: Status) -> None:
    log = Log(os.path.join(folder, "log"), spec["log_limit"])
    if spec.get("note"):  # tasks of an older agent have none
        log.write(f"[{spec['note']}]\n".encode())
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    ooms = cgroups.oom_kills(spec["cgroups"])
    network_ended = _network(spec, lock)
    log_read, log_write = os.pipe2(os.O_CLOEXEC)
    result_read, result_write = os.pipe2(os.O_CLOEXEC)
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until PID 1 has its own handler
    init = os.fork()
    if init == 0:
        for handle in (lock, wake_read, wake_write, log.file, log.times, log_read, result_read, go_write):
            os.close(handle)
        signal.set_wakeup_fd(-1)
        _init(folder, spec, go_read, log_write, result_write)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    for handle in (log_write, result_write, go_read):
        os.close(handle)
    status.write(init=init, init_start=start_time(init))
    os.write(go_write, b"!")
    Watcher(init, spec, status, log, log_read, result_read, wake_read, network_ended).loop()
    finished = time.time()
    oom = status.values.get("oom") or (_may_be_oom(spec, status.values) and cgroups.oom_kills(spec["cgroups"]) > ooms)
    while True:
        try:
            status.write(durable=True, finished_at=finished, oom=oom)
            return
        except OSError:  # a full disk: the result of the task must not be lost
            time.sleep(1)


def _network(spec: dict[str, Any], lock: int) -> int:
    """Moves the caller into the task's network and makes the PID namespace. Returns a descriptor that is readable once the
    task's own network is lost, or -1 for the run's network, which the agent watches. Raises Lost and SandboxError."""
    if not spec["network"]:
        sandbox.unshare(sandbox.CLONE_NEWPID)
        return -1
    ended = -1
    if spec.get("own_network"):
        from clusters.clouds.drivers.local.network import holder

        try:
            pid, ended = holder.begin(spec["own_network"], shim_lock=lock)
        except sandbox.SandboxError as error:
            raise netns.Lost(str(error)) from error
        netns.enter(os.pidfd_open(pid))
    else:
        netns.join(spec["network"])
    sandbox.enter(sandbox.CLONE_NEWPID)
    return ended


def _may_be_oom(spec: dict[str, Any], status: dict[str, Any]) -> bool:
    """Returns whether an OOM kill can explain the failure: any kill in the task's cgroup, which may be of a child process;
    without cgroups only a SIGKILL of the program itself."""
    if status.get("stopping") or status.get("exit") == 0:
        return False
    return bool(spec["cgroups"]) or status.get("signal") == signal.SIGKILL or status.get("exit") == 128 + signal.SIGKILL


class Watcher:
    """Copies output to the log, records start and end, and stops the task on request, until PID 1 has been reaped."""

    def __init__(
        self,
        init: int,
        spec: dict[str, Any],
        status: Status,
        log: Log,
        output: int,
        result: int,
        wake: int,
        network_ended: int,
    ) -> None:
        self.init, self.spec, self.status, self.log = init, spec, status, log
        self.output, self.result, self.wake, self.network_ended = output, result, wake, network_ended
        self.untold = False
        self.kill_at: float | None = None
        # The time of the next memory poll; None if a cgroup limits the memory.
        self.look_at = None if spec["cgroups"] else time.monotonic() + memory.EVERY

    def loop(self) -> None:
        poll = select.poll()
        for handle in (self.output, self.result, self.wake):
            poll.register(handle, select.POLLIN)
        if self.network_ended >= 0:
            poll.register(self.network_ended, select.POLLIN)
        still_open = {self.output, self.result}
        while still_open:
            for handle, _ in poll.poll(self._timeout()):
                if handle == self.network_ended:
                    raise netns.Lost(netns.LOST)
                data = os.read(handle, 1 << 16)
                if not data:
                    poll.unregister(handle)
                    still_open.discard(handle)
                elif handle == self.output:
                    self.log.write(data)
                elif handle == self.result:
                    self._result(data)
                else:
                    self._stop()
            if self.untold:
                self.untold = not self.status.tell()
            self._kill_when_due()
        os.waitpid(self.init, 0)
        self.log.close()
        if not {"exit", "signal", "error"} & self.status.values.keys():  # PID 1 was killed, and the task with it
            self.status.values["signal"] = signal.SIGKILL

    def _kill_when_due(self) -> None:
        """Kills a task that did not stop in time or exceeds its memory."""
        now = time.monotonic()
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            os.kill(self.init, signal.SIGKILL)
        if self.look_at is not None and now >= self.look_at:
            self.look_at = now + memory.EVERY
            if memory.is_over(self.init, self.spec["memory_mb"]):
                self.look_at = None
                self.status.write(oom=True)
                os.kill(self.init, signal.SIGKILL)

    def _timeout(self) -> float | None:
        waits = [0.05] if self.untold else []
        waits += [max(0.0, at - time.monotonic()) for at in (self.kill_at, self.look_at) if at is not None]
        return min(waits) * 1000 + 1 if waits else None

    def _result(self, data: bytes) -> None:
        for line in data.splitlines():
            self.status.write(**json.loads(line))
            if b"started_at" in line:
                self.untold = True

    def _stop(self) -> None:
        if not self.status.values.get("stopping") and not {"exit", "signal", "error"} & self.status.values.keys():
            self.status.write(stopping=True)
            self.kill_at = time.monotonic() + self.spec["grace"]
            os.kill(self.init, signal.SIGTERM)  # not reaped yet, so the pid is still valid


def _init(folder: str, spec: dict[str, Any], go: int, log: int, result: int) -> None:
    """PID 1 of the task's namespace: makes the sandbox, starts the task, reaps, and ends with it. Never returns."""

    def report(**values: Any) -> None:
        os.write(result, json.dumps(values).encode() + b"\n")

    try:
        stopping: list[int] = []

        def forward(*_: Any) -> None:
            stopping.append(1)
            try:  # noqa: SIM105  contextlib costs every task 2 ms
                os.kill(-1, signal.SIGTERM)
            except ProcessLookupError:
                pass

        signal.signal(signal.SIGTERM, forward)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        rlimits.die_first()
        sandbox.hide_arguments()
        sandbox.die_with_parent()
        if not os.read(go, 1):
            os._exit(1)
        cgroups.join(spec["cgroups"])
        tmp = spec.get("tmp") or os.path.join(folder, "tmp")
        sandbox.build(
            os.path.join(folder, "root"),
            spec["binds"],
            tmp=tmp,
            proc=True,
            memory_mb=spec["memory_mb"],
            uid=spec["uid"],
            hostname=spec["hostname"],
        )
        rlimits.bound_namespace(spec["limits"]["processes"])
        task = _start(spec, log, report)
        os.close(log)
        if stopping:
            forward()
        _reap(task, stopping, report)
    except Exception as error:  # noqa: BLE001  the shim writes it down
        report(error=str(error) if isinstance(error, sandbox.SandboxError) else repr(error))
    finally:
        os._exit(0)


def _start(spec: dict[str, Any], log: int, report: Any) -> int:
    failed_read, failed_write = os.pipe2(os.O_CLOEXEC)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    task = os.fork()
    if task == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            become_task(spec, log)
            execute(spec["argv"], spec["env"])
        except Exception as error:  # noqa: BLE001  whatever it is, it must be told, and this process may not go on
            text = error.strerror if isinstance(error, OSError) else str(error)
            os.write(failed_write, f"{spec['argv'][0]!r} cannot be started: {text}".encode())
        finally:
            os._exit(EXIT_NOT_STARTED)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.close(failed_write)
    failure = b""
    while chunk := os.read(failed_read, 4096):
        failure += chunk
    if failure:
        os.write(log, failure + b"\n")
        report(failure=failure.decode(errors="replace"))
    else:
        report(started_at=time.time())
    return task


def become_task(spec: dict[str, Any], output: int) -> None:
    """Prepares a process between fork and exec: session, descriptors, privileges, access to its data, working folder."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Python ignores some signals, and so do programs started by nohup: a task's terminal could then not end its programs.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    rlimits.step_back()
    rlimits.bound(spec["limits"])
    if not spec["cgroups"]:
        memory.bound(spec["memory_mb"])
    sandbox.drop_privileges(spec["uid"])
    for bind in spec["binds"]:
        if bind.get("data"):
            mode, verb = (os.R_OK | os.X_OK, "read") if bind.get("read_only") else (os.W_OK | os.X_OK, "written")
            if not os.access(bind["target"], mode):
                who = f"uid {os.getuid()}"
                raise sandbox.SandboxError(
                    f"the folder {bind['source']} cannot be {verb} by {who}, as which this task runs"
                )
    os.chdir(spec["cwd"])


def execute(argv: list[str], env: dict[str, str]) -> None:
    """Calls execvpe(3) by the PATH in `env` (os.execvpe imports a module whose file is missing in the sandbox)."""
    missing = OSError(errno.ENOENT, "no such program")
    for folder in [""] if "/" in argv[0] else env.get("PATH", "").split(":"):
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)  # noqa: S606  no shell is the point
        except (FileNotFoundError, NotADirectoryError):
            pass
        except PermissionError as error:
            missing = error
    raise missing


def _reap(task: int, stopping: list[int], report: Any) -> None:
    """Reaps until the task has ended; if it was asked to stop, until all its descendants have ended, too."""
    ended = False
    while not ended or stopping:
        try:
            pid, code = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if pid == task:
            ended = True
            exit_code = os.waitstatus_to_exitcode(code)
            report(**({"exit": exit_code} if exit_code >= 0 else {"signal": -exit_code}))


def start_time(pid: int) -> int:
    """Returns field 22 of /proc/PID/stat, which with the pid identifies a process until the next boot. 0: it is not alive."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[19]) if fields[0] not in (b"Z", b"X") else 0


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
