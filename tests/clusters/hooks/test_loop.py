"""Hooks after and before runs, against the real node agent and S3 server."""

import json
import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.utils import timezone

from clusters import tasks, wakeups
from clusters.clouds.drivers.base import CloudError
from clusters.clouds.models import CloudState
from clusters.clouds.registry import cloud, run_ref
from clusters.cluster import actions
from clusters.hooks import facts
from clusters.hooks import loop as run_hooks
from clusters.hooks.models import Hook, HookRun
from clusters.manifest.hook_spec import part_name
from clusters.runs import quota
from clusters.runs.models import Cluster, Run
from clusters.runs.queries.preview import preview
from clusters.runs.quota import held, waiting
from clusters.scalars import events as scalars
from datastores.models import Datastore
from portal.errors import Invalid
from portal.models import Appcode, Event, Membership
from tests.clusters.scalars.test_scalars import event

pytestmark = pytest.mark.django_db(transaction=True)

EVENTS = b64encode(event(1, loss=0.5) + event(2, loss=0.25)).decode()
TRAIN = f"echo weights > /elearn/output/model; echo {EVENTS} | base64 -d > /elearn/output/events.out.tfevents.1"
SAVE = 'cp $PORTAL_OUTPUT/model /elearn/output; echo "$PORTAL_FACTS" > /elearn/output/model-version.json'


@pytest.fixture
def results(people, s3, bucket):
    spec = {"server": s3.url, "bucket": bucket, "prefix": "", "access_key": s3.access_key, "region": "us-east-1"}
    return Datastore.objects.create(appcode=people.ops, name="results", kind="s3", spec=spec, secret=s3.secret_key)


@pytest.fixture
def stored(s3, bucket):
    """stored(key) → the text of an object."""
    return lambda key: s3.client.get_object(Bucket=bucket, Key=key)["Body"].read().decode()


def done(loop, run, name):
    """Waits until the hook has ended; returns its row."""

    def is_over():
        run_hooks.advance(run.cluster.appcode_id, run.cluster.name)
        row = HookRun.objects.filter(run=run, name=name).select_related("did").get()
        return row.message or (row.did and row.did.is_terminal)

    loop.until(is_over)
    return HookRun.objects.select_related("did__cluster").get(run=run, name=name)


def log_of(run):
    return cloud("local").log(run_ref(run), "worker", 0, attempt=run.tasks.count() - 1).data.decode()


def why(call):
    with pytest.raises(Invalid) as caught:
        call()
    return {".".join(each.path): each.message for each in caught.value.errors}


