"""Runs one command inside a running task: `python -I -S exec.py FOLDER SOCKET` joins the namespaces of its PID 1.

The request comes as JSON on stdin, so that its arguments are not visible in this machine's process list. The command gets the
task's environment, uid, limits and lack of privileges. The descriptor SOCKET is the connection to the client (frames.py); when
the client disconnects, the command is ended.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios

if not __package__:  # run as a script: the isolated interpreter cannot find its neighbours otherwise
    sys.path[0:0] = [os.path.abspath(__file__).rsplit("/clusters/", 1)[0]]

from clusters.clouds.drivers.local.task import frames, rlimits, sandbox, shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIECE = frames.LARGEST
# The kernel's default buffer size of a pipe.
PIPE = 1 << 16
# Maximum bytes of unread input; beyond it the sender must wait.
UNREAD = 1 << 20


def main(folder: str, peer: socket.socket) -> None:
    rlimits.die_first()
    request = json.load(sys.stdin)
    values = []
    for name in ("spec.json", "status.json"):
        with open(os.path.join(folder, name)) as file:
            values.append(json.load(file))
    spec, status = values
    init = os.pidfd_open(status["init"])
    if shim.start_time(status["init"]) != status["init_start"]:
        raise sandbox.SandboxError("The task has ended.")
    groups = [os.open(os.path.join(group, "cgroup.procs"), os.O_WRONLY) for group in spec["cgroups"]]
    flags = sandbox.OWN | sandbox.CLONE_NEWPID
    if spec["network"]:
        flags |= sandbox.CLONE_NEWNET
    if os.geteuid() == 0:
        sandbox.setns(init, flags)
    else:  # PID 1 is inaccessible even to its own user, but its child, the task, is in the same namespaces
        with open(f"/proc/{status['init']}/task/{status['init']}/children") as file:
            sandbox.setns(os.pidfd_open(int(file.read().split()[0])), flags | sandbox.CLONE_NEWUSER)
    Command(spec, request, peer, groups).run()


class Command:
    """Connects the command's descriptors with the peer. Reads from either only while the other accepts data."""

    def __init__(self, spec: dict[str, Any], request: dict[str, Any], peer: socket.socket, groups: list[int]) -> None:
        self.spec, self.request, self.peer, self.groups = spec, request, peer, groups
        self.received = frames.Frames()
        self.unread = bytearray()
        self.input_ended = False
        # Our ends of its pipes, or its terminal: descriptor → kind of frame.
        self.outputs: dict[int, bytes] = {}
        self.input = self.terminal = -1

    def run(self) -> None:
        theirs = self._terminal() if self.request["tty"] else self._pipes()
        self.child = os.fork()
        if self.child == 0:
            self._become(*theirs)
        for handle in {*theirs} - {-1}:
            os.close(handle)
        ended = os.pidfd_open(self.child)
        try:
            self._talk(ended)
        except OSError:  # the peer disconnected
            self._kill()
        code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        self._send(frames.EXIT, b"%d" % (code if code >= 0 else 128 - code))

    def _terminal(self) -> tuple[int, int, int]:
        """Opens one of the task's own terminals, which the command can also find by name."""
        self.terminal, slave = os.openpty()
        os.fchown(slave, os.geteuid() if self.spec["uid"] is None else self.spec["uid"], -1)
        os.set_blocking(self.terminal, False)
        self.outputs[self.terminal] = frames.STDOUT
        self.input = self.terminal
        return slave, slave, slave

    def _pipes(self) -> tuple[int, int, int]:
        stdin, out, err = -1, os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        if self.request["stdin"]:
            stdin, self.input = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self.input, False)
        self.outputs = {out[0]: frames.STDOUT, err[0]: frames.STDERR}
        for handle in self.outputs:
            os.set_blocking(handle, False)
        return stdin, out[1], err[1]

    def _become(self, stdin: int, stdout: int, stderr: int) -> None:
        """Runs the command in the child. Never returns."""
        argv, env = self.request["argv"], dict(self.spec["env"])
        try:
            for group in self.groups:
                os.write(group, b"0")
            shim.become_task(self.spec, stdout)
            if stdin >= 0:
                os.dup2(stdin, 0)
            os.dup2(stderr, 2)
            if self.request["tty"]:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
                env.setdefault("TERM", "xterm")
            sandbox.die_with_parent()
            shim.execute(argv, env)
        except Exception as error:  # noqa: BLE001  whatever it is, it must be told, and this process may not go on
            text = error.strerror if isinstance(error, OSError) else str(error)
            os.write(2, f"{argv[0]!r} cannot be started: {text}\n".encode())
        finally:
            os._exit(shim.EXIT_NOT_STARTED)

    def _talk(self, ended: int) -> None:
        """Transfers data until the command has ended and its output is passed on. Raises OSError if the peer is gone."""
        over = False
        while not over:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.register(self.peer, select.POLLIN if len(self.unread) < UNREAD else 0)
            for handle in self.outputs:
                poll.register(handle, select.POLLIN)
            if self.unread and self.input >= 0:
                poll.register(self.input, select.POLLOUT | (select.POLLIN if self.input in self.outputs else 0))
            for handle, happened in poll.poll():
                if handle == ended:
                    over = True
                elif handle == self.peer.fileno():
                    self._hear()
                elif handle in self.outputs and happened & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._pass_on(handle)
            self._feed()
        # Only what is in the pipes now: a background process may write for ever.
        for handle in list(self.outputs):
            for _ in range(PIPE // PIECE + 1):
                if not self._pass_on(handle):
                    break

    def _hear(self) -> None:
        data = self.peer.recv(PIECE)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "hung up")
        for kind, value in self.received.feed(data):
            if kind == frames.INPUT and self.input >= 0 and not self.input_ended:
                self.unread += value
            elif kind == frames.END:
                self.input_ended = True
            elif kind == frames.SIZE and self.terminal >= 0:
                columns, rows = (int(word) for word in value.split())
                fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _feed(self) -> None:
        """Writes as much input as the command accepts now."""
        try:
            while self.unread and self.input >= 0:
                del self.unread[: os.write(self.input, self.unread[:PIECE])]
        except BlockingIOError:
            return
        except OSError:  # it does not read any more, or has ended
            self.unread.clear()
            self.input_ended = True
        if self.input_ended and not self.unread and self.input >= 0 and self.terminal < 0:
            os.close(self.input)
            self.input = -1

    def _pass_on(self, handle: int) -> bool:
        """Passes a piece of output on; returns False if there is none now."""
        try:
            data = os.read(handle, PIECE)
        except BlockingIOError:
            return False
        except OSError:  # no process has the terminal open any more
            data = b""
        if data:
            self._send(self.outputs[handle], data)
            return True
        del self.outputs[handle]
        return False

    def _send(self, kind: bytes, data: bytes) -> None:
        send(self.peer, kind, data)

    def _kill(self) -> None:
        """Kills the command and its descendants, except those in other sessions."""
        for number in (signal.SIGHUP, signal.SIGKILL):
            try:
                os.killpg(self.child, number)
            except ProcessLookupError:
                return


def send(peer: socket.socket, kind: bytes, data: bytes) -> None:
    """Sends a frame, waiting for the peer. Ignores a lost peer for the final frames."""
    try:
        peer.sendall(frames.pack(kind, data))
    except ConnectionError:
        if kind not in (frames.EXIT, frames.REFUSED):
            raise


if __name__ == "__main__":
    connection = socket.socket(fileno=int(sys.argv[2]))
    connection.settimeout(None)
    connection.set_inheritable(False)
    try:
        main(sys.argv[1], connection)
    except (FileNotFoundError, ProcessLookupError):
        send(connection, frames.REFUSED, b"The task has ended.")
    except (sandbox.SandboxError, OSError) as error:
        send(connection, frames.REFUSED, f"The command cannot be run: {error}".encode())
