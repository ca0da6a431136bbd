"""The cluster page and its tabs: access, content by phase, actions with confirmation, and logs by position."""

from __future__ import annotations

import json
import re

import pytest
from django.utils import timezone

TABS = [
    "",
    "/logs",
    "/metrics",
    "/usage",
    "/runs",
    "/events",
    "/manifest",
    "/head",
    "/progress",
    "/metrics/charts",
    "/metrics/media",
    "/export",
]
ACTS = ["deploy", "cancel", "disable", "delete"]


@pytest.mark.parametrize("tab", TABS)
def test_a_viewer_reads_and_an_outsider_finds_nothing(tab, make_cluster, people, as_person):
    make_cluster("demo", phase="Running", ps=1, workers=2)
    address = f"/clusters/ops-demo/demo{tab}"
    assert as_person(people.victor).get(address).status_code == 200
    absent = as_person(people.mallory).get(f"/clusters/ops-demo/no-such{tab}")
    hidden = as_person(people.mallory).get(address)
    assert (absent.status_code, hidden.status_code) == (404, 404)
    mask = re.compile(rb"no-such|demo|[0-9a-f]{8}|nonce-[^']*|csrf[^>]*>|\"X-CSRFToken\": \"[^\"]*\"")
    assert mask.sub(b"", absent.content) == mask.sub(b"", hidden.content)


def test_nobody_reads_without_signing_in(make_cluster, client):
    make_cluster("demo")
    for tab in TABS:
        answer = client.get(f"/clusters/ops-demo/demo{tab}")
        assert answer.status_code == 302
        assert "/accounts/login" in answer["Location"]


@pytest.mark.parametrize("verb", ACTS)
def test_a_viewer_may_not_act_and_an_outsider_finds_nothing(verb, make_cluster, people, as_person):
    cluster = make_cluster("demo", phase="Running")
    address = f"/clusters/ops-demo/demo/{verb}"
    assert as_person(people.victor).post(address, {"confirmed": "yes"}).status_code == 403
    assert as_person(people.mallory).post(address, {"confirmed": "yes"}).status_code == 404
    cluster.refresh_from_db()
    assert (cluster.deleted_at, cluster.run_count, cluster.current_run.desired) == (None, 1, "running")


@pytest.mark.parametrize(
    ("verb", "lost"),
    [("disable", "nothing that they wrote is kept"), ("delete", "logs are lost"), ("cancel", "place in the queue")],
)
def test_what_loses_something_asks_first(verb, lost, make_cluster, people, as_person):
    cluster = make_cluster("demo", phase="Queued" if verb == "cancel" else "Running")
    client = as_person(people.bob)
    for answer in (client.get(f"/clusters/ops-demo/demo/{verb}"), client.post(f"/clusters/ops-demo/demo/{verb}")):
        assert answer.status_code == 200
        assert lost in answer.content.decode()
    cluster.refresh_from_db()
    assert (cluster.deleted_at, cluster.current_run.desired) == (None, "running")
    assert client.post(f"/clusters/ops-demo/demo/{verb}", {"confirmed": "yes"}).status_code == 302
    cluster.refresh_from_db()
    assert cluster.current_run.desired == "ended"


def test_redeploy_makes_the_next_run_and_says_why_when_it_cannot(make_cluster, people, as_person):
    cluster = make_cluster("demo", phase="Failed")
    client = as_person(people.bob)
    client.post("/clusters/ops-demo/demo/deploy")
    cluster.refresh_from_db()
    assert cluster.run_count == 2
    page = client.post("/clusters/ops-demo/demo/deploy", follow=True).content.decode()
    assert "has not ended yet" in page


def test_of_a_failed_run_changing_it_is_the_first_choice_and_the_same_again_the_second(make_cluster, people, as_person):
    for name, phase in (("bad", "Failed"), ("good", "Succeeded")):
        make_cluster(name, phase=phase)

    def buttons(name: str) -> list[tuple[str, str]]:
        head = as_person(people.bob).get(f"/clusters/ops-demo/{name}/head").content.decode().partition("<details")[0]
        return re.findall(r'<(?:a|button) class="(btn[^"]*)"[^>]*>([^<]+)<', head)

    assert buttons("bad") == [("btn btn-primary", "Re-Deploy with changes…"), ("btn", "Re-Deploy")]
    assert buttons("good") == [("btn btn-primary", "Re-Deploy")]
    page = as_person(people.victor).get("/clusters/ops-demo/bad/head").content.decode()
    assert "with changes" not in page


@pytest.fixture
def tasks_of():
    from clusters.runs.models import Task

    def make(cluster, *rows):
        for n, (role, index, attempt, phase, facts) in enumerate(rows):
            Task.objects.create(
                run=cluster.current_run,
                role=role,
                index=index,
                attempt=attempt,
                uid=f"{cluster.pk}-{n}",
                phase=phase,
                **facts,
            )

    return make


