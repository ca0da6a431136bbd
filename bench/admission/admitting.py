"""Places for runs: how long one pass over many waiting runs takes, how many get their places in a second, and what a preview
costs beside them; on its own durable PostgreSQL, without a cloud.

The floors read the same rows by COPY in one statement each, and write the same columns in one. They decide nothing.
"""

from __future__ import annotations

import datetime as dt
import importlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bench import alone
from bench.results import Result, quantile
from bench.sizes import is_smallest, size

if TYPE_CHECKING:
    from portal.models import Appcode, User

CLOUD = "bench"
WAITING, APPCODES, NODES, GPUS = size(10_000, 40), size(500, 4), size(1213, 24), 8
# Nodes of which a half is free. As many as the first three runs that wait need, and keep.
HALF = size(48, 6)
SMALL = size(1000, 8)
PREVIEWS, PASSES = size(50, 2), size(5, 1)
# A role has at most this many tasks; of the first three that wait, each has so many of a whole node.
TASKS = size(16, 2)


def admitting(folder: Path) -> list[Result]:
    """places for 10,000 waiting runs on 1,213 nodes"""
    return alone.measured("bench.admission.admitting", folder / "admitting")


PARTS = (admitting,)


@dataclass(frozen=True)
class Took:
    seconds: float
    processor: float
    statements: int


def main(folder: Path) -> None:
    with alone.database(folder):
        importlib.import_module("portal.wsgi")  # So that all is loaded, as in the web server.
        world = _World()
        found = [*_nothing_fits(world), *_preview(world), *_many_fit(world), *_until_empty(world)]
    alone.tell(found)


