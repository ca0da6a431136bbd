"""From an action to processes and back to a phase, with the real node agent, PostgreSQL and broker."""

import uuid

import pytest

from billing.models import Observation, UsageSegment
from clusters.clouds.registry import cloud
from clusters.cluster import actions
from clusters.runs import quota, reconcile, resync
from clusters.runs.models import Cluster, Run, Task
from portal.errors import Conflict, Invalid
from portal.models import Event

pytestmark = pytest.mark.django_db(transaction=True)


def log(run, role="master", index=0, attempt=0):
    return cloud("local").log(reconcile.run_ref(run), role, index, attempt=attempt).data.decode()


def test_a_program_runs_exactly_as_typed_and_its_run_succeeds(loop, people, manifest):
    command = "printf '%s\\n' \"$GREETING\" '$(date)' 'ünï — \"quoted\"'\necho $((6 * 7)) $PORTAL_CLUSTER/$PORTAL_RUN"
    cluster = actions.create_cluster(
        manifest("demo", command, env={"GREETING": "it's $$HOME & $(x)"}), acting_user=people.bob
    )
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert (run.phase, run.message) == ("Succeeded", "The master has finished.")
    assert log(run) == 'it\'s $HOME & $(x)\n$(date)\nünï — "quoted"\n42 demo/1\n'


def test_master_done_ends_everything_and_frees_the_gpus(loop, people, manifest):
    command = 'if [ "$PORTAL_ROLE" = master ]; then until [ -e /tmp/go ]; do sleep 0.1; done; else exec sleep 600; fi'
    cluster = actions.create_cluster(
        manifest("demo", command, flavor="one-gpu", ps=1, workers=2), acting_user=people.bob
    )
    loop.touch(loop.until_phase(cluster, "Running"), "/tmp/go")
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert run.phase == "Succeeded"
    assert {role: facts["ready"] for role, facts in run.roles.items()} == {"master": 1, "ps": 1, "worker": 2}
    assert not Task.objects.filter(run=run, phase__in=["Pending", "Running"]).exists()
    assert {node.gpus_free for node in cloud("local").capacity().nodes} == {
        node.gpus for node in cloud("local").capacity().nodes
    }
    segments = UsageSegment.objects.filter(consumer=f"run {run.pk}")
    assert segments.count() == 4
    assert not segments.filter(ended=None).exists()
    assert run.gpu_rate == 0


def test_a_failure_is_retried_and_then_told_with_exit_code_and_last_lines(loop, people, manifest):
    cluster = actions.create_cluster(manifest("demo", "echo no data here; exit 7", retries=1), acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert (run.phase, run.reason) == ("Failed", "TaskFailed")
    assert run.message == "master-0 failed twice (exit code 7): no data here"
    assert [task.message for task in run.tasks.all()] == ["no data here", "no data here"]
    assert list(run.tasks.order_by("attempt").values_list("attempt", "exit_code")) == [(0, 7), (1, 7)]
    assert Event.objects.filter(verb="task.failed").count() == 2


def test_a_program_runs_as_its_author_wrote_it(loop, people, manifest):
    """A pipe fails if any of its programs fails. A program that exits is not retried, a killed one is, once. Variables may refer
    to each other and to those of the image and the portal."""
    env = {"PATH": "/demo:$PATH", "PRICE": "5$$", "WHO": "${PORTAL_CLUSTER}/$(PORTAL_RUN) at $PLACE", "PLACE": "$HOME"}
    check = '[ "${PATH#/demo:/}" != "$PATH" ] && [ "$PRICE" = \'5$\' ] && [ "$WHO" = "env/1 at $HOME" ] && python -c 1'
    wanted = {
        "pipe": ("python -c 'exit(3)' | tee /tmp/log", {}, "Failed", 1),
        "segv": ("kill -SEGV $$", {}, "Failed", 1),
        "kill": ("[ -e /elearn/output/was ] || { touch /elearn/output/was; kill -KILL $$; }", {}, "Succeeded", 2),
        "env": (check, env, "Succeeded", 1),
    }
    clusters = {
        name: actions.create_cluster(manifest(name, command, env=env), acting_user=people.bob)
        for name, (command, env, _, _) in wanted.items()
    }
    for name, (_, _, phase, attempts) in wanted.items():
        run = loop.until_phase(clusters[name], "Succeeded", "Failed")
        assert (name, run.phase, run.tasks.count()) == (name, phase, attempts), run.message


def test_disable_ends_a_run_and_redeploy_makes_the_next(loop, people, manifest):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600"), acting_user=people.bob)
    loop.until_phase(cluster, "Running")
    with pytest.raises(Conflict):
        actions.deploy(cluster, acting_user=people.bob)
    actions.disable(cluster, acting_user=people.bob)
    actions.disable(cluster, acting_user=people.bob)
    run = loop.until_phase(cluster, "Stopped")
    assert (run.reason, run.message) == ("Disabled", "Stopped by bob.")
    assert Event.objects.filter(verb="cluster.disabled").count() == 1
    actions.deploy(cluster, acting_user=people.bob)
    again = loop.until_phase(cluster, "Running")
    assert again.number == 2
    actions.delete_cluster(cluster, acting_user=people.bob)
    loop.until(lambda: Run.objects.get(pk=again.pk).phase == "Stopped")
    reconcile.purge(cluster.pk)
    assert Cluster.objects.get(pk=cluster.pk).purged


def test_quota_holds_a_run_back_until_another_ends(loop, people, manifest):
    people.ops.gpu_quota = 2
    people.ops.save()
    first = actions.create_cluster(
        manifest("one", "exec sleep 600", flavor="one-gpu", workers=1), acting_user=people.bob
    )
    loop.until_phase(first, "Running")
    second = actions.create_cluster(manifest("two", "exec sleep 600", flavor="one-gpu"), acting_user=people.bob)
    loop.work()
    run = Run.objects.get(current_of=second)
    assert (run.phase, run.reason) == ("Queued", "QuotaExceeded")
    assert "0 of 2 of ops-demo are free; held by one/1 (2 GPUs)." in run.message
    actions.disable(first, acting_user=people.bob)
    loop.until_phase(first, "Stopped")
    loop.until_phase(second, "Running")
    actions.disable(second, acting_user=people.bob)
    loop.until_phase(second, "Stopped")


def test_more_than_the_quota_is_refused_before_anything_is_made(catalogue, people, manifest):
    with pytest.raises(Invalid) as caught:
        actions.create_cluster(manifest("demo", flavor="one-gpu", workers=8), acting_user=people.bob)
    assert caught.value.errors[0].path == ("spec", "roles", "worker", "count")
    assert not Cluster.objects.exists()
    assert not Event.objects.exists()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"image": "nothing"}, ("spec", "image")),
        ({"image": "container-only"}, ("spec", "image")),
        ({"flavor": "huge"}, ("spec", "roles", "master", "flavor")),
        ({"input": "other-tenants"}, ("spec", "input")),
        ({"appcode": "flight-demo"}, ("metadata", "appcode")),
        ({"appcode": "nowhere"}, ("metadata", "appcode")),
    ],
)
def test_names_that_may_not_be_used_are_refused_at_their_field(catalogue, people, manifest, change, path):
    with pytest.raises(Invalid) as caught:
        actions.create_cluster(manifest("demo", **change), acting_user=people.bob)
    assert path in [error.path for error in caught.value.errors]
    assert not Cluster.objects.exists()


