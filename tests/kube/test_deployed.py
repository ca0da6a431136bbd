"""The portal inside Kubernetes: docker/kubernetes applied to a real node and used as users do.

PostgreSQL and Valkey run beside the node, like external servers; Traefik is the ingress controller. The portal's image is
that of docker/portal. All tests here share one deployment and depend on their order.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg2
import pytest
import urllib3
from django.test import override_settings

from portal.db.advisory_lock import Lock
from portal.up import servers, services
from portal.up.services import Service, free_port
from tests import s3server
from tests.kube import images
from tests.kube.binary import binary
from tests.kube.certificates import Authority
from tests.kube.following import hand_over
from tests.kube.node import Node
from tests.kube.plane import Object, condition
from tests.kube.test_deployment import HOST, NAMESPACE, filled_in
from tests.running import eventually

pytestmark = [pytest.mark.kube, pytest.mark.node, pytest.mark.timeout(1800), pytest.mark.images("portal")]

PASSWORD, LOGS_KEY = secrets.token_hex(16), f"LOGS{secrets.token_hex(8).upper()}"
# What an administrator creates before anyone can work: an appcode with its owner, a flavor, an image, a price.
SETUP = f"""
from django.db import transaction
from clusters.models import Flavor, Image
from portal.models import Appcode, Membership, OrgNode, User
alice = User.objects.create_user("alice", "alice@example.com", "{PASSWORD}")
line = OrgNode.objects.create(path="qunarcorp.ops", title="OPS", namespace="ops")
with transaction.atomic():
    code = Appcode.objects.create(code="ops-demo", org_node=line, emails=["ops@example.com"], state="active", gpu_quota=8)
    Membership.objects.create(user=alice, appcode=code, role="owner")
Flavor.objects.create(name="small", title="Small", cpu_milli=100, memory_mb=128)
Flavor.objects.create(name="small-1-gpu", title="Small + 1 GPU", cpu_milli=100, memory_mb=128, gpus=1)
Image.objects.create(name="python", title="Python", container="{images.TAGS["portal"]}")
"""


@dataclass
class Deployed:
    node: Node
    database: str
    gateway: Callable[[], urllib3.HTTPSConnectionPool]

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        argv = [
            str(binary()),
            "kubectl",
            f"--kubeconfig={self.node.plane.kubeconfig}",
            f"--namespace={NAMESPACE}",
            *arguments,
        ]
        done = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=700, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pods(self, role: str) -> dict[str, Object]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        found = self.node.plane.request("GET", path, labelSelector=f"app.kubernetes.io/name={role}")
        return {pod["metadata"]["name"]: pod for pod in found["items"]}

    def leader(self) -> str:
        """Returns the address of the pod whose controller follows the cluster, or "" if there is none at the moment."""
        query = """
            SELECT host(client_addr) FROM pg_locks JOIN pg_stat_activity USING (pid)
            WHERE locktype = 'advisory' AND granted AND datname = current_database()
                AND classid = %s AND objid::bigint = hashtext('main')::bigint & 4294967295
        """
        with psycopg2.connect(self.database) as connection, connection.cursor() as cursor:
            cursor.execute(query, [Lock.FOLLOWER])
            return "".join(row[0] for row in cursor.fetchall())


@pytest.fixture(scope="module")
def deployed(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    from clusters.cloud_admin.manifest import own_label

    node.import_image(images.image("portal"))
    folder = tmp_path_factory.mktemp("deployed")
    logs = services.private_folder(folder / "log")
    with services.running([postgres(node, folder), valkey(node, folder), s3(node, folder)], logs, os.environ):
        database = f"postgresql://portal:{PASSWORD}@{node.gateway}/portal"
        queue = f"redis://:{PASSWORD}@{node.gateway}:6379/0"
        kustomization, key = filled_in(folder), secrets.token_hex(32)
        with override_settings(SECRET_KEY=key):
            # Other tests may have used the same business line on this node.
            hand_over(node.plane, own_label(), "ops")
        (kustomization / "secrets.env").write_text(
            f"PORTAL_SECRET_KEY={key}\nDATABASE_URL={database}\nREDIS_URL={queue}\n"
            f"PORTAL_LOGS_S3_URL=http://{node.gateway}:9000\n"
            f"PORTAL_LOGS_S3_ACCESS_KEY={LOGS_KEY}\nPORTAL_LOGS_S3_SECRET_KEY={PASSWORD}\n"
        )
        port = free_port()
        believed, ingress = traefik(node, folder, port)

        def gateway() -> urllib3.HTTPSConnectionPool:
            return urllib3.HTTPSConnectionPool(
                "127.0.0.1", port, ca_certs=str(believed), server_hostname=HOST, assert_hostname=HOST, retries=False,
                timeout=30, headers={"Host": HOST},
            )  # fmt: skip

        deployed = Deployed(node, database, gateway)
        try:
            deployed.kubectl("apply", "--server-side", "-k", str(kustomization))
            deployed.kubectl(
                "create",
                "secret",
                "tls",
                "portal-tls",
                f"--cert={folder / 'portal.crt'}",
                f"--key={folder / 'portal.key'}",
            )
            with services.running([ingress], logs, os.environ):
                yield deployed
        finally:
            node.plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}")


def postgres(node: Node, folder: Path) -> Service:
    """PostgreSQL with a password, at the host's address that the node reaches."""
    service = servers.postgres(folder / "postgres", folder / "run", log=folder / "initdb.log", durable=False)
    with (folder / "postgres/pg_hba.conf").open("a") as rules:
        rules.write("host all all 10.0.0.0/8 scram-sha-256\n")

    def ready() -> bool:
        if not service.ready():
            return False
        with psycopg2.connect(service.url) as connection, connection.cursor() as cursor:
            cursor.execute("ALTER ROLE portal PASSWORD %s", [PASSWORD])
        return True

    return replace(service, argv=(*service.argv, "-c", f"listen_addresses={node.gateway}"), ready=ready)


