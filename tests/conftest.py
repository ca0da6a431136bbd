"""Real servers for all tests, and the people in them.

PostgreSQL, Valkey and S3 start once per test run, in a folder that is removed at its end, before Django reads its
settings; the workers of `pytest -n` inherit their addresses. Nothing here is a mock. The node agent and the whole
portal (`portal_up`) start only for tests that ask for them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from clusters.clouds.drivers.local.agent import disks
from portal.up import servers, services
from tests import flush, ports, s3server, tables
from tests.index import Index
from tests.running import Portal

_servers = contextlib.ExitStack()
SLOW = ("e2e", "kube", "trains")

# No deadline: how long an example takes depends on who else is busy on this machine. The blob of a failure repeats it elsewhere.
settings.register_profile(
    "patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        _start_servers()
    else:
        # The queue is shared by database number: one test process must not eat another's messages.
        number = int(worker.removeprefix("gw")) + 1
        os.environ["REDIS_URL"] = os.environ["REDIS_URL"].replace("?db=0", f"?db={number}")
    base = Path(os.environ["PORTAL_TEST_FOLDER"]) / (worker or "main")
    (base / "static").mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "PORTAL_DATA": str(base),
        "LOCAL_CLOUD_DIR": str(base / "cloud"),
        "LOCAL_CLOUD_SOCKET": str(base / "agent.sock"),
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        # Tests of the list itself have one of their own.
        "PORTAL_NFS_SERVERS": "*",
        # What Django's test client asks for.
        "PORTAL_ALLOWED_HOSTS": "testserver:80",
    }
    from django.conf import settings

    # Pages are tested without `collectstatic`, and people get in without 100 ms of key stretching.
    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.PASSWORD_HASHERS.insert(0, "django.contrib.auth.hashers.MD5PasswordHasher")
    flush.allow()
    # A worker of `pytest -n` that inherited this name would read the settings before it comes here, and with them the
    # addresses of this process: the node agent's socket, the queue.
    assert str(base) in settings.LOCAL_CLOUD_SOCKET, "the settings were read too early"
    if worker is None:
        # It names them where nobody has, so it has to come before.
        importlib.import_module("portal.celery")
        del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_unconfigure(config: pytest.Config) -> None:
    _servers.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests on the one running portal go to the same process of `pytest -n`, and have the time that training takes. So do all
    tests of a file, unless it says else: what they share (a browser, a world of rows) is then made once.

    RERUNS never repeats a property test: it fails for an example, which the next run of it may not draw."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.flaky(reruns=0))
        if "portal_up" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("portal"))
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(900))
        elif not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(Path(__file__).parent).as_posix()))


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    assert mark
    return str(mark.args[0])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """What starts programs and waits for them begins first, for nobody else has work at the end. And what is loaded by now stays:
    garbage is not looked for in it again and again."""
    first = {_group(item) for item in session.items if any(map(item.get_closest_marker, SLOW))}
    session.items.sort(key=lambda item: _group(item) not in first)
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a test said that was run once more (`make test RERUNS=1`), for it hides nothing by passing then."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"rerun: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


def _remove(folder: Path) -> None:
    """With the volumes of an agent that was killed."""
    for at in folder.glob("*/cloud/*/*"):
        disks.detach(at)
    shutil.rmtree(folder, ignore_errors=True)


def _start_servers() -> None:
    folder = Path(tempfile.mkdtemp(prefix="portal-tests-"))
    _servers.callback(_remove, folder)
    logs = folder / "log"
    logs.mkdir()
    access_key, secret_key = "TESTS" + secrets.token_hex(8).upper(), secrets.token_hex(20)
    postgres = servers.postgres(folder / "postgres", folder / "run", log=logs / "initdb.log", durable=False)
    valkey = servers.valkey(folder / "valkey", folder / "run")
    # Between the question for a free port and its use somebody else may take it.
    for tries_left in (2, 1, 0):
        s3 = s3server.s3(folder / "s3", services.free_port(), access_key, secret_key)
        try:
            _servers.enter_context(services.running([postgres, valkey, s3], logs, os.environ))
            break
        except services.ServiceError:
            if not tries_left:
                raise
    os.environ |= {
        "PORTAL_TEST_FOLDER": str(folder),
        "PORTAL_SECRET_KEY": secrets.token_hex(32),
        "DATABASE_URL": postgres.url,
        "REDIS_URL": valkey.url,
        "PORTAL_S3_URL": s3.url,
        "PORTAL_S3_ACCESS_KEY": access_key,
        "PORTAL_S3_SECRET_KEY": secret_key,
        "PORTAL_OPEN_NETWORKS": ports.setting(int(s3.url.rpartition(":")[2])),
    }


@dataclass(frozen=True)
class S3Server:
    """Where the tests' S3 server is. `client` makes buckets and objects; the portal uses the same address and keys."""

    url: str
    access_key: str
    secret_key: str
    client: Any


