"""Holds the network of one run, as the pause container of a pod does: its tasks join it, and nobody else is in it.

Run as `python -I -S holder.py FOLDER LOCK` (see processes.py). In the network there is nothing but a loopback of its own,
so the run's tasks reach each other by 127.0.0.1, and no other run, no server of this machine, no other machine; abstract
Unix sockets are apart, too. With `outside` in spec.json, pasta leads from it to the internet (outside.py); it is a
child of the holder that ends with it, and the holder ends with pasta.

The process that was started leaves when the network is there, and its child stays until SIGTERM. What went wrong stands in
status.json. Each of the `endpoints` in spec.json has a port of this machine's loopback, named in FOLDER/endpoints.json: what
the user that runs the portal sends there is led to that port of 127.0.0.1 inside (forward.py), or a connection to it is handed
out (handed.py). Tasks do not reach this machine's loopback; with `packages`, the socket of the package index, and `stream`, that
of their input, they reach those (outward.py)."""

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
from clusters.clouds.drivers.local.network.peers import Peers
from clusters.clouds.drivers.local.task import sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MADE = b"made"


def main(folder: str, lock: int) -> None:
    with open(os.path.join(folder, "spec.json")) as file:
        spec = json.load(file)
    outside = spec["outside"]
    os.set_inheritable(lock, False)
    told, tells = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            hold(tells, outside, os.path.join(folder, "endpoints.json"), spec["endpoints"], spec)
        except (sandbox.SandboxError, OSError) as error:
            os.write(tells, str(error).encode())
        finally:
            os._exit(1)
    os.close(tells)
    said = os.read(told, 4096)
    if said == _MADE:
        problem = lead_out(child, outside) if outside else ""
    else:
        problem = said.decode() or "The network could not be made."
    if problem:
        os.kill(child, signal.SIGKILL)
        with open(os.path.join(folder, "status.json"), "w") as file:
            json.dump({"error": problem}, file)
    else:
        os.pwrite(lock, b"%d\n" % child, 0)


def hold(
    tells: int, outside: dict[str, Any] | None, told: str, endpoints: dict[str, int], spec: dict[str, Any]
) -> None:
    """The rest of the holder's life: makes the network, says so to `tells`, and stays."""
    os.setsid()
    os.umask(0o022)
    owner = os.geteuid()
    listening, handing = listen(endpoints, told) if endpoints else ({}, {})
    # Of this machine's network, which is left now.
    peers = Peers() if endpoints else None
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
    if outside:
        os.write(go_write, b"!")
    if peers is not None:
        from clusters.clouds.drivers.local.network import forward

        forward.begin(listening, handing, peers, owner)
    if packages:
        outward.begin(packages, index)
    if stream:
        outward.begin(stream, input_folder, outward.INPUT, outward.INPUT_AT_ONCE)
    os.write(tells, _MADE)
    os.close(tells)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if carrier < 0:
        while True:
            signal.pause()
    os.waitpid(carrier, 0)


def listen(endpoints: dict[str, int], told: str) -> tuple[dict[int, socket.socket], dict[int, socket.socket]]:
    """A socket for the port of each endpoint, in the network of this machine, and one to hand out connections to it; `told` is
    the file that names the ports of the former."""
    from clusters.clouds.drivers.local.network import handed

    found = {port: socket.create_server(("127.0.0.1", 0), backlog=128) for port in set(endpoints.values())}
    handing = {port: handed.listen(each.getsockname()[1]) for port, each in found.items()}
    with open(told + ".new", "w") as file:
        json.dump({name: found[port].getsockname()[1] for name, port in endpoints.items()}, file)
    os.rename(told + ".new", told)
    return found, handing


def carry(go: int, outside: dict[str, Any]) -> None:
    """Becomes pasta, outside of the network that its parent has made meanwhile. Never returns."""
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
    """As an ordinary user one may only look after one's own processes, and pasta looks into the holder."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        sandbox.be_seen()


def lead_out(holder: int, outside: dict[str, Any]) -> str:
    """Waits until the way out is open as far as it may be; why it is not, or ""."""
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
