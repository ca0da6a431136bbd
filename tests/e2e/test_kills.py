"""kill -9 of every process of the portal during a run: nothing is lost, started twice or counted twice."""

from __future__ import annotations

import os
import signal
from contextlib import closing, suppress
from http.client import HTTPException

import psycopg2
import pytest

from tests.running import Client, eventually

pytestmark = pytest.mark.e2e

# Runs long enough for every program to be killed and restarted meanwhile, and reports if it was interrupted.
COMMAND = """
set -e
if [ "$PORTAL_ROLE" = ps ]; then exec sleep 3600; fi
echo started >> "/elearn/output/$PORTAL_ROLE-$TASK_INDEX"
while [ ! -e /elearn/output/stop ] && [ $SECONDS -lt 1200 ]; do sleep 0.5; done
echo done >> "/elearn/output/$PORTAL_ROLE-$TASK_INDEX"
if [ "$PORTAL_ROLE" = master ]; then while [ "$(cat /elearn/output/worker-*| grep -c done)" -lt 2 ]; do sleep 0.2; done; fi
"""


def test_a_run_survives_the_death_of_everything_around_it(portal_up):
    bob = Client(portal_up, "bob")
    gpu, cpu = "middle-1-gpu", "small"
    bob.call(
        "POST",
        "/appcodes/ops-demo/clusters",
        {
            "kind": "cluster",
            "metadata": {"name": "survivor", "appcode": "ops-demo"},
            "spec": {
                "image": "tensorflow-2-21",
                "command": COMMAND,
                "output": "demo-output",
                "roles": {
                    "master": {"flavor": gpu},
                    "ps": {"flavor": cpu, "count": 1},
                    "worker": {"flavor": gpu, "count": 2},
                },
            },
        },
    )
    path = "/appcodes/ops-demo/clusters/survivor"

    def phase():
        try:
            return bob.call("GET", path)["status"]["phase"]
        except (OSError, HTTPException):  # the web server is one of the killed
            return ""

    assert eventually(lambda: phase() == "Running", 120), bob.call("GET", path)

    def pids(line):
        # Valkey overwrites its command line with its address: compare up to the first colon.
        return [pid for pid, other in portal_up.programs().items() if other.split(":")[0] == line.split(":")[0]]

    for line in portal_up.programs().values():
        killed = set()

        def kill(line=line, killed=killed):
            # A program whose server was killed a moment ago may have ended by itself and be restarting.
            for pid in pids(line):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            return bool(killed)

        assert eventually(kill), f"not running: {line}"
        assert eventually(lambda killed=killed: not killed & portal_up.programs().keys()), line
        assert eventually(lambda: phase() == "Running", 120), f"not running after the death of: {line}"

    run = next((portal_up.data / "cloud" / "runs").glob("*/room/mounts/*/master-0")).parent
    (run / "stop").touch()
    assert eventually(lambda: phase() in ("Succeeded", "Failed"), 180), bob.call("GET", path)
    manifest = bob.call("GET", path)
    assert manifest["status"]["phase"] == "Succeeded", manifest["status"]

    tasks = bob.call("GET", f"{path}/runs/1/tasks")["items"]
    assert sorted((task["role"], task["index"], task["restarts"]) for task in tasks) == [
        ("master", 0, 0),
        ("ps", 0, 0),
        ("worker", 0, 0),
        ("worker", 1, 0),
    ]
    connection = psycopg2.connect(f"postgresql://portal@/portal?host={portal_up.data / 'run'}")
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), count(ended), sum(gpus * extract(epoch FROM ended - started))"
            " FROM billing_usagesegment WHERE labels->>'cluster' = 'survivor'"
        )
        segments, ended, gpu_seconds = cursor.fetchone()
        cursor.execute(
            "SELECT sum(extract(epoch FROM date_trunc('second', t.finished_at) - date_trunc('second', t.scheduled_at)))"
            " FROM clusters_task t JOIN clusters_run r ON r.id = t.run_id JOIN clusters_cluster c ON c.id = r.cluster_id"
            " WHERE c.name = 'survivor' AND t.role IN ('master', 'worker')"
        )
        (seen,) = cursor.fetchone()
    assert (segments, ended) == (4, 4)
    assert gpu_seconds == seen == manifest["status"]["gpuSeconds"]
