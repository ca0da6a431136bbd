"""One cluster reads what another one writes, on the real node agent and S3 server."""

import html
import io
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from clusters import wakeups
from clusters.cluster import actions
from clusters.runs import input_listing, quota, resync
from clusters.runs.models import Cluster, Run
from clusters.runs.queries.preview import preview
from clusters.runs.reconcile import plan_of
from datastores.actions import delete_datastore
from datastores.files import contents, versions
from datastores.models import AllowedFolder, Datastore, Share, Version
from portal.errors import Conflict, Invalid
from portal.models import Event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def results(people, s3, bucket):
    spec = {"server": s3.url, "bucket": bucket, "prefix": "", "access_key": s3.access_key, "region": "us-east-1"}
    return Datastore.objects.create(appcode=people.ops, name="results", kind="s3", spec=spec, secret=s3.secret_key)


def current(cluster):
    return Run.objects.get(current_of=cluster)


def why(call):
    with pytest.raises(Invalid) as caught:
        call()
    return {".".join(each.path): each.message for each in caught.value.errors}


def test_a_run_waits_for_what_it_reads_and_reads_just_that(loop, people, manifest, results):
    waits = "until [ -e /tmp/go ]; do sleep 0.1; done; mkdir -p /elearn/output/train; echo $PORTAL_RUN > /elearn/output/train/n"
    prepare = actions.create_cluster(manifest("prepare", waits, output="results"), acting_user=people.bob)
    first = loop.until_phase(prepare, "Running")
    reads = manifest(
        "train", "cat /elearn/input/n; sleep 0.2", flavor="one-gpu", input={"from": "prepare", "path": "train"}
    )
    assert preview(reads, acting_user=people.bob).sentence.startswith(
        "It reads the output of run prepare/1 and starts when"
    )
    train = actions.create_cluster(reads, acting_user=people.bob)
    run = current(train)
    assert (run.phase, run.reason) == ("Queued", "WaitingForInput")
    assert run.spec["input"] == {"from": "prepare/1", "path": "train"}
    assert train.spec["input"] == {"from": "prepare", "path": "train"}
    people.ops.gpu_quota = 1
    people.ops.save()
    other = actions.create_cluster(manifest("other", "true", flavor="one-gpu"), acting_user=people.bob)
    assert loop.until_phase(other, "Succeeded", "Failed").phase == "Succeeded", "what waits for input holds nobody up"
    assert current(train).phase == "Queued"
    with pytest.raises(Conflict, match="train"):
        delete_datastore(results, acting_user=people.bob)
    loop.touch(first, "/tmp/go")
    run = loop.until_phase(train, "Succeeded", "Failed")
    assert (run.phase, log_of(run)) == ("Succeeded", "1\n")

    # A failed run starts no run of those that read the last successful one.
    changed = manifest("prepare", "exit 1", output="results", retries=0)
    actions.change_cluster(prepare, changed, acting_user=people.bob)
    actions.deploy(prepare, acting_user=people.bob)
    loop.until_phase(prepare, "Failed")
    actions.deploy(train, acting_user=people.bob)
    assert loop.until_phase(train, "Succeeded", "Failed").spec["input"]["from"] == "prepare/1"

    page = Client()
    page.force_login(people.bob)
    text = page.get("/clusters/ops-demo/prepare?run=1").content.decode()
    assert "/clusters/ops-demo/train?run=1" in text
    assert "/clusters/ops-demo/train?run=2" in text
    text = page.get("/clusters/ops-demo/train").content.decode()
    assert "/clusters/ops-demo/prepare?run=1" in text
    assert "folder=prepare/1/train" in text


def log_of(run, role="master"):
    from clusters.clouds.registry import cloud, run_ref

    return cloud("local").log(run_ref(run), role, 0, attempt=0).data.decode()


