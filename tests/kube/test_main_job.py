"""The main workflow on Kubernetes as users do it: a browser, the whole portal, a kubelet, S3 servers, containers.

The portal starts as for a newcomer, with the demonstration's people and data. But its own object storage listens at an
address that containers reach, and the business line of ops-demo is placed on a Kubernetes cluster. The results are compared
with containerd's records.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import boto3
import psycopg2
import pytest
from botocore.exceptions import ClientError
from playwright.sync_api import Page, expect

from clusters.clouds.drivers.local.network import packages
from portal.up import services
from tests import s3server
from tests.browser import SOON, chromium, signed_in
from tests.kube import images
from tests.kube.following import hand_over, portal_kubeconfig
from tests.kube.node import Node
from tests.running import ELSEWHERE, ROOT, Client, Portal, environment, eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kube,
    pytest.mark.node,
    pytest.mark.timeout(900),
    pytest.mark.images("tensorflow", "rclone"),
]

TRAINED = 400_000
# The real client is in tests/clusters/tracking; this is the way there, out of a pod.
RECORD = """python - <<'END'
import json, os, urllib.request

def call(name, **body):
    headers = {"Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"], "Content-Type": "application/json"}
    url = os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/" + name
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))

run = call("runs/create", experiment_id="0", start_time=0)["run"]["info"]["run_id"]
for step in (1, 2):
    call("runs/log-metric", run_id=run, key="recorded", value=1 / step, step=step, timestamp=step)
END"""
SECRETS = ("PORTAL_SECRET_KEY",)


@pytest.fixture(scope="module")
def s3(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Returns the portal's environment variables for an S3 server at an address that pods reach."""
    folder = services.private_folder(tmp_path_factory.mktemp("s3"))
    keys = "TESTS" + secrets.token_hex(8).upper(), secrets.token_hex(20)
    server = s3server.s3(folder / "data", services.free_port(), *keys, address=node.gateway)
    with services.running([server], services.private_folder(folder / "log"), os.environ):
        found = {"URL": server.url, "ACCESS_KEY": keys[0], "SECRET_KEY": keys[1]}
        client(found).create_bucket(Bucket="gpu-cloud-logs")
        yield found


def client(s3: dict[str, str]) -> Any:
    keys = {"aws_access_key_id": s3["ACCESS_KEY"], "aws_secret_access_key": s3["SECRET_KEY"]}
    return boto3.client("s3", endpoint_url=s3["URL"], region_name="us-east-1", **keys)


@pytest.fixture(scope="module")
def portal(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    for name in ("tensorflow", "rclone"):
        node.import_image(images.image(name))
    portal = Portal(tmp_path_factory.mktemp("portal") / "var", PORTAL_STORAGE_ADDRESS=node.gateway, **ELSEWHERE)
    portal.start()
    portal.end_show1()
    # By it pods reach the portal's tracking, as by docker/kubernetes/packages in a cluster.
    door = packages.Server(0, None, packages.Portal(portal.origin))
    threading.Thread(target=door.serve_forever, daemon=True).start()
    manage(
        portal,
        "register_kubernetes",
        "training",
        "--title",
        "Training",
        "--kubeconfig",
        str(portal_kubeconfig(node.plane)),
        "--set",
        "portal=main-job",
        "--set",
        f"tracking=http://{node.gateway}:{door.server_address[1]}",
    )
    # Other tests may have used the same business line on this node.
    hand_over(node.plane, "main-job", "ops")
    yield portal
    assert portal.stop() == 0
    assert portal.left() == []
    door.shutdown()
    door.server_close()


def manage(portal: Portal, *arguments: str) -> None:
    """Runs manage.py like an operator on the portal's machine."""
    own = {name: portal.secret(name) for name in SECRETS}
    own |= {"DATABASE_URL": database(portal), "REDIS_URL": "redis://127.0.0.1:1", "PORTAL_ORIGIN": portal.origin}
    env = environment(portal.data, portal.port) | own
    argv = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def database(portal: Portal) -> str:
    return f"postgresql://portal@/portal?host={portal.data / 'run'}"


def ask(portal: Portal, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(database(portal))) as connection, connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall()


def tab(page: Page, name: str) -> None:
    page.locator("nav.tabs").get_by_role("link", name=name).click()


def test_from_the_form_to_a_model_trained_by_containers(node: Node, portal: Portal) -> None:
    with chromium() as browser:
        with signed_in(browser, portal, "root") as page:
            place_on_kubernetes(page)
        with signed_in(browser, portal, "alice") as page:
            train(page)
            succeed(page, node)
    billed_is_what_containerd_saw(node, portal)
    stored(portal)


def place_on_kubernetes(page: Page) -> None:
    """Places the business line as an administrator, and adds a flavor of which four fit on the test machine."""
    page.goto("/admin/clouds")
    page.get_by_label("Where example.ops runs").select_option("training")
    page.locator("form.placements").get_by_role("button", name="Save").click()
    expect(page.locator("article.cloud", has_text="Training")).to_contain_text("example.ops")
    page.goto("/admin/flavors/new")
    size = {"title": "Tiny + 1 GPU", "name": "tiny-1-gpu", "cores": "0.3", "memory_gib": "1.25", "gpus": "1"}
    for field, value in size.items():
        page.locator(f"[name={field}]").fill(value)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("main")).to_contain_text("Tiny + 1 GPU")


