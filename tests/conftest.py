"""Real servers for all tests, and the people in them.

PostgreSQL, Valkey and S3 start once per test run, before Django reads its settings, in a folder that is removed at the end.
The workers of `pytest -n` inherit their addresses. Nothing here is a mock. The node agent and the whole portal (`portal_up`)
start only for tests that request them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from clusters.clouds.drivers.local.agent import disks
from portal.up import servers, services
from tests import flush, ports, s3server, tables
from tests.balance import Balance
from tests.costs import Costs
from tests.index import Index
from tests.running import Portal

_servers = contextlib.ExitStack()
SLOW = ("e2e", "kube", "trains")
# The groups that take longest: they begin first, so that none is left when other processes have ended. Those of kube mostly wait,
# beside others that need processors.
LONGEST = (
    "portal", "kube-portal", "kube-cloud", "bench", "up", "examples",
    "kube/test_applications_node.py", "kube/test_many_runs_node.py", "kube/test_services_node.py", "kube/test_main_job.py",
)  # fmt: skip

_failed = pytest.StashKey[bool]()
_slow = pytest.StashKey[set[str]]()

# No deadline: the duration of an example depends on the load of the machine. The printed blob reproduces a failure elsewhere.
settings.register_profile(
    "patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", action="store_true", help="print which tests took most processor time")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("costs"):
        config.pluginmanager.register(Costs())
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        _start_servers()
        if config.getoption("numprocesses", None):
            config.pluginmanager.register(Balance())
    else:
        # Each test process has its own database number: on a shared queue it would consume the others' messages.
        number = int(worker.removeprefix("gw")) + 1
        os.environ["REDIS_URL"] = os.environ["REDIS_URL"].replace("?db=0", f"?db={number}")
    base = Path(os.environ["PORTAL_TEST_FOLDER"]) / (worker or "main")
    (base / "static").mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "PORTAL_DATA": str(base),
        "LOCAL_CLOUD_DIR": str(base / "cloud"),
        "LOCAL_CLOUD_SOCKET": str(base / "agent.sock"),
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        # Tests of this setting set their own list.
        "PORTAL_NFS_SERVERS": "*",
        # The host name of Django's test client.
        "PORTAL_ALLOWED_HOSTS": "testserver:80",
    }
    from django.conf import settings

    # Pages are tested without `collectstatic`, and signing in skips 100 ms of key stretching.
    settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
    settings.PASSWORD_HASHERS.insert(0, "django.contrib.auth.hashers.MD5PasswordHasher")
    # jsonschema would build a grammar from it at import, for 7 s; nothing here validates IRIs.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    flush.allow()
    # If a worker of `pytest -n` inherited DJANGO_SETTINGS_MODULE, it would read the settings before this function runs, and
    # with them the main process's addresses of node agent and queue.
    assert str(base) in settings.LOCAL_CLOUD_SOCKET, "the settings were read too early"
    if worker is None:
        # portal.celery sets DJANGO_SETTINGS_MODULE if it is missing, so import it before the deletion.
        importlib.import_module("portal.celery")
        del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_unconfigure(config: pytest.Config) -> None:
    _servers.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """On a new machine each process of `pytest -n` would rewrite the assertions of all files, as all read them in one order. So
    each begins with another part of them, and finds the parts of the others in Python's cache."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    places = [session.config.invocation_params.dir / name.partition("::")[0] for name in session.config.args]
    files = sorted(path for place in places for path in place.rglob("test_*.py"))
    begin = len(files) * int(worker.removeprefix("gw")) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for path in files[begin:] + files[:begin]:
        with contextlib.suppress(Exception):  # The collection tells of it.
            importlib.import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assigns tests to the processes of `pytest -n`. All tests on the one running portal share a process and get a timeout that
    allows for training. All tests of a file share a process unless marked otherwise, so that a shared browser or set of rows
    is created once.

    RERUNS never repeats a property test: the rerun may not draw the example that failed."""
    for item in items:
        assert item.path.parent.name == "kube" or not item.get_closest_marker("node"), (
            f"make e2e only looks into tests/kube: {item}"
        )
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
    """Runs the longest groups first, then tests that start programs and wait for them, so that they don't delay the end of a
    parallel run. Exempts everything loaded by now from garbage collection."""
    slow = {_group(item) for item in session.items if any(map(item.get_closest_marker, SLOW))}
    session.config.stash[_slow] = slow
    place = {group: n for n, group in enumerate(LONGEST)}
    session.items.sort(key=lambda item: (place.get(_group(item), len(place)), _group(item) not in slow))
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_failed] = report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Stops what slow tests share (portal, control plane, node) in two cases:

    - This process has none of them left: idle servers would cost each other test a tenth of a core.
    - A test failed and RERUNS tries it again: on the old servers the names of its clusters are taken, and things may be as the
      failure left them.
    """
    slow = item.config.stash[_slow]
    ends = nextitem and _group(item) in slow and _group(nextitem) not in slow
    if ends or (item.config.getoption("reruns") and item.stash[_failed] and _group(item) in slow):
        item.session._setupstate.teardown_exact(None)
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Prints the failures of repeated tests (`make test RERUNS=1`), and in the last lines one line per try: the second try may
    only fail because of what the first one left behind."""
    tries: dict[str, list[pytest.TestReport]] = {}
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"rerun: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
        tries.setdefault(report.nodeid, []).append(report)
    yield
    if not tries:
        return
    terminalreporter.write_sep("=", "repeated tests")
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    for test, reports in tries.items():
        last = [report for report in failed if report.nodeid == test]
        terminalreporter.write_line(test)
        for number, report in enumerate([*reports, *last], 1):
            terminalreporter.write_line(f"  try {number}, {report.when}: {_reason(report)}")
        if not last:
            terminalreporter.write_line(f"  try {len(reports) + 1}: passed")


def _reason(report: pytest.TestReport) -> str:
    """Where the test failed, and the first lines of the error: of many, the first alone says little."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return next(iter(report.longreprtext.strip().splitlines()[-1:]), "no reason")
    return f"{crash.path}:{crash.lineno}: {' '.join(crash.message.splitlines()[:3])}"


