"""One real node for a test plane: containers with real clocks, logs, exit codes and limits.

The node is this machine under another name: Debian's containerd, runc and CNI plugins, and the kubelet, kube-proxy and
CoreDNS of tests/plane, in their own network, mount, process and host name namespaces (machine.sh). Everything ends with the
process that started it and leaves no mount, cgroup, network device, iptables rule or process on the host. Images of docker/
are unpacked once for all nodes, in the cache outside the source tree (layers.py).

    layers.unpack([images.image("tensorflow")])
    with running_node(folder) as node:            # node.plane listens where the node's pods reach it
        node.import_image(images.image("tensorflow"))
        node.plane.request("POST", "/api/v1/namespaces/default/pods", {...})
        node.containers(pod_uid)                  # containerd's own records

Concurrent nodes have different slots. Slot N: host 10.209.N.1, node 10.209.N.2, pods 10.210.N.0/24, which the host can reach.
Servers for pods (S3, PostgreSQL) listen on 10.209.N.1. Services are 10.96.0.0/16, reachable from pods. GPUs are simulated: the
API server believes that the node has some, so tasks with GPUs are counted, scheduled and metered, but find no device.
NetworkPolicies are admitted and stored, but not enforced. The node cannot pull images, and its DNS resolves only names of the
cluster.

Plane and node start in 7 s on two cores. Tested on machines with cgroup version 1.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import urllib3

from portal.up import services
from portal.up.services import Service, ServiceError
from tests.kube import archives, layers
from tests.kube.binary import binary, cache
from tests.kube.layers import output
from tests.kube.plane import GPU, GPU_MODEL, KUBELET_CLIENT, Object, Plane, Refused, condition

MACHINE = Path(__file__).with_name("machine.sh")
CNI = Path("/usr/lib/cni")
PROGRAMS = ("containerd", "ctr", "runc", "iptables", "conntrack", "ip", "nsenter", "unshare", "busybox")
PACKAGES = "containerd runc containernetworking-plugins iptables conntrack iproute2 busybox-static"
SLOTS = range(1, 9)
DNS = "10.96.0.10"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
START_SECONDS = 120.0


@dataclass(frozen=True)
class Container:
    """containerd's record of a container. Times are nanoseconds since 1970, 0 if it has not happened.

    `present` is False if the kubelet has removed the container since.
    """

    id: str
    pod_uid: str
    namespace: str
    pod: str
    name: str
    attempt: int
    state: str
    created_at: int
    started_at: int
    finished_at: int
    exit_code: int
    reason: str
    present: bool

    @property
    def started(self) -> dt.datetime:
        """To the second, as the Kubernetes API reports it."""
        return dt.datetime.fromtimestamp(self.started_at // 10**9, dt.UTC)

    @property
    def finished(self) -> dt.datetime:
        """To the second, as the Kubernetes API reports it."""
        return dt.datetime.fromtimestamp(self.finished_at // 10**9, dt.UTC)


class Node:
    """One real node. Start it from a main thread (see services.spawn). Logs are in `folder`/log."""

    plane: Plane

    def __init__(self, folder: Path) -> None:
        self.logs = services.private_folder(services.private_folder(folder) / "log")
        self._running: dict[str, tuple[Service, subprocess.Popen[bytes]]] = {}
        self._machine: subprocess.Popen[str] | None = None

    # Starting and stopping

    def start(self) -> None:
        """Starts the machine and its containerd, which may need another moment. Raises ServiceError with what to install."""
        _check()
        slot, lock = _free_slot()
        self.name = f"machine-{slot}"
        self.gateway, self.address, self.pods = f"10.209.{slot}.1", f"10.209.{slot}.2", f"10.210.{slot}.0/24"
        self._store = cache(f"node/{slot}")
        _empty(self._store)
        used = layers.link(self._store)
        # Not below a test's folder, because Unix socket paths must be short; everything but the logs is deleted with the machine.
        self._state = Path(tempfile.mkdtemp(prefix="node-"))
        self._socket = self._state / "containerd.sock"
        try:
            self._start_machine(f"node{slot}", lock, used)
            self._spawn(self._containerd())
        except BaseException:
            self.stop()
            raise

    def join(self, plane: Plane, gpus: int = 8, model: str = "NVIDIA-A100") -> None:
        """Joins the plane. Returns when pods can be scheduled on it, and Services and names work."""
        self.plane = plane
        self._program = str(binary())
        self._wait("containerd")
        # Containers that the last machine with this store left when it was switched off.
        self._records("--remove")
        follower = (self._program, "containers", "--follow", "--socket", str(self._socket))
        self._spawn(Service("containers", follower))
        self.import_image(archives.pause())
        self._grant()
        self._spawn(self._kubelet(), self._kube_proxy(), self._coredns())
        self._wait("kube-proxy", "coredns")
        plane.until("/api/v1/nodes", lambda nodes: self._is_ready(nodes.get(self.name)), START_SECONDS)
        self._add_gpus(gpus, model)

    def stop(self) -> None:
        """Kills everything at once, like a power cut. State that would need cleaning up is deleted."""
        if self._machine:
            assert self._machine.stdin
            self._machine.stdin.close()
            self._machine.wait()
        for service, process in self._running.values():
            services.stop(service, process)

    def fall_silent(self) -> None:
        """Kills its kubelet, as if the machine were cut off: containers continue, but report nothing."""
        _, process = self._running.pop("kubelet")
        # nsenter waits for its child and would orphan it if killed itself.
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        process.wait()

    def come_back(self) -> None:
        """Restarts the kubelet. Returns when pods can be scheduled on the node and it is no longer marked unreachable."""
        self._spawn(self._kubelet())
        self.plane.request("PATCH", f"/api/v1/nodes/{self.name}", {"spec": {"taints": None}})
        self.plane.until("/api/v1/nodes", lambda nodes: self._is_ready(nodes.get(self.name)), START_SECONDS)

    def check(self) -> None:
        """Raises ServiceError if one of its programs has ended."""
        for name, (_, process) in self._running.items():
            if process.poll() is not None:
                log = self.logs / f"{name}.log"
                raise ServiceError(f"{name} ended: {services.last_line(log)} (more in {log})")

    # What runs on it

    def import_image(self, archive: Path) -> None:
        """Imports an OCI or Docker archive that contains the full image name. Takes no time if it was unpacked for all nodes
        or the image exists."""
        label, second = layers.label(archive), layers.second_name(archive)
        found = {line.split()[0] for line in self._ctr("images", "ls").splitlines() if label in line}
        if found - {second}:
            return
        if second in found:
            # The version of another checkout has its name.
            names = layers.names(archive)
            for name in names:
                self._ctr("images", "tag", "--force", second, name)
        else:
            names = layers.import_archive(self._socket, archive)
        # If containerd's CRI plugin does not list the image yet, the kubelet would wait long before its next try.
        end = time.monotonic() + START_SECONDS
        while not all(
            "io.cri-containerd.image=managed" in self._ctr("images", "ls", f"name=={name}") for name in names
        ):
            if time.monotonic() > end:
                raise ServiceError(f"containerd does not offer {', '.join(names)}.")
            time.sleep(0.02)

    def containers(self, pod_uid: str = "") -> list[Container]:
        """Returns the containers of a pod, or all, in order of creation, including removed ones."""
        found = {record["id"]: Container(**record, present=False) for record in _lines(self._log("containers"))}
        found |= {record["id"]: Container(**record, present=True) for record in _lines(self._records())}
        wanted = (container for container in found.values() if pod_uid in ("", container.pod_uid))
        return sorted(wanted, key=lambda container: container.created_at)

    def pods_alive(self) -> set[str]:
        """Returns the uids of pods with a running process, even if it is only the sandbox."""
        running = self._ctr("tasks", "ls", "--quiet").split()
        return {
            json.loads(self._ctr("containers", "info", each))["Labels"]["io.kubernetes.pod.uid"] for each in running
        }

    def _records(self, *flags: str) -> str:
        return output(self._program, "containers", "--socket", str(self._socket), *flags)

    def _ctr(self, *args: str) -> str:
        return layers.ctr(self._socket, *args)

    # The machine

    def _start_machine(self, link: str, *locks: IO[bytes]) -> None:
        (self._state / "resolv.conf").write_text("")
        with ExitStack() as open_files:
            log = open_files.enter_context((self.logs / "machine.log").open("wb"))
            # The machine holds the locks, so its slot is free only when all its processes have ended.
            for lock in locks:
                open_files.enter_context(lock)
            self._machine = subprocess.Popen(
                ["bash", str(MACHINE), "outside", self.name, link, str(self._state)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                pass_fds=[lock.fileno() for lock in locks],
            )
        assert self._machine.stdout
        pid = self._machine.stdout.readline().strip()
        if not pid:
            raise ServiceError(f"No machine can be made: {services.last_line(self.logs / 'machine.log')}")
        self._inside = ("nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--pid", "--")
        device = "eth0"
        output("ip", "link", "add", link, "type", "veth", "peer", "name", device, "netns", pid)
        output("ip", "address", "add", f"{self.gateway}/24", "dev", link)
        output("ip", "link", "set", link, "up")
        output("ip", "route", "add", self.pods, "via", self.address)
        output(*self._inside, "ip", "address", "add", f"{self.address}/24", "dev", device)
        output(*self._inside, "ip", "link", "set", device, "up")
        output(*self._inside, "ip", "route", "add", "default", "via", self.gateway)
        for controller in _cgroup_roots():
            (controller / self.name).mkdir(exist_ok=True)

    def _spawn(self, *wanted: Service) -> None:
        for service in wanted:
            process = services.spawn(service, self.logs / f"{service.name}.log", os.environ)
            self._running[service.name] = (service, process)

    def _wait(self, *names: str) -> None:
        for name in names:
            service, process = self._running[name]
            services.wait_ready(service, process, self.logs / f"{name}.log", START_SECONDS)

    def _log(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text()

    def _service(self, name: str, ready: Callable[[], bool], *argv: str) -> Service:
        return Service(name, (*self._inside, *argv), ready)

    # The programs

    def _containerd(self) -> Service:
        networks = self._state / "cni"
        networks.mkdir()
        _write(networks / "10-pods.conflist", self._network())
        config = self._state / "containerd.toml"
        places = {"store": self._store, "state": "/run/containerd", "socket": self._socket, "without": ""}
        cri = _CRI.format(state=self._state, cni=CNI, pause=archives.PAUSE)
        config.write_text(layers.CONFIG.format(**places) + cri)
        return self._service(
            "containerd", self._socket.is_socket, "containerd", "--config", str(config), "--log-level=info"
        )

    def _network(self) -> Object:
        """Returns the CNI configuration. Each pod has its own link to the node, so all traffic passes kube-proxy's rules."""
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": self.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/addresses",
        }
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": addresses}]}

    def _kubelet(self) -> Service:
        certificate, key = self.plane.serving_certificate(self.name, self.address)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "address": self.address,
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.plane.authority)},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDNS": [DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self._state / "resolv.conf"),
            # Accept cgroup v1, and leave what else runs on this machine alone.
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.name}",
            "enforceNodeAllocatable": [],
            # CPU limits are stored, but not enforced: many tasks must fit on two cores, and each would load TensorFlow with
            # a third of a core while the others are idle. Requests still share a busy machine.
            "cpuCFSQuota": False,
            # The disk belongs to the host: its free space is no reason to evict pods or delete images.
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "failSwapOn": False,
            "podLogsDir": "/var/log/pods",
            # Look for long logs as often as a kubelet can; its default is 10 s.
            "containerLogMonitorInterval": "3s",
            "volumePluginDir": str(self._state / "plugins"),
            # Start containers in parallel, because no image is pulled over a network.
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
            "kubeAPIQPS": 1000,
            "kubeAPIBurst": 1000,
        }
        user = f"system:node:{self.name}"
        return self._service(
            "kubelet",
            lambda: True,
            self._program,
            "kubelet",
            f"--config={_write(self._state / 'kubelet.yaml', config)}",
            f"--kubeconfig={self.plane.kubeconfig_for(user, ['system:nodes'])}",
            f"--root-dir={self._state / 'kubelet'}",
            f"--cert-dir={self._state / 'kubelet-certificates'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
        )

    def _kube_proxy(self) -> Service:
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.plane.kubeconfig_for("system:kube-proxy"))},
            "mode": "iptables",
            "hostnameOverride": self.name,
            "bindAddress": self.address,
            "healthzBindAddress": f"{self.address}:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "iptables": {"minSyncPeriod": "0s"},
            # Do not change the kernel's connection table.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
        path = _write(self._state / "kube-proxy.yaml", config)
        return self._service(
            "kube-proxy", self._answers(10256, "/healthz"), self._program, "kube-proxy", f"--config={path}"
        )

    def _coredns(self) -> Service:
        path = self._state / "Corefile"
        path.write_text(_COREFILE.format(address=self.address, kubeconfig=self.plane.kubeconfig_for("system:coredns")))
        return self._service("coredns", self._answers(8181, "/ready"), self._program, "coredns", "-conf", str(path))

    def _answers(self, port: int, path: str) -> Callable[[], bool]:
        pool = urllib3.PoolManager(retries=False)

        def ready() -> bool:
            try:
                return pool.request("GET", f"http://{self.address}:{port}{path}", timeout=2.0).status == 200
            except urllib3.exceptions.HTTPError:
                return False

        return ready

    # Objects in the API server

    def _grant(self) -> None:
        """Creates what cluster installers do: the API server may use kubelets, and CoreDNS may read names."""
        _create(self.plane, f"{RBAC}/clusterrolebindings", _binding(KUBELET_CLIENT, "system:kubelet-api-admin"))
        rules = [
            {
                "apiGroups": [""],
                "resources": ["endpoints", "services", "pods", "namespaces"],
                "verbs": ["list", "watch"],
            },
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
        ]
        _create(self.plane, f"{RBAC}/clusterroles", {"metadata": {"name": "system:coredns"}, "rules": rules})
        _create(self.plane, f"{RBAC}/clusterrolebindings", _binding("system:coredns", "system:coredns"))
        # CoreDNS runs as a program of the node and not as a pod, so its Service needs endpoints made by hand.
        ports = [{"name": protocol.lower(), "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
        service = {"metadata": {"name": "kube-dns"}, "spec": {"clusterIP": DNS, "ports": ports}}
        endpoints = {
            "metadata": {"name": "kube-dns", "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}}],
            "ports": ports,
        }
        _create(self.plane, "/api/v1/namespaces/kube-system/services", service)
        _create(self.plane, "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", endpoints)

    def _is_ready(self, node: Object | None) -> bool:
        self.check()
        return node is not None and condition(node, "Ready") == "True" and not node["spec"].get("taints")

    def _add_gpus(self, gpus: int, model: str) -> None:
        path = f"/api/v1/nodes/{self.name}"
        self.plane.request("PATCH", path, {"metadata": {"labels": {GPU_MODEL: model}}})
        size = {GPU: str(gpus)}
        self.plane.request("PATCH", f"{path}/status", {"status": {"capacity": size, "allocatable": size}})


@contextmanager
def running_node(folder: Path, gpus: int = 8, model: str = "NVIDIA-A100") -> Iterator[Node]:
    """A control plane with one real node and nothing else; `node.plane` is the plane."""
    node = Node(folder)
    node.start()
    try:
        plane = Plane(folder / "plane", address=node.gateway)
        plane.start()
        try:
            node.join(plane, gpus, model)
            yield node
            node.check()
            plane.check()
        finally:
            plane.stop()
    finally:
        node.stop()


_CRI = """\
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # A machine that is itself confined may not protect the sandboxes' processes more than its own.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{state}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""

_COREFILE = """\
. {{
    bind {address}
    errors
    ready {address}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
"""


def _check() -> None:
    if os.geteuid() != 0:
        raise ServiceError("A real node needs root: it makes namespaces, mounts and cgroups.")
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    missing += [f"{CNI}/{plugin}" for plugin in ("ptp", "host-local", "loopback") if not (CNI / plugin).exists()]
    if missing:
        raise ServiceError(f"A real node needs {', '.join(missing)}; install it with: apt-get install {PACKAGES}")


def _free_slot() -> tuple[int, IO[bytes]]:
    """Returns the slot's number and the file whose lock holds it."""
    for slot in SLOTS:
        lock = (cache(f"node/{slot}") / "lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return slot, lock
    raise ServiceError(f"{len(SLOTS)} nodes run on this machine already.")


def _cgroup_roots() -> list[Path]:
    """Returns the cgroup root of every hierarchy: one per controller (version 1), or one for all."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink() and (path / "tasks").exists()]


def _empty(store: Path) -> None:
    """Deletes what the last node with this store left."""
    for each in store.iterdir():
        if each.name != "lock":
            shutil.rmtree(each)


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def _write(path: Path, config: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(config, indent=1))
    return path


def _binding(user: str, role: str) -> Object:
    group = "rbac.authorization.k8s.io"
    return {
        "metadata": {"name": f"test-{user.replace(':', '-')}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }


def _create(plane: Plane, path: str, body: Object) -> None:
    """Creates the object unless it exists."""
    try:
        plane.request("POST", path, body)
    except Refused as error:
        if error.status != 409:
            raise
