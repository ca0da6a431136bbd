"""A task's endpoint is reachable only with the proof of its cluster, and secrets are only in the task's environment."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from clusters.clouds.drivers import entrance
from clusters.clouds.drivers.base import CloudRefused, Endpoint, EndpointSeen, RolePlan, RunRef
from clusters.clouds.drivers.local.network import sockets
from portal.up.services import free_port
from tests.clusters.clouds.local.agents import PATIENCE, PROOF, Agent, role
from tests.running import ROOT

# Answers with the requested path in capitals.
SERVE = """exec python -c 'import http.server
class Asked(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked", flush=True)
        self.wfile.write(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + self.path.upper().encode())
http.server.ThreadingHTTPServer(("127.0.0.1", 8888), Asked).serve_forever()'
"""
PORT = 8888


def serving(command: str = SERVE, **options: object) -> RolePlan:
    return replace(role(command), endpoints=(Endpoint("web", PORT),), **options)


def address(agent: Agent, run: RunRef, *, ready: bool = True) -> str:
    """Waits until the endpoint of `run` is `ready` (or not); returns its address, "" if not ready."""

    def last() -> EndpointSeen | None:
        told = [each for each in agent.seen if isinstance(each, EndpointSeen) and each.run_id == run.id]
        return told[-1] if told and told[-1].ready == ready else None

    found: EndpointSeen = agent.until(last)
    assert bool(found.address) == ready
    return found.address


def said(address: str, path: str = "/", proof: str = PROOF) -> str:
    """The body of the answer, "" if the connection is closed."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as one:
        try:
            one.sendall(f"GET {path} HTTP/1.0\r\nX-Portal-Gateway: {proof}\r\n\r\n".encode())
            answer = b"".join(iter(lambda: one.recv(65536), b""))
        except OSError as error:  # the other side closed it first
            if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise
            return ""
    return answer.partition(b"\r\n\r\n")[2].decode()


# Answers the second request with an error, and all others with the number of requests so far.
STUMBLES = """exec python -c 'import http.server
class Counted(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_GET(self):
        Counted.count += 1
        status = b"503 Busy" if Counted.count == 2 else b"200 OK"
        self.wfile.write(b"HTTP/1.0 " + status + b"\\r\\n\\r\\n" + str(Counted.count).encode())
http.server.HTTPServer(("127.0.0.1", 8888), Counted).serve_forever()'
"""


def test_who_warms_up_is_ready_when_it_was_healthy_for_so_long(agent: Agent) -> None:
    warm = replace(serving(STUMBLES), endpoints=(Endpoint("web", PORT, warm_up_seconds=1),))
    assert int(said(address(agent, agent.apply(warm)))) > 3


@pytest.mark.as_user
def test_an_endpoint_leads_into_the_network_of_its_run_whatever_dies(agent: Agent) -> None:
    runs = [agent.apply(serving()), agent.apply(serving(SERVE.replace("upper", "title")))]
    first, second = (address(agent, run) for run in runs)
    assert (said(first, "/a-word"), said(second, "/a-word")) == ("/A-WORD", "/A-Word")
    assert said(first, "/" + "x" * 60_000) == "/" + "X" * 60_000
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", PORT), PATIENCE)
    agent.signal(signal.SIGKILL)
    agent.start()
    agent.seen.clear()
    agent.position = agent.cloud.list().position
    assert said(first, "/still") == "/STILL"
    told = [item for item in agent.cloud.list().items if isinstance(item, EndpointSeen)]
    assert {item.run_id for item in told if item.ready} <= {run.id for run in runs}
    agent.cloud.delete(runs[0])
    address(agent, runs[0], ready=False)
    agent.gone(runs[0])
    with pytest.raises(ConnectionRefusedError):
        said(first)


def test_an_endpoint_is_ready_when_its_program_answers_and_not_before(agent: Agent) -> None:
    wait = "until [ -e /elearn/output/go ]; do sleep 0.05; done"
    run = agent.apply(serving(f"{wait}; {SERVE}", retries=1))
    agent.running(run)
    scratch = agent.room(run) / "scratch"
    assert not [each for each in agent.seen if isinstance(each, EndpointSeen)]
    (scratch / "go").touch()
    first = address(agent, run)
    assert said(first, "/yes") == "/YES"
    os.kill(int((agent.folder / "cloud" / "runs" / str(run.id) / "network" / "lock").read_text()), signal.SIGKILL)
    address(agent, run, ready=False)
    assert said(address(agent, run), "/again") == "/AGAIN"


def test_an_endpoint_that_answers_with_errors_of_the_server_is_not_ready(agent: Agent) -> None:
    run = agent.apply(serving(SERVE.replace("200 OK", "503 Service Unavailable")))
    agent.until_output(run, "asked\nasked")
    assert not [each for each in agent.seen if isinstance(each, EndpointSeen)]


def test_who_has_no_proof_is_not_led_in_not_even_as_the_user_of_the_portal(agent: Agent) -> None:
    run, other = agent.apply(serving()), agent.plan(serving(), proof="that of another cluster")
    agent.cloud.apply(other)
    here, there = address(agent, run), address(agent, other.run)
    assert said(here, "/word") == said(there, "/word", other.proof) == "/WORD"
    for proof in ("", "guessed", other.proof):
        assert said(here, "/word", proof) == f"{entrance.NOT_PROVEN}\n"

    async def given(proof: str) -> str:
        """Address of the other end of a connection that is handed over, "" for none."""
        found = await sockets.connection(int(here.rpartition(":")[2]), proof)
        if found is None:
            return ""
        with found:
            return "{}:{}".format(*found.getpeername())

    assert [asyncio.run(given(proof)) for proof in ("guessed", other.proof)] == ["", ""]
    # The program itself, and no relay port.
    assert asyncio.run(given(PROOF)) == f"127.0.0.1:{PORT}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user; run it as root")
def test_another_user_who_took_the_name_is_not_shown_the_proof() -> None:
    port = free_port()
    take = (
        f"import os; from {sockets.__name__} import listen; os.setuid(65534); name = listen({port}); print(flush=True)"
    )
    take += "; print(name.accept()[0].recv(99))"
    argv = [sys.executable, "-c", take]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout
        stranger.stdout.readline()
        assert asyncio.run(sockets.connection(port, PROOF)) is None
        assert stranger.stdout.read() == "b''\n"


def test_a_role_of_several_tasks_serves_nothing(agent: Agent) -> None:
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
    # The folder of the cloud is private to its owner, so no one else reaches these files.
    assert not readable or (agent.folder / "cloud").stat().st_mode & 0o077 == 0
