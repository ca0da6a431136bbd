"""Pipelines against the real database, node agent and S3 server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction
from django.utils import timezone

from clusters.pipelines import actions
from clusters.pipelines.api import run_status
from clusters.pipelines.loop import advance, resync
from clusters.pipelines.manifest import PipelineManifest
from clusters.pipelines.models import Pipeline, PipelineRun, StageRun
from clusters.runs.models import Cluster, Run
from clusters.runs.status.phase_update import refresh
from datastores.actions import open_store
from datastores.models import Datastore
from portal.errors import Conflict, Invalid
from portal.manifests import parse
from portal.models import Event
from portal.profile.notifications import Notifications, set_notifications
from tests.api.client import api_of

pytestmark = pytest.mark.django_db(transaction=True)

ROLES = {"master": {"flavor": "small"}}


@pytest.fixture
def results(people, s3, bucket):
    spec = {"server": s3.url, "bucket": bucket, "prefix": "", "access_key": s3.access_key, "region": "us-east-1"}
    return Datastore.objects.create(appcode=people.ops, name="results", kind="s3", spec=spec, secret=s3.secret_key)


def stage(name, command="true", *, after=(), when="succeeded", retries=0, **spec):
    spec = {"image": "python", "command": command, "roles": ROLES, "retries": 0, **spec}
    return {"name": name, "after": list(after), "when": when, "retries": retries, "spec": spec}


def manifest(*stages, name="nightly"):
    body = {"kind": "pipeline", "metadata": {"name": name}, "spec": {"stages": list(stages)}}
    return parse(PipelineManifest, body, appcode="ops-demo")


def make(people, *stages, run=True):
    made = actions.create_pipeline(manifest(*stages), people.ops, acting_user=people.bob)
    if run:
        actions.run_pipeline(made, acting_user=people.bob)
    return made


def until_over(loop, pipeline):
    """Advances the pipeline after each batch of the watch, as wake-ups would, until it is over."""

    def over():
        advance(pipeline.appcode_id, pipeline.name)
        return PipelineRun.objects.get(current_of=pipeline).finished_at

    loop.until(over)
    return PipelineRun.objects.get(current_of=pipeline)


def seen(run):
    """The phase of each stage's newest row."""
    return {row.stage: row.phase for row in StageRun.objects.filter(pipeline_run=run).order_by("pk")}


def why(call):
    with pytest.raises(Invalid) as caught:
        call()
    return {".".join(each.path): each.message for each in caught.value.errors}


def test_a_stage_reads_what_another_one_has_written_and_what_has_not_changed_is_used_again(loop, people, results):
    from clusters.runs.input_listing import note_output

    store = open_store(results)
    prepare = stage("prepare", "echo $((40 + 2)) > /elearn/output/n", output="results")
    train = stage("train", "cp /elearn/input/n /elearn/output/model", input={"from": "prepare"}, output="results")
    pipeline = make(people, train, prepare, stage("tell", after=["train"], when="failed"))
    run = until_over(loop, pipeline)
    assert (run.phase, seen(run)) == (
        "Succeeded",
        {"train": "Succeeded", "prepare": "Succeeded", "tell": "Skipped"},
    )
    assert store.read_range("nightly-train/1/model", 0, 9) == b"42\n"
    parts = Cluster.objects.filter(appcode=people.ops)
    assert {each.name: each.part_of for each in parts} == {
        "nightly-prepare": "pipelines/nightly",
        "nightly-train": "pipelines/nightly",
    }
    for each in Run.objects.filter(wrote__isnull=True):
        note_output(each.pk)

    def again(**options):
        actions.run_pipeline(pipeline, acting_user=people.bob, **options)
        found = until_over(loop, pipeline)
        rows = StageRun.objects.filter(pipeline_run=found, run__isnull=False).select_related("run")
        for each in Run.objects.filter(wrote__isnull=True):
            note_output(each.pk)
        return {row.stage: (row.run.number, row.reused) for row in rows}

    assert again() == {"prepare": (1, True), "train": (1, True)}
    # A changed stage is run; the one before it is not.
    changed = stage("train", "cp /elearn/input/n /elearn/output/other", input={"from": "prepare"}, output="results")
    pipeline = actions.change_pipeline(pipeline, manifest(prepare, changed), acting_user=people.bob)
    assert again() == {"prepare": (1, True), "train": (2, False)}
    # A stage whose output was deleted by hand runs again, and so do the stages that read it.
    store.delete("nightly-prepare/1/n")
    assert again() == {"prepare": (2, False), "train": (3, False)}
    assert again(fresh=True) == {"prepare": (3, False), "train": (4, False)}
    assert Run.objects.get(cluster__name="nightly-train", number=4).source.number == 3


