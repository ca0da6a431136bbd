"""What a task can reach by network: one table, tried from a task of another tenant, a task of the same run, and a command.

Every server on this machine has a row, so adding a server to `manage.py up` means stating here how it listens. Sockets that
accept all connections at the same ports stand in for the servers.
"""

from __future__ import annotations

import json
import shlex
import socket
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from clusters.clouds.drivers.base import RunRef
from portal.up import programs, services
from portal.up.data import Data
from tests.clusters.clouds.local.agents import Agent, Agents, role
from tests.clusters.clouds.local.test_exec import heard

pytestmark = pytest.mark.as_user

# How each program of `manage.py up` listens. Ports are tried; sockets are in folders of mode 700, which no sandbox contains.
PORT, SOCKET, NOT_AT_ALL = "port", "socket", "not at all"
LISTENS = {
    "postgres": SOCKET,
    "valkey": SOCKET,
    "packages": SOCKET,
    "agent": SOCKET,
    "controller": NOT_AT_ALL,
    "worker": NOT_AT_ALL,
    "web": PORT,
    "router": PORT,
    "gateway": PORT,
    # The gateway's S3 port, and two ports of the object storage behind it.
    "storage": PORT,
    "storage-door": PORT,
    "storage-store": PORT,
}
TASK_PORT = 24_991

# Connects to every address of `asked` and prints which answered. Refuses to run outside a network of its own.
PROGRAM = """
import json, os, socket, sys, threading

names = {line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line}
if "ALONE" in os.environ and names != {"lo"}:
    sys.exit(f"This task sees the interfaces {names}.")

def bound(family, address):
    server = socket.socket(family)
    if family == socket.AF_INET6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    server.bind(tuple(address) if isinstance(address, list) else address)
    server.listen()
    return server

asked = json.loads(sys.argv[2])
if sys.argv[1] == "serve":
    kept = [bound(getattr(socket, family), address) for family, address in asked.values()]
    print("serving", flush=True)
    threading.Event().wait()
answers = []
for name, (family, address) in asked.items():
    with socket.socket(getattr(socket, family)) as client:
        client.settimeout(5)
        try:
            client.connect(tuple(address) if isinstance(address, list) else address)
        except OSError:
            continue
        answers.append(name)
print(json.dumps(answers))
"""


@contextmanager
def serving(targets: dict[str, tuple[str, object]]) -> Iterator[None]:
    """Listens at all these addresses on this machine."""
    with ExitStack() as kept:
        for family, address in targets.values():
            server = kept.enter_context(socket.socket(getattr(socket, family)))
            if family == "AF_INET6":
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            server.bind(tuple(address) if isinstance(address, list) else address)
            server.listen()
        yield


def at(port: int, name: str) -> dict[str, tuple[str, object]]:
    return {f"{name} at 127.0.0.1": ("AF_INET", ["127.0.0.1", port]), f"{name} at [::1]": ("AF_INET6", ["::1", port])}


def program(agent: Agent) -> str:
    folder = agent.folder / "program"
    folder.mkdir(exist_ok=True)
    (folder / "reach.py").write_text(PROGRAM)
    return str(folder)


def line(does: str, targets: dict[str, tuple[str, object]], *, alone: bool = True) -> str:
    return f"{'ALONE=1 ' if alone else ''}python reach.py {does} {shlex.quote(json.dumps(targets))}"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Data]:
    """A data folder as `manage.py up` creates it."""
    port = str(services.free_port())
    with Data.open({"PORTAL_DATA": str(tmp_path / "var"), "PORTAL_PORT": port}) as data:
        yield data


def portal_services(data: Data) -> dict[str, int]:
    """Names of all services that `up` starts, and the ports of those that have one."""
    (data.folder / "postgres").mkdir()
    (data.folder / "postgres" / "PG_VERSION").touch()  # skips initdb
    own = programs.own_servers(data)
    env = data.portal_env({server.name: server.url for server in own})
    storage = programs.storage(data, env)
    names = [service.name for service in [*own, *programs.portal(data, env), *([storage] if storage else [])]]
    ports = json.loads((data.folder / "ports.json").read_text()) | {"gateway": data.port}
    return dict.fromkeys(names, 0) | ports