def test_a_hook_finds_output_and_facts_of_its_run_and_its_failure_changes_nothing(
    loop, people, manifest, results, stored
):
    Hook.objects.create(appcode=people.ops, name="save", spec={"on": "success", "command": "exit 9", "env": {"A": "1"}})
    hooks = [
        {"use": "save", "command": f"{SAVE}; echo $A$B", "env": {"B": "2"}, "outputPath": "models/{name}/{run}"},
        {"name": "breaks", "on": "always", "command": "echo broken; exit 3", "retries": 1},
        {"name": "sorry", "on": "failure", "command": "true"},
    ]
    cluster = actions.create_cluster(manifest("train", TRAIN, output="results", hooks=hooks), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert run.phase == "Succeeded", run.message
    assert list(run.hook_runs.values_list("name", flat=True)) == ["save", "breaks"]
    saved = done(loop, run, "save").did
    assert (saved.phase, log_of(saved)) == ("Succeeded", "12\n")
    assert (saved.cluster.name, saved.cluster.part_of, saved.created_by) == ("train-save", "hooks/train", people.bob)
    assert stored("models/train/1/model") == "weights\n"
    facts = json.loads(stored("models/train/1/model-version.json"))
    assert {key: facts[key] for key in ("appcode", "cluster", "run", "phase", "metrics", "image")} == {
        "appcode": "ops-demo", "cluster": "train", "run": 1, "phase": "Succeeded", "metrics": {"loss": 0.25}, "image": "python",
    }  # fmt: skip
    broken = done(loop, run, "breaks").did
    assert (broken.phase, broken.message) == ("Failed", "worker-0 failed twice (exit code 3): broken")
    run.refresh_from_db()
    assert (run.phase, run.message) == ("Succeeded", "The master has finished.")

    # A later run uses the appcode's hook again, so it is refused once the hook is deleted.
    Hook.objects.all().delete()
    assert why(lambda: actions.deploy(cluster, acting_user=people.bob)) == {
        "spec.hooks.0.use": "ops-demo has no hook “save”."
    }


def test_a_hook_after_a_failure_reads_what_there_is_and_is_made_once(loop, people, manifest, results, monkeypatch):
    hook = {
        "name": "sorry",
        "on": "failure",
        "command": 'cat $PORTAL_OUTPUT/part; echo "$PORTAL_REASON: $PORTAL_MESSAGE"; echo $PORTAL_METRICS',
    }
    fails = (
        "echo half > /elearn/output/part; until [ -e /tmp/go ]; do sleep 0.1; done; "
        "echo step 4: loss = 0.5; echo no data; exit 7"
    )
    cluster = actions.create_cluster(
        manifest("train", fails, output="results", retries=0, hooks=[hook]), acting_user=people.bob
    )
    # All wake-ups are lost.
    monkeypatch.setattr(wakeups, "send", lambda *_, **__: None)
    loop.touch(loop.until_phase(cluster, "Running"), "/tmp/go")
    run = loop.until_phase(cluster, "Failed", "Succeeded")
    woken = []
    monkeypatch.setattr(wakeups, "wake_whole", lambda *keys: woken.append(keys))
    run_hooks.resync()
    assert woken == [(people.ops.pk, "hooks/")]

    def advance(_):
        try:
            tasks.advance(*woken[0])
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(advance, range(4)))
    assert Run.objects.filter(cluster__part_of="hooks/train").count() == 1
    woken.clear()
    run_hooks.resync()
    assert not woken
    did = done(loop, run, "sorry").did
    assert (did.phase, log_of(did)) == (
        "Succeeded",
        'half\nTaskFailed: master-0 failed with exit code 7: no data\nstep 4: loss = 0.5\nno data\n{"loss": 0.5}\n',
    )

    # While a hook runs for one run, the hook of the next run waits.
    actions.change_cluster(
        cluster,
        manifest("train", "exit 7", retries=0, hooks=[hook | {"command": "until [ -e /tmp/go ]; do sleep 0.1; done"}]),
        acting_user=people.bob,
    )
    runs = []
    for _ in range(2):
        actions.deploy(cluster, acting_user=people.bob)
        runs.append(loop.until_phase(cluster, "Failed", "Succeeded"))
        tasks.advance(people.ops.pk, "hooks/train")
    first, second = (HookRun.objects.get(run=each) for each in runs)
    assert first.did.number == 2
    assert second.did is None
    loop.until_phase(first.did.cluster, "Running")
    loop.touch(first.did, "/tmp/go", "worker")
    loop.until_phase(first.did.cluster, "Succeeded")
    tasks.advance(people.ops.pk, "hooks/train")
    second.refresh_from_db()
    assert second.did.number == 3

    actions.delete_cluster(cluster, acting_user=people.bob)
    assert not Cluster.objects.filter(deleted_at=None).exists()
    loop.until(lambda: Run.objects.get(pk=second.did_id).phase == "Stopped")


