"""A task that takes all it can get of the machine must not disturb other runs, PostgreSQL or the portal."""

from __future__ import annotations

import psutil
import pytest

from clusters.clouds.drivers.local.task.rlimits import own_pid_max
from tests.running import Client, Portal, eventually

pytestmark = pytest.mark.e2e

# Every attack has its own bound, so that a missing limit costs this machine only some memory.
HARM = """
import os, resource, signal

for depth in range(1500):
    os.mkdir("d"); os.chdir("d")
print("a deep tree", flush=True)
os.chdir("/")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with open("/tmp/large", "wb") as file:
        os.ftruncate(file.fileno(), 1 << 50)
    print("a file without end", flush=True)
except OSError as error:
    print("file:", error.strerror, flush=True)
made = 0
try:
    while made < 6000:
        if os.fork() == 0:
            signal.pause()
        made += 1
    print("processes without end", flush=True)
except OSError as error:
    print("processes:", error.strerror, flush=True)
signal.pause()
"""
FILL = """
with open("/dev/shm/filler", "wb", buffering=0) as file:
    for _ in range(2048):
        file.write(bytes(1 << 20))
print("memory without end")
"""
PULSE = "while true; do date +%s.%N; sleep 0.2; done"


def log_of(portal: Portal, word: str) -> str:
    """Returns the log of the task that printed `word`."""
    for path in (portal.data / "cloud" / "runs").glob("*/tasks/*/log"):
        text = path.read_text()
        if word in text:
            return text
    return ""


def test_a_task_that_takes_all_it_can_harms_nobody_else(portal_up: Portal) -> None:
    bob, mallory = Client(portal_up, "bob"), Client(portal_up, "mallory")
    common = {"image": "tensorflow-2-21", "roles": {"master": {"flavor": "small"}}}
    quiet = bob.create("ops-demo", "quiet", command=f"echo a pulse; {PULSE}", **common)
    assert eventually(lambda: log_of(portal_up, "a pulse"), 120), bob.call("GET", quiet)
    # The portal's processes, compared by pid and start time: none may die and be restarted.
    programs = {psutil.Process(pid) for pid in portal_up.programs()}

    # /dev/shm counts as the task's own memory, and the kernel kills nothing else for it.
    full = mallory.create("flight-demo", "full", command=f"python -c '{FILL}'", retries=0, **common)
    assert eventually(lambda: mallory.call("GET", full)["status"]["phase"] == "Failed", 120), mallory.call("GET", full)
    assert "used more than its memory" in mallory.call("GET", full)["status"]["message"]
    # Thousands of processes need memory too, so use a large flavor: the limit on their number must end them.
    large = common | {"roles": {"master": {"flavor": "large"}}}
    harm = mallory.create("flight-demo", "harm", command=f"cd /elearn/output; python -c '{HARM}'", **large)
    assert eventually(lambda: "processes" in log_of(portal_up, "a deep tree"), 240), log_of(portal_up, "a deep tree")
    # Before Linux 6.14, only a limit of half the machine's maximum applies.
    processes = "processes: Resource temporarily unavailable" if own_pid_max() else "processes without end"
    assert log_of(portal_up, "a deep tree").splitlines()[-3:] == [
        "a deep tree",
        "file: File too large",
        processes,
    ]

    beats = log_of(portal_up, "a pulse").count("\n")
    assert eventually(lambda: log_of(portal_up, "a pulse").count("\n") > beats + 5, 60)
    other = bob.create("ops-demo", "other", command="true", **common)
    assert eventually(lambda: bob.call("GET", other)["status"]["phase"] == "Succeeded", 120), bob.call("GET", other)
    assert portal_up.get("/readyz") == 200
    assert {psutil.Process(pid) for pid in portal_up.programs()} == programs

    mallory.call("POST", f"{harm}/disable")
    assert eventually(lambda: mallory.call("GET", harm)["status"]["phase"] == "Stopped", 120)
    bob.call("POST", f"{quiet}/disable")
    assert eventually(lambda: not any((portal_up.data / "cloud" / "trash").iterdir()), 120), "what it left is removed"
