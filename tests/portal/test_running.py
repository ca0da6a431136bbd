"""Commands typed next to a running portal find its settings, or explain in one sentence why not."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portal.up.running import settings_beside
from portal.up.services import ServiceError
from tests.running import ROOT, environment

# Starts a program with the environment from each line of input. The programs end with it.
UP = """
import subprocess, sys
for line in sys.stdin:
    subprocess.Popen(["/bin/cat"], env=dict(word.split("=", 1) for word in line.split()), stdin=subprocess.PIPE)
    print(flush=True)
"""


@pytest.fixture
def up() -> Iterator[Any]:
    """A process in place of `manage.py up`. The pytest process itself already runs programs with settings of the tests."""
    with subprocess.Popen([sys.executable, "-c", UP], stdin=-1, stdout=-1, text=True) as process:
        yield process
        process.kill()


@pytest.fixture
def held(tmp_path: Path, up: Any) -> Iterator[Path]:
    """A data folder with the lock that `up` holds."""
    tmp_path.chmod(0o755)
    with (tmp_path / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"process {up.pid}, port 8000")
        lock.flush()
        yield tmp_path


@pytest.fixture
def program(up: Any) -> None:
    """Starts a program of the portal with its settings."""
    up.stdin.write("PORTAL_SECRET_KEY=made DATABASE_URL=postgresql:///there EMAIL_URL=given-to-up PATH=\n")
    up.stdin.flush()
    up.stdout.readline()


def test_what_is_not_set_comes_from_the_portal_that_runs(held: Path, program: None) -> None:
    given = {"PORTAL_DATA": str(held), "DATABASE_URL": "postgresql:///mine", "PATH": "/bin"}
    assert settings_beside(given) == {"PORTAL_SECRET_KEY": "made", "EMAIL_URL": "given-to-up"}


@pytest.mark.parametrize("name", ["PORTAL_SECRET_KEY", "PORTAL_SECRET_KEY_FILE"])
def test_settings_that_were_made_by_hand_are_alone(held: Path, program: None, name: str) -> None:
    assert settings_beside({"PORTAL_DATA": str(held), name: "mine"}) == {}


def test_a_portal_without_programs_is_starting_or_stopping(held: Path) -> None:
    with pytest.raises(ServiceError, match="starting or stopping; try again"):
        settings_beside({"PORTAL_DATA": str(held)})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a moment")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_users_settings_stay_theirs(held: Path, program: None, mode: int) -> None:
    (held / "up.lock").chmod(mode)
    os.seteuid(65534)
    try:
        with pytest.raises(ServiceError, match="is another user's; run this as that user, or as root"):
            settings_beside({"PORTAL_DATA": str(held)})
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("kept", [True, False])
def test_without_a_portal_it_is_one_sentence(tmp_path: Path, kept: bool) -> None:
    if kept:
        (tmp_path / "up.lock").write_text("process 1, port 8000")
    done: Any = subprocess.run(
        [sys.executable, "manage.py", "unknown_runs"],
        cwd=ROOT, env=environment(tmp_path, 8000), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"No portal runs with its data in {tmp_path}, and this command needs its settings. Start it"
    )
    assert done.stderr.count("\n") == 1