@pytest.fixture(scope="session")
def django_db_setup(django_test_environment: None, django_db_modify_db_settings: None, django_db_blocker: Any) -> None:
    """In place of pytest-django's, which runs the migrations each time."""
    from django.db import connection

    with django_db_blocker.unblock():
        tables.make(connection)


@pytest.fixture(scope="session")
def s3() -> S3Server:
    import boto3

    url, access_key = os.environ["PORTAL_S3_URL"], os.environ["PORTAL_S3_ACCESS_KEY"]
    secret_key = os.environ["PORTAL_S3_SECRET_KEY"]
    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id=access_key, aws_secret_access_key=secret_key, region_name="us-east-1"
    )
    return S3Server(url, access_key, secret_key, client)


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """A new, empty bucket."""
    name = f"test-{secrets.token_hex(6)}"
    s3.client.create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def node_agent() -> Iterator[Path]:
    """The node agent of this test process; yields its socket, which the settings already name."""
    folder, agent_socket = Path(os.environ["LOCAL_CLOUD_DIR"]), Path(os.environ["LOCAL_CLOUD_SOCKET"])
    with services.running([servers.node_agent(folder, agent_socket, {})], folder.parent, os.environ):
        yield agent_socket


@pytest.fixture(scope="session")
def portal_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    """The whole portal as a newcomer gets it, demonstration included, on a port of its own; see tests/running.py. It looks more
    often whether applications work, and its tasks install packages from an index of the tests."""
    with contextlib.closing(Index()) as index:
        given = {"LOCAL_CLOUD_ACTIVITY_SECONDS": "2", "PORTAL_PACKAGE_INDEX": index.url}
        portal = Portal(tmp_path_factory.mktemp("portal") / "var", **given)
        portal.index = index
        portal.start()
        yield portal
        assert portal.stop() == 0
    assert portal.left() == []


@pytest.fixture
def live_server(live_server: Any, settings: Any) -> Any:
    """pytest-django's, at a port that is known only now."""
    settings.HOST_PORTS = {*settings.HOST_PORTS, live_server.url.rpartition(":")[2]}
    return live_server


@pytest.fixture(autouse=True)
def real_portal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server knows after its first page, which asks the database once."""
    from portal import demonstration

    monkeypatch.setattr(demonstration, "_known", False)


def new_appcode(code: str, *, org: str, namespace: str, quota: int = 8, **members: Any) -> Any:
    """new_appcode("ops-demo", org="qunarcorp.ops", namespace="ops", owner=alice, developer=bob) → Appcode, active."""
    from django.db import transaction

    from portal.models import Appcode, Membership, OrgNode

    node, _ = OrgNode.objects.get_or_create(path=org, defaults={"title": namespace.upper(), "namespace": namespace})
    with transaction.atomic():
        appcode = Appcode.objects.create(
            code=code, org_node=node, emails=[f"{code}@example.com"], state=Appcode.State.ACTIVE, gpu_quota=quota
        )
        for role, user in members.items():
            Membership.objects.create(user=user, appcode=appcode, role=role)
    return appcode


@pytest.fixture
def make_appcode(db: None) -> Callable[..., Any]:
    return new_appcode


@dataclass(frozen=True)
class People:
    """Who is in the tests: alice owns, bob develops and victor only looks in `ops` (code ops-demo, business line OPS);

    mallory owns `flight` (code flight-demo, business line Flight) and may know nothing of `ops`; root administers.
    """

    alice: Any
    bob: Any
    victor: Any
    mallory: Any
    root: Any
    ops: Any
    flight: Any


def new_people() -> People:
    from portal.models import User

    make = User.objects.create_user
    alice, bob, victor, mallory = (
        make(name, f"{name}@example.com", f"{name}-password") for name in ("alice", "bob", "victor", "mallory")
    )
    root = User.objects.create_superuser("root", "root@example.com", "root-password")
    ops = new_appcode("ops-demo", org="qunarcorp.ops", namespace="ops", owner=alice, developer=bob, viewer=victor)
    flight = new_appcode("flight-demo", org="qunarcorp.flight", namespace="flight", owner=mallory)
    return People(alice, bob, victor, mallory, root, ops, flight)


@pytest.fixture
def people(db: None) -> People:
    return new_people()


@pytest.fixture
def alice(people: People) -> Any:
    return people.alice


@pytest.fixture
def bob(people: People) -> Any:
    return people.bob


@pytest.fixture
def victor(people: People) -> Any:
    return people.victor


@pytest.fixture
def mallory(people: People) -> Any:
    return people.mallory


@pytest.fixture
def root(people: People) -> Any:
    return people.root


@pytest.fixture
def ops(people: People) -> Any:
    return people.ops


@pytest.fixture
def flight(people: People) -> Any:
    return people.flight