def _remove(folder: Path) -> None:
    """Deletes the folder, and first detaches the volumes left by an agent that was killed."""
    for at in [*folder.glob("*/cloud/*/*"), *folder.glob("*/*")]:
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
    # Another process may take the free port before the server binds it.
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
    """Address and keys of the tests' S3 server; the portal uses the same. `client` creates buckets and objects."""

    url: str
    access_key: str
    secret_key: str
    client: Any


@pytest.fixture(scope="session")
def django_db_setup(django_test_environment: None, django_db_modify_db_settings: None, django_db_blocker: Any) -> None:
    """Replaces pytest-django's fixture, which runs all migrations each time."""
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
    name = f"test-{secrets.token_hex(6)}"
    s3.client.create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def node_agent() -> Iterator[Path]:
    """The node agent of this test process; yields its socket, which the settings already name."""
    folder, agent_socket = Path(os.environ["LOCAL_CLOUD_DIR"]), Path(os.environ["LOCAL_CLOUD_SOCKET"])
    with services.running([servers.node_agent(folder, agent_socket, {})], folder.parent, os.environ):
        yield agent_socket
    # The next one would take its runs for those of a new database, which have the same ids.
    _remove(folder)


@pytest.fixture(scope="session")
def portal_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    """The whole portal as a newcomer starts it, with the demonstration, on its own port; see tests/running.py. Unlike by default,
    it samples application activity every 2 s, and its tasks install packages from an index of the tests."""
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
    """pytest-django's live server, with its port added to the allowed hosts."""
    settings.HOST_PORTS = {*settings.HOST_PORTS, live_server.url.rpartition(":")[2]}
    return live_server


@pytest.fixture(scope="session", autouse=True)
def _strict_templates() -> Iterator[None]:
    from django.template.base import Variable

    from tests.asked import strict

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Variable, "_resolve_lookup", strict(Variable._resolve_lookup))
        yield


@pytest.fixture(autouse=True)
def real_portal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Presets the answer that a server reads from the database once, for its first page: this is no demonstration."""
    from portal.installation import demonstration

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
    """The people in the tests. In appcode ops-demo (`ops`, business line OPS) alice is owner, bob developer and victor viewer.

    mallory owns appcode flight-demo (`flight`, business line Flight) and has no access to `ops`. root is an administrator.
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