def test_what_never_will_be_written_is_not_waited_for(loop, people, manifest, results):
    broken = manifest("prepare", "until [ -e /tmp/go ]; do sleep 0.1; done; exit 1", output="results", retries=0)
    prepare = actions.create_cluster(broken, acting_user=people.bob)
    first = loop.until_phase(prepare, "Running")
    train = actions.create_cluster(manifest("train", input={"from": "prepare"}), acting_user=people.bob)
    assert not quota.admit(current(train).pk)
    loop.touch(first, "/tmp/go")
    run = loop.until_phase(train, "Failed", "Succeeded")
    assert (run.phase, run.reason, run.message) == (
        "Failed", "Refused", "Run prepare/1, which is to be read, has failed.",
    )  # fmt: skip
    assert not run.tasks.exists()

    actions.create_cluster(manifest("keeps-nothing", "true"), acting_user=people.bob)
    actions.create_cluster(manifest("serves", "sleep 600", mode="service", output="results"), acting_user=people.bob)
    for name, sentence in (
        ("prepare", "No run of prepare has succeeded, and none is under way; deploy it first."),
        ("prepare/1", "Run prepare/1, which is to be read, has failed."),
        ("prepare/7", "ops-demo has no run prepare/7."),
        ("nobody", "ops-demo has no cluster “nobody”."),
        ("keeps-nothing", "Run keeps-nothing/1 has no output datastore, so nothing that it writes is kept."),
        ("serves", "Run serves/1 is a service, which goes on until it is stopped: its output is never complete."),
    ):
        refused = why(lambda name=name: actions.deploy(changed(train, manifest, name), acting_user=people.bob))
        assert refused == {"spec.input.from": sentence}
    assert why(
        lambda: preview(manifest("x", appcode="flight-demo", input={"from": "prepare"}), acting_user=people.root)
    ) == {"spec.input.from": "flight-demo has no cluster “prepare”."}


def test_the_tasks_that_compute_share_the_files(loop, people, manifest, results, s3, tmp_path):
    for number in range(5):
        s3.client.put_object(Bucket=results.spec["bucket"], Key=f"in/{number}", Body=b"1")
    data = {"datastore": "results", "path": "in", "mode": "shard"}
    for workers, ps, expected in (
        (1, 0, {"master": "0 2 4.", "worker": "1 3."}),
        (1, 1, {"master": "none.", "worker": "0 1 2 3 4."}),
    ):
        reads = manifest(
            f"train-{ps}", "set -- $(ls /elearn/input); echo ${*:-none}.; sleep 600", workers=workers, ps=ps, input=data
        )
        cluster = actions.create_cluster(reads, acting_user=people.bob)
        run = loop.until_phase(cluster, "Running", "Failed")
        for role, said in expected.items():
            loop.until_said(run, f"{said}\n", role)
        actions.disable(cluster, acting_user=people.bob)
        run = loop.until_phase(cluster, "Stopped")
        assert {role: log_of(run, role) for role in expected} == {role: f"{said}\n" for role, said in expected.items()}
    AllowedFolder.objects.create(path=str(tmp_path))
    Datastore.objects.create(appcode=people.ops, name="folder", kind="local", spec={"path": str(tmp_path)})
    for said, field, done in (
        ({"mode": "cache"}, "mode", "cached"),
        ({"mode": "stream"}, "mode", "streamed"),
    ):
        refused = why(
            lambda said=said: preview(manifest(input={"datastore": "folder", **said}), acting_user=people.bob)
        )
        assert refused == {f"spec.input.{field}": f"“folder” is mounted as it is; only what lies in S3 is {done}."}