def test_a_failed_stage_is_tried_again_and_a_person_tries_it_once_more(loop, people):
    once = "test $PORTAL_RUN -ge 3"
    pipeline = make(
        people,
        stage("train", f"echo run $PORTAL_RUN; {once}", retries=1),
        stage("keep", after=["train"]),
        stage("clean", after=["keep"], when="always"),
        stage("tell", after=["keep"], when="failed"),
    )
    run = until_over(loop, pipeline)
    assert (run.phase, seen(run)) == (
        "Failed",
        {"train": "Failed", "keep": "Skipped", "clean": "Succeeded", "tell": "Succeeded"},
    )
    assert run.message.startswith("train: ")
    assert StageRun.objects.get(pipeline_run=run, stage="keep").message == "train has failed."
    assert Run.objects.filter(cluster__name="nightly-train").count() == 2
    with pytest.raises(Invalid, match="has no stage"):
        actions.retry_stage(pipeline, "other", acting_user=people.bob)
    actions.retry_stage(pipeline, "train", acting_user=people.bob)
    again = until_over(loop, pipeline)
    assert (again.pk, again.phase, seen(again)) == (
        run.pk,
        "Succeeded",
        {"train": "Succeeded", "keep": "Succeeded", "clean": "Succeeded", "tell": "Skipped"},
    )


def test_paused_it_starts_no_stage_and_goes_on_in_the_name_of_who_resumes_it(loop, people):
    pipeline = make(
        people,
        stage("first", "exec sleep 600"),
        stage("again", "test $PORTAL_RUN = 2", retries=1),
        stage("then", after=["again"]),
        run=False,
    )
    api, address = api_of(people.bob), "/appcodes/ops-demo/pipelines/nightly"
    for verb in ("pause", "resume"):
        status, found = api.post(f"{address}/{verb}", {})
        assert (status, found["detail"]) == (409, "nightly has never been run.")
    actions.run_pipeline(pipeline, acting_user=people.bob)
    advance(pipeline.appcode_id, "nightly")
    for _ in range(2):
        status, found = api.post(f"{address}/pause", {})
        assert (status, found["phase"], found["message"]) == (202, "Paused", "Paused by bob.")
    assert Event.objects.filter(verb="pipeline.paused").count() == 1
    loop.until(lambda: Run.objects.filter(cluster__name="nightly-again", phase="Failed").exists())
    run = PipelineRun.objects.get()
    advance(pipeline.appcode_id, "nightly")
    # The failure is recorded, but the retry and the end of the pipeline wait.
    assert seen(run) == {"first": "Running", "again": "Failed", "then": "Waiting"}
    with pytest.raises(Conflict, match="resume it first"):
        actions.retry_stage(pipeline, "again", acting_user=people.bob)
    actions.resume_pipeline(pipeline, acting_user=people.alice)
    actions.resume_pipeline(pipeline, acting_user=people.alice)
    advance(pipeline.appcode_id, "nightly")
    assert seen(run)["again"] == "Running"
    assert Run.objects.get(cluster__name="nightly-again", number=2).created_by == people.alice
    actions.pause_pipeline(pipeline, acting_user=people.bob)
    actions.cancel_pipeline(pipeline, acting_user=people.bob)
    run = until_over(loop, pipeline)
    assert (run.phase, seen(run)["then"]) == ("Stopped", "Skipped")
    with pytest.raises(Conflict, match="is over"):
        actions.resume_pipeline(pipeline, acting_user=people.bob)


