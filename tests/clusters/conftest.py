"""The loop without its processes: tests call the reconcile step and feed the watch themselves, against the real node agent.

So a test decides where the controller or a worker "dies": it stops calling it there.
"""

from __future__ import annotations

import datetime as dt
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

# Fixtures import Django's models inside: pytest reads this file before the servers' addresses are known.
# Seconds. Even on a busy machine, only a bug takes this long.
PATIENCE = 90.0


@pytest.fixture
def answers():
    """answers(status, body) → the address of a server that always sends this answer."""
    servers = []

    def start(status, body):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                """No log."""

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
    """Two flavors and an image whose environment is the Python that runs these tests."""
    from django.core.cache import cache

    from clusters.catalog.models import Flavor, Image

    # Empties the queue, too: tests have no worker for it, and when it is long the sweep sends no wake-ups for runs.
    cache.clear()
    Flavor.objects.create(name="small", title="Small", cpu_milli=100, memory_mb=128)
    Flavor.objects.create(name="one-gpu", title="Middle + 1 GPU", cpu_milli=100, memory_mb=128, gpus=1)
    Image.objects.create(name="python", title="Python", environment=sys.prefix, container="")
    Image.objects.create(name="container-only", title="Container only", container="example.com/x:1")


@pytest.fixture
def manifest():
    """manifest("demo", "echo hi", workers=2, flavor="one-gpu", retries=0, …) → ClusterManifest in ops-demo."""
    from clusters.manifest.cluster import ClusterManifest

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
    """Worker and controller, one step at a time, for the runs on one cloud."""

    def __init__(self, cloud="local"):
        self.name = cloud
        self.position = ""

    def work(self):
        from django.utils.timezone import now

        from clusters.runs import quota, reconcile
        from clusters.runs.models import Run
        from clusters.runs.placing import places

        for appcode_id in list(Run.objects.filter(gone=False).values_list("cluster__appcode", flat=True).distinct()):
            quota.admit_waiting(appcode_id)
        for gives_places in (True, False):
            for run_id in list(Run.objects.filter(reconcile.unsettled(now())).values_list("pk", flat=True)):
                reconcile.reconcile(run_id)
            if gives_places:
                places.place(self.name)

    def listen(self):
        """Applies the listing at first, then one batch of the watch per call, and what is free then."""
        self._hear()
        self.look()

    def look(self):
        from clusters.clouds.registry import cloud
        from clusters.runs.status.observe import save_capacity

        save_capacity(self.name, cloud(self.name).capacity())

    def _hear(self):
        from django.utils.timezone import now

        from clusters.clouds.registry import cloud
        from clusters.runs.status.observe import apply_batch, apply_listing

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
        """Works and listens until `condition()`. Never sleeps: the watch ends each wait."""
        from clusters.runs.models import Run

        deadline = time.monotonic() + PATIENCE
        self.work()
        while not condition():
            assert time.monotonic() < deadline, (
                f"not within {PATIENCE} s: {list(Run.objects.values('pk', 'phase', 'reason', 'message'))}"
            )
            self.listen()
            self.work()

    def until_phase(self, cluster, *phases):
        from clusters.runs.models import Run

        self.until(lambda: Run.objects.get(current_of=cluster).phase in phases)
        return Run.objects.get(current_of=cluster)

    def until_said(self, run, text, role="master", index=0, attempt=0):
        """Waits for `text` in a log by polling, as the watch does not report output. Programs print it when they are ready."""
        from clusters.clouds.registry import cloud, run_ref

        deadline = time.monotonic() + PATIENCE
        while text.encode() not in cloud("local").log(run_ref(run), role, index, attempt=attempt).data:
            assert time.monotonic() < deadline, f"{role}-{index} did not say {text!r}"
            time.sleep(0.05)

    def touch(self, run, path, role="master", index=0):
        """Creates a file inside a task whose program waits for it."""
        from clusters.clouds.registry import cloud, run_ref

        session = cloud("local").exec(run_ref(run), role, index, ["touch", path])
        while session.exit_code is None:
            session.receive(PATIENCE)
        session.close()
        # A task that ends as soon as the file exists may kill `touch` before it exits.
        assert session.exit_code in (0, 137)


@pytest.fixture
def loop(catalogue, node_agent):
    from clusters.clouds.registry import cloud, run_ref
    from clusters.runs.models import Run

    made = Loop()
    made.look()
    yield made
    # The agent outlives the test; leftovers of a failed test would hold GPUs that later tests wait for.
    for run in Run.objects.filter(gone=False, cloud="local").select_related("cluster__appcode"):
        cloud("local").delete(run_ref(run))