def train(page: Page) -> None:
    page.get_by_role("link", name="New cluster").click()
    page.get_by_label("Name", exact=True).fill("in-containers")
    page.get_by_label("Image").select_option("tensorflow-2-21")
    page.locator("[name=input]").select_option("demo-input")
    page.get_by_label("Output", exact=False).first.select_option("demo-output")
    page.get_by_label("Command", exact=True).fill(f"python digits_ps.py --steps 600\n{RECORD}")
    page.get_by_label("Environment variables").fill("GREETING=hello | DATA_DIR=/elearn/output")
    page.get_by_label("Master").select_option("tiny-1-gpu")
    page.locator("summary", has_text="Several machines").click()
    page.locator("[name=ps_flavor]").select_option("small")
    page.locator("[name=ps_count]").fill("1")
    page.locator("[name=worker_count]").fill("2")
    expect(page.locator("[name=worker_flavor]")).to_have_value("tiny-1-gpu")
    expect(page.locator("#preview")).to_contain_text(re.compile("Starts now"))
    page.get_by_role("button", name="Create cluster").click()
    page.wait_for_url("**/clusters/ops-demo/in-containers")


def succeed(page: Page, node: Node) -> None:
    head = page.locator("#head")
    expect(head).to_contain_text("Running", timeout=TRAINED)
    expect(page.locator("#progress")).to_contain_text(node.name)
    tab(page, "Logs")
    log = page.locator("#log")
    expect(log).to_contain_text(re.compile(r"master-0\s+step \d+: loss = "), timeout=TRAINED)
    expect(head).to_contain_text("Succeeded", timeout=TRAINED)
    expect(log).to_contain_text("Saved the model of step 600")

    # Nothing is left in Kubernetes, and the page still shows everything.
    pods = "/api/v1/namespaces/ops/pods"
    node.plane.until(pods, lambda found: not found, 120, labelSelector="gpu-cloud/portal=main-job")
    page.reload()
    expect(page.locator("#log")).to_contain_text("Saved the model of step 600", timeout=SOON)
    tab(page, "Metrics")
    for tag in ("loss", "accuracy", "global_step/sec", "recorded"):
        line = page.locator(".chart", has_text=tag).first.locator("svg path").first
        expect(line).to_have_attribute("d", re.compile("^M.*L"))
    tab(page, "Usage")
    expect(page.locator("tbody").first.locator("tr")).to_have_count(4)
    expect(page.get_by_role("main")).to_contain_text("Breakdown")
    assert float(page.locator("tfoot .money").last.get_attribute("title") or 0) > 0


def billed_is_what_containerd_saw(node: Node, portal: Portal) -> None:
    """Asserts that each second from the start of a pod's program to the end of its last container is billed once."""
    segments = ask(
        portal,
        "SELECT uid, gpus, started, ended, flags FROM billing_usagesegment WHERE labels->>'cluster' = 'in-containers'",
    )
    assert len(segments) == 4
    seconds = 0
    for uid, gpus, started, ended, flags in segments:
        containers = node.containers(uid)
        assert {container.name for container in containers} >= {"fetch", "store", "task"}
        assert (started, ended, flags) == (
            min(container.started for container in containers if container.name == "task"),
            max(container.finished for container in containers),
            [],
        )
        seconds += gpus * int((ended - started).total_seconds())
    runs = "SELECT r.gpu_seconds FROM clusters_run r JOIN clusters_cluster c ON c.id = r.cluster_id WHERE c.name = %s"
    assert ask(portal, runs, "in-containers") == [(seconds,)]
    tasks = ask(
        portal,
        "SELECT t.uid, t.started_at, t.finished_at FROM clusters_task t JOIN clusters_run r ON r.id = t.run_id"
        " JOIN clusters_cluster c ON c.id = r.cluster_id WHERE c.name = %s",
        "in-containers",
    )
    for uid, started, finished in tasks:
        (task,) = [container for container in node.containers(uid) if container.name == "task"]
        assert started == task.started
        assert finished >= task.finished


def stored(portal: Portal) -> None:
    """Finds the output with the appcode's keys at the address that pods use. The keys do not open the bucket of logs."""
    alice = Client(portal, "alice")
    own, keys = (alice.call("POST", f"/appcodes/ops-demo/{each}") for each in ("storage", "storage/keys"))
    theirs = client({"URL": own["endpoint"], "ACCESS_KEY": keys["accessKey"], "SECRET_KEY": keys["secretKey"]})
    found = theirs.list_objects_v2(Bucket=own["bucket"])["Contents"]
    assert [each for each in found if "in-containers/" in each["Key"] and Path(each["Key"]).name == "saved_model.pb"]
    with pytest.raises(ClientError, match="AccessDenied"):
        theirs.list_objects_v2(Bucket="gpu-cloud-logs")
    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{own['endpoint']}/{own['bucket']}")


def test_its_parameter_server_was_gone_with_the_workers(node: Node, portal: Portal) -> None:
    """A parameter server is not billed after its master has finished, and its containers are really gone."""
    ends = dict(ask(
        portal,
        "SELECT labels->>'role', max(ended) FROM billing_usagesegment WHERE labels->>'cluster' = 'in-containers' GROUP BY 1",
    ))  # fmt: skip
    assert abs((ends["ps"] - ends["master"]).total_seconds()) <= 60
    mine = "SELECT uid FROM billing_usagesegment WHERE labels->>'cluster' = 'in-containers'"
    uids = {uid for (uid,) in ask(portal, mine)}
    assert eventually(lambda: not [c for c in node.containers() if c.present and c.pod_uid in uids], 180)