def test_packages_that_cannot_be_installed_are_a_sentence_and_the_installers_words_are_folded(
    make_cluster, people, as_person, tasks_of
):
    said = "Package absent>=2 was not found. Correct the requirements.\nERROR: No matching <distribution>"
    cluster = make_cluster("demo", phase="Failed", run={"reason": "EnvironmentNotMade", "message": said})
    cluster.current_run.spec["requirements"] = ["absent>=2"]
    cluster.current_run.save()
    tasks_of(cluster, ("master", 0, 0, "Failed", {"reason": "EnvironmentNotMade", "message": said}))
    page = as_person(people.bob).get("/clusters/ops-demo/demo").content.decode()
    assert "Package absent&gt;=2 was not found. Correct the requirements.</p>" in page
    folded = page.split('id="installer-words"')[1].split("</details>")[0]
    assert "ERROR: No matching &lt;distribution&gt;" in folded
    assert "/clusters/ops-demo/demo/change#id_requirements" in page
    assert "It wrote nothing" not in page


def test_while_packages_are_installed_the_run_no_longer_counts_as_queued(make_cluster, people, as_person, tasks_of):
    """On this machine that happens before its tasks get their GPUs."""
    now = timezone.now()
    cluster = make_cluster("demo", phase="Starting")
    run = cluster.current_run
    run.whole_at, run.started_at = now, None
    run.save()
    tasks_of(cluster, ("master", 0, 0, "Pending", {"reason": "MakingEnvironment", "node": "here"}))
    page = as_person(people.bob).get("/clusters/ops-demo/demo").content.decode()
    (step,) = re.findall(r'<li class="is-now">.*?</li>', page, re.DOTALL)
    assert "Starting" in step


def test_the_overview_shows_every_task_with_its_newest_attempt(make_cluster, people, as_person, tasks_of):
    cluster = make_cluster("demo", phase="Failed", workers=2, run={"message": "worker-1 failed with exit code 3."})
    tasks_of(
        cluster,
        ("master", 0, 0, "Failed", {"reason": "Stopped", "exit_code": 143, "node": "here", "gpus": ["0"]}),
        ("worker", 1, 0, "Failed", {"reason": "Error", "exit_code": 1, "log_tail": "first attempt"}),
        ("worker", 1, 1, "Failed", {"reason": "Error", "exit_code": 3, "log_tail": "ValueError: <b>bad</b>"}),
    )
    page = as_person(people.alice).get("/clusters/ops-demo/demo").content.decode()
    assert "worker-1 ended with exit code 3" in page
    assert "ValueError: &lt;b&gt;bad&lt;/b&gt;" in page
    assert "first attempt" not in page
    assert "Pending" in page.split("worker-0")[1].split("</tr>")[0]
    master = page.split("master-0")[1].split("</tr>")[0]
    assert "Stopped" in master
    assert "Failed" not in master


def test_a_hundred_workers_have_a_strip_of_cells(make_cluster, people, as_person):
    make_cluster("demo", phase="Running", workers=100)
    page = as_person(people.alice).get("/clusters/ops-demo/demo").content.decode()
    assert page.count('class="cell cell-pending" href=') == 101


def test_the_first_gpu_of_a_machine_does_not_read_as_none(make_cluster, people, as_person):
    from clusters.runs.models import Task

    run = make_cluster("demo", phase="Running").current_run
    Task.objects.create(run=run, role="master", index=0, uid="a", phase="Running", gpus=["0"], gpu_model="simulated")
    page = as_person(people.alice).get("/clusters/ops-demo/demo").content.decode()
    assert "<span>number 0 <small>simulated</small></span>" in page


def test_a_thousand_workers_do_not_fill_the_page(make_cluster, people, as_person, django_assert_max_num_queries):
    from clusters.runs.models import Task

    cluster = make_cluster("demo", phase="Running", workers=1000)
    run, bad = cluster.current_run, {7: "Failed", 8: "Pending"}
    told = [("master", 0), *(("worker", index) for index in range(1000))]
    Task.objects.bulk_create(
        Task(
            run=run, role=role, index=index, uid=f"{role}-{index}", node="here", log_tail="x" * 2000,
            phase=bad.get(index, "Running") if role == "worker" else "Running", attempt=int(index == 500),
        )
        for role, index in told
    )  # fmt: skip
    client = as_person(people.alice)
    address = "/clusters/ops-demo/demo"

    def names(query: str) -> list[str]:
        with django_assert_max_num_queries(12):
            page = client.get(address + query).content.decode()
        assert page.count('class="cell') == 1001 + 5, "the strip, and its legend"
        return re.findall(r'<td class="lead">([a-z]+-\d+)', page)

    # What needs a look comes first, whatever its place.
    assert names("")[:3] == ["worker-7", "worker-8", "worker-500"]
    assert len(names("")) == 10
    assert names("?tasks=Failed") == ["worker-7"]
    assert names("?tasks=all")[:2] == ["master-0", "worker-0"]
    assert names("?tasks=all&cursor=1000") == ["worker-999"]
    assert names("?named=99&tasks=Running")[:2] == ["worker-99", "worker-199"]
    assert "cursor=50" in client.get(f"{address}?tasks=all").content.decode()
    assert names("?tasks=nonsense&cursor=x") == names("")
    # The live part answers the same, and the other tabs take as few queries.
    assert "worker-7" in client.get(f"{address}/progress?tasks=Failed").content.decode()
    for tab in ("/logs", "/metrics"):
        with django_assert_max_num_queries(12):
            assert client.get(address + tab).status_code == 200


