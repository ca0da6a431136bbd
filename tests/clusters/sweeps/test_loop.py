"""Sweeps from manifest to best trial, with real processes."""

from __future__ import annotations

import base64
import os
import signal

import pytest
from django.core.cache import cache
from django.db import connection

from billing.mails import Mail
from clusters.cluster import actions as clusters
from clusters.runs import budgets
from clusters.runs.models import Cluster, Run
from clusters.sweeps import actions, points, step
from clusters.sweeps import loop as sweeps
from clusters.sweeps.models import Sweep, Trial
from clusters.sweeps.objective import read_value
from datastores.models import Datastore
from portal.db.advisory_lock import Lock
from portal.errors import Conflict, Invalid
from portal.models import Event, Membership
from portal.profile.notifications import Notifications, set_notifications
from tests import mortal
from tests.api.client import api_of

pytestmark = pytest.mark.django_db(transaction=True)
NUMBERS = {"lr": {"type": "choice", "values": [3, 1, 2, 4]}}


def until(loop, condition):
    """Like `loop.until`, but also advances all sweeps."""

    def turned():
        for appcode_id, name in Sweep.objects.filter(settled=False).values_list("appcode", "name"):
            sweeps.advance(appcode_id, name)
        loop.work()
        return condition()

    loop.until(turned)


def ended(sweep):
    return Sweep.objects.get(pk=sweep.pk).settled


def trials(sweep):
    return list(sweep.trials.order_by("number", "fold").values_list("number", "phase", "value"))


def test_a_grid_is_trained_two_at_once_and_its_best_is_found(loop, people, sweep_manifest):
    most = 0

    def is_over():
        nonlocal most
        most = max(most, Trial.objects.filter(phase="").count())
        return ended(sweep)

    set_notifications(Notifications(mail=["succeeded"]), acting_user=people.bob)
    sweep = actions.create_sweep(sweep_manifest(parallel=2), acting_user=people.bob)
    until(loop, is_over)
    sweep.refresh_from_db()
    assert (sweep.phase, sweep.message) == ("Succeeded", "Of 4 trials 4 succeeded; the best is trial 1: loss = 1.")
    [letter] = Mail.objects.all()
    assert (letter.to, letter.subject) == ([people.bob.email], "ops-demo/lr: Succeeded")
    assert sweep.message in letter.text
    assert trials(sweep) == [(0, "Succeeded", 3), (1, "Succeeded", 1), (2, "Succeeded", 2), (3, "Succeeded", 4)]
    assert most == 2
    api = api_of(people.victor)
    status, found = api.get("/appcodes/ops-demo/sweeps/lr")
    assert (status, found["status"]["trials"], found["status"]["points"]) == (200, {"Succeeded": 4}, 4)
    assert found["status"]["best"] == {"number": 1, "value": 1.0, "sd": None, "parameters": {"lr": 1}}
    rows = api.get("/appcodes/ops-demo/sweeps/lr/trials?limit=3")[1]
    assert [(row["cluster"], row["parameters"], row["value"]) for row in rows["items"]] == [
        ("lr-0", {"lr": 3}, 3.0), ("lr-1", {"lr": 1}, 1.0), ("lr-2", {"lr": 2}, 2.0)
    ]  # fmt: skip
    assert found["status"]["gpuSeconds"] == sum(row["gpuSeconds"] for row in rows["items"])
    best = api.get("/appcodes/ops-demo/sweeps/lr/trials?sort=-value&limit=3")[1]
    rest = api.get(best["next"].partition("/api/v1")[2])[1]
    assert [row["value"] for row in (*best["items"], *rest["items"])] == [4, 3, 2, 1]
    assert api.get("/appcodes/ops-demo/sweeps/lr/trials?phase=Queued,Running&sort=cost")[1]["items"] == []
    assert api.get("/appcodes/ops-demo/sweeps/lr/trials?sort=size")[1]["errors"][0]["path"] == "sort"
    # A cursor whose number PostgreSQL can't store.
    huge = base64.urlsafe_b64encode(b"1E+999999~1").decode().rstrip("=")
    assert api.get(f"/appcodes/ops-demo/sweeps/lr/trials?sort=cost&cursor={huge}")[0] == 422
    # The portal can't read event files on a volume, so the printed value counts at once.
    run = Run.objects.select_related("cluster__appcode").get(cluster__name="lr-1")
    Datastore.objects.create(appcode=people.ops, name="disk", kind="volume", spec={})
    run.spec["output"] = "disk"
    assert read_value(run, "loss").value == 1
    # Lists leave the sweep's clusters out; the best trial can become a cluster of its own.
    assert api.get("/appcodes/ops-demo/clusters")[1]["items"] == []
    status, made = api_of(people.bob).post(
        "/appcodes/ops-demo/sweeps/lr/trials/1/cluster", {"metadata": {"name": "best"}}
    )
    assert (status, made["spec"]["command"], made["spec"]["env"]) == (201, "echo loss = 1", {"lr": "1"})
    # A change may add trials; another goal would make it another sweep.
    assert api_of(people.bob).put("/appcodes/ops-demo/sweeps/lr", found | {"metadata": {}})[0] == 200
    found["spec"]["goal"]["direction"] = "maximize"
    status, refused = api_of(people.bob).put("/appcodes/ops-demo/sweeps/lr", found)
    assert (status, refused["errors"][0]["path"]) == (422, "spec.goal")
    # Deleting the sweep deletes everything it created.
    assert api_of(people.bob).delete("/appcodes/ops-demo/sweeps/lr")[0] == 204
    assert api.get("/appcodes/ops-demo/sweeps/lr")[0] == 404
    sweeps.advance(sweep.appcode_id, "lr")
    assert not Sweep.objects.exists()
    assert list(Cluster.objects.filter(deleted_at=None).values_list("name", flat=True)) == ["best"]


