"""Benchmarks from manifest to results, with real processes."""

from __future__ import annotations

import json

import pytest

from billing.mails import Mail
from clusters.benchmarks import actions
from clusters.benchmarks import loop as benchmarks
from clusters.benchmarks import manifest as manifests
from clusters.benchmarks.manifest import BenchmarkManifest
from clusters.benchmarks.models import Benchmark
from clusters.catalog.models import Flavor
from clusters.runs.models import Cluster, Run
from clusters.runs.status.phase import TERMINAL
from portal.errors import Invalid
from portal.manifests import parse
from portal.profile.notifications import Notifications, set_notifications
from tests.api.client import api_of
from tests.clusters import conftest

pytestmark = pytest.mark.django_db(transaction=True)
ADDRESS = "/appcodes/ops-demo/benchmarks"
# Replaces the benchmark program: tasks differ in what they measure, and four tasks run out of memory.
STAND_IN = """
import json, os, sys
count = sum(len(of) for job, of in json.loads(os.environ.get("TF_CONFIG", '{"cluster": {}}'))["cluster"].items() if job != "ps")
rank = json.loads(os.environ["TF_CONFIG"])["task"] if count else {"type": "chief"}
if count == 4:
    sys.exit("ResourceExhaustedError: OOM when allocating a tensor")
workers = [{"input": 0.001, "compute": 0.02 if n == 2 else 0.01, "communication": 0.004} for n in range(count or 1)]
told = {"global_step_per_second": RATE, "examples_per_second": RATE * 128 * (count or 1), "spread": 0.1, "replicas": count or 1,
        "tensorflow": "2.21.0", "device": "CPU", "workers": workers}
if rank["type"] == "chief":
    print("benchmark", json.dumps(told))
"""


def wanted(name="scale", **spec):
    body = {"image": "python", "flavor": "small", "strategies": ["all-reduce"], "counts": [1, 3], **spec}
    return parse(BenchmarkManifest, {"metadata": {"name": name, "appcode": "ops-demo"}, "spec": body})


def until_over(loop, benchmark):
    most = 0

    def turned():
        nonlocal most
        for appcode_id, name in Benchmark.objects.filter(phase="Running").values_list("appcode", "name"):
            benchmarks.advance(appcode_id, name)
        most = max(most, Run.objects.exclude(phase__in=TERMINAL).count())
        loop.work()
        benchmark.refresh_from_db()
        return benchmark.phase != "Running"

    loop.until(turned)
    return most


def test_sizes_are_measured_one_after_another_and_compared_with_each_other_and_the_last_time(
    loop, people, monkeypatch, client
):
    set_notifications(Notifications(mail=["succeeded"]), acting_user=people.bob)
    api = api_of(people.bob)
    for name, rate in (("scale", "40"), ("scale-2", "30")):
        monkeypatch.setattr(manifests, "PROGRAM", STAND_IN.replace("RATE", rate))
        made = actions.create_benchmark(wanted(name, counts=[1, 3, 4]), acting_user=people.bob)
        assert until_over(loop, made) == 1
    assert (made.phase, made.message) == ("Succeeded", "2 of 3 measured.")
    found = api.get(f"{ADDRESS}/scale-2")[1]["status"]
    one, three, four = found["results"]
    assert (one["efficiency"], three["efficiency"]) == (1, pytest.approx(1))
    assert "25 % slower than on" in three["before"]
    assert three["before"].endswith("with python.")
    [slow] = three["outliers"]
    assert (slow["role"], slow["index"], round(slow["percent"])) == ("worker", 1, -48)
    assert slow["node"] == Run.objects.get(cluster__name="scale-2-2").tasks.get(role="worker", index=1).node != ""
    assert (four["phase"], four["efficiency"]) == ("Failed", None)
    assert "ResourceExhausted" in four["message"]
    assert {each.subject for each in Mail.objects.all()} == {"ops-demo/scale: Succeeded", "ops-demo/scale-2: Succeeded"}
    # Lists of clusters leave the benchmark's clusters out; pages show what REST returns.
    assert "scale-2-1" not in json.dumps(api.get("/appcodes/ops-demo/clusters")[1])
    client.force_login(people.victor)
    page = client.get("/benchmarks/ops-demo/scale-2").content.decode()
    assert "25 % slower than on" in page
    assert "Nodes that differ" in page
    assert "(-48 %)" in page
    assert "scale-2" in client.get("/benchmarks").content.decode()
    actions.delete_benchmark(made, acting_user=people.bob)
    assert not Cluster.objects.filter(part_of="benchmarks/scale-2", deleted_at=None).exists()
    assert client.get("/benchmarks/ops-demo/scale-2").status_code == 404