def test_cancel_ends_all_and_what_was_lost_is_found(loop, people, monkeypatch):
    from clusters import wakeups

    woken = []
    monkeypatch.setattr(wakeups, "wake_whole", lambda *whole: woken.append(whole))
    pipeline = make(people, stage("train", "sleep 600"), stage("keep", after=["train"]))
    resync()
    assert woken[-1] == (people.ops.pk, "pipelines/nightly")
    advance(people.ops.pk, "nightly")
    cluster = Cluster.objects.get(name="nightly-train")
    loop.until_phase(cluster, "Running")
    with pytest.raises(Conflict, match="cancel it first"):
        actions.run_pipeline(pipeline, acting_user=people.bob)
    with pytest.raises(Conflict, match="train has not ended yet"):
        actions.retry_stage(pipeline, "train", acting_user=people.bob)
    woken.clear()
    resync()
    assert not woken, "what goes on needs nobody"
    actions.cancel_pipeline(pipeline, acting_user=people.bob)
    loop.until_phase(cluster, "Stopped")
    assert woken == [(people.ops.pk, "pipelines/nightly")], "its end says so"
    resync()
    assert len(woken) == 2
    run = until_over(loop, pipeline)
    assert (run.phase, seen(run)) == ("Stopped", {"train": "Stopped", "keep": "Skipped"})
    actions.delete_pipeline(Pipeline.objects.get(), acting_user=people.bob)
    assert (Pipeline.objects.count(), Cluster.objects.filter(deleted_at=None).count()) == (0, 0)


def test_who_has_left_starts_nothing_more_and_a_step_done_twice_is_done_once(loop, people):
    from portal.models import Membership

    pipeline = make(people, stage("one"), stage("two", after=["one"]))
    advance(people.ops.pk, "nightly")
    advance(people.ops.pk, "nightly")
    assert Run.objects.count() == 1
    Membership.objects.filter(user=people.bob).delete()
    run = until_over(loop, pipeline)
    assert (run.phase, seen(run)) == ("Failed", {"one": "Succeeded", "two": "Failed"})
    assert run.message == "two: It could not be started: There is no appcode “ops-demo” that you can use."


def end(name, phase="Succeeded"):
    """Ends the latest run of a stage's cluster, as the loops would."""
    run = Run.objects.filter(cluster__name=name).latest("number")
    Run.objects.filter(pk=run.pk).update(phase=phase, finished_at=timezone.now(), gone=True)


def test_who_is_told_of_a_failure_is_told_of_the_next_one_too(catalogue, people):
    pipeline = make(people, stage("train"), stage("tell", after=["train"], when="failed"), run=False)
    for number in (1, 2):
        actions.run_pipeline(pipeline, acting_user=people.bob)
        for name, phase in (("train", "Failed"), ("tell", "Succeeded")):
            advance(people.ops.pk, "nightly")
            end(f"nightly-{name}", phase)
        advance(people.ops.pk, "nightly")
        run = PipelineRun.objects.get(current_of=pipeline)
        assert (run.phase, seen(run)) == ("Failed", {"train": "Failed", "tell": "Succeeded"})
        assert Run.objects.filter(cluster__name="nightly-tell").count() == number


def test_a_stage_that_is_tried_again_starts_at_once_though_another_one_runs(catalogue, people, monkeypatch):
    make(people, stage("train"), stage("other"))
    advance(people.ops.pk, "nightly")
    end("nightly-train", "Failed")
    advance(people.ops.pk, "nightly")
    # The wake-up is lost, and resync skips pipelines with a running stage.
    actions.retry_stage(Pipeline.objects.get(), "train", acting_user=people.bob)
    assert Run.objects.filter(cluster__name="nightly-train").count() == 2