def test_what_has_no_number_has_failed_and_what_failed_is_tried_again(loop, people, sweep_manifest):
    command = (
        'case {lr} in 1) echo loss = nan;; 2) echo done;; 3) test "$PORTAL_RUN" = 2 && echo loss = 7;; 4) exit 3;; '
        "5) echo loss = 1e200;; esac"
    )
    parameters = {"lr": {"type": "choice", "values": [3, 1, 2, 4, 5]}}
    manifest = sweep_manifest(command=command, parameters=parameters, parallel=5, retries=1)
    sweep = actions.create_sweep(manifest, acting_user=people.bob)
    until(loop, lambda: ended(sweep))
    found = {trial.parameters["lr"]: trial for trial in sweep.trials.all()}
    assert (found[3].phase, found[3].value, found[3].attempt) == ("Succeeded", 7, 1)
    assert (found[1].phase, found[1].message) == ("Failed", "Its loss is nan, which is no number to compare.")
    assert (found[2].phase, found[2].message.split(",")[0]) == ("Failed", "It named no loss")
    assert (found[4].phase, found[4].attempt) == ("Failed", 1)
    assert "exit code 3" in found[4].message
    assert (found[5].phase, found[5].message) == ("Failed", "Its loss is 1e+200, which is no number to compare.")
    assert Sweep.objects.get().message == "Of 5 trials 1 succeeded, 4 failed; the best is trial 0: loss = 7."
    # If every trial fails, the sweep's message gives the reason.
    parameters = {"lr": {"type": "choice", "values": [1]}}
    none = sweep_manifest(name="none", command="echo loss = nan {lr}", parameters=parameters)
    sweep = actions.create_sweep(none, acting_user=people.bob)
    until(loop, lambda: ended(sweep))
    sweep.refresh_from_db()
    assert sweep.phase == "Failed"
    assert (
        sweep.message
        == "Of 1 trial 1 failed. The last one that failed: Its loss is nan, which is no number to compare."
    )


def test_paused_it_starts_nothing_and_cancelled_it_ends_everything(loop, people, sweep_manifest):
    manifest = sweep_manifest(command="echo loss = {lr}; exec sleep 600", parallel=2)
    sweep = actions.create_sweep(manifest, acting_user=people.bob)
    until(loop, lambda: Run.objects.filter(phase="Running").count() == 2)
    actions.pause_sweep(sweep, acting_user=people.bob)
    clusters.disable(Cluster.objects.get(name="lr-0"), acting_user=people.bob)
    until(loop, lambda: Trial.objects.get(number=0).phase)
    assert trials(sweep) == [(0, "Stopped", None), (1, "", None)]
    actions.resume_sweep(sweep, acting_user=people.alice)
    until(loop, lambda: Run.objects.filter(phase="Running").count() == 2)
    assert Cluster.objects.get(name="lr-2").created_by == people.alice
    actions.cancel_sweep(sweep, acting_user=people.alice)
    until(loop, lambda: ended(sweep) and not Run.objects.filter(gone=False).exists())
    assert trials(sweep) == [(0, "Stopped", None), (1, "Stopped", None), (2, "Stopped", None)]
    assert Sweep.objects.get().message == "Stopped by alice."
    for verb in (actions.resume_sweep, actions.pause_sweep):
        with pytest.raises(Conflict):
            verb(sweep, acting_user=people.bob)


