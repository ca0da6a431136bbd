"""The network of a run or of a copy: a namespace with its own loopback, made by holder.py and joined by the tasks' shims."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from clusters.clouds.drivers.local.task import sandbox

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_FLAGS = struct.Struct("16sh14x")


LOST = "The process that held the network of this task was lost, so the task was ended; it starts again."


class Lost(Exception):
    """The holder of a task's network is gone, or none can be made now. The text says why, or is ""."""


def make() -> None:
    """Moves the caller into a new network namespace (and, unless root, into a user namespace around it). Raises SandboxError."""
    sandbox.unshare(sandbox.CLONE_NEWNET)
    # The loopback starts down; up, it has 127.0.0.1 and ::1.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = _FLAGS.unpack(fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _FLAGS.pack(b"lo", 0)))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _FLAGS.pack(name, flags | _IFF_UP))


def join(folder: str) -> None:
    """Moves the caller into the network (and user namespace) held in `folder`. Raises Lost and SandboxError."""
    holder = -1
    try:
        with open(os.path.join(folder, "lock")) as lock:
            holder = os.pidfd_open(int(lock.read()))
            if not _held(lock.fileno()):  # the pid may have been reused
                raise Lost
        enter(holder)
    except (FileNotFoundError, ProcessLookupError, ValueError) as error:
        raise Lost from error
    finally:
        if holder >= 0:
            os.close(holder)


def enter(holder: int) -> None:
    """Moves the caller into the network of the process behind the pidfd `holder`. Raises ProcessLookupError and SandboxError."""
    try:
        sandbox.setns(holder, sandbox.CLONE_NEWNET | (0 if os.geteuid() == 0 else sandbox.CLONE_NEWUSER))
    except ProcessLookupError:
        raise
    except OSError as error:
        raise sandbox.SandboxError(sandbox.forbidden(error)) from error


def _held(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
