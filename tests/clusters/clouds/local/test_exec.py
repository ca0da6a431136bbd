"""Commands inside running tasks: what they are, what they see, and how they end."""

from __future__ import annotations

import hashlib
import signal
import threading
import time
import uuid

import psutil
import pytest

from clusters.clouds.drivers.base import CloudError, RunRef, Session
from tests.clusters.clouds.local.agents import PATIENCE, Agent, Agents, role

pytestmark = pytest.mark.as_user


def heard(session: Session, seconds: float = PATIENCE) -> tuple[int | None, bytes, bytes]:
    """Reads to the end; returns exit code, output and errors."""
    found = {"stdout": b"", "stderr": b""}
    end = time.monotonic() + seconds
    while session.exit_code is None:
        assert time.monotonic() < end, found
        if output := session.receive(1):
            found[output.stream] += output.data
    session.close()
    return session.exit_code, found["stdout"], found["stderr"]


def until(session: Session, text: bytes, seconds: float = PATIENCE) -> bytes:
    found, end = b"", time.monotonic() + seconds
    while text not in found:
        assert time.monotonic() < end, found
        output = session.receive(0.5)
        found += output.data if output else b""
    return found


@pytest.fixture
def run(agent: Agent) -> RunRef:
    script = "export X=hidden; echo mine > /tmp/mine; id -u > /tmp/uid; echo up; sleep 600"
    run = agent.apply(role(script, env={"NAME": "value"}))
    agent.until_output(run, "up")
    agent.running(run)
    return run


def test_a_command_is_like_the_task(agent: Agent, run: RunRef) -> None:
    def inside(*argv: str) -> tuple[int | None, bytes, bytes]:
        return heard(agent.cloud.exec(run, "worker", 0, argv))

    assert inside("cat", "/tmp/mine") == (0, b"mine\n", b"")
    assert inside("bash", "-c", "test $(id -u) = $(cat /tmp/uid) && echo $NAME $PWD; exit 3") == (
        3,
        b"value /elearn\n",
        b"",
    )
    assert inside("bash", "-c", "echo bad >&2; kill -9 $$") == (137, b"", b"bad\n")
    assert inside("grep", "-c", "^CapEff:.0000000000000000", "/proc/self/status") == (0, b"1\n", b"")
    assert inside("no-such-program") == (127, b"", b"'no-such-program' cannot be started: no such program\n")
    assert inside("ls", str(agent.folder))[0] == 2
    assert inside("cat") == (0, b"", b"")
    with pytest.raises(CloudError, match="worker-5 does not run"):
        agent.cloud.exec(run, "worker", 5, ["true"])


def test_output_of_any_size_comes_as_it_is_written(agent: Agent, run: RunRef) -> None:
    size = 32 << 20
    session = agent.cloud.exec(run, "worker", 0, ["head", "-c", str(size), "/dev/zero"])
    received = 0
    while session.exit_code is None:
        if output := session.receive(5):
            received += len(output.data)
            assert len(output.data) <= 1 << 16
    assert (session.exit_code, received) == (0, size)


def test_input_is_passed_on_to_its_end(agent: Agent, run: RunRef) -> None:
    session = agent.cloud.exec(run, "worker", 0, ["sha256sum"], stdin=True)
    for _ in range(64):
        session.send(b"x" * (1 << 16))
    session.end_input()
    assert heard(session)[:2] == (0, hashlib.sha256(b"x" * (4 << 20)).hexdigest().encode() + b"  -\n")


def test_input_that_nobody_reads_does_no_harm(agent: Agent, run: RunRef) -> None:
    session = agent.cloud.exec(run, "worker", 0, ["bash", "-c", "exec 0<&-; sleep 0.5; echo done"], stdin=True)

    def send() -> None:
        try:
            for _ in range(256):
                session.send(b"x" * (1 << 16))
        except CloudError:
            return

    sender = threading.Thread(target=send)
    sender.start()
    assert heard(session)[:2] == (0, b"done\n")
    sender.join(PATIENCE)
    assert not sender.is_alive()