@pytest.fixture
def agent(make_agent: Agents) -> Agent:
    """An agent that runs two appcodes even if their disk use can't be limited."""
    return make_agent("--shared")


@pytest.fixture
def bob(agent: Agent) -> tuple[RunRef, dict[str, tuple[str, object]]]:
    """A run of two tasks: worker-0 serves, and worker-1 logs what it reaches."""
    abstract = f"\0bob-{uuid.uuid4()}"
    targets = at(TASK_PORT, "bob's server") | {"bob's abstract socket": ("AF_UNIX", abstract)}
    serve, ask = line("serve", targets), line("ask", targets)
    # Both share a network, so the second may start when it sees the first one's socket.
    wait = f"until grep -q '00010000.*{abstract[1:]}' /proc/net/unix; do sleep 0.05; done"
    script = f"if [ $TASK_INDEX = 0 ]; then {serve}; else {wait}; {ask}; fi"
    run = agent.apply(role(script, count=2), program=program(agent))
    agent.until_output(run, "serving")
    return run, targets


def test_a_task_reaches_its_own_run_and_nothing_else(
    agent: Agent, up: Data, bob: tuple[RunRef, dict[str, tuple[str, object]]]
) -> None:
    run, bobs = bob
    ports = portal_services(up)
    assert ports.keys() == LISTENS.keys(), "Every program of `manage.py up` needs a row in LISTENS."
    assert {name for name, port in ports.items() if port} == {name for name, how in LISTENS.items() if how == PORT}
    host: dict[str, tuple[str, object]] = {"this machine's abstract socket": ("AF_UNIX", f"\0host-{uuid.uuid4()}")}
    for name, port in ports.items():
        if port:
            host |= at(port, name)
    addresses = {
        each.address.partition("%")[0]: each.family.name
        for found in psutil.net_if_addrs().values()
        for each in found
        if each.family in (socket.AF_INET, socket.AF_INET6)
    }
    elsewhere = {
        f"this machine's {address}": (family, [address, ports["gateway"]])
        for address, family in addresses.items()
        if address not in ("127.0.0.1", "::1")
    }
    elsewhere |= {
        "the metadata service": ("AF_INET", ["169.254.169.254", 80]),
        "the metadata service by IPv6": ("AF_INET6", ["fd00:ec2::254", 80]),
    }
    everything = bobs | host | elsewhere

    with serving(host):
        for at_once in (0, 1):  # in the network of her run, and in that of a copy
            mallory = agent.plan(role(line("ask", everything), at_once=at_once), program=program(agent))
            mallory = replace(mallory, run=replace(mallory.run, appcode="flight-demo"))
            agent.cloud.apply(mallory)
            assert agent.ended(mallory.run).phase == "Succeeded", agent.output(mallory.run)
            assert json.loads(agent.output(mallory.run)) == []

        assert agent.ended(run, index=1).phase == "Succeeded", agent.output(run, index=1)
        assert json.loads(agent.output(run, index=1)) == list(bobs)

        command = agent.cloud.exec(
            run, "worker", 0, ["env", "ALONE=1", "python", "reach.py", "ask", json.dumps(everything)]
        )
        code, output, errors = heard(command)
        assert code == 0, errors
        assert json.loads(output) == list(bobs)


def test_a_task_cannot_stand_in_for_the_gateway(agent: Agent) -> None:
    """Whatever port a task listens on, a browser on this machine never reaches it at 127.0.0.1 or [::1]."""
    port = services.free_port()
    run = agent.apply(role(line("serve", at(port, "the portal"))), program=program(agent))
    agent.until_output(run, "serving")
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as browser, pytest.raises(ConnectionRefusedError):
            browser.connect((address, port))
