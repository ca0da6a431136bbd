"""The portal's two loops as in production: workers in threads of this process, and the controller in a thread or a process
of its own.

Celery is missing: the worker looks for unsettled runs when there are wake-ups, and once a second (`Rounds`).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusters.clouds.drivers.kubernetes.render import names
from portal.up.services import dies_with_parent
from tests.kube.following import hand_over
from tests.kube.plane import Object, Plane
from tests.running import pause
from tests.terminal import database_environment

ROOT = Path(__file__).parents[2]
KINDS = {
    "/api/v1": ("pods", "configmaps", "secrets", "services", "persistentvolumeclaims"),
    "/apis/apps/v1": ("deployments", "statefulsets", "replicasets"),
    "/apis/batch/v1": ("jobs",),
    "/apis/networking.k8s.io/v1": ("ingresses", "networkpolicies"),
}
# Seconds within which everything must have converged after a fault ends.
CONVERGED = 90.0


class Rounds:
    """When a worker without Celery makes a pass over everything, which takes 50 ms of a core: when there are wake-ups, looked for
    five times a second, and once a second."""

    LOOK, ROUND = 0.2, 1.0

    def __init__(self, stopped: threading.Event) -> None:
        self._stopped, self._last = stopped, 0.0

    def __iter__(self) -> Iterator[None]:
        from django.core.cache import cache

        from portal import wakeups

        while not self._stopped.wait(self.LOOK):
            if wakeups.waiting() or time.monotonic() > self._last + self.ROUND:
                # Before the pass looks: the wake-ups, and the keys that stand for later ones.
                cache.clear()
                self._last = time.monotonic()
                yield


class Loops:
    """A portal on one Kubernetes cluster, which `config` connects to. Start it after creating the people."""

    def __init__(self, plane: Plane, portal: str, config: Mapping[str, Any]) -> None:
        self.plane = plane
        self.portal = portal
        self.config = config
        self._stopped = threading.Event()
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._controller: Any = None

    def catalogue(self) -> None:
        from clusters.catalog.models import Flavor, Image
        from clusters.clouds.models import Cloud

        Flavor.objects.create(name="small", title="Small", cpu_milli=100, memory_mb=128)
        Flavor.objects.create(name="one-gpu", title="Middle + 1 GPU", cpu_milli=100, memory_mb=128, gpus=1)
        Image.objects.create(
            name="tensorflow", title="TensorFlow", environment=sys.prefix, container="example/tensorflow:2.21"
        )
        hand_over(self.plane, self.portal)
        Cloud.objects.create(
            kind="kubernetes",
            name="kubernetes",
            title="Kubernetes",
            credentials=json.dumps(self.config),
            settings={"portal": self.portal},
            is_default=True,
        )

    # -- the loops -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.start_controller()
        self.start_workers()

    def start_workers(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        self._stopped.set()
        self.stop_controller()
        if self._worker.is_alive():
            self._worker.join()

    def start_controller(self) -> None:
        from clusters.runs.status.follower import Follower

        self._controller = Follower("kubernetes", 1)
        self._controller.start()

    def stop_controller(self) -> None:
        """Ends the controller at its next news; it loses all state in memory."""
        from clusters.clouds import registry

        if self._controller is not None:
            self._controller.stop()
            self._controller.join()
            self._controller = None
        registry._kept.clear()

    def _work(self) -> None:
        from django.db import connections
        from django.utils.timezone import now

        from clusters.runs import quota, reconcile
        from clusters.runs.models import Run
        from clusters.runs.placing import places

        # The thread's database connection ends with it.
        with ThreadPoolExecutor(4) as threads:
            for _ in Rounds(self._stopped):
                appcodes = Run.objects.filter(gone=False).values_list("cluster__appcode", flat=True)
                for appcode_id in list(appcodes.distinct()):
                    quota.admit_waiting(appcode_id)
                for cloud in list(Run.objects.filter(gone=False).values_list("cloud", flat=True).distinct()):
                    places.place(cloud)
                due = Run.objects.filter(reconcile.unsettled(now())).values_list("pk", flat=True)
                for done in [threads.submit(reconcile.reconcile, run_id) for run_id in list(due)]:
                    done.result()
        connections.close_all()

    # -- what people do and see --------------------------------------------------------------------------------------

    def create(self, people: Any, name: str = "mnist", **spec: Any) -> Any:
        from clusters.cluster.actions import create_cluster
        from clusters.manifest.cluster import ClusterManifest

        counts = {"master": 1, "ps": spec.pop("ps", 0), "worker": spec.pop("workers", 0)}
        flavor, appcode = spec.pop("flavor", "one-gpu"), spec.pop("appcode", "ops-demo")
        roles = {
            role: {"flavor": "small" if role == "ps" else flavor, "count": count} for role, count in counts.items()
        }
        body = {"image": "tensorflow", "command": "python train.py", "roles": roles, **spec}
        document = {"kind": "cluster", "metadata": {"name": name, "appcode": appcode}, "spec": body}
        who = people.bob if appcode == "ops-demo" else people.mallory
        return create_cluster(ClusterManifest.model_validate(document), acting_user=who)

    def disable(self, people: Any, cluster: Any) -> None:
        from clusters.cluster import actions

        who = people.bob if cluster.appcode.code == "ops-demo" else people.mallory
        actions.disable(cluster, acting_user=who)

    def run(self, cluster: Any) -> Any:
        from clusters.runs.models import Run

        return Run.objects.get(current_of=cluster)

    def until(self, happened: Callable[[], object], seconds: float = CONVERGED) -> float:
        """Waits until `happened()` is true. Returns how many seconds that took."""
        began = time.monotonic()
        while not happened():
            assert time.monotonic() < began + seconds, told()
            time.sleep(pause(time.monotonic() - began))
        return time.monotonic() - began

    def until_phase(self, cluster: Any, *phases: str, seconds: float = CONVERGED) -> Any:
        self.until(lambda: self.run(cluster).phase in phases, seconds)
        return self.run(cluster)

    def until_running(self, cluster: Any, *, attempts: int = 0, seconds: float = CONVERGED) -> Any:
        """Waits until every task of it runs exactly once, in the database and on Kubernetes."""

        def happened() -> bool:
            run = self.run(cluster)
            wanted = sum(facts["count"] for facts in run.roles.values())
            alive = [pod for pod in self.pods(run) if pod["status"]["phase"] == "Running"]
            tasks = run.tasks.filter(phase="Running")
            return (
                run.phase == "Running"
                and not run.reason
                and {pod["metadata"]["uid"] for pod in alive} == set(tasks.values_list("uid", flat=True))
                and len(alive) == wanted
                and not any("deletionTimestamp" in pod["metadata"] for pod in alive)
            )

        self.until(happened, seconds)
        return self.run(cluster)

    def later(self, run: Any) -> None:
        """Makes the run due for repair at once, as if it had been unchanged for a while."""
        from clusters.runs.models import Run

        self.until(lambda: Run.objects.get(pk=run.pk).applied_at)
        Run.objects.filter(pk=run.pk).update(not_before=None)

    def end(self, run: Any, role: str, code: int) -> None:
        self.plane.end_pods(run.namespace, self.label(run, role=role), code)

    # -- what is there -----------------------------------------------------------------------------------------------

    def label(self, run: Any, **more: Any) -> str:
        return names.selector(portal=self.portal, run_id=run.pk, **more)

    def pods(self, run: Any) -> list[Object]:
        return self.objects("Pod", run)

    def path(self, kind: str, run: Any, name: str = "") -> str:
        from clusters.clouds.drivers.kubernetes.api.client import path_of

        return path_of(kind, run.namespace, name)

    def objects(self, kind: str, run: Any) -> list[Object]:
        found: list[Object] = self.plane.request("GET", self.path(kind, run), labelSelector=self.label(run))["items"]
        return found

    def left_of(self, run: Any) -> list[str]:
        label = self.label(run)
        found = [
            f"{kind}/{item['metadata']['name']}"
            for api, kinds in KINDS.items()
            for kind in kinds
            for item in self.plane.request("GET", f"{api}/namespaces/{run.namespace}/{kind}", labelSelector=label)[
                "items"
            ]
        ]
        volumes = self.plane.request("GET", "/api/v1/persistentvolumes", labelSelector=label)["items"]
        return found + [f"persistentvolumes/{item['metadata']['name']}" for item in volumes]

    def until_nothing_is_left(self, run: Any, seconds: float = CONVERGED) -> None:
        with suppress(AssertionError):
            self.until(lambda: not self.left_of(run), seconds)
        assert self.left_of(run) == []

    def check_usage(self, run: Any) -> None:
        """Asserts that every pod is metered once, from its start to its end in Kubernetes but not before the run was whole, and
        nothing else is. Pods that it had before it lost its places have ended."""
        from billing.models import UsageSegment

        run.refresh_from_db()
        segments = list(UsageSegment.objects.filter(consumer=f"run {run.pk}"))
        if run.times_given_back:
            uids = set(run.tasks.values_list("uid", flat=True))
            assert all(each.ended for each in segments if each.uid not in uids)
            segments = [each for each in segments if each.uid in uids]
        whole = run.whole_at
        tasks = {
            task.uid: (max(task.began_at, whole) if whole else task.began_at, task.finished_at)
            for task in run.tasks.exclude(began_at=None)
        }
        assert {each.uid: (each.started, each.ended) for each in segments} == tasks


def told() -> list[Any]:
    """Returns the state of all runs, for the message of a timeout."""
    from clusters.clouds.models import CloudState
    from clusters.runs.models import Run, Task

    return [
        *Run.objects.values("pk", "cloud", "phase", "reason", "message", "gone", "applied_at"),
        *Task.objects.values("role", "index", "attempt", "phase", "reason", "message"),
        *CloudState.objects.values("name", "position", "heard_at", "trouble"),
    ]


class Controller:
    """`manage.py controller` of the source tree `tree` as a process of its own on the test database."""

    def __init__(self, number: int, folder: Path, tree: Path = ROOT) -> None:
        self.name = f"controller-{number}"
        environment = database_environment() | {"PGAPPNAME": self.name, "LOCAL_CLOUD_SOCKET": ""}
        self.log = folder / f"{self.name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                dies_with_parent([sys.executable, str(tree / "manage.py"), "controller"]),
                cwd=tree,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
