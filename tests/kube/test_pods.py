"""How a program ends in its container: a pod's exact command as process 1 of a PID namespace, like in a container."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from clusters.clouds.drivers.kubernetes.render import pods
from clusters.clouds.drivers.kubernetes.settings import Settings
from tests.kube.plans import plan, role
from tests.running import eventually

# Seconds; much longer than a program needs to end at once, even on a busy machine.
GRACE = 5


class Container:
    def __init__(self, program: str) -> None:
        whole = plan(role("master", argv=("bash", "-c", program)), grace_seconds=GRACE)
        template = pods.template(whole, whole.roles[0], Settings(), index="")
        # The kubelet expands $(NAME) and turns $$ into $.
        command = [word.replace("$$", "$") for word in template["spec"]["containers"][0]["command"]]
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        self.outside = subprocess.Popen(
            ["unshare", *user, "--fork", "--pid", "--mount-proc", "--kill-child", *command],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.outside.stdout
        assert self.outside.stdout.readline() == "ready\n"

    def stop(self) -> tuple[int, float]:
        """Stops it as the container runtime does. Returns the exit code and the seconds it took."""
        begun = time.monotonic()
        children = Path(f"/proc/{self.outside.pid}/task/{self.outside.pid}/children").read_text().split()
        first = psutil.Process(int(children[0]))
        # Until it waits for its program, `timeout` may not know yet that it has one, and would end at the signal.
        assert eventually(lambda: first.status() == psutil.STATUS_SLEEPING)
        first.send_signal(signal.SIGTERM)
        return self.outside.wait(30), time.monotonic() - begun


@pytest.mark.parametrize("program", ["echo ready; sleep 60", "cd /; echo ready; sleep 60; true"])
def test_a_program_that_knows_nothing_of_signals_ends_at_once(program: str) -> None:
    code, seconds = Container(program).stop()
    assert (code, seconds < GRACE) == (128 + signal.SIGTERM, True)


def test_one_that_has_something_to_save_has_the_time_for_it(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint"
    program = f"trap 'sleep 0.5; echo 7 > {saved}; exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    code, seconds = Container(program).stop()
    assert (code, saved.read_text()) == (3, "7\n")
    assert seconds < GRACE


def test_one_that_does_not_want_to_end_takes_no_more_than_its_own_time() -> None:
    code, seconds = Container("trap '' TERM; echo ready; while :; do sleep 0.1; done").stop()
    assert code == 128 + signal.SIGKILL
    assert GRACE <= seconds < 4 * GRACE


def test_its_exit_code_is_its_own() -> None:
    container = Container("echo ready; exit 7")
    assert container.outside.wait(30) == 7
