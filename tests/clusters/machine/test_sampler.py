"""What real tasks on this machine did, from the kernel to the row."""

from __future__ import annotations

import datetime as dt
import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from bench.portal.sampling import fill
from clusters.clouds.registry import cloud
from clusters.cluster import actions
from clusters.machine import loop as upkeep
from clusters.machine import series
from clusters.machine.models import MachineBlock, MachineSeries
from clusters.machine.rates import Step
from clusters.machine.reading import curves, use_of
from clusters.machine.sampler import Sampler
from clusters.runs.models import Run

# Holds 40 MB, and burns two seconds of CPU and writes 20 MB once a file is there. A child that has ended did half of it.
PROGRAM = """
import os, time
held = bytearray(os.urandom(1) * 40_000_000)
print("ready", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.02)
child = os.fork()
end = time.process_time() + 1
while time.process_time() < end:
    pass
with open(f"/tmp/{child}", "wb") as file:
    file.write(bytes(10_000_000))
    file.flush()
    os.fsync(file.fileno())
if not child:
    os._exit(0)
os.waitpid(child, 0)
print("done", flush=True)
time.sleep(600)
"""


@pytest.mark.django_db(transaction=True)
def test_cpu_memory_and_disk_of_a_program_are_what_it_used(loop, people, manifest):
    spec = manifest(command=f"python -c '{PROGRAM}'", mode="service", workers=1)
    made = actions.create_cluster(spec, acting_user=people.bob)
    run = loop.until_phase(made, "Running")
    for role in ("master", "worker"):
        loop.until_said(run, "ready", role=role)
    sampler = Sampler(cloud("local"))
    assert sampler.tick(time.time()) == 2
    began = MachineSeries.objects.get(run=run, role="master").at
    loop.touch(run, "/tmp/go")
    loop.until_said(run, "done")
    # The second process of the controller goes on from the rows.
    with CaptureQueriesContext(connection) as queries:
        assert Sampler(cloud("local")).tick(time.time()) == 2
    assert len(queries) <= 10, [each["sql"] for each in queries]
    use = use_of(run, timezone.now())
    busy, quiet = use.tasks
    assert (busy.name, quiet.name, use.whole is not None) == ("master-0", "worker-0", True)
    seconds = (busy.at - began).total_seconds()
    cpu, written = (busy.mean[name] * seconds for name in ("cpu", "written"))
    assert 2 <= cpu < 2.5
    assert 20e6 <= written < 25e6
    assert 40e6 < busy.now["memory"] < 100e6
    assert (quiet.mean["cpu"] or 0) < 0.1
    assert quiet.mean["written"] == 0
    # Both share the network of their run.
    assert busy.now["received"] is None
    assert "share its network" in use.notes[0]
    width, found = curves(use, ["", "master-0", "worker-0"], began, timezone.now())
    assert (width, [each.name for each in found]) == (10, ["", "master-0", "worker-0"])
    whole = found[0]
    assert whole.low["cpu"][-1] < 0.1 < whole.mean["cpu"][-1] < whole.high["cpu"][-1]
    assert whole.high["cpu"][-1] == pytest.approx(cpu / seconds)


def test_samples_are_thinned_with_age_and_then_forgotten(people, manifest, catalogue, settings):
    run = Run.objects.get(cluster=actions.create_cluster(manifest(workers=1), acting_user=people.bob))
    now, quiet = timezone.now(), (0.0,) * 7
    state = {"since": 0, "idle": {}, "totals": [[0, 0, None]] * 8, "now": [None] * 8}
    together, master, _ = (
        MachineSeries.objects.create(run=run, role=role, at=now, state=state) for role in ("", "master", "worker")
    )

    def add(one: MachineSeries, days: float) -> None:
        """Half an hour in three blocks, each without its last sample."""
        at = (now - dt.timedelta(days=days)).timestamp() // 864_000 * 864_000
        for begin in range(int(at), int(at) + 1800, 600):
            steps = [(n, Step(10, (n + begin - at, *quiet))) for n in range(10, 600, 10)]
            data = b"".join(series.fine(n, each) if one.role else series.whole(n, [each]) for n, each in steps)
            MachineBlock.objects.create(series=one, step=10, begin=dt.datetime.fromtimestamp(begin, dt.UTC), data=data)

    def drawn() -> list[tuple[str, int, float]]:
        """By line: its points and its largest value."""
        use = use_of(run, now)
        _, found = curves(use, ["master-0", ""], now - dt.timedelta(days=100), now, 10**6)
        known = {each.name: [value for value in each.high["gpu"] if value is not None] for each in found}
        return [(name, len(values), max(values)) for name, values in known.items()]

    add(master, 20)
    add(master, 60)
    add(together, 20)
    assert drawn() == [("master-0", 6 * 59, 1790), ("", 3 * 59, 1790)]
    assert upkeep.thin(now) == 9 + 1
    assert upkeep.thin(now) == 0
    assert sorted(MachineBlock.objects.values_list("step", flat=True)) == [60, 60, 600]
    # The older three blocks are one line of three points now, and lie too far back to be drawn finer beside the others.
    assert drawn() == [("master-0", 6, 1790), ("", 3, 1790)]
    settings.MEASURED_MEMORY = dt.timedelta(days=30)
    assert upkeep.forget(now) == 1
    assert upkeep.forget(now + dt.timedelta(days=31)) == 5
    assert not MachineSeries.objects.exists()


def test_a_day_of_ten_tasks_is_read_in_one_query_and_one_piece_a_task(people, manifest, catalogue, monkeypatch):
    run = Run.objects.get(cluster=actions.create_cluster(manifest(workers=12), acting_user=people.bob))
    fill(run, 12)
    use, read, pieces = use_of(run, timezone.now()), series.rows_of, list[int]()

    def counted(blocks, *, is_wide):
        pieces.append(len(blocks))
        return read(blocks, is_wide=is_wide)

    monkeypatch.setattr(series, "rows_of", counted)
    with CaptureQueriesContext(connection) as queries:
        width, found = curves(use, [each.name for each in use.busiest], use.since, use.until, 200)
    assert (len(queries), pieces, len(found)) == (1, [144] * 10, 10)
    assert all(len(each.times) == 144 for each in found)
    assert width == 600
