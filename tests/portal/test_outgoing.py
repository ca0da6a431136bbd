"""Every outgoing request to a server that a user names, against every address that must not be reachable by it.

KINDS has a row for each kind of request. The list is closed: a test fails for any module that imports networking code and is
neither in JUDGED nor in OTHERS.
"""

from __future__ import annotations

import ast
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.clouds.bulkhead import PutOff
from clusters.clouds.drivers import git
from clusters.clouds.drivers.base import CloudError
from clusters.clouds.drivers.local.data import nfs as nfs_mounts
from clusters.clouds.drivers.local.data import rclone, streaming
from clusters.clouds.drivers.local.network import packages, socks
from clusters.manifest.code import CodeSpec
from clusters.runs import code as run_code
from datastores.drivers import nfs
from datastores.drivers.base import DriverError
from datastores.drivers.s3 import S3
from portal.network import outgoing
from portal.network.outgoing import Rules, why_closed
from portal.up.data import Data
from portal.up.services import free_port
from portal.webhooks import posting, specs

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Asked:
    """One request: the server that the user named, and the addresses that an administrator opened."""

    host: str
    port: int
    opened: Sequence[str]
    monkeypatch: pytest.MonkeyPatch

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


def s3_datastore(asked: Asked) -> str:
    with pytest.raises(DriverError) as caught:
        S3(server=asked.url, access_key="a" * 20, secret="s" * 40, bucket="data").test()
    return str(caught.value)


def nfs_datastore(asked: Asked) -> str:
    asked.monkeypatch.setattr(nfs, "PORT", asked.port)
    try:
        return nfs.Nfs(server=asked.host, path="/data").test()
    except DriverError as error:
        return str(error)


def nfs_mount(asked: Asked) -> str:
    """Root mounts the result, which is an address and not a name."""
    asked.monkeypatch.setattr(nfs_mounts, "PORT", asked.port)
    try:
        address = nfs_mounts.address_of(asked.host, asked.opened)
    except rclone.Failed as error:
        return str(error)
    with contextlib.suppress(OSError), socket.create_connection((address.strip("[]"), asked.port), timeout=1):
        return "mounted"
    return "nothing there"


def git_ref(asked: Asked) -> str:
    asked.monkeypatch.setattr(run_code, "_login", lambda *_: git.Login())
    run: Any = SimpleNamespace(cluster=SimpleNamespace(appcode_id=1))
    with pytest.raises(CloudError) as caught:
        run_code.commit_of(run, CodeSpec.model_construct(git=f"{asked.url}/code.git", ref="main"))
    assert not isinstance(caught.value, PutOff)
    return str(caught.value)


def git_files(asked: Asked) -> str:
    """Connects as the program does that fetches a commit on the node."""
    connect = git.loaded(outgoing.__file__, ",".join(asked.opened))
    with pytest.raises(git.Failed) as caught:
        git.resolve(f"{asked.url}/code.git", "main", git.Login(), connect)
    return str(caught.value)


def webhook(asked: Asked) -> str:
    way = posting.Way(Rules.read(asked.opened))
    return posting.post(specs.target(f"{asked.url}/hook"), b"{}", {"content-type": "application/json"}, way).error


def copied_input(asked: Asked) -> str:
    """Connects through the proxy, which is rclone's only way to a network."""
    host = asked.host.strip("[]").encode()
    with socks.proxy(asked.opened, None) as url:
        word = url.partition("rclone:")[2].partition("@")[0].encode()
        with (
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client,
            client.makefile("rb") as said,
        ):
            client.settimeout(30)
            client.sendall(b"\5\1\2" + b"\1\6rclone" + bytes([len(word)]) + word)
            assert said.read(4) == b"\5\2\1\0"
            client.sendall(b"\5\1\0\3" + bytes([len(host)]) + host + asked.port.to_bytes(2, "big"))
            reply = said.read(10)[1]
            if reply == socks.DONE:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                said.read(1)
    return {socks.DONE: "answers", socks.NOT_ALLOWED: "is closed:"}.get(reply, "cannot be reached")