def test_an_earlier_run_is_shown_as_it_was(make_cluster, people, as_person):
    cluster = make_cluster("demo", phase="Failed", command="echo first")
    client = as_person(people.alice)
    client.post("/clusters/ops-demo/demo/deploy")
    cluster.refresh_from_db()
    cluster.current_run.spec["command"] = "echo second"
    cluster.current_run.save()
    page = client.get("/clusters/ops-demo/demo?run=1").content.decode()
    assert "echo first" in page
    assert "You are looking at run 1" in page
    assert client.get("/clusters/ops-demo/demo?run=3").status_code == 404
    assert client.get("/clusters/ops-demo/demo?run=x").status_code == 404
    compared = client.get("/appcodes/ops-demo/compare?runs=demo/1,demo/2").content.decode()
    assert "echo first" in compared
    assert "echo second" in compared
    assert "ops-demo has no run demo/9." in client.get("/appcodes/ops-demo/compare?runs=demo/9").content.decode()
    assert "is no run" in client.get("/appcodes/ops-demo/compare?runs=demo/1,x").content.decode()

    # Every other line of b.py is one of few kinds; comparing such files takes a minute or more.
    few = [[f"same {n % 60}" if n % 2 else f"{run} {n}" for n in range(5000)] for run in (1, 2)]
    for run, lines in zip(cluster.runs.order_by("number"), few, strict=True):
        files = {"a.py": "\n".join([*("x" * 3000), run.spec["command"], *("y" * 3000)]), "b.py": "\n".join(lines)}
        run.spec["code"] = {"files": files}
        run.save()
    compared = client.get("/appcodes/ops-demo/compare?runs=demo/1,demo/2").content.decode()
    assert '<span class="plus">+ echo second</span>' in compared
    assert compared.count('<span class="same">  y</span>') == 2
    assert compared.count("It differs, and is too long to be compared here.") == 1


def test_events_are_those_of_this_cluster_alone(make_cluster, people, as_person):
    client = as_person(people.alice)
    make_cluster("demo", by=people.bob)
    client.post("/clusters/ops-demo/demo/delete", {"confirmed": "yes"})
    make_cluster("demo")
    page = client.get("/clusters/ops-demo/demo/events").content.decode()
    assert page.count("cluster.created") == 1
    assert "cluster.deleted" not in page


def test_the_live_parts_answer_304_while_nothing_changes(make_cluster, people, as_person):
    make_cluster("demo", phase="Succeeded")
    client = as_person(people.alice)
    for part in ("head", "progress"):
        address = f"/clusters/ops-demo/demo/{part}"
        first = client.get(address)
        again = client.get(address, headers={"If-None-Match": first["ETag"]})
        assert again.status_code == 304
        # Without a stored response, a browser can't send a conditional request.
        assert {first["Cache-Control"], again["Cache-Control"]} == {"private, no-cache"}


def test_no_run_no_problem(make_cluster, people, as_person):
    from clusters.runs.models import Cluster

    cluster = make_cluster("demo")
    Cluster.objects.filter(pk=cluster.pk).update(current_run=None)
    cluster.runs.all().delete()
    client = as_person(people.alice)
    for tab in TABS:
        assert client.get(f"/clusters/ops-demo/demo{tab}").status_code == 200
    assert client.get("/").status_code == 200