def valkey(node: Node, folder: Path) -> Service:
    service = servers.valkey(folder / "valkey", services.socket_folder(folder))
    config = folder / "valkey/valkey.conf"
    beyond = f"port 6379\nbind {node.gateway}\nrequirepass {PASSWORD}\n"
    config.write_text(config.read_text().replace("port 0\n", beyond))
    return replace(service, ready=listens(node.gateway, 6379))


def s3(node: Node, folder: Path) -> Service:
    """An S3 server for the logs of tasks."""
    (folder / "s3/gpu-cloud-logs").mkdir(parents=True)
    service = s3server.s3(folder / "s3", 9000, LOGS_KEY, PASSWORD)
    return replace(
        service,
        argv=tuple(word.replace("127.0.0.1:", f"{node.gateway}:") for word in service.argv),
        ready=listens(node.gateway, 9000),
    )


def listens(host: str, port: int) -> Callable[[], bool]:
    def ready() -> bool:
        with socket.socket() as client:
            return client.connect_ex((host, port)) == 0

    return ready


def traefik(node: Node, folder: Path, port: int) -> tuple[Path, Service]:
    """Returns (file of the certificate authority to trust, the ingress controller)."""
    authority = Authority(folder, "127.0.0.1")
    authority.issue("portal", file="portal", hosts=[HOST])
    env = {
        "KUBECONFIG": str(node.plane.kubeconfig),
        "TRAEFIK_PROVIDERS_KUBERNETESINGRESS": "true",
        "TRAEFIK_ENTRYPOINTS_WEBSECURE_ADDRESS": f"127.0.0.1:{port}",
        "TRAEFIK_ENTRYPOINTS_WEBSECURE_HTTP_TLS": "true",
        "TRAEFIK_GLOBAL_CHECKNEWVERSION": "false",
        "TRAEFIK_GLOBAL_SENDANONYMOUSUSAGE": "false",
    }
    return authority.path, Service("traefik", (services.program("traefik"),), env=env)