def streamed_input(asked: Asked) -> str:
    try:
        with streaming.dial(asked.opened)(asked.host.strip("[]"), asked.port):
            return "answers"
    except OSError as error:
        return str(error)


def package_file(asked: Asked) -> str:
    """A file that a page of the package index links to."""
    index = packages.Index("https://index.example/simple/", asked.opened)
    try:
        with contextlib.closing(index.ask(f"{asked.url}/x-1-py3-none-any.whl", {})) as answer:
            return str(answer.status)
    except (packages.outgoing.Closed, packages.urllib3.exceptions.HTTPError) as error:
        return str(error)


KINDS: Mapping[str, Callable[[Asked], str]] = {
    each.__name__: each
    for each in (
        s3_datastore, nfs_datastore, nfs_mount, git_ref, git_files, webhook, copied_input, streamed_input, package_file,
    )
}  # fmt: skip
# The modules that connect for each kind, all through portal/network/outgoing.py.
JUDGED = {
    "datastores/drivers/s3.py": "s3_datastore",
    "datastores/drivers/s3_client.py": "s3_datastore",
    "datastores/drivers/s3_errors.py": "s3_datastore",
    "datastores/drivers/nfs.py": "nfs_datastore",
    "clusters/clouds/drivers/local/data/nfs.py": "nfs_mount",
    "clusters/clouds/drivers/git.py": "git_ref",
    "clusters/clouds/drivers/local/data/code.py": "git_files",
    "portal/webhooks/posting.py": "webhook",
    "clusters/clouds/drivers/local/network/socks.py": "copied_input",
    "clusters/clouds/drivers/local/data/rclone.py": "copied_input",
    "clusters/clouds/drivers/local/data/streaming.py": "streamed_input",
    "clusters/clouds/drivers/local/network/packages.py": "package_file",
}