class TestLogs:
    """Against the real node agent, which keeps logs as files."""

    @pytest.fixture
    def log(self, node_agent, make_cluster, people, as_person, tasks_of, monkeypatch):
        """log(position, data) → the piece of worker-0's log after that position, as the page gets it."""
        from clusters.clouds import registry
        from clusters.clouds.drivers import marks
        from clusters.clouds.drivers.lines import Lines, Wanted

        cluster = make_cluster("demo", phase="Running", workers=1)
        tasks_of(cluster, ("worker", 0, 0, "Running", {}))
        content = {0: b"", 1: b""}

        class Written:
            def log(self, run, role, index, *, attempt, offset, limit, tail, line, since, **_):
                data = content[attempt] if role == "worker" else b""
                found = marks.Marker().add(data, 1_000_000)
                lines = Lines(
                    len(data), len(found) // marks.SIZE, lambda at, n: data[at : at + n],
                    lambda at, n: found[at * marks.SIZE : (at + n) * marks.SIZE],
                )  # fmt: skip
                return lines.piece(Wanted(offset, limit, tail, since, line), complete=True)

        monkeypatch.setattr(registry, "cloud_of", lambda run: Written())

        def ask(position, data=None, attempt=0):
            if data is not None:
                content[attempt] = data
            body = json.dumps({"worker-0": position})
            answer = as_person(people.victor).post(
                "/clusters/ops-demo/demo/logs/read", body, content_type="application/json"
            )
            assert answer.status_code == 200
            pieces = answer.json()["pieces"]
            return pieces[0] if pieces else None

        ask.cluster, ask.tasks_of = cluster, tasks_of
        return ask

    def test_it_starts_with_whole_lines_of_the_end(self, log):
        lines = "".join(f"line {n}\n" for n in range(60_000)).encode()
        piece = log(None, lines)
        assert piece["text"].startswith("line ")
        assert piece["text"].endswith("line 59999\n")
        assert piece["offset"] == len(lines)
        assert piece["text"].startswith(f"line {piece['line']}\n")
        assert piece["times"] == [[0, 1_000_000]]
        # Earlier lines are requested by line number and come in pieces.
        earlier = log({"attempt": 0, "low": 0, "high": piece["line"]})
        assert lines.decode().endswith(earlier["text"] + piece["text"])
        assert earlier["text"].startswith(f"line {earlier['line']}\n")
        around = log({"attempt": 0, "low": 0, "high": earlier["line"], "at": 5000})
        assert "\nline 5000\n" in around["text"]
        assert around["text"].startswith(f"line {around['line']}\n")
        between = log({"attempt": 0, "low": 5, "high": 9})
        assert between["text"] == "line 5\nline 6\nline 7\nline 8\n"
        assert log({"attempt": 0, "low": 9, "high": 9})["text"] == ""

    def test_lines_further_up_may_be_one_long_line(self, log):
        data = b"x" * 1_000_000 + b"\nend\n"
        assert log(None, data)["text"] == "end\n"
        earlier = log({"attempt": 0, "low": 0, "high": 1})
        assert (earlier["text"], earlier["line"]) == ("x" * 262_143 + "\n", 0)

    def test_a_search_looks_at_the_whole_log(self, log, as_person, people):
        """The search covers lines that no browser has received. Hits have line numbers, and all hits are counted."""
        lines = [f"line {n} of a log" + (" has FAILED" if n % 1000 == 7 else "") for n in range(500_000)]
        lines[400_123] = "ValueError: no data"
        # TensorFlow prints it on every machine without a GPU.
        lines[399_000] += " E0000 cuda_platform.cc:52] failed call to cuInit: UNKNOWN ERROR (303)"
        log(None, "\n".join(lines).encode())

        def found(query):
            answer = as_person(people.victor).get(f"/clusters/ops-demo/demo/logs/search?task=worker-0&{query}").json()
            assert answer["error"] == ""
            [task] = answer["tasks"]
            assert (task["lines"], task["complete"]) == (400_124 if "errors" in query else 500_000, True)
            return task

        failed = found("q=has failed")
        assert failed["total"] == 500
        assert [hit[0] for hit in failed["hits"]] == list(range(7, 500_000, 1000))
        assert failed["hits"][3] == [3007, 1_000_000, "line 3007 of a log has FAILED"]
        every = found("q=log")
        assert (every["total"], len(every["hits"])) == (499_999, 2000)
        assert found("q=line 499999 of a log")["hits"][0][0] == 499_999
        assert found("q=nowhere")["hits"] == []
        assert found("errors=1")["hits"] == [[400_123, 1_000_000, "ValueError: no data"]]

    def test_what_comes_later_comes_once(self, log):
        first = log(None, b"one\ntw")
        assert log({"attempt": 0, "offset": first["offset"]}) is None
        second = log({"attempt": 0, "offset": first["offset"]}, b"one\ntwo\n")
        assert (second["text"], second["offset"]) == ("o\n", 8)

    def test_a_character_that_is_cut_waits_for_its_other_half(self):
        from clusters.clouds.drivers.base import LogChunk
        from clusters.cluster.pages.logs import whole_characters

        for text in ("aé", "a火", "a😀", "abc"):
            data = text.encode()
            for cut in range(1, len(data) + 1):
                chunk = whole_characters(LogChunk(data[:cut], cut, False))
                assert text.startswith(chunk.data.decode())
                assert chunk.offset == len(chunk.data)

    def test_one_megabyte_on_one_line_arrives_in_pieces(self, log):
        data = b"x" * 1_000_000 + b"\nend\n"
        piece, got = log({"attempt": 0, "offset": 0}, data), 0
        while piece:
            got += len(piece["text"])
            assert len(piece["text"]) <= 262_144
            piece = log({"attempt": 0, "offset": piece["offset"]})
        assert got == len(data)

    def test_bytes_that_are_no_text_are_shown_as_such(self, log):
        assert log(None, b"\xff\xfe ok \x00\n")["text"] == "\ufffd\ufffd ok \x00\n"

    def test_the_next_attempt_follows(self, log):
        end = log(None, b"first\n")
        log.tasks_of(log.cluster, *[("worker", 0, 1, "Running", {"reason": "x"})][:0])
        from clusters.runs.models import Task

        Task.objects.create(
            run=log.cluster.current_run, role="worker", index=0, attempt=1, uid="second", phase="Running"
        )
        switch = log({"attempt": 0, "offset": end["offset"]}, b"second\n", attempt=1)
        assert (switch["attempt"], switch["offset"], switch["text"]) == (1, 0, "")
        assert log({"attempt": 1, "offset": 0})["text"] == "second\n"

    @pytest.mark.parametrize(
        "body",
        [b"", b"[]", b"x", b'{"worker-0": {"attempt": -1, "offset": "x"}}', b'{"nobody-0": null}', b'{"worker-0": []}'],
    )
    def test_nonsense_does_no_harm(self, body, log, people, as_person):
        answer = as_person(people.alice).post(
            "/clusters/ops-demo/demo/logs/read", body, content_type="application/json"
        )
        assert answer.status_code == 200


