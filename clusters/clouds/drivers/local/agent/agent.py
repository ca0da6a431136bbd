"""The node agent: `python -m clusters.clouds.drivers.local.agent.agent --dir DIR --socket PATH [--gpus N]`.

A kubelet for this machine: one asyncio process that owns DIR and answers on a Unix socket (mode 0600). It may be killed at any
moment; tasks live on, and the next agent finds them. SIGTERM has the same effect, unless --stop-tasks-on-term is given because
the whole portal stops: then tasks are stopped as disrupted, and the next agent restarts them. It sleeps until a shim, a client
or a timer wakes it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any, cast

from clusters.clouds.drivers.base import CloudError, CloudRefused, RunRef, VolumeRef, WatchExpired
from clusters.clouds.drivers.lines import Wanted
from clusters.clouds.drivers.local import protocol
from clusters.clouds.drivers.local.agent import disks, gpu_meter, gpus, handlers, logs
from clusters.clouds.drivers.local.agent.machine import Options
from clusters.clouds.drivers.local.agent.node import Node
from clusters.clouds.drivers.local.task import cgroups

log = logging.getLogger("agent")

HEARTBEAT = 5.0
# Seconds without more news after which a watch sends an empty batch: the moment to read free capacity.
SETTLED = 0.2
MAX_REQUEST = 64 * 1024 * 1024
KINDS: dict[type[CloudError], str] = {CloudRefused: "refused", WatchExpired: "expired", CloudError: "error"}


class Server:
    """Answers requests in the form of protocol.py."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            if not line:
                return
            request = json.loads(line)
            if request["op"] == "watch":
                await self.watch(request["since"], writer)
            elif request["op"] == "exec":
                await self.exec(request, writer)
            else:
                head, body = await self.answer(request)
                writer.write(protocol.dumps(head) + body)
                await writer.drain()
        except CloudError as error:
            writer.write(protocol.dumps({"error": str(error), "kind": KINDS[type(error)]}))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as error:
            log.exception("A request failed")
            writer.write(protocol.dumps({"error": f"The node agent failed: {error!r}", "kind": "error"}))
        finally:
            writer.close()

    async def answer(self, request: dict[str, Any]) -> tuple[Any, bytes]:
        node, op = self.node, request["op"]
        if op == "apply":
            handlers.apply(node, protocol.plan_from(request["plan"]))
            return None, b""
        if op == "list":
            return handlers.everything(node), b""
        if op == "capacity":
            return handlers.capacity(node), b""
        if op == "gpu_use":
            return handlers.gpu_use(node, request["since"]), b""
        if op == "samples":
            return await handlers.samples(node), b""
        if op == "delete_volume":
            handlers.delete_volume(node, VolumeRef(**request["volume"]))
            return None, b""
        ref = RunRef(**request["run"])
        if op == "reserve":
            return handlers.reserve(node, ref, request["counts"]), b""
        if op in ("delete", "purge"):
            (handlers.delete if op == "delete" else handlers.purge)(node, ref)
            return None, b""
        task = (request["role"], request["index"])
        if op == "log":
            chunk = logs.read(node, ref, *task, request["attempt"], Wanted(**request["wanted"]))
            head = {name: getattr(chunk, name) for name in ("offset", "complete", "absent", "line")}
            sizes = {"size": len(chunk.data), "marks": len(chunk.marks)}
            return {**sizes, **head}, chunk.data + chunk.marks
        raise CloudRefused(f"The node agent does not know how to {op}.")

    async def exec(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answers with an empty line, then passes the connection to the process that runs the command."""
        folder = logs.running_folder(self.node, RunRef(**request["run"]), request["role"], request["index"])
        # Bytes after the answer belong to the command.
        cast("asyncio.ReadTransport", writer.transport).pause_reading()
        writer.write(protocol.dumps(None))
        await writer.drain()
        peer = os.dup(writer.get_extra_info("socket").fileno())
        try:
            await logs.execute(folder, {name: request[name] for name in ("argv", "stdin", "tty")}, peer)
        finally:
            os.close(peer)

    async def watch(self, since: str, writer: asyncio.StreamWriter) -> None:
        """Writes every batch after `since`, an empty one when news stop, and one every 5 s, until the client disconnects."""
        news = asyncio.Event()
        self.node.journal.listeners.add(news.set)
        try:
            batch = self.node.journal.since(since)
            while not writer.is_closing():
                writer.write(protocol.dumps(batch))
                await writer.drain()
                news.clear()
                following = self.node.journal.since(batch.position)
                if not following.items:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(news.wait(), SETTLED if batch.items else HEARTBEAT)
                    following = self.node.journal.since(batch.position)
                batch = following
        finally:
            self.node.journal.listeners.discard(news.set)


def listen(path: Path, kind: socket.SocketKind) -> socket.socket:
    """Returns a socket at `path` that only its owner may use."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, kind)
    server.setblocking(False)
    mask = os.umask(0o177)
    try:
        with protocol.At(path) as short:
            server.bind(short)
    finally:
        os.umask(mask)
    return server


async def run(args: argparse.Namespace) -> None:
    found = gpus.find(args.gpus, ignore_real=args.ignore_real_gpus)
    first, last = (int(port) for port in args.ports.split("-"))
    options = Options(
        range(first, last + 1),
        args.journal_items,
        args.log_limit,
        args.store_seconds,
        args.cpu_overcommit,
        args.reserved_gb,
        args.processes,
        args.file_gb,
        args.free_disk_gb,
        args.appcode_gb,
        args.shared,
        args.network == "on",
        args.activity_seconds,
        str(args.packages.resolve()) if args.packages else "",
        not args.no_index,
    )
    node = Node(args.dir, found, options)
    loop = asyncio.get_running_loop()
    poke = listen(node.poke, socket.SOCK_DGRAM)
    loop.add_reader(poke, hear, node, poke)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    node.probe()
    no_disks = f"{disks.NOT_HELD} ({node.no_disks})" if node.no_disks else ""
    no_shares = "" if node.cgroups else cgroups.CPU_NOT_SHARED
    problems = (node.cannot_isolate, node.shares_network, node.no_outside, no_disks, no_shares, node.uids_shared)
    for problem in filter(None, problems):
        log.error("%s", problem)
    node.resume()
    server = await asyncio.start_unix_server(
        Server(node).serve, sock=listen(args.socket, socket.SOCK_STREAM), limit=MAX_REQUEST
    )
    log.info("Ready: %d %sGPUs, %d runs.", len(found.slots), "simulated " if found.simulated else "", len(node.runs))
    measuring = (
        None if found.simulated else asyncio.create_task(gpu_meter.measure(node.meter, node.holders, found.names))
    )
    await ended.wait()
    if measuring is not None:
        measuring.cancel()
    if args.stop_tasks_on_term:
        await leave(node, args.stop_seconds)
    server.close()
    if all(run.idle for run in node.runs.values()):
        node.detach_all()
    cgroups.remove(node.cgroups)


def hear(node: Node, poke: socket.socket) -> None:
    while True:
        try:
            name = poke.recv(4096).decode()
        except BlockingIOError:
            return
        node.heard(name)


async def leave(node: Node, seconds: float) -> None:
    """Stops all tasks and waits up to `seconds` until they have ended and their output is stored."""
    node.leaving = True
    for one in node.runs.values():
        node.wake(one.ref.id)
    node.wake()
    try:
        await asyncio.wait_for(node.left.wait(), seconds)
    except TimeoutError:
        log.warning("Output could not be stored in time; it is stored after the next start.")
        for one in node.runs.values():
            one.data.kill()
    node.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="clusters.clouds.drivers.local.agent.agent", description="Runs tasks on this machine."
    )
    parser.add_argument("--dir", type=Path, required=True, help="the folder of the cloud: runs, logs, journal")
    parser.add_argument("--socket", type=Path, required=True, help="the Unix socket to answer on")
    parser.add_argument("--gpus", type=int, default=8, help="simulated GPUs when this machine has none (default 8)")
    parser.add_argument("--ignore-real-gpus", action="store_true", help="simulate GPUs even when there are some")
    parser.add_argument("--stop-tasks-on-term", action="store_true", help="SIGTERM stops the tasks too")
    parser.add_argument("--stop-seconds", type=float, default=60, help="how long that may take (default 60)")
    parser.add_argument("--ports", default="20000-29999", help="ports of tasks (default 20000-29999)")
    parser.add_argument("--journal-items", type=int, default=20_000, help="news that a watch can go back")
    parser.add_argument("--log-limit", type=int, default=Options.log_limit, help="bytes of a task's log that are kept")
    parser.add_argument("--store-seconds", type=float, default=600, help="how long a final store is tried again")
    parser.add_argument("--cpu-overcommit", type=float, default=4, help="how often a core is given out (default 4)")
    parser.add_argument(
        "--reserved-gb", type=float, help="GiB of memory not for tasks (2, or a quarter of a small machine)"
    )
    parser.add_argument(
        "--processes", type=int, default=4096, help="most processes of a task, threads too (default 4096)"
    )
    parser.add_argument(
        "--free-disk-gb", type=float, help="GiB of disk without which no run starts (5, or a twentieth)"
    )
    parser.add_argument("--file-gb", type=float, default=0, help="GiB of a task's largest file (a quarter of the disk)")
    parser.add_argument(
        "--appcode-gb", type=float, default=0, help="GiB that the runs of an appcode may write (a quarter of the disk)"
    )
    parser.add_argument(
        "--network", choices=("off", "on"), default="off", help="on: tasks reach the internet, by pasta"
    )
    parser.add_argument("--packages", type=Path, help="the socket of the package index and tracking that tasks reach")
    parser.add_argument("--no-index", action="store_true", help="that socket leads to tracking alone")
    parser.add_argument(
        "--shared",
        action="store_true",
        help="several appcodes at a time even where they cannot be kept apart",
    )
    parser.add_argument(
        "--activity-seconds", type=float, default=15, help="between two looks whether a run works (default 15)"
    )
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    os.umask(0o022)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every task needs one file descriptor
    args.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    args.dir = args.dir.resolve()
    lock = os.open(args.dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"Another node agent works in {args.dir} already.")
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
