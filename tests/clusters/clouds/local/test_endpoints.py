"""What a task serves is reached by the socket of its endpoint alone; secrets are in its environment alone."""

from __future__ import annotations

import errno
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from clusters.clouds.drivers.base import CloudRefused, Endpoint, RolePlan, RunRef, ServesEndpoints
from clusters.clouds.drivers.local.protocol import At
from tests.clusters.clouds.local.agents import PATIENCE, Agent, role

# Says back in capitals what it was sent until the other side had no more to say.
SERVE = """exec python -c 'import socket
server = socket.create_server(("127.0.0.1", 8888))
print("up", flush=True)
while True:
    one, _ = server.accept()
    said = b""
    while data := one.recv(65536):
        said += data
    one.sendall(said.upper())
    one.close()'
"""
PORT = 8888


def serving(command: str = SERVE, **options: object) -> RolePlan:
    return replace(role(command), endpoints=(Endpoint("web", PORT),), **options)


def said(address: str, text: bytes) -> bytes:
    """What is answered at an endpoint to `text`, which ends there."""
    kind, _, path = address.partition(":")
    assert kind == "unix"
    with socket.socket(socket.AF_UNIX) as one, At(path) as short:
        one.settimeout(PATIENCE)
        one.connect(short)
        try:
            one.sendall(text)
            one.shutdown(socket.SHUT_WR)
        except OSError as error:  # the other side has closed it before
            if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise
            return b""
        answer = b""
        while data := one.recv(65536):
            answer += data
    return answer


@pytest.mark.as_user
def test_an_endpoint_leads_into_the_network_of_its_run_whatever_dies(agent: Agent) -> None:
    runs = [agent.apply(serving()), agent.apply(serving(SERVE.replace("upper", "title")))]
    for run in runs:
        agent.until_output(run, "up")
    assert isinstance(agent.cloud, ServesEndpoints)
    first, second = (agent.cloud.endpoint(run, "web") for run in runs)
    long = b"a word " * 100_000
    assert (said(first, long), said(second, b"two words")) == (long.upper(), b"Two Words")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", PORT), PATIENCE)
    socket_file = Path(first.removeprefix("unix:"))
    assert socket_file.parent.stat().st_mode & 0o077 == 0
    agent.signal(signal.SIGKILL)
    agent.start()
    assert said(agent.cloud.endpoint(runs[0], "web"), b"still") == b"STILL"
    agent.cloud.delete(runs[0])
    agent.gone(runs[0])
    assert not socket_file.exists()
    with pytest.raises(CloudRefused, match="no endpoint “web”"):
        agent.cloud.endpoint(runs[0], "web")


def test_an_endpoint_where_nobody_listens_is_closed_at_once_and_comes_back_with_its_network(agent: Agent) -> None:
    run = agent.apply(serving(f"until [ -e /elearn/output/go ]; do sleep 0.05; done; {SERVE}", retries=0))
    agent.running(run)
    address = agent.cloud.endpoint(run, "web")
    assert said(address, b"anybody?") == b""
    (agent.folder / "cloud" / "runs" / str(run.id) / "scratch" / "go").touch()
    agent.until_output(run, "up")
    assert said(address, b"yes") == b"YES"
    os.kill(int((agent.folder / "cloud" / "runs" / str(run.id) / "network" / "lock").read_text()), signal.SIGKILL)
    agent.ended(run)
    agent.until_output(run, "up", attempt=1)
    assert said(address, b"again") == b"AGAIN"


def test_what_a_run_does_not_serve_is_refused(agent: Agent) -> None:
    run = agent.apply(role("sleep 600"))
    for other in (run, RunRef(999, "ops", "ops-demo", "demo", 1)):
        with pytest.raises(CloudRefused, match="no endpoint “web”"):
            agent.cloud.endpoint(other, "web")
    with pytest.raises(CloudRefused, match="give the role one task"):
        agent.apply(serving(count=2))


@pytest.mark.as_user
def test_a_secret_is_in_the_environment_of_tasks_and_on_no_command_line(agent: Agent) -> None:
    plan = replace(
        agent.plan(role('echo "$TOKEN"; sleep 600', env={"URL": "x?$(TOKEN)"})), secrets={"TOKEN": "s3cr3t-$(A)"}
    )
    assert "s3cr3t" not in repr(plan)
    agent.cloud.apply(plan)
    agent.until_output(plan.run, "s3cr3t-$(A)\n")
    assert not [
        line for each in psutil.process_iter(["cmdline"]) for line in each.info["cmdline"] or () if "s3cr3t" in line
    ]
    folder = agent.folder / "cloud" / "runs" / str(plan.run.id)
    readable = [path for path in folder.rglob("*.json") if path.stat().st_mode & 0o077 and "s3cr3t" in path.read_text()]
    # Nobody else gets as far as these files: the folder of the cloud is its owner's alone.
    assert not readable or (agent.folder / "cloud").stat().st_mode & 0o077 == 0