def test_a_turn_that_is_killed_is_made_again_and_who_left_starts_nothing(loop, people, monkeypatch):
    monkeypatch.setattr(manifests, "PROGRAM", STAND_IN.replace("RATE", "40"))
    made = actions.create_benchmark(wanted(), acting_user=people.bob)
    loop.until(lambda: Run.objects.filter(phase="Succeeded").exists())

    def dies(*_, **__):
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(benchmarks, "begin_next", dies)
        with pytest.raises(SystemExit):
            benchmarks.advance(made.appcode_id, made.name)
    assert made.measurements.get().phase == ""
    people.ops.memberships.filter(user=people.bob).delete()
    benchmarks.advance(made.appcode_id, made.name)
    made.refresh_from_db()
    assert made.phase == "Failed"
    assert "all-reduce, synthetic, 3 could not be started" in made.message
    assert made.measurements.get().result["examples_per_second"] == 40 * 128


def test_paused_it_measures_to_the_end_what_it_began_and_goes_on_for_who_resumes_it(loop, people, monkeypatch, client):
    monkeypatch.setattr(manifests, "PROGRAM", STAND_IN.replace("RATE", "40"))
    made = actions.create_benchmark(wanted(counts=[1, 2]), acting_user=people.bob)
    client.force_login(people.bob)
    client.post(f"/benchmarks/{made}/pause")
    assert "Paused by bob." in client.get(f"/benchmarks/{made}").content.decode()

    def measured():
        benchmarks.advance(made.appcode_id, made.name)
        loop.work()
        return made.measurements.filter(phase="Succeeded").exists()

    loop.until(measured)
    benchmarks.advance(made.appcode_id, made.name)
    assert made.measurements.count() == 1
    status, found = api_of(people.alice).post(f"{ADDRESS}/scale/resume", {})
    assert (status, found["status"]["phase"], found["status"]["message"]) == (202, "Running", "")
    assert Cluster.objects.get(name="scale-2").created_by == people.alice
    until_over(loop, made)
    assert made.message == "2 of 2 measured."
    assert api_of(people.bob).post(f"{ADDRESS}/scale/pause", {})[0] == 409


def test_what_does_not_fit_is_refused_at_the_field_that_says_so(loop, people):
    def refused(**spec):
        with pytest.raises(Invalid) as caught:
            actions.create_benchmark(wanted(**spec), acting_user=people.bob)
        return {".".join(each.path): each.message for each in caught.value.errors}

    assert "quota of ops-demo" in refused(flavor="one-gpu", counts=[1, 2, 100])["spec.counts.2"]
    assert refused(flavor="nix").keys() == {"spec.flavor"}
    assert refused(server_flavor="nix", strategies=["parameter-server"]).keys() == {"spec.serverFlavor"}
    assert refused(image="container-only").keys() == {"spec.image"}
    assert not Benchmark.objects.exists()
    assert not Cluster.objects.exists()


@pytest.mark.trains
@pytest.mark.timeout(1800)
def test_tensorflow_itself_is_measured_both_ways(loop, people, monkeypatch):
    monkeypatch.setattr(conftest, "PATIENCE", 900.0)
    Flavor.objects.create(name="tf", title="TF", cpu_milli=1000, memory_mb=1024)
    spec = {"strategies": ["all-reduce", "parameter-server"], "data": ["digits"], "counts": [2]}
    made = actions.create_benchmark(wanted(flavor="tf", steps=50, batch=32, width=64, **spec), acting_user=people.bob)
    until_over(loop, made)
    results = api_of(people.bob).get(f"{ADDRESS}/scale")[1]["status"]["results"]
    assert [(each["phase"], each["message"]) for each in results] == [("Succeeded", "")] * 2
    for each in results:
        assert each["examplesPerSecond"] > 0
        assert len(each["workers"]) == 2
        assert all(
            worker["node"] and worker["compute"] > 0 and worker["communication"] > 0 for worker in each["workers"]
        )
    in_step, apart = results
    # A synchronous global step covers the batches of both workers; an asynchronous one covers one batch.
    assert in_step["examplesPerSecond"] == pytest.approx(in_step["globalStepPerSecond"] * 64)
    assert apart["examplesPerSecond"] == pytest.approx(apart["globalStepPerSecond"] * 32)
