"""The real node: containers run, and Kubernetes reports what containerd knows."""

from __future__ import annotations

import http.server
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kubernetes_client
from kubernetes.stream import stream

from tests.kube import archives
from tests.kube.node import Node
from tests.kube.plane import GPU, Object, Refused, phase
from tests.running import eventually

pytestmark = [pytest.mark.kube, pytest.mark.node]

IMAGE = "gpu-cloud/busybox:1"


class Room:
    """A namespace under Pod Security "restricted", and helpers for tests in it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.plane = node.plane
        self.name = f"test-{secrets.token_hex(4)}"
        self.plane.make_namespace(self.name, {"pod-security.kubernetes.io/enforce": "restricted"})
        self.pods = f"/api/v1/namespaces/{self.name}/pods"

    def create(self, path: str, body: Object) -> Object:
        return self.plane.request("POST", f"{path}/namespaces/{self.name}/{body['kind'].lower()}s", body)

    def run(self, name: str, script: str, **changes: Any) -> Object:
        return self.create("/api/v1", pod(name, script, **changes))

    def until(self, name: str, *phases: str, seconds: float = 120.0) -> Object:
        """Waits until the pod is in one of these phases. Returns the pod."""
        found = self.plane.until(
            self.pods, lambda pods: name in pods and phase(pods[name]) in phases, seconds, labelSelector=f"name={name}"
        )
        return found[name]

    def output(self, name: str, script: str) -> str:
        """Runs a script that must succeed. Returns its output."""
        self.run(name, script)
        ended = self.until(name, "Succeeded", "Failed")
        assert phase(ended) == "Succeeded", (ended["status"], self.log(name))
        return self.log(name)

    def log(self, name: str, container: str = "task") -> str:
        core = kubernetes_client.CoreV1Api(self.plane.client())
        answer = core.read_namespaced_pod_log(name, self.name, container=container, _preload_content=False)
        return answer.data.decode()


@pytest.fixture(scope="module")
def machine(node: Node) -> Node:
    node.import_image(archives.busybox())
    return node


@pytest.fixture
def room(machine: Node) -> Iterator[Room]:
    room = Room(machine)
    yield room
    machine.plane.request("DELETE", f"/api/v1/namespaces/{room.name}")


def pod(name: str, script: str, **changes: Any) -> Object:
    """Returns a restricted pod, like the portal's. `changes` apply to the container, `spec` to the pod's spec."""
    more = changes.pop("spec", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"name": name}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 5,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container("task", script, **changes)],
            **more,
        },
    }


def container(name: str, script: str, **changes: Any) -> Object:
    return {
        "name": name,
        "image": IMAGE,
        "command": ["sh", "-c", script],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **changes,
    }


def state(pod: Object, name: str = "task") -> Mapping[str, Any]:
    """Returns the status of one container."""
    status = pod["status"]
    every = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    return next(each for each in every if each["name"] == name)


def test_a_restricted_pod_runs_and_its_log_and_exit_code_are_its_own(room: Room) -> None:
    room.run("task", "id -u; echo on the other stream >&2; cat /proc/1/cgroup >/dev/null; exit 3")
    ended = room.until("task", "Failed")
    assert state(ended)["state"]["terminated"]["exitCode"] == 3
    # The streams are two pipes, which are read in random order.
    assert sorted(room.log("task").splitlines()) == ["1000", "on the other stream"]


def test_a_pod_with_rights_is_refused(room: Room) -> None:
    with pytest.raises(Refused, match="violates PodSecurity"):
        room.run("task", "true", securityContext={"privileged": True})


def test_times_are_those_of_containerd_to_the_second(room: Room) -> None:
    uid = room.run("task", "sleep 1.5")["metadata"]["uid"]
    told = state(room.until("task", "Succeeded"))["state"]["terminated"]
    (known,) = room.node.containers(uid)
    assert (told["startedAt"], told["finishedAt"]) == (_api(known.started), _api(known.finished))
    assert 1.5e9 < known.finished_at - known.started_at < 20e9
    assert (known.pod, known.name, known.exit_code, known.state) == ("task", "task", 0, "CONTAINER_EXITED")


def test_records_outlive_the_containers(room: Room) -> None:
    uid = room.run("task", "sleep 0.1")["metadata"]["uid"]
    room.until("task", "Succeeded")
    room.plane.request("DELETE", f"{room.pods}/task")
    room.plane.until(room.pods, lambda pods: not pods)
    # The node records containerd's events shortly after they happen.
    assert eventually(lambda: [each for each in room.node.containers(uid) if each.finished_at], 60)
    (known,) = room.node.containers(uid)
    assert 0 < known.created_at < known.started_at < known.finished_at


def test_commands_inside_a_pod_have_their_exit_code(room: Room) -> None:
    room.run("task", "sleep 100")
    room.until("task", "Running")
    assert _exec(room, "echo out; echo err >&2; exit 7") == ("out\n", "err\n", 7)
    assert _exec(room, "tr '\\0' ' ' </proc/1/cmdline") == ("sleep 100 ", "", 0)


def test_names_of_an_indexed_jobs_pods(room: Room) -> None:
    service = {
        "kind": "Service",
        "metadata": {"name": "run"},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"name": "worker"}},
    }
    room.create("/api/v1", service)
    template = pod("worker", "sleep 100", spec={"subdomain": "run"})
    job = {
        "kind": "Job",
        "metadata": {"name": "worker"},
        "spec": {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "template": {"metadata": {"labels": {"name": "worker"}}, "spec": template["spec"]},
        },
    }
    room.create("/apis/batch/v1", job)
    workers = room.plane.until(
        room.pods,
        lambda pods: len(pods) == 2 and all(phase(each) == "Running" for each in pods.values()),
        labelSelector="name=worker",
    )
    addresses = {each["spec"]["hostname"]: each["status"]["podIP"] for each in workers.values()}
    assert set(addresses) == {"worker-0", "worker-1"}
    full = f"worker-1.run.{room.name}.svc.cluster.local"
    said = room.output("client", f"until nslookup -type=a {full}; do sleep 0.2; done")
    assert f"Name:\t{full}\nAddress: {addresses['worker-1']}\n" in said
    # Look-up as programs do it, with the search path of /etc/resolv.conf.
    said = room.output(
        "program",
        "until ping -c 1 -w 1 worker-0.run >/tmp/said 2>&1; do sleep 0.2; grep PING /tmp/said && break; done; cat /tmp/said",
    )
    assert f"PING worker-0.run ({addresses['worker-0']})" in said


def test_services_are_reached(room: Room) -> None:
    room.run("web", "mkdir /tmp/www && echo welcome >/tmp/www/index.html && httpd -f -p 8080 -h /tmp/www")
    service = {
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"name": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    address = room.create("/api/v1", service)["spec"]["clusterIP"]
    assert (
        room.output("by-address", f"until (timeout 2 wget -q -O - http://{address}) 2>/dev/null; do sleep 0.2; done")
        == "welcome\n"
    )
    assert (
        room.output("by-name", "until (timeout 2 wget -q -O - http://web) 2>/dev/null; do sleep 0.2; done")
        == "welcome\n"
    )


def test_pods_reach_the_host_and_the_api_server(room: Room, tmp_path: Path) -> None:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.client_address[0].encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer((room.node.gateway, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"http://{room.node.gateway}:{server.server_port}"
            assert room.output("host", f"wget -q -O - {url}") == _address(room, "host")
        finally:
            server.shutdown()
    assert room.output("api", "nc -w 5 kubernetes.default.svc 443 </dev/null && echo connected") == "connected\n"


def test_a_program_that_fails_is_started_again_in_its_pod(room: Room) -> None:
    # The volume belongs to the pod, so the second start of the container finds what the first one left.
    scratch = {"restartPolicy": "OnFailure", "volumes": [{"name": "scratch", "emptyDir": {}}]}
    mount = [{"name": "scratch", "mountPath": "/scratch"}]
    script = "[ -e /scratch/second ] && exit 0; touch /scratch/second; exit 9"
    uid = room.run("task", script, volumeMounts=mount, spec=scratch)["metadata"]["uid"]
    ended = room.until("task", "Succeeded")
    assert state(ended)["restartCount"] == 1
    assert [(each.attempt, each.exit_code) for each in room.node.containers(uid)] == [(0, 9), (1, 0)]


def test_too_much_memory_is_told_as_such(room: Room) -> None:
    limits = {"limits": {"memory": "32Mi"}}
    room.run("task", "awk 'BEGIN { text = \"x\"; while (1) text = text text }'", resources=limits)
    told = state(room.until("task", "Failed"))["state"]["terminated"]
    assert (told["reason"], told["exitCode"]) == ("OOMKilled", 137)


def test_a_sidecar_ends_after_its_task(room: Room) -> None:
    # A container counts as running shortly before its program does, so the task waits until the sidecar listens.
    script = "trap 'echo stored; exit 0' TERM; touch /both/up; while :; do sleep 0.1; done"
    both = {"volumeMounts": [{"name": "both", "mountPath": "/both"}]}
    sidecar = {**container("sidecar", script, **both), "restartPolicy": "Always"}
    spec = {"initContainers": [sidecar], "volumes": [{"name": "both", "emptyDir": {}}]}
    task = "until [ -e /both/up ]; do sleep 0.1; done"
    uid = room.run("task", task, spec=spec, **both)["metadata"]["uid"]
    ended = room.until("task", "Succeeded")
    assert state(ended, "sidecar")["state"]["terminated"]["exitCode"] == 0
    assert room.log("task", "sidecar") == "stored\n"
    known = {each.name: each for each in room.node.containers(uid)}
    assert known["sidecar"].started_at < known["task"].started_at
    assert known["task"].finished_at < known["sidecar"].finished_at


def test_an_image_that_is_nowhere(room: Room) -> None:
    room.run("task", "true", image="gpu-cloud/nowhere:1")

    def waits(pods: dict[str, Object]) -> bool:
        waiting = [each["state"].get("waiting", {}) for each in pods["task"]["status"].get("containerStatuses", [])]
        return any(each.get("reason") == "ImagePullBackOff" for each in waiting)

    pods = room.plane.until(room.pods, waits)
    assert "gpu-cloud/nowhere:1" in state(pods["task"])["state"]["waiting"]["message"]


def test_simulated_gpus_are_given_away_once(room: Room) -> None:
    wants = {"limits": {GPU: "5"}}
    room.run("first", "trap exit TERM; while :; do sleep 0.1; done", resources=wants)
    room.until("first", "Running")
    room.run("second", "true", resources=wants)

    def waits(pods: dict[str, Object]) -> bool:
        conditions = pods["second"]["status"].get("conditions", [])
        return any(each.get("reason") == "Unschedulable" for each in conditions)

    pods = room.plane.until(room.pods, waits)
    (why,) = [each["message"] for each in pods["second"]["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert "Insufficient nvidia.com/gpu" in why
    room.plane.request("DELETE", f"{room.pods}/first")
    room.until("second", "Succeeded")


def test_nothing_of_the_node_shows_on_the_host(machine: Node) -> None:
    """Its mounts, rules and processes are in namespaces that end with it, so the host does not see them even now."""
    assert str(machine._state) not in Path("/proc/self/mountinfo").read_text()
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    assert "KUBE-" not in rules
    # The machine has a pid namespace and sees no processes outside it.
    inside = subprocess.run([*machine._inside, "ps", "-o", "pid=,args="], capture_output=True, text=True, check=True)
    assert inside.stdout.split()[:2] == ["1", "bash"]
    space = subprocess.run(
        [*machine._inside, "readlink", "/proc/self/ns/pid"], capture_output=True, text=True, check=True
    )
    assert space.stdout.strip() != os.readlink("/proc/self/ns/pid")


def _address(room: Room, name: str) -> str:
    return str(room.plane.request("GET", f"{room.pods}/{name}")["status"]["podIP"])


def _api(time: Any) -> str:
    return str(time.strftime("%Y-%m-%dT%H:%M:%SZ"))


def _exec(room: Room, script: str) -> tuple[str, str, int]:
    core = kubernetes_client.CoreV1Api(room.plane.client())
    channel = stream(
        core.connect_get_namespaced_pod_exec,
        "task",
        room.name,
        command=["sh", "-c", script],
        stdin=False,
        stdout=True,
        stderr=True,
        tty=False,
        _preload_content=False,
    )
    channel.run_forever(timeout=60)
    return channel.read_stdout(), channel.read_stderr(), channel.returncode
