"""The supervisor with small programs that misbehave."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from portal.up import services
from portal.up.services import Service, ServiceError
from portal.up.supervisor import Supervisor, rotate
from tests.running import eventually


def script(name: str, code: str, **more: object) -> Service:
    return Service(name, (sys.executable, "-S", "-c", code), **more)  # type: ignore[arg-type]


def supervised(logs: Path, during, *programs: Service) -> None:
    """Runs `during(supervisor)` while the programs are kept alive, then stops them."""

    async def run() -> None:
        supervisor = Supervisor(logs, os.environ)
        try:
            await supervisor.start(*programs)
            await during(supervisor)
        finally:
            await supervisor.stop()

    asyncio.run(run())


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def nothing(supervisor: Supervisor) -> None:
    pass


def test_a_program_that_cannot_start_is_named_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr("portal.up.supervisor.LEFTOVER_SECONDS", 0)
    broken = script("broken", "raise SystemExit('no such table')", ready=lambda: False)
    with pytest.raises(ServiceError, match="broken ended at once: no such table"):
        supervised(tmp_path, nothing, broken)


def test_a_program_that_keeps_ending_is_started_again_ever_more_slowly_and_people_are_told(tmp_path, capfd):
    starts = tmp_path / "starts"
    ending = script("ending", f"open({str(starts)!r}, 'a').write('x')")

    async def watch(supervisor: Supervisor) -> None:
        await until(lambda: starts.exists() and len(starts.read_text()) >= 4)

    began = time.monotonic()
    supervised(tmp_path, watch, ending)
    assert time.monotonic() - began > 0.5 + 1 + 2
    assert "ending ended (exit status 0) and is started again." in capfd.readouterr().err


def test_a_program_that_ignores_the_polite_signal_is_killed_in_time(tmp_path):
    ready = tmp_path / "ready"
    code = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w'); time.sleep(999)"
    began = time.monotonic()
    supervised(tmp_path, nothing, script("deaf", code, ready=ready.exists, stop_seconds=0.5))
    assert time.monotonic() - began < 90, "and not after its thousand seconds"


def test_what_faces_people_stops_before_what_it_needs(tmp_path):
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        f"signal.signal(15, lambda *_: (open({str(order)!r}, 'a').write(sys.argv[1]), sys.exit()))\n"
        "open(sys.argv[2], 'w')\ntime.sleep(99)"
    )
    programs = [
        Service(
            name,
            (sys.executable, "-c", code, name, str(tmp_path / name)),
            (tmp_path / name).exists,
            stop_order=number,
            stop_seconds=60,
        )
        for number, name in [(9, "c"), (0, "a"), (1, "b")]
    ]
    supervised(tmp_path, nothing, *programs)
    assert order.read_text() == "abc"


def test_what_a_killed_leader_leaves_in_its_group_goes_too(tmp_path):
    child = tmp_path / "child"
    code = f"import os, time\nif os.fork() == 0:\n    open({str(child)!r}, 'w').write(str(os.getpid()))\ntime.sleep(99)"

    async def watch(supervisor: Supervisor) -> None:
        await until(lambda: child.exists() and child.read_text())
        first = int(child.read_text())
        os.kill(os.getpgid(first), signal.SIGKILL)
        await until(lambda: child.read_text() not in ("", str(first)))
        await until(lambda: not alive(first))

    supervised(tmp_path, watch, script("leader", code, with_group=True))
    # The signal is sent, but the kernel may need a moment to end the process.
    assert eventually(lambda: not alive(int(child.read_text())))


STARTER = """
import os, sys
from portal.up.services import Service, spawn
os.environ["STARTER"] = str(os.getpid())
print(spawn(Service("program", ("sleep", "600")), None, os.environ).pid, flush=True)
sys.stdin.read()
"""
LATE = f"""#!/bin/sh
while grep -q "^PPid:.$STARTER$" /proc/$$/status; do sleep 0.01; done
exec {shutil.which("setpriv")} "$@"
"""


@pytest.mark.parametrize("early", [True, False])
def test_a_program_ends_with_who_started_it_however_soon_that_is(tmp_path, early):
    """`early`: the parent ends before the program can request the death signal; then the program must not start."""
    if early:
        (tmp_path / "setpriv").write_text(LATE)
        (tmp_path / "setpriv").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen([sys.executable, "-c", STARTER], env=env, stdin=-1, stdout=-1, text=True) as starter:
        assert starter.stdout
        program = int(starter.stdout.readline())
        starter.kill()
    assert eventually(lambda: not alive(program))


def alive(pid: int) -> bool:
    """Returns False for a zombie too; the first process of a container may be slow to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_is_slow_to_be_ready_is_asked_for_again_and_is_started_once(tmp_path, monkeypatch):
    monkeypatch.setattr(services, "READY_SECONDS", 0.2)
    started, ready, spawn = [], tmp_path / "ready", services.spawn
    monkeypatch.setattr(services, "spawn", lambda *args: started.append(args) or spawn(*args))
    slow = script("slow", "import time; time.sleep(99)", ready=ready.exists)

    async def said() -> bytes:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "ask")
        try:
            return await reader.read()
        finally:
            writer.close()

    async def ask(supervisor: Supervisor) -> None:
        await supervisor.start_when_asked(slow, tmp_path / "ask")
        assert not started
        assert b"slow was not ready" in await said()
        ready.touch()
        assert await said() == await said() == b"ready"

    supervised(tmp_path, ask)
    assert len(started) == 1


def test_a_log_that_grew_too_large_is_kept_once_and_emptied(tmp_path):
    log = tmp_path / "web.log"
    with log.open("ab", buffering=0) as file:
        file.write(b"x" * 100)
        rotate(tmp_path, limit=50)
        file.write(b"new")
    assert (tmp_path / "web.log.1").read_bytes() == b"x" * 100
    assert log.read_bytes() == b"new"