def test_a_run_that_wrote_nothing_and_who_may_not_run_its_hook_any_more(loop, people, manifest, results):
    hooks = [{"on": "always", "command": "echo =$PORTAL_OUTPUT="}]
    writes_nothing = manifest("train", "true", hooks=hooks, output="results")
    cluster = actions.create_cluster(writes_nothing, acting_user=people.bob)
    did = done(loop, loop.until_phase(cluster, "Succeeded", "Failed"), "after").did
    assert (did.phase, log_of(did)) == ("Succeeded", "==\n"), "there is nothing to mount"

    actions.deploy(cluster, acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    Membership.objects.filter(user=people.bob).delete()
    row = done(loop, run, "after")
    assert (row.did, row.message) == (None, "bob, who started the run, may run nothing in ops-demo any more.")
    assert Event.objects.get(verb="run.hook_refused").message.startswith("Its hook after cannot be done: ")


def ended(cluster):
    """Marks the cluster's run as ended without running it."""
    run = cluster.current_run
    Run.objects.filter(pk=run.pk).update(phase="Succeeded", message="\x01\U0001f600" * 4000, gone=True)
    HookRun.objects.bulk_create(HookRun(run=run, name=each["name"]) for each in run.spec["hooks"])
    return run


def test_what_cannot_be_made_is_said_and_the_others_are_made(catalogue, people, manifest, monkeypatch):
    large = {f"V{number}": "x" * 100 for number in range(150)}
    hooks = [
        {"name": "long", "command": "true", "outputPath": "{name}/" * 20},
        {"name": "large", "command": "true", "env": large},
    ]
    cluster = actions.create_cluster(manifest("a" * 20, hooks=hooks), acting_user=people.bob)
    numbers = scalars.Scalars(
        tuple(scalars.Curve(f"{number}" * 90, "", (scalars.Point(1, 0.5, 0),)) for number in range(500)), 0
    )
    monkeypatch.setattr(run_hooks, "metrics_of", lambda run: facts.last_values(numbers))
    run = ended(cluster)
    run_hooks.advance(people.ops.pk, "")
    said = {row.name: (row.message, bool(row.did)) for row in HookRun.objects.filter(run=run)}
    assert said == {"long": ("outputPath: At most 200 characters.", False), "large": ("", True)}


def test_more_than_a_hook_can_have_is_refused_at_its_field(catalogue, people, manifest):
    Hook.objects.create(appcode=people.ops, name="save", spec={"command": "true", "env": {"A": "x" * 10_000}})
    both = manifest("train", hooks=[{"use": "save", "env": {"B": "x" * 10_000}}])
    assert why(lambda: actions.create_cluster(both, acting_user=people.bob)) == {
        "spec.hooks.0.env": "All variables together may have 16 KiB."
    }
    with pytest.raises(ValueError, match="TASK_COUNT is for the portal to set"):
        manifest("train", hooks=[{"command": "true", "env": {"TASK_COUNT": "2"}}])


def test_a_store_that_does_not_answer_keeps_one_worker_and_nobody_from_the_cloud(
    catalogue, people, manifest, monkeypatch
):
    hooks = [{"name": "tell", "command": "true"}]
    runs = [
        ended(actions.create_cluster(manifest(name, hooks=hooks), acting_user=people.bob)) for name in ("one", "two")
    ]
    asked, answers = [], threading.Event()

    def slow(run):
        asked.append(run.pk)
        answers.wait(30)
        return {}

    monkeypatch.setattr(run_hooks, "metrics_of", slow)

    def advance(name):
        try:
            run_hooks.advance(people.ops.pk, name)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(advance, "one")
        while not asked:
            first.exception(0.05) if first.done() else None
        try:
            run_hooks.advance(people.ops.pk, "one")
            run_hooks.advance(people.ops.pk, "two")
            assert asked == [runs[0].pk]
        finally:
            answers.set()
        first.result()
    run_hooks.advance(people.ops.pk, "")
    assert asked == [run.pk for run in runs]
    assert not HookRun.objects.filter(did=None).exists()


def test_numbers_that_stay_out_of_reach_take_no_output_away(catalogue, people, manifest, monkeypatch):
    def gone(run):
        raise CloudError("The log is gone.")

    monkeypatch.setattr(run_hooks, "metrics_of", gone)
    monkeypatch.setattr(run_hooks, "has_output", lambda run: True)
    run = ended(actions.create_cluster(manifest("train", hooks=[{"command": "true"}]), acting_user=people.bob))
    run.phase_since = timezone.now()
    assert run_hooks._look(run) is None
    run.phase_since -= run_hooks.PATIENCE * 2
    assert run_hooks._look(run) == facts.Found({}, has_output=True)


def test_names_that_mean_nothing_are_refused_at_their_field(catalogue, people, manifest):
    hooks = [
        {"use": "nobody"},
        {"command": "true", "image": "container-only", "flavor": "huge", "output": "nowhere"},
    ]
    with_hooks = manifest("train", hooks=hooks)
    assert why(lambda: actions.create_cluster(with_hooks, acting_user=people.bob)) == {
        "spec.hooks.0.use": "ops-demo has no hook “nobody”.",
        "spec.hooks.1.image": "The catalogue has no image “container-only” that runs on this machine.",
        "spec.hooks.1.flavor": "There is no flavor “huge”.",
        "spec.hooks.1.output": "ops-demo has no datastore “nowhere”.",
    }


def test_names_of_their_clusters_are_short_and_differ():
    names = {part_name("a" * 39 + last, "notify-by-mail-again") for last in "bc"}
    assert len(names) == 2
    assert all(len(name) == 40 and name.endswith("-notify-by-mail-again") for name in names)


def test_a_run_starts_when_the_hooks_before_it_have_succeeded_one_after_the_other(
    loop, people, manifest, results, s3, bucket
):
    s3.client.put_object(Bucket=bucket, Key="data.csv", Body=b"1,2\n")
    check = (
        "until [ -e /tmp/go ]; do sleep 0.1; done; cat $PORTAL_INPUT/data.csv; echo =$PORTAL_OUTPUT=; exit ${FAIL:-0}"
    )
    hooks = [
        {"name": "check", "on": "before", "command": check},
        {"name": "stage", "on": "before", "command": "echo staged"},
        {"name": "sorry", "on": "failure", "command": "true"},
    ]
    asked = manifest("train", "true", input="results", hooks=hooks, flavor="one-gpu")
    node = {"name": "here", "gpu_model": "", "gpus": 8, "gpus_free": 8, "cpu_milli": 64000, "memory_mb": 64000}
    CloudState.objects.update_or_create(name="local", defaults={"capacity": {"nodes": [node]}})
    found = preview(asked, acting_user=people.bob)
    assert (found.fits, found.sentence) == ("waits", "It waits for its hook check.")
    cluster = actions.create_cluster(asked, acting_user=people.bob)
    loop.work()
    run = Run.objects.get(current_of=cluster)
    assert (run.phase, run.reason, run.message) == ("Queued", "WaitingForHook", "It waits for its hook check.")
    tasks.advance(people.ops.pk, "hooks/train")
    its = HookRun.objects.select_related("did__cluster").get(run=run)
    loop.until_phase(its.did.cluster, "Running")
    assert held(people.ops.pk).gpus == 0, "nothing is held for it meanwhile"
    assert not waiting(people.ops.pk).exists(), "and it is in nobody's way"
    loop.touch(its.did, "/tmp/go", "worker")
    assert loop.until_phase(its.did.cluster, "Succeeded", "Failed").phase == "Succeeded"
    assert log_of(its.did) == "1,2\n==\n"
    loop.work()
    run.refresh_from_db()
    assert run.message == "It waits for its hook stage."
    assert done(loop, run, "stage").did.phase == "Succeeded"
    assert loop.until_phase(cluster, "Succeeded", "Failed").phase == "Succeeded"

    # A failing hook ends the run before it starts.
    failing = [hooks[0] | {"env": {"FAIL": "4"}}, *hooks[1:]]
    actions.change_cluster(cluster, manifest("train", "true", input="results", hooks=failing), acting_user=people.bob)
    run = actions.deploy(cluster, acting_user=people.bob)
    loop.work()
    tasks.advance(people.ops.pk, "hooks/train")
    did = HookRun.objects.select_related("did__cluster").get(run=run).did
    loop.until_phase(did.cluster, "Running")
    loop.touch(did, "/tmp/go", "worker")
    run = loop.until_phase(cluster, "Failed", "Succeeded")
    assert run.message.startswith("Its hook check has failed (train-check/2). worker-0 failed with exit code 4")
    assert (run.started_at, run.gpu_seconds) == (None, 0)
    assert list(run.hook_runs.values_list("name", flat=True)) == ["check", "sorry"]

    # Cancelling the run ends the hooks before it.
    run = actions.deploy(cluster, acting_user=people.bob)
    loop.work()
    tasks.advance(people.ops.pk, "hooks/train")
    did = HookRun.objects.select_related("did__cluster").get(run=run).did
    loop.until_phase(did.cluster, "Running")
    actions.cancel(cluster, acting_user=people.bob)
    ended_hook = loop.until_phase(did.cluster, "Stopped")
    assert ended_hook.message == "Run train/3, before which it was to be done, was ended."
    assert Run.objects.get(current_of=cluster).phase == "Stopped"


def test_a_hook_before_a_run_that_cannot_be_made_is_the_end_of_the_run(catalogue, people, manifest):
    hooks = [{"name": "check", "on": "before", "command": "true"}]
    cluster = actions.create_cluster(manifest("train", hooks=hooks), acting_user=people.bob)
    actions.create_cluster(manifest("train-tell"), acting_user=people.bob)
    assert why(
        lambda: actions.change_cluster(
            cluster, manifest("train", hooks=[{"name": "tell", "command": "true"}]), acting_user=people.bob
        )
    ) == {
        "spec.hooks.0.name": "Its cluster would be called “train-tell”, as another one of ops-demo is; name the hook otherwise."
    }
    quota.admit(cluster.current_run.pk)
    Membership.objects.filter(user=people.bob).delete()
    run_hooks.advance(people.ops.pk, "")
    quota.admit_waiting(people.ops.pk)
    run = Run.objects.get(current_of=cluster)
    assert (run.verdict, run.refusal) == (
        "Failed",
        "Its hook check could not be done: bob, who started the run, may run nothing in ops-demo any more.",
    )


def test_hooks_of_an_appcode_that_takes_nothing_new_wait(catalogue, people, manifest, monkeypatch):
    monkeypatch.setattr(run_hooks, "metrics_of", lambda run: {})
    run = ended(actions.create_cluster(manifest("train", hooks=[{"command": "true"}]), acting_user=people.bob))
    Appcode.objects.filter(pk=people.ops.pk).update(state="disabled")
    run_hooks.advance(people.ops.pk, "")
    assert HookRun.objects.filter(run=run, did=None, message="").exists()
    Appcode.objects.filter(pk=people.ops.pk).update(state="active")
    run_hooks.advance(people.ops.pk, "")
    assert HookRun.objects.get(run=run).did