def test_logs_of_a_cloud_that_does_not_answer_say_so(make_cluster, people, as_person, settings):
    settings.LOCAL_CLOUD_SOCKET = "/nonexistent/agent.sock"
    make_cluster("demo", phase="Running")
    client = as_person(people.alice)
    answer = client.post("/clusters/ops-demo/demo/logs/read", '{"master-0": null}', content_type="application/json")
    assert "does not answer" in answer.json()["error"]
    assert client.get("/clusters/ops-demo/demo/logs/download?task=master-0").status_code == 503
    assert client.get("/clusters/ops-demo/demo/logs?plain=1").status_code == 200


class TestMetrics:
    """Event files in a real S3 bucket."""

    @pytest.fixture
    def trained(self, make_cluster, people, s3, bucket):
        from datastores.models import Datastore
        from tests.clusters.scalars.test_scalars import event

        spec = {"server": s3.url, "access_key": s3.access_key, "bucket": bucket, "prefix": "", "region": "us-east-1"}
        Datastore.objects.create(appcode=people.ops, name="out", kind="s3", spec=spec, secret=s3.secret_key)
        make_cluster("demo", phase="Running", output="out")

        def store(path, steps):
            body = b"".join(event(step, loss=1 / (step + 1), accuracy=0.5) for step in range(steps))
            s3.client.put_object(Bucket=bucket, Key=f"demo/1/{path}", Body=body)

        return store

    def test_charts_follow_what_is_stored(self, trained, people, as_person):
        client = as_person(people.victor)
        address = "/clusters/ops-demo/demo/metrics/charts"
        assert "No summaries yet" in client.get(address).content.decode()
        trained("summaries/events.out.tfevents.1", 3)
        trained("checkpoints/model.ckpt", 1)
        first = client.get(address)
        page = first.content.decode()
        assert page.index("<h2>loss</h2>") < page.index("<h2>accuracy</h2>")
        assert page.count("<svg viewBox") == 2
        assert "0.3333" in page
        assert client.get(address, headers={"If-None-Match": first["ETag"]}).status_code == 304
        trained("summaries/events.out.tfevents.1", 4)
        assert "0.25" in client.get(address, headers={"If-None-Match": first["ETag"]}).content.decode()

    def test_images_and_histograms_are_shown_and_given_by_rest(
        self, trained, make_cluster, people, as_person, s3, bucket, monkeypatch
    ):
        from clusters.comparison import media as comparison_media
        from tests.api.client import api_of
        from tests.clusters.scalars.test_media import PNG, histo, image, of

        client, address = as_person(people.victor), "/clusters/ops-demo/demo/metrics/media"
        assert "<section" not in client.get(address).content.decode()
        make_cluster("keeps-nothing", phase="Running")
        nothing = client.get(address.replace("demo/metrics", "keeps-nothing/metrics")).content.decode()
        assert "cannot be read" not in nothing
        steps = [
            of(
                image(PNG, width=9, height=4),
                image(b"<svg/>", "bad"),
                histo([1, 2], [1, step], min=0, max=2),
                step=step,
            )
            for step in (1, 2, 30)
        ]
        key = "demo/1/logs/events.out.tfevents.1"
        s3.client.put_object(Bucket=bucket, Key=key, Body=b"".join(steps))
        first = client.get(address)
        page = first.content.decode()
        assert re.findall(r'<img src="data:image/png;base64,[^"]+" alt="([^"]+)"', page) == [
            "picture at step 30", "picture at step 2", "picture at step 1",
        ]  # fmt: skip
        assert page.count("<title>step ") == 3
        assert "at step 30 values from 0 to 2, median 1." in page
        assert "3 images are not shown" in page
        assert client.get(address, headers={"If-None-Match": first["ETag"]}).status_code == 304
        assert "<h2" not in client.get("/clusters/ops-demo/demo/metrics/charts").content.decode(), (
            "no word of no summaries"
        )
        # Beside those of other runs, at a step of one's choice. One name of two runs is one row.
        make_cluster("other", phase="Succeeded", output="out")
        s3.client.put_object(Bucket=bucket, Key=key.replace("demo/1", "other/1"), Body=b"".join(steps))
        both = client.get("/appcodes/ops-demo/compare/media?runs=demo/1,other/1").content.decode()
        assert re.findall(r'alt="([^"]+)"|<(h3)>', both) == [
            ("", "h3"), ("picture of demo/1 at step 30", ""), ("picture of other/1 at step 30", ""),
        ]  # fmt: skip
        beside = "/appcodes/ops-demo/compare/media?runs=demo/1,keeps-nothing/1"
        for at, wanted in (("", "30"), ("&at=29", "2"), ("&at=x", "30")):
            part = client.get(beside + at).content.decode()
            assert re.findall(r'alt="([^"]+)"', part) == [f"picture of demo/1 at step {wanted}"]
        assert client.get(f"{beside}&at=0").content.decode().count("None so early") == 2
        assert "More is being read" not in client.get(beside).content.decode()
        whole = comparison_media.media_of
        with monkeypatch.context() as patch:
            patch.setattr(comparison_media, "media_of", lambda run: whole(run)._replace(is_complete=False))
            assert "More is being read" in client.get(beside).content.decode()
        plain = client.get("/appcodes/ops-demo/compare?runs=demo/1&at=2&plain=1").content.decode()
        assert "picture of demo/1 at step 2" in plain, "without a script, too"
        # Where no script leaves out what has not these words, the server does.
        for page in ("clusters/ops-demo/demo/metrics/plain?", "appcodes/ops-demo/compare?runs=demo/1&plain=1&"):
            seen = ["picture" in client.get(f"/{page}find={find}").content.decode() for find in ("pict", "loss")]
            assert seen == [True, False], page
        assert "picture of demo/1" in client.get(f"{beside}&find=loss").content.decode()
        # Files of its own: what W&B writes offline, and what a program saves itself.
        wandb = "demo/1/wandb/offline-run-1-ab/files/media"
        for name in ("images/digits_1", "images/digits_2", "table/preds_1"):
            ending = "table.json" if "table" in name else "png"
            s3.client.put_object(Bucket=bucket, Key=f"{wandb}/{name}_{'0f' * 10}.{ending}", Body=PNG)
        for name, body in (
            ("epoch_1.png", PNG),
            ("epoch_2.png", PNG),
            ("plot.png", b"<html>"),
            ("answers.csv", b"a\n1\n"),
        ):
            s3.client.put_object(Bucket=bucket, Key=f"demo/1/{name}", Body=body)
        page = client.get(address).content.decode()
        shown = re.findall(r'<img src="data:image/png;base64,[^"]+" alt="([^"]+)"', page)
        assert [alt for alt in shown if "picture" not in alt] == [
            "digits at step 2", "digits at step 1", "epoch at step 2", "epoch at step 1",
        ]  # fmt: skip
        tables = re.findall(r'id="table-\d" hx-get="([^"]+)"', page)
        assert [client.get(url.replace("&amp;", "&")).status_code for url in tables] == [200, 200]
        assert "answers.csv" in tables[1]
        given = api_of(people.victor).get("/appcodes/ops-demo/clusters/demo/runs/1/images")[1]["items"]
        (epoch,) = [each for each in given if each["tag"] == "epoch"]
        point = {key: epoch["points"][0][key] for key in ("file", "offset", "size")}
        told = "/api/v1/appcodes/ops-demo/clusters/demo/runs/1/images/content"
        assert client.get(told, point).content == PNG
        # A file of another run is none of its.
        s3.client.put_object(Bucket=bucket, Key="other/1/epoch_1.png", Body=PNG)
        for elsewhere in (
            "other/1/epoch_1.png",
            "demo/1/../../other/1/epoch_1.png",
            "demo/1/plot.png",
            "demo/1/answers.csv",
        ):
            assert client.get(told, point | {"file": elsewhere}).status_code == 404, elsewhere
        # One name alone, without histograms.
        alone = client.get(f"{address}?image=picture").content.decode()
        assert ("All images and histograms" in alone, "<title>step" in alone) == (True, False)

        api = api_of(people.victor)
        run = "/appcodes/ops-demo/clusters/demo/runs/1"
        _, told = api.get(f"{run}/histograms")
        assert [(p["step"], round(sum(p["counts"]), 2)) for p in told["items"][0]["points"]] == [
            (1, 2),
            (2, 3),
            (30, 31),
        ]
        _, told = api.get(f"{run}/images")
        (*_, newest) = told["items"][0]["points"]
        assert (newest["step"], newest["width"], newest["file"]) == (30, 9, key)
        query = "&".join(f"{name}={newest[name]}" for name in ("file", "offset", "size", "value", "which"))
        status, _ = api.get(f"{run}/images/content?{query}")
        answer = api.last
        assert (status, answer["Content-Type"], answer.content) == (200, "image/png", PNG)
        assert (answer["X-Content-Type-Options"], "sandbox" in answer["Content-Security-Policy"]) == ("nosniff", True)
        # What is no image, and what is no file of this run.
        assert api.get(f"{run}/images/content?{query}".replace("value=0", "value=1"))[0] == 404
        s3.client.put_object(Bucket=bucket, Key="other/1/events.out.tfevents.1", Body=b"".join(steps))
        for path in ("other/1/events.out.tfevents.1", "demo/1/../../other/1/events.out.tfevents.1", "demo/1/model.png"):
            assert api.get(f"{run}/images/content?{query.replace(key, path)}")[0] == 404

    def test_what_wandb_wrote_offline_becomes_results(self, trained, people, s3, bucket):
        from clusters.results import numbers
        from clusters.results.models import RunMetric
        from clusters.runs.models import Run
        from clusters.scalars.reading import scalars_of
        from tests.clusters.scalars.test_scalars import history, offline, updates

        records = [updates("run", lr="0.1", seed="1"), history(7, loss="0.5"), updates("summary", final="0.93")]
        for n, more in enumerate(([], [updates("config", seed="2")])):
            key = f"demo/1/wandb/offline-run-{n}/run-{n}.wandb"
            s3.client.put_object(Bucket=bucket, Key=key, Body=offline(*records, *more))
        run = Run.objects.select_related("cluster").get()
        for _ in range(2):  # Files that have not changed are not read again.
            numbers.keep(run, scalars_of(run), timezone.now())
            run.refresh_from_db()
            assert (run.parameters["lr"], "seed" in run.parameters) == ("0.1", False), "the two say different seeds"
            last = RunMetric.objects.filter(metric__name__endswith="final").values_list("last", "step")
            assert set(last) == {(0.93, 7)}

    def test_the_overview_shows_what_a_run_came_to(self, trained, people, as_person, s3, bucket):
        from django.utils import timezone

        from clusters.runs.models import Run

        client, address = as_person(people.bob), "/clusters/ops-demo/demo/outcome"
        assert "<section" not in client.get(address).content.decode()
        trained("summaries/events.out.tfevents.1", 4)
        pixel = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
        s3.client.put_object(Bucket=bucket, Key="demo/1/plots & more.png", Body=pixel)
        Run.objects.update(
            phase="Succeeded",
            started_at=timezone.now(),
            finished_at=timezone.now(),
            parameters={"TOKEN": "x", "LR": "0.1"},
        )
        for run in Run.objects.all():
            Run.objects.filter(pk=run.pk).update(spec=run.spec | {"env": {"TOKEN": "x"}})
        page = client.get(address).content.decode()
        assert "<dt>LR</dt><dd>0.1</dd>" in page
        assert "<dt>TOKEN</dt>" not in page, "what ENV has stands below"
        assert re.findall(r'<dt>(\w+)</dt><dd title="at step 3">([\d.]+)</dd>', page) == [
            ("loss", "0.25"),
            ("accuracy", "0.5"),
        ]
        assert "data-plot" in page
        shown = "/datastores/ops-demo/out/preview?path=demo/1/plots+%26+more.png"
        assert f'<a class="picture" href="{shown}"><img src="data:image/png;base64,' in page
        assert 'folder=demo/1/summaries">summaries/</a>' in page
        [following] = re.findall(r'<ul class="next-steps">.*?</ul>', page, re.DOTALL)
        assert re.findall(r"<li><(?:a|button) [^>]*>([^<]+)<", following) == [
            "Register as a model…", "Again with changes…", "Sweep over it…", "Notebook on it…", "TensorBoard",
        ]  # fmt: skip
        # Who may only look has nothing to do next; numbers without files, and files without numbers, are shown.
        assert "Again with changes" not in as_person(people.victor).get(address).content.decode()
        s3.client.delete_object(Bucket=bucket, Key="demo/1/summaries/events.out.tfevents.1")
        page = client.get(address).content.decode()
        assert ("No numbers" in page, shown in page) == (True, True)

    @pytest.mark.parametrize(
        ("told", "first"),
        [
            ("step 1: val_loss = 2 loss = 3 accuracy = 0.1|step 2: val_loss = 2 loss = 2 accuracy = 0.2", "loss"),
            ("step 1: accuracy = 0.1 eval_loss = 1|step 2: accuracy = 0.2 eval_loss = 2", "eval_loss"),
            ("step 1: aloss = 3 lr = 1 train_acc = 0.5|step 2: aloss = 3 lr = 1", "aloss"),
            ("step 1: loss = 3 lr = 1 size = 1|step 2: lr = 1 size = 2", "size"),
            ("step 1: loss = nan lr = 1|step 2: loss = 2 lr = 1", "lr"),
            ("step 1: loss = 3 accuracy = 0.1", ""),
        ],
    )
    def test_the_first_chart_is_of_the_loss_where_it_is_a_curve(self, told, first):
        from clusters.cluster.pages.outcome import main_tag
        from clusters.scalars.printed import scalars_of_log

        assert main_tag(scalars_of_log(told.replace("|", "\n").encode())) == first

    def test_below_the_last_value_stand_the_best_and_what_is_wrong(self):
        from clusters.cluster.pages.outcome import figures
        from clusters.scalars.printed import scalars_of_log

        told = b"step 1: loss = 0.5 acc = 0.9 lr = 0.1\nstep 2: loss = nan acc = 0.8 lr = 0.2\nstep 3: loss = nan acc = 0.8"
        loss, acc, lr = figures(scalars_of_log(told))
        assert (loss.value, loss.best, loss.best_step, loss.wrong) == ("NaN", "0.5", 1, "NaN since step 2")
        assert (acc.value, acc.best, acc.best_step, acc.wrong) == ("0.8", "0.9", 1, "")
        assert (lr.best, lr.wrong) == ("", ""), "no value of a setting is better"

    def test_tags_and_note_stand_among_the_facts(self, make_cluster, people, as_person):
        from clusters.runs.models import Run

        make_cluster("demo", phase="Running")
        edit = 'href="/clusters/ops-demo/demo/runs/1/notes?next=%2Fclusters%2Fops-demo%2Fdemo">'
        assert f"{edit}Add tags or a note</a>" in as_person(people.bob).get("/clusters/ops-demo/demo").content.decode()
        assert "Tags, note" not in as_person(people.victor).get("/clusters/ops-demo/demo").content.decode()
        Run.objects.update(tags=["a & b"], note="the <best>")
        page = as_person(people.victor).get("/clusters/ops-demo/demo").content.decode()
        assert 'href="/results/ops-demo?tag=a%20%26%20b">a &amp; b</a>' in page
        assert "the &lt;best&gt;" in page
        assert edit not in page

    def test_folders_are_lines_of_one_chart(self, trained, people, as_person):
        trained("logs/train/events.out.tfevents.1", 3)
        trained("logs/validation/events.out.tfevents.1", 3)
        page = as_person(people.victor).get("/clusters/ops-demo/demo/metrics/charts").content.decode()
        assert page.count("<svg viewBox") == 2
        assert "<i></i>train" in page
        assert "<i></i>validation" in page

    def test_other_runs_are_laid_over_the_selected_one(self, trained, make_cluster, people, as_person):
        from clusters.cluster.actions import deploy
        from clusters.runs.models import Cluster

        trained("events.out.tfevents.1", 3)
        cluster = Cluster.objects.get(name="demo")
        cluster.runs.update(phase="Succeeded", verdict="Succeeded", gone=True, finished_at=timezone.now())
        deploy(cluster, acting_user=people.alice)
        client = as_person(people.victor)
        page = client.get("/clusters/ops-demo/demo/metrics?with=1,7&with=x").content.decode()
        assert "/metrics/charts?with=1" in page
        assert '<input type="checkbox" name="with" value="1" checked>' in page
        charts = client.get("/clusters/ops-demo/demo/metrics/charts?with=1,7&with=x").content.decode()
        assert charts.count("<i></i>run 1 ") == 2, "loss and accuracy, though run 2 has nothing yet"
        assert "No summaries" not in charts

    def test_runs_are_drawn_together_with_what_cannot_be_read_said(
        self, trained, make_cluster, people, as_person, s3, bucket
    ):
        from tests.api.client import api_of

        trained("events.out.tfevents.1", 3)
        other = make_cluster("other", phase="Running", output="out", env={"LR": "0.1"}).current_run
        other.spec["output"] = "gone"
        other.save()
        client, ticked = as_person(people.victor), {"runs": ["demo/1"], "cluster": ["ops-demo/other", "flight-demo/x"]}
        chosen = client.post("/appcodes/ops-demo/compare", ticked)
        assert chosen["Location"] == "/appcodes/ops-demo/compare?runs=demo/1,other/1"
        assert client.post("/appcodes/ops-demo/compare", {"cluster": "ops-demo/a\0"}).status_code == 302
        page = client.get(chosen["Location"]).content.decode()
        assert "those of flight-demo are left out" in page
        assert "<code>env.LR</code>" in page
        charts = client.get("/appcodes/ops-demo/compare/charts?runs=demo/1,other/1&x=time&smooth=0.9").content.decode()
        assert charts.count("<svg viewBox") == charts.count("<table") == 2
        assert "without times" not in charts
        legend = charts.partition('<p class="latest">')[2].partition("</p>")[0]
        assert re.findall(r"</i>(\S+) ", legend) == ["demo/1"], "nothing of the other can be read"
        s3.client.put_object(Bucket=bucket, Key="demo/1/csv/metrics.csv", Body=b"step,loss\n1,0.5\n2,0.4\n")
        untimed = client.get("/appcodes/ops-demo/compare/charts?runs=demo/1&x=time").content.decode()
        assert "Numbers of demo/1 without times are drawn over steps only." in untimed
        s3.client.delete_object(Bucket=bucket, Key="demo/1/csv/metrics.csv")
        plain = client.get(f"{chosen['Location']}&find=LOSS&plain=1").content.decode()
        assert re.findall(r"<h2>(.+)</h2>\s+<div class=\"plot-box\"", plain) == ["loss"]
        brief = client.get(
            "/appcodes/ops-demo/compare/charts?runs=demo/1&metric=eval/loss&metric=none&brief=1"
        ).content.decode()
        assert (brief.count("<svg viewBox"), "<table" in brief) == (1, False), "loss alone, without its table"
        assert "The numbers of other/1 cannot be read now: The datastore “gone” does not exist any more." in charts
        status, said = api_of(people.victor).get("/appcodes/ops-demo/compare?runs=demo/1,other/1")
        assert (status, len(said["notes"])) == (200, 1)
        assert {"path": "env.LR", "values": [None, "0.1"]} in said["differences"]
        loss = next(each for each in said["items"][0]["metrics"] if each["tag"] == "loss")
        assert (loss["step"], round(loss["last"], 4), loss["largest"]) == (2, 0.3333, 1)
        status, said = api_of(people.victor).get("/appcodes/ops-demo/compare?runs=demo/1,other/2")
        assert (status, said["errors"][0]["path"]) == (422, "runs")

    def test_a_datastore_that_does_not_answer_is_said_so(self, trained, people, as_person):
        from datastores.models import Datastore

        store = Datastore.objects.get(name="out")
        store.spec["bucket"] = "no-such-bucket"
        store.save()
        answer = as_person(people.victor).get("/clusters/ops-demo/demo/metrics/charts")
        assert answer.status_code == 200
        assert "There is no such bucket" in answer.content.decode()
        store.delete()
        assert (
            "does not exist any more"
            in as_person(people.victor).get("/clusters/ops-demo/demo/metrics/charts").content.decode()
        )
