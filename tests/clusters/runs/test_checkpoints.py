"""When runs last saved, from the real output in a real bucket, and what follows: the run that loses least is taken back."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.utils.timezone import now

from clusters.clouds import registry
from clusters.cluster import actions
from clusters.runs import checkpoints
from clusters.runs.models import Run
from clusters.runs.placing import known
from clusters.runs.status.history import current
from datastores.drivers.base import Entry
from datastores.models import Datastore
from portal.models import Appcode, Event
from tests.api.client import api_of
from tests.clusters.cluster.test_right import text_of
from tests.clusters.gangs import Told, nodes
from tests.clusters.runs.placing import older, place, see, submit, told_by
from tests.clusters.runs.test_rights import running

pytestmark = pytest.mark.django_db


@pytest.fixture
def cloud(training: Any, monkeypatch: pytest.MonkeyPatch) -> Told:
    """24 GPUs on three nodes; each of the appcodes has a quota of 8 and may borrow 16."""
    see(*nodes(3))
    Appcode.objects.update(gpu_quota=8, gpu_borrow=16)
    return told_by(monkeypatch)


def see_files(people: Any, s3: Any, bucket: str) -> None:
    """The output is in a bucket from now on. No other cloud than this machine may be given one of the test's server."""
    store = Datastore.objects.get(appcode=people.ops, name="results")
    spec = {"server": s3.url, "bucket": bucket, "prefix": "", "access_key": s3.access_key, "region": "us-east-1"}
    store.kind, store.spec, store.secret = "s3", spec, s3.secret_key
    store.save()


SAVES = """
import pathlib, signal, sys, time
saved = pathlib.Path("/elearn/output/step")
step = int(saved.read_text()) if saved.exists() else 0
def save(*_):
    time.sleep(3)
    saved.write_text(str(step))
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("begins at", step, flush=True)
while True:
    step += 1
    time.sleep(0.1)
"""


@pytest.mark.django_db(transaction=True)
def test_a_program_that_saves_at_sigterm_has_the_time_that_it_asks_for_and_goes_on_from_there(
    loop: Any, people: Any, manifest: Any, s3: Any, bucket: str
) -> None:
    spec = {"server": s3.url, "bucket": bucket, "prefix": "", "access_key": s3.access_key, "region": "us-east-1"}
    Datastore.objects.create(appcode=people.ops, name="results", kind="s3", spec=spec, secret=s3.secret_key)
    all_gpus = sum(node.gpus for node in registry.cloud("local").capacity().nodes)
    Appcode.objects.update(gpu_quota=all_gpus)
    code = {"files": {"train.py": SAVES}}
    both = []
    for name, seconds in (("saves", 20), ("cut-short", 1)):
        wanted = manifest(
            name, "exec python train.py", flavor="one-gpu", code=code, output="results", priorityClass="spare",
            terminationGracePeriod=seconds,
        )  # fmt: skip
        both.append(actions.create_cluster(wanted, acting_user=people.bob))
    for each in both:
        run = loop.until_phase(each, "Running")
        loop.until_said(run, "begins at 0")
        older(run, dt.timedelta(minutes=2))
    all_of_it = manifest("all", "true", flavor="one-gpu", workers=all_gpus - 1)
    taker = Run.objects.get(current_of=actions.create_cluster(all_of_it, acting_user=people.bob))

    def is_told() -> bool:
        taker.refresh_from_db()
        return taker.wait_code == "TakingBack"

    loop.until(is_told)
    until = known.full_minute(now() + known.TO_END + dt.timedelta(seconds=10))
    assert abs(taker.wait_values["gone"] - until) <= 60
    assert " at the latest." in taker.message
    loop.until(lambda: Run.objects.filter(cluster__in=both, times_given_back=1, given_back_at=None).count() == 2)
    loop.until_phase(taker.cluster, "Succeeded")
    runs = [loop.until_phase(each, "Running") for each in both]
    loop.until_said(runs[1], "begins at 0")
    log = [registry.cloud("local").log(registry.run_ref(run), "master", 0, attempt=0).data for run in runs]
    assert int(log[0].split()[-1]) > 0, log
    for each in both:
        actions.disable(each, acting_user=people.bob)


