"""One real node for a test plane: containers run, with the clocks, logs, exit codes and limits that they really have.

It is this machine under another name: Debian's containerd, runc and CNI plugins, and the kubelet, kube-proxy and CoreDNS
of tests/plane, in network, mount, process and host name namespaces of their own (machine.sh). All of it ends with the
process that started it, and nothing is left on the host: no mount, cgroup, network device, rule of iptables or process.
Only the store of images stays, in the cache outside the tree, because to import a big image takes most of a minute.

    with running_node(folder) as node:            # node.plane listens where the node's pods reach it
        node.import_image(images.image("tensorflow"))
        node.plane.request("POST", "/api/v1/namespaces/default/pods", {...})
        node.containers(pod_uid)                  # what containerd itself says of them

Every node that runs at the same time has a slot of its own: slot N's host is 10.209.N.1, its node 10.209.N.2 and its pods
10.210.N.0/24, which the host can reach; servers that pods are to reach (S3, PostgreSQL) listen on 10.209.N.1. Services
are 10.96.0.0/16, reachable from pods. The node's GPUs are simulated: the API server is told that it has some, and tasks
that ask for them are counted, scheduled and metered, but find no device. NetworkPolicies are admitted and stored, but
nothing enforces them here. Nothing can be pulled, and only names of the cluster can be looked up.

Plane and node are up in 7 s on two cores. Tried on machines with cgroup version 1.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import urllib3
from tenacity import retry, retry_if_exception_message, stop_after_attempt

from portal.up import services
from portal.up.services import Service, ServiceError
from tests.kube import archives
from tests.kube.binary import binary, cache
from tests.kube.plane import GPU, GPU_MODEL, KUBELET_CLIENT, Object, Plane, Refused, condition

MACHINE = Path(__file__).with_name("machine.sh")
CNI = Path("/usr/lib/cni")
PROGRAMS = ("containerd", "ctr", "runc", "iptables", "conntrack", "ip", "nsenter", "unshare", "busybox")
PACKAGES = "containerd runc containernetworking-plugins iptables conntrack iproute2 busybox-static"
SLOTS = range(1, 9)
DNS = "10.96.0.10"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
START_SECONDS = 120.0
# Written on an image of containerd's when it was imported: which archive it came from.
ARCHIVE_LABEL = "gpu-cloud/archive"


@dataclass(frozen=True)
class Container:
    """What containerd itself has noted of a container; times in nanoseconds since 1970, 0 for what has not happened.

    `present` is False for one that the kubelet has removed since.
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
        """To the second, as the API of Kubernetes says it."""
        return dt.datetime.fromtimestamp(self.started_at // 10**9, dt.UTC)

    @property
    def finished(self) -> dt.datetime:
        """To the second, as the API of Kubernetes says it."""
        return dt.datetime.fromtimestamp(self.finished_at // 10**9, dt.UTC)


class Node:
    """One real node. To be started from a main thread (see services.spawn). Logs are in `folder`/log."""

    plane: Plane

    def __init__(self, folder: Path) -> None:
        self.logs = services.private_folder(services.private_folder(folder) / "log")
        self._running: dict[str, tuple[Service, subprocess.Popen[bytes]]] = {}
        self._machine: subprocess.Popen[str] | None = None

    # Starting and stopping

    def start(self) -> None:
        """The machine and its containerd, which may take a moment more. Raises ServiceError, with what to install."""
        _check()
        slot, lock = _free_slot()
        self.name = f"machine-{slot}"
        self.gateway, self.address, self.pods = f"10.209.{slot}.1", f"10.209.{slot}.2", f"10.210.{slot}.0/24"
        self._store = cache(f"node/{slot}")
        # Not below a test's folder: a Unix socket's address is short, and all but the logs goes with the machine.
        self._state = Path(tempfile.mkdtemp(prefix="node-"))
        self._socket = self._state / "containerd.sock"
        try:
            self._start_machine(f"node{slot}", lock)
            self._spawn(self._containerd())
        except BaseException:
            self.stop()
            raise

    def join(self, plane: Plane, gpus: int = 8, model: str = "NVIDIA-A100") -> None:
        """Returns when pods can be scheduled on it and Services and names work."""
        self.plane = plane
        self._program = str(binary())
        self._wait("containerd")
        # What was there when the last machine with this store was switched off.
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
        """Everything at once, as when the power goes; what it would put in order is thrown away."""
        if self._machine:
            assert self._machine.stdin
            self._machine.stdin.close()
            self._machine.wait()
        for service, process in self._running.values():
            services.stop(service, process)

    def fall_silent(self) -> None:
        """Its kubelet is killed, as when the machine is cut off: containers go on, and nobody hears of them."""
        _, process = self._running.pop("kubelet")
        # nsenter waits for its child, and would leave it alone if it were killed itself.
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        process.wait()

    def come_back(self) -> None:
        """As it was; returns when pods can be scheduled on it. It is not given up any more."""
        self._spawn(self._kubelet())
        self.plane.request("PATCH", f"/api/v1/nodes/{self.name}", {"spec": {"taints": None}})
        self.plane.until("/api/v1/nodes", lambda nodes: self._is_ready(nodes.get(self.name)), START_SECONDS)

    def check(self) -> None:
        """Raises ServiceError when something of it ended by itself."""
        for name, (_, process) in self._running.items():
            if process.poll() is not None:
                log = self.logs / f"{name}.log"
                raise ServiceError(f"{name} ended: {services.last_line(log)} (more in {log})")

    # What runs on it

    def import_image(self, archive: Path) -> None:
        """From an OCI or Docker archive with its full name in it. Nothing is done when it is there already."""
        index = _index(archive)
        label = f"{ARCHIVE_LABEL}={hashlib.sha256(index).hexdigest()[:16]}"
        if label in self._ctr("images", "ls"):
            return
        names = [line.split()[1] for line in self._import(archive).splitlines() if line]
        for name in names:
            self._ctr("images", "label", name, label)
        # The kubelet would wait long before it looks again for an image that containerd's CRI plugin has not noticed yet.
        end = time.monotonic() + START_SECONDS
        while not all(
            "io.cri-containerd.image=managed" in self._ctr("images", "ls", f"name=={name}") for name in names
        ):
            if time.monotonic() > end:
                raise ServiceError(f"containerd does not offer {', '.join(names)}.")
            time.sleep(0.02)

    @retry(
        retry=retry_if_exception_message(match="(?s).*parent snapshot .* does not exist"),
        stop=stop_after_attempt(3),
        reraise=True,
    )
    def _import(self, archive: Path) -> str:
        """The store outlives its nodes. Where an image takes the name of an older one, containerd collects what only the older
        one had, and at times a layer that both have, right before the next is put on it; the layer is then unpacked again."""
        return self._ctr("images", "import", str(archive))

    def containers(self, pod_uid: str = "") -> list[Container]:
        """Of a pod or of all, in order of creation: those that there are, and those that there were."""
        found = {record["id"]: Container(**record, present=False) for record in _lines(self._log("containers"))}
        found |= {record["id"]: Container(**record, present=True) for record in _lines(self._records())}
        wanted = (container for container in found.values() if pod_uid in ("", container.pod_uid))
        return sorted(wanted, key=lambda container: container.created_at)

    def pods_alive(self) -> set[str]:
        """The uids of pods of which a process runs, and be it that of the sandbox."""
        running = self._ctr("tasks", "ls", "--quiet").split()
        return {
            json.loads(self._ctr("containers", "info", each))["Labels"]["io.kubernetes.pod.uid"] for each in running
        }

    def _records(self, *flags: str) -> str:
        return _output(self._program, "containers", "--socket", str(self._socket), *flags)

    def _ctr(self, *args: str) -> str:
        return _output("ctr", "--address", str(self._socket), "--namespace", "k8s.io", *args)

    # The machine

    def _start_machine(self, link: str, lock: IO[bytes]) -> None:
        (self._state / "resolv.conf").write_text("")
        with (self.logs / "machine.log").open("wb") as log, lock:
            # It holds the lock, so that the slot is free when everything of it is gone.
            self._machine = subprocess.Popen(
                ["bash", str(MACHINE), "outside", self.name, link, str(self._state)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
        assert self._machine.stdout
        pid = self._machine.stdout.readline().strip()
        if not pid:
            raise ServiceError(f"No machine can be made: {services.last_line(self.logs / 'machine.log')}")
        self._inside = ("nsenter", f"--target={pid}", "--mount", "--net", "--uts", "--pid", "--")
        device = "eth0"
        _output("ip", "link", "add", link, "type", "veth", "peer", "name", device, "netns", pid)
        _output("ip", "address", "add", f"{self.gateway}/24", "dev", link)
        _output("ip", "link", "set", link, "up")
        _output("ip", "route", "add", self.pods, "via", self.address)
        _output(*self._inside, "ip", "address", "add", f"{self.address}/24", "dev", device)
        _output(*self._inside, "ip", "link", "set", device, "up")
        _output(*self._inside, "ip", "route", "add", "default", "via", self.gateway)
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
        config.write_text(_CONTAINERD.format(state=self._state, store=self._store, cni=CNI, pause=archives.PAUSE))
        return self._service(
            "containerd", self._socket.is_socket, "containerd", "--config", str(config), "--log-level=info"
        )

    def _network(self) -> Object:
        """Every pod has a line of its own to the node, so all traffic passes where kube-proxy's rules are."""
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
            # A machine with cgroup v1 will do, too; what others run on it is left alone.
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.name}",
            "enforceNodeAllocatable": [],
            # The disk is the host's: how full it is is not for us to decide, and images stay.
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "failSwapOn": False,
            "podLogsDir": "/var/log/pods",
            "volumePluginDir": str(self._state / "plugins"),
            # Not in turn: nothing is pulled over a network.
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
            # The kernel's table of connections is left as it is.
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

    # What the API server is told

    def _grant(self) -> None:
        """What installers of clusters grant: the API server may use kubelets, CoreDNS may look names up."""
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
        # CoreDNS is a program of the node and no pod, so nobody else makes its Service's endpoints.
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


_CONTAINERD = """\
version = 2
root = "{store}"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{state}/containerd.sock"
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
    """Its number and the file whose lock holds it."""
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
    """Of every hierarchy: one for each controller (version 1), or one for all."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink() and (path / "tasks").exists()]


def _index(archive: Path) -> bytes:
    """What an archive says is in it, by digests."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name in ("index.json", "manifest.json") and (file := tar.extractfile(member)):
                return file.read()
    raise ServiceError(f"{archive} is no archive of images.")


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def _output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise ServiceError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


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
    """Unless it is there."""
    try:
        plane.request("POST", path, body)
    except Refused as error:
        if error.status != 409:
            raise