def test_of_what_is_mounted_each_task_sees_links_to_its_files(loop, people, manifest, tmp_path):
    folder = tmp_path / "digits"
    for number in range(6):
        (folder / "in" / f"deep {number % 2}").mkdir(parents=True, exist_ok=True)
        (folder / "in" / f"deep {number % 2}" / f"{number}\nä").write_text(f"file {number}\n")
    (folder / "in" / "elsewhere").symlink_to("/etc/passwd")
    (folder / ".portal-trash").mkdir()
    (folder / ".portal-trash" / "removed").write_text("removed\n")
    for path in [tmp_path, *tmp_path.parents]:
        path.chmod(path.stat().st_mode | 0o055)
    AllowedFolder.objects.create(path=str(folder))
    Datastore.objects.create(appcode=people.ops, name="folder", kind="local", spec={"path": str(folder)})
    says = "cd /elearn/input; find -L . -type f -name '*ä' -exec cat {} + | sort; ls . train validation; sleep 600"
    for name, said, expected in (
        (
            "whole",
            {"path": "in", "folds": 3, "fold": 1},
            {"master": {"file 0", "file 1", "file 2", "file 3", "file 4", "file 5"}},
        ),
        (
            "parts",
            {"path": "in", "mode": "shard"},
            {"master": {"file 0", "file 4", "file 3"}, "worker": {"file 2", "file 1", "file 5"}},
        ),
        (
            "all",
            {"mode": "shard"},
            {"master": {"file 0", "file 4", "file 3"}, "worker": {"file 2", "file 1", "file 5"}},
        ),
    ):
        data = {"datastore": "folder", **said}
        cluster = actions.create_cluster(
            manifest(name, says, workers=len(expected) - 1, input=data), acting_user=people.bob
        )
        run = loop.until_phase(cluster, "Running", "Failed")
        for role in expected:
            loop.until_said(run, "validation", role)
        told = {role: set(log_of(run, role).splitlines()) for role in expected}
        assert {role: {line for line in told[role] if line.startswith("file ")} for role in told} == expected
        assert not any({"removed", "elsewhere"} & lines for lines in told.values())
        actions.disable(cluster, acting_user=people.bob)
        loop.until_phase(cluster, "Stopped")


def test_a_run_notes_what_it_has_read_and_tells_when_that_is_other_than_before(loop, people, manifest, results, s3):
    def put(name, text):
        s3.client.put_object(Bucket=results.spec["bucket"], Key=f"in/{name}", Body=text.encode())

    def deployed():
        if current(cluster).is_terminal:
            actions.deploy(cluster, acting_user=people.bob)
        return loop.until_phase(cluster, "Succeeded", "Failed")

    put("a", "123")
    put("deep/b ü", "45")
    data = {"datastore": "results", "path": "in"}
    cluster = actions.create_cluster(manifest("train", input=data, output="results"), acting_user=people.bob)
    first = deployed().read
    assert (first["files"], first["bytes"], first["changed_since"]) == (2, 5, None)
    assert deployed().read == first
    put("c", "6")
    third = deployed().read
    assert (third["files"], third["bytes"], third["changed_since"]) == (3, 6, 2)
    event = Event.objects.get(verb="run.input_changed")
    assert event.message == (
        "The input has changed since run 2: it had 2 files with 5 bytes, now 3 files with 6 bytes."
    )
    assert deployed().read["changed_since"] is None
    page = Client()
    page.force_login(people.bob)
    text = page.get("/clusters/ops-demo/train?run=3").content.decode()
    assert "3 files, 6 B when it was read; changed since" in text
    assert 'href="/clusters/ops-demo/train?run=2"' in text


