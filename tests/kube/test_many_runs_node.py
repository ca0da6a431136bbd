"""Many runs as one project on Kubernetes: real containers, S3 servers and the whole portal, which is killed twice during a
sweep. Init containers assemble folds, and an output is read where another pod stored it."""

from __future__ import annotations

import re
import signal
import time
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser import chromium, signed_in
from tests.chain import Chain
from tests.e2e.test_crashes import Seen, trains
from tests.kube.node import Node
from tests.kube.test_main_job import manage, portal  # noqa: F401  the fixture
from tests.running import Client, Portal, eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kube,
    pytest.mark.node,
    pytest.mark.timeout(900),
    pytest.mark.images("tensorflow", "rclone"),
]

# Two of them fit on the test machine.
TINY = "Flavor.objects.create(name='tiny-1-gpu', title='Tiny', cpu_milli=300, memory_mb=1280, gpus=1)"
FOUR = TINY.replace("tiny-1-gpu", "tiny-4-gpus").replace("Tiny", "Tiny, 4 GPUs").replace("gpus=1", "gpus=4")
LATE = 60_000


@pytest.fixture(scope="module")
def placed(portal: Portal) -> Portal:  # noqa: F811
    manage(portal, "register_kubernetes", "training", "--business-line", "example.ops")
    manage(portal, "shell", "-c", f"from clusters.models import Flavor; {TINY}; {FOUR}")
    manage(portal, "shell", "-c", "from portal.models import Appcode; Appcode.objects.update(gpu_quota=100)")
    return portal


def is_held_between_checkpoints(run: Seen) -> bool:
    """Stops worker 0. The master, which waits for it in every step, then prints at most the line that is due. Where that is the
    line of a checkpoint, both go on."""
    run.send(signal.SIGSTOP, "worker", 0)
    before = -1
    while before != (now := run.lines):
        before = now
        time.sleep(2)  # Longer than a line takes; nothing tells that no line follows.
    if now % 4:
        return True
    run.send(signal.SIGCONT, "worker", 0)
    return False


def test_steps_that_are_trained_again_in_new_pods_are_counted(placed: Portal) -> None:
    gpu = {"flavor": "tiny-1-gpu"}
    run = trains(placed, "lost-allreduce", master=gpu, worker={**gpu, "count": 1})
    assert eventually(lambda: is_held_between_checkpoints(run), 120), run.log
    run.send(signal.SIGKILL, "worker", 0)
    crash = run.until_over()
    assert (crash["role"], crash["others"], crash["back"]) == ("worker", 1, True)
    told = re.search(r"Continues after step (\d+)", run.log)
    assert told
    assert crash["stepsRepeated"] == crash["step"] - int(told[1]) > 0
    with chromium() as browser, signed_in(browser, placed, "alice") as page:
        page.goto(f"{placed.origin}/clusters/ops-demo/{run.name}")
        expect(page.locator("#pace")).to_contain_text(
            f"{crash['stepsRepeated']} steps were trained again", timeout=LATE
        )
        # Reported once, however many processes noticed.
        page.goto(f"{placed.origin}/clusters/ops-demo/{run.name}/events")
        expect(page.get_by_text("were trained again")).to_have_count(1)


def test_of_two_runs_that_fit_alone_one_has_containers_and_the_other_nothing(node: Node, placed: Portal) -> None:
    """Five of the node's eight GPUs for each. With the portal as it is: its queue, its workers, its wake-ups."""
    client = Client(placed, "alice")
    spec = {
        "image": "tensorflow-2-21",
        "command": "sh -c 'sleep 600'",
        "roles": {"master": {"flavor": "tiny-1-gpu"}, "worker": {"flavor": "tiny-4-gpus", "count": 1}},
    }
    for name in ("first", "second"):
        client.create("ops-demo", name, **spec)

    def status(name: str) -> Any:
        return client.call("GET", f"/appcodes/ops-demo/clusters/{name}")["status"]

    def pods() -> set[tuple[str, str]]:
        found = node.plane.request("GET", "/api/v1/namespaces/ops/pods", labelSelector="gpu-cloud/portal=main-job")
        return {
            (pod["metadata"]["labels"]["gpu-cloud/cluster"], pod["status"]["phase"])
            for pod in found["items"]
            if pod["metadata"]["labels"]["gpu-cloud/cluster"] in ("first", "second")
        }

    assert eventually(lambda: status("first")["phase"] == "Running", 120), status("first")
    waits = "It needs 5 GPUs; 3 of 8 are free. It starts as soon as enough are free."
    assert eventually(lambda: status("second")["message"] == waits, 30), status("second")["message"]
    assert pods() == {("first", "Running")}
    client.call("POST", "/appcodes/ops-demo/clusters/first/disable")
    assert eventually(lambda: status("second")["phase"] == "Running", 120), status("second")
    client.call("POST", "/appcodes/ops-demo/clusters/second/disable")
    assert eventually(lambda: not pods(), 120), pods()


def test_a_sweep_in_folds_the_best_of_it_and_its_hook_outlive_the_portal(node: Node, placed: Portal) -> None:
    chain = Chain(placed, folds=2, parallel=2, gpu="tiny-1-gpu", cpu="small")
    chain.until("search", 300)
    assert eventually(chain.trials, 60), chain.status()
    chain.kill_everything()
    # Kill it again while its pods run or have run, because the portal's state is then a different one.
    assert eventually(chain.answers, 120)
    ran = ("Running", "Succeeded")
    assert eventually(lambda: any(each["status"]["phase"] in ran for each in chain.trials()), 200), chain.trials()
    chain.kill_everything()
    chain.until_over(600)
    chain.nothing_is_lost_or_double()
    assert {each["status"]["cloud"] for each in chain.trials()} == {"training"}
    chain.the_hook_has_written()

    with chromium() as browser, signed_in(browser, placed, "alice") as page:
        page.goto(f"{placed.origin}/clusters/ops-demo/{chain.final}/metrics")
        expect(page.locator(".chart h2").first).to_have_text("accuracy", timeout=LATE)
    # Nothing of this is left in Kubernetes.
    pods = "/api/v1/namespaces/ops/pods"
    node.plane.until(pods, lambda found: not found, 120, labelSelector="gpu-cloud/portal=main-job")