def test_what_was_asked_before_a_stage_ended_counts_no_more_and_one_worker_asks(catalogue, people, monkeypatch):
    spec = {"server": "https://s3.example.com", "bucket": "b", "prefix": "", "access_key": "a", "region": "us-east-1"}
    Datastore.objects.create(appcode=people.ops, name="results", kind="s3", spec=spec, secret="secret")
    pipeline = make(people, stage("prepare"), stage("train", after=["prepare"], output="results"))
    for name in ("prepare", "train"):
        advance(people.ops.pk, "nightly")
        end(f"nightly-{name}")
    advance(people.ops.pk, "nightly")
    actions.run_pipeline(pipeline, acting_user=people.bob)
    advance(people.ops.pk, "nightly")
    asked = []

    def unchanged(run, spec, latest):
        asked.append(latest["prepare"].run.phase)
        if len(asked) > 1:
            return {}
        with ThreadPoolExecutor(1) as pool:
            pool.submit(apart).result()
        # The stage ends while the loop asks servers; its output may change what the next stage reads.
        end("nightly-prepare")
        return {"train": Run.objects.get(cluster__name="nightly-train")}

    def apart():
        try:
            advance(people.ops.pk, "nightly")
        finally:
            connection.close()

    monkeypatch.setattr("clusters.pipelines.loop.unchanged", unchanged)
    advance(people.ops.pk, "nightly")
    assert asked == ["Queued"]
    advance(people.ops.pk, "nightly")
    assert asked == ["Queued", "Succeeded"]
    assert Run.objects.filter(cluster__name="nightly-train").count() == 2


def test_what_is_wrong_is_said_at_its_field(catalogue, people):
    wrong = {
        "spec.stages.0.after": (
            "These wait for each other, so none of them would ever start: a → c → b → a.",
            [stage("a", after=["c"]), stage("b", after=["a"]), stage("c", input={"from": "b"}, output="x"), stage("d")],
        ),
        "spec.stages.1.after": ("b waits for itself.", [stage("a"), stage("b", after=["b"])]),
        "spec.stages.0.after.0": ("There is no stage “b”; there are: a.", [stage("a", after=["b"])]),
        "spec.stages.1.name": ("There are two stages “a”.", [stage("a"), stage("a")]),
        "spec.stages.1.spec.input.from": (
            "a has no output datastore, so nothing that it writes is kept.",
            [stage("a"), stage("b", input={"from": "a"})],
        ),
        "spec.stages.0.when": ("It waits for no stage, so none could fail before it.", [stage("a", when="failed")]),
        "spec.stages.0.spec.mode": (
            "A stage has to come to an end, and a service goes on until it is stopped.",
            [stage("a", mode="service")],
        ),
        "spec.stages.0.name": (
            f"Its cluster would be called too-long-with-{'a' * 30}, and such a name has at most 40 characters.",
            [stage("a" * 30)],
        ),
    }
    for field, (sentence, stages) in wrong.items():
        name = "too-long-with" if "too-long" in sentence else "nightly"
        assert why(lambda stages=stages, name=name: manifest(*stages, name=name)) == {field: sentence}
    Cluster.objects.create(appcode=people.ops, name="nightly-a", spec={"roles": {}})
    absent = manifest(stage("a", image="gone"), stage("b", input="absent"))
    assert why(lambda: actions.create_pipeline(absent, people.ops, acting_user=people.bob)) == {
        "spec.stages.0.name": "ops-demo already has a cluster “nightly-a”; choose another name.",
        "spec.stages.0.spec.image": "The catalogue has no image “gone”.",
        "spec.stages.1.spec.input": "ops-demo has no datastore “absent”.",
    }
    assert not Pipeline.objects.exists()


