"""Internet access, if an administrator opens it: public addresses and names only, nothing private and nothing of this machine."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clusters.clouds.drivers.local.network.network import INSIDE, LOST, NO_PASTA, OUTSIDE
from tests.clusters.clouds.local import machine
from tests.clusters.clouds.local.agents import PATIENCE, Agents, role
from tests.clusters.clouds.local.test_network import holder
from tests.clusters.clouds.local.test_reach import line, program

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="Only root can make a machine for the test."),
    pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="This kernel has no tun device."),
]

# Sends a DNS query, which comes back as the answer.
ASK = """
import re, socket
server = re.search("nameserver (.*)", open("/etc/resolv.conf").read())[1]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.settimeout(10)
    client.sendto(b"%s", (server, 53))
    print(client.recv(512) == b"%s")
"""


@pytest.fixture
def room() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="elearn-machine-"))
    yield folder
    shutil.rmtree(folder)


def on(room: Path) -> str:
    return f"from pathlib import Path\nfrom tests.clusters.clouds.local import machine\nmachine.become(Path({str(room)!r}))"


@pytest.mark.skipif(not shutil.which("pasta"), reason="pasta is not installed (Debian package passt).")
def test_only_what_is_public_is_reached(make_agent: Agents, room: Path) -> None:
    agent = make_agent("--network", "on", before=on(room))
    assert OUTSIDE in agent.cloud.capacity().nodes[0].note, agent.log()
    everything = [machine.PUBLIC, *machine.PRIVATE, *machine.MINE, machine.ROUTER, "127.0.0.1"]
    targets: dict[str, tuple[str, object]] = {each: ("AF_INET", [each, 80]) for each in everything}
    question = b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7example\\0\\0\\1\\0\\1".decode()
    (Path(program(agent)) / "ask.py").write_text(ASK % (question, question))
    ask = line("ask", targets, alone=False) + " && python ask.py"
    for at_once in (0, 1):  # through the network of the run, and that of a copy
        answers, resolved = agent.says(ask, at_once=at_once, program=program(agent)).splitlines()
        assert json.loads(answers) == [machine.PUBLIC]
        assert resolved == "True"
    change = "from pyroute2 import IPRoute; IPRoute().route('del', dst='10.0.0.0/8', type='prohibit')"
    assert "Operation not permitted" in agent.says(f'python -c "{change}" 2>&1 || true')

    run = agent.apply(role("sleep 600"))
    agent.running(run)
    held = psutil.Process(holder(agent, run))
    carriers = held.children()
    assert [each.uids().real for each in carriers] == [int(agent.says("id -u")) - 2]
    held.kill()
    assert psutil.wait_procs(carriers, PATIENCE)[1] == []
    assert agent.ended(run).message == LOST


def test_without_pasta_tasks_stay_inside_and_it_is_told(make_agent: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = Path(tempfile.mkdtemp(prefix="elearn-path-"))
    try:
        for tool in ("setpriv", "sh"):  # needed to start an agent here
            (tools / tool).symlink_to(str(shutil.which(tool)))
        monkeypatch.setenv("PATH", str(tools))
        note = make_agent("--network", "on").cloud.capacity().nodes[0].note
    finally:
        shutil.rmtree(tools)
    assert INSIDE in note
    assert NO_PASTA in note