class Person:
    """A browser's side of the requests: cookies and the CSRF token of forms."""

    def __init__(self, deployed: Deployed, name: str) -> None:
        self.pool = deployed.gateway()
        self.cookies: dict[str, str] = {}
        page = self("GET", "/accounts/login/")
        found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.data.decode())
        assert found, page.data
        form = {"login": name, "password": PASSWORD, "csrfmiddlewaretoken": found[1]}
        answer = self("POST", "/accounts/login/", urlencode(form), "application/x-www-form-urlencoded")
        assert (answer.status, "__Host-sessionid" in self.cookies) == (302, True), answer.data

    def __call__(
        self, method: str, path: str, body: str = "", kind: str = "application/json"
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Host": HOST, "Referer": f"https://{HOST}/", **({"Content-Type": kind} if body else {})}
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if "__Host-csrftoken" in self.cookies:
            headers["X-CSRFToken"] = self.cookies["__Host-csrftoken"]
        answer = self.pool.request(method, path, body=body or None, headers=headers, redirect=False)
        for line in answer.headers.getlist("Set-Cookie"):
            assert "Secure" in line
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
        return answer

    def run(self, name: str, command: str, flavor: str = "small", seconds: float = 240) -> dict[str, Any]:
        """Creates a cluster of one task and returns its final status."""
        spec = {"image": "python", "command": command, "roles": {"master": {"flavor": flavor}}}
        manifest = {"kind": "cluster", "metadata": {"name": name}, "spec": spec}
        path = "/api/v1/appcodes/ops-demo/clusters"
        answer = self("POST", path, json.dumps(manifest))
        assert answer.status == 201, answer.data
        end = time.monotonic() + seconds
        while (status := self("GET", f"{path}/{name}").json()["status"])["phase"] not in (
            "Succeeded",
            "Failed",
            "Stopped",
        ):
            assert time.monotonic() < end, status
            time.sleep(0.5)  # REST has no notifications
        return dict(status)


def are_ready(pods: dict[str, Object]) -> bool:
    return bool(pods) and all(condition(pod, "Ready") == "True" for pod in pods.values())


def test_it_becomes_ready_by_itself(deployed: Deployed) -> None:
    deployed.kubectl("wait", "--for=condition=complete", "job/migrate", "--timeout=600s")
    for role in ("web", "worker", "beat", "controller", "router"):
        deployed.kubectl("rollout", "status", f"deployment/{role}", "--timeout=600s")
        assert eventually(lambda role=role: are_ready(deployed.pods(role)), 120)
    said = deployed.kubectl("logs", "job/migrate", "--all-containers")
    assert "main: " in said
    assert PASSWORD not in said


def test_its_programs_are_confined(deployed: Deployed) -> None:
    web = ("exec", "deployment/web", "--")
    assert deployed.kubectl(*web, "id", "-u") == "1000\n"
    with pytest.raises(AssertionError, match="Read-only file system"):
        deployed.kubectl(*web, "touch", "/opt/portal/here")
    assert "token" in deployed.kubectl(*web, "ls", "/var/run/secrets/kubernetes.io/serviceaccount")
    with pytest.raises(AssertionError, match="No such file"):
        deployed.kubectl("exec", "deployment/beat", "--", "ls", "/var/run/secrets/kubernetes.io/serviceaccount")


def is_up(deployed: Deployed) -> bool:
    """Returns False also while the gateway itself is down or lacks its certificate."""
    try:
        return deployed.gateway().request("GET", "/readyz").status == 200
    except urllib3.exceptions.HTTPError:
        return False


@pytest.fixture(scope="module")
def alice(deployed: Deployed) -> Person:
    deployed.kubectl("exec", "-i", "deployment/web", "--", "python", "manage.py", "shell", given=SETUP)
    assert eventually(lambda: is_up(deployed), 120)
    return Person(deployed, "alice")


def test_people_sign_in_through_the_ingress(alice: Person) -> None:
    page = alice("GET", "/")
    assert page.status == 200
    style = re.search(r'href="(/static/[^"]+\.css)"', page.data.decode())
    assert style
    assert alice("GET", style[1]).headers["Cache-Control"].startswith("max-age=31536")


def test_a_cluster_runs_to_its_end_in_the_kubernetes_that_the_portal_is_in(alice: Person, deployed: Deployed) -> None:
    status = alice.run("hello", "echo $PORTAL_ROLE-$TASK_INDEX", flavor="small-1-gpu")
    assert status["phase"] == "Succeeded", status
    log = "/api/v1/appcodes/ops-demo/clusters/hello/runs/1/tasks/master/0/log"
    # Its pod is gone, and the log may still be on its way to the archive.
    assert eventually(lambda: "master-0" in alice("GET", log).data.decode(), 60)


def test_routers_answer_at_the_domain_of_services_and_replicas_let_them_in(alice: Person, deployed: Deployed) -> None:
    answer = alice.pool.request("GET", "/v2", headers={"Host": f"digits-ops-demo.serve.{HOST}"})
    assert (answer.status, answer.json()) == (404, {"error": "There is nothing here that you may open."})
    with psycopg2.connect(deployed.database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT settings ->> 'router_namespace' FROM clusters_cloud WHERE name = 'main'")
        assert cursor.fetchall() == [(NAMESPACE,)]
        cursor.execute("SELECT split_part(name, ':', 1) FROM clusters_router WHERE seen_at > now() - interval '15 s'")
        assert {name for (name,) in cursor.fetchall()} == set(deployed.pods("router"))


@pytest.mark.parametrize(
    ("role", "host", "path", "status"),
    [("web", HOST, "/accounts/login/", 200), ("router", f"digits-ops-demo.serve.{HOST}", "/v2", 404)],
)
def test_a_rolling_restart_loses_no_request(
    alice: Person, deployed: Deployed, role: str, host: str, path: str, status: int
) -> None:
    before = set(deployed.pods(role))
    answers: list[int | str] = []
    done = threading.Event()

    def ask(fresh: bool) -> None:
        pool = deployed.gateway()
        while not done.is_set():
            headers = {"Connection": "close"} if fresh else {}
            try:
                answer = pool.request("GET", path, headers={"Host": host, **headers})
                # The ingress controller's own 404 is not JSON.
                mine = status == 200 or answer.data.startswith(b"{")
                answers.append(answer.status if mine else f"{answer.status} {answer.data!r}")
            except urllib3.exceptions.HTTPError as error:
                answers.append(str(error))

    people = [threading.Thread(target=ask, args=(fresh,)) for fresh in (True, False)]
    for person in people:
        person.start()
    try:
        deployed.kubectl("rollout", "restart", f"deployment/{role}")
        deployed.kubectl("rollout", "status", f"deployment/{role}", "--timeout=600s")
        assert eventually(lambda: not before & set(deployed.pods(role)), 180)
        # Their number depends on the machine.
        assert eventually(lambda: len(answers) > 100, 120)
    finally:
        done.set()
        for person in people:
            person.join()
    assert [answer for answer in answers if answer != status] == []


def test_a_controller_that_is_killed_hands_over(alice: Person, deployed: Deployed) -> None:
    pods = {pod["status"]["podIP"]: name for name, pod in deployed.pods("controller").items()}
    assert len(pods) == 2
    # A controller that lost its connection may be waiting for the lock again.
    leaders: list[str] = []
    assert eventually(lambda: leaders.append(deployed.leader()) or leaders[-1] in pods, 60)
    first = leaders[-1]
    deployed.kubectl("delete", "pod", pods[first], "--grace-period=0", "--force")
    # The new leader is either the other pod or the replacement: whichever has waited longer for the lock.
    assert eventually(lambda: deployed.leader() not in ("", first), 120)
    assert alice.run("again", "true")["phase"] == "Succeeded"
