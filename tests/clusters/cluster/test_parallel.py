"""Copies of one command: each knows its index and has its own GPUs, and a failed copy ends no other."""

import re

import pytest

# The second fails at once; the others end later, each when its file exists.
COMMAND = """\
echo "copy $TASK_INDEX of $TASK_COUNT on GPU $CUDA_VISIBLE_DEVICES by $CUDA_DEVICE_ORDER"
if [ $TASK_INDEX = 1 ]; then echo "ValueError: too steep"; exit 3; fi
echo "step 1: loss = 0.$TASK_INDEX"
until [ -e /tmp/on ]; do sleep 0.05; done
echo "accuracy of copy $TASK_INDEX: high"
"""


@pytest.mark.django_db(transaction=True)
def test_one_that_fails_ends_none_of_the_others(loop, people, as_person):
    from clusters.clouds.registry import cloud, run_ref
    from clusters.cluster import actions
    from clusters.manifest.cluster import ClusterManifest
    from clusters.runs.models import Run

    body = {
        "framework": "parallel",
        "image": "python",
        "command": COMMAND,
        "retries": 0,
        "roles": {"worker": {"flavor": "one-gpu", "count": 3}},
    }
    document = {"kind": "cluster", "metadata": {"name": "demo", "appcode": "ops-demo"}, "spec": body}
    cluster = actions.create_cluster(ClusterManifest.model_validate(document), acting_user=people.bob)
    loop.until(lambda: Run.objects.get().reason == "Degraded")
    run = Run.objects.get()
    assert (run.phase, run.message.split("\n")[0]) == (
        "Running", "1 of 3 workers failed. The others go on. ValueError: too steep (worker-1, exit code 3)",
    )  # fmt: skip
    for index in (0, 2):
        loop.touch(run, "/tmp/on", role="worker", index=index)
    run = loop.until_phase(cluster, "Succeeded", "Failed")
    assert (run.phase, run.message.split("\n")[0]) == (
        "Failed", "1 of 3 workers failed. ValueError: too steep (worker-1, exit code 3)",
    )  # fmt: skip
    logs = [cloud("local").log(run_ref(run), "worker", n, attempt=0).data.decode() for n in range(3)]
    seen = [re.match(r"copy (\d) of 3 on GPU (\d) by PCI_BUS_ID\n", log) for log in logs]
    assert [each[1] for each in seen] == ["0", "1", "2"]
    assert len({each[2] for each in seen}) == 3
    # Failed copies come first, and each shows its last line of output.
    client = as_person(people.victor)
    page = client.get("/clusters/ops-demo/demo").content.decode()
    assert re.findall(r'<td class="lead">(worker-\d)', page) == ["worker-1", "worker-0", "worker-2"]
    lines = client.get("/clusters/ops-demo/demo/last-lines").content.decode()
    assert re.findall(r'id="said-(worker-\d)".*>(.*)</small>', lines) == [
        ("worker-0", "accuracy of copy 0: high"), ("worker-2", "accuracy of copy 2: high"),
    ]  # fmt: skip
    assert "worker-0: 0 at the end" in client.get("/clusters/ops-demo/demo/metrics/charts").content.decode()


def test_the_form_asks_for_no_master(page_catalogue, people, as_person):
    from clusters.runs.models import Cluster
    from tests.clusters.forms import sent, wrong_fields

    client = as_person(people.bob)
    body = sent(client.get("/clusters/new?start=parallel").content.decode())
    assert client.post("/clusters/new", body).status_code == 302
    made = Cluster.objects.get()
    assert (made.spec["framework"], list(made.spec["roles"]), made.current_run.gpus) == ("parallel", ["worker"], 4)
    refused = client.post("/clusters/new", body | {"worker_count": "0", "worker_flavor": "", "name": "none"})
    assert list(wrong_fields(refused.content.decode())) == ["worker_count"]


@pytest.mark.parametrize(
    ("changed", "field", "sentence"),
    [
        ({"framework": "tensorflow"}, "atOnce", "Only tasks that know nothing of each other can take turns"),
        ({"atOnce": 0}, "atOnce", "At least 1."),
        ({"atOnce": 9}, "atOnce", "Its tasks can take turns, 8 at once."),
        ({"atOnce": None}, "count", "Its tasks can take turns, 8 at once."),
        ({"atOnce": 8}, "", ""),
    ],
)
def test_of_many_as_many_at_once_as_the_quota_has_room_for(page_catalogue, people, as_person, changed, field, sentence):
    from clusters.runs.models import Run

    worker = {"flavor": "middle-1-gpu", "count": 500, "atOnce": 2} | {k: v for k, v in changed.items() if k == "atOnce"}
    roles = {"worker": worker, **({"master": {"flavor": "middle-1-gpu"}} if "framework" in changed else {})}
    spec = {
        "framework": changed.get("framework", "parallel"), "image": "tensorflow", "command": "true", "roles": roles,
    }  # fmt: skip
    body = {"metadata": {"name": "many"}, "spec": spec}
    answer = as_person(people.bob).post("/api/v1/appcodes/ops-demo/clusters", body, content_type="application/json")
    if not field:
        assert (answer.status_code, Run.objects.get().gpus) == (201, 8)
        return
    [error] = answer.json()["errors"]
    assert (answer.status_code, error["path"]) == (422, f"spec.roles.worker.{field}")
    assert sentence in error["message"]