class _World:
    """The rows of one cloud: nodes, runs that hold them, runs that wait."""

    def __init__(self) -> None:
        from django.db import transaction

        from clusters.catalog.models import Flavor, Image
        from clusters.clouds.drivers.base import Capacity, Node
        from clusters.clouds.models import Cloud, CloudState
        from clusters.runs.placing.known import capacity_json
        from portal.models import Appcode, Membership, OrgNode, User

        with transaction.atomic():
            self.owner: User = User.objects.create_user("bench", "bench@example.com")
            line = OrgNode.objects.create(path="bench.line", title="Line", namespace="line")
            self.codes: list[Appcode] = Appcode.objects.bulk_create(
                Appcode(code=f"bench-{n:03}", name="-", org_node=line, emails=["b@example.com"], state="active")
                for n in range(APPCODES)
            )
            # One whose quota has room, for previews.
            free = Appcode.objects.create(
                code="bench-free", name="-", org_node=line, emails=["b@example.com"], state="active", gpu_quota=1000
            )
            members = [*self.codes, free]
            Membership.objects.bulk_create(Membership(user=self.owner, appcode=c, role="owner") for c in members)
        Image.objects.create(name="bench", title="Bench", container="example.com/bench:1")
        for gpus in (1, 2, 4, GPUS):
            sizes = {"cpu_milli": 2000 * gpus, "memory_mb": 16_384 * gpus, "gpus": gpus}
            Flavor.objects.create(name=f"gpu-{gpus}", title=f"{gpus} GPUs", **sizes)
        Cloud.objects.create(name=CLOUD, kind="kubernetes", title="Bench", is_default=True)
        seen = tuple(Node(f"node-{n:04}", "H200", GPUS, GPUS, 192_000, 2_000_000) for n in range(NODES))
        CloudState.objects.create(name=CLOUD, capacity=capacity_json(Capacity(seen)))
        self.nodes = [each.name for each in seen]

    def hold(self) -> None:
        """Fills the nodes, HALF of them to a half, by runs that take whole nodes, a half or a quarter of one."""
        from clusters.runs.models import Run, Task

        sizes = [(GPUS >> (n % 3), 1 << (n % 3)) for n in range(NODES - HALF)] + [(GPUS // 2, 1)] * HALF
        runs = self._runs("held", [(count, gpus) for gpus, count in sizes], placed=True)
        tasks = []
        for node, run in zip(self.nodes, runs, strict=True):
            run.layout = {role: {node: facts["count"]} for role, facts in run.roles.items()}
            tasks += [
                Task(run=run, role=role, index=n, uid=f"{run.pk}-{role}-{n}", phase="Running", node=node, gpus=[])
                for role, facts in run.roles.items() for n in range(facts["count"])
            ]  # fmt: skip
        Run.objects.bulk_update(runs, ["layout"], batch_size=500)
        Task.objects.bulk_create(tasks, batch_size=5000)

    def wait(self) -> None:
        """Runs of 1 to 16 tasks that need whole nodes, of which none is free."""
        self._runs("wait", [(min(1 + n % 16, TASKS), GPUS) for n in range(WAITING)])

    def wait_small(self) -> None:
        """As `wait`, behind SMALL runs of a task each."""
        self._runs("small", [(1, 1 << (n % 4)) for n in range(SMALL)])
        self._runs("wait", [(min(1 + n % 16, TASKS), 1 << (n % 4)) for n in range(WAITING - SMALL)])

    def _runs(self, name: str, shapes: list[tuple[int, int]], *, placed: bool = False) -> list[Any]:
        """Runs of one master and workers, which ask for the same."""
        from django.utils import timezone

        from clusters.manifest.cluster import ClusterSpec
        from clusters.runs.models import Cluster, Run
        from clusters.runs.placing import places

        clusters, runs, now = [], [], timezone.now()
        specs: dict[tuple[int, int], Any] = {}
        for count, gpus in set(shapes):
            counts = {"master": 1, **({"worker": count - 1} if count > 1 else {})}
            asked = {
                "framework": "tensorflow", "image": "bench", "command": "python train.py --epochs 20",
                "env": {"DATA_DIR": "/elearn/input"},
                "roles": {role: {"flavor": f"gpu-{gpus}", "count": each} for role, each in counts.items()},
            }  # fmt: skip
            held = {
                "gpus": gpus, "gpu_model": "", "cpu_milli": 2000 * gpus, "memory_mb": 16_384 * gpus, "beside_cpu_milli": 0,
                "beside_memory_mb": 0,
            }  # fmt: skip
            spec = ClusterSpec.model_validate(asked).model_dump(mode="json", by_alias=True)
            roles = {role: {"ready": count if placed else 0, "count": count} for role, count in counts.items()}
            specs[count, gpus] = spec, dict.fromkeys(counts, held), roles
        for n, shape in enumerate(shapes):
            spec, resources, roles = specs[shape]
            cluster = Cluster(appcode=self.codes[n % APPCODES], name=f"{name}-{n:05}", spec=spec, run_count=1)
            cluster.created_by = self.owner
            clusters.append(cluster)
            state = (
                {
                    "phase": "Running",
                    "placed_at": now,
                    "whole_at": now,
                    "applied_at": now,
                    "started_at": now,
                    "usage_as_of": now,
                }
                if placed
                else {"wait_reason": places.FOR_GPUS, "wait_message": places.TURN}
            )
            runs.append(
                Run(
                    cluster=cluster, number=1, cloud=CLOUD, spec=spec, resources=resources, gpus=shape[0] * shape[1],
                    created_by=self.owner, admitted_at=now, roles=roles, **state,
                )
            )  # fmt: skip
        Cluster.objects.bulk_create(clusters, batch_size=2000)
        return Run.objects.bulk_create(runs, batch_size=2000)

    def empty(self) -> None:
        """Deletes all runs."""
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE clusters_cluster CASCADE")

    def settle(self) -> None:
        """What autovacuum would do within minutes."""
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")

    def end(self) -> None:
        """Ends all runs with places, as if they had run."""
        from clusters.runs.models import Run

        Run.objects.filter(placed_at__isnull=False, gone=False).update(
            desired="ended", phase="Succeeded", verdict="Succeeded", gone=True
        )

    def placed(self) -> int:
        from clusters.runs.models import Run

        return Run.objects.filter(placed_at__isnull=False, gone=False).count()


def _nothing_fits(world: _World) -> list[Result]:
    """A pass that tells every run why it waits, and one in which nothing is new, with and without the bound."""
    world.hold()
    world.wait()
    world.settle()
    held, found = world.placed(), []
    first = _pass()
    again = [_pass() for _ in range(PASSES)]
    with _unbounded():
        every = [_pass() for _ in range(PASSES)]
    if world.placed() != held:
        raise RuntimeError("a run found a place where there is none")
    floor = _timed(_read_all)
    found.append(Result(f"A pass that tells {WAITING:,} runs why they wait", first.seconds, "s"))
    found += _described(f"A pass over {WAITING:,} in which nothing fits", _median(again), 1, floor)
    found += _described(f"The same, all {WAITING:,} looked at", _median(every), None, floor)
    return found


def _preview(world: _World) -> list[Result]:
    """What a preview asks of `room`, beside the waiting runs of the previous part, all of which it has told why they wait."""
    world.settle()

    def judge() -> None:
        _judge(world.codes[0])

    found = []
    floor = quantile([_timed(_read_waiting).seconds for _ in range(PREVIEWS)], 0.5)
    took = [_timed(judge) for _ in range(PREVIEWS)]
    seconds = [each.seconds for each in took]
    name = f"A preview among {WAITING:,} waiting runs, its part about room"
    found += [
        Result(f"{name}: p99", quantile(seconds, 0.99) * 1000, "ms", 100, floor * 1000),
        Result(f"{name}: median", quantile(seconds, 0.5) * 1000, "ms", 60, floor * 1000),
        Result(f"{name}: processor time of this process", _median(took).processor * 1000, "ms"),
        Result(f"{name}: statements", _counted(judge).statements, "", 9),
        *_with_offers(floor),
    ]
    with _unbounded():
        seconds = [_timed(judge).seconds for _ in range(PREVIEWS)]
    name = f"The same, all {WAITING:,} looked at"
    found.append(Result(f"{name}: p99", quantile(seconds, 0.99) * 1000, "ms", None, floor * 1000))
    world.empty()
    return found


def _with_offers(floor: float) -> list[Result]:
    """A whole preview, with what would start sooner."""
    from django.utils import timezone

    from clusters.clouds.models import CloudState

    CloudState.objects.update(heard_at=timezone.now() + dt.timedelta(hours=1))
    took = [_timed(_offer) for _ in range(PREVIEWS)]
    seconds, name = [each.seconds for each in took], f"A whole preview with offers among {WAITING:,} waiting runs"
    return [
        Result(f"{name}: p99", quantile(seconds, 0.99) * 1000, "ms", 250, floor * 1000),
        Result(f"{name}: median", quantile(seconds, 0.5) * 1000, "ms", None, floor * 1000),
        Result(f"{name}: processor time of this process", _median(took).processor * 1000, "ms"),
        Result(f"{name}: statements", _counted(_offer).statements, ""),
    ]


def _offer() -> None:
    from clusters.manifest.cluster import ClusterManifest
    from clusters.runs.queries.preview import preview
    from portal.models import User

    roles = {"master": {"flavor": f"gpu-{GPUS}"}, "worker": {"flavor": f"gpu-{GPUS}", "count": 3}}
    manifest = {
        "kind": "cluster", "metadata": {"name": "new", "appcode": "bench-free"},
        "spec": {"image": "bench", "command": "python train.py", "roles": roles},
    }  # fmt: skip
    found = preview(ClusterManifest.model_validate(manifest), acting_user=User.objects.get(), with_offers=True)
    if found.fits != "waits" or not (found.offers or is_smallest()):
        raise RuntimeError(f"a new run is offered nothing: {found}")


def _many_fit(world: _World) -> list[Result]:
    """A pass on free nodes, with as many runs of one task in front as a pass looks at."""
    world.wait_small()
    world.settle()
    took = _pass()
    placed = world.placed()
    if placed < SMALL:
        raise RuntimeError(f"{placed} runs got places instead of {SMALL}")
    found = _described(
        f"A pass that gives {placed:,} of {WAITING:,} runs their places", took, None, _timed(_write_again)
    )
    world.empty()
    return found


def _until_empty(world: _World) -> list[Result]:
    """Passes until nobody waits. After each, all that have places end."""
    world.wait()
    world.settle()
    passes, floor, count = list[Took](), 0.0, 0
    while count < WAITING:
        passes.append(_pass())
        placed = world.placed()
        if not placed:
            raise RuntimeError(f"{WAITING - count} runs wait for ever")
        count += placed
        floor += _timed(_write_again).seconds
        world.end()
    seconds = sum(each.seconds for each in passes)
    return [
        Result(f"{count:,} runs get their places in {len(passes)} passes ({count / seconds:,.0f} a second)", seconds, "s",
               count / 170, floor),
        Result("The longest of these passes", max(each.seconds for each in passes), "s"),
    ]  # fmt: skip


def _described(name: str, took: Took, target: float | None, floor: Took) -> list[Result]:
    return [
        Result(f"{name}: seconds", took.seconds, "s", target, floor.seconds),
        Result(f"{name}: processor time of this process", took.processor, "s"),
        Result(f"{name}: statements", took.statements, ""),
    ]


def _median(several: list[Took]) -> Took:
    return sorted(several, key=lambda each: each.seconds)[len(several) // 2]


def _pass() -> Took:
    from clusters.runs.placing import places

    return _counted(lambda: places.place(CLOUD))


def _judge(appcode: Appcode) -> None:
    from clusters.admission.packing import asking
    from clusters.runs.placing import known, room

    tasks = [asking("master", 1, GPUS, "", 4000, 32_768), asking("worker", 3, GPUS, "", 4000, 32_768)]
    verdict = room.judge(tasks, known.capacity_of(CLOUD), CLOUD, room.Wish(appcode, "default"))
    if verdict.fits != "waits":
        raise RuntimeError(f"a new run among many waiting ones does not wait: {verdict}")


@contextmanager
def _unbounded() -> Iterator[None]:
    """Looks at all that wait."""
    from clusters.runs.placing import known

    with patch.object(known, "MOST_WAITING", WAITING):
        yield


WAITS = "cloud = 'bench' AND NOT gone AND placed_at IS NULL AND desired = 'running' AND verdict = ''"


def _read_all() -> None:
    _read(WAITING)


def _read_waiting() -> None:
    from clusters.runs.placing import known

    _read(known.MOST_WAITING)


def _read(waiting: int) -> None:
    """The rows that a pass reads: capacity, what is held by node, runs that wait."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT capacity::text FROM clusters_cloudstate WHERE name = 'bench'")
        json.loads(cursor.fetchone()[0])
        cursor.copy_expert(
            "COPY (SELECT node, role, run_id FROM clusters_task WHERE phase IN ('Pending', 'Running') AND node <> '') TO STDOUT",
            io.StringIO(),
        )
        cursor.copy_expert(
            f"COPY (SELECT id, resources, roles, wait_reason, wait_message FROM clusters_run WHERE {WAITS} "  # noqa: S608
            f"ORDER BY id LIMIT {int(waiting)}) TO STDOUT",
            io.StringIO(),
        )


def _write_again() -> None:
    """Writes what the last pass wrote of runs with places."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE clusters_run SET placed_at = placed_at, layout = layout, wait_reason = '', wait_message = '' "
            "WHERE placed_at IS NOT NULL AND NOT gone"
        )


def _counted(work: Callable[[], Any]) -> Took:
    from django.db import connection

    count = 0

    def one_more(execute: Callable[..., Any], *given: Any) -> Any:
        nonlocal count
        count += 1
        return execute(*given)

    with connection.execute_wrapper(one_more):
        took = _timed(work)
    return Took(took.seconds, took.processor, count)


def _timed(work: Callable[[], Any]) -> Took:
    begin, processor = time.perf_counter(), time.process_time()
    work()
    return Took(time.perf_counter() - begin, time.process_time() - processor, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
