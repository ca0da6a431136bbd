"""Holds the network of one run, like the pause container of a pod: only the run's tasks join it.

Run as `python -I -S holder.py FOLDER LOCK` (see processes.py), or forked by the shim of a task with its own network (`begin`).
The network only has its own loopback, so the run's tasks reach each other by 127.0.0.1, and no other run, no server of this
machine and no other machine; abstract Unix sockets are separate, too. With `outside` in spec.json, pasta connects it to the
internet (outside.py); pasta is a child of the holder, and each ends with the other.

The started process exits when the network is ready; its child stays until SIGTERM. Errors are in status.json. Each of the
`endpoints` in spec.json has a port of this machine's loopback, named in FOLDER/endpoints.json: connections with the `proof` are
forwarded to that port of 127.0.0.1 inside (forward.py), or a connection to it is passed on (sockets.py). Tasks cannot reach this
machine's loopback except for the sockets `packages` (the package index) and `stream` (their streamed input; outward.py)."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys

if not __package__:  # run as a script; the isolated interpreter has no other way to find its neighbours
    sys.path[0:0] = [os.path.abspath(__file__).rsplit("/clusters/", 1)[0]]

from clusters.clouds.drivers.local.network import netns, outward
from clusters.clouds.drivers.local.task import sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MADE = b"made"


def main(folder: str, lock: int) -> None:
    with open(os.path.join(folder, "spec.json")) as file:
        spec = json.load(file)
    os.set_inheritable(lock, False)
    try:
        child, _ = begin(spec, os.path.join(folder, "endpoints.json"))
    except sandbox.SandboxError as error:
        with open(os.path.join(folder, "status.json"), "w") as file:
            json.dump({"error": str(error)}, file)
    else:
        os.pwrite(lock, b"%d\n" % child, 0)


def begin(spec: dict[str, Any], endpoints_file: str = "", *, shim_lock: int = -1) -> tuple[int, int]:
    """Returns the pid of a new holder, whose network is ready, and a descriptor that is readable once it has ended. Raises
    SandboxError.

    A shim passes the lock of its own folder: the holder closes it and ends with the shim.
    """
    told, tells = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            if shim_lock >= 0:
                os.close(shim_lock)
            hold(tells, spec, endpoints_file, ends_with_parent=shim_lock >= 0)
        except (sandbox.SandboxError, OSError) as error:
            os.write(tells, str(error).encode())
        finally:
            os._exit(1)
    os.close(tells)
    said = os.read(told, 4096)
    if said == _MADE:
        problem = lead_out(child, spec["outside"]) if spec["outside"] else ""
    else:
        problem = said.decode() or "The network could not be made."
    if problem:
        os.kill(child, signal.SIGKILL)
        raise sandbox.SandboxError(problem)
    return child, told


def hold(tells: int, spec: dict[str, Any], endpoints_file: str, *, ends_with_parent: bool) -> None:
    """Makes the network, reports that to `tells`, which stays open as long as the holder lives, and waits."""
    os.setsid()
    os.umask(0o022)
    outside, endpoints = spec["outside"], spec["endpoints"]
    listening, handing = listen(endpoints, endpoints_file) if endpoints else ({}, {})
    packages, stream = spec.get("packages", ""), spec.get("stream", "")
    index = outward.folder_of(packages) if packages else -1
    input_folder = outward.folder_of(stream) if stream else -1
    carrier = -1
    if outside:
        go_read, go_write = os.pipe2(os.O_CLOEXEC)
        carrier = os.fork()
        if carrier == 0:
            carry(go_read, outside)
        become(outside["uid"])
    netns.make()
    if ends_with_parent:  # a new uid would have made the kernel forget it
        sandbox.die_with_parent()
        sandbox.be_seen()
    if outside:
        os.write(go_write, b"!")
    if endpoints:
        from clusters.clouds.drivers.local.network import forward

        forward.begin(listening, handing, spec["proof"])
    if packages:
        outward.begin(packages, index)
    if stream:
        outward.begin(stream, input_folder, outward.INPUT, outward.INPUT_AT_ONCE)
    os.write(tells, _MADE)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if carrier < 0:
        while True:
            signal.pause()
    os.waitpid(carrier, 0)


def listen(endpoints: dict[str, int], told: str) -> tuple[dict[int, socket.socket], dict[int, socket.socket]]:
    """Returns by port: sockets that listen for endpoints on this machine's loopback, and sockets that pass connections on.
    Writes the ports of the former to the file `told`."""
    from clusters.clouds.drivers.local.network import sockets

    found = {port: socket.create_server(("127.0.0.1", 0), backlog=128) for port in set(endpoints.values())}
    handing = {port: sockets.listen(each.getsockname()[1]) for port, each in found.items()}
    with open(told + ".new", "w") as file:
        json.dump({name: found[port].getsockname()[1] for name, port in endpoints.items()}, file)
    os.rename(told + ".new", told)
    return found, handing


def carry(go: int, outside: dict[str, Any]) -> None:
    """Becomes pasta, outside of the network that its parent makes meanwhile. Never returns."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # pasta takes anything else for a failure
        become(outside["uid"])
        sandbox.die_with_parent()
        if os.read(go, 1):
            os.execv(outside["pasta"], ["pasta", *outside["flags"], str(os.getppid())])  # noqa: S606  no shell is the point
    finally:
        os._exit(1)


def become(uid: int | None) -> None:
    """Changes to an ordinary user, who may only access its own processes: pasta must access the holder."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        sandbox.be_seen()


def lead_out(holder: int, outside: dict[str, Any]) -> str:
    """Waits until the network has its limited exit; returns why it has none, or ""."""
    error, tells = os.pipe2(os.O_CLOEXEC)
    argv = [sys.executable, "-I", outside["script"], str(holder)]
    child = os.posix_spawn(sys.executable, argv, {}, file_actions=[(os.POSIX_SPAWN_DUP2, tells, 2)])
    os.close(tells)
    said = b""
    while select.select([error], [], [])[0] and (data := os.read(error, 4096)):
        said += data
    code = os.waitpid(child, 0)[1]
    return "" if code == 0 else f"Tasks cannot be led to the internet: {said.decode(errors='replace').strip()[-200:]}."


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