def test_the_best_of_a_sweep_is_trained_again_on_what_an_earlier_stage_has_written(loop, people, results):
    from clusters.sweeps.loop import advance as advance_sweep

    prepare = stage("prepare", "for n in 1 2 3 4; do echo $n > /elearn/output/$n; done", output="results")
    said = "echo loss = {lr}; ls /elearn/input > /elearn/output/seen"
    template = stage("x", said, input={"from": "prepare"}, output="results")["spec"]
    sweep = {
        "template": template, "parameters": {"lr": {"type": "choice", "values": [0.5, 0.1]}}, "sampler": "grid", "parallel": 2,
        "goal": {"metric": "loss"}, "folds": 2,
    }  # fmt: skip
    pipeline = make(people, prepare, {"name": "search", "sweep": sweep}, {"name": "final", "best": "search"})

    def over():
        advance_sweep(people.ops.pk, "nightly-search-1")
        advance(people.ops.pk, "nightly")
        return PipelineRun.objects.get(current_of=pipeline).finished_at

    loop.until(over)
    run = PipelineRun.objects.get(current_of=pipeline)
    assert (run.phase, run.message, seen(run)) == (
        "Succeeded", "", {"prepare": "Succeeded", "search": "Succeeded", "final": "Succeeded"},
    )  # fmt: skip
    final = Run.objects.get(cluster__name="nightly-final")
    assert (final.spec["env"], final.spec["input"]) == ({"lr": "0.1"}, {"from": "nightly-prepare/1"})
    assert open_store(results).read_range("nightly-final/1/seen", 0, 99).split() == [b"1", b"2", b"3", b"4"]
    # Two points with two folds each.
    assert Cluster.objects.filter(part_of="sweeps/nightly-search-1").count() == 4


def test_what_a_failed_stage_has_written_is_read_by_one_that_says_so(loop, people, results):
    train = stage("train", "echo half > /elearn/output/model; exit 3", output="results")
    always = {"from": "train", "when": "always"}
    look = stage("look", "grep half /elearn/input/model", when="always", input=always)
    mourn = stage("mourn", "grep half /elearn/input/model", when="failed", input=always)
    waits = stage("waits", when="always", input={"from": "train"})
    run = until_over(loop, make(people, train, look, mourn, waits))
    assert seen(run) == {"train": "Failed", "look": "Succeeded", "mourn": "Succeeded", "waits": "Skipped"}


def test_a_stage_that_was_removed_leaves_no_cluster_behind_and_its_history_stays(catalogue, people):
    pipeline = make(people, stage("prepare"), stage("train"))
    advance(people.ops.pk, "nightly")
    without = manifest(stage("train"))
    actions.change_pipeline(pipeline, without, acting_user=people.bob)
    names = Cluster.objects.filter(part_of="pipelines/nightly", deleted_at=None).values_list("name", flat=True)
    assert set(names) == {"nightly-prepare", "nightly-train"}, "a run lives that has it"
    Run.objects.update(phase="Succeeded", gone=True)
    advance(people.ops.pk, "nightly")
    assert list(names.all()) == ["nightly-train"]
    kept = run_status(PipelineRun.objects.get()).stages[0]
    assert (kept.name, kept.phase, kept.cluster, kept.run) == ("prepare", "Succeeded", None, 1)


def test_who_started_it_has_one_mail_of_its_end_and_none_of_its_stages(catalogue, people):
    from billing.mails import Mail

    set_notifications(Notifications(mail=["succeeded", "failed", "stopped"]), acting_user=people.bob)
    pipeline = make(people, stage("prepare"), stage("train"))
    advance(people.ops.pk, "nightly")
    for run in Run.objects.select_related("cluster__appcode"):
        why_not = f"{run.cluster.name} is broken."
        Run.objects.filter(pk=run.pk).update(gone=True, refusal=why_not, gpu_seconds=1800, cost="1.5")
        run.refresh_from_db()
        with transaction.atomic():
            refresh([run], timezone.now())
    advance(people.ops.pk, "nightly")
    [letter] = Mail.objects.all()
    assert (letter.to, letter.subject) == ([people.bob.email], "ops-demo/nightly: Failed")
    assert "Run 1: 2 Failed. prepare: " in letter.text
    assert "train: nightly-train is broken." in letter.text
    assert "1.00 GPU-hours, 3.00 " in letter.text
    assert "/pipelines/ops-demo/nightly?run=1\n" in letter.text
    # A retried run sends another mail when it ends.
    actions.retry_stage(pipeline, "train", acting_user=people.bob)
    actions.cancel_pipeline(pipeline, acting_user=people.bob)
    advance(people.ops.pk, "nightly")
    assert [letter.subject.rpartition(" ")[2] for letter in Mail.objects.order_by("pk")] == ["Failed", "Stopped"]