def test_what_waits_to_be_trained_again_begins_when_it_is_resumed_and_till_then_nobody_is_woken(
    catalogue, people, sweep_manifest
):
    sweep = actions.create_sweep(sweep_manifest(parallel=2, retries=1), acting_user=people.bob)
    sweeps.advance(sweep.appcode_id, "lr")
    failed, stopped = Run.objects.filter(cluster__name="lr-0"), Run.objects.filter(cluster__name="lr-1")
    failed.update(phase="Failed", verdict="Failed", gone=True)
    stopped.update(phase="Stopped", desired="ended", stop_reason=budgets.REASON, gone=True)
    actions.pause_sweep(sweep, acting_user=people.bob)
    sweeps.advance(sweep.appcode_id, "lr")
    assert ended(sweep)
    waiting = api_of(people.victor).get("/appcodes/ops-demo/sweeps/lr/trials?phase=Queued&sort=-number")[1]["items"]
    assert [row["cluster"] for row in waiting] == ["lr-1", "lr-0"]
    actions.resume_sweep(sweep, acting_user=people.bob)
    sweeps.advance(sweep.appcode_id, "lr")
    # A trial stopped by a budget does not count as failed.
    assert list(Trial.objects.values_list("number", "phase", "attempt")) == [(0, "", 1), (1, "", 0)]
    assert Run.objects.filter(cluster__part_of="sweeps/lr", phase="Queued").count() == 2


def test_who_has_left_starts_nothing_more_and_whoever_resumes_it_takes_over(loop, people, sweep_manifest):
    sweep = actions.create_sweep(sweep_manifest(), acting_user=people.bob)
    Membership.objects.filter(user=people.bob).delete()
    sweeps.advance(sweep.appcode_id, "lr")
    sweep.refresh_from_db()
    sentence = "bob may start nothing in ops-demo any more. Resume it, and it goes on in your name."
    assert (sweep.phase, sweep.message, sweep.trials.count()) == ("Paused", sentence, 0)
    actions.resume_sweep(sweep, acting_user=people.alice)
    sweeps.advance(sweep.appcode_id, "lr")
    assert Cluster.objects.get().created_by == people.alice


def test_a_quota_taken_away_pauses_it_and_nothing_is_lost(loop, people, sweep_manifest):
    manifest = sweep_manifest(template={"roles": {"master": {"flavor": "one-gpu"}}})
    sweep = actions.create_sweep(manifest, acting_user=people.bob)
    people.ops.gpu_quota = 0
    people.ops.save()
    sweeps.advance(sweep.appcode_id, "lr")
    sweep.refresh_from_db()
    assert (sweep.phase, sweep.trials.count(), Cluster.objects.count()) == ("Paused", 0, 0)
    assert "the quota of ops-demo is 0" in sweep.message
    with pytest.raises(Invalid) as found:
        actions.resume_sweep(sweep, acting_user=people.bob)
    assert found.value.errors[0].path == ("spec", "template", "roles", "master", "flavor")


def test_where_all_fail_a_person_looks_first(loop, people, sweep_manifest):
    parameters = {"lr": {"type": "int", "low": 1, "high": 20}}
    manifest = sweep_manifest(command="echo no module {lr}; exit 1", parameters=parameters, parallel=5)
    sweep = actions.create_sweep(manifest, acting_user=people.bob)
    until(loop, lambda: Sweep.objects.get().phase == "Paused" and not Trial.objects.filter(phase="").exists())
    failed = Trial.objects.count()
    assert 5 <= failed < 15
    assert "have all failed" in Sweep.objects.get().message
    assert "exit code 1" in Sweep.objects.get().message
    actions.resume_sweep(sweep, acting_user=people.bob)
    until(loop, lambda: Trial.objects.exclude(phase="").count() > failed + 5)
    actions.cancel_sweep(sweep, acting_user=people.bob)
    until(loop, lambda: ended(sweep) and not Run.objects.filter(gone=False).exists())