def test_a_run_that_reads_a_version_reads_that_or_fails(loop, people, manifest, results, s3):
    def put(name, text):
        s3.client.put_object(Bucket=results.spec["bucket"], Key=name, Body=text.encode())

    put("in/a", "123")
    put("in/deep/b", "45")
    frozen = versions.freeze(results, "2026-11-22", "in", acting_user=people.bob)
    assert (frozen.files, frozen.bytes) == (2, 5)
    reads = manifest(
        "train", "ls /elearn/input", input={"datastore": "results", "version": "2026-11-22"}, output="results"
    )
    cluster = actions.create_cluster(reads, acting_user=people.bob)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert (run.phase, log_of(run), run.read["digest"]) == ("Succeeded", "a\ndeep\n", frozen.digest)
    with pytest.raises(Conflict, match="in/c belongs to the version results@2026-11-22"):
        contents.store_file(results, "in/c", io.BytesIO(b"1"), 1, acting_user=people.bob)
    contents.store_file(results, "in2", io.BytesIO(b"1"), 1, acting_user=people.bob)
    # Someone with a key of the store can still write there.
    put("in/c", "6")
    run = actions.deploy(cluster, acting_user=people.bob)
    # A version never changes, so runs share one copy unless the manifest says otherwise.
    assert [(each.cached, each.or_copied) for each in plan_of(run).mounts if each.is_input] == [(True, True)]
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert (run.phase, run.reason) == ("Failed", "Refused")
    assert (
        run.message == "The input is not what results@2026-11-22 was: files have been added, removed or written since."
    )
    assert not run.tasks.filter(started_at__isnull=False).exists()
    # Runs can't write there either.
    writes = manifest("writes", output="results", outputPath="in/{run}")
    assert why(lambda: actions.create_cluster(writes, acting_user=people.bob)) == {
        "spec.outputPath": "results@2026-11-22 is kept as it is; choose another output folder than in/1."
    }
    assert not Cluster.objects.filter(name="writes").exists()
    refused = why(lambda: preview(manifest(input={"datastore": "results", "version": "7"}), acting_user=people.bob))
    assert refused == {"spec.input.version": "“results” has no version 7."}


def test_the_page_of_a_run_leads_to_what_others_share(catalogue, people, manifest, results):
    Share.objects.create(datastore=results)
    reads = manifest("train", appcode="flight-demo", input={"datastore": "ops-demo/results", "path": "in"})
    actions.create_cluster(reads, acting_user=people.mallory)
    page = Client()
    page.force_login(people.mallory)
    answer = page.get("/clusters/flight-demo/train")
    assert (answer.status_code, 'href="/datastores/ops-demo/results?folder=in"' in answer.content.decode()) == (
        200,
        True,
    )


def changed(cluster, manifest, source):
    Cluster.objects.filter(pk=cluster.pk).update(
        spec=manifest("train", input={"from": source}).spec.model_dump(mode="json", by_alias=True)
    )
    return cluster


def test_what_a_run_wrote_is_noted_as_the_next_one_reads_it(loop, people, manifest, results, s3, monkeypatch):
    def gone(cluster):
        loop.until_phase(cluster, "Succeeded", "Failed")
        loop.until(lambda: current(cluster).gone)
        input_listing.note_output(current(cluster).pk)
        return current(cluster)

    writes = "mkdir -p /elearn/output/deep; echo 12345 > '/elearn/output/deep/b ü'; echo 1 > /elearn/output/a"
    prepare = actions.create_cluster(manifest("prepare", writes, output="results"), acting_user=people.bob)
    first = gone(prepare).wrote
    assert (first["files"], first["bytes"], first["complete"]) == (2, 8, True)
    train = actions.create_cluster(manifest("train", input={"from": "prepare"}), acting_user=people.bob)
    run = gone(train)
    assert (run.read["digest"], run.wrote) == (first["digest"], {}), "it has no output"
    page = Client()
    page.force_login(people.bob)
    assert "2 files, 8 B when it had ended" in page.get("/clusters/ops-demo/prepare").content.decode()
    status = page.get("/api/v1/appcodes/ops-demo/clusters/prepare").json()["status"]
    assert status["wrote"] == first

    # The output has been changed since.
    s3.client.put_object(Bucket=results.spec["bucket"], Key="prepare/1/a", Body=b"2")
    actions.deploy(train, acting_user=people.bob)
    assert gone(train).data_warning == "What run prepare/1 wrote has been changed since it ended."

    # A lost wake-up, and an output with too many files.
    actions.deploy(prepare, acting_user=people.bob)
    loop.until_phase(prepare, "Succeeded")
    loop.until(lambda: current(prepare).gone)
    assert current(prepare).wrote is None
    woken = []
    monkeypatch.setattr(wakeups, "wake_output", woken.append)
    resync.sweep()
    assert woken == []
    Run.objects.filter(pk=current(prepare).pk).update(phase_since=timezone.now() - resync.LISTING_LOST * 2)
    resync.sweep()
    assert woken == [current(prepare).pk]
    monkeypatch.setattr(input_listing, "MOST_LOOKED_AT", 1)
    input_listing.note_output(current(prepare).pk)
    wrote = current(prepare).wrote
    assert (wrote["digest"], wrote["files"], wrote["complete"]) == (None, 1, False)
    assert "more than 1 file" in page.get("/clusters/ops-demo/prepare").content.decode()