def look(people: Any, run: Run) -> dt.datetime | None:
    assert checkpoints.appcodes() == [people.ops.pk]
    checkpoints.note(people.ops.pk)
    run.refresh_from_db()
    assert run.checkpoint_seen_at
    return run.checkpoint_at


def test_the_run_that_saved_last_is_taken_and_told_what_it_loses(
    cloud: Told, people: Any, stores: None, s3: Any, bucket: str
) -> None:
    running(people, "inside", 8)
    saves = running(people, "saves", 8, since=dt.timedelta(hours=3), output="results")
    late = running(people, "late", 8)
    put = s3.client.put_object
    see_files(people, s3, bucket)
    assert look(people, saves) is None
    put(Bucket=bucket, Key="saves/1/events.out.tfevents.1", Body=b"x")
    put(Bucket=bucket, Key="saves/1/logs/train.log", Body=b"x")
    put(Bucket=bucket, Key="other/1/model.pt", Body=b"x")
    assert look(people, saves) is None, "what grows all the time is no checkpoint"
    put(Bucket=bucket, Key="saves/1/checkpoints/step-100.pt", Body=b"x")
    saved = look(people, saves)
    assert saved
    assert abs(saved - now()) < dt.timedelta(minutes=1)
    assert f"last saved {saved:%H:%M} UTC" in text_of(people.victor, "/clusters/ops-demo/saves")
    status = api_of(people.victor).get("/appcodes/ops-demo/clusters/saves")[1]["status"]
    assert dt.datetime.fromisoformat(status["checkpointAt"]) == saved

    Run.objects.filter(pk=saves.pk).update(checkpoint_at=now() - dt.timedelta(seconds=181))
    theirs = place(submit(people, "theirs", 8, "flight-demo"))
    for run in (saves, late):
        run.refresh_from_db()
    assert (saves.given_back_at is not None, late.given_back_at) == (True, None), "the other began later"
    event = Event.objects.get(verb="run.taken_back")
    assert "It loses 8 GPUs × 3 min, since its last checkpoint." in event.message
    assert event.data["lost"] == {"gpus": 8, "seconds": event.data["lost"]["seconds"], "saved": 1}
    assert 180 < event.data["lost"]["seconds"] < 240
    line = current(saves)
    assert line
    assert "It loses 8 GPUs × 3 min, since its last checkpoint." in line.sentence
    assert theirs.placed_at is None
    assert checkpoints.appcodes() == [], "a run that is being taken off saves nothing more"


def test_what_a_run_saved_before_it_began_again_and_what_nobody_sees_saves_nothing(
    cloud: Told, people: Any, stores: None
) -> None:
    """The datastore is NFS, whose files only tasks see."""
    running(people, "inside", 8)
    again = running(people, "again", 8, output="results")
    running(people, "young", 8, since=dt.timedelta(minutes=5))
    assert look(people, again) is None
    Run.objects.filter(pk=again.pk).update(checkpoint_at=now() - dt.timedelta(days=1))
    older(again, dt.timedelta(hours=9))
    place(submit(people, "theirs", 8, "flight-demo"))
    [event] = Event.objects.filter(verb="run.taken_back")
    assert "It may lose 8 GPUs × 9 h 11 min: no checkpoint since it began is known." in event.message


def test_no_clock_makes_a_checkpoint_younger_than_now_and_times_that_programs_set_do_not_count() -> None:
    at, hour = now(), dt.timedelta(hours=1)
    files = [
        Entry("a", "a", modified=at + hour, since=at - hour),
        Entry("b", "b", modified=at - 2 * hour),
        Entry("c", "c", is_folder=True),
        Entry("events.out.tfevents.7", "logs/events.out.tfevents.7", modified=at),
        Entry("metrics.csv", "metrics.csv", modified=at),
    ]
    assert checkpoints.newest(files, at) == at - hour
    assert checkpoints.newest([Entry("d", "d", modified=at + hour)], at) == at
    assert checkpoints.newest(files[2:], at) is None
