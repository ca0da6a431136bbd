"""TensorBoard of runs: repeated requests create one, of runs that the user may see, or are refused with a reason."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.utils import timezone

from tests.api.client import Api, api_of, manifest

TRAIN = "/appcodes/ops-demo/clusters/train"


def errors(answer: dict[str, Any]) -> dict[str, str]:
    return {each["path"]: each["message"] for each in answer["errors"]}


def test_one_for_the_same_runs_however_often_it_is_asked_for(as_bob: Api) -> None:
    from clusters.runs.models import Run

    status, made = as_bob.post(f"{TRAIN}/tensorboard")
    assert status == 201, made
    assert made["metadata"]["name"] == "tb-train-2"
    assert made["spec"]["runs"] == ["train/2"]
    assert (made["spec"]["image"], made["spec"]["flavor"]) == ("tensorflow", "small")
    assert made["spec"]["idle"] == {"policy": "stop", "after": 1800}
    assert as_bob.last.headers["Location"].endswith("/appcodes/ops-demo/applications/tb-train-2")
    assert as_bob.post(f"{TRAIN}/tensorboard", {"runs": ["train/2", "train/2"]}) == (200, made)
    both = as_bob.post(f"{TRAIN}/tensorboard", {"runs": ["train/2", "train/1"]})
    assert (both[0], both[1]["metadata"]["name"], both[1]["spec"]["runs"]) == (
        201,
        "tb-train-1-and-1",
        ["train/1", "train/2"],
    )
    assert as_bob.post(f"{TRAIN}/tensorboard", {"runs": ["train/1", "train/2"]})[0] == 200
    Run.objects.filter(cluster__name="tb-train-2").update(
        phase="Running", admitted_at=timezone.now(), applied_at=timezone.now()
    )
    # An ended one is started again; while one is ending, the request is refused.
    assert as_bob.post("/appcodes/ops-demo/applications/tb-train-2/disable")[0] == 202
    assert as_bob.post(f"{TRAIN}/tensorboard")[0] == 409
    Run.objects.filter(cluster__name="tb-train-2").update(phase="Stopped", gone=True)
    status, again = as_bob.post(f"{TRAIN}/tensorboard")
    assert (status, again["metadata"]["name"], again["status"]["run"]) == (200, "tb-train-2", 2)


def test_an_image_that_has_it_where_that_of_the_run_is_known_to_lack_it(as_bob: Api) -> None:
    from clusters.catalog.models import Image

    Image.objects.filter(name="tensorflow").update(frameworks=["pytorch"])
    status, answer = as_bob.post(f"{TRAIN}/tensorboard")
    sentence = "has no TensorBoard (it has: PyTorch); choose another image or framework."
    assert status == 422
    assert sentence in errors(answer)["spec.type"]
    Image.objects.create(name="board", title="Board", environment="/opt/board", frameworks=["tensorboard"])
    status, made = as_bob.post(f"{TRAIN}/tensorboard")
    assert (status, made["spec"]["image"]) == (201, "board")


def test_another_name_where_something_else_has_it(as_bob: Api) -> None:
    from clusters.applications.tensorboard import _names
    from clusters.manifest.cluster import MAX_NAME

    assert as_bob.post("/appcodes/ops-demo/clusters", manifest("tb-train-2"))[0] == 201
    name = as_bob.post(f"{TRAIN}/tensorboard")[1]["metadata"]["name"]
    assert name.startswith("tb-train-2-")
    assert as_bob.post(f"{TRAIN}/tensorboard")[1]["metadata"]["name"] == name
    long = list(_names((f"{'x' * 38}-y/1",)))
    assert len(set(long)) == len(long) > 5
    assert all(len(each) <= MAX_NAME for each in long)


def test_what_cannot_be_shown_is_refused_with_its_reason(as_bob: Api) -> None:
    from clusters.runs.models import Cluster

    as_bob.post("/appcodes/ops-demo/clusters", manifest("bare"))
    as_bob.post("/appcodes/ops-demo/clusters", manifest("waits", output="results"))
    count = Cluster.objects.count()
    for runs, sentence in (
        (["train/9"], "ops-demo has no run train/9."),
        (["train/1", "other/1"], "ops-demo has no run other/1."),
        (["bare/1"], "Run bare/1 has no output datastore, so nothing that it wrote is kept."),
        (["waits/1"], "Run waits/1 has not begun to run yet."),
        (["train"], "“train” is no run; write CLUSTER/NUMBER, for example train/3."),
        (["train/1'; --"], "“train/1'; --” is no run; write CLUSTER/NUMBER, for example train/3."),
    ):
        status, answer = as_bob.post(f"{TRAIN}/tensorboard", {"runs": runs})
        assert (status, errors(answer)) == (422, {"runs": sentence})
    status, answer = as_bob.post("/appcodes/ops-demo/clusters", manifest("mine", runs=["train/1"]))
    assert (status, errors(answer)) == (422, {"spec.runs": "TensorFlow shows no runs."})
    assert Cluster.objects.count() == count


def test_runs_of_another_appcode_are_not_there_and_viewers_only_look(as_bob: Api, alice: Any, victor: Any) -> None:
    from clusters.runs.models import Cluster
    from portal.models import Appcode, Membership

    victors = api_of(victor)
    assert victors.post(f"{TRAIN}/tensorboard")[0] == 403
    assert as_bob.post(f"{TRAIN}/tensorboard")[0] == 201
    assert victors.post(f"{TRAIN}/tensorboard")[0] == 200
    assert Cluster.objects.filter(framework="tensorboard").count() == 1
    # A cluster of the same name in another appcode.
    other = Appcode.objects.exclude(code="ops-demo").first()
    if other is None:
        other = Appcode.objects.create(
            code="other", name="other", org_node=Appcode.objects.get().org_node, state="active"
        )
    Membership.objects.get_or_create(appcode=other, user=alice, defaults={"role": "owner"})
    alices = api_of(alice)
    assert alices.post(f"/appcodes/{other.code}/clusters", manifest("own", other.code))[0] == 201
    status, answer = alices.post(f"/appcodes/{other.code}/clusters/own/tensorboard", {"runs": ["train/1"]})
    assert (status, errors(answer)) == (422, {"runs": f"{other.code} has no run train/1."})


@pytest.mark.django_db(transaction=True)
def test_two_clicks_at_once_make_one(as_bob: Api) -> None:
    from django.db import connection

    from clusters.runs.models import Cluster

    begin, answers = threading.Barrier(4), []

    def click() -> None:
        try:
            begin.wait()
            answers.append(Api(as_bob.token).post(f"{TRAIN}/tensorboard"))
        finally:
            connection.close()

    threads = [threading.Thread(target=click) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(status for status, _ in answers) == [200, 200, 200, 201]
    assert {answer["metadata"]["name"] for _, answer in answers} == {"tb-train-2"}
    assert Cluster.objects.filter(framework="tensorboard").count() == 1