@pytest.fixture
def page_catalogue(db: None) -> None:
    """Objects that pages offer: two flavors, two images, and a cloud with eight simulated GPUs."""
    from django.core.cache import cache

    from clusters.catalog.models import Flavor, Image
    from clusters.clouds.drivers.base import Capacity, Node
    from clusters.runs.status.observe import save_capacity

    cache.clear()
    Flavor.objects.create(name="small", title="Small", cpu_milli=500, memory_mb=512)
    Flavor.objects.create(name="middle-1-gpu", title="Middle + 1 GPU", cpu_milli=1000, memory_mb=2048, gpus=1)
    Image.objects.create(name="tensorflow", title="TensorFlow", environment="/usr")
    Image.objects.create(name="container-only", title="Container only", container="example.com/x:1")
    node = {
        "name": "here", "gpu_model": "simulated", "gpus": 8, "gpus_free": 8, "cpu_milli": 8000, "memory_mb": 16384,
        "simulated": True, "note": "Memory limits are not enforced here.",
    }  # fmt: skip
    save_capacity("local", Capacity((Node(**node),)))


@pytest.fixture
def training(page_catalogue: None, people: Any) -> Any:
    """A Kubernetes cloud of 15 nodes with 8 GPUs for everybody, on which the portal places runs, and a quota that does not
    matter."""
    from clusters.clouds.drivers.base import Capacity
    from clusters.clouds.models import Cloud, CloudState
    from clusters.runs.status.observe import save_capacity
    from portal.models import Appcode
    from tests.clusters.gangs import nodes

    Cloud.objects.create(name="training", kind="kubernetes", title="Training", is_default=True)
    save_capacity("training", Capacity(nodes(15)))
    CloudState.objects.filter(name="training").update(heard_at=dt.datetime.now(dt.UTC))
    Appcode.objects.update(gpu_quota=1000)
    return Cloud


@pytest.fixture
def stores(people: Any) -> None:
    from datastores.models import Datastore

    for appcode in (people.ops, people.flight):
        for name in ("data", "results"):
            Datastore.objects.create(
                appcode=appcode, name=name, kind="nfs", spec={"server": "nfs.example.com", "path": "/x"}
            )


@pytest.fixture
def document() -> Any:
    """document("demo", workers=2, command="…") → a manifest's dictionary in ops-demo."""

    def make(
        name: str = "demo", appcode: str = "ops-demo", *, ps: int = 0, workers: int = 0, **spec: Any
    ) -> dict[str, Any]:
        roles = {"master": {"flavor": "middle-1-gpu"}}
        if ps:
            roles["ps"] = {"flavor": "small", "count": ps}
        if workers:
            # The tests' appcodes have a quota of 8 GPUs.
            roles["worker"] = {"flavor": "middle-1-gpu" if workers < 8 else "small", "count": workers}
        spec = {"image": "tensorflow", "command": "true", "roles": roles, **spec}
        return {"kind": "cluster", "metadata": {"name": name, "appcode": appcode}, "spec": spec}

    return make


@pytest.fixture
def make_cluster(page_catalogue: None, people: Any, document: Any) -> Any:
    """make_cluster("demo", phase="Running", workers=2, by=bob) → Cluster whose first run is in that phase."""
    from clusters.cluster.actions import create_cluster
    from clusters.manifest.cluster import ClusterManifest
    from clusters.runs.models import Run

    def make(
        name: str = "demo", *, phase: str = "Queued", by: Any = None, run: dict[str, Any] | None = None, **spec: Any
    ) -> Any:
        manifest = ClusterManifest.model_validate(document(name, **spec))
        cluster = create_cluster(manifest, acting_user=by or people.alice)
        now = dt.datetime.now(dt.UTC)
        facts: dict[str, Any] = {"phase": phase}
        if phase != "Queued":
            facts |= {"started_at": now - dt.timedelta(minutes=5)}
        if phase == "Running":
            facts["roles"] = {
                role: {"ready": each["count"], "count": each["count"]}
                for role, each in cluster.current_run.roles.items()
            }
        if phase in ("Succeeded", "Failed", "Stopped"):
            facts |= {"finished_at": now, "verdict": phase, "gone": True}
        Run.objects.filter(pk=cluster.current_run_id).update(**facts, **(run or {}))
        cluster.refresh_from_db()
        return cluster

    return make


@pytest.fixture
def as_person(client: Any) -> Any:
    """as_person(alice) → a client signed in as her."""

    def sign_in(user: Any) -> Any:
        client.force_login(user)
        return client

    return sign_in