def test_a_name_is_taken_once(catalogue, people, manifest):
    actions.create_cluster(manifest("demo"), acting_user=people.bob)
    with pytest.raises(Invalid) as caught:
        actions.create_cluster(manifest("demo"), acting_user=people.bob)
    assert caught.value.errors[0].path == ("metadata", "name")
    assert Cluster.objects.count() == 1


def test_a_worker_that_dies_after_telling_the_cloud_is_followed_by_one_that_tells_again(loop, people, manifest):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600"), acting_user=people.bob)
    run = Run.objects.get(current_of=cluster)
    # The worker died after applying and before recording it: its claim stays until it expires.
    assert reconcile._claim(run.pk, uuid.uuid4())
    assert quota.admit(run.pk)
    cloud("local").apply(reconcile.plan_of(run))
    loop.work()
    assert Run.objects.get(pk=run.pk).applied_at is None, "the claim of the dead worker still holds"
    Run.objects.filter(pk=run.pk).update(claimed_until="2020-01-01T00:00Z")
    loop.until_phase(cluster, "Running")
    assert run.tasks.count() == 1, "telling the cloud twice starts nothing twice"
    actions.disable(cluster, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")


def test_news_that_come_twice_and_a_controller_that_forgets_its_position_count_once(loop, people, manifest):
    cluster = actions.create_cluster(
        manifest("demo", "true", flavor="one-gpu", workers=1, completion="workers"), acting_user=people.bob
    )
    start = cloud("local").list().position
    run = loop.until_phase(cluster, "Succeeded")
    segments = list(UsageSegment.objects.order_by("uid").values("uid", "started", "ended"))
    loop.position = start
    loop.listen()
    # What came before the run was whole is noted once more, since that is known now.
    observations = Observation.objects.count()
    loop.position = ""
    loop.listen()
    assert list(UsageSegment.objects.order_by("uid").values("uid", "started", "ended")) == segments
    assert Observation.objects.count() == observations
    assert Run.objects.get(pk=run.pk).gpu_seconds == run.gpu_seconds


def test_two_workers_do_not_both_hold_a_run(catalogue, people, manifest):
    run = Run.objects.get(current_of=actions.create_cluster(manifest("demo"), acting_user=people.bob))
    assert reconcile._claim(run.pk, uuid.uuid4())
    assert not reconcile._claim(run.pk, uuid.uuid4())


def test_a_time_limit_ends_a_run(loop, people, manifest):
    cluster = actions.create_cluster(manifest("demo", "exec sleep 600", timeLimit=60), acting_user=people.bob)
    run = loop.until_phase(cluster, "Running")
    assert run.deadline is not None
    Run.objects.filter(pk=run.pk).update(deadline=run.started_at)
    resync.sweep()
    assert loop.until_phase(cluster, "Stopped").reason == "TimeLimit"


def test_mallory_and_victor_may_not_touch_it(catalogue, people, manifest):
    from django.core.exceptions import PermissionDenied

    cluster = actions.create_cluster(manifest("demo"), acting_user=people.bob)
    for person in (people.victor, people.mallory):
        for act in (actions.deploy, actions.disable, actions.cancel, actions.delete_cluster):
            with pytest.raises(PermissionDenied):
                act(cluster, acting_user=person)
