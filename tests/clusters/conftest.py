"""The loop without its processes: tests call the reconcile step and feed the watch themselves, against the real node agent.

So a test decides where the controller or a worker "dies": it simply stops calling it there.
"""

from __future__ import annotations

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

# Django's models are imported inside: pytest reads this file before the servers' addresses are known.
# Only what is broken takes so long, on a machine that others keep busy, too.
PATIENCE = 90.0


@pytest.fixture
def answers():
    """answers(status, body) → the address of a server that always says that."""
    servers = []

    def start(status, body):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """Nobody reads it."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def catalogue(transactional_db):
    """Two flavors and an image whose environment is the one that runs these tests."""
    from django.core.cache import cache

    from clusters.models import Flavor, Image

    # Nobody hears the wake-ups of tests, and the sweep sends none for runs where many wait.
    cache.clear()
    Flavor.objects.create(name="small", title="Small", cpu_milli=100, memory_mb=128)
    Flavor.objects.create(name="one-gpu", title="Middle + 1 GPU", cpu_milli=100, memory_mb=128, gpus=1)
    Image.objects.create(name="python", title="Python", environment=sys.prefix, container="")
    Image.objects.create(name="container-only", title="Container only", container="example.com/x:1")


@pytest.fixture
def manifest():
    """manifest("demo", "echo hi", workers=2, flavor="one-gpu", retries=0, …) → ClusterManifest in ops-demo."""
    from clusters.manifest import ClusterManifest

    def make(name="demo", command="true", *, flavor="small", ps=0, workers=0, appcode="ops-demo", **spec):
        roles = {
            "master": {"flavor": flavor},
            "ps": {"flavor": "small", "count": ps},
            "worker": {"flavor": flavor, "count": workers},
        }
        body = {"image": "python", "command": command, "roles": roles, **spec}
        return ClusterManifest.model_validate(
            {"kind": "cluster", "metadata": {"name": name, "appcode": appcode}, "spec": body}
        )

    return make


class Loop:
    """Worker and controller, one step at a time, for what runs on one cloud."""

    def __init__(self, cloud="local"):
        self.name = cloud
        self.position = ""

    def work(self):
        from django.utils.timezone import now

        from clusters.models import Run
        from clusters.runs import quota, reconcile

        for appcode_id in list(Run.objects.filter(gone=False).values_list("cluster__appcode", flat=True).distinct()):
            quota.admit_waiting(appcode_id)
        for run_id in list(Run.objects.filter(reconcile.unsettled(now())).values_list("pk", flat=True)):
            reconcile.reconcile(run_id)

    def listen(self):
        """One batch of news."""
        from django.utils.timezone import now

        from clusters.clouds.registry import cloud
        from clusters.runs.observe import apply_batch, apply_listing

        if not self.position:
            asked_at = now()
            listing = cloud(self.name).list()
            apply_listing(self.name, listing, asked_at)
            self.position = listing.position
            return
        for batch in cloud(self.name).watch(self.position):
            apply_batch(self.name, batch)
            self.position = batch.position
            return

    def until(self, condition):
        """Works and listens until `condition()`; news end every wait, so nothing here sleeps."""
        from clusters.models import Run

        deadline = time.monotonic() + PATIENCE
        self.work()
        while not condition():
            assert time.monotonic() < deadline, (
                f"not within {PATIENCE} s: {list(Run.objects.values('pk', 'phase', 'reason', 'message'))}"
            )
            self.listen()
            self.work()

    def until_phase(self, cluster, *phases):
        from clusters.models import Run

        self.until(lambda: Run.objects.get(current_of=cluster).phase in phases)
        return Run.objects.get(current_of=cluster)

    def until_said(self, run, text, role="master", index=0, attempt=0):
        """Waits for `text` in a log (there is no news of a log's growth): a program that has just begun has done nothing yet."""
        from clusters.clouds.registry import cloud, run_ref

        deadline = time.monotonic() + PATIENCE
        while text.encode() not in cloud("local").log(run_ref(run), role, index, attempt=attempt).data:
            assert time.monotonic() < deadline, f"{role}-{index} did not say {text!r}"
            time.sleep(0.05)

    def touch(self, run, path, role="master", index=0):
        """Makes a file inside a task, for which its program waits."""
        from clusters.clouds.registry import cloud, run_ref

        session = cloud("local").exec(run_ref(run), role, index, ["touch", path])
        while session.exit_code is None:
            session.receive(PATIENCE)
        session.close()
        # A task that ends when the file is there takes `touch` with it, if that is still about to end.
        assert session.exit_code in (0, 137)


@pytest.fixture
def loop(catalogue, node_agent):
    from clusters.clouds.registry import cloud, run_ref
    from clusters.models import Run

    yield Loop()
    # The agent outlives the test, and what a failed one left would hold GPUs for which the next ones wait.
    for run in Run.objects.filter(gone=False, cloud="local").select_related("cluster__appcode"):
        cloud("local").delete(run_ref(run))