def test_outputs_of_an_appcode_are_listed_one_after_the_other(people, results, monkeypatch):
    clusters = [Cluster.objects.create(appcode=people.ops, name=name, spec={}) for name in ("1", "2")]
    facts = {"spec": {"output": "results", "outputPath": "{name}"}, "resources": {}, "gpus": 0, "wrote": None}
    runs = [Run.objects.create(cluster=cluster, number=1, **facts) for cluster in clusters]
    whole, asked = input_listing._listed, []

    def slowly(store, folder):
        if not asked:
            asked.append(folder)
            # While the server is slow, another worker is woken for the second output.
            with ThreadPoolExecutor() as pool:
                pool.submit(lambda: (input_listing.note_output(runs[1].pk), connection.close())).result()
            assert asked == ["1"]
        else:
            asked.append(folder)
        return whole(store, folder)

    monkeypatch.setattr(input_listing, "_listed", slowly)
    input_listing.note_output(runs[0].pk)
    assert asked == ["1", "2"]
    assert not Run.objects.filter(wrote__isnull=True).exists()


def test_the_form_of_another_run_says_whether_its_input_has_changed(loop, people, manifest, results, s3):
    def put(name, text):
        s3.client.put_object(Bucket=results.spec["bucket"], Key=f"in/{name}", Body=text.encode())

    page = Client()
    page.force_login(people.bob)

    def said():
        text = page.get("/clusters/ops-demo/train/change/input").content.decode()
        return " ".join(re.sub("<[^>]*>", "", html.unescape(text)).split())

    def asked():
        return page.get("/api/v1/appcodes/ops-demo/clusters/train/input").json()

    put("a", "123")
    data = {"datastore": "results", "path": "in"}
    train = actions.create_cluster(manifest("train", input=data), acting_user=people.bob)
    assert (said(), asked()["run"]) == ("", None)
    loop.until_phase(train, "Succeeded")
    assert said() == "The input is what run 1 read: 1 file, 3 B."
    assert (asked()["changed"], asked()["run"]) == (False, 1)
    thaw = versions.freeze(results, "first", "in", acting_user=people.bob)
    versions.thaw(thaw, acting_user=people.bob)
    put("b", "45")
    assert said() == (
        "The input has changed since run 1. It read 1 file, 3 B; now there are 2 files, 5 B. Freeze it as a version and name "
        "that, for later runs to read the same."
    )
    document = asked()
    assert (document["changed"], document["was"]["bytes"], document["now"]["bytes"]) == (True, 3, 5)
    # The last run's input is a version now, whatever the folder contains today.
    train_run = current(train)
    Version.objects.create(
        datastore=results, name="first", folder="in", digest=train_run.read["digest"], files=1, bytes=3
    )
    assert asked()["versions"] == ["first"]
    assert "Run 1 read the version first" in said()
    assert page.get("/clusters/ops-demo/train/change").content.decode().count("/change/input") == 1
    results.spec["server"] = "http://127.0.0.1:9"
    results.save()
    assert said().startswith("Whether the input has changed cannot be told: ")