def test_who_falls_behind_is_ended_at_once_and_its_room_is_used(loop, people, sweep_manifest):
    """At its first rung trial 1 reports nothing better than trial 0 and is ended; trial 2 is better and runs to its end."""
    command = (
        "if [ {lr} = 5 ]; then until [ -e /tmp/tell ]; do sleep 0.1; done; fi; "
        "for step in 1 2 3 4; do echo step $step: loss = {lr}; done; "
        "if [ {lr} = 5 ]; then exec sleep 600; fi; until [ -e /tmp/go ]; do sleep 0.1; done"
    )
    parameters = {"lr": {"type": "choice", "values": [3, 5, 1]}}
    manifest = sweep_manifest(command=command, parameters=parameters, parallel=2, stopEarly={"minSteps": 2})
    sweep = actions.create_sweep(manifest, acting_user=people.bob)

    def looked():
        cache.delete(f"sweeps.look.{sweep.pk}")
        return Trial.objects.filter(number=2, step=4).exists()

    until(loop, lambda: Run.objects.filter(phase="Running").count() == 2)
    loop.until_said(Run.objects.get(cluster__name="lr-0"), "step 4")
    until(loop, lambda: cache.delete(f"sweeps.look.{sweep.pk}") and Trial.objects.filter(number=0, step=4).exists())
    loop.touch(Run.objects.get(cluster__name="lr-1"), "/tmp/tell")
    until(loop, looked)
    behind = Trial.objects.get(number=1)
    assert (behind.phase, behind.value, behind.step) == ("Pruned", 5, 2)
    assert behind.message == "Ended early at step 2: loss = 5, and others were better there."
    until(loop, lambda: Run.objects.get(cluster__name="lr-1").gone)
    for name in ("lr-0", "lr-2"):
        loop.touch(Run.objects.get(cluster__name=name), "/tmp/go")
    until(loop, lambda: ended(sweep))
    assert trials(sweep) == [(0, "Succeeded", 3), (1, "Pruned", 5), (2, "Succeeded", 1)]
    assert Sweep.objects.get().best["number"] == 2


def test_killed_between_any_two_statements_no_trial_is_lost_or_made_twice(catalogue, people, sweep_manifest):
    sweep = actions.create_sweep(sweep_manifest(parallel=2, goal=None), acting_user=people.bob)
    deaths, allowed, seen = 0, 0, 0
    while not ended(sweep):
        how = mortal.child(allowed, lambda: sweeps.advance(sweep.appcode_id, "lr"))
        assert not os.WIFSIGNALED(how) or os.WTERMSIG(how) == signal.SIGKILL
        deaths += os.WIFSIGNALED(how)
        made = set(Cluster.objects.values_list("name", flat=True))
        assert made == {f"lr-{number}" for number in sweep.trials.values_list("number", flat=True)}
        assert Run.objects.count() == len(made)
        assert Trial.objects.filter(phase="").count() <= 2
        # After progress, the next turn is killed at once again; otherwise one call later. Created runs succeed.
        allowed = 0 if len(made) > seen else allowed + 1
        seen = len(made)
        if seen % 2 == 0 and os.WIFSIGNALED(how):
            Run.objects.update(phase="Succeeded", gone=True, desired="ended")
    assert deaths > 50
    assert sorted(Cluster.objects.values_list("name", flat=True)) == ["lr-0", "lr-1", "lr-2", "lr-3"]
    assert Event.objects.filter(verb="cluster.created").count() == 4
    assert Event.objects.filter(verb="sweep.succeeded").count() == 1
    assert set(sweep.trials.values_list("phase", flat=True)) == {"Succeeded"}


def test_while_another_worker_reads_numbers_of_the_appcode_nothing_is_judged_and_nobody_is_kept(
    catalogue, people, sweep_manifest, monkeypatch
):
    woken = []
    sweep = actions.create_sweep(sweep_manifest(), acting_user=people.bob)
    sweeps.advance(sweep.appcode_id, "lr")
    Run.objects.update(phase="Succeeded", gone=True, desired="ended")
    monkeypatch.setattr(sweeps.wakeups, "wake_whole", lambda *of: woken.append(of))
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", [Lock.TRIALS, str(sweep.appcode_id)])
    sweeps.advance(sweep.appcode_id, "lr")
    assert (trials(sweep), woken) == ([(0, "", None)], [])
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock_all()")
    other.close()
    sweeps.advance(sweep.appcode_id, "lr")
    assert trials(sweep) == [(0, "Failed", None), (1, "", None)]


def test_names_of_its_trials_that_are_taken_are_said_before_it_starts(catalogue, people, manifest, sweep_manifest):
    clusters.create_cluster(manifest("lr-7"), acting_user=people.bob)
    with pytest.raises(Invalid, match="There is a cluster “lr-7”"):
        actions.create_sweep(sweep_manifest(), acting_user=people.bob)
    with pytest.raises(Invalid, match=r"spec\.template\.image"):
        actions.create_sweep(sweep_manifest("other", template={"image": "gone"}), acting_user=people.bob)