def test_a_terminal(agent: Agent, run: RunRef) -> None:
    session = agent.cloud.exec(run, "worker", 0, ["bash", "--norc", "-i"], tty=True)
    session.resize(117, 39)
    session.send(b"stty size; tty; test -r $(tty) && echo can-reopen; echo $TERM; jobs; echo ready\r")
    shown = until(session, b"\nready\r\n")
    assert b"39 117" in shown
    assert b"/dev/pts/" in shown
    assert b"can-reopen" in shown
    assert b"job control" not in shown
    # Ctrl-C reaches the program only if this is its controlling terminal.
    session.send(b"sh -c 'echo asl''eep; exec sleep 1000'; echo code $?\r")
    until(session, b"asleep")
    session.send(b"\x03")
    until(session, b"$ ")
    session.send(b"exit 7\r")
    assert heard(session)[0] == 7


def test_a_command_ends_when_they_hang_up(agent: Agent, run: RunRef) -> None:
    line = ["sleep", str(uuid.uuid4().int % 10**9 + 10**9)]  # unique to this test: others run in parallel
    sleep = " ".join(line)
    session = agent.cloud.exec(run, "worker", 0, ["bash", "-c", f"echo up; {sleep} & {sleep}"])

    def sleepers() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.cmdline() == line:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    until(session, b"up")
    deadline = time.monotonic() + PATIENCE
    while len(sleepers()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    session.close()
    assert psutil.wait_procs(sleepers(), timeout=PATIENCE)[1] == []


def test_what_it_leaves_in_the_background_does_not_keep_the_session(agent: Agent, run: RunRef) -> None:
    session = agent.cloud.exec(run, "worker", 0, ["bash", "-c", "yes background & echo over"])
    code, output, _ = heard(session)
    assert code == 0
    assert b"over\n" in output


def test_arguments_are_not_in_the_list_of_processes(agent: Agent, run: RunRef) -> None:
    session = agent.cloud.exec(run, "worker", 0, ["bash", "-c", "echo up; read line; : secret-4711"], stdin=True)
    until(session, b"up")
    helpers = []
    for process in psutil.process_iter():
        try:
            if "task/exec.py" in " ".join(process.cmdline()):
                helpers.append(process.cmdline())
        except psutil.Error:
            continue
    assert helpers
    assert "secret-4711" not in str(helpers)
    session.end_input()
    assert heard(session)[0] == 0


def test_a_session_ends_with_its_task(agent: Agent, run: RunRef) -> None:
    session = agent.cloud.exec(run, "worker", 0, ["bash", "-c", "echo up; sleep 1000"])
    until(session, b"up")
    agent.cloud.delete(run)
    assert heard(session)[0] in (143, 137)  # asked to end, or killed with its namespace


def test_a_log_is_followed(agent: Agent) -> None:
    run = agent.apply(role("for i in 1 2 3; do echo line $i; sleep 0.3; done; printf end"))
    agent.running(run)
    chunks = list(agent.cloud.follow(run, "worker", 0, attempt=0))
    assert b"".join(chunk.data for chunk in chunks) == b"line 1\nline 2\nline 3\nend"
    assert [chunk.complete for chunk in chunks].count(True) == 1
    assert chunks[-1].complete
    behind = list(agent.cloud.follow(run, "worker", 0, attempt=0, offset=14))
    assert b"".join(chunk.data for chunk in behind) == b"line 3\nend"


def test_a_portal_started_with_nohup_starts_tasks_that_a_lost_terminal_ends(make_agent: Agents) -> None:
    agent = make_agent(before="import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    ignored = int(agent.says("grep SigIgn /proc/self/status").split()[1], 16)
    # 32 and 33 are reserved by the C library.
    assert not any(ignored >> (number - 1) & 1 for number in signal.valid_signals())