@dataclass
class Witness:
    """A listener that counts connections, in place of a server of another tenant or of the portal."""

    port: int = 0
    came: int = 0
    sockets: list[socket.socket] = field(default_factory=list)
    redirect: str = ""

    def listen(self, family: socket.AddressFamily, address: str) -> None:
        server = socket.create_server((address, self.port), family=family, backlog=64)
        self.port = server.getsockname()[1]
        self.sockets.append(server)
        threading.Thread(target=self._serve, args=(server,), daemon=True).start()

    def _serve(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            self.came += 1
            with client, contextlib.suppress(OSError):
                client.settimeout(5)
                client.recv(65536)
                head = f"307 Elsewhere\r\nLocation: {self.redirect}" if self.redirect else "404 Not Found"
                client.sendall(f"HTTP/1.1 {head}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())

    def visits(self) -> int:
        """Returns the number of earlier connections. They are accepted in order, so all of them have been counted by then."""
        for server in self.sockets:
            address = "::1" if server.family == socket.AF_INET6 else "127.0.0.1"
            with socket.create_connection((address, self.port), timeout=30) as client:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                client.recv(1)
            self.came -= 1
        return self.came

    def close(self) -> None:
        for server in self.sockets:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()


@pytest.fixture
def witness() -> Iterator[Witness]:
    """Listens on every address of this machine, like the most careless program."""
    made = Witness()
    made.listen(socket.AF_INET, "0.0.0.0")
    with contextlib.suppress(OSError):
        made.listen(socket.AF_INET6, "::1")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens timeouts: an address that is open by mistake but does not answer fails quickly."""
    monkeypatch.setattr(git, "CONNECT", 1.0)
    monkeypatch.setattr(posting, "CONNECT", 1.0)
    monkeypatch.setattr(socks, "CONNECT_SECONDS", 1.0)


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Resolves changing.example to the first of these addresses, then to the second and so on. Returns the list of look-ups."""
    real, asked, left = socket.getaddrinfo, list[str](), list(answers)

    def resolve(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host != "changing.example":
            return real(host, port, *more, **options)
        asked.append(host)
        address = left.pop(0) if len(left) > 1 else left[0]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


# Spellings of this machine itself. "interface" is an interface's address, which reaches programs that listen on all.
OWN = (
    "127.0.0.1", "localhost", "portal.localhost", "127.9.9.9", "127.1", "2130706433", "0x7f.0.0.1", "[::1]",
    "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::1]", "0.0.0.0", "[::]", "interface",
)  # fmt: skip
NEVER = (
    "169.254.169.254", "100.100.100.200", "168.63.129.16", "[fd00:ec2::254]", "[fe80::1]", "224.0.0.1", "255.255.255.255",
    "[ff02::1]", "[::ffff:169.254.169.254]", "[::ffff:10.1.2.3]", "[64:ff9b::a01:203]", "[2002:a01:203::1]",
)  # fmt: skip
PRIVATE = ("10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1", "[fd12::1]", "[2001:db8::1]")


def own_address() -> str:
    """Returns an address of this machine that is not loopback, which other machines can reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(("8.8.8.8", 9))
        return str(asked.getsockname()[0])


def refusal(kind: str, asked: Asked) -> str:
    said = KINDS[kind](asked)
    assert "is closed" in said, (kind, asked.host, said)
    return said.replace(str(asked.port), "PORT")


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_gets_to_the_portals_own_machine_or_learns_what_listens_there(
    kind: str, witness: Witness, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.OUTGOING, nobody = Rules(), free_port()
    for spelled in OWN:
        host = own_address() if spelled == "interface" else spelled
        at_program, at_nothing = (refusal(kind, Asked(host, port, (), monkeypatch)) for port in (witness.port, nobody))
        assert at_program == at_nothing, "an open port is told from a closed one"
    assert witness.visits() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_gets_to_metadata_or_private_networks(kind: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.OUTGOING = Rules()
    # An administrator names the NFS servers, so their private addresses are open.
    for host in NEVER if kind.startswith("nfs") else (*NEVER, *PRIVATE):
        refusal(kind, Asked(host, 80, (), monkeypatch))


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_judged_by_the_address_that_is_connected_to(
    kind: str, witness: Witness, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One name resolves to an internal address; another first to an open address and then to a program of this machine."""
    settings.OUTGOING = Rules()
    resolving(monkeypatch, "127.0.0.1")
    refusal(kind, Asked("changing.example", witness.port, (), monkeypatch))
    elsewhere = f"127.0.0.2:{(port := free_port())}"
    settings.OUTGOING = Rules.read([elsewhere])
    with socket.create_server(("127.0.0.1", port)) as inside:
        resolving(monkeypatch, "127.0.0.2", "127.0.0.1")
        KINDS[kind](Asked("changing.example", port, [elsewhere], monkeypatch))
        inside.setblocking(False)
        with pytest.raises(BlockingIOError):
            inside.accept()
    assert witness.visits() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_open_may_lead_on_to_nothing_that_is_closed(
    kind: str, witness: Witness, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(Witness(redirect=f"http://127.0.0.1:{witness.port}/")) as leading:
        leading.listen(socket.AF_INET, "127.0.0.1")
        opened = [f"127.0.0.1:{leading.port}"]
        settings.OUTGOING = Rules.read(opened)
        said = KINDS[kind](Asked("127.0.0.1", leading.port, opened, monkeypatch))
        assert leading.visits(), f"what an administrator opened is reached: {said}"
    assert witness.visits() == 0


# Rules for open addresses

ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
PORTS = st.integers(1, 65535)


@given(ADDRESSES, PORTS)
def test_networks_open_neither_this_machine_nor_what_is_closed_for_good(address: str, port: int) -> None:
    everything = Rules.read(["0.0.0.0/0", "::/0"])
    assert why_closed("x", address, port, everything, is_own=True)
    ip = ipaddress.ip_address(address)
    if ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified or getattr(ip, "ipv4_mapped", None):
        assert why_closed("x", address, port, everything, is_own=False)


@given(ADDRESSES, PORTS, PORTS)
def test_a_server_is_open_at_its_port_alone(address: str, port: int, other: int) -> None:
    named = Rules.read([f"[{address}]:{port}" if ":" in address else f"{address}:{port}"])
    why = why_closed("x", address, port, named, is_own=True)
    assert not why or "never reached" in why or "another one" in why
    if other != port:
        assert why_closed("x", address, other, named, is_own=True)


@given(ADDRESSES)
def test_without_a_setting_only_public_addresses_are_open(address: str) -> None:
    if not why_closed("x", address, 443, Rules(), is_own=False):
        assert ipaddress.ip_address(address).is_global


def test_of_two_networks_around_an_address_the_smaller_one_counts() -> None:
    rules = Rules.read(["10.20.0.0/16", "!10.20.7.0/24", "!93.184.0.0/16", "minio.example:9000"])
    for host, address, port, is_open in (
        ("x", "10.20.1.1", 80, True), ("x", "10.20.7.1", 80, False), ("x", "10.21.1.1", 80, False),
        ("x", "93.184.215.14", 443, False), ("x", "8.8.8.8", 443, True), ("minio.example", "10.9.9.9", 9000, True),
        ("minio.example", "10.9.9.9", 9001, False), ("minio.example", "169.254.169.254", 9000, False),
    ):  # fmt: skip
        assert (not why_closed(host, address, port, rules, is_own=False)) is is_open, (host, address, port)
    closed = Rules.read(["10.20.0.0/16"]).closing(["10.0.0.0/8"])
    assert not why_closed("x", "10.20.1.1", 80, closed, is_own=False)


@pytest.mark.parametrize(
    "entry", ["127.0.0.0/8", "127.0.0.1", "::1", "10.0.0.1/8", "http://x:1", "nonsense", "x:70000"]
)
def test_an_entry_that_cannot_be_meant_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="PORTAL_OPEN_NETWORKS"):
        Rules.read([entry])


def test_manage_py_up_opens_the_door_of_its_own_object_storage_and_nothing_else(tmp_path: Path) -> None:
    data = Data(tmp_path, tmp_path, 8000, True, {}, {})
    rules = Rules.read(data.public_env[outgoing.SETTING].split(","))
    assert rules.networks == rules.closed == ()
    assert {port for _, port in rules.servers} == {data.ports["storage"]}
    given = {"PORTAL_STORAGE_URL": "https://s3.example", "PORTAL_OPEN_NETWORKS": "10.20.0.0/16"}
    named = Data(tmp_path, tmp_path, 8000, True, given, {}).public_env[outgoing.SETTING]
    assert named == "10.20.0.0/16,s3.example:443"


# The list of modules that connect

# Modules outside JUDGED that import one of NETWORK, by who chooses the server: never a user.
OTHERS: Mapping[str, Sequence[str]] = {
    "makes or judges the connections of JUDGED": (
        "portal/network/outgoing.py", "datastores/drivers/patience.py",
    ),
    "runs in a pod, where a NetworkPolicy judges, or in a sandbox whose way out is JUDGED": (
        "clusters/clouds/drivers/follow.py", "clusters/clouds/drivers/store.py", "clusters/clouds/drivers/stream.py",
    ),
    "an administrator names the server in the portal's environment": (
        "portal/web/account_routes.py", "portal/pages/accounts.py", "billing/mails.py", "datastores/storage/store.py",
        "clusters/management/commands/seed_demo.py",
        "clusters/router/database_feed.py", "clusters/router/rows.py", "clusters/services/controller/threads.py",
        "portal/backup/buckets.py", "portal/backup/database.py", "portal/backup/load.py", "portal/backup/save.py",
    ),
    "an administrator registers the Kubernetes cluster, its Prometheus and its gateway": (
        "clusters/clouds/drivers/kubernetes/api/client.py", "clusters/clouds/drivers/kubernetes/api/errors.py",
        "clusters/clouds/drivers/kubernetes/exec.py",
        "clusters/clouds/drivers/kubernetes/logs.py", "clusters/clouds/drivers/kubernetes/prometheus.py",
        "clusters/clouds/drivers/kubernetes/sampling.py",
        "clusters/runs/routing.py", "clusters/runs/probes.py",
    ),
    "asks a task at the address that its cloud says, never one that a person gives": (
        "clusters/applications/requests.py", "clusters/services/drift.py", "clusters/router/upstream.py",
        "clusters/clouds/drivers/local/agent/endpoints.py", "clusters/clouds/drivers/entrance.py",
    ),
    "uv, with names and versions alone, and the index of PORTAL_PACKAGE_INDEX": (
        "clusters/environments/resolve.py", "clusters/catalog/package_index.py",
    ),
    "inside a task, whose network is its own": (
        "clusters/frameworks/inside/freeze.py", "clusters/frameworks/inside/install.py", "clusters/frameworks/inside/serve.py",
        "clusters/clouds/drivers/local/task/exec.py", "clusters/clouds/drivers/local/task/shim.py",
    ),
    "Unix sockets, pipes and processes of this machine": (
        "clusters/clouds/drivers/local/agent/agent.py", "clusters/clouds/drivers/local/agent/disks.py",
        "clusters/clouds/drivers/local/agent/handlers.py",
        "clusters/clouds/drivers/local/agent/logs.py", "clusters/clouds/drivers/local/agent/machine.py",
        "clusters/clouds/drivers/local/network/forward.py", "clusters/clouds/drivers/local/network/sockets.py",
        "clusters/clouds/drivers/local/network/holder.py", "clusters/clouds/drivers/local/network/netns.py",
        "clusters/clouds/drivers/local/network/outside.py", "clusters/clouds/drivers/local/network/outward.py",
        "clusters/clouds/drivers/local/protocol.py",
        "clusters/clouds/drivers/local/session.py", "clusters/clouds/drivers/local/task/processes.py",
        "clusters/model_registry/signature.py",
    ),
    "listens": (
        "clusters/router/main.py", "clusters/router/http_server.py", "clusters/router/proxy.py", "clusters/router/access_log.py",
        "clusters/cluster/api/terminal.py", "portal/web/websocket.py",
    ),
    "the servers and programs of one portal, by ports that `up` has chosen": (
        "portal/up/data.py", "portal/up/servers.py", "portal/up/services.py", "portal/up/storage_address.py",
        "portal/up/supervisor.py", "portal/up/backup.py", "portal/backup/storage.py",
        "datastores/storage/inside.py", "datastores/storage/server.py",
    ),
    "static files of pages, when the portal is installed": ("portal/assets.py",),
    "descriptions of requests, none of which is sent": ("datastores/storage/operations.py",),
}  # fmt: skip
NETWORK = (
    "aiohttp", "allauth", "boto3", "botocore", "django.core.mail", "dulwich", "ftplib", "http.client", "httpx", "imaplib",
    "kubernetes", "paramiko", "pip", "poplib", "psycopg2", "pyroute2", "redis", "requests", "smtplib", "socket",
    "socketserver", "subprocess", "urllib.request", "urllib3", "uv", "websocket", "websockets", "xmlrpc",
)  # fmt: skip
# Submodules that contain only error classes or build SQL.
HARMLESS = ("psycopg2.sql", "psycopg2.errors", "redis.exceptions")
# Functions of asyncio and the system that connect or start programs.
CALLS = (
    "open_connection",
    "create_connection",
    "sock_connect",
    "create_subprocess_exec",
    "execv",
    "execve",
    "posix_spawn",
)


def connects(source: str) -> bool:
    """Returns True if a module imports networking code or starts a program."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Attribute) and node.attr in CALLS:
            return True
        for name in names:
            known = any(name == each or name.startswith(f"{each}.") for each in NETWORK)
            if known and not name.startswith(HARMLESS):
                return True
    return False


def test_everything_that_connects_is_judged_or_says_who_names_the_server() -> None:
    found = {
        str(path.relative_to(ROOT))
        for top in ("portal", "billing", "datastores", "clusters")
        for path in (ROOT / top).rglob("*.py")
        if connects(path.read_text())
    }
    listed = [*JUDGED, *(module for modules in OTHERS.values() for module in modules)]
    assert len(listed) == len(set(listed))
    assert sorted(found - set(listed)) == [], "say in KINDS or OTHERS how they connect, and try what is new"
    assert sorted(set(listed) - found) == []
    assert set(JUDGED.values()) == set(KINDS)