def test_a_point_of_folds_is_the_mean_of_them_and_only_whole_ones_are_compared(
    people, sweep_manifest, django_assert_num_queries
):
    manifest = sweep_manifest(
        parameters={"lr": {"type": "float", "low": 0, "high": 1}},
        sampler="tpe",
        trials=9,
        folds=2,
        template={"input": "digits"},
    )
    spec = manifest.spec
    sweep = Sweep.objects.create(appcode=people.ops, name="lr", spec=spec.model_dump(mode="json", by_alias=True))
    good = "Succeeded"
    told = (good, 4, good, 2), (good, 0, "Failed", None), (good, 1, "", None), (good, 5, good, 3)
    for number, (phase, value, other, another) in enumerate(told):
        sweep.trials.create(number=number, fold=1, parameters={"lr": number / 10}, phase=phase, value=value)
        sweep.trials.create(number=number, fold=2, parameters={"lr": number / 10}, phase=other, value=another)
    assert points.best_of(sweep, spec) == {"number": 0, "value": 3.0, "sd": 1.0, "parameters": {"lr": 0}}
    with django_assert_num_queries(2):
        known = points.known_points(sweep, spec)
    assert [(each.parameters["lr"], each.value, each.is_over) for each in known] == [
        (0, 3, True), (0.1, None, True), (0.2, None, False), (0.3, 4, True)
    ]  # fmt: skip


def over(cluster, phase):
    Run.objects.filter(cluster__name=cluster).update(phase=phase, gone=True, desired="ended")


def test_who_restarts_a_trial_by_hand_has_it_judged_by_the_next_run(catalogue, people, sweep_manifest):
    sweep = actions.create_sweep(sweep_manifest(goal=None), acting_user=people.bob)
    sweeps.advance(sweep.appcode_id, "lr")
    cluster = Cluster.objects.get(name="lr-0")
    # What `redeploy` leaves behind once the run that it ended is over.
    Cluster.objects.filter(pk=cluster.pk).update(next_by=people.bob)
    over("lr-0", "Stopped")
    # The end of the run wakes both the sweep and the restart, in either order.
    sweeps.advance(sweep.appcode_id, "lr")
    clusters.deploy_next(cluster.pk)
    assert trials(sweep) == [(0, "", None)]
    over("lr-0", "Succeeded")
    sweeps.advance(sweep.appcode_id, "lr")
    assert trials(sweep)[0] == (0, "Succeeded", None)


def test_what_has_ended_meanwhile_is_not_ended_early(catalogue, people, sweep_manifest):
    sweep = actions.create_sweep(sweep_manifest(stopEarly={"minSteps": 1}), acting_user=people.bob)
    sweeps.advance(sweep.appcode_id, "lr")
    trial = sweep.trials.select_related("cluster").get()
    told = {(trial.pk, trial.cluster.current_run_id): [(1, float("nan"))]}
    over("lr-0", "Succeeded")
    step.Turn(sweep.pk, {}, told).make()
    assert trials(sweep) == [(0, "", None)]


def test_all_sweeps_of_an_appcode_have_so_many_trials_at_once(catalogue, people, sweep_manifest, monkeypatch):
    monkeypatch.setattr(step, "MOST_AT_ONCE", 3)
    first, second = (
        actions.create_sweep(sweep_manifest(name, parallel=2), acting_user=people.bob) for name in ("first", "second")
    )
    for sweep in (first, second):
        sweeps.advance(sweep.appcode_id, sweep.name)
    assert [sweep.trials.count() for sweep in (first, second)] == [2, 1]
    second.refresh_from_db()
    sentence = "ops-demo has 3 trials at once, as many as it may have; others start as these end."
    assert (second.phase, second.message) == ("Running", sentence)
    Run.objects.filter(cluster__name="first-0").update(phase="Stopped", desired="ended", gone=True)
    actions.pause_sweep(first, acting_user=people.bob)
    for sweep in (first, second):
        sweeps.advance(sweep.appcode_id, sweep.name)
    second.refresh_from_db()
    assert (second.trials.count(), second.message) == (2, "")


def test_sweeps_that_are_not_over_are_limited(catalogue, people, sweep_manifest, monkeypatch):
    monkeypatch.setattr(actions, "MOST", 1)
    first = actions.create_sweep(sweep_manifest(), acting_user=people.alice)
    with pytest.raises(Invalid, match="sweeps that are not over"):
        actions.create_sweep(sweep_manifest("second"), acting_user=people.alice)
    actions.cancel_sweep(first, acting_user=people.alice)
    sweeps.advance(first.appcode_id, first.name)
    actions.create_sweep(sweep_manifest("second"), acting_user=people.alice)
